"""Nothing cheats through the host: the contexts' copy counts are what explain names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_registry import devices

layers = fluid.layers
KINDS = ("cpu", "opencl", "fpga", *{where.kind for where in fluid.places() if where.kind == "cuda"})


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, require: Callable[..., None]) -> str:
    require(request.param)
    return f"{request.param}:0"


@pytest.fixture(autouse=True)
def allow() -> None:
    fluid.set_fallback("allow")


def classifier(optimizer: Any) -> tuple[Any, Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x, label = layers.data("x", [6]), layers.data("label", [1], dtype="int64")
        hidden = layers.dropout(layers.fc(x, 8, act="relu"), 0.2)
        logits = layers.fc(hidden, 3)
        loss = layers.mean(layers.softmax_with_cross_entropy(logits, label))
        accuracy = layers.accuracy(layers.softmax(logits), label)
        optimizer().minimize(loss)
    return main, startup, loss, accuracy


def tagger() -> tuple[Any, Any, Any]:
    """With a pinned operator in the middle."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = layers.data("x", [5], lod_level=1)
        label = layers.data("label", [1], dtype="int64", lod_level=1)
        emission = layers.fc(x, 3)
        cost = layers.mean(layers.linear_chain_crf(emission, label, param_attr=fluid.ParamAttr(name="crf")))
        fluid.optimizer.SGD(0.1).minimize(cost)
    return main, startup, cost


def counted(place: str, exe: Any, main: Any, feed: Any, fetch: list[Any]) -> None:
    """Run a step, and hold all contexts' counts against the plan's."""
    kinds = {str(where) for where in (fluid.Place.parse(place), devices.host())}
    contexts = {where: get_context(where) for where in kinds}
    for _ in range(2):
        for context in contexts.values():
            context.counts.reset()
        exe.run(main, feed, fetch)
        report = exe.explain_last()
        named = {str(where): counts for where, counts in report.copies().items()}
        for where, context in contexts.items():
            wanted = named.get(where, {"copy_in": 0, "copy_out": 0})
            found = {"copy_in": context.counts.copy_in, "copy_out": context.counts.copy_out}
            assert found == wanted, where
        context = contexts[str(fluid.Place.parse(place))]
        if not devices.unit(place).info.host:
            moves = report.plan.moves
            assert context.counts.bytes_in == sum(m.spec.nbytes for m in moves if str(m.target) == place)
            fetched = sum(spec.nbytes for _, _, where, spec in report.plan.fetches if str(where) == place)
            assert context.counts.bytes_out == fetched + sum(m.spec.nbytes for m in moves if str(m.source) == place)
            assert report.summary["bytes"] == sum(m.spec.nbytes for m in moves)


@pytest.mark.parametrize(
    "optimizer",
    [lambda: fluid.optimizer.SGD(0.1), lambda: fluid.optimizer.Momentum(0.1, 0.9), lambda: fluid.optimizer.Adam(0.01)],
)
def test_a_training_step(place: str, optimizer: Any) -> None:
    main, startup, loss, accuracy = classifier(optimizer)
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor(place)
        exe.run(startup)
        feed = {"x": np.ones((4, 6), "float32"), "label": np.zeros((4, 1), "int64")}
        counted(place, exe, main, feed, [loss, accuracy])


def test_a_step_with_a_capable_place_copies_feeds_and_fetches_only(place: str) -> None:
    unit = devices.unit(place)
    if unit.array is None and unit.language is None:
        pytest.skip(f"{place} has neither array namespace nor kernel language")
    main, startup, loss, _ = classifier(lambda: fluid.optimizer.Momentum(0.1, 0.9))
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor(place)
        exe.run(startup)
        exe.run(main, {"x": np.ones((4, 6), "float32"), "label": np.zeros((4, 1), "int64")}, [loss])
        report = exe.explain_last()
        assert [(m.name, m.why) for m in report.plan.moves] == (
            [] if unit.info.host else [("x", "feed"), ("label", "feed")]
        )
        assert report.summary["fallback"] == 0


def test_a_step_with_a_pinned_operator(place: str) -> None:
    main, startup, cost = tagger()
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor(place)
        exe.run(startup)
        lengths = [[2, 3]]
        feed = {
            "x": fluid.create_lod_tensor(np.ones((5, 5), "float32"), lengths, fluid.CPUPlace()),
            "label": fluid.create_lod_tensor(np.asarray([[0], [1], [2], [1], [0]]), lengths, fluid.CPUPlace()),
        }
        counted(place, exe, main, feed, [cost])
        assert exe.explain_last().summary["pinned"] == 2


def test_a_feed_that_is_there_already_is_not_copied(place: str) -> None:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        x = layers.data("x", [4])
        y = layers.relu(x)
    exe = fluid.Executor(place)
    context = get_context(place)
    tensor = fluid.Tensor().set(np.ones((2, 4), "float32"), place)
    context.counts.reset()
    (out,) = exe.run(main, {"x": tensor}, [y])
    assert out.sum() == 8
    assert context.counts.copy_in == 0
    assert exe.explain_last().summary["feeds"] == 0


def test_results_agree_with_the_cpus(place: str) -> None:
    main, startup, loss, accuracy = classifier(lambda: fluid.optimizer.Adam(0.01))
    found = []
    for where in ("cpu", place):
        with fluid.scope_guard(fluid.Scope()):
            exe = fluid.Executor(where)
            exe.run(startup)
            rng = np.random.default_rng(1)
            steps = []
            for _ in range(5):
                feed = {"x": rng.standard_normal((4, 6)).astype("float32"), "label": rng.integers(0, 3, (4, 1))}
                steps.append([float(value[0]) for value in exe.run(main, feed, [loss, accuracy])])
            found.append(steps)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)
