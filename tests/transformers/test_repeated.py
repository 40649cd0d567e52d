"""Programs that train are run again and again: their small tensors get compiled kernels too, one call for many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
import fluidlite.graph as ng
from fluidlite import layers
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.planning.plan import Launch
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_registry import devices
from fluidlite.transformers import Transformer


@pytest.fixture(autouse=True)
def _compiled() -> None:
    fluid.places()
    if not getattr(devices.unit("cpu").language, "least", 0):
        pytest.skip("llvmlite compiles the kernels of this test")


def network() -> tuple[Any, Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 5
    with fluid.program_guard(main, startup):
        x = layers.data("x", [6])
        hidden = layers.fc(layers.fc(x, 5, act="tanh"), 4, act="sigmoid")
        loss = layers.mean(layers.square(hidden))
        test = main.clone(for_test=True)
        fluid.optimizer.Adam(0.01).minimize(loss)
    return main, startup, test, loss


def capabilities(exe: Any) -> set[str]:
    """Of the steps that no library computes."""
    steps = exe._executables.last.plan.steps
    return {step.choice.capability for step in steps if isinstance(step, Launch) and step.choice.capability}


def _kernels(report: Any) -> list[Any]:
    return [(row["op"], row["how"], row["kernel"]) for row in report.data()]


def test_what_trains_updates_its_state() -> None:
    main, startup, test, _ = network()
    assert [Graph(program, ()).updates for program in (main, startup, test)] == [True, False, False]
    counted = fluid.Program()
    with fluid.program_guard(counted, fluid.Program()):
        layers.increment(layers.create_global_var([1], 0.0, "float32", persistable=True))
    assert Graph(counted, ()).updates


def test_small_tensors_of_a_training_step_are_compiled() -> None:
    main, startup, test, loss = network()
    exe, scope = fluid.Executor("cpu"), fluid.Scope()
    exe.run(startup, scope=scope)
    feed = {"x": np.ones((3, 6), "float32")}
    counts = get_context("cpu").counts
    before = counts.launches
    exe.run(test, feed, [loss], scope=scope)
    assert capabilities(exe) == {"array"}
    assert counts.launches == before
    losses = [exe.run(main, feed, [loss], scope=scope)[0].item() for _ in range(5)]
    assert capabilities(exe) == {"language"}
    assert _kernels(fluid.explain(main, "cpu", {"x": (3, 6)}, [loss])) == _kernels(exe.explain_last())
    assert counts.launches > before
    other, scope = fluid.Executor("cpu", mode="interpreted"), fluid.Scope()
    other.run(startup, scope=scope)
    wanted = [other.run(main, feed, [loss], scope=scope)[0].item() for _ in range(5)]
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)


def test_who_asks_for_a_generator_gets_it() -> None:
    main, startup, _, loss = network()
    exe, scope = fluid.Executor("cpu", codegen="numpy"), fluid.Scope()
    exe.run(startup, scope=scope)
    exe.run(main, {"x": np.ones((3, 6), "float32")}, [loss], scope=scope)
    assert capabilities(exe) == {"array"}


def test_a_computation_that_assigns_trains(cpu: Transformer) -> None:
    w, x = ng.variable((4,), 1.0), ng.placeholder((4,))
    step = cpu.computation([w, ng.assign(w, w * 0.5 + ng.tanh(x))], x)
    for _ in range(3):
        step(np.zeros(4))
    assert step(np.zeros(4))[0].tolist() == [0.0625] * 4
    steps = step.executor.executables.last.plan.steps
    assert {each.choice.capability for each in steps if isinstance(each, Launch)} <= {"language", "memory"}
