"""layer_norm, group_norm and instance_norm: a part of each sample gets mean 0 and variance 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, HALVES, NUMPY, compute_dtype
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import Inferred, agree, grad_outputs, like, size
from fluidlite.operators.samples import MIXED, WIDE, rand

Array = np.ndarray[Any, Any]

CHANNELS = "the number of channels of X"
_OPTIONAL = (Slot("Scale", dispensable=True), Slot("Bias", dispensable=True))


def check_parameter(call: Call, slot: str, length: int, what: str) -> None:
    """Raise unless a slot, if given, is [length] in the dtype in which X is computed."""
    if not call.has(slot):
        return
    wide = compute_dtype(call.dtype("X"))
    if call.dtype(slot) != wide:
        call.fail_dtype(slot, f"{wide}: X is {call.dtype('X')}", do="use layers.cast on it")
    dims = call.dims(slot)
    if len(dims) != 1 or not agree(dims[0], length):
        call.fail(slot, f"[{length if length >= 0 else 'n'}], {what}")


def channel_axis(call: Call, low: int = 2, high: int = 5) -> int:
    """Return the axis of the channels of X, whose rank must lie in [low, high]."""
    rank = len(call.dims("X"))
    ranks = f"a rank of {low} to {high}" if high < 99 else f"a rank of {low} or more"
    call.need(low <= rank <= high, "X", ranks + ", batch and channels among its dims")
    return rank - 1 if call.attrs.get("data_layout") == "NHWC" else 1


def _graded(*names: str) -> tuple[Slot, ...]:
    """The gradient's inputs: Scale and Bias may be left out, and of Bias only the dims count."""
    dispensable = {"Scale": Slot("Scale", dispensable=True), "Bias": Slot("Bias", dispensable=True, metadata_only=True)}
    return tuple(dispensable.get(name, Slot(name)) for name in names)


def _infer_grad(call: Call) -> Inferred:
    x = call.spec("X")
    parameter = Spec.of((_parameter_size(call),), compute_dtype(x.dtype))
    return {"X@GRAD": like(x), "Scale@GRAD": parameter, "Bias@GRAD": parameter}


def _parameter_size(call: Call) -> int:
    dims = call.dims("X")
    if call.attrs.get("begin_norm_axis") is not None:
        return size(dims[call.attr("begin_norm_axis") :])
    return dims[channel_axis(call, high=99)]


def _normalised(x: Array, inputs: Mapping[str, Any], epsilon: float, param: tuple[int, ...]) -> tuple[Array, ...]:
    """Rows of a matrix normalised, then scaled and shifted in the shape of ``param``; with mean and variance."""
    mean = x.mean(axis=1)
    variance = ((x - mean[:, None]) ** 2).mean(axis=1)
    y = ((x.T - mean) / np.sqrt(variance + epsilon)).T.reshape(-1, *param)
    scale, bias = inputs.get("Scale"), inputs.get("Bias")
    y = y if scale is None else y * scale.reshape(param)
    return (y if bias is None else y + bias.reshape(param)), mean, variance


def _inputs(dims: tuple[int, ...], length: int, parts: str = "sb", dtype: str = "float32", **options: Any) -> Any:
    """X of a dtype, and the parameters that ``parts`` names (s: Scale, b: Bias), which are float32."""
    found = {"X": rand(*dims, seed=len(dims), **options).astype(NUMPY[dtype])}
    if "s" in parts:
        found["Scale"] = rand(length, low=0.5, high=1.5, seed=11)
    if "b" in parts:
        found["Bias"] = rand(length, seed=12)
    return found


_GRADS = ("X", "Scale", "Bias")
FAR: dict[str, Any] = {"low": 998.3, "high": 1001.7}
"""Numbers of mean 1000 and deviation 1: their squares do not differ enough to be subtracted in float32."""

# layer_norm --------------------------------------------------------------------------------------------------------

_LAYER_ATTRS = (
    Attr("epsilon", "float", 1e-5, minimum=0.0, maximum=0.001, doc="is added to the variance"),
    Attr("begin_norm_axis", "int", 1, minimum=1, doc="dims from this one on are normalised together"),
)


