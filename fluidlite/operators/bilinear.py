"""Products of rows: cos_sim, dot, bilinear_tensor_product and conv_shift."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.expr.declare import gradient, operator
from fluidlite.program.opdef import Slot
from fluidlite.program.operator_options import Differentiation, Execution, Lowering

_PAIR_DTYPES = {"X": ALL_FLOATS, "Y": ALL_FLOATS}


# cos_sim -----------------------------------------------------------------------------------------------------------


_MIN_SQUARED_NORM = 1e-8
"""Lower bound of a row's sum of squares, as in Fluid; the norm is then at least 1e-4."""


@operator(
    "cos_sim",
    inputs={
        "X": "[rows, ...], floating-point numbers",
        "Y": "as X, or one row, which is compared with each row of X",
    },
    dtypes=_PAIR_DTYPES,
    source="Fluid cos_sim_op.cc",
    outputs=(
        "Out",
        Slot("XNorm", intermediate=True, content="the L2 norms of the rows of X, [rows, 1], at least 1e-4"),
        Slot("YNorm", intermediate=True, content="the L2 norms of the rows of Y, at least 1e-4"),
    ),
    doc="Out = the cosine of the angle between the rows of X and Y, X . Y / (|X| |Y|), where a norm counts as 1e-4 at "
    "least; one row of Y serves all of X",
)
def cos_sim(x: e.Tensor, y: e.Tensor) -> tuple[e.Tensor, e.Tensor, e.Tensor]:
    """Axes after the first are flattened to rows."""
    e.same_dtype(y, x)
    if x.rank < 2:
        e.fail("X", "[rows, width], or more dims")
    if not e.same_dims(y.dims[1:], x.dims[1:]):
        e.fail("Y", f"rows of the dims that those of X have, {e.describe_dims(x.dims[1:])}")
    if not (y.dims[0] == 1 or e.same_dims(x.dims[:1], y.dims[:1])):
        e.fail("Y", f"one row, or as many as X ({e.describe_dims(x.dims)[0]})")
    width = e.product(x.dims[1:])
    a, b = e.reshape(x, (x.dims[0], width)), e.reshape(y, (y.dims[0], width))
    norms = [e.sqrt(e.maximum(e.reduce_sum(matrix * matrix, 1, keep=True), _MIN_SQUARED_NORM)) for matrix in (a, b)]
    return e.reduce_sum(a * b, 1, keep=True) / (norms[0] * norms[1]), norms[0], norms[1]


@gradient(
    cos_sim,
    writes=("X", "Y"),
    doc="X@GRAD = Out@GRAD (Y / (|X| |Y|) - Out X / |X|^2), and so of Y, summed where one row serves all; the same, as "
    "in Fluid, where a norm counts as 1e-4",
)
def cos_sim_grad(
    x: e.Tensor, y: e.Tensor, out: e.Tensor, xnorm: e.Tensor, ynorm: e.Tensor, dout: e.Tensor
) -> tuple[e.Tensor, e.Tensor]:
    """Hand-written: the derived gradient differs where a norm is raised to 1e-4."""
    width = e.product(x.dims[1:])
    a, b = e.reshape(x, (x.dims[0], width)), e.reshape(y, (y.dims[0], width))
    scaled, projection = dout / (xnorm * ynorm), dout * out
    dx = scaled * b - projection / (xnorm * xnorm) * a
    dy = e.sum_to(scaled * a, b.dims) - e.sum_to(projection / (ynorm * ynorm), ynorm.dims) * b
    return e.reshape(dx, x.dims), e.reshape(dy, y.dims)


# dot ---------------------------------------------------------------------------------------------------------------


@operator(
    "dot",
    Differentiation(reads=("X", "Y"), doc="X@GRAD = Out@GRAD Y, Y@GRAD = Out@GRAD X"),
    inputs={"X": "[width] or [rows, width], of equal dims", "Y": "[width] or [rows, width], of equal dims"},
    dtypes={slot: (*ALL_FLOATS, *INTS) for slot in "XY"},
    source="Fluid dot_op.cc",
    doc="Out = X . Y of each row",
)
def dot(x: e.Tensor, y: e.Tensor) -> e.Tensor:
    """The sums of products along the last axis."""
    e.same_dtype(y, x)
    if x.rank not in (1, 2):
        e.fail("X", "[width] or [rows, width]")
    if not e.same_dims(y.dims, x.dims):
        e.fail("Y", f"the dims of X, {e.describe_dims(x.dims)}")
    return e.reduce_sum(x * y, -1, keep=True)


# bilinear_tensor_product -------------------------------------------------------------------------------------------

_BILINEAR = ("X", "Y", "Weight")


