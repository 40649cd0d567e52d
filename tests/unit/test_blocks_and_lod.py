"""LoD that a block decides; and gradients of gradients through blocks, which are refused rather than left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import errors, layers

MODES = ("interpreted", "compiled")
PLACES = [("cpu", "interpreted"), ("cpu", "compiled"), ("opencl", "compiled"), ("fpga", "interpreted")]
pytestmark = pytest.mark.filterwarnings("ignore::fluidlite.errors.FallbackWarning")
ROWS = np.random.default_rng(2).uniform(0.5, 1.5, (5, 2)).astype(np.float32)
PARTS = [ROWS[:2].astype(np.float64), ROWS[2:].astype(np.float64)]


@pytest.fixture(params=PLACES, ids="-".join)
def exe(request: pytest.FixtureRequest, require: Callable[..., None]) -> fluid.Executor:
    kind, mode = request.param
    require(kind)
    return fluid.Executor(kind, mode=mode)


@pytest.fixture(params=MODES)
def cpu(request: pytest.FixtureRequest) -> fluid.Executor:
    return fluid.Executor("cpu", mode=request.param)


def sequences() -> Any:
    made = layers.data("x", [2], lod_level=1)
    made.stop_gradient = False
    return made


def number(value: int) -> Any:
    return layers.fill_constant([1], "int64", value)


def data() -> Any:
    return fluid.create_lod_tensor(ROWS, [[2, 3]], "cpu")


def test_sequences_grow_in_a_loop(cpu: fluid.Executor) -> None:
    x, n = sequences(), layers.data("n", [1], False, dtype="int64")
    grown, i = layers.assign(x), number(0)
    more = layers.less_than(i, n)
    with layers.While(more).block():
        layers.assign(layers.sequence_concat([grown, x * 2.0]), output=grown)
        layers.increment(i)
        layers.less_than(i, n, cond=more)
    sums = layers.sequence_pool(grown, "sum")
    (dx,) = fluid.gradients(layers.reduce_sum(sums * sums), x)
    for steps in (2, 0, 1):
        feed = {"x": data(), "n": np.int64([steps])}
        found = cpu.run(feed=feed, fetch_list=[grown, sums, dx], return_numpy=False)
        assert found[0].recursive_sequence_lengths() == [[2 * (steps + 1), 3 * (steps + 1)]]
        expected = [np.concatenate([part, *[2 * part] * steps]) for part in PARTS]
        np.testing.assert_allclose(np.asarray(found[0]), np.concatenate(expected), rtol=1e-6)
        totals = [part.sum(0) for part in expected]
        np.testing.assert_allclose(np.asarray(found[1]), totals, rtol=1e-6)
        factor = 2 * (1 + 2 * steps)
        slope = np.concatenate(
            [np.tile(factor * total, (len(part), 1)) for total, part in zip(totals, PARTS, strict=True)]
        )
        np.testing.assert_allclose(np.asarray(found[2]), slope, rtol=1e-5)


def test_rows_that_turn_out_to_be_those_of_sequences_keep_them(cpu: fluid.Executor) -> None:
    """How many rows there are is not known when the block is built: they may be as many as are stated."""
    x = sequences()
    zero = number(0)
    chosen = layers.cond(layers.equal(zero, zero), lambda: layers.reshape(x, [5, 2]), lambda: x * 2.0)
    one = number(1)
    start = layers.fill_constant([5, 2], "float32", 0.0)
    (_, summed) = layers.while_loop(
        lambda i, s: layers.less_than(i, one), lambda i, s: [i + 1, layers.reshape(x, [5, 2]) + s], [zero, start]
    )
    for lengths in ([2, 3], [5]):
        feed = {"x": fluid.create_lod_tensor(ROWS, [lengths], "cpu")}
        for found in cpu.run(feed=feed, fetch_list=[chosen, summed], return_numpy=False):
            assert found.recursive_sequence_lengths() == [lengths]
            np.testing.assert_array_equal(found.numpy(), ROWS)


def test_a_branch_decides_the_lod(exe: fluid.Executor) -> None:
    x, go = sequences(), layers.data("go", [1], False, dtype="bool")
    out = layers.cond(go, lambda: layers.sequence_concat([x, x]), lambda: layers.sequence_reverse(x))
    last = layers.sequence_last_step(out)
    held = layers.assign(x)
    with layers.ConditionalBlock([go], is_scalar_condition=True).block():
        layers.assign(layers.lod_reset(x, target_lod=[0, 5]), output=held)
    whole = layers.sequence_pool(held, "sum")
    for on in (True, False, True):
        found = exe.run(feed={"x": data(), "go": np.array([on])}, fetch_list=[out, last, whole], return_numpy=False)
        assert found[0].recursive_sequence_lengths() == ([[4, 6]] if on else [[2, 3]])
        ends = [part[-1] if on else part[0] for part in PARTS]
        np.testing.assert_allclose(np.asarray(found[1]), ends, rtol=1e-6)
        sums = [ROWS.astype(np.float64).sum(0)] if on else [part.sum(0) for part in PARTS]
        np.testing.assert_allclose(np.asarray(found[2]), sums, rtol=1e-6)


# Gradients of gradients


def loop(x: Any) -> Any:
    """The steps depend on x by the value before the first one alone."""
    n, i, s = number(2), number(0), layers.assign(x)
    more = layers.less_than(i, n)
    with layers.While(more).block():
        layers.assign(s * s, output=s)
        layers.increment(i)
        layers.less_than(i, n, cond=more)
    return s


def branch(x: Any) -> Any:
    s = layers.assign(x)
    with layers.ConditionalBlock([layers.fill_constant([1], "bool", True)], is_scalar_condition=True).block():
        layers.assign(s * s * s, output=s)
    return s


def steps(x: Any) -> Any:
    start, rnn = layers.fill_constant([1], "float32", 1.0), layers.StaticRNN()
    rows = layers.reshape(x, [3, 1])
    with rnn.step():
        row, before = rnn.step_input(rows), rnn.memory(init=start)
        rnn.update_memory(before, before * row)
        rnn.step_output(before * row)
    return rnn()


def memory(x: Any) -> Any:
    """X is the state before the first step, and no step input."""
    rows, rnn = layers.fill_constant([2, 3], "float32", 1.0), layers.StaticRNN()
    with rnn.step():
        row, before = rnn.step_input(rows), rnn.memory(init=x)
        rnn.update_memory(before, before * before * row)
        rnn.step_output(before * before)
    return rnn()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (loop, ("while_grad", "Steps", "'x'", "without a loop")),
        (branch, ("conditional_block_grad", "Steps", "'x'", "without a loop")),
        (steps, ("recurrent_grad", "'x'", "without a loop")),
        (memory, ("recurrent_grad", "'x'", "without a loop")),
    ],
)
def test_a_second_gradient_is_refused_and_names_the_block(make: Callable[[Any], Any], words: tuple[str, ...]) -> None:
    x = layers.data("x", [3], append_batch_size=False)
    x.stop_gradient = False
    out = make(x)
    (slope,) = fluid.gradients(layers.reduce_sum(out), x)
    with pytest.raises(errors.GradientError) as caught:
        fluid.gradients(layers.reduce_sum(slope * slope), x)
    for word in (*words, "test_blocks_and_lod.py"):
        assert word in str(caught.value)
    (found,) = fluid.Executor("cpu").run(feed={"x": np.float32([1, 2, 3])}, fetch_list=[slope])
    assert np.isfinite(found).all() and found.any()


def test_branches_that_read_different_variables_have_gradients() -> None:
    x, y = (layers.data(name, [2], False) for name in "xy")
    x.stop_gradient = y.stop_gradient = False
    go = layers.data("go", [1], False, dtype="bool")
    out = layers.cond(go, lambda: x * x, lambda: y * 3.0)
    slopes = fluid.gradients(layers.reduce_sum(out), [x, y])
    exe = fluid.Executor("cpu")
    for on, expected in ((True, [[2, 4], [0, 0]]), (False, [[0, 0], [3, 3]])):
        feed = {"x": np.float32([1, 2]), "y": np.float32([5, 6]), "go": np.array([on])}
        found = exe.run(feed=feed, fetch_list=slopes)
        assert [value.tolist() for value in found] == expected
