"""A value that is read after its variable is overwritten is kept: passes may leave such graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.transformers import Graph, GraphPass

PLACES = [str(place) for place in fluid.places()]
W = np.array([0.5, -1.0, 2.0], "float32")


class ReadBefore(GraphPass):
    """Lets ``tanh`` read what its variable held at first."""

    phase = "schedule"

    def do_pass(self, graph: Graph) -> None:
        """Look for the first value of the name."""
        for op in graph.ops:
            if op.type == "tanh":
                (now,) = op.args
                first = next(v for each in graph.ops for v in (*each.results, *each.args) if v.name == now.name)
                assert first is not now
                op.inputs["X"] = [first]
        graph.touch()


def run(place: str, program: fluid.Program, fetches: list[Any], feed: Any = None, **state: Any) -> list[Any]:
    """Run it three times; what the first and the last gave, and the state then."""
    exe, scope = fluid.Executor(place, passes=[ReadBefore()]), fluid.Scope()
    for name, value in state.items():
        scope.var(name).get_tensor().set(value, place)
    found = [exe.run(program, feed, fetches, scope=scope) for _ in range(3)]
    return [found, {name: scope.find_var(name).get_tensor().numpy() for name in state}]


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("place", PLACES)
def test_state_that_is_updated_in_place(place: str, device: str | None) -> None:
    program = fluid.Program()
    block = program.global_block()
    w = block.create_var("w", [3], "float32", persistable=True)
    g = block.create_var("g", [3], "float32", is_data=True)
    rate = block.create_var("rate", [1], "float32", is_data=True)
    out = block.create_var("out")
    with fluid.program_guard(program), fluid.device_guard(device):
        block.append_op("sgd", {"Param": w, "Grad": g, "LearningRate": rate}, {"ParamOut": w})
    block.append_op("tanh", {"X": w}, {"Out": out})
    feed = {"g": np.ones(3, "float32"), "rate": np.array([0.25], "float32")}
    found, state = run(place, program, [out], feed, w=W)
    for number, (value,) in enumerate(found):
        np.testing.assert_allclose(value, np.tanh(W - 0.25 * number), rtol=2e-6)
    np.testing.assert_array_equal(state["w"], W - 0.75)


@pytest.mark.parametrize("place", PLACES)
def test_state_that_is_assigned(place: str) -> None:
    program = fluid.Program()
    block = program.global_block()
    w = block.create_var("w", [3], "float32", persistable=True)
    x = block.create_var("x", [3], "float32", is_data=True)
    out = block.create_var("out")
    block.append_op("assign", {"X": x}, {"Out": w})
    doubled = block.create_var("doubled")
    block.append_op("scale", {"X": w}, {"Out": doubled}, {"scale": 2.0})
    block.append_op("tanh", {"X": w}, {"Out": out})

    class ReadState(GraphPass):
        """Lets ``tanh`` read the state as it was before the assignment."""

        def do_pass(self, graph: Graph) -> None:
            """Rewire it."""
            tanh = next(op for op in graph.ops if op.type == "tanh")
            before = next(op.value for op in graph.ops if op.type == "read_state")
            tanh.inputs["X"] = [before]
            graph.touch()

    first = block.create_var("first")
    block._insert_op(0, type="scale", inputs={"X": w}, outputs={"Out": first}, attrs={"scale": 1.0})
    exe, scope = fluid.Executor(place, passes=[ReadState()]), fluid.Scope()
    scope.var("w").get_tensor().set(W, place)
    for before, now in ((W, W + 1), (W + 1, W + 2)):
        twice, value, old = exe.run(program, {"x": now}, [doubled, out, first], scope=scope)
        np.testing.assert_array_equal(twice, now * 2)
        np.testing.assert_array_equal(old, before)
        np.testing.assert_allclose(value, np.tanh(before), rtol=2e-6)
        np.testing.assert_array_equal(scope.find_var("w").get_tensor().numpy(), now)


@pytest.mark.parametrize("place", PLACES)
def test_a_temporary_that_is_updated_in_place(place: str) -> None:
    x = layers.data("x", [1], append_batch_size=False)
    counter = layers.scale(x, 3.0)
    layers.increment(counter, 1.0, in_place=True)
    out = layers.tanh(counter)
    feed = {"x": np.array([0.25], "float32")}
    found, _ = run(place, fluid.default_main_program(), [out, counter], feed)
    for value, now in found:
        np.testing.assert_allclose(value, np.tanh([0.75]), rtol=2e-6)
        np.testing.assert_array_equal(now, [1.75])


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
@pytest.mark.parametrize("place", PLACES)
def test_copies_of_state_on_another_place_are_of_its_time(place: str, mode: str) -> None:
    """One is made before the sizes of the rest are known, one after it has been written."""
    program = fluid.Program()
    w = program.global_block().create_var("w", [3], "float32", persistable=True)
    with fluid.program_guard(program):
        ids = layers.data("ids", [-1], dtype="int64", append_batch_size=False)
        with fluid.device_guard("cpu"):
            before = layers.scale(w, 2.0)
        count = layers.reduce_sum(layers.cast(layers.unique(ids)[0], "float32"))
        layers.assign(w + count, w)
        with fluid.device_guard("cpu"):
            after = layers.scale(w, 2.0)
            layers.increment(w)
    exe, scope, held = fluid.Executor(place, mode=mode), fluid.Scope(), W
    scope.var("w").get_tensor().set(W, place)
    for given in ([1, 2, 2], [3], [1, 2, 2], [1, 5, 5], [3, 3]):
        found = exe.run(program, {"ids": np.array(given)}, [before, after, "w"], scope=scope)
        total = held + sum(set(given))
        for value, wanted in zip(found, (2 * held, 2 * total, total + 1), strict=True):
            np.testing.assert_array_equal(value, wanted)
        held = total + 1
