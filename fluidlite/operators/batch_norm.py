"""batch_norm: normalise each channel by the statistics of the batch, or by their moving averages."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, compute_dtype
from fluidlite.expr.declare import gradient, operator
from fluidlite.operators.layer_norm import (
    CHANNELS,
    GRADS,
    channel_axis,
    check_parameters,
    gradients,
    normalised,
)
from fluidlite.operators.windows import channels_to_end
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Aliasing, Differentiation, Lowering
from fluidlite.program.rules import AS_COMPUTED

_ATTRS = (
    Attr("is_test", "bool", False, doc="use Mean and Variance; clone(for_test=True) sets it"),
    Attr("momentum", "float", 0.9, doc="weight of the old Mean and Variance in the moving averages"),
    Attr("epsilon", "float", 1e-5, minimum=0.0, maximum=0.001, doc="is added to the variance"),
    Attr("data_layout", "str", "NCHW", choices=("NCHW", "NHWC"), doc="channels are dim 1, or the last dim"),
    Attr("use_global_stats", "bool", False, doc="use Mean and Variance in training too"),
    Attr("trainable_statistics", "bool", False, doc="use the batch's statistics even if is_test"),
)
_UNREAD_INPUTS = ("Bias", "Mean", "Variance")
"""Inputs of Fluid's gradient operator whose values it does not read: it reads SavedMean and SavedVariance."""


class _ChannelView:
    """A view of X with one channel axis: its dims, its reduced axes, and the parameters' shape."""

    def __init__(self, x: e.Tensor, data_layout: str) -> None:
        self.axis = channel_axis(x, data_layout)
        self.channels = x.dims[self.axis]
        self.other_dims = [d for k, d in enumerate(x.dims) if k != self.axis]
        self.dims: Sequence[e.Number]
        self.axes: Sequence[int]
        self.shape: Sequence[e.Number | int]
        if self.axis == x.rank - 1:
            self.dims, self.axes, self.shape = (e.product(self.other_dims), self.channels), (0,), (1, self.channels)
        else:
            self.dims, self.axes = (x.dims[0], self.channels, e.product(x.dims[2:])), (0, 2)
            self.shape = (1, self.channels, 1)

    @property
    def has_one_element(self) -> bool:
        """Whether each channel has one element, so that its variance is 0."""
        return bool(e.product(self.other_dims) == 1)

    def as_vector(self, x: e.Tensor) -> e.Tensor:
        """One value for each channel, as [channels]."""
        return e.reshape(x, (self.channels,))


def _uses_averages(is_test: bool, use_global_stats: bool, trainable_statistics: bool) -> bool:
    """Whether X is normalised by Mean and Variance, which are not updated then."""
    return use_global_stats or (is_test and not trainable_statistics)


def _momentum(x: e.Tensor, momentum: float, tensor: e.Tensor | None) -> e.Tensor | float:
    if tensor is None:
        return momentum
    wide = compute_dtype(x.dtype)
    if tensor.dtype not in ("float32", wide):
        e.fail_dtype("MomentumTensor", " or ".join(dict.fromkeys(("float32", wide))))
    e.need(e.product(tensor.dims) == 1, "MomentumTensor", "one element, [1]")
    return e.cast(e.reshape(tensor, (1,)), wide)


