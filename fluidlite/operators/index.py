"""Indexing: gather, lookup_table, one_hot, top_k."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL, ALL_FLOATS, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import Inferred, agree, grad_inputs, grad_like, grad_outputs, like
from fluidlite.operators.samples import EVERY, WIDE, distinct, ints, rand

# gather ------------------------------------------------------------------------------------------------------------


def _infer_gather(call: Call) -> Inferred:
    x, index = call.dims("X"), call.dims("Index")
    call.need(len(x) >= 1, "X", "rank 1 or more")
    if len(index) != 1 and not (len(index) == 2 and agree(index[1], 1)):
        call.fail("Index", "[rows] or [rows, 1]")
    return {"Out": Spec.of((index[0], *x[1:]), call.dtype("X"))}


register_op(
    "gather",
    inputs=("X", "Index"),
    outputs=("Out",),
    infer=_infer_gather,
    grad=GradRule("gather_grad", ("X", "Index", "Out@GRAD"), ("X",)),
    dtypes={"X": ALL, "Index": INTS},
    reference=lambda inputs, attrs: {"Out": inputs["X"][inputs["Index"].reshape(-1)]},
    samples=lambda: [
        Sample({"X": rand(6, 3), "Index": np.array([4, 0, 4, 5])}, {}, ("X",), name="rows", dtypes=EVERY),
        Sample({"X": rand(6), "Index": np.array([[2], [1]])}, {}, ("X",), name="column"),
        Sample({"X": rand(4, 2, 3), "Index": np.array([3, 3, 1], "int32")}, {}, ("X",), name="rank3_int32"),
        Sample({"X": ints(5, 2), "Index": np.array([1, 4])}, {}, name="int64", dtypes=("int64",)),
        Sample({"X": rand(5, 2), "Index": ints(0)}, {}, name="none"),
        Sample({"X": rand(5, 0), "Index": np.array([1, 4])}, {}, name="empty_rows"),
    ],
    doc="Out[i] = X[Index[i]]; an index outside 0 <= i < rows is an OutOfRangeError",
    source="Fluid gather_op.cc",
)

register_op(
    "gather_grad",
    inputs=grad_inputs("X", "Index", "Out@GRAD", meta=("X",)),
    outputs=grad_outputs("X"),
    infer=grad_like("X"),
    kernel_dtype="Out@GRAD",
    doc="X@GRAD = 0; X@GRAD[Index[i]] += Out@GRAD[i]",
)

# lookup_table ------------------------------------------------------------------------------------------------------

_TABLE_ATTRS = (
    Attr("padding_idx", "int", -1, doc="rows of this id are zeros and get no gradient; -1: none"),
    Attr("is_sparse", "bool", False, doc="asks for a sparse gradient of W; as yet it is dense"),
    Attr("is_distributed", "bool", False, doc="taken for Fluid's sake; of no effect"),
)


def _infer_lookup(call: Call) -> Inferred:
    w, ids = call.dims("W"), call.dims("Ids")
    call.need(len(w) == 2, "W", "[vocabulary, width]")
    call.need(len(ids) >= 2 and agree(ids[-1], 1), "Ids", "[..., 1]", do="reshape the ids, or feed them as [rows, 1]")
    return {"Out": like(call.spec("Ids"), (*ids[:-1], w[1]), call.dtype("W"))}


def _reference_lookup(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    w, ids = inputs["W"], inputs["Ids"]
    out = np.zeros((*ids.shape[:-1], w.shape[1]))
    for where in np.ndindex(ids.shape[:-1]):
        if attrs["padding_idx"] == -1 or ids[where][0] != attrs["padding_idx"]:
            out[where] = w[ids[where][0]]
    return {"Out": out}


register_op(
    "lookup_table",
    inputs=("W", "Ids"),
    outputs=("Out",),
    attrs=_TABLE_ATTRS,
    infer=_infer_lookup,
    grad=GradRule("lookup_table_grad", ("W", "Ids", "Out@GRAD"), ("W",)),
    kernel_dtype="W",
    dtypes={"W": ALL_FLOATS, "Ids": INTS},
    reference=_reference_lookup,
    samples=lambda: [
        Sample({"W": rand(9, 4), "Ids": ints(5, 1, high=9)}, {}, ("W",), name="rows", dtypes=EVERY),
        Sample({"W": rand(9, 4), "Ids": np.array([[2], [5], [2], [2]])}, {}, ("W",), name="repeated", dtypes=WIDE),
        Sample({"W": rand(9, 4), "Ids": np.array([[2], [5], [2]])}, {"padding_idx": 2}, ("W",), name="padding"),
        Sample({"W": rand(9, 4), "Ids": np.array([[0], [8]])}, {"padding_idx": 0}, ("W",), name="padding_zero"),
        Sample({"W": rand(1, 4), "Ids": np.array([[0], [7], [0]])}, {"padding_idx": 7}, ("W",), name="padding_outside"),
        Sample({"W": rand(3, 4500), "Ids": np.array([[2], [0]])}, {}, name="long_rows"),
        Sample({"W": rand(9, 2), "Ids": ints(2, 3, 1, high=9, dtype="int32")}, {}, ("W",), name="rank3_int32"),
        Sample(
            {"W": rand(9, 4), "Ids": ints(5, 1, high=9)},
            {"is_sparse": False},
            lod={"Ids": ((0, 2, 5),)},
            name="sequences",
        ),
        Sample({"W": rand(9, 4), "Ids": ints(0, 1)}, {}, name="none"),
    ],
    doc="Out[...] = W[Ids[...]]; an id outside 0 <= id < vocabulary is an OutOfRangeError",
    source="Fluid lookup_table_op.cc",
)

register_op(
    "lookup_table_grad",
    inputs=grad_inputs("W", "Ids", "Out@GRAD", meta=("W",)),
    outputs=grad_outputs("W"),
    attrs=_TABLE_ATTRS,
    infer=grad_like("W"),
    kernel_dtype="Out@GRAD",
    doc="W@GRAD = 0; W@GRAD[Ids[i]] += Out@GRAD[i] where Ids[i] is not padding_idx",
)

# one_hot -----------------------------------------------------------------------------------------------------------


def _infer_one_hot(call: Call) -> Inferred:
    x = call.dims("X")
    call.need(len(x) >= 2 and agree(x[-1], 1), "X", "[..., 1]")
    return {"Out": like(call.spec("X"), (*x[:-1], call.attr("depth")), call.attr("dtype"))}


def _reference_one_hot(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    kind = attrs["dtype"]
    dtype = kind if "float" not in kind else "float64"
    out = np.asarray(inputs["X"] == np.arange(attrs["depth"]), dtype)
    return {"Out": out}


register_op(
    "one_hot",
    inputs=("X",),
    outputs=("Out",),
    attrs=(
        Attr("depth", "int", minimum=1, doc="number of classes"),
        Attr("dtype", "dtype", "float32", doc="dtype of Out"),
    ),
    infer=_infer_one_hot,
    dtypes={"X": INTS},
    reference=_reference_one_hot,
    samples=lambda: [
        Sample({"X": ints(5, 1, high=4)}, {"depth": 4}, name="rows"),
        Sample({"X": ints(5, 1, high=3, dtype="int32")}, {"depth": 7, "dtype": "int64"}, name="int64"),
        Sample({"X": ints(2, 3, 1, high=2)}, {"depth": 2, "dtype": "float64"}, name="rank3"),
        Sample({"X": ints(0, 1)}, {"depth": 4}, name="none"),
    ],
    doc="Out[..., j] = (X[..., 0] == j); a class outside 0 <= j < depth is an OutOfRangeError",
    source="Fluid one_hot_op.cc",
)

# top_k -------------------------------------------------------------------------------------------------------------


def _infer_top_k(call: Call) -> Inferred:
    x, k = call.spec("X"), call.attr("k")
    call.need(x.rank >= 1, "X", "rank 1 or more")
    if 0 <= x.dims[-1] < k:
        call.fail("X", f"at least k = {k} columns")
    dims = (*x.dims[:-1], k)
    return {"Out": like(x, dims), "Indices": like(x, dims, "int64")}


def _reference_top_k(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, k = inputs["X"], attrs["k"]
    order = np.zeros((*x.shape[:-1], k), "int64")
    for where in np.ndindex(x.shape[:-1]):
        row = x[where].tolist()
        order[where] = sorted(range(len(row)), key=lambda j: (-row[j], j))[:k]
    return {"Out": np.take_along_axis(x, order, -1), "Indices": order}


register_op(
    "top_k",
    inputs=("X",),
    outputs=("Out", Slot("Indices")),
    attrs=(Attr("k", "int", 1, minimum=1, doc="how many of the largest"),),
    infer=_infer_top_k,
    dtypes={"X": (*ALL_FLOATS, *INTS)},
    reference=_reference_top_k,
    samples=lambda: [
        Sample({"X": distinct(5, 7)}, {}, name="largest", dtypes=EVERY),
        Sample({"X": distinct(5, 7)}, {"k": 3}, name="three", dtypes=EVERY),
        Sample({"X": np.array([[1, 3, 3, 2, 3]], "float32")}, {"k": 4}, name="ties", dtypes=WIDE),
        Sample({"X": distinct(2, 3, 6)}, {"k": 6}, name="all"),
        Sample({"X": distinct(4)}, {"k": 2}, name="vector"),
        Sample({"X": ints(3, 5, dtype="int32")}, {"k": 2}, name="int32", dtypes=("int32",)),
        Sample({"X": rand(0, 5)}, {"k": 2}, name="no_rows"),
    ],
    doc="Out = the k largest of each row of X, largest first; Indices = where they are (of equal ones, the first)",
    source="Fluid top_k_op.cc",
)
