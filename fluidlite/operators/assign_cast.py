"""Copies of a tensor: assign, assign_like, which compares dims, and cast, which changes the dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL, ALL_INTS
from fluidlite.codegen.expr import cast
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.operators.inference import Inferred, all_agree, like, merged, same_dtype
from fluidlite.operators.samples import EVERY, bools, ints, rand
from fluidlite.operators.scalar_op import unary

# assign and cast ---------------------------------------------------------------------------------------------------


def _decompose_like(call: Call, build: Any) -> None:
    build("assign", {"X": build.input("X")}, {"Out": build.output("Out")})


def _grad_assign(maker: Any) -> None:
    given = maker.output_grad("Out")
    maker.op("assign", {"X": given}, {"Out": maker.input_grad("X")})


register_op(
    "assign",
    inputs=("X",),
    outputs=("Out",),
    infer=lambda call: {"Out": like(call.spec("X"))},
    grad=_grad_assign,
    dtypes={"X": ALL},
    reference=lambda inputs, attrs: {"Out": inputs["X"].copy()},
    samples=lambda: [
        Sample({"X": rand(5, 7)}, {}, ("X",), name="matrix", dtypes=EVERY),
        Sample({"X": rand()}, {}, name="rank0"),
        Sample({"X": ints(4)}, {}, name="int64", dtypes=("int64",)),
        Sample({"X": bools(4)}, {}, name="bool", dtypes=("bool",)),
        Sample({"X": rand(5, 7)}, {}, lod={"X": ((0, 2, 5),)}, name="sequences"),
        Sample({"X": rand(0, 7)}, {}, name="empty"),
    ],
    doc="Out = X, copied",
    source="Fluid assign_op.cc",
)


def _infer_like(call: Call) -> Inferred:
    if not all_agree(call.dims("X"), call.dims("Like")):
        call.fail("X", f"{list(call.dims('Like'))}, the dims of Like")
    same_dtype(call, "X", "Like")
    return {"Out": like(call.spec("X"), merged(call.dims("X"), call.dims("Like")))}


register_op(
    "assign_like",
    inputs=("X", Slot("Like", metadata_only=True)),
    outputs=("Out",),
    infer=_infer_like,
    grad=_grad_assign,
    decompose=_decompose_like,
    may_alias={"Out": "X"},
    dtypes={"X": ALL},
    reference=lambda inputs, attrs: {"Out": inputs["X"].copy()},
    samples=lambda: [
        Sample({"X": rand(5, 7), "Like": rand(5, 7)}, {}, ("X",), name="matrix", dtypes=EVERY),
        Sample({"X": ints(4), "Like": ints(4)}, {}, name="int64", dtypes=("int64",)),
        Sample({"X": rand(0, 7), "Like": rand(0, 7)}, {}, name="empty"),
    ],
    doc="Out = X, which must have the dims and the dtype of Like: what fluid.gradients puts behind a given gradient "
    "whose dims are not known before it runs",
    source="fluid.gradients, which checks dims that are known when the program is built",
)


def _infer_cast(call: Call) -> Inferred:
    if call.attr("in_dtype") not in (None, call.dtype("X")):
        call.fail_attr("in_dtype", f"{call.dtype('X')}, the dtype of X")
    return {"Out": like(call.spec("X"), dtype=call.attr("out_dtype"))}


def _grad_cast(maker: Any) -> None:
    given = maker.output_grad("Out")
    attrs = {"in_dtype": maker.attr("out_dtype"), "out_dtype": maker.spec("X").dtype}
    maker.op("cast", {"X": given}, {"Out": maker.input_grad("X")}, attrs)


def _reference_cast(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, kind = inputs["X"], attrs["out_dtype"]
    if "float" in kind:
        return {"Out": np.asarray(x, "float64")}
    if kind == "bool":
        return {"Out": x != 0}
    if x.dtype.kind != "f":
        return {"Out": x.astype(kind)}
    limits = np.iinfo(kind)
    whole = [0 if v != v else max(limits.min, min(limits.max, int(np.clip(v, -1e30, 1e30)))) for v in x.reshape(-1)]
    return {"Out": np.asarray(whole, kind).reshape(x.shape)}


def _cast_samples() -> list[Sample]:
    x = rand(5, 7, low=-9, high=9)
    special = np.asarray([np.nan, np.inf, -np.inf, 1e20, -1e20, -0.9, 0.0, 300.0], "float32")
    found = [
        Sample({"X": x}, {"in_dtype": "float32", "out_dtype": "float64"}, ("X",), name="widen"),
        Sample({"X": x.astype("float64")}, {"out_dtype": "float32"}, ("X",), name="narrow", dtypes=("float64",)),
        Sample({"X": x}, {"out_dtype": "float16"}, name="to_float16"),
        Sample({"X": x}, {"out_dtype": "bfloat16"}, name="to_bfloat16"),
        Sample({"X": x}, {"out_dtype": "float32"}, name="from_half", dtypes=("float16", "bfloat16")),
        Sample({"X": np.asarray([0.0, 0.5, -2.0, np.nan], "float32")}, {"out_dtype": "bool"}, name="to_bool"),
        Sample({"X": bools(5)}, {"out_dtype": "float32"}, name="from_bool", dtypes=("bool",)),
        Sample({"X": ints(5, low=-9)}, {"out_dtype": "float32"}, name="from_int64", dtypes=("int64",)),
        Sample({"X": ints(5, low=-300, high=300)}, {"out_dtype": "uint8"}, name="wrapped", dtypes=("int64",)),
        Sample({"X": rand(0, 3)}, {"out_dtype": "int64"}, name="empty"),
    ]
    return found + [Sample({"X": special}, {"out_dtype": kind}, name="special_" + kind) for kind in ALL_INTS]


unary("cast", lambda x, *, out_dtype: cast(x, out_dtype), infer=_infer_cast, grad=_grad_cast, dtypes={"X": ALL},
      attrs=(Attr("in_dtype", "dtype", optional=True, doc="the dtype of X; it is checked"),
             Attr("out_dtype", "dtype", doc="the dtype of Out")),
      may_alias={}, reference=_reference_cast, samples=_cast_samples,
      doc="Out = X in another dtype: floats become integers by truncation, saturate, and NaN becomes 0",
      source="Fluid cast_op.h")  # fmt: skip
