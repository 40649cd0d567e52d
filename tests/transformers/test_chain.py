"""Launches that become one native call: their order, their number, deferred errors, and what must not be among them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.compiler.executable.command_buffer import Launches
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_registry import devices

ROWS, WIDTH, IDS = 256, 16, 64
"""Large enough for compiled kernels."""


@pytest.fixture(autouse=True)
def _chains() -> None:
    fluid.places()
    if getattr(devices.unit("cpu").language, "chain", None) is None:
        pytest.skip("llvmlite compiles the kernels of this test")


def embedding() -> tuple[Any, Any, Any]:
    """A step that looks rows up, and then writes the table."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        ids = fluid.layers.data("ids", [1], dtype="int64")
        rows = fluid.layers.embedding(ids, [ROWS, WIDTH], param_attr=fluid.ParamAttr("table"))
        loss = fluid.layers.mean(fluid.layers.square(rows))
        fluid.optimizer.Adam(0.1).minimize(loss)
    return main, startup, loss


@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
def test_a_late_error_is_raised_and_spoils_no_state(mode: str) -> None:
    main, startup, loss = embedding()
    scope, exe = fluid.Scope(), fluid.Executor("cpu", mode=mode)
    exe.run(startup, scope=scope)
    good = np.arange(IDS, dtype="int64")[:, None]
    wrong = good.copy()
    wrong[7] = ROWS + 5
    for _ in range(3):
        exe.run(main, {"ids": good}, [loss], scope=scope)
    names = [variable.name for variable in main.list_vars() if variable.persistable]
    for _ in range(2):
        before = {name: scope.find_var(name).get_tensor().numpy().copy() for name in names}
        with pytest.raises(fluid.errors.OutOfRangeError, match=f"{ROWS + 5}"):
            exe.run(main, {"ids": wrong}, [loss], scope=scope)
        for name in names:
            np.testing.assert_array_equal(scope.find_var(name).get_tensor().numpy(), before[name], name)
        exe.run(main, {"ids": good}, [loss], scope=scope)
        assert (scope.find_var("table").get_tensor().numpy() != before["table"]).any()


