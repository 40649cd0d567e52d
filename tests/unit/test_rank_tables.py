"""Sequences by length and step by step, and rows by a mask, on every place, against lists of plain NumPy rows."""

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
RNG = np.random.default_rng(6)
LENGTHS = ([2, 4, 1, 4], [1], [3, 0, 2], [0, 0])


@pytest.fixture(params=PLACES, ids="-".join)
def exe(request: pytest.FixtureRequest, require: Callable[..., None]) -> fluid.Executor:
    kind, mode = request.param
    require(kind)
    return fluid.Executor(kind, mode=mode)


@pytest.fixture(params=MODES)
def cpu(request: pytest.FixtureRequest) -> fluid.Executor:
    return fluid.Executor("cpu", mode=request.param)


def sequences(name: str = "x", lod_level: int = 1) -> Any:
    made = layers.data(name, [3], lod_level=lod_level)
    made.stop_gradient = False
    return made


def batch(lengths: list[int]) -> tuple[Any, list[Any]]:
    """A LoD tensor, and its sequences as arrays of float64."""
    rows = RNG.uniform(-1, 1, (sum(lengths), 3)).astype(np.float32)
    ends = np.cumsum(lengths)
    parts = [rows[end - size : end].astype(np.float64) for end, size in zip(ends, lengths, strict=True)]
    return fluid.create_lod_tensor(rows, [lengths], "cpu"), parts


