"""norm (L2 normalisation along an axis), lrn (local response normalisation) and affine_channel."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.declare import gradient, operator
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Execution

# norm --------------------------------------------------------------------------------------------------------------


def _axis(x: e.Tensor, axis: int) -> int:
    if not x.rank:
        e.fail("X", "a rank of 1 or more")
    return e.axis("axis", axis, x)


@operator(
    "norm",
    outputs=(Slot("Norm", intermediate=True, content="the lengths; dim axis is 1"), "Out"),
    attrs=(
        Attr("axis", "int", doc="the axis along which lengths are measured; negative ones count from the end"),
        Attr("epsilon", "float", 1e-10, doc="is added to the sum of squares"),
    ),
    dtypes={"X": ALL_FLOATS},
    source="Fluid norm_op.cc",
    doc="Norm = sqrt(sum(X^2) + epsilon) over the axis; Out = X / Norm, which is 0 where squares are infinite",
)
def norm(x: e.Tensor, *, axis: int, epsilon: float) -> tuple[e.Tensor, e.Tensor]:
    """Divide by the L2 norm."""
    length = e.sqrt(e.reduce_sum(x * x, _axis(x, axis), keep=True) + epsilon)
    return length, x / length


@gradient(norm, doc="X@GRAD = (Out@GRAD - X sum(X Out@GRAD) / Norm^2) / Norm, the sum being over the axis")
def norm_grad(x: e.Tensor, norm: e.Tensor, dout: e.Tensor, *, axis: int) -> e.Tensor:
    """Hand-written: the derived gradient takes twice as many passes over X."""
    at = _axis(x, axis)
    e.need_dims(dout, x.dims, "Out@GRAD", "X")
    e.need_dims(norm, [e.number(1) if k == at else d for k, d in enumerate(x.dims)], "Norm", "Norm")
    projection = e.reduce_sum(x * dout, at, keep=True) / (norm * norm)
    return (dout - x * projection) / norm


# lrn ---------------------------------------------------------------------------------------------------------------


def _neighbour_sums(x: e.Tensor, data_format: str, n: int) -> e.Tensor:
    """Sums of ``n`` neighbouring channels, zero-padded; composed of sums of 1, 2, 4, 8, ... channels."""
    axis, half = 3 if data_format == "NHWC" else 1, n // 2
    size = x.dims[axis]
    if half >= size - 1:
        return e.broadcast(e.reduce_sum(x, axis, keep=True), x.dims)
    padding = [half if k == axis else 0 for k in range(x.rank)]
    sums, width, at, total = e.pad(x, padding, padding), 1, 0, None
    while True:
        if n & width:  # append a sum of ``width`` channels to the total
            part = e.slice_axis(sums, axis, at, size)
            total, at = part if total is None else total + part, at + width
        if at == n:
            assert total is not None
            return total
        rest = sums.dims[axis] - width
        sums, width = e.slice_axis(sums, axis, 0, rest) + e.slice_axis(sums, axis, width, rest), 2 * width


@operator(
    "lrn",
    inputs={"X": "[batch, channels, height, width], or channels last if data_format is NHWC"},
    outputs=("Out", Slot("MidOut", intermediate=True, content="k + alpha times the sum of squares")),
    attrs=(
        Attr("n", "int", 5, minimum=1, doc="how many channels are summed, centred on each channel: an odd number"),
        Attr("k", "float", 2.0),
        Attr("alpha", "float", 1e-4),
        Attr("beta", "float", 0.75),
        Attr("data_format", "str", "AnyLayout", choices=("AnyLayout", "NCHW", "NHWC"), doc="channels are last in NHWC"),
    ),
    dtypes={"X": ALL_FLOATS},
    source="Fluid lrn_op.cc",
    doc="MidOut = k + alpha (the sum of X^2 over n neighbouring channels); Out = X MidOut^-beta",
)
def lrn(x: e.Tensor, *, n: int, k: float, alpha: float, beta: float, data_format: str) -> tuple[e.Tensor, e.Tensor]:
    """Divide by a power of the sum of the neighbours' squares."""
    if x.rank != 4:
        e.fail("X", "a rank of 4: batch, channels, height and width")
    if n % 2 == 0:
        e.fail_attr("n", "an odd number")
    for name, value in (("k", k), ("alpha", alpha), ("beta", beta)):
        if not value > 0:
            e.fail_attr(name, "a number above 0")
    middle = k + alpha * _neighbour_sums(x * x, data_format, n)
    return x * e.pow_(middle, -beta), middle


