"""batch_norm: each channel gets mean 0 and variance 1 over the batch, or by averages of earlier batches."""

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
from fluidlite.operators.layer_norm import CHANNELS, FAR, channel_axis, check_parameter
from fluidlite.operators.samples import MIXED, WIDE, rand
from fluidlite.operators.windows import channels_to_end

_ATTRS = (
    Attr("is_test", "bool", False, doc="use Mean and Variance; clone(for_test=True) sets it"),
    Attr("momentum", "float", 0.9, doc="what is kept of Mean and Variance"),
    Attr("epsilon", "float", 1e-5, minimum=0.0, maximum=0.001, doc="is added to the variance"),
    Attr("data_layout", "str", "NCHW", choices=("NCHW", "NHWC"), doc="channels are dim 1, or the last dim"),
    Attr("use_global_stats", "bool", False, doc="use Mean and Variance in training too"),
    Attr("trainable_statistics", "bool", False, doc="use the batch's statistics even if is_test"),
)


def _uses_averages(attrs: Mapping[str, Any]) -> bool:
    """Whether Mean and Variance normalise, and are left as they are."""
    return bool(attrs["use_global_stats"] or (attrs["is_test"] and not attrs["trainable_statistics"]))


def _infer(call: Call) -> Inferred:
    x = call.spec("X")
    axis = channel_axis(call)
    for slot in ("Scale", "Bias", "Mean", "Variance"):
        check_parameter(call, slot, x.dims[axis], CHANNELS)
    if call.has("MomentumTensor"):
        known = ("float32", compute_dtype(x.dtype))
        if call.dtype("MomentumTensor") not in known:
            call.fail_dtype("MomentumTensor", known)
        call.need(agree(size(call.dims("MomentumTensor")), 1), "MomentumTensor", "one element, [1]")
    if not _uses_averages(call.attrs):
        each = x.dims[:axis] + x.dims[axis + 1 :]
        do = "feed at least one sample, or set use_global_stats"
        call.need(0 not in each, "X", "at least one element a channel: an empty batch has no mean", do=do)
    channel = Spec.of((x.dims[axis],), compute_dtype(x.dtype))
    return {
        "Y": like(x), "MeanOut": like(call.spec("Mean")), "VarianceOut": like(call.spec("Variance")),
        "SavedMean": channel, "SavedVariance": channel, "ReserveSpace": Spec.of((0,), x.dtype),
    }  # fmt: skip


def _reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, old_mean, old_variance = np.asarray(inputs["X"], "float64"), inputs["Mean"], inputs["Variance"]
    last = x if attrs["data_layout"] == "NHWC" else np.moveaxis(x, 1, -1)
    rows = last.reshape(-1, last.shape[-1])
    kept = inputs["MomentumTensor"][0] if "MomentumTensor" in inputs else attrs["momentum"]
    if _uses_averages(attrs):
        mean, variance = old_mean, old_variance
        new_mean, new_variance = old_mean, old_variance
    elif len(rows) == 1:  # Fluid: nothing to normalise by
        nothing = np.zeros_like(old_mean)
        return {
            "Y": x, "MeanOut": old_mean, "VarianceOut": old_variance, "SavedMean": nothing, "SavedVariance": nothing,
            "ReserveSpace": np.zeros(0),
        }  # fmt: skip
    else:
        mean, variance = rows.mean(axis=0), rows.var(axis=0)
        new_mean, new_variance = kept * old_mean + (1 - kept) * mean, kept * old_variance + (1 - kept) * variance
    inverse = 1 / np.sqrt(variance + attrs["epsilon"])
    y = ((rows - mean) * inverse * inputs["Scale"] + inputs["Bias"]).reshape(last.shape)
    return {
        "Y": y if attrs["data_layout"] == "NHWC" else np.moveaxis(y, -1, 1),
        "MeanOut": new_mean, "VarianceOut": new_variance, "SavedMean": mean, "SavedVariance": inverse,
        "ReserveSpace": np.zeros(0),
    }  # fmt: skip


def _inputs(*dims: int, last: bool = False, dtype: str = "float32", kept: float | None = None, **options: Any) -> Any:
    """X of a dtype and float32 parameters; ``kept`` gives a MomentumTensor."""
    channels = dims[-1] if last else dims[1]
    found = {
        "X": rand(*dims, seed=len(dims), **options).astype(NUMPY[dtype]),
        "Scale": rand(channels, low=0.5, high=1.5, seed=21),
        "Bias": rand(channels, seed=22),
        "Mean": rand(channels, seed=23),
        "Variance": rand(channels, low=0.5, high=2.0, seed=24),
    }
    if kept is not None:
        found["MomentumTensor"] = np.asarray([kept], "float32")
    return found


_GRADS = ("X", "Scale", "Bias")
_READ = ("X", "Scale", "Bias", "Mean", "Variance", "SavedMean", "SavedVariance", "Y@GRAD")
_UNREAD = ("Bias", "Mean", "Variance")
"""Inputs of Fluid's gradient whose numbers it does not need: what normalised is saved."""
_LAST: dict[str, Any] = {"data_layout": "NHWC"}
_GLOBAL: dict[str, Any] = {"use_global_stats": True}
_TEST: dict[str, Any] = {"is_test": True}

