"""The place that schedules and counts, and computes nothing."""

from __future__ import annotations

import gc
from collections import Counter

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers, memory
from fluidlite.compiler.planning.plan import Launch, Move
from fluidlite.conformance.certification import certify
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_registry import devices

FEED = {"x": np.ones((8, 16), "float32"), "label": np.zeros((8, 1), "int64")}


def trained() -> tuple[fluid.Program, fluid.Program, fluid.Variable]:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        x, label = layers.data("x", [16]), layers.data("label", [1], dtype="int64")
        hidden = layers.dropout(layers.fc(x, 32, act="relu"), 0.5)
        loss = layers.mean(layers.softmax_with_cross_entropy(layers.fc(hidden, 4), label))
        fluid.optimizer.Adam(0.1).minimize(loss)
    return main, startup, loss


def test_it_is_used_where_it_is_named() -> None:
    assert fluid.Place("null") not in fluid.places()
    assert fluid.NullPlace(0) == fluid.Place("null")
    assert devices.unit("null").capabilities() == ("language", "memory")


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_it_does_what_the_plan_says_and_gives_zeros(mode: str) -> None:
    main, startup, loss = trained()
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor("null", mode=mode, fallback="error")
        exe.run(startup)
        exe.run(main, FEED, [loss])
        counts = get_context("null").counts
        counts.reset()
        (found,) = exe.run(main, FEED, [loss])
        assert found.tolist() == [0.0] and found.dtype == np.float32
        steps = exe.explain_last().plan.steps
        kinds = Counter(type(step) for step in steps)
        assert kinds.keys() <= {Launch, Move}
        assert counts.launches >= kinds[Launch] - sum(step.skip for step in steps if isinstance(step, Launch))
        assert (counts.bytes_in, counts.bytes_out) == (sum(a.nbytes for a in FEED.values()), found.nbytes)


def test_compiled_programs_launch_less_than_interpreted_ones() -> None:
    found = {}
    for mode in ("compiled", "interpreted"):
        main, startup, loss = trained()
        with fluid.scope_guard(fluid.Scope()):
            exe = fluid.Executor("null", mode=mode)
            exe.run(startup)
            exe.run(main, FEED, [loss])
            counts = get_context("null").counts
            counts.reset()
            exe.run(main, FEED, [loss])
            found[mode] = counts.launches
    assert found["compiled"] < found["interpreted"]


def test_memory_is_counted_and_given_back() -> None:
    gc.collect()
    before = memory.used("null")
    block = memory.alloc("null", 1 << 40)  # a terabyte of nothing
    assert memory.used("null") == before + (1 << 40)
    memory.free(block)
    assert memory.used("null") == before


def test_it_cannot_be_certified() -> None:
    with pytest.raises(fluid.FluidError, match="computes nothing that could be checked"):
        certify("null")
