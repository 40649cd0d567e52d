"""Indexing, sorting and creation: what their definitions forbid is one clear error, before or during the run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import AttributeValueError, DtypeError, FluidError, OutOfRangeError, ShapeError

Inputs = dict[str, tuple[list[int], str]]


def f32(*dims: int) -> tuple[list[int], str]:
    return list(dims), "float32"


def i64(*dims: int) -> tuple[list[int], str]:
    return list(dims), "int64"


BUILD: list[tuple[str, Inputs, dict[str, Any], type[FluidError], str]] = [
    ("gather", {"X": f32(), "Index": i64(3)}, {}, ShapeError, "X"),
    ("gather", {"X": f32(4, 2), "Index": i64(3, 2)}, {}, ShapeError, "Index"),
    ("gather_nd", {"X": f32(4, 2), "Index": i64(3, 3)}, {}, ShapeError, "Index"),
    ("scatter", {"X": f32(0, 2), "Ids": i64(1), "Updates": f32(1, 2)}, {}, ShapeError, "Ids .* X has no rows"),
    ("scatter_nd_add", {"X": f32(4, 0), "Index": i64(3, 2), "Updates": f32(3)}, {}, ShapeError, "Index .* no entries"),
    ("gather_nd", {"X": f32(4, 2), "Index": i64(3, -1)}, {}, ShapeError, "known last dim"),
    ("scatter", {"X": f32(4, 2), "Ids": i64(3, 2), "Updates": f32(3, 2)}, {}, ShapeError, "Ids"),
    ("scatter", {"X": f32(4, 2), "Ids": i64(3), "Updates": f32(2, 2)}, {}, ShapeError, "Updates"),
    ("scatter", {"X": f32(4, 2), "Ids": i64(3), "Updates": f32(3, 5)}, {}, ShapeError, "Updates"),
    ("scatter", {"X": f32(4, 2), "Ids": i64(3), "Updates": ([3, 2], "float64")}, {}, DtypeError, "Updates"),
    ("scatter", {"X": f32(), "Ids": i64(3), "Updates": f32(3)}, {}, ShapeError, "X"),
    ("scatter_nd_add", {"X": f32(4), "Index": i64(3), "Updates": f32(3)}, {}, ShapeError, "Index"),
    ("scatter_nd_add", {"X": f32(4, 2), "Index": i64(3, 1), "Updates": f32(3)}, {}, ShapeError, "Updates"),
    ("scatter_nd_add", {"X": f32(4), "Index": i64(3, 1), "Updates": i64(3)}, {}, DtypeError, "Updates"),
    ("index_select", {"X": f32(4, 2), "Index": i64(3, 1)}, {}, ShapeError, "Index"),
    ("index_select", {"X": f32(4, 2), "Index": i64(3)}, {"dim": 2}, AttributeValueError, "dim"),
    ("index_sample", {"X": f32(4), "Index": i64(4, 1)}, {}, ShapeError, "X"),
    ("index_sample", {"X": f32(4, 2), "Index": i64(3, 1)}, {}, ShapeError, "Index"),
    ("shard_index", {"X": i64(4)}, {"index_num": 4, "nshards": 2, "shard_id": 0}, ShapeError, "X"),
    ("shard_index", {"X": i64(4, 1)}, {"index_num": 4, "nshards": 2, "shard_id": 2}, AttributeValueError, "shard_id"),
    ("lookup_table_v2", {"W": f32(4), "Ids": i64(3)}, {}, ShapeError, "W"),
    ("lookup_table_v2", {"W": f32(4, 2), "Ids": f32(3)}, {}, DtypeError, "Ids"),
    ("one_hot", {"X": i64(3, 1)}, {}, AttributeValueError, "depth"),
    ("one_hot_v2", {"X": i64()}, {"depth": 3}, ShapeError, "X"),
    ("argsort", {"X": f32(3, 2)}, {"axis": 2}, AttributeValueError, "axis"),
    ("argsort", {"X": f32()}, {}, ShapeError, "X"),
    ("arg_max", {"X": f32(3, 2)}, {"axis": -3}, AttributeValueError, "axis"),
    ("arg_max", {"X": f32(3, 0)}, {"axis": 1}, ShapeError, "X"),
    ("arg_min", {"X": f32(3, 2)}, {}, AttributeValueError, "axis"),
    ("top_k", {"X": f32(3, 2)}, {"k": 3}, ShapeError, "X"),
    ("where", {"Condition": ([3], "bool"), "X": f32(3), "Y": f32(4)}, {}, ShapeError, "Y"),
    ("where", {"Condition": f32(3), "X": f32(3), "Y": f32(3)}, {}, DtypeError, "Condition"),
    ("where_index", {"Condition": ([], "bool")}, {}, ShapeError, "Condition"),
    ("unique", {"X": f32(3, 2)}, {"dtype": "int32"}, ShapeError, "X"),
    ("unique", {"X": f32(3)}, {"dtype": "float32"}, AttributeValueError, "dtype"),
    ("fill", {}, {"value": [1.0, 2.0], "shape": [3]}, AttributeValueError, "value"),
    ("fill_constant", {}, {"shape": [3], "str_value": "three"}, AttributeValueError, "str_value"),
    ("fill_constant", {}, {"shape": [-1]}, AttributeValueError, "shape"),
    ("range", {"Start": f32(1), "End": i64(1), "Step": f32(1)}, {}, DtypeError, "End"),
    ("range", {"Start": f32(2), "End": f32(1), "Step": f32(1)}, {}, ShapeError, "Start"),
    ("linspace", {"Start": f32(1), "Stop": f32(1), "Num": f32(1)}, {}, DtypeError, "Num"),
    ("eye", {}, {"num_rows": -2}, AttributeValueError, "num_rows"),
    ("diag", {"Diagonal": f32(3, 2)}, {}, ShapeError, "Diagonal"),
    ("uniform_random", {}, {"shape": [3], "min": 1.0, "max": 1.0}, AttributeValueError, "min"),
    ("randint", {}, {"shape": [3], "low": 3, "high": 3}, AttributeValueError, "low"),
    ("randint", {}, {"shape": [3], "low": 0, "high": 2**50}, AttributeValueError, "high"),
    ("randperm", {}, {"n": 0}, AttributeValueError, "n"),
    ("sampling_id", {"X": f32(3)}, {}, ShapeError, "X"),
    ("random_crop", {"X": f32(3, 4), "Seed": i64(1)}, {"shape": [5]}, AttributeValueError, "shape"),
    ("random_crop", {"X": f32(3, 4), "Seed": i64(1)}, {"shape": [3, 4]}, AttributeValueError, "shape"),
    ("hash", {"X": i64(3)}, {}, ShapeError, "X"),
    ("hash", {"X": f32(3, 1)}, {}, DtypeError, "X"),
    ("hash", {"X": i64(3, 1)}, {"mod_by": 0}, AttributeValueError, "mod_by"),
]


def append(type: str, inputs: Inputs, attrs: dict[str, Any]) -> tuple[Any, list[Any]]:
    """A program of one operator that has all of its outputs."""
    program = fluid.Program()
    block = program.global_block()
    given = {
        slot: block.create_var(slot, dims, dtype, is_data=True, stop_gradient=True)
        for slot, (dims, dtype) in inputs.items()
    }
    outputs = {slot.name: block.create_var(slot.name + ".out") for slot in fluid.op_proto(type).outputs}
    block.append_op(type, given, outputs, attrs)
    return program, list(outputs.values())


@pytest.mark.parametrize(("type", "inputs", "attrs", "error", "word"), BUILD, ids=[f"{b[0]}-{b[4]}" for b in BUILD])
def test_refused_when_it_is_built(
    type: str, inputs: Inputs, attrs: dict[str, Any], error: type[FluidError], word: str
) -> None:
    with pytest.raises(error, match=word) as caught:
        append(type, inputs, attrs)
    assert type in str(caught.value)


RUN: list[tuple[str, dict[str, Any], dict[str, Any], type[FluidError], str]] = [
    ("gather", {"X": np.ones((4, 2), "f4"), "Index": [0, 4]}, {}, OutOfRangeError, "index 4 .* 0 to 3"),
    ("gather_tree", {"Ids": np.ones((3, 1, 2), "i8"), "Parents": np.array([[[5, 5]], [[0, 1]], [[1, 2]]])}, {},
     OutOfRangeError, "index 2 .* 0 to 1"),
    ("gather_nd", {"X": np.ones((4, 2), "f4"), "Index": [[0, 1], [3, -1]]}, {}, OutOfRangeError, "index -1 .* 0 to 1"),
    ("scatter", {"X": np.ones((4, 2), "f4"), "Ids": [-1], "Updates": np.ones((1, 2), "f4")}, {}, OutOfRangeError,
     "index -1 .* 0 to 3"),
    ("scatter", {"X": np.ones((4, 2), "f4"), "Ids": [9], "Updates": np.ones((1, 2), "f4")}, {"overwrite": False},
     OutOfRangeError, "index 9 .* 0 to 3"),
    ("scatter_nd_add", {"X": np.ones(4, "f4"), "Index": [[4]], "Updates": np.ones(1, "f4")}, {}, OutOfRangeError,
     "index 4 .* 0 to 3"),
    ("index_select", {"X": np.ones((2, 4), "f4"), "Index": [4]}, {"dim": 1}, OutOfRangeError, "index 4 .* 0 to 3"),
    ("index_sample", {"X": np.ones((2, 4), "f4"), "Index": [[0], [-2]]}, {}, OutOfRangeError, "index -2 .* 0 to 3"),
    ("shard_index", {"X": [[5]]}, {"index_num": 5, "nshards": 2, "shard_id": 0}, OutOfRangeError, "index 5 .* 0 to 4"),
    ("lookup_table_v2", {"W": np.ones((4, 2), "f4"), "Ids": [0, 4]}, {}, OutOfRangeError, "index 4 .* 0 to 3"),
    ("one_hot", {"X": [[3]]}, {"depth": 3}, OutOfRangeError, "index 3 .* 0 to 2"),
    ("one_hot_v2", {"X": [-1]}, {"depth": 3}, OutOfRangeError, "index -1 .* 0 to 2"),
    ("one_hot", {"X": [[1]], "depth_tensor": [0]}, {}, ShapeError, "depth_tensor is 0"),
    ("top_k", {"X": np.ones((2, 3), "f4"), "K": [4]}, {}, ShapeError, "at least k = 4 columns"),
    ("top_k", {"X": np.ones((2, 3), "f4"), "K": [0]}, {}, ShapeError, "K is 0"),
    ("range", {"Start": [0], "End": [5], "Step": [0]}, {}, ShapeError, "Step is 0"),
    ("range", {"Start": [0], "End": [5], "Step": [-1]}, {}, ShapeError, "from 0 towards 5"),
    ("linspace", {"Start": np.zeros(1, "f4"), "Stop": np.ones(1, "f4"), "Num": [0]}, {}, ShapeError, "Num is 0"),
    ("fill_constant", {"ShapeTensor": [2, -3]}, {}, ShapeError, "ShapeTensor"),
    ("arg_max", {"X": np.ones((3, 0), "f4")}, {"axis": 1}, ShapeError, "one element or more"),
]  # fmt: skip


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
@pytest.mark.parametrize(("type", "feed", "attrs", "error", "word"), RUN, ids=[f"{r[0]}-{r[4][:9]}" for r in RUN])
def test_refused_when_it_runs(
    type: str, feed: dict[str, Any], attrs: dict[str, Any], error: type[FluidError], word: str, place: str
) -> None:
    arrays = {slot: np.asarray(value) for slot, value in feed.items()}
    unknown = {slot: ([-1] * a.ndim if slot == "X" else list(a.shape), a.dtype.name) for slot, a in arrays.items()}
    program, outputs = append(type, unknown, attrs)
    with pytest.raises(error, match=word) as caught:
        fluid.Executor(place, fallback="allow").run(program, feed=arrays, fetch_list=outputs[:1])
    assert type in str(caught.value)
