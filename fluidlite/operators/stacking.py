"""Tensors laid along a new axis, and taken apart along one: stack, unstack, unbind."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import Inferred, agree, all_agree, like, merged, normal_axis
from fluidlite.operators.samples import EVERY, WIDE, bools, ints, rand

_AXIS = Attr("axis", "int", 0, doc="the axis along which they lie")
_OUTS = Slot("X@GRAD", duplicable=True, dispensable=True)


def _joined(call: Call, slot: str) -> Inferred:
    """Return the spec of the tensors of ``slot``, stacked."""
    specs = call.specs(slot)
    if not specs:
        call.fail(slot, "one tensor or more")
    first = specs[0]
    axis = call.attr("axis")
    if not -first.rank - 1 <= axis <= first.rank:
        call.fail_attr("axis", f"an axis in [{-first.rank - 1}, {first.rank + 1}) of the stack; {slot} is {first!r}")
    known = first.dims
    for spec in specs:
        if spec.dtype != first.dtype:
            call.fail_dtype(slot, f"{first.dtype} in all of them")
        if not all_agree(known, spec.dims):
            call.fail(slot, "tensors of equal dims")
        known = merged(known, spec.dims)
    axis %= first.rank + 1
    dims = (*known[:axis], len(specs), *known[axis:])
    out = "Y" if slot == "X" else "X@GRAD"
    return {out: like(first, dims) if axis else Spec.of(dims, first.dtype)}


def _divided(call: Call, slot: str, out: str, count: int) -> Inferred:
    """Return the specs of the parts of ``slot``, which are ``count`` where it is known (-1: as many as there are)."""
    x = call.spec(slot)
    axis = normal_axis(call, "axis", call.attr("axis"), x.rank, slot)
    dims = (*x.dims[:axis], *x.dims[axis + 1 :])
    part = like(x, dims) if axis else Spec.of(dims, x.dtype)
    found = x.dims[axis] if x.dims[axis] >= 0 else count if count >= 0 else call.count(out)
    return {out: [part] * found}


# stack -------------------------------------------------------------------------------------------------------------

register_op(
    "stack",
    inputs=(Slot("X", duplicable=True),),
    outputs=("Y",),
    attrs=(_AXIS,),
    infer=lambda call: _joined(call, "X"),
    grad=GradRule("stack_grad", ("Y@GRAD",), ("X",)),
    dtypes={"X": ALL},
    reference=lambda inputs, attrs: {"Y": np.stack(inputs["X"], attrs["axis"])},
    samples=lambda: [
        Sample({"X": [rand(2, 3), rand(2, 3, seed=1)]}, {}, ("X",), name="first", dtypes=EVERY),
        Sample({"X": [rand(2, 3), rand(2, 3, seed=1), rand(2, 3)]}, {"axis": 1}, ("X",), name="middle", dtypes=WIDE),
        Sample({"X": [rand(2, 3), rand(2, 3, seed=1)]}, {"axis": -1}, ("X",), name="last"),
        Sample({"X": [rand(2, 3), rand(2, 3, seed=1)]}, {"axis": -3}, ("X",), name="most_negative"),
        Sample({"X": [rand(3)]}, {}, ("X",), name="single"),
        Sample({"X": [rand(), rand(seed=1)]}, {}, ("X",), name="rank0"),
        Sample({"X": [ints(3), ints(3, seed=1)]}, {"axis": 1}, name="int64", dtypes=("int64",)),
        Sample({"X": [bools(3), bools(3, seed=1)]}, {}, name="bool", dtypes=("bool",)),
        Sample({"X": [rand(0, 3), rand(0, 3)]}, {"axis": 1}, name="empty"),
    ],
    doc="Y = the tensors X side by side along a new axis",
    source="Fluid stack_op.cc",
)

register_op(
    "stack_grad",
    inputs=("Y@GRAD",),
    outputs=(_OUTS,),
    attrs=(_AXIS,),
    infer=lambda call: _divided(call, "Y@GRAD", "X@GRAD", -1),
    doc="X@GRAD[i] = the part of Y@GRAD that X[i] has become",
)

# unstack -----------------------------------------------------------------------------------------------------------

_NUM = Attr("num", "int", minimum=1, maximum=65536, doc="how many parts there are: X's dim at axis")


def _infer_unstack(call: Call) -> Inferred:
    axis = normal_axis(call, "axis", call.attr("axis"), call.spec("X").rank)
    if not agree(call.dims("X")[axis], call.attr("num")):
        call.fail_attr("num", f"{call.dims('X')[axis]}, dim {axis} of X ({call.shown('X')})")
    return _divided(call, "X", "Y", call.attr("num"))


register_op(
    "unstack",
    inputs=("X",),
    outputs=(Slot("Y", duplicable=True),),
    attrs=(_AXIS, _NUM),
    infer=_infer_unstack,
    grad=GradRule("unstack_grad", ("Y@GRAD",), ("X",)),
    dtypes={"X": ALL},
    reference=lambda inputs, attrs: {"Y": list(np.moveaxis(inputs["X"], attrs["axis"], 0))},
    samples=lambda: [
        Sample({"X": rand(3, 4)}, {"num": 3}, ("X",), name="rows", dtypes=EVERY),
        Sample({"X": rand(2, 3, 4)}, {"axis": 1, "num": 3}, ("X",), name="middle", dtypes=WIDE),
        Sample({"X": rand(2, 3, 4)}, {"axis": -1, "num": 4}, ("X",), name="last"),
        Sample({"X": rand(3)}, {"num": 3}, ("X",), name="rank0"),
        Sample({"X": rand(1, 4)}, {"num": 1}, ("X",), name="single"),
        Sample({"X": ints(2, 3)}, {"num": 2}, name="int64", dtypes=("int64",)),
        Sample({"X": bools(2, 3)}, {"num": 2}, name="bool", dtypes=("bool",)),
        Sample({"X": rand(0, 3)}, {"axis": 1, "num": 3}, name="empty"),
    ],
    doc="Y = the parts of X along axis, without it",
    source="Fluid unstack_op.cc",
)

register_op(
    "unstack_grad",
    inputs=(Slot("Y@GRAD", duplicable=True),),
    outputs=(Slot("X@GRAD", dispensable=True),),
    attrs=(_AXIS, _NUM),
    infer=lambda call: _joined(call, "Y@GRAD"),
    doc="X@GRAD = the gradients Y@GRAD side by side along axis",
)

# unbind ------------------------------------------------------------------------------------------------------------


def _grad_unbind(maker: Any) -> None:
    given = maker.output_grads("Out")
    maker.op("stack", {"X": given}, {"Y": maker.input_grad("X")}, {"axis": maker.attr("axis")})


register_op(
    "unbind",
    inputs=("X",),
    outputs=(Slot("Out", duplicable=True),),
    attrs=(_AXIS,),
    infer=lambda call: _divided(call, "X", "Out", -1),
    grad=_grad_unbind,
    dtypes={"X": ALL},
    reference=lambda inputs, attrs: {"Out": list(np.moveaxis(inputs["X"], attrs["axis"], 0))},
    samples=lambda: [
        Sample({"X": rand(3, 4)}, {}, ("X",), name="rows", dtypes=EVERY),
        Sample({"X": rand(2, 3, 4)}, {"axis": 1}, ("X",), name="middle", dtypes=WIDE),
        Sample({"X": rand(2, 3)}, {"axis": -1}, ("X",), name="last"),
        Sample({"X": ints(2, 3)}, {}, name="int64", dtypes=("int64",)),
        Sample({"X": bools(2, 3)}, {}, name="bool", dtypes=("bool",)),
        Sample({"X": rand(0, 3)}, {"axis": 1}, name="empty"),
    ],
    doc="Out = the parts of X along axis, without it",
    source="Fluid unbind_op.cc",
)
