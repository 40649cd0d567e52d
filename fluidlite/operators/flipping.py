"""Elements moved within a tensor, or left out: reverse, flip, roll, tril_triu."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import Inferred, grad_inputs, grad_like, grad_outputs, like, normal_axis
from fluidlite.operators.samples import EVERY, WIDE, bools, ints, rand

# reverse and flip --------------------------------------------------------------------------------------------------


def _register_reverse(type: str, attr: str, shares_lod: bool) -> None:
    """Declare an operator that turns dims around; its gradient is the operator itself."""

    def infer(call: Call) -> Inferred:
        x, axes = call.spec("X"), call.attr(attr)
        if not axes:
            call.fail_attr(attr, "one axis or more")
        for axis in axes:
            normal_axis(call, attr, axis, x.rank)
        return {"Out": like(x) if shares_lod else Spec.of(x.dims, x.dtype)}

    def grad(maker: Any) -> None:
        maker.op(type, {"X": maker.output_grad("Out")}, {"Out": maker.input_grad("X")}, {attr: maker.attr(attr)})

    def reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
        out = inputs["X"]
        for axis in {axis % out.ndim for axis in attrs[attr]}:
            out = np.take(out, np.arange(out.shape[axis] - 1, -1, -1), axis)
        return {"Out": out}

    register_op(
        type,
        inputs=("X",),
        outputs=("Out",),
        attrs=(Attr(attr, "ints", doc="the dims whose order is reversed; negative ones count from the end"),),
        infer=infer,
        grad=grad,
        dtypes={"X": ALL},
        reference=reference,
        samples=lambda: [
            Sample({"X": rand(3, 5)}, {attr: [0]}, ("X",), name="rows", dtypes=EVERY),
            Sample({"X": rand(3, 5)}, {attr: [-1]}, ("X",), name="columns", dtypes=EVERY),
            Sample({"X": rand(2, 3, 4)}, {attr: [0, 2]}, ("X",), name="outer", dtypes=WIDE),
            Sample({"X": rand(2, 3, 4)}, {attr: [1, -2]}, ("X",), name="twice"),
            Sample({"X": rand(40, 70)}, {attr: [0, 1]}, name="all"),
            Sample({"X": rand(4)}, {attr: [0]}, ("X",), name="vector"),
            Sample({"X": ints(5)}, {attr: [0]}, name="int64", dtypes=("int64",)),
            Sample({"X": bools(5)}, {attr: [0]}, name="bool", dtypes=("bool",)),
            Sample({"X": rand(0, 3)}, {attr: [1]}, name="empty"),
        ],
        doc=f"Out = X, its dims in {attr} in reverse order",
        source=f"Fluid {type}_op.cc",
    )


_register_reverse("reverse", "axis", shares_lod=False)
_register_reverse("flip", "dims", shares_lod=True)

# roll --------------------------------------------------------------------------------------------------------------

_ROLL_ATTRS = (
    Attr("shifts", "ints", (), doc="how far each dim is rolled, towards its end"),
    Attr("dims", "ints", (), doc="the dims that are rolled; none, and one shift: X as one row"),
)


def _infer_roll(call: Call) -> Inferred:
    x, shifts, dims = call.spec("X"), call.attr("shifts"), call.attr("dims")
    for axis in dims:
        normal_axis(call, "dims", axis, x.rank)
    if len(shifts) != len(dims) and (dims or len(shifts) != 1):
        call.fail_attr("shifts", f"{len(dims) or 1} numbers, one for each of dims")
    return {"Out": like(x)}


def _reference_roll(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    out, dims = inputs["X"], attrs["dims"]
    if not dims:
        return {"Out": np.roll(out, sum(attrs["shifts"]))}
    for axis, shift in zip(dims, attrs["shifts"], strict=True):
        out = np.roll(out, shift, axis)
    return {"Out": out}


def _decompose_back(attr: str, turn: Callable[[Any], Any]) -> Callable[[Call, Any], None]:
    def decompose(call: Call, build: Any) -> None:
        attrs = {**call.attrs, attr: turn(call.attr(attr))}
        forward = call.op.type.removesuffix("_grad")
        build(forward, {"X": build.input("Out@GRAD")}, {"Out": build.output("X@GRAD")}, attrs)

    return decompose


register_op(
    "roll",
    inputs=("X",),
    outputs=("Out",),
    attrs=_ROLL_ATTRS,
    infer=_infer_roll,
    grad=GradRule("roll_grad", ("X", "Out@GRAD"), ("X",)),
    dtypes={"X": ALL},
    reference=_reference_roll,
    samples=lambda: [
        Sample({"X": rand(4, 5)}, {"shifts": [1], "dims": [0]}, ("X",), name="rows", dtypes=EVERY),
        Sample({"X": rand(4, 5)}, {"shifts": [-2], "dims": [-1]}, ("X",), name="columns", dtypes=EVERY),
        Sample({"X": rand(3, 4, 5)}, {"shifts": [1, 7], "dims": [0, 2]}, ("X",), name="two", dtypes=WIDE),
        Sample({"X": rand(3, 4)}, {"shifts": [1, 1, -5], "dims": [1, 1, 0]}, ("X",), name="twice"),
        Sample({"X": rand(3, 4)}, {"shifts": [5]}, ("X",), name="as_a_row"),
        Sample({"X": rand(3, 4)}, {}, ("X",), name="nothing"),
        Sample({"X": rand(6)}, {"shifts": [6], "dims": [0]}, ("X",), name="whole"),
        Sample({"X": ints(5)}, {"shifts": [2], "dims": [0]}, name="int64", dtypes=("int64",)),
        Sample({"X": bools(5)}, {"shifts": [2], "dims": [0]}, name="bool", dtypes=("bool",)),
        Sample({"X": rand(0, 3)}, {"shifts": [1, 1], "dims": [0, 1]}, name="empty"),
    ],
    doc="Out = X, each of dims rolled: what leaves it at one end comes in at the other",
    source="Fluid roll_op.cc",
)

register_op(
    "roll_grad",
    inputs=grad_inputs("X", "Out@GRAD", meta=("X",)),
    outputs=grad_outputs("X"),
    attrs=_ROLL_ATTRS,
    infer=grad_like("X"),
    decompose=_decompose_back("shifts", lambda shifts: [-shift for shift in shifts]),
    kernel_dtype="Out@GRAD",
    doc="X@GRAD = Out@GRAD, rolled back",
)

# tril_triu ---------------------------------------------------------------------------------------------------------

_TRIANGLE_ATTRS = (
    Attr("diagonal", "int", 0, doc="the last diagonal that is kept; 0: the main one, positive: above it"),
    Attr("lower", "bool", doc="whether the triangle below it is kept, else the one above"),
)


def _infer_triangle(call: Call) -> Inferred:
    call.need(call.spec("X").rank >= 2, "X", "rank 2 or more, a matrix or a batch of them")
    return {"Out": like(call.spec("X"))}


def _reference_triangle(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, diagonal = inputs["X"], attrs["diagonal"]
    out = np.zeros_like(x)
    for i, j in np.ndindex(x.shape[-2:]):
        if (j - i <= diagonal) if attrs["lower"] else (j - i >= diagonal):
            out[..., i, j] = x[..., i, j]
    return {"Out": out}


register_op(
    "tril_triu",
    inputs=("X",),
    outputs=("Out",),
    attrs=_TRIANGLE_ATTRS,
    infer=_infer_triangle,
    grad=GradRule("tril_triu_grad", ("Out@GRAD",), ("X",)),
    dtypes={"X": ALL},
    reference=_reference_triangle,
    samples=lambda: [
        Sample({"X": rand(4, 5)}, {"lower": True}, ("X",), name="lower", dtypes=EVERY),
        Sample({"X": rand(4, 5)}, {"lower": False}, ("X",), name="upper", dtypes=EVERY),
        Sample({"X": rand(2, 4, 3)}, {"lower": True, "diagonal": 1}, ("X",), name="lower_batch", dtypes=WIDE),
        Sample({"X": rand(2, 3, 4, 3)}, {"lower": False, "diagonal": -2}, ("X",), name="upper_batch"),
        Sample({"X": rand(3, 4)}, {"lower": True, "diagonal": -9}, ("X",), name="nothing"),
        Sample({"X": rand(3, 4)}, {"lower": True, "diagonal": 9}, ("X",), name="everything"),
        Sample({"X": np.asarray([[1, np.inf], [np.nan, 2]], "float32")}, {"lower": False}, name="not_finite"),
        Sample({"X": ints(3, 3)}, {"lower": False, "diagonal": 1}, name="int64", dtypes=("int64",)),
        Sample({"X": bools(3, 3)}, {"lower": True}, name="bool", dtypes=("bool",)),
        Sample({"X": rand(0, 3)}, {"lower": True}, name="empty"),
    ],
    doc="Out = X on and below (lower) or above a diagonal of each matrix, else 0",
    source="Fluid tril_triu_op.cc",
)

register_op(
    "tril_triu_grad",
    inputs=("Out@GRAD",),
    outputs=grad_outputs("X"),
    attrs=_TRIANGLE_ATTRS,
    infer=lambda call: {"X@GRAD": like(call.spec("Out@GRAD"))},
    decompose=_decompose_back("diagonal", lambda diagonal: diagonal),
    doc="X@GRAD = Out@GRAD where X was kept, else 0",
)
