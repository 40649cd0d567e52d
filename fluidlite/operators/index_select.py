"""Indexing along an axis: index_select, index_sample, and shard_index, which renumbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import (
    Inferred,
    agree,
    grad_inputs,
    grad_like,
    grad_outputs,
    like,
    merged,
    normal_axis,
)
from fluidlite.operators.samples import EVERY, WIDE, ints, rand

NUMBERS = (*ALL_FLOATS, *INTS)

# index_select ------------------------------------------------------------------------------------------------------

_DIM = (Attr("dim", "int", 0, doc="the axis of X that Index counts along; negative ones count from the end"),)


def _infer_index_select(call: Call) -> Inferred:
    x, index = call.spec("X"), call.dims("Index")
    call.need(x.rank >= 1, "X", "rank 1 or more")
    call.need(len(index) == 1, "Index", "[count]")
    axis = normal_axis(call, "dim", call.attr("dim"), x.rank)
    dims = (*x.dims[:axis], index[0], *x.dims[axis + 1 :])
    return {"Out": like(x, dims) if axis else Spec.of(dims, x.dtype)}


register_op(
    "index_select",
    inputs=("X", "Index"),
    outputs=("Out",),
    attrs=_DIM,
    infer=_infer_index_select,
    grad=GradRule("index_select_grad", ("X", "Index", "Out@GRAD"), ("X",)),
    dtypes={"X": NUMBERS, "Index": INTS},
    reference=lambda inputs, attrs: {"Out": np.stack(
        [np.moveaxis(inputs["X"], attrs["dim"], 0)[i] for i in inputs["Index"]], attrs["dim"]
    )},
    samples=lambda: [
        Sample({"X": rand(6, 3), "Index": np.array([4, 0, 4, 5])}, {}, ("X",), name="rows", dtypes=EVERY),
        Sample({"X": rand(3, 5), "Index": np.array([4, 0, 4])}, {"dim": 1}, ("X",), name="columns", dtypes=EVERY),
        Sample({"X": rand(2, 4, 3), "Index": np.array([3, 3, 0, 1, 2], "int32")}, {"dim": -2}, ("X",), name="middle"),
        Sample({"X": rand(40, 3), "Index": np.array([2, 2])}, {"dim": 1}, ("X",), name="few_of_many"),
        Sample({"X": rand(5), "Index": np.array([2])}, {}, ("X",), name="vector"),
        Sample({"X": ints(3, 5), "Index": np.array([2, 4])}, {"dim": 1}, name="int64", dtypes=("int64",)),
        Sample({"X": rand(0, 3), "Index": np.array([2])}, {"dim": 1}, name="empty"),
    ],
    doc="Out[..., i, ...] = X[..., Index[i], ...] along the axis dim; an index out of range is an OutOfRangeError",
    source="Fluid index_select_op.cc",
)  # fmt: skip

register_op(
    "index_select_grad",
    inputs=grad_inputs("X", "Index", "Out@GRAD", meta=("X",)),
    outputs=grad_outputs("X"),
    attrs=_DIM,
    infer=grad_like("X"),
    kernel_dtype="Out@GRAD",
    doc="X@GRAD = 0; X@GRAD[..., Index[i], ...] += Out@GRAD[..., i, ...]",
)

# index_sample ------------------------------------------------------------------------------------------------------


def _infer_index_sample(call: Call) -> Inferred:
    x, index = call.spec("X"), call.dims("Index")
    call.need(x.rank == 2, "X", "[rows, columns]")
    call.need(len(index) == 2 and agree(index[0], x.dims[0]), "Index", f"[{x.dims[0]}, samples]: a row for each of X")
    return {"Out": like(x, (*merged(x.dims[:1], index[:1]), index[1]))}


register_op(
    "index_sample",
    inputs=("X", "Index"),
    outputs=("Out",),
    infer=_infer_index_sample,
    grad=GradRule("index_sample_grad", ("X", "Index", "Out@GRAD"), ("X",)),
    dtypes={"X": NUMBERS, "Index": INTS},
    reference=lambda inputs, attrs: {"Out": np.asarray(
        [[row[i] for i in picked] for row, picked in zip(inputs["X"], inputs["Index"], strict=True)], inputs["X"].dtype
    ).reshape(inputs["Index"].shape)},
    samples=lambda: [
        Sample({"X": rand(4, 6), "Index": ints(4, 3, high=6)}, {}, ("X",), name="samples", dtypes=EVERY),
        Sample({"X": rand(2, 3), "Index": np.array([[1, 1, 1, 0], [2, 0, 2, 2]], "int32")}, {}, ("X",),
               name="repeated_int32", dtypes=WIDE),
        Sample({"X": ints(4, 6), "Index": ints(4, 3, high=6)}, {}, name="int64", dtypes=("int64",)),
        Sample({"X": rand(0, 3), "Index": ints(0, 2)}, {}, name="empty"),
    ],
    doc="Out[i, j] = X[i, Index[i, j]]; an index out of range is an OutOfRangeError",
    memory="where arrays compute, the place of each element in all of X: 8 bytes an element",
    source="Fluid index_sample_op.cc",
)  # fmt: skip

register_op(
    "index_sample_grad",
    inputs=grad_inputs("X", "Index", "Out@GRAD", meta=("X",)),
    outputs=grad_outputs("X"),
    infer=grad_like("X"),
    kernel_dtype="Out@GRAD",
    doc="X@GRAD = 0; X@GRAD[i, Index[i, j]] += Out@GRAD[i, j]",
)

# shard_index -------------------------------------------------------------------------------------------------------


def _infer_shard_index(call: Call) -> Inferred:
    x = call.spec("X")
    call.need(x.rank >= 2 and agree(x.dims[-1], 1), "X", "[..., 1]")
    if call.attr("shard_id") >= call.attr("nshards"):
        call.fail_attr("shard_id", f"less than nshards, {call.attr('nshards')}")
    return {"Out": like(x)}


def _reference_shard_index(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    held = -(-attrs["index_num"] // attrs["nshards"])
    low = held * attrs["shard_id"]
    x = inputs["X"]
    return {"Out": np.where((x >= low) & (x < low + held), x - low, attrs["ignore_value"]).astype(x.dtype)}


register_op(
    "shard_index",
    inputs=("X",),
    outputs=("Out",),
    attrs=(
        Attr("index_num", "int", minimum=1, doc="how many indices there are in all"),
        Attr("nshards", "int", minimum=1, doc="how many shards they are dealt out to, in blocks"),
        Attr("shard_id", "int", minimum=0, doc="the shard that is asked for"),
        Attr("ignore_value", "int", -1, doc="what indices of other shards become"),
    ),
    infer=_infer_shard_index,
    dtypes={"X": INTS},
    reference=_reference_shard_index,
    samples=lambda: [
        Sample({"X": ints(9, 1, high=20)}, {"index_num": 20, "nshards": 2, "shard_id": 1}, name="second_half"),
        Sample({"X": ints(9, 1, high=20)}, {"index_num": 20, "nshards": 3, "shard_id": 0, "ignore_value": -7},
               name="ignored"),
        Sample({"X": ints(2, 9, 1, high=7, dtype="int32")}, {"index_num": 7, "nshards": 1, "shard_id": 0}, name="one"),
        Sample({"X": ints(0, 1)}, {"index_num": 20, "nshards": 2, "shard_id": 1}, name="empty"),
    ],
    doc="Out = X - shard_id * s where that shard has X (s = ceil(index_num / nshards) indices each), else "
    "ignore_value; an index outside 0 <= X < index_num is an OutOfRangeError",
    source="Fluid shard_index_op.cc",
)  # fmt: skip