@operator(
    "batch_norm",
    Differentiation(
        stop_gradient={"MomentumTensor": "it only moves the moving statistics"},
        no_gradient=dict.fromkeys(
            ("Mean", "Variance"),
            "normalise with the operators of layers, or set its stop_gradient, as layers.batch_norm does",
        ),
    ),
    Aliasing(must={"MeanOut": "Mean", "VarianceOut": "Variance"}),
    Lowering(
        stored=dict.fromkeys(("MeanOut", "VarianceOut", "SavedMean", "SavedVariance"), AS_COMPUTED),
        in_layout=channels_to_end("X", "Y", name="data_layout"),
    ),
    inputs=(
        Slot(
            "X",
            doc="[batch, channels, ...], or channels last if data_layout is NHWC; of rank 2 to 5. "
            "Floating; of half types the parameters are float32",
        ),
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
    dtypes={"X": ALL_FLOATS},
    source="Fluid batch_norm_op.cc",
    doc="Y = (X - mean) / sqrt(variance + epsilon) Scale + Bias with each channel's mean and variance over the batch; "
    "MeanOut = momentum Mean + (1 - momentum) mean, VarianceOut likewise. If is_test or use_global_stats: with Mean "
    "and Variance, which stay",
)
def batch_norm(
    x: e.Tensor,
    scale: e.Tensor,
    bias: e.Tensor,
    mean: e.Tensor,
    variance: e.Tensor,
    momentum_tensor: e.Tensor | None,
    *,
    is_test: bool,
    momentum: float,
    epsilon: float,
    data_layout: str,
    use_global_stats: bool,
    trainable_statistics: bool,
) -> tuple[e.Tensor, ...]:
    """Normalise by the moving averages; or by the batch, and update the averages."""
    view = _ChannelView(x, data_layout)
    check_parameters(x, (scale, bias, mean, variance), view.channels, CHANNELS)
    decay = _momentum(x, momentum, momentum_tensor)
    rows, empty = e.reshape(x, view.dims), e.full((0,), 0, compute_dtype(x.dtype))
    if _uses_averages(is_test, use_global_stats, trainable_statistics):
        inverse = 1 / e.sqrt(variance + epsilon)
        factor = inverse * scale
        y = rows * e.reshape(factor, view.shape) + e.reshape(bias - mean * factor, view.shape)
        return e.reshape(y, x.dims), mean, variance, mean, inverse, empty
    e.need(
        e.product(view.other_dims) != 0,
        "X",
        "at least one element a channel: an empty batch has no mean",
        "feed at least one sample, or set use_global_stats",
    )
    if view.has_one_element:  # as in Fluid
        zeros = e.full((view.channels,), 0, compute_dtype(x.dtype))
        return x, mean, variance, zeros, zeros, empty
    y, batch_mean, batch_variance, inverse = normalised(rows, view.axes, epsilon, scale, bias, view.shape)
    averages = [
        old * decay + view.as_vector(new) * (1 - decay) for old, new in ((mean, batch_mean), (variance, batch_variance))
    ]
    return e.reshape(y, x.dims), *averages, view.as_vector(batch_mean), view.as_vector(inverse), empty


@gradient(
    batch_norm,
    Differentiation(dispensable=_UNREAD_INPUTS),
    Lowering(
        stored={"Scale@GRAD": AS_COMPUTED, "Bias@GRAD": AS_COMPUTED},
        in_layout=channels_to_end("X", "Y@GRAD", "X@GRAD", name="data_layout"),
    ),
    writes=GRADS,
    metadata=_UNREAD_INPUTS,
    doc="with D = (X - SavedMean) SavedVariance: Scale@GRAD = sum(Y@GRAD D), Bias@GRAD = sum(Y@GRAD) over each "
    "channel; X@GRAD = Scale SavedVariance (Y@GRAD - mean(Y@GRAD) - D mean(Y@GRAD D)), or Scale SavedVariance Y@GRAD "
    "if is_test or use_global_stats. Bias, Mean and Variance are accepted for Fluid programs",
)
def batch_norm_grad(
    x: e.Tensor,
    scale: e.Tensor,
    bias: e.Tensor | None,
    mean: e.Tensor | None,
    variance: e.Tensor | None,
    saved_mean: e.Tensor,
    saved_variance: e.Tensor,
    dy: e.Tensor,
    *,
    is_test: bool,
    data_layout: str,
    use_global_stats: bool,
    trainable_statistics: bool,
) -> tuple[e.Tensor, e.Tensor, e.Tensor]:
    """Hand-written: the derived gradient takes twice as many passes over X and reads values that are not saved."""
    view = _ChannelView(x, data_layout)
    uses_averages = _uses_averages(is_test, use_global_stats, trainable_statistics)
    if not uses_averages and view.has_one_element:
        zeros = e.full((view.channels,), 0, compute_dtype(x.dtype))
        return dy, zeros, zeros
    dx, dscale, dbias = gradients(x, dy, saved_mean, saved_variance, scale, view.dims, view.axes, view.shape)
    if uses_averages:
        dx = e.reshape(e.reshape(dy, view.dims) * e.reshape(saved_variance * scale, view.shape), x.dims)
    return dx, dscale, dbias