def two_tables() -> tuple[Any, list[Any], list[Any]]:
    """State is written after each of two operators that index."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        kept = []
        for name in ("a", "b"):
            ids = fluid.layers.data(f"{name}_ids", [1], dtype="int64")
            table = fluid.layers.create_global_var([ROWS, WIDTH], 1.0, "float32", True, name=f"{name}_table")
            for suffix in ("", "_too"):
                out = fluid.layers.create_global_var([IDS, WIDTH], 0.0, "float32", True, name=name + suffix)
                kept.append(out)
            rows = fluid.layers.gather(table, ids)
            for out in kept[-2:]:
                main.global_block().append_op("elementwise_add", {"X": out, "Y": rows}, {"Out": out})
    return main, [startup], kept


@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
def test_each_index_is_looked_at_before_state_is_written(mode: str) -> None:
    main, (startup,), kept = two_tables()
    scope, exe = fluid.Scope(), fluid.Executor("cpu", mode=mode)
    exe.run(startup, scope=scope)
    good = np.arange(IDS, dtype="int64")[:, None]
    wrong = good.copy()
    wrong[3] = ROWS + 1

    def values() -> list[float]:
        return [float(scope.find_var(out.name).get_tensor().numpy().max()) for out in kept]

    for number in range(1, 4):
        exe.run(main, {"a_ids": good, "b_ids": good}, scope=scope)
        assert values() == [number] * 4
    with pytest.raises(fluid.errors.OutOfRangeError, match=f"{ROWS + 1}"):
        exe.run(main, {"a_ids": wrong, "b_ids": good}, scope=scope)
    assert values()[:2] == [3, 3]
    for out in kept:
        scope.find_var(out.name).get_tensor().set(np.zeros((IDS, WIDTH), "float32"))
    with pytest.raises(fluid.errors.OutOfRangeError, match=f"{ROWS + 1}"):
        exe.run(main, {"a_ids": good, "b_ids": wrong}, scope=scope)
    assert values()[2:] == [0, 0]
    exe.run(main, {"a_ids": good, "b_ids": good}, scope=scope)
    assert values()[2:] == [1, 1]


def test_state_is_looked_after_once_for_each_index() -> None:
    """The updates behind a look are launches that follow each other."""
    main, (startup,), _ = two_tables()
    scope, exe = fluid.Scope(), fluid.Executor("cpu", mode="compiled", passes=())
    exe.run(startup, scope=scope)
    good = np.arange(IDS, dtype="int64")[:, None]
    exe.run(main, {"a_ids": good, "b_ids": good}, scope=scope)
    kinds = [isinstance(action, Launches) for action in exe._executables.last.actions]
    assert kinds == [True, False, True, False, True]


def test_launches_that_follow_each_other_are_one_call() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        y = fluid.layers.data("x", [2048], append_batch_size=False)
        for _ in range(5):
            y = fluid.layers.softmax(y)
    exe, scope = fluid.Executor("cpu", mode="compiled"), fluid.Scope()
    given = np.linspace(0, 9, 2048, dtype="float32")
    expected = fluid.Executor("cpu").run(program, {"x": given}, [y], scope=fluid.Scope())[0]
    context = get_context(fluid.CPUPlace())
    for _ in range(4):
        before = context.counts.launches
        np.testing.assert_array_equal(exe.run(program, {"x": given}, [y], scope=scope)[0], expected)
        assert context.counts.launches - before == 5
    (action,) = exe._executables.last.actions
    assert isinstance(action, Launches)
    assert len(action.launches) == 5


def test_random_numbers_are_drawn_at_each_call() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        y = fluid.layers.exp(fluid.layers.uniform_random([2048]))
    exe = fluid.Executor("cpu", mode="compiled")
    found = [exe.run(program, fetch_list=[y])[0] for _ in range(4)]
    assert all((a != b).any() for a, b in itertools.pairwise(found))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("rows", "width"), [(4, 8), (1, 8), (8, 1), (3, 5)])
def test_small_products_and_copies_are_calls_in_the_chain(dtype: str, rows: int, width: int) -> None:
    """Functions of cblas (a row or a column: gemv) and memmove are called from native code, between the kernels."""
    program, scope = fluid.Program(), fluid.Scope()
    program.repeated = True  # kernels of the kernel language, small as it is
    rng = np.random.default_rng(0)
    with fluid.program_guard(program, fluid.Program()):
        x = fluid.layers.data("x", [rows, 6], append_batch_size=False, dtype=dtype)
        kept = fluid.layers.create_global_var([6, width], 0.0, dtype, True, name="kept")
        out = fluid.layers.create_global_var([width, rows], 0.0, dtype, True, name="out")
        y = fluid.layers.exp(fluid.layers.mul(fluid.layers.scale(x, 0.5), kept))
        fluid.layers.assign(fluid.layers.reshape(y, [width, rows]), out)
        loss = fluid.layers.reduce_sum(fluid.layers.matmul(y, out) if rows == width else y)
    table, given = rng.normal(size=(6, width)).astype(dtype), rng.normal(size=(rows, 6)).astype(dtype)
    scope.var("kept").get_tensor().set(table)
    scope.var("out").get_tensor().set(np.zeros((width, rows), dtype))
    exe, context = fluid.Executor("cpu", mode="compiled"), get_context(fluid.CPUPlace())
    expected = np.exp(given.astype("float64") * 0.5 @ table.astype("float64"))
    for _ in range(4):
        before = context.counts.launches
        (found,) = exe.run(program, {"x": given}, [loss], scope=scope)
        np.testing.assert_allclose(found, expected.sum(), rtol=1e-5)
        np.testing.assert_allclose(out_of(scope), expected.reshape(width, rows), rtol=1e-5)
        launches = context.counts.launches - before
    (action,) = exe._executables.last.actions
    assert isinstance(action, Launches)
    assert action.calls >= 2
    assert action.counted == launches < len(action.launches)


def out_of(scope: Any) -> Any:
    return np.array(scope.find_var("out").get_tensor())


def test_large_products_stay_calls_of_their_own() -> None:
    """Threads of the library are kept to one around some; others let the interpreter's lock go."""
    program, scope = fluid.Program(), fluid.Scope()
    with fluid.program_guard(program, fluid.Program()):
        x = fluid.layers.data("x", [96, 96], append_batch_size=False)
        y = fluid.layers.relu(fluid.layers.mul(fluid.layers.exp(x), x))
    exe, given = fluid.Executor("cpu", mode="compiled"), np.linspace(-1, 1, 96 * 96, dtype="float32").reshape(96, 96)
    for _ in range(3):
        (found,) = exe.run(program, {"x": given}, [y], scope=scope)
    wide = given.astype("float64")
    np.testing.assert_allclose(found, np.maximum(np.exp(wide) @ wide, 0), rtol=1e-4, atol=1e-3)
    assert not all(isinstance(action, Launches) for action in exe._executables.last.actions)