def _infer_layer_norm(call: Call) -> Inferred:
    x, begin = call.spec("X"), call.attr("begin_norm_axis")
    call.need(x.rank >= 2, "X", "a rank of 2 or more")
    if begin >= x.rank:
        call.fail_attr("begin_norm_axis", f"a dim of X after the first, 1 to {x.rank - 1}: X is {call.shown('X')}")
    rows, length = size(x.dims[:begin]), size(x.dims[begin:])
    call.need(length != 0, "X", f"at least one element to normalise from dim {begin} on")
    for slot in ("Scale", "Bias"):
        check_parameter(call, slot, length, f"the elements of X from dim {begin} on")
    statistic = Spec.of((rows,), compute_dtype(x.dtype))
    return {"Y": like(x), "Mean": statistic, "Variance": statistic}


def _reference_layer_norm(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, begin = np.asarray(inputs["X"], "float64"), attrs["begin_norm_axis"]
    length = int(np.prod(x.shape[begin:]))
    y, mean, variance = _normalised(x.reshape(-1, length), inputs, attrs["epsilon"], (length,))
    return {"Y": y.reshape(x.shape), "Mean": mean, "Variance": variance}


register_op(
    "layer_norm",
    inputs=("X", *_OPTIONAL),
    outputs=(
        "Y",
        Slot("Mean", intermediate=True, content="the mean of each row"),
        Slot("Variance", intermediate=True, content="the variance of each row, without epsilon"),
    ),
    attrs=_LAYER_ATTRS,
    infer=_infer_layer_norm,
    grad=GradRule("layer_norm_grad", ("X", "Scale", "Bias", "Mean", "Variance", "Y@GRAD"), _GRADS),
    dtypes={"X": ALL_FLOATS},
    reference=_reference_layer_norm,
    samples=lambda: [
        Sample(_inputs((5, 7), 7), {}, _GRADS, name="matrix", dtypes=WIDE),
        Sample(_inputs((2, 3, 4), 12), {}, _GRADS, name="two_dims"),
        Sample(_inputs((2, 3, 4), 4), {"begin_norm_axis": 2}, _GRADS, name="last", dtypes=WIDE),
        Sample(_inputs((4, 6), 6, low=-0.02, high=0.02), {"epsilon": 1e-3}, _GRADS, name="epsilon", dtypes=WIDE),
        Sample(_inputs((3, 5), 5, "s"), {}, ("X", "Scale"), name="no_bias"),
        Sample(_inputs((3, 5), 5, "b"), {}, ("X", "Bias"), name="no_scale"),
        Sample(_inputs((3, 5), 5, ""), {}, ("X",), name="neither"),
        Sample(_inputs((3, 5), 5), {}, name="y_only", outputs=("Y",)),
        Sample(_inputs((3, 40), 40, **FAR), {}, name="far", dtypes=WIDE),
        Sample(_inputs((4, 35), 35), {}, _GRADS, name="wide", dtypes=WIDE),
        Sample(_inputs((70, 33), 33), {}, name="many"),
        Sample(_inputs((3, 1), 1), {}, name="one_element"),
        Sample(_inputs((0, 3), 3), {}, name="no_rows"),
        *(Sample(_inputs((5, 7), 7, dtype=half), {}, _GRADS, name=half, dtypes=MIXED) for half in HALVES),
    ],
    doc="Y = (X - Mean) / sqrt(Variance + epsilon) Scale + Bias, over the dims from begin_norm_axis on",
    source="Fluid layer_norm_op.cc",
)

register_op(
    "layer_norm_grad",
    inputs=_graded("X", "Scale", "Bias", "Mean", "Variance", "Y@GRAD"),
    outputs=grad_outputs(*_GRADS),
    attrs=_LAYER_ATTRS,
    infer=_infer_grad,
    doc="with D = (X - Mean) / sqrt(Variance + epsilon) and G = Y@GRAD Scale: "
    "X@GRAD = (G - mean(G) - D mean(G D)) / sqrt(Variance + epsilon); Scale@GRAD = sum(Y@GRAD D) and "
    "Bias@GRAD = sum(Y@GRAD) over the rows",
)

# group_norm --------------------------------------------------------------------------------------------------------

_GROUP_ATTRS = (
    Attr("epsilon", "float", 1e-5, minimum=0.0, maximum=1.0, doc="is added to the variance"),
    Attr("groups", "int", minimum=1, doc="how many groups the channels form; it divides their number"),
    Attr("data_layout", "str", "NCHW", choices=("NCHW", "NHWC"), doc="channels are dim 1, or the last dim"),
)


def _infer_group_norm(call: Call) -> Inferred:
    x, groups = call.spec("X"), call.attr("groups")
    channels = x.dims[channel_axis(call, high=99)]
    if channels >= 0 and (channels % groups or not channels):
        call.fail_attr("groups", f"a divisor of {CHANNELS}, {channels}")
    call.need(0 not in x.dims[1:], "X", "at least one element to normalise in each sample")
    for slot in ("Scale", "Bias"):
        check_parameter(call, slot, channels, CHANNELS)
    statistic = Spec.of((x.dims[0], groups), compute_dtype(x.dtype))
    return {"Y": like(x), "Mean": statistic, "Variance": statistic}


def _reference_group_norm(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, groups = np.asarray(inputs["X"], "float64"), attrs["groups"]
    first = np.moveaxis(x, -1, 1) if attrs["data_layout"] == "NHWC" else x
    batch, channels = first.shape[:2]
    rows = first.reshape(batch * groups, int(np.prod(first.shape[1:])) // groups)
    plain, mean, variance = _normalised(rows, {}, attrs["epsilon"], rows.shape[1:])
    param = (channels, *[1] * (x.ndim - 2))
    y = plain.reshape(first.shape)
    y = y * inputs["Scale"].reshape(param) if "Scale" in inputs else y
    y = y + inputs["Bias"].reshape(param) if "Bias" in inputs else y
    y = np.moveaxis(y, 1, -1) if attrs["data_layout"] == "NHWC" else y
    return {"Y": y, "Mean": mean.reshape(batch, groups), "Variance": variance.reshape(batch, groups)}


_LAST: dict[str, Any] = {"groups": 2, "data_layout": "NHWC"}

register_op(
    "group_norm",
    inputs=("X", *_OPTIONAL),
    outputs=(
        "Y",
        Slot("Mean", intermediate=True, content="the mean of each group, [batch, groups]"),
        Slot("Variance", intermediate=True, content="the variance of each group, without epsilon"),
    ),
    attrs=_GROUP_ATTRS,
    infer=_infer_group_norm,
    grad=GradRule("group_norm_grad", ("X", "Scale", "Bias", "Mean", "Variance", "Y@GRAD"), _GRADS),
    dtypes={"X": ALL_FLOATS},
    reference=_reference_group_norm,
    samples=lambda: [
        Sample(_inputs((2, 4, 3, 2), 4), {"groups": 2}, _GRADS, name="first", dtypes=WIDE),
        Sample(_inputs((2, 3, 2, 4), 4), _LAST, _GRADS, name="last", dtypes=WIDE),
        Sample(_inputs((2, 4, 3), 4), {"groups": 1}, _GRADS, name="one_group"),
        Sample(_inputs((2, 3, 5), 3), {"groups": 3}, _GRADS, name="a_group_each"),
        Sample(_inputs((3, 6), 6), {"groups": 2}, _GRADS, name="matrix"),
        Sample(_inputs((2, 3, 2, 2, 2), 3), {"groups": 1, "epsilon": 0.5}, _GRADS, name="epsilon", dtypes=WIDE),
        Sample(_inputs((2, 4, 3), 4, "s"), {"groups": 2}, ("X", "Scale"), name="no_bias"),
        Sample(_inputs((2, 4, 3), 4, "b"), {"groups": 2}, ("X", "Bias"), name="no_scale"),
        Sample(_inputs((2, 3, 4), 4, ""), _LAST, ("X",), name="neither_last"),
        Sample(_inputs((2, 4, 5, 4), 4, **FAR), {"groups": 2}, name="far", dtypes=WIDE),
        Sample(_inputs((2, 5, 4, 40), 40, **FAR), _LAST, name="far_last", dtypes=WIDE),
        Sample(_inputs((2, 2, 18), 18), _LAST, _GRADS, name="many_last", dtypes=WIDE),
        Sample(_inputs((1, 4, 17), 4), {"groups": 2}, _GRADS, name="long", dtypes=WIDE),
        Sample(_inputs((2, 4, 5, 7), 4), {"groups": 2}, name="y_only", outputs=("Y",)),
        Sample(_inputs((0, 4, 3), 4), {"groups": 2}, name="no_samples"),
        *(Sample(_inputs((2, 4, 5), 4, dtype=half), {"groups": 2}, _GRADS, name=half, dtypes=MIXED) for half in HALVES),
        Sample(_inputs((2, 5, 4), 4, dtype="float16"), _LAST, _GRADS, name="half_last", dtypes=MIXED),
    ],
    doc="Y = (X - Mean) / sqrt(Variance + epsilon) Scale + Bias, over each group of channels of each sample",
    source="Fluid group_norm_op.cc",
)

register_op(
    "group_norm_grad",
    inputs=_graded("X", "Scale", "Bias", "Mean", "Variance", "Y@GRAD"),
    outputs=grad_outputs(*_GRADS),
    attrs=_GROUP_ATTRS,
    infer=_infer_grad,
    doc="as layer_norm_grad, over each group; Scale@GRAD and Bias@GRAD are sums over each channel",
)

# instance_norm -----------------------------------------------------------------------------------------------------

_INSTANCE_ATTRS = (Attr("epsilon", "float", 1e-5, minimum=0.0, maximum=0.001, doc="is added to the variance"),)


def _infer_instance_norm(call: Call) -> Inferred:
    x = call.spec("X")
    channels = x.dims[channel_axis(call)]
    call.need(0 not in x.dims[2:], "X", "at least one element to normalise in each channel")
    for slot in ("Scale", "Bias"):
        check_parameter(call, slot, channels, CHANNELS)
    statistic = Spec.of((size(x.dims[:2]),), compute_dtype(x.dtype))
    return {"Y": like(x), "SavedMean": statistic, "SavedVariance": statistic}


def _reference_instance_norm(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    found = _reference_group_norm(inputs, {**attrs, "groups": inputs["X"].shape[1], "data_layout": "NCHW"})
    deviation = np.sqrt(found["Variance"].reshape(-1) + attrs["epsilon"])
    return {"Y": found["Y"], "SavedMean": found["Mean"].reshape(-1), "SavedVariance": 1 / deviation}


register_op(
    "instance_norm",
    inputs=("X", *_OPTIONAL),
    outputs=(
        "Y",
        Slot("SavedMean", intermediate=True, content="the mean of each channel of each sample"),
        Slot("SavedVariance", intermediate=True, content="1 / sqrt(variance + epsilon) of the same"),
    ),
    attrs=_INSTANCE_ATTRS,
    infer=_infer_instance_norm,
    grad=GradRule("instance_norm_grad", ("X", "Scale", "SavedMean", "SavedVariance", "Y@GRAD"), _GRADS),
    dtypes={"X": ALL_FLOATS},
    reference=_reference_instance_norm,
    samples=lambda: [
        Sample(_inputs((2, 3, 4, 2), 3), {}, _GRADS, name="images", dtypes=WIDE),
        Sample(_inputs((2, 3, 18), 3), {}, _GRADS, name="rank3"),
        Sample(_inputs((2, 3, 2, 2, 2), 3), {"epsilon": 1e-3}, _GRADS, name="rank5"),
        Sample(_inputs((3, 2), 2), {}, ("Scale", "Bias"), name="matrix"),
        Sample(_inputs((2, 2, 4), 2, low=-0.02, high=0.02), {"epsilon": 1e-3}, _GRADS, name="epsilon", dtypes=WIDE),
        Sample(_inputs((2, 3, 4), 3, ""), {}, ("X",), name="neither"),
        Sample(_inputs((2, 3, 40), 3, **FAR), {}, name="far", dtypes=WIDE),
        Sample(_inputs((0, 3, 4), 3), {}, name="no_samples"),
        *(Sample(_inputs((2, 3, 5), 3, dtype=half), {}, _GRADS, name=half, dtypes=MIXED) for half in HALVES),
    ],
    doc="Y = (X - mean) / sqrt(variance + epsilon) Scale + Bias, over each channel of each sample",
    source="Fluid instance_norm_op.cc",
)

register_op(
    "instance_norm_grad",
    inputs=_graded("X", "Scale", "SavedMean", "SavedVariance", "Y@GRAD"),
    outputs=grad_outputs(*_GRADS),
    attrs=_INSTANCE_ATTRS,
    infer=_infer_grad,
    doc="as layer_norm_grad, over each channel of each sample; Scale@GRAD and Bias@GRAD are sums over each channel",
)
