"""norm (to length 1 along an axis), lrn (by neighbouring channels) and affine_channel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.operators.inference import (
    Inferred,
    agree,
    grad_inputs,
    grad_like,
    grad_outputs,
    like,
    normal_axis,
    same_dtype,
)
from fluidlite.operators.samples import EVERY, WIDE, rand

# norm --------------------------------------------------------------------------------------------------------------

_NORM_ATTRS = (
    Attr("axis", "int", doc="the axis along which lengths are measured; negative ones count from the end"),
    Attr("epsilon", "float", 1e-10, doc="is added to the sum of squares"),
)


def _infer_norm(call: Call) -> Inferred:
    x = call.spec("X")
    call.need(x.rank >= 1, "X", "a rank of 1 or more")
    axis = normal_axis(call, "axis", call.attr("axis"), x.rank)
    return {"Out": like(x), "Norm": like(x, (*x.dims[:axis], 1, *x.dims[axis + 1 :]))}


def _reference_norm(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x = inputs["X"]
    length = np.sqrt(np.sum(x * x, axis=attrs["axis"], keepdims=True) + attrs["epsilon"])
    return {"Out": x / length, "Norm": length}


register_op(
    "norm",
    inputs=("X",),
    outputs=(Slot("Norm", intermediate=True, content="the lengths; dim axis is 1"), "Out"),
    attrs=_NORM_ATTRS,
    infer=_infer_norm,
    grad=GradRule("norm_grad", ("X", "Norm", "Out@GRAD"), ("X",)),
    dtypes={"X": ALL_FLOATS},
    reference=_reference_norm,
    samples=lambda: [
        Sample({"X": rand(5, 7)}, {"axis": 1}, ("X",), name="rows", dtypes=EVERY),
        Sample({"X": rand(5, 7)}, {"axis": 0}, ("X",), name="columns", dtypes=EVERY),
        Sample({"X": rand(2, 5, 19)}, {"axis": 1}, ("X",), name="middle", dtypes=WIDE),
        Sample({"X": rand(2, 3, 4)}, {"axis": -1}, ("X",), name="last"),
        Sample({"X": rand(2, 3, 4)}, {"axis": -3, "epsilon": 0.5}, ("X",), name="epsilon"),
        Sample({"X": rand(6)}, {"axis": 0}, ("X",), name="vector"),
        Sample({"X": rand(40, 50)}, {"axis": 1}, name="long"),
        Sample({"X": rand(1, 1)}, {"axis": 1}, name="one"),
        Sample({"X": np.zeros((2, 3), "float32")}, {"axis": 1, "epsilon": 1e-4}, ("X",), name="zeros"),
        Sample({"X": rand(0, 3)}, {"axis": 1}, name="no_rows"),
        Sample({"X": rand(2, 0, 3)}, {"axis": 1}, name="empty_axis"),
    ],
    doc="Norm = sqrt(sum(X^2) + epsilon) over the axis; Out = X / Norm",
    source="Fluid norm_op.cc",
)

register_op(
    "norm_grad",
    inputs=grad_inputs("X", "Norm", "Out@GRAD"),
    outputs=grad_outputs("X"),
    attrs=_NORM_ATTRS,
    infer=grad_like("X"),
    doc="X@GRAD = (Out@GRAD - X sum(X Out@GRAD) / Norm^2) / Norm, the sum being over the axis",
)

# lrn ---------------------------------------------------------------------------------------------------------------

_LRN_ATTRS = (
    Attr("n", "int", 5, minimum=1, doc="how many channels take part, the one itself in their middle: an odd number"),
    Attr("k", "float", 2.0),
    Attr("alpha", "float", 1e-4),
    Attr("beta", "float", 0.75),
    Attr("data_format", "str", "AnyLayout", choices=("AnyLayout", "NCHW", "NHWC"), doc="channels are last in NHWC"),
)


def _infer_lrn(call: Call) -> Inferred:
    x = call.spec("X")
    call.need(x.rank == 4, "X", "a rank of 4: batch, channels, height and width")
    if call.attr("n") % 2 == 0:
        call.fail_attr("n", "an odd number")
    for name in ("k", "alpha", "beta"):
        if not call.attr(name) > 0:
            call.fail_attr(name, "a number above 0")
    return {"Out": like(x), "MidOut": like(x)}


def _reference_lrn(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, half = inputs["X"], attrs["n"] // 2
    axis = 3 if attrs["data_format"] == "NHWC" else 1
    middle = np.full(x.shape, attrs["k"])
    for c in range(x.shape[axis]):
        near = [j for j in range(x.shape[axis]) if abs(j - c) <= half]
        here = tuple(c if d == axis else slice(None) for d in range(4))
        middle[here] += attrs["alpha"] * np.sum(np.square(np.take(x, near, axis)), axis=axis)
    return {"Out": x / middle ** attrs["beta"], "MidOut": middle}


register_op(
    "lrn",
    inputs=("X",),
    outputs=("Out", Slot("MidOut", content="k + alpha times the sum of squares")),
    attrs=_LRN_ATTRS,
    infer=_infer_lrn,
    grad=GradRule("lrn_grad", ("X", "Out", "MidOut", "Out@GRAD"), ("X",)),
    dtypes={"X": ALL_FLOATS},
    reference=_reference_lrn,
    samples=lambda: [
        Sample({"X": rand(2, 7, 2, 3)}, {}, ("X",), name="images", dtypes=EVERY),
        Sample({"X": rand(2, 7, 2, 3, low=1, high=2)}, {"n": 3, "alpha": 0.5}, ("X",), name="three", dtypes=WIDE),
        Sample({"X": rand(2, 6, 2, 2)}, {"k": 0.5, "beta": 0.3, "alpha": 0.1}, ("X",), name="numbers"),
        Sample({"X": rand(2, 3, 2, 7)}, {"data_format": "NHWC", "alpha": 1.0}, ("X",), name="last", dtypes=EVERY),
        Sample({"X": rand(1, 4, 4, 5)}, {"data_format": "NCHW", "alpha": 1.0}, ("X",), name="first", dtypes=WIDE),
        Sample({"X": rand(1, 2, 2, 19)}, {"data_format": "NHWC", "alpha": 1.0}, ("X",), name="many_last", dtypes=WIDE),
        Sample({"X": rand(2, 3, 2, 2)}, {"n": 9, "alpha": 1.0}, ("X",), name="wider_than_the_channels"),
        Sample({"X": rand(2, 3, 2, 2)}, {"n": 1, "alpha": 1.0}, ("X",), name="itself"),
        Sample({"X": rand(0, 3, 2, 2)}, {}, name="no_samples"),
    ],
    doc="MidOut = k + alpha (the sum of X^2 over n neighbouring channels); Out = X MidOut^-beta",
    source="Fluid lrn_op.cc",
)

register_op(
    "lrn_grad",
    inputs=grad_inputs("X", "Out", "MidOut", "Out@GRAD"),
    outputs=grad_outputs("X"),
    attrs=_LRN_ATTRS,
    infer=grad_like("X"),
    doc="X@GRAD = Out@GRAD MidOut^-beta - 2 alpha beta X sum(Out Out@GRAD / MidOut), over n neighbouring channels",
)

# affine_channel ----------------------------------------------------------------------------------------------------

_AFFINE_ATTRS = (
    Attr("data_layout", "str", "AnyLayout", choices=("AnyLayout", "NCHW", "NHWC"), doc="channels are dim 1 in NCHW, "
         "else the last dim"),
)  # fmt: skip


def _channels(call: Call) -> int:
    """The axis of the channels."""
    return 1 if call.attr("data_layout") == "NCHW" else len(call.dims("X")) - 1


def _infer_affine(call: Call) -> Inferred:
    x = call.spec("X")
    call.need(x.rank >= 2, "X", "a rank of 2 or more, batch and channels among its dims")
    channels = x.dims[_channels(call)]
    for slot in ("Scale", "Bias"):
        same_dtype(call, slot, "X")
        dims = call.dims(slot)
        if len(dims) != 1 or not agree(dims[0], channels):
            call.fail(slot, f"[{channels if channels >= 0 else 'n'}], the number of channels of X")
    return {"Out": like(x)}


def _decompose_affine(call: Call, build: Any) -> None:
    scaled, axis = build.temp(), {"axis": _channels(call)}
    build("elementwise_mul", {"X": build.input("X"), "Y": build.input("Scale")}, {"Out": scaled}, axis)
    build("elementwise_add", {"X": scaled, "Y": build.input("Bias")}, {"Out": build.output("Out")}, axis)


def _decompose_affine_grad(call: Call, build: Any) -> None:
    axis, given = _channels(call), build.input("Out@GRAD")
    wanted = {"X@GRAD": "X@GRAD", "Scale@GRAD": "Y@GRAD"}
    outputs = {slot: build.output(grad) for grad, slot in wanted.items() if call.has(grad)}
    if outputs:
        inputs = {"X": build.input("X"), "Y": build.input("Scale"), "Out@GRAD": given}
        build("elementwise_mul_grad", inputs, outputs, {"axis": axis})
    if call.has("Bias@GRAD"):
        others = [d for d in range(len(call.dims("X"))) if d != axis]
        build("reduce_sum", {"X": given}, {"Out": build.output("Bias@GRAD")}, {"dim": others})


def _reference_affine(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x = inputs["X"]
    letters = "abcde"[: x.ndim]
    channel = letters[1] if attrs["data_layout"] == "NCHW" else letters[-1]
    ones = np.ones(x.shape)
    out = np.einsum(f"{letters},{channel}->{letters}", x, inputs["Scale"])
    return {"Out": out + np.einsum(f"{letters},{channel}->{letters}", ones, inputs["Bias"])}


def _affine(*dims: int, axis: int) -> dict[str, Any]:
    return {"X": rand(*dims), "Scale": rand(dims[axis], seed=1), "Bias": rand(dims[axis], seed=2)}


_AFFINE_GRADS = ("X", "Scale", "Bias")
_FIRST: dict[str, Any] = {"data_layout": "NCHW"}

register_op(
    "affine_channel",
    inputs=("X", "Scale", "Bias"),
    outputs=("Out",),
    attrs=_AFFINE_ATTRS,
    infer=_infer_affine,
    grad=GradRule("affine_channel_grad", ("X", "Scale", "Out@GRAD"), _AFFINE_GRADS),
    decompose=_decompose_affine,
    dtypes={"X": ALL_FLOATS},
    reference=_reference_affine,
    samples=lambda: [
        Sample(_affine(2, 3, 4, 5, axis=1), _FIRST, _AFFINE_GRADS, name="first", dtypes=EVERY),
        Sample(_affine(2, 4, 5, 3, axis=3), {"data_layout": "NHWC"}, _AFFINE_GRADS, name="last", dtypes=WIDE),
        Sample(_affine(2, 4, 5, 3, axis=3), {}, _AFFINE_GRADS, name="any"),
        Sample(_affine(4, 3, axis=1), _FIRST, _AFFINE_GRADS, name="matrix"),
        Sample(_affine(0, 3, 2, 2, axis=1), _FIRST, name="no_samples"),
    ],
    doc="Out = Scale X + Bias, channel by channel",
    source="Fluid affine_channel_op.cc",
)


register_op(
    "affine_channel_grad",
    inputs=grad_inputs("X", "Scale", "Out@GRAD"),
    outputs=grad_outputs(*_AFFINE_GRADS),
    attrs=_AFFINE_ATTRS,
    infer=lambda call: {
        "X@GRAD": like(call.spec("X")), "Scale@GRAD": like(call.spec("Scale")), "Bias@GRAD": like(call.spec("Scale")),
    },
    decompose=_decompose_affine_grad,
    doc="X@GRAD = Scale Out@GRAD; Scale@GRAD = sum(X Out@GRAD) and Bias@GRAD = sum(Out@GRAD) over each channel",
    memory="where arrays compute, X Out@GRAD before its sum: as much as X, twice",
)  # fmt: skip
