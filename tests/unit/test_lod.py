"""LoD: offsets, lengths, and hints to the other spelling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import fluidlite as fluid
from fluidlite.base.errors import TensorError
from fluidlite.tensor.lod import lengths_of, lod_from_lengths, lod_from_offsets


@given(st.lists(st.integers(0, 5), max_size=6), st.lists(st.integers(0, 5), max_size=30))
def test_lengths_and_offsets_are_inverse(outer: list[int], inner: list[int]) -> None:
    inner = (inner + [1] * 30)[: sum(outer)]
    lod = lod_from_lengths([outer, inner], sum(inner))
    assert lengths_of(lod) == [outer, inner]
    assert lod_from_offsets(lod, sum(inner)) == lod


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        (
            [[1, 2]],
            "offsets start with 0 and never fall\n  These look like lengths: use set_recursive_sequence_lengths",
        ),
        ([[0, 3, 2]], "offsets start with 0 and never fall"),
        ([[]], "offsets start with 0"),
        ([[0, 2], [0, 5]], "lod level 0 covers 2 sequences, but level 1 has 1"),
        ([[0, 4]], "the last lod level covers 4 rows, but the tensor has 5"),
        ([0, 5], "expected a list of levels"),
        (3, "expected a list of levels"),
        ([["a"]], "lod"),
        ([[0, 2.5, 5]], "expected a list of levels, each a list of ints"),
    ],
)
def test_wrong_offsets(levels: Any, message: str) -> None:
    tensor = fluid.Tensor().set(np.zeros((5, 2), "float32"))
    with pytest.raises(TensorError, match=message):
        tensor.set_lod(levels)
    assert tensor.lod() == []
    with pytest.raises(TensorError, match=message):
        fluid.Tensor().set(np.zeros((5, 2), "float32"), "cpu", levels)


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        (
            [[0, 2, 5]],
            "covers 7 rows, but the tensor has 5\n  A level starts with 0 and rises: these look like offsets",
        ),
        ([[2, -1, 4]], "lengths are 0 or more"),
        ([[2, 2]], "covers 4 rows, but the tensor has 5"),
        ([[3], [2, 3]], "covers 3 sequences, but level 1 has 2"),
        ([2, 3], "expected a list of levels"),
        ([[2.5, 2.5]], "expected a list of levels, each a list of ints"),
        ([["2", "3"]], "expected a list of levels, each a list of ints"),
    ],
)
def test_wrong_lengths(levels: Any, message: str) -> None:
    tensor = fluid.Tensor().set(np.zeros((5, 2), "float32"))
    with pytest.raises(TensorError, match=message):
        tensor.set_recursive_sequence_lengths(levels)
    assert tensor.recursive_sequence_lengths() == []


def test_both_spellings_on_a_tensor() -> None:
    tensor = fluid.Tensor().set(np.zeros((5, 2), "float32"))
    tensor.set_recursive_sequence_lengths([[1, 2], [1, 3, 1]])
    assert tensor.lod() == [[0, 1, 3], [0, 1, 4, 5]]
    tensor.set_lod([[0, 2, 5]])
    assert tensor.recursive_sequence_lengths() == [[2, 3]]
    assert tensor.has_valid_recursive_sequence_lengths()
    tensor.lod()[0][0] = 9  # a copy
    assert tensor.lod() == [[0, 2, 5]]


def test_lod_before_the_data() -> None:
    tensor = fluid.Tensor()
    tensor.set_lod([[0, 2, 5]])
    assert tensor.lod() == [[0, 2, 5]]


def test_create_lod_tensor() -> None:
    tensor = fluid.create_lod_tensor(np.arange(5, dtype="int64").reshape(5, 1), [[2, 3]], fluid.CPUPlace())
    assert tensor.lod() == [[0, 2, 5]]
    assert tensor.numpy().ravel().tolist() == [0, 1, 2, 3, 4]
