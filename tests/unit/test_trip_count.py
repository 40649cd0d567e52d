"""Loops whose counters say how often they run: the same results, without a look at the condition in each iteration."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import errors, layers
from fluidlite.control_flow.trip_count import find_trip_count

COMPARE: dict[str, Callable[[int, int], bool]] = {
    "less_than": lambda a, b: a < b, "less_equal": lambda a, b: a <= b,
    "greater_than": lambda a, b: a > b, "greater_equal": lambda a, b: a >= b,
}  # fmt: skip
TURNED = {"less_than": "greater_than", "less_equal": "greater_equal"} | {
    "greater_than": "less_than", "greater_equal": "less_equal"
}  # fmt: skip


def number(value: int, dtype: str = "int64") -> Any:
    return layers.fill_constant([1], dtype, value)


def counted() -> Any:
    """The trip count of the last block, if one is found."""
    program = fluid.default_main_program()
    (loop,) = [op for op in program.global_block().ops if op.type == "while"]
    return find_trip_count(program.blocks[loop.attrs["sub_block"]], loop.attrs["condition"])


@pytest.mark.parametrize("seed", range(24))
def test_random_counters(seed: int) -> None:
    choose = random.Random(seed)
    kind, dtype = choose.choice(list(COMPARE)), choose.choice(["int64", "int32"])
    up = 1 if kind.startswith("less") else -1
    step, change = up * choose.choice([1, 2, 3]), -up * choose.choice([0, 0, 1])
    first, last, offset = choose.randint(-6, 6), choose.randint(-6, 6), choose.choice([0, 2, -3])
    early, turned, added = choose.random() < 0.5, choose.random() < 0.3, choose.random() < 0.5
    i, n, times = number(first, dtype), number(last, dtype), number(0)

    def compare(out: Any = None) -> Any:
        shifted = i + offset if offset else i
        x, y = (n, shifted) if turned else (shifted, n)
        return getattr(layers, TURNED[kind] if turned else kind)(x, y, cond=out)

    more = compare()
    with layers.While(more, max_iterations=100).block():
        layers.increment(times)
        if early:
            compare(more)
        if added:
            layers.assign(i + step, output=i)
        else:
            layers.increment(i, step)
        if change:
            layers.increment(n, change)
        if not early:
            compare(more)
    assert counted() is not None
    found = fluid.Executor("cpu", mode=choose.choice(["compiled", "interpreted"])).run(fetch_list=[times, i, n, more])
    trips, a, b = 0, first, last
    go = COMPARE[kind](a + offset, b)
    while go:
        trips += 1
        if early:
            go = COMPARE[kind](a + offset, b)
        a, b = a + step, b + change
        if not early:
            go = COMPARE[kind](a + offset, b)
    assert [each.item() for each in found] == [trips, a, b, False]


def test_while_loop_is_counted_and_fed_limits_are_read_at_each_run() -> None:
    x, n = layers.data("x", [1], False), layers.data("n", [1], False, dtype="int64")
    found = layers.while_loop(lambda i, s: layers.less_than(i, n), lambda i, s: [i + 1, s * x], [number(0), x])
    assert counted() is not None
    (slope,) = fluid.gradients(found[1], x) if not x.stop_gradient else (found[1],)
    exe = fluid.Executor("cpu")
    for times in (3, 0, 5):
        (value,) = exe.run(feed={"x": np.float32([2]), "n": np.int64([times])}, fetch_list=[slope])
        assert value.item() == 2.0 ** (times + 1)


@pytest.mark.parametrize("kind", ["of floats", "doubled", "of two", "in a branch", "equal"])
def test_other_conditions_are_read(kind: str) -> None:
    dtype = "float32" if kind == "of floats" else "int64"
    i, n, times = layers.fill_constant([1], dtype, 1), layers.fill_constant([1], dtype, 9), number(0)
    more = layers.less_than(i, n)
    with layers.While(more, max_iterations=100).block():
        layers.increment(times)
        if kind == "in a branch":
            layers.assign(layers.cond(layers.less_than(times, n), lambda: i + 1, lambda: i), output=i)
        else:
            layers.assign(i * 2 if kind == "doubled" else i + 1, output=i)
        if kind == "of two":
            layers.logical_and(layers.less_than(i, n), layers.less_than(i, n), out=more)
        elif kind == "equal":
            layers.not_equal(i, n, cond=more)
        else:
            layers.less_than(i, n, cond=more)
    assert counted() is None
    (found,) = fluid.Executor("cpu").run(fetch_list=[times])
    assert found.item() == (4 if kind == "doubled" else 8)


def test_limits_and_loops_without_an_end() -> None:
    i, n, far = number(0), layers.data("n", [1], False, dtype="int64"), layers.data("far", [1], False, dtype="int64")
    start = i + far
    more = layers.less_than(start, n)
    with layers.While(more, max_iterations=5).block():
        layers.increment(start)
        layers.less_than(start, n, cond=more)
    exe = fluid.Executor("cpu")
    big = 1 << 40
    for first, last, end in ((0, 5, 5), (big, big + 3, big + 3), (7, 3, 7)):
        (found,) = exe.run(feed={"far": np.int64([first]), "n": np.int64([last])}, fetch_list=[start])
        assert found.item() == end
    with pytest.raises(errors.OutOfRangeError, match="after 5 iterations"):
        exe.run(feed={"far": np.int64([0]), "n": np.int64([6])}, fetch_list=[start])


def test_an_index_error_in_an_iteration_is_of_its_operator() -> None:
    x, n = layers.data("x", [3, 2], False), number(5)
    i, array = number(0), layers.create_array("float32")
    more = layers.less_than(i, n)
    with layers.While(more).block():
        layers.array_write(layers.gather(x, i), i, array)
        layers.increment(i)
        layers.less_than(i, n, cond=more)
    assert counted() is not None
    with pytest.raises(errors.OutOfRangeError, match=r"gather \(test_trip_count.py:\d+.*index 3"):
        fluid.Executor("cpu").run(feed={"x": np.ones((3, 2), np.float32)}, fetch_list=[array])