@operator(
    "bilinear_tensor_product",
    Differentiation(
        reads=_BILINEAR,
        doc="the sums over i: X@GRAD = Out@GRAD[:, i] Y Weight[i]^T, Y@GRAD = Out@GRAD[:, i] X Weight[i]; "
        "Weight@GRAD[i] = X^T Out@GRAD[:, i] Y; Bias@GRAD = the sum of Out@GRAD over rows",
        memory="where arrays compute, the products X Weight and Out@GRAD Y: as many times Y as Weight has matrices",
    ),
    Execution(memory="where arrays compute, the products X Weight: as many times Y as Weight has matrices"),
    Lowering(library=True),
    inputs=(Slot("X", doc="[rows, M]"), Slot("Y", doc="[rows, N]"), "Weight", Slot("Bias", dispensable=True)),
    dtypes=dict.fromkeys((*_BILINEAR, "Bias"), ALL_FLOATS),
    source="Fluid bilinear_tensor_product_op.cc",
    doc="Out[:, i] = X Weight[i] Y^T of each row, + Bias; on arrays it takes memory for X Weight",
)
def bilinear_tensor_product(x: e.Tensor, y: e.Tensor, weight: e.Tensor, bias: e.Tensor | None) -> e.Tensor:
    """One matrix product X Weight, then one product for each row."""
    for operand in (x, y):
        if operand.rank != 2:
            e.fail(e.slot(operand), "[rows, width]")
    if weight.rank != 3:
        e.fail("Weight", "[size, width of X, width of Y]")
    for operand in (y, weight, *(() if bias is None else (bias,))):
        e.same_dtype(operand, x)
    if not e.agree(x.dims[0], y.dims[0]):
        e.fail("Y", f"as many rows as X, {e.static_value(x.dims[0])}")
    if not e.all_agree(weight.dims[1:], (x.dims[1], y.dims[1])):
        e.fail("Weight", f"[size, {e.describe_dims(x.dims)[1]}, {e.describe_dims(y.dims)[1]}]: the widths of X and Y")
    if bias is not None and not e.all_agree(bias.dims, (1, weight.dims[0])):
        e.fail("Bias", f"[1, {e.describe_dims(weight.dims)[0]}]")
    out = e.contract(e.contract(x, weight, "nj,ijk->nik"), y, "nik,nk->ni")
    return out if bias is None else out + e.reshape(bias, (1, weight.dims[0]))


# conv_shift --------------------------------------------------------------------------------------------------------


def _checked_taps(x: e.Tensor, y: e.Tensor) -> e.Number:
    """Check the operands; return the width of the filters."""
    e.same_dtype(y, x)
    if x.rank != 2:
        e.fail("X", "[rows, width]")
    if y.rank != 2:
        e.fail("Y", "[rows, filter width]")
    (rows, width), taps = x.dims, y.dims[1]
    if not e.agree(rows, y.dims[0]):
        e.fail("Y", f"as many rows as X, {e.static_value(rows)}")
    e.need(taps % 2 == 1, "Y", "an odd number of columns: the filter has a middle")
    e.need(taps <= width, "Y", "at most the {0} columns of X", numbers=(width,))
    return taps


def _circular_windows(x: e.Tensor, taps: e.Number) -> e.Tensor:
    """Windows of each row, which is padded circularly on both sides."""
    half, width = taps // 2, x.dims[1]
    return e.window(e.concat([e.slice_axis(x, 1, width - half, half), x, e.slice_axis(x, 1, 0, half)], 1), 1, taps)


@operator(
    "conv_shift",
    Execution(memory="where arrays compute, as many copies of X as the filter has columns"),
    dtypes=_PAIR_DTYPES,
    source="Fluid conv_shift_op.cc",
    doc="Out[i, j] = the sum over k of X[i, j + k - half] Y[i, k], half the filter's width // 2; X is circular",
)
def conv_shift(x: e.Tensor, y: e.Tensor) -> e.Tensor:
    """Contract the circular windows of each row with its filter."""
    taps = _checked_taps(x, y)
    return e.reshape(e.contract(_circular_windows(x, taps), y, "ijk,ik->ij"), x.dims)


@gradient(
    conv_shift,
    Execution(memory="where arrays compute, as many copies of Out@GRAD and X as the filter has columns"),
    writes=("X", "Y"),
    doc="X@GRAD = Out@GRAD shifted the other way; Y@GRAD[i, k] = the sum over j of X[i, j + k - half] Out@GRAD[i, j]",
)
def conv_shift_grad(x: e.Tensor, y: e.Tensor, dout: e.Tensor) -> tuple[e.Tensor, e.Tensor]:
    """Hand-written: the derived gradient scatters windows; this one gathers windows of Out@GRAD."""
    taps = _checked_taps(x, y)
    e.need_dims(dout, x.dims, "Out@GRAD", "X")
    dx = e.contract(_circular_windows(dout, taps), e.flip(y, 1), "ijk,ik->ij")
    dy = e.contract(_circular_windows(x, taps), dout, "ijk,ij->ik")
    return e.reshape(dx, x.dims), e.reshape(dy, y.dims)
