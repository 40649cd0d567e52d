"""Outputs that take the memory of an input which ends: only where nobody can see it.

Operators run one by one here, as they are written: compiled ones have a memory plan (test_memory_plan).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers, memory, register_kernel
from fluidlite.compiler.planning.plan import Launch
from fluidlite.compiler.planning.plan_liveness import MIN_INPLACE_BYTES
from fluidlite.program.kernel_registry import kernels

WIDE = 4 * MIN_INPLACE_BYTES // 8 // 4  # of 8 rows of float32: four times what is worth it
X = np.linspace(-1, 1, 8 * WIDE, dtype="float32").reshape(8, WIDE)


def shared(exe: fluid.Executor) -> int:
    """How many outputs of the last run took an input's memory."""
    steps = exe.explain_last().plan.steps
    return sum(out.shares >= 0 for step in steps if isinstance(step, Launch) for out in step.outs)


def chain(length: int, width: int = WIDE) -> tuple[fluid.Program, list[Any]]:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        values = [layers.data("x", [width])]
        for _ in range(length):
            values.append(layers.scale(values[-1], 2.0))
    return program, values


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
def test_a_chain_updates_one_tensor(place: str) -> None:
    program, values = chain(6)
    exe = fluid.Executor(place, fallback="allow", mode="interpreted")
    exe.run(program, {"x": X}, [values[-1]])
    assert shared(exe) == 5  # all but the first, whose input is the caller's
    where = str(exe.explain_last().plan.steps[-1].choice.place)
    memory.reset_peak(where)
    before = memory.used(where)
    (result,) = exe.run(program, {"x": X}, [values[-1]])
    np.testing.assert_array_equal(result, 64 * X)
    assert memory.peak(where) - before <= 2 * X.nbytes


def test_the_feed_stays() -> None:
    program, values = chain(3)
    mine = X.copy()
    fluid.Executor("cpu", mode="interpreted").run(program, {"x": mine}, [values[-1]])
    np.testing.assert_array_equal(mine, X)


def test_not_what_is_read_later() -> None:
    program, values = chain(2)
    with fluid.program_guard(program):
        both = layers.elementwise_add(layers.relu(values[1]), values[1])
    exe = fluid.Executor("cpu", mode="interpreted")
    (result,) = exe.run(program, {"x": X}, [both])
    np.testing.assert_array_equal(result, np.maximum(2 * X, 0) + 2 * X)


def test_not_what_is_fetched() -> None:
    program, values = chain(3)
    exe = fluid.Executor("cpu", mode="interpreted")
    results = exe.run(program, {"x": X}, values[1:])
    for power, result in enumerate(results, start=1):
        np.testing.assert_array_equal(result, 2**power * X)
    assert shared(exe) == 0


def test_not_while_somebody_watches() -> None:
    program, values = chain(3)
    exe = fluid.Executor("cpu", mode="interpreted")
    seen: list[tuple[float, float]] = []

    def watch(op: Any, io: Any) -> None:
        seen.extend(
            (float(a.numpy()[0, 0]), float(b.numpy()[0, 0]))
            for a, b in zip(io.inputs.values(), io.outputs.values(), strict=True)
        )

    with fluid.debug(on_op=watch):
        exe.run(program, {"x": X}, [values[-1]])
    assert seen == [(-1, -2), (-2, -4), (-4, -8)] and shared(exe) == 0
    exe.run(program, {"x": X}, [values[-1]])
    assert shared(exe) == 2


def test_not_by_a_kernel_that_does_not_say_so() -> None:
    @register_kernel("scale", "cpu", library="test_reverses")
    def reversing(call: Any, context: Any) -> Any:
        def run(context: Any, io: Any) -> None:
            io.array("Out")[...] = 0  # would spoil a shared input
            io.array("Out")[...] += io.array("X") * 2

        return run

    try:
        program, values = chain(3)
        exe = fluid.Executor("cpu", mode="interpreted")
        (result,) = exe.run(program, {"x": X}, [values[-1]])
        np.testing.assert_array_equal(result, 8 * X)
        assert shared(exe) == 0
    finally:
        kernels.remove(reversing)


def test_not_where_it_would_gain_nothing() -> None:
    program, values = chain(3, width=2)
    exe = fluid.Executor("cpu", mode="interpreted")
    exe.run(program, {"x": X[:, :2]}, [values[-1]])
    assert shared(exe) == 0