def ranked(lengths: list[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda i: -lengths[i])


def number(value: int) -> Any:
    return layers.fill_constant([1], "int64", value)


def test_tables_steps_and_back(exe: fluid.Executor) -> None:
    """The steps of sequences, each scaled by the number of the step, and joined again."""
    x = sequences()
    table = layers.lod_rank_table(x)
    longest = layers.max_sequence_len(table)
    steps = layers.lod_tensor_to_array(x, table)
    scaled = layers.create_array("float32")
    i = number(0)
    more = layers.less_than(i, longest)
    with layers.While(more).block():
        factor = layers.cast(i, "float32") + 1.0
        layers.array_write(layers.elementwise_mul(layers.array_read(steps, i), factor), i, scaled)
        layers.increment(i)
        layers.less_than(i, longest, cond=more)
    out = layers.array_to_lod_tensor(scaled, table)
    weight = layers.data("weight", [3])
    (dx,) = fluid.gradients(layers.reduce_sum(out * weight), x)
    for lengths in LENGTHS:
        data, parts = batch(lengths)
        upon = RNG.uniform(-1, 1, (sum(lengths), 3)).astype(np.float32)
        found = exe.run(feed={"x": data, "weight": upon}, fetch_list=[table, longest, steps, out, dx],
                        return_numpy=False)  # fmt: skip
        order = ranked(lengths)
        assert np.asarray(found[0]).tolist() == [[index, lengths[index]] for index in order]
        assert np.asarray(found[1]).tolist() == [max(lengths)]
        assert len(found[2]) == max(lengths)
        for step, element in enumerate(found[2]):
            expected = [parts[index][step] for index in order if lengths[index] > step]
            np.testing.assert_array_equal(np.asarray(element), expected)
        factors = np.concatenate([np.arange(1, n + 1) for n in lengths])[:, None]
        assert found[3].recursive_sequence_lengths() == [lengths]
        np.testing.assert_allclose(np.asarray(found[3]), np.concatenate(parts) * factors, rtol=1e-6)
        np.testing.assert_allclose(np.asarray(found[4]), upon * factors, rtol=1e-6)
        assert found[4].recursive_sequence_lengths() == [lengths]


def test_steps_that_nothing_reads_have_no_gradient(exe: fluid.Executor) -> None:
    x = sequences()
    steps = layers.lod_tensor_to_array(x, layers.lod_rank_table(x))
    (dx,) = fluid.gradients(layers.reduce_sum(layers.array_read(steps, number(1)) * 3.0), x)
    lengths = [2, 4, 1]
    (found,) = exe.run(feed={"x": batch(lengths)[0]}, fetch_list=[dx], return_numpy=False)
    assert np.asarray(found)[:, 0].tolist() == [0, 3, 0, 3, 0, 0, 0]


@pytest.mark.parametrize("level", [0, 1])
def test_two_levels(cpu: fluid.Executor, level: int) -> None:
    """A step is a row, or a sequence of the lower level."""
    x = sequences(lod_level=2)
    table = layers.lod_rank_table(x, level=level)
    steps = layers.lod_tensor_to_array(x, table)
    out = layers.array_to_lod_tensor(steps, table)
    (dx,) = fluid.gradients(layers.reduce_sum(out * out), x)
    rows = RNG.uniform(-1, 1, (9, 3)).astype(np.float32)
    upper, lower = [1, 3, 0], [4, 2, 0, 3]
    data = fluid.create_lod_tensor(rows, [upper, lower], "cpu")
    found = cpu.run(feed={"x": data}, fetch_list=[table, steps, out, dx], return_numpy=False)
    np.testing.assert_array_equal(np.asarray(found[2]), rows)
    assert found[2].recursive_sequence_lengths() == [upper, lower]
    np.testing.assert_allclose(np.asarray(found[3]), 2 * rows, rtol=1e-6)
    if level:
        assert np.asarray(found[0]).tolist() == [[0, 4], [3, 3], [1, 2], [2, 0]]
        assert [np.asarray(step).tolist() for step in found[1]] == [
            rows[[0, 6, 4]].tolist(), rows[[1, 7, 5]].tolist(), rows[[2, 8]].tolist(), rows[[3]].tolist()
        ]  # fmt: skip
    else:
        assert np.asarray(found[0]).tolist() == [[1, 3], [0, 1], [2, 0]]
        assert [step.recursive_sequence_lengths() for step in found[1]] == [[[2, 4]], [[0]], [[3]]]
        assert np.asarray(found[1][0]).tolist() == rows[[4, 5, 0, 1, 2, 3]].tolist()


def test_reordering_by_rank(exe: fluid.Executor) -> None:
    x, rows = sequences(), layers.data("rows", [3])
    rows.stop_gradient = False
    other = sequences("other")
    table = layers.lod_rank_table(x)
    outs = [layers.reorder_lod_tensor_by_rank(each, table) for each in (rows, other)]
    loss = layers.reduce_sum(outs[0] * outs[0]) + layers.reduce_sum(outs[1] * outs[1] * outs[1])
    slopes = fluid.gradients(loss, [rows, other])
    lengths, sizes = [2, 4, 1, 4], [1, 2, 0, 3]
    given = RNG.uniform(-1, 1, (4, 3)).astype(np.float32)
    data, parts = batch(sizes)
    feed = {"x": batch(lengths)[0], "rows": given, "other": data}
    found = exe.run(feed=feed, fetch_list=[*outs, *slopes], return_numpy=False)
    order = ranked(lengths)
    np.testing.assert_array_equal(np.asarray(found[0]), given[order])
    np.testing.assert_array_equal(np.asarray(found[1]), np.concatenate([parts[i] for i in order]))
    assert found[1].recursive_sequence_lengths() == [[sizes[i] for i in order]]
    np.testing.assert_allclose(np.asarray(found[2]), 2 * given, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(found[3]), 3 * np.concatenate(parts) ** 2, rtol=1e-5)


def test_memories_shrink_and_their_gradients_grow_again(exe: fluid.Executor) -> None:
    x, state, i = sequences(), layers.data("state", [2]), layers.data("i", [1], False, dtype="int64")
    state.stop_gradient = False
    out = layers.shrink_memory(state, i, layers.lod_rank_table(x))
    (slope,) = fluid.gradients(layers.reduce_sum(out * out), state)
    given = RNG.uniform(-1, 1, (4, 2)).astype(np.float32)
    for step, active in ((0, 4), (1, 3), (3, 2), (4, 0)):
        feed = {"x": batch([2, 4, 1, 4])[0], "state": given, "i": np.int64([step])}
        found = exe.run(feed=feed, fetch_list=[out, slope])
        np.testing.assert_array_equal(found[0], given[:active])
        expected = np.where(np.arange(4)[:, None] < active, 2 * given, 0)
        np.testing.assert_allclose(found[1], expected, rtol=1e-6)


@pytest.mark.parametrize("lod_level", [0, 1])
def test_rows_or_sequences_are_split_and_merged(exe: fluid.Executor, lod_level: int) -> None:
    x = sequences(lod_level=lod_level)
    mask = layers.data("mask", [1], dtype="bool")
    yes, no = layers.split_lod_tensor(x, mask)
    out = layers.merge_lod_tensor(yes * 2.0, no * no, x, mask)
    (dx,) = fluid.gradients(layers.reduce_sum(out), x)
    lengths = [2, 4, 1, 0] if lod_level else [1, 1, 1, 1]
    data, parts = batch(lengths)
    for given in ([1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]):
        rows = data if lod_level else np.concatenate(parts).astype(np.float32)
        feed = {"x": rows, "mask": np.array(given, bool)[:, None]}
        found = exe.run(feed=feed, fetch_list=[yes, no, out, dx], return_numpy=False)
        chosen = [[part for part, on in zip(parts, given, strict=True) if on == side] for side in (1, 0)]
        for value, some in zip(found, chosen, strict=False):
            expected = np.concatenate([np.zeros((0, 3)), *some])
            np.testing.assert_array_equal(np.asarray(value), expected)
            assert value.recursive_sequence_lengths() == ([[len(part) for part in some]] if lod_level else [])
        expected = np.concatenate([part * 2 if on else part**2 for part, on in zip(parts, given, strict=True)])
        np.testing.assert_allclose(np.asarray(found[2]), expected, rtol=1e-6)
        assert found[2].recursive_sequence_lengths() == ([lengths] if lod_level else [])
        slope = np.concatenate([0 * part + 2 if on else 2 * part for part, on in zip(parts, given, strict=True)])
        np.testing.assert_allclose(np.asarray(found[3]), slope, rtol=1e-6)


# Errors


def refused(make: Callable[[], Any], *words: str) -> None:
    with pytest.raises(errors.FluidError) as caught:
        make()
    for word in (*words, "test_rank_tables.py"):
        assert word in str(caught.value), (word, str(caught.value))


def test_what_does_not_fit_is_refused_as_it_is_built() -> None:
    x, dense = sequences(), layers.data("dense", [3])
    table = layers.lod_rank_table(x)
    array = layers.lod_tensor_to_array(x, table)
    refused(lambda: layers.lod_rank_table(dense), "X", "LoD")
    refused(lambda: layers.lod_rank_table(x, 1), "X", "1 LoD level")
    refused(lambda: layers.lod_tensor_to_array(dense, table), "X", "LoD")
    refused(lambda: layers.lod_tensor_to_array(x, dense), "'table'", "lod_rank_table")
    refused(lambda: layers.array_to_lod_tensor(x, table), "'x'", "create_array")
    refused(lambda: layers.array_to_lod_tensor(layers.create_array("float32"), table), "X", "written")
    refused(lambda: layers.reorder_lod_tensor_by_rank(array, table), "X", "array_read")
    refused(lambda: layers.max_sequence_len(x), "'rank_table'")
    refused(lambda: layers.split_lod_tensor(x, dense), "Mask", "bool")
    refused(lambda: layers.merge_lod_tensor(x, dense, x, layers.cast(dense, "bool")), "InFalse", "InTrue")


def test_what_does_not_fit_is_refused_as_it_runs(cpu: fluid.Executor) -> None:
    x, other, i = sequences(), sequences("other"), layers.data("i", [1], False, dtype="int64")
    mask = layers.data("mask", [1], dtype="bool")
    table = layers.lod_rank_table(x)
    steps = layers.lod_tensor_to_array(other, table)
    short = layers.array_to_lod_tensor(layers.array_write(layers.array_read(steps, i), i), table)
    shrunk = layers.shrink_memory(layers.sequence_pool(other, "sum"), i, table)
    parts = layers.split_lod_tensor(other, mask)
    merged = layers.merge_lod_tensor(parts[0], parts[0], other, mask)
    cases = [
        ([2, 1], [2, 1, 1], steps, "3 sequences; expected 2"),
        ([2, 1], [1, 2], steps, "other lengths"),
        ([2, 1], [2, 1], short, "1 steps; expected 2"),
        ([2, 1, 1], [2, 1], shrunk, "2 sequences; 3 of RankTable"),
        ([2, 1], [2, 1, 1], layers.reorder_lod_tensor_by_rank(other, table), "3 sequences; expected 2"),
        ([2, 1], [2, 1, 1], parts[0], "2 elements; expected 3"),
        ([2, 1], [2, 1], merged, "InTrue and InFalse"),
    ]
    for one, two, out, words in cases:
        feed = {"x": batch(one)[0], "other": batch(two)[0], "i": np.int64([0]), "mask": np.array([[True], [True]])}
        refused(lambda feed=feed, out=out: cpu.run(feed=feed, fetch_list=[out], return_numpy=False), words)  # type: ignore[misc]
    found = cpu.run(feed=feed | {"x": batch([2, 1])[0]}, fetch_list=[table])
    assert found[0].tolist() == [[0, 2], [1, 1]]
