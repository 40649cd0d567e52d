"""Further products of matrices: bmm, addmm, kron and fsp."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.expr.declare import operator
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Differentiation, Execution

_PAIR_DTYPES = {"X": ALL_FLOATS, "Y": ALL_FLOATS}
_READS = ("X", "Y")

# bmm ---------------------------------------------------------------------------------------------------------------


@operator(
    "bmm",
    Differentiation(reads=_READS, doc="X@GRAD = Out@GRAD . Y^T, Y@GRAD = X^T . Out@GRAD, batch by batch"),
    dtypes=_PAIR_DTYPES,
    source="Fluid bmm_op.cc",
    doc="Out[b] = X[b] . Y[b]",
)
def bmm(x: e.Tensor, y: e.Tensor) -> e.Tensor:
    """A batched matmul."""
    if x.rank != 3:
        e.fail("X", "[batch, rows, width]")
    if y.rank != 3:
        e.fail("Y", "[batch, width, columns]")
    e.same_dtype(y, x)
    if not (e.agree(x.dims[0], y.dims[0]) and e.agree(x.dims[2], y.dims[1])):
        batch, _, width = e.describe_dims(x.dims)
        e.fail("Y", f"[{batch}, {width}, columns]: the batch and the width of X")
    return e.contract(x, y, "bij,bjk->bik")


# addmm -------------------------------------------------------------------------------------------------------------

_ADDMM = (
    Attr("Alpha", "float", 1.0, doc="factor of the product"),
    Attr("Beta", "float", 1.0, doc="factor of Input"),
)
_ADDMM_IN = ("Input", "X", "Y")


@operator(
    "addmm",
    Differentiation(
        reads=_READS,
        doc="Input@GRAD = Beta Out@GRAD, summed where Input was broadcast; X@GRAD = Alpha Out@GRAD . Y^T, "
        "Y@GRAD = Alpha X^T . Out@GRAD",
    ),
    inputs=_ADDMM_IN,
    attrs=_ADDMM,
    dtypes=dict.fromkeys(_ADDMM_IN, ALL_FLOATS),
    source="Fluid addmm_op.cc",
    doc="Out = Beta Input + Alpha X . Y; a dim 1 of Input is broadcast",
)
def addmm(input_: e.Tensor, x: e.Tensor, y: e.Tensor, *, Alpha: e.Number, Beta: e.Number) -> e.Tensor:
    """A matmul, then a sum."""
    for operand in (input_, x, y):
        if operand.rank != 2:
            e.fail(e.slot(operand), "a matrix")
        e.same_dtype(operand, input_)
    if not e.agree(x.dims[1], y.dims[0]):
        e.fail("Y", f"{e.static_value(x.dims[1])} rows, the width of X")
    product = e.matmul(x, y)
    if not all(bool(a == 1) or e.agree(a, b) for a, b in zip(input_.dims, product.dims, strict=True)):
        e.fail("Input", f"{e.describe_dims(product.dims)}, or 1 instead of either")
    if Alpha != 1:
        product = product * Alpha
    return product + (input_ if Beta == 1 else input_ * Beta)


# kron --------------------------------------------------------------------------------------------------------------


@operator(
    "kron",
    Differentiation(
        reads=_READS,
        doc="X@GRAD = the sums of Out@GRAD Y over the elements of Y, Y@GRAD = those of Out@GRAD X over the elements "
        "of X",
        memory="the products before their sums: on a kernel language as much as Out, where arrays compute three times",
    ),
    dtypes={slot: (*ALL_FLOATS, *INTS) for slot in "XY"},
    source="Fluid kron_op.cc",
    doc="Out[i n + k, j m + l] = X[i, j] Y[k, l], n and m the dims of Y; so in every dim",
)
def kron(x: e.Tensor, y: e.Tensor) -> e.Tensor:
    """Products of all pairs of elements; each axis of X is followed by the same one of Y."""
    e.same_dtype(y, x)
    for operand in (x, y):
        if not operand.rank:
            e.fail(e.slot(operand), "rank 1 or more")
    rank = max(x.rank, y.rank)
    a, b = (e.unsqueeze(operand, range(rank - operand.rank)).dims for operand in (x, y))
    pairs = list(zip(a, b, strict=True))
    x_pairs = e.reshape(x, [d for size, _ in pairs for d in (size, 1)])
    y_pairs = e.reshape(y, [d for _, size in pairs for d in (1, size)])
    return e.reshape(x_pairs * y_pairs, [n * m for n, m in pairs])


# fsp ---------------------------------------------------------------------------------------------------------------


@operator(
    "fsp",
    Differentiation(
        reads=_READS, doc="X@GRAD = Out@GRAD . Y / pixels, Y@GRAD = Out@GRAD^T . X / pixels, image by image"
    ),
    Execution(memory="X and Y as matrices of pixels, if the product needs copies of them: up to three times X"),
    inputs={"X": "[images, channels, height, width]", "Y": "[images, other channels, height, width]"},
    dtypes=_PAIR_DTYPES,
    source="Fluid fsp_op.cc",
    doc="Out[n, i, j] = the mean over pixels of X[n, i] Y[n, j]",
)
def fsp(x: e.Tensor, y: e.Tensor) -> e.Tensor:
    """One product of matrices for each image."""
    e.same_dtype(y, x)
    for operand in (x, y):
        if operand.rank != 4:
            e.fail(e.slot(operand), "[images, channels, height, width]")
    images, _, height, width = x.dims
    if not (e.agree(images, y.dims[0]) and e.all_agree(x.dims[2:], y.dims[2:])):
        n, _, h, w = e.describe_dims(x.dims)
        e.fail("Y", f"images of X's size, [{n}, channels, {h}, {w}]")
    e.need(height * width > 0, "X", "images with a pixel or more")
    return e.contract(x, y, "nihw,njhw->nij") / (height * width)
