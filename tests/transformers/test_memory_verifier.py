"""The proof of memory plans: it accepts what programs are given, and refuses every plan in which bytes are lost.

That all plans of the suite pass is seen by a fixture of the whole suite (tests/conftest.py).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from networks import Net, lenet, network, runs

import fluidlite as fluid
from fluidlite import layers
from fluidlite.compiler.memory.memory_plan import MemoryPlan, PlannedBuffer
from fluidlite.compiler.memory.memory_verifier import MemoryVerifier


def plan_of(net: Net) -> MemoryPlan:
    _, exe, _ = runs(net, "cpu", "compiled", 1)
    return exe.memory_plan


def verify(plan: MemoryPlan, buffers: list[PlannedBuffer]) -> None:
    MemoryVerifier(plan._plan, buffers, plan.arenas, plan._views).verify()


def live_together(one: PlannedBuffer, other: PlannedBuffer) -> bool:
    return one.place == other.place and one.start <= other.end and other.start <= one.end


@pytest.mark.parametrize("net", [lenet, network])
def test_a_buffer_moved_onto_one_that_is_live_is_refused(net: type) -> None:
    plan = plan_of(net())
    verify(plan, list(plan.buffers))
    tried = 0
    for i, one in enumerate(plan.buffers):
        for other in plan.buffers:
            last = max(one.start, other.start)
            if one is other or not one.nbytes or not other.nbytes or not live_together(one, other):
                continue
            if min(one.end, other.end) == last:  # one ends where the other begins: they may be one step's in and out
                continue
            moved = list(plan.buffers)
            offset = min(other.offset, plan.arenas[one.place] - one.nbytes) // 64 * 64
            if not (offset < other.offset + other.nbytes and other.offset < offset + one.nbytes):
                continue
            moved[i] = replace(one, offset=offset)
            with pytest.raises(fluid.FluidError, match="memory plan: "):
                verify(plan, moved)
            tried += 1
    assert tried > 40


def test_a_live_range_that_is_cut_short_is_refused() -> None:
    """What a wrong liveness gives: the bytes go to another value before their last reader."""
    plan = plan_of(network())
    by_start = sorted((b for b in plan.buffers if b.kind == "value" and b.nbytes), key=lambda b: b.start)
    refused = 0
    for one in by_start:
        for heir in by_start:
            if heir.start <= one.start or heir.start >= one.end or heir.nbytes > one.nbytes:
                continue
            moved = [replace(b, offset=one.offset) if b is heir else b for b in plan.buffers]
            with pytest.raises(fluid.FluidError, match="memory plan: "):
                verify(plan, moved)
            refused += 1
    assert refused > 5


def test_bytes_outside_the_arena_and_between_alignments_are_refused() -> None:
    plan = plan_of(network())
    last = max(range(len(plan.buffers)), key=lambda i: plan.buffers[i].offset + plan.buffers[i].nbytes)
    for offset, message in ((plan.planned, "but the arena of cpu:0 has"), (plan.buffers[last].offset + 1, "")):
        moved = list(plan.buffers)
        moved[last] = replace(moved[last], offset=offset)
        with pytest.raises(fluid.FluidError, match=f"memory plan: .*{message}"):
            verify(plan, moved)
    with pytest.raises(fluid.FluidError, match="has two buffers"):
        verify(plan, [*plan.buffers, plan.buffers[0]])


def test_an_executor_shows_its_plan() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        x = layers.data("x", [8])
        y = layers.reduce_sum(layers.softmax(layers.transpose(layers.softmax(x), [1, 0])), 0)
        exe = fluid.Executor("cpu")
        with pytest.raises(fluid.FluidError, match=r"nothing of it was bound to memory yet"):
            _ = exe.memory_plan
        exe.run(feed={"x": np.ones((4, 8), "float32")}, fetch_list=[y])
        plan = exe.memory_plan
        assert {"x", "softmax_0.tmp_0"} <= {name for b in plan.buffers for name in b.names}
        plan.verify()
        interpreted = fluid.Executor("cpu", mode="interpreted")
        interpreted.run(feed={"x": np.ones((4, 8), "float32")}, fetch_list=[y])
        with pytest.raises(fluid.FluidError, match="an interpreted executor has no memory plan"):
            _ = interpreted.memory_plan


def test_a_computation_is_explained() -> None:
    from fluidlite.transformers import make_transformer

    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        x = layers.data("x", [8])
        computation = make_transformer("cpu").computation(layers.reduce_sum(layers.exp(x)), x)
        report = fluid.explain(computation, feed={"x": (4, 8)})
        assert report.summary["place"] == "cpu:0"
        assert "exp" in str(report)
        with pytest.raises(fluid.FluidError, match="place is 'opencl:0', but the computation runs on cpu:0"):
            fluid.explain(computation, "opencl:0")
        computation(np.ones((4, 8)))
        assert str(fluid.explain(computation, feed={"x": (4, 8)})) == str(report)
