"""layer_norm, group_norm and instance_norm: normalise parts of each sample to mean 0 and variance 1."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, compute_dtype
from fluidlite.expr.declare import gradient, operator
from fluidlite.expr.number import number
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Lowering
from fluidlite.program.rules import AS_COMPUTED

CHANNELS = "the number of channels of X"
GRADS = ("X", "Scale", "Bias")
_PARAMETERS = (Slot("Scale", dispensable=True), Slot("Bias", dispensable=True))
_STORED = {"Scale@GRAD": AS_COMPUTED, "Bias@GRAD": AS_COMPUTED}

# Shared helpers ---------------------------------------------------------------------------------------------------


def check_parameters(x: e.Tensor, parameters: Sequence[e.Tensor | None], length: e.Number, description: str) -> None:
    """Refuse a parameter that is not [length] in the compute dtype of X."""
    parameter_dtype = compute_dtype(x.dtype)
    for parameter in parameters:
        if parameter is not None and parameter.dtype != parameter_dtype:
            e.fail_dtype(e.slot(parameter), f"{parameter_dtype}: X is {x.dtype}", "use layers.cast on it")
        if parameter is not None:
            e.vector(parameter, length, description)


def channel_axis(x: e.Tensor, data_layout: str = "NCHW", max_rank: int | None = 5) -> int:
    """The axis of the channels of X, whose rank must be in [2, max_rank]."""
    if not 2 <= x.rank <= (max_rank or x.rank):
        ranks = f"a rank of 2 to {max_rank}" if max_rank else "a rank of 2 or more"
        e.fail("X", ranks + ", batch and channels among its dims")
    return x.rank - 1 if data_layout == "NHWC" else 1


def normalised(
    x: e.Tensor,
    axes: Sequence[int],
    epsilon: float,
    scale: e.Tensor | None,
    bias: e.Tensor | None,
    shape: Sequence[e.Number | int],
) -> tuple[e.Tensor, e.Tensor, e.Tensor, e.Tensor]:
    """(X - mean) / sqrt(variance + epsilon) scale + bias, the mean, the variance, and 1 / sqrt(variance + epsilon).

    Mean and variance are over axes; scale and bias, if given, have a shape that broadcasts to X.
    """
    estimate = e.reduce_mean(x, axes, keep=True)
    centred = x - estimate
    correction = e.reduce_mean(centred, axes, keep=True)  # the rounding error of the first mean, if that is far from 0
    variance = e.maximum(e.reduce_mean(centred * centred, axes, keep=True) - correction * correction, 0)
    inverse = 1 / e.sqrt(variance + epsilon)
    weight, shift = (None if parameter is None else e.reshape(parameter, shape) for parameter in (scale, bias))
    if _shared_axes(axes, shape):  # one factor and one summand apply to many elements
        factor = inverse if weight is None else inverse * weight
        y = centred * factor + (-correction * factor if shift is None else shift - correction * factor)
    else:
        y = centred * inverse - correction * inverse
        y = y if weight is None else y * weight
        y = y if shift is None else y + shift
    return y, estimate + correction, variance, inverse


def _shared_axes(axes: Sequence[int], shape: Sequence[e.Number | int]) -> list[int]:
    """The axes of a mean along which the parameters are constant, too."""
    return [axis for axis in axes if isinstance(shape[axis], int)]


def gradients(
    image: e.Tensor,
    dout: e.Tensor,
    mean: e.Tensor,
    inverse: e.Tensor,
    scale: e.Tensor | None,
    dims: Sequence[e.Number],
    axes: Sequence[int],
    shape: Sequence[e.Number | int],
) -> tuple[e.Tensor, e.Tensor, e.Tensor]:
    """The gradients of X, Scale and Bias; ``image`` is X, ``dout`` Y@GRAD.

    ``mean``, ``inverse``: of X over ``axes``; the latter 1 / sqrt(variance + epsilon).
    ``dims``: dims to which X is reshaped for normalisation.
    ``shape``: the shape of the parameters that broadcasts to ``dims``; the int 1 along constant axes.
    """
    x, dy = (e.reshape(part, dims) for part in (image, dout))
    mean, inverse = (e.reshape(part, [1 if k in axes else d for k, d in enumerate(dims)]) for part in (mean, inverse))
    shared = _shared_axes(axes, shape)  # sums along these are used by all gradients
    constant_axes = [k for k in range(x.rank) if isinstance(shape[k], int)]
    other_axes = [k for k in axes if k not in shared]
    centred, weight = x - mean, None if scale is None else e.reshape(scale, shape)
    if not shared:
        centred = centred * inverse
    sum_dy, sum_product = e.reduce_sum(dy, shared, keep=True), e.reduce_sum(dy * centred, shared, keep=True)
    if shared:
        sum_product = sum_product * inverse
    sum_axes = [k for k in constant_axes if k not in shared]
    count = e.product(d for d in shape if not isinstance(d, int))
    dscale, dbias = (e.reshape(e.reduce_sum(part, sum_axes, keep=True), (count,)) for part in (sum_product, sum_dy))
    if weight is not None:
        sum_dy, sum_product = sum_dy * weight, sum_product * weight
    mean_dy, mean_product = (
        e.reduce_sum(part, other_axes, keep=True) / e.count(x, axes) for part in (sum_dy, sum_product)
    )
    if not shared:
        dx = (sum_dy - mean_dy - centred * mean_product) * inverse
    else:
        factor = inverse if weight is None else inverse * weight
        dx = dy * factor - centred * (inverse * inverse * mean_product) - inverse * mean_dy
    return e.reshape(dx, image.dims), dscale, dbias


# layer_norm --------------------------------------------------------------------------------------------------------


def _rows(x: e.Tensor, begin: int) -> tuple[e.Number, e.Number]:
    """The number of rows, and of the elements of each."""
    return e.product(x.dims[:begin]), e.product(x.dims[begin:])


@operator(
    "layer_norm",
    Lowering(stored={"Mean": AS_COMPUTED, "Variance": AS_COMPUTED}),
    inputs=(
        Slot("X", doc="of rank 2 or more; the dims from begin_norm_axis on, which must be known, are a row"),
        *_PARAMETERS,
    ),
    outputs=(
        "Y",
        Slot("Mean", intermediate=True, content="the mean of each row"),
        Slot("Variance", intermediate=True, content="the variance of each row, without epsilon"),
    ),
    attrs=(
        Attr("epsilon", "float", 1e-5, minimum=0.0, maximum=0.001, doc="is added to the variance"),
        Attr("begin_norm_axis", "int", 1, minimum=1, doc="dims from this one on are normalised together"),
    ),
    dtypes={"X": ALL_FLOATS},
    source="Fluid layer_norm_op.cc",
    doc="Y = (X - Mean) / sqrt(Variance + epsilon) Scale + Bias, over the dims from begin_norm_axis on",
)
def layer_norm(
    x: e.Tensor, scale: e.Tensor | None, bias: e.Tensor | None, *, begin_norm_axis: int, epsilon: float
) -> tuple[e.Tensor, e.Tensor, e.Tensor]:
    """Normalise each row."""
    begin = begin_norm_axis
    if x.rank < 2:
        e.fail("X", "a rank of 2 or more")
    e.need_attr(begin < x.rank, "begin_norm_axis", f"a dim of X after the first, 1 to {x.rank - 1}: X is {{X}}")
    rows, length = _rows(x, begin)
    e.need(length != 0, "X", f"at least one element to normalise from dim {begin} on")
    check_parameters(x, (scale, bias), length, f"the elements of X from dim {begin} on")
    y, mean, variance, _ = normalised(e.reshape(x, (rows, length)), (1,), epsilon, scale, bias, (1, length))
    return e.reshape(y, x.dims), e.reshape(mean, (rows,)), e.reshape(variance, (rows,))


@gradient(
    layer_norm,
    Lowering(stored=_STORED),
    writes=GRADS,
    metadata=("Bias",),
    doc="with D = (X - Mean) / sqrt(Variance + epsilon) and G = Y@GRAD Scale: "
    "X@GRAD = (G - mean(G) - D mean(G D)) / sqrt(Variance + epsilon); Scale@GRAD = sum(Y@GRAD D) and "
    "Bias@GRAD = sum(Y@GRAD) over the rows",
)
def layer_norm_grad(
    x: e.Tensor,
    scale: e.Tensor | None,
    bias: e.Tensor | None,
    mean: e.Tensor,
    variance: e.Tensor,
    dy: e.Tensor,
    *,
    begin_norm_axis: int,
    epsilon: float,
) -> tuple[e.Tensor, e.Tensor, e.Tensor]:
    """Hand-written: the derived gradient takes twice as many passes over X."""
    rows, length = _rows(x, begin_norm_axis)
    return gradients(x, dy, mean, 1 / e.sqrt(variance + epsilon), scale, (rows, length), (1,), (1, length))


# group_norm --------------------------------------------------------------------------------------------------------


class _GroupView:
    """A view of X by groups of channels: its dims, the axes of a group, and the shape of the parameters."""

    def __init__(self, x: e.Tensor, groups: int, data_layout: str) -> None:
        axis = channel_axis(x, data_layout, max_rank=None)
        batch, self.channels = x.dims[0], x.dims[axis]
        inner = e.product(d for k, d in enumerate(x.dims) if k not in (0, axis))
        size, last = self.channels // groups, data_layout == "NHWC"
        count = number(groups)
        self.dims = (batch, inner, count, size) if last else (batch, count, size, inner)
        self.axes = (1, 3) if last else (2, 3)
        self.shape = (1, 1, count, size) if last else (1, count, size, 1)


@operator(
    "group_norm",
    Lowering(stored={"Mean": AS_COMPUTED, "Variance": AS_COMPUTED}),
    inputs=(Slot("X", doc="[batch, channels, ...], or channels last if data_layout is NHWC"), *_PARAMETERS),
    outputs=(
        "Y",
        Slot("Mean", intermediate=True, content="the mean of each group, [batch, groups]"),
        Slot("Variance", intermediate=True, content="the variance of each group, without epsilon"),
    ),
    attrs=(
        Attr("epsilon", "float", 1e-5, minimum=0.0, maximum=1.0, doc="is added to the variance"),
        Attr("groups", "int", minimum=1, doc="how many groups the channels form; it divides their number"),
        Attr("data_layout", "str", "NCHW", choices=("NCHW", "NHWC"), doc="channels are dim 1, or the last dim"),
    ),
    dtypes={"X": ALL_FLOATS},
    source="Fluid group_norm_op.cc",
    doc="Y = (X - Mean) / sqrt(Variance + epsilon) Scale + Bias, over each group of channels of each sample",
)
def group_norm(
    x: e.Tensor, scale: e.Tensor | None, bias: e.Tensor | None, *, groups: int, epsilon: float, data_layout: str
) -> tuple[e.Tensor, e.Tensor, e.Tensor]:
    """Normalise each group of channels of a sample."""
    view = _GroupView(x, groups, data_layout)
    for condition in (view.channels % groups == 0, view.channels != 0):
        e.need_attr(condition, "groups", f"a divisor of {CHANNELS}, {{0}}", view.channels)
    e.need(e.product(x.dims[1:]) != 0, "X", "at least one element to normalise in each sample")
    check_parameters(x, (scale, bias), view.channels, CHANNELS)
    y, mean, variance, _ = normalised(e.reshape(x, view.dims), view.axes, epsilon, scale, bias, view.shape)
    statistic = (x.dims[0], groups)
    return e.reshape(y, x.dims), e.reshape(mean, statistic), e.reshape(variance, statistic)


@gradient(
    group_norm,
    Lowering(stored=_STORED),
    writes=GRADS,
    metadata=("Bias",),
    doc="as layer_norm_grad, over each group; Scale@GRAD and Bias@GRAD are sums over each channel",
)
def group_norm_grad(
    x: e.Tensor,
    scale: e.Tensor | None,
    bias: e.Tensor | None,
    mean: e.Tensor,
    variance: e.Tensor,
    dy: e.Tensor,
    *,
    groups: int,
    epsilon: float,
    data_layout: str,
) -> tuple[e.Tensor, e.Tensor, e.Tensor]:
    """Hand-written: the derived gradient takes twice as many passes over X."""
    view = _GroupView(x, groups, data_layout)
    return gradients(x, dy, mean, 1 / e.sqrt(variance + epsilon), scale, view.dims, view.axes, view.shape)


# instance_norm -----------------------------------------------------------------------------------------------------


@operator(
    "instance_norm",
    Lowering(stored={"SavedMean": AS_COMPUTED, "SavedVariance": AS_COMPUTED}),
    inputs=(Slot("X", doc="[batch, channels, ...], of rank 2 to 5"), *_PARAMETERS),
    outputs=(
        "Y",
        Slot("SavedMean", intermediate=True, content="the mean of each channel of each sample"),
        Slot("SavedVariance", intermediate=True, content="1 / sqrt(variance + epsilon) of the same"),
    ),
    attrs=(Attr("epsilon", "float", 1e-5, minimum=0.0, maximum=0.001, doc="is added to the variance"),),
    dtypes={"X": ALL_FLOATS},
    source="Fluid instance_norm_op.cc",
    doc="Y = (X - mean) / sqrt(variance + epsilon) Scale + Bias, over each channel of each sample",
)
def instance_norm(
    x: e.Tensor, scale: e.Tensor | None, bias: e.Tensor | None, *, epsilon: float
) -> tuple[e.Tensor, e.Tensor, e.Tensor]:
    """Normalise each channel of a sample."""
    channels, inner = x.dims[channel_axis(x)], e.product(x.dims[2:])
    e.need(inner != 0, "X", "at least one element to normalise in each channel")
    check_parameters(x, (scale, bias), channels, CHANNELS)
    rows, saved = e.reshape(x, (*x.dims[:2], inner)), (x.dims[0] * channels,)
    y, mean, _, inverse = normalised(rows, (2,), epsilon, scale, bias, (1, channels, 1))
    return e.reshape(y, x.dims), e.reshape(mean, saved), e.reshape(inverse, saved)


@gradient(
    instance_norm,
    Lowering(stored=_STORED),
    writes=GRADS,
    doc="as layer_norm_grad, over each channel of each sample; Scale@GRAD and Bias@GRAD are sums over each channel",
)
def instance_norm_grad(
    x: e.Tensor, scale: e.Tensor | None, saved_mean: e.Tensor, saved_variance: e.Tensor, dy: e.Tensor
) -> tuple[e.Tensor, e.Tensor, e.Tensor]:
    """Hand-written: the derived gradient takes twice as many passes over X, and reads Bias."""
    batch, channels, inner = *x.dims[:2], e.product(x.dims[2:])
    dims, shape = (batch, channels, inner), (1, channels, 1)
    return gradients(x, dy, saved_mean, saved_variance, scale, dims, (2,), shape)
