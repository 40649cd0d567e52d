"""Values without elements: fetched, fed, reduced; in what runs, and in every text of what runs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers

Array = Any


def _x(width: int = 3) -> Any:
    return layers.data("x", [-1, width], append_batch_size=False)


def _rows() -> Any:
    return layers.ones([2, 3], "float32")


def _several() -> list[Any]:
    hidden = layers.relu(_x())
    return [hidden, layers.scale(hidden, 2.0), layers.reduce_sum(layers.exp(hidden), 0)]


def _trained() -> list[Any]:
    loss = layers.reduce_sum(layers.square(layers.fc(_x(), 2)))
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    return [loss]


def _state() -> list[Any]:
    held = layers.create_global_var([0, 3], 1.0, "float32", persistable=True)
    layers.assign(layers.scale(held, 2.0), held)
    return [held, layers.reduce_sum(held, 0)]


def _images(use: Callable[[Any], Any]) -> Callable[[], list[Any]]:
    return lambda: [use(layers.data("images", [-1, 2, 5, 5], append_batch_size=False))]


def _view_of_a_view() -> list[Any]:
    """Its dims cannot be said of the first: 0 means the dim that is there."""
    return [layers.unsqueeze(layers.reshape(layers.data("none", [1, 0], append_batch_size=False), [2, 0, 1]), [1])]


PROGRAMS: dict[str, Callable[[], list[Any]]] = {
    "relu": lambda: [layers.relu(_x())],
    "the_feed_itself": lambda: [_x()],
    "sum_of_all": lambda: [layers.reduce_sum(_x())],
    "sum_of_no_rows": lambda: [layers.reduce_sum(_x(), 0)],
    "no_sums": lambda: [layers.reduce_sum(layers.exp(_x()), 1)],
    "product_of_no_rows": lambda: [layers.reduce_prod(_x(), 0)],
    "no_maxima": lambda: [layers.reduce_max(_x(), 1)],
    "mean": lambda: [layers.mean(_x())],
    "fused_sum": lambda: [layers.reduce_sum(layers.relu(_x()), 0)],
    "several": _several,
    "dense": lambda: [layers.fc(_x(), 4, act="relu")],
    "sum_of_no_products": lambda: [layers.matmul(_x(), _x(), transpose_x=True)],
    "joined": lambda: [layers.concat([layers.exp(layers.relu(_x())), _rows()], 0)],
    "reshaped": lambda: [layers.reshape(_x(), [3, -1])],
    "view_of_a_view": _view_of_a_view,
    "transposed": lambda: [layers.relu(layers.transpose(_x(), [1, 0]))],
    "dropout": lambda: [layers.dropout(_x(), 0.5)],
    "softmax": lambda: [layers.softmax(_x())],
    "norm": lambda: [layers.layer_norm(_x())],
    "cast": lambda: [layers.cast(_x(), "int64")],
    "no_columns": lambda: [layers.slice(_x(), [1], [0], [0])],
    "split": lambda: list(layers.split(_x(4), 2, 1)),
    "constant": lambda: [layers.fill_constant([0, 3], "float32", 1.0)],
    "trained": _trained,
    "state": _state,
    "convolution": _images(lambda x: layers.conv2d(x, 3, 3)),
    "pooled": _images(lambda x: layers.pool2d(x, 2, "max", 2)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_runs_and_is_told(any_place: str, name: str, tmp_path: Path) -> None:
    if any_place == "opencl" and list(PROGRAMS).index(name) % 3:
        pytest.skip("the same on every kernel language, whose compiler takes a second")
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup):
        fetches = PROGRAMS[name]()
    feed = {
        variable.name: np.ones([max(dim, 0) for dim in variable.shape], "float32")
        for variable in main.list_vars() if variable.is_data
    }  # fmt: skip
    runs: dict[str, list[Array]] = {}
    for mode in ("interpreted", "compiled"):
        executor, scope = fluid.Executor(any_place, mode=mode, fallback="allow"), fluid.Scope()
        executor.run(startup, scope=scope)
        runs[mode] = [each for _ in range(3) for each in executor.run(main, feed=feed, fetch_list=fetches, scope=scope)]
    for a, b in zip(*runs.values(), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    assert executor.explain_last().text(refused=True) and executor.explain_last().html()
    assert fluid.explain(main, any_place, feed=feed, fetch_list=fetches).text(refused=True)
    assert executor.memory_plan.summary()
    paths = executor.write_sources(tmp_path)
    if tmp_path / "program.py" in paths:
        _run_text(executor, tmp_path, feed, scope, runs["compiled"][-len(fetches) :])


def _run_text(executor: Any, folder: Path, feed: dict[str, Array], scope: Any, last: list[Array]) -> None:
    """The written program gives the same; state moves on, so its values are compared where nothing updates them."""
    spec = importlib.util.spec_from_file_location("written", folder / "program.py")
    assert spec is not None and spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    names = [name for name, _, _ in executor._executables.last.state]
    state = {name.replace(".", "_"): np.array(scope.find_var(name).get_tensor()) for name in names}
    found = written.run(*feed.values(), **state)
    found = found if isinstance(found, tuple) else (found,)
    for a, b in zip(found, last, strict=True):
        assert np.asarray(a).shape == b.shape and np.asarray(a).dtype == b.dtype
        if not names:
            np.testing.assert_array_equal(a, b)
