"""cross: the product of vectors in space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Dims
from fluidlite.operators.inference import (
    Inferred,
    agree,
    all_agree,
    grad_inputs,
    grad_like,
    grad_outputs,
    like,
    merged,
    normal_axis,
    same_dtype,
)
from fluidlite.operators.samples import EVERY, WIDE, ints, rand

_READS = ("X", "Y", "Out@GRAD")


def _pair(x: Dims, y: Dims) -> dict[str, Any]:
    return {"X": rand(*x), "Y": rand(*y, seed=1)}


_ANY = 9
_CROSS = (Attr("dim", "int", _ANY, doc="the axis of the vectors' three parts; 9: the first dim of size 3"),)


def _check_axis(call: Call) -> None:
    """Raise unless the vectors have three parts, as far as dims are known."""
    dims, dim = call.dims("X"), call.attr("dim")
    if dim == _ANY:
        call.need(any(agree(d, 3) for d in dims), "X", "a dim of size 3")
    else:
        axis = normal_axis(call, "dim", dim, len(dims))
        call.need(agree(dims[axis], 3), "X", f"3 elements along dim {axis}")


def _infer_cross(call: Call) -> Inferred:
    x, y = call.spec("X"), call.dims("Y")
    same_dtype(call, "Y", "X")
    call.need(all_agree(x.dims, y), "Y", f"the dims of X, {list(x.dims)}")
    _check_axis(call)
    return {"Out": like(x, merged(x.dims, y))}


def _reference_cross(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x = inputs["X"]
    axis = attrs["dim"] if attrs["dim"] != _ANY else x.shape.index(3)
    return {"Out": np.cross(x, inputs["Y"], axis=axis)}


def _decompose_cross_grad(call: Call, build: Any) -> None:
    attrs = {"dim": call.attr("dim")}
    if call.has("X@GRAD"):
        inputs = {"X": build.input("Y"), "Y": build.input("Out@GRAD")}
        build("cross", inputs, {"Out": build.output("X@GRAD")}, attrs)
    if call.has("Y@GRAD"):
        inputs = {"X": build.input("Out@GRAD"), "Y": build.input("X")}
        build("cross", inputs, {"Out": build.output("Y@GRAD")}, attrs)


register_op(
    "cross",
    inputs=("X", "Y"),
    outputs=("Out",),
    attrs=_CROSS,
    infer=_infer_cross,
    grad=GradRule("cross_grad", _READS, ("X", "Y")),
    dtypes={slot: (*ALL_FLOATS, *INTS) for slot in "XY"},
    reference=_reference_cross,
    samples=lambda: [
        Sample(_pair((4, 3), (4, 3)), {}, ("X", "Y"), name="rows", dtypes=EVERY),
        Sample(_pair((3, 3), (3, 3)), {}, ("X", "Y"), name="first"),
        Sample(_pair((3, 3, 2), (3, 3, 2)), {"dim": 1}, ("X", "Y"), name="dim1", dtypes=WIDE),
        Sample(_pair((3, 2, 3), (3, 2, 3)), {"dim": -1}, ("X", "Y"), name="last"),
        Sample(_pair((40, 3, 50), (40, 3, 50)), {}, name="large"),
        Sample({"X": ints(2, 3), "Y": ints(2, 3, seed=1)}, {}, name="int64", dtypes=("int64",)),
        Sample(_pair((0, 3), (0, 3)), {}, name="empty"),
    ],
    doc="Out = the vector product of the three-part vectors of X and Y along dim",
    source="Fluid cross_op.cc",
)

register_op(
    "cross_grad",
    inputs=grad_inputs(*_READS),
    outputs=grad_outputs("X", "Y"),
    attrs=_CROSS,
    infer=grad_like("X", "Y"),
    decompose=_decompose_cross_grad,
    doc="X@GRAD = the vector product of Y and Out@GRAD, Y@GRAD = that of Out@GRAD and X",
)