@gradient(
    lrn,
    doc="X@GRAD = Out@GRAD MidOut^-beta - 2 alpha beta X sum(Out Out@GRAD / MidOut), over n neighbouring channels",
)
def lrn_grad(
    x: e.Tensor,
    out: e.Tensor,
    mid_out: e.Tensor,
    dout: e.Tensor,
    *,
    n: int,
    alpha: float,
    beta: float,
    data_format: str,
) -> e.Tensor:
    """Hand-written: the derived gradient pads each of the sums and computes two powers."""
    power: e.Tensor = e.pow_(mid_out, -beta)
    return dout * power - 2 * alpha * beta * x * _neighbour_sums(out * dout / mid_out, data_format, n)


# affine_channel ----------------------------------------------------------------------------------------------------


def _channels(x: e.Tensor, data_layout: str, *parameters: e.Tensor) -> int:
    """The axis of the channels; check that parameters have one number for each."""
    if x.rank < 2:
        e.fail("X", "a rank of 2 or more, batch and channels among its dims")
    axis = 1 if data_layout == "NCHW" else x.rank - 1
    for parameter in parameters:
        e.same_dtype(parameter, x)
        e.vector(parameter, x.dims[axis], "the number of channels of X")
    return axis


def _per_channel(parameter: e.Tensor, x: e.Tensor, axis: int) -> e.Tensor:
    """Reshape a parameter to broadcast with X."""
    return e.reshape(parameter, [x.dims[axis] if k == axis else 1 for k in range(x.rank)])


@operator(
    "affine_channel",
    inputs={
        "X": "[batch, channels, ...], or channels last if data_layout is NHWC",
        "Scale": "[channels], of the dtype of X",
        "Bias": "[channels], of the dtype of X",
    },
    attrs=(
        Attr(
            "data_layout",
            "str",
            "AnyLayout",
            choices=("AnyLayout", "NCHW", "NHWC"),
            doc="channels are dim 1 in NCHW, else the last dim",
        ),
    ),
    dtypes={"X": ALL_FLOATS},
    source="Fluid affine_channel_op.cc",
    doc="Out = Scale X + Bias, channel by channel",
)
def affine_channel(x: e.Tensor, scale: e.Tensor, bias: e.Tensor, *, data_layout: str) -> e.Tensor:
    """Scale and shift each channel."""
    axis = _channels(x, data_layout, scale, bias)
    return x * _per_channel(scale, x, axis) + _per_channel(bias, x, axis)


@gradient(
    affine_channel,
    Execution(memory="where arrays compute, X Out@GRAD before its sum: as much as X, twice"),
    writes=("X", "Scale", "Bias"),
    doc="X@GRAD = Scale Out@GRAD; Scale@GRAD = sum(X Out@GRAD) and Bias@GRAD = sum(Out@GRAD) over each channel",
)
def affine_channel_grad(
    x: e.Tensor, scale: e.Tensor, dout: e.Tensor, *, data_layout: str
) -> tuple[e.Tensor, e.Tensor, e.Tensor]:
    """Hand-written: Fluid's gradient does not read Bias."""
    e.need_dims(dout, x.dims, "Out@GRAD", "X")
    axis = _channels(x, data_layout, scale)
    other_axes = [k for k in range(x.rank) if k != axis]
    product = e.call("elementwise_mul_grad", {"X": x, "Y": scale, "Out@GRAD": dout}, {"axis": axis})
    total = e.call("reduce_sum", {"X": dout}, {"dim": other_axes})
    return product["X@GRAD"], product["Y@GRAD"], total["Out"]
