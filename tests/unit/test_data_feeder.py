"""DataFeeder, LoD tensors, batches and readers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fluidlite import reader
from fluidlite.base.errors import FeedError, ProgramError, TensorError
from fluidlite.batch import batch
from fluidlite.data_feeder import DataFeeder
from fluidlite.lod_tensor import create_lod_tensor, create_random_int_lodtensor
from fluidlite.program.program import Program

BFLOAT16 = ml_dtypes.bfloat16


def feeder(**fields: tuple[Any, ...]) -> DataFeeder:
    """A feeder of fields ``name=(dims, dtype, lod levels)``."""
    program = Program()
    block = program.global_block()
    for name, (dims, dtype, levels) in fields.items():
        block.create_var(name, dims, dtype, lod_level=levels, is_data=True)
    return DataFeeder(list(fields), "cpu", program)


def test_rows_become_a_batch() -> None:
    feed = feeder(image=([-1, 1, 2, 3], "float32", 0), label=([-1, 1], "int64", 0))
    out = feed.feed([(np.arange(6), 3), (list(range(6)), 4)])
    assert out["image"].dims == (2, 1, 2, 3)
    assert out["image"].dtype == "float32"
    np.testing.assert_array_equal(out["label"].numpy(), [[3], [4]])
    assert out["label"].dtype == "int64"


def test_sequences_become_lod() -> None:
    feed = feeder(words=([-1, 1], "int64", 1), pairs=([-1, 2], "float32", 2))
    out = feed.feed([([1, 2, 3], [[[1, 2]], [[3, 4], [5, 6]]]), ([4], []), ([], [[]])])
    assert out["words"].recursive_sequence_lengths() == [[3, 1, 0]]
    np.testing.assert_array_equal(out["words"].numpy(), [[1], [2], [3], [4]])
    assert out["pairs"].recursive_sequence_lengths() == [[2, 0, 1], [1, 2, 0]]
    assert out["pairs"].dims == (3, 2)


def test_an_empty_batch_has_no_rows() -> None:
    out = feeder(x=([-1, 4], "float32", 0), w=([-1, 1], "int64", 1)).feed([])
    assert out["x"].dims == (0, 4)
    assert out["w"].dims == (0, 1)


def test_fixed_dims_and_unknown_ones() -> None:
    assert feeder(x=([2, 3], "float32", 0)).feed([([1, 2, 3],), ([4, 5, 6],)])["x"].dims == (2, 3)
    assert feeder(x=([-1, -1], "float32", 0)).feed([([1, 2],), ([3, 4],)])["x"].dims == (2, 2)


@pytest.mark.parametrize(
    ("dims", "dtype", "levels", "batch_of", "expected"),
    [
        ([-1, 4], "float32", 0, [([1, 2, 3],)], r"declared float32\[-1, 4\]; the batch has dims \[1, 3\]"),
        ([2, 1], "float32", 0, [(1,)], "dims"),
        ([-1, 2], "float32", 0, [([1, 2],), ([1, 2, 3],)], "differ in dims"),
        ([-1, 1], "int64", 0, [("seven",)], "something else than numbers"),
        ([-1, 1], "int64", 0, [(0.5,)], "'f' is int64, but it is fed float64"),
        ([-1, 1], "float32", 0, [(1e300,)], "'f' is float32, but it is fed float64 numbers that are too large"),
        ([-1, 1], "float16", 0, [(70_000,)], "'f' is float16, but it is fed int64 numbers that are too large"),
        ([-1, 1], "int64", 0, [(np.array([1.5], BFLOAT16),)], "'f' is int64, but it is fed bfloat16"),
        ([-1, 1], "bool", 0, [(np.array([0.25], BFLOAT16),)], "'f' is bool, but it is fed bfloat16"),
        ([-1, 1], "bfloat16", 0, [(3.4e38,)], "'f' is bfloat16, but it is fed float64 numbers that are too large"),
        ([-1, 1], "bfloat16", 0, [(np.float32(3.4e38),)], "is fed float32 numbers that are too large"),
        ([-1, 1], "float32", 0, [(np.zeros(1, "f4,i4"),)], "something else than numbers"),
        ([-1, 2], "float32", 0, [(np.ones(2),), (np.ma.masked_array([1, 2], True),)], "sample 1: .*is a masked array"),
        ([-1, 1], "int64", 1, [(np.ma.masked_array([1, 2], True),)], "sample 0: .*is a masked array"),
        ([-1, 1], "int64", 1, [(np.array(3),)], "1 LoD level"),
        ([-1, 1], "int64", 1, [(5,)], "1 LoD level"),
        ([-1, 1], "int64", 0, [(1, 2)], "sample 0 has 2 fields; expected 1: f"),
        ([-1, 1], "int64", 0, [1], "sample 0 is 1"),
    ],
)
def test_what_does_not_fit_is_named(dims: Any, dtype: str, levels: int, batch_of: Any, expected: str) -> None:
    with pytest.raises(FeedError, match=expected):
        feeder(f=(dims, dtype, levels)).feed(batch_of)


def test_the_feed_list_holds_variables() -> None:
    with pytest.raises(ProgramError, match="no variable 'x'"):
        DataFeeder(["x"], "cpu", Program())
    with pytest.raises(FeedError, match="holds 3"):
        DataFeeder([3], "cpu", Program())  # type: ignore[list-item]


def test_lod_tensors_are_made_of_lengths() -> None:
    tensor = create_lod_tensor([[1, 2], [3]], [[2, 1]], "cpu")
    assert tensor.lod() == [[0, 2, 3]]
    np.testing.assert_array_equal(tensor.numpy(), [[1], [2], [3]])
    again = create_lod_tensor(tensor, [[1], [3]], "cpu")
    assert again.lod() == [[0, 1], [0, 3]]
    rows = create_lod_tensor(np.ones((5, 2), "float32"), [[2, 3]], "cpu")
    assert rows.recursive_sequence_lengths() == [[2, 3]]
    with pytest.raises(TensorError, match="covers 4 rows"):
        create_lod_tensor(np.ones((5, 2)), [[2, 2]], "cpu")
    with pytest.raises(TensorError, match=r"lengths \[2, 1\]"):
        create_lod_tensor([[1, 2], [3]], [[1, 2]], "cpu")


def test_random_lod_tensors() -> None:
    tensor = create_random_int_lodtensor([[1, 2], [3, 0, 4]], [30], "cpu", 2, 3)
    assert tensor.dims == (7, 30)
    assert tensor.dtype == "int64"
    assert set(np.unique(tensor.numpy())) == {2, 3}


def count(n: int) -> Any:
    return lambda: iter(range(n))


def test_batches() -> None:
    assert list(batch(count(5), 2)()) == [[0, 1], [2, 3], [4]]
    assert list(batch(count(5), 2, drop_last=True)()) == [[0, 1], [2, 3]]
    with pytest.raises(ProgramError, match="batch_size is 0"):
        batch(count(5), 0)


def test_readers_are_joined() -> None:
    assert list(reader.chain(count(2), count(3))()) == [0, 1, 0, 1, 2]
    assert list(reader.firstn(count(9), 3)()) == [0, 1, 2]
    assert list(reader.map_readers(lambda a, b: a + b, count(3), count(3))()) == [0, 2, 4]
    pairs = reader.map_readers(lambda a: (a, -a), count(2))
    assert list(reader.compose(pairs, count(2))()) == [(0, 0, 0), (1, -1, 1)]
    assert list(reader.compose(count(1), count(2), check_alignment=False)()) == [(0, 0)]
    with pytest.raises(reader.ComposeNotAligned):
        list(reader.compose(count(1), count(2))())
    kept = reader.cache(count(3))
    assert list(kept()) == list(kept()) == [0, 1, 2]
    mixed = list(reader.shuffle(count(10), 4)())
    assert sorted(mixed) == list(range(10))
    assert set(mixed[:4]) == {0, 1, 2, 3}


def test_a_buffered_reader_reads_ahead_and_passes_errors_on() -> None:
    assert list(reader.buffered(count(20), 3)()) == list(range(20))

    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("broken pipe")

    samples = iter(reader.buffered(failing, 2)())
    assert next(samples) == 1
    with pytest.raises(ValueError, match="broken pipe"):
        next(samples)


def test_bfloat16_takes_what_it_can_represent() -> None:
    out = feeder(x=([-1, 4], "bfloat16", 0)).feed([([1.5, float("inf"), float("-inf"), -3e38],)])["x"]
    np.testing.assert_array_equal(out.numpy(), np.array([[1.5, np.inf, -np.inf, -3e38]], BFLOAT16))
    again = feeder(x=([-1, 4], "float32", 0)).feed([(out.numpy()[0],)])["x"]
    np.testing.assert_array_equal(again.numpy(), out.numpy().astype("float32"))


@pytest.mark.parametrize("buffer_size", [1, 3, 8])
def test_mapped_samples_come_before_the_error_of_their_reader(buffer_size: int) -> None:
    def failing() -> Iterator[int]:
        yield from range(5)
        raise ValueError("broken pipe")

    samples = iter(reader.xmap_readers(lambda number: number * 2, failing, 2, buffer_size)())
    assert [next(samples) for _ in range(5)] == [0, 2, 4, 6, 8]
    with pytest.raises(ValueError, match="broken pipe"):
        next(samples)


def test_a_buffered_reader_that_is_left_stops() -> None:
    taken: list[int] = []

    def slow() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    others = set(threading.enumerate())
    samples = reader.buffered(slow, 2)()
    for number in samples:
        if number == 3:
            break
    (ahead,) = set(threading.enumerate()) - others
    samples.close()  # type: ignore[attr-defined]
    ahead.join(60)
    assert not ahead.is_alive()
    assert len(taken) < 20
