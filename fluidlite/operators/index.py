"""Indexing of rows: gather, lookup_table and lookup_table_v2, one_hot and one_hot_v2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL, ALL_FLOATS, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import Inferred, agree, grad_inputs, grad_like, grad_outputs, like, size
from fluidlite.operators.samples import EVERY, WIDE, ints, rand

# gather ------------------------------------------------------------------------------------------------------------


def _infer_gather(call: Call) -> Inferred:
    x, index = call.dims("X"), call.dims("Index")
    call.need(len(x) >= 1, "X", "rank 1 or more")
    if len(index) != 1 and not (len(index) == 2 and agree(index[1], 1)):
        call.fail("Index", "[rows] or [rows, 1]")
    return {"Out": Spec.of((index[0], *x[1:]), call.dtype("X"))}


_OVERWRITE = (
    Attr("overwrite", "bool", True, doc="taken for Fluid's sake: gradients of rows that are named twice always add up"),
)

register_op(
    "gather",
    inputs=("X", "Index"),
    outputs=("Out",),
    attrs=_OVERWRITE,
    infer=_infer_gather,
    grad=GradRule("gather_grad", ("X", "Index", "Out@GRAD"), ("X",)),
    dtypes={"X": ALL, "Index": INTS},
    reference=lambda inputs, attrs: {"Out": inputs["X"][inputs["Index"].reshape(-1)]},
    samples=lambda: [
        Sample({"X": rand(6, 3), "Index": np.array([4, 0, 4, 5])}, {}, ("X",), name="rows", dtypes=EVERY),
        Sample({"X": rand(6), "Index": np.array([[2], [1]])}, {"overwrite": False}, ("X",), name="column"),
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
    attrs=_OVERWRITE,
    infer=grad_like("X"),
    kernel_dtype="Out@GRAD",
    doc="X@GRAD = 0; X@GRAD[Index[i]] += Out@GRAD[i]; half types add up in a float32 copy",
)

# lookup_table ------------------------------------------------------------------------------------------------------

_TABLE_ATTRS = (
    Attr("padding_idx", "int", -1, doc="rows of this id are zeros and get no gradient; -1: none"),
    Attr("is_sparse", "bool", False, doc="asks for a sparse gradient of W; as yet it is dense"),
    Attr("is_distributed", "bool", False, doc="taken for Fluid's sake; of no effect"),
    Attr("remote_prefetch", "bool", False, doc="taken for Fluid's sake; of no effect"),
)


def _infer_lookup(call: Call) -> Inferred:
    w, ids = call.dims("W"), call.dims("Ids")
    call.need(len(w) == 2, "W", "[vocabulary, width]")
    if call.op.type == "lookup_table":
        call.need(
            len(ids) >= 2 and agree(ids[-1], 1), "Ids", "[..., 1]", do="reshape the ids, or feed them as [rows, 1]"
        )
        ids = ids[:-1]
    call.need(bool(ids), "Ids", "rank 1 or more")
    return {"Out": like(call.spec("Ids"), (*ids, w[1]), call.dtype("W"))}


def _reference_lookup(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    w, ids = inputs["W"], inputs["Ids"][..., 0]
    out = np.zeros((*ids.shape, w.shape[1]))
    for where in np.ndindex(ids.shape):
        if attrs["padding_idx"] == -1 or ids[where] != attrs["padding_idx"]:
            out[where] = w[ids[where]]
    return {"Out": out}


def _lookup_samples() -> list[Sample]:
    w = rand(9, 4)
    return [
        Sample({"W": w, "Ids": ints(5, 1, high=9)}, {}, ("W",), name="rows", dtypes=EVERY),
        Sample({"W": w, "Ids": np.array([[2], [5], [2], [2]])}, {}, ("W",), name="repeated", dtypes=WIDE),
        Sample({"W": w, "Ids": np.array([[2], [5], [2]])}, {"padding_idx": 2}, ("W",), name="padding"),
        Sample({"W": w, "Ids": np.array([[0], [8]])}, {"padding_idx": 0}, ("W",), name="padding_zero"),
        Sample({"W": rand(1, 4), "Ids": np.array([[0], [7], [0]])}, {"padding_idx": 7}, ("W",), name="padding_outside"),
        Sample({"W": rand(3, 4500), "Ids": np.array([[2], [0]])}, {}, name="long_rows"),
        Sample({"W": rand(9, 2), "Ids": ints(2, 3, 1, high=9, dtype="int32")}, {}, ("W",), name="rank3_int32"),
        Sample({"W": w, "Ids": ints(5, 1, high=9)}, {"is_sparse": False}, lod={"Ids": ((0, 2, 5),)}, name="sequences"),
        Sample({"W": w, "Ids": ints(0, 1)}, {}, name="none"),
    ]


def _without_column(samples: list[Sample], slot: str) -> list[Sample]:
    """Return the samples of an operator that takes [..., 1] for its second version, which takes [...]."""
    return [replace(s, inputs={**s.inputs, slot: s.inputs[slot][..., 0]}) for s in samples]


def _with_column(reference: Callable[..., dict[str, Any]], slot: str) -> Callable[..., dict[str, Any]]:
    def second(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
        return reference({**inputs, slot: inputs[slot][..., None]}, attrs)

    return second


for _type in ("lookup_table", "lookup_table_v2"):
    _second = _type.endswith("_v2")
    register_op(
        _type,
        inputs=("W", "Ids"),
        outputs=("Out",),
        attrs=_TABLE_ATTRS,
        infer=_infer_lookup,
        grad=GradRule(_type + "_grad", ("W", "Ids", "Out@GRAD"), ("W",)),
        kernel_dtype="W",
        dtypes={"W": ALL_FLOATS, "Ids": INTS},
        reference=_with_column(_reference_lookup, "Ids") if _second else _reference_lookup,
        samples=(lambda: _without_column(_lookup_samples(), "Ids")) if _second else _lookup_samples,
        doc=f"Out[...] = W[Ids[...]]{', Ids being [...] and not [..., 1]' if _second else ''}; "
        "an id outside 0 <= id < vocabulary is an OutOfRangeError",
        source=f"Fluid {_type}_op.cc",
    )
    register_op(
        _type + "_grad",
        inputs=grad_inputs("W", "Ids", "Out@GRAD", meta=("W",)),
        outputs=grad_outputs("W"),
        attrs=_TABLE_ATTRS,
        infer=grad_like("W"),
        kernel_dtype="Out@GRAD",
        doc="W@GRAD = 0; W@GRAD[Ids[i]] += Out@GRAD[i] where Ids[i] is not padding_idx",
        memory="where arrays compute, Out@GRAD in the order of Ids, up to twice; half types add up in a float32 copy",
    )

# one_hot -----------------------------------------------------------------------------------------------------------


def _infer_one_hot(call: Call) -> Inferred:
    x = call.dims("X")
    if call.op.type == "one_hot":
        call.need(len(x) >= 2 and agree(x[-1], 1), "X", "[..., 1]")
        x = x[:-1]
    call.need(bool(x), "X", "rank 1 or more")
    depth = call.attr("depth")
    if call.has("depth_tensor"):
        call.need(size(call.dims("depth_tensor")) in (1, -1), "depth_tensor", "one number")
        found = call.value("depth_tensor")
        depth = -1 if found is None else int(found[0])
        if found is not None and depth < 1:
            call.fail("depth_tensor", "1 class or more", got=depth)
    elif depth < 1:
        call.fail_attr("depth", "1 or more: the number of classes")
    return {"Out": like(call.spec("X"), (*x, depth), call.attr("dtype"))}


def _reference_one_hot(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    kind = attrs["dtype"]
    depth = int(inputs["depth_tensor"][0]) if "depth_tensor" in inputs else attrs["depth"]
    if not attrs["allow_out_of_range"] and ((inputs["X"] < 0) | (inputs["X"] >= depth)).any():
        raise ValueError("a class is out of range")
    return {"Out": np.asarray(inputs["X"] == np.arange(depth), kind if "float" not in kind else "float64")}


def _one_hot_samples() -> list[Sample]:
    return [
        Sample({"X": ints(5, 1, high=4)}, {"depth": 4}, name="rows"),
        Sample({"X": ints(5, 1, high=3, dtype="int32")}, {"depth": 7, "dtype": "int64"}, name="int64"),
        Sample({"X": ints(2, 3, 1, high=2)}, {"depth": 2, "dtype": "float64"}, name="rank3"),
        Sample({"X": ints(0, 1)}, {"depth": 4}, name="none"),
        Sample({"X": np.array([[-1], [3], [9]])}, {"depth": 4, "allow_out_of_range": True}, name="outside"),
        Sample({"X": ints(5, 1, high=3), "depth_tensor": np.array([3], "int32")}, {}, name="depth_tensor"),
    ]


for _type in ("one_hot", "one_hot_v2"):
    _second = _type.endswith("_v2")
    register_op(
        _type,
        inputs=(
            "X",
            Slot("depth_tensor", dispensable=True, value=True, doc="the number of classes, [1]; wins over depth"),
        ),
        outputs=("Out",),
        attrs=(
            Attr("depth", "int", -1, doc="number of classes"),
            Attr("dtype", "dtype", "float32", doc="dtype of Out"),
            Attr("allow_out_of_range", "bool", False, doc="a class out of range makes zeros, and no error"),
        ),
        infer=_infer_one_hot,
        kernel_dtype="X",
        dtypes={"X": INTS, "depth_tensor": INTS},
        reference=_with_column(_reference_one_hot, "X") if _second else _reference_one_hot,
        samples=(lambda: _without_column(_one_hot_samples(), "X")) if _second else _one_hot_samples,
        doc=f"Out[..., j] = (X[...{'' if _second else ', 0'}] == j); "
        "a class outside 0 <= j < depth is an OutOfRangeError",
        source=f"Fluid {_type}_op.cc",
    )
