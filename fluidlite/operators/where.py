"""Choosing by conditions and by value: where, where_index, unique, unique_with_counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL, ALL_FLOATS, FLOATS, INTS
from fluidlite.codegen.expr import where
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, Sample
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import Inferred, all_agree, like, merged, same_dtype
from fluidlite.operators.samples import EVERY, bools, ints, rand
from fluidlite.operators.scalar_op import scalar_op

# where -------------------------------------------------------------------------------------------------------------


def _infer_where(call: Call) -> Inferred:
    condition, x = call.dims("Condition"), call.spec("X")
    call.need(all_agree(condition, x.dims), "Condition", f"the dims of X, {list(x.dims)}")
    call.need(all_agree(call.dims("Y"), x.dims), "Y", f"the dims of X, {list(x.dims)}")
    same_dtype(call, "Y", "X")
    return {"Out": like(x, merged(merged(x.dims, call.dims("Y")), condition))}


def _where_inputs(*dims: int) -> dict[str, Any]:
    return {"Condition": bools(*dims), "X": rand(*dims), "Y": rand(*dims, seed=1)}


scalar_op("where", lambda condition, x, y: where(condition, x, y),
          grad=lambda condition, dout: {"X": where(condition, dout, 0), "Y": where(condition, 0, dout)},
          differentiable=("X", "Y"), infer=_infer_where,
          dtypes={"Condition": ("bool",), "X": (*ALL_FLOATS, *INTS)},
          reference=lambda inputs, attrs: {"Out": np.choose(inputs["Condition"], [inputs["Y"], inputs["X"]])},
          samples=lambda: [
              Sample(_where_inputs(5, 7), {}, ("X", "Y"), name="matrix", dtypes=EVERY),
              Sample(_where_inputs(2, 3, 4, 1), {}, ("X", "Y"), name="rank4"),
              Sample({"Condition": bools(6), "X": ints(6), "Y": ints(6, seed=1)}, {}, name="int64", dtypes=("int64",)),
              Sample(_where_inputs(0, 3), {}, name="empty"),
          ],
          doc="Out = X where Condition holds, else Y", source="Fluid where_op.cc")  # fmt: skip

# where_index -------------------------------------------------------------------------------------------------------


def _infer_where_index(call: Call) -> Inferred:
    rank = len(call.dims("Condition"))
    call.need(rank >= 1, "Condition", "rank 1 or more")
    return {"Out": Spec.of((-1, rank), "int64")}


register_op(
    "where_index",
    inputs=("Condition",),
    outputs=("Out",),
    infer=_infer_where_index,
    dynamic=True,
    dtypes={"Condition": ALL},
    reference=lambda inputs, attrs: {
        "Out": np.asarray(
            [i for i in np.ndindex(inputs["Condition"].shape) if inputs["Condition"][i]], "int64"
        ).reshape(-1, inputs["Condition"].ndim)
    },
    samples=lambda: [
        Sample({"Condition": bools(5, 7)}, {}, name="matrix", dtypes=("bool",)),
        Sample({"Condition": bools(2, 3, 40, 12)}, {}, name="rank4", dtypes=("bool",)),
        Sample({"Condition": bools(3000)}, {}, name="vector", dtypes=("bool",)),
        Sample({"Condition": np.zeros((3, 4), "bool")}, {}, name="none", dtypes=("bool",)),
        Sample({"Condition": np.ones(9, "bool")}, {}, name="all", dtypes=("bool",)),
        Sample({"Condition": ints(4, 5, high=2)}, {}, name="int64", dtypes=("int64",)),
        Sample({"Condition": np.array([0.0, -0.0, 0.5, -2, 0], "float32")}, {}, name="floats", dtypes=EVERY),
        Sample({"Condition": bools(0, 3)}, {}, name="empty", dtypes=("bool",)),
    ],
    doc="Out = where Condition is not 0: a row of indices for each such element, in order",
    source="Fluid where_index_op.cc",
)

# unique ------------------------------------------------------------------------------------------------------------


def _infer_unique(call: Call) -> Inferred:
    x, dtype = call.spec("X"), call.attr("dtype")
    call.need(x.rank == 1, "X", "rank 1", do="flatten it with layers.reshape")
    found = {"Out": Spec.of((-1,), x.dtype), "Index": Spec.of(x.dims, dtype)}
    return found if call.op.type == "unique" else {**found, "Count": Spec.of((-1,), dtype)}


def _reference_unique(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    values: list[float] = []
    counts: list[int] = []
    index = []
    for value in inputs["X"].tolist():
        at = next((i for i, held in enumerate(values) if held == value), len(values))  # a NaN equals none
        if at == len(values):
            values.append(value)
            counts.append(0)
        index.append(at)
        counts[at] += 1
    return {
        "Out": np.asarray(values, inputs["X"].dtype),
        "Index": np.asarray(index, attrs["dtype"]),
        "Count": np.asarray(counts, attrs["dtype"]),
    }


def _unique_samples() -> list[Sample]:
    both = ("float32", "float64")
    return [
        Sample({"X": np.array([2, 3, 3, 1, 5, 3])}, {"dtype": "int32"}, name="int64", dtypes=("int64",)),
        Sample({"X": ints(3000, low=-40, high=40, dtype="int32")}, {"dtype": "int64"}, name="int32", dtypes=("int32",)),
        Sample({"X": ints(90, high=30).astype("float32") / 4}, {"dtype": "int32"}, name="floats", dtypes=both),
        Sample({"X": rand(2000)}, {"dtype": "int64"}, name="all_different", dtypes=both),
        Sample({"X": np.array([0.0, -0.0, np.inf, 1, np.inf], "float32")}, {"dtype": "int64"}, name="special"),
        Sample({"X": np.array([7])}, {"dtype": "int64"}, name="one", dtypes=("int64",)),
        Sample({"X": rand(0)}, {"dtype": "int64"}, name="empty"),
    ]


for _type in ("unique", "unique_with_counts"):
    _counts = _type == "unique_with_counts"
    register_op(
        _type,
        inputs=("X",),
        outputs=("Out", "Index", "Count") if _counts else ("Out", "Index"),
        attrs=(Attr("dtype", "dtype", choices=INTS, doc=f"dtype of Index{' and Count' if _counts else ''}"),),
        infer=_infer_unique,
        dynamic=True,
        dtypes={"X": (*FLOATS, *INTS)},
        reference=_reference_unique if _counts else lambda inputs, attrs: {
            slot: value for slot, value in _reference_unique(inputs, attrs).items() if slot != "Count"
        },
        samples=_unique_samples,
        doc="Out = the different values of X, in the order in which they come first; X[i] = Out[Index[i]]"
        + ("; Count = how often each comes" if _counts else ""),
        memory="two sorted copies of X with the places of their elements; on the host, of integers in a small range, a "
        "table of where each comes first",
        source=f"Fluid {_type}_op.cc",
    )  # fmt: skip