register_op(
    "batch_norm",
    inputs=(
        "X",
        "Scale",
        "Bias",
        "Mean",
        "Variance",
        Slot("MomentumTensor", dispensable=True, doc="the momentum, [1]; it wins"),
    ),
    outputs=(
        "Y",
        "MeanOut",
        "VarianceOut",
        Slot("SavedMean", intermediate=True, content="the mean that normalised; 0 if a channel has one element"),
        Slot("SavedVariance", intermediate=True, content="1 / sqrt(variance + epsilon) of the same; 0 in that case"),
        Slot("ReserveSpace", dispensable=True, intermediate=True, content="nothing: it has no elements"),
    ),
    attrs=_ATTRS,
    infer=_infer,
    grad=GradRule("batch_norm_grad", _READ, _GRADS),
    must_alias={"MeanOut": "Mean", "VarianceOut": "Variance"},
    dtypes={"X": ALL_FLOATS},
    in_layout=channels_to_end("X", "Y", name="data_layout"),
    reference=_reference,
    samples=lambda: [
        Sample(_inputs(3, 4, 2, 3), {}, _GRADS, name="images", dtypes=WIDE),
        Sample(_inputs(3, 2, 3, 4, last=True), _LAST, _GRADS, name="images_last", dtypes=WIDE),
        Sample(_inputs(6, 5), {}, _GRADS, name="matrix", dtypes=WIDE),
        Sample(_inputs(6, 5, last=True), _LAST, _GRADS, name="matrix_last"),
        Sample(_inputs(2, 3, 18), {}, _GRADS, name="rank3", dtypes=WIDE),
        Sample(_inputs(2, 3, 2, 1, 3), {"momentum": 0.5}, _GRADS, name="rank5", dtypes=WIDE),
        Sample(_inputs(5, 2, low=-0.02, high=0.02), {"epsilon": 1e-3}, _GRADS, name="epsilon", dtypes=WIDE),
        Sample(_inputs(4, 3, 2, kept=0.25), {}, _GRADS, name="momentum_tensor"),
        Sample(_inputs(3, 4, 2, 3), _GLOBAL, _GRADS, name="global", dtypes=WIDE),
        Sample(_inputs(3, 2, 20, last=True), {**_GLOBAL, **_LAST}, _GRADS, name="global_last", dtypes=WIDE),
        Sample(_inputs(3, 4, 2, 3), _TEST, _GRADS, name="test", dtypes=WIDE),
        Sample(_inputs(5, 4), _TEST, _GRADS, name="test_matrix"),
        Sample(_inputs(3, 4, 5), {**_TEST, "trainable_statistics": True}, _GRADS, name="trainable"),
        Sample(_inputs(3, 4, 5), {}, name="y_only", outputs=("Y",)),
        Sample(_inputs(1, 3), {}, _GRADS, name="one_element"),
        Sample(_inputs(1, 3, 1, 1), {}, _GRADS, name="one_pixel"),
        Sample(_inputs(3, 2, 5, 4, **FAR), {}, name="far", dtypes=WIDE),
        Sample(_inputs(60, 19, **FAR), {}, name="far_matrix", dtypes=WIDE),
        Sample(_inputs(2, 3, 21, last=True, low=-3.0), _LAST, _GRADS, name="wide_last", dtypes=WIDE),
        Sample(_inputs(0, 3, 2), _TEST, name="no_samples"),
        Sample(_inputs(0, 3), _GLOBAL, name="no_rows"),
        *(Sample(_inputs(3, 4, 5, dtype=half), {}, _GRADS, name=half, dtypes=MIXED) for half in HALVES),
        Sample(_inputs(6, 4, dtype="float16"), {}, _GRADS, name="half_matrix", dtypes=MIXED),
        Sample(_inputs(3, 4, 5, dtype="bfloat16"), _GLOBAL, _GRADS, name="half_global", dtypes=MIXED),
    ],
    doc="Y = (X - mean) / sqrt(variance + epsilon) Scale + Bias with each channel's mean and variance over the batch; "
    "MeanOut = momentum Mean + (1 - momentum) mean, VarianceOut likewise. If is_test or use_global_stats: with Mean "
    "and Variance, which stay",
    source="Fluid batch_norm_op.cc",
)


def _infer_grad(call: Call) -> Inferred:
    x = call.spec("X")
    channel = Spec.of((x.dims[channel_axis(call)],), compute_dtype(x.dtype))
    return {"X@GRAD": like(x), "Scale@GRAD": channel, "Bias@GRAD": channel}


register_op(
    "batch_norm_grad",
    inputs=tuple(Slot(name, dispensable=name in _UNREAD, metadata_only=name in _UNREAD) for name in _READ),
    outputs=grad_outputs(*_GRADS),
    attrs=_ATTRS,
    infer=_infer_grad,
    in_layout=channels_to_end("X", "Y@GRAD", "X@GRAD", name="data_layout"),
    doc="with D = (X - SavedMean) SavedVariance: Scale@GRAD = sum(Y@GRAD D), Bias@GRAD = sum(Y@GRAD) over each "
    "channel; X@GRAD = Scale SavedVariance (Y@GRAD - mean(Y@GRAD) - D mean(Y@GRAD D)), or Scale SavedVariance Y@GRAD "
    "if is_test or use_global_stats. Bias, Mean and Variance are taken for Fluid's sake",
)
