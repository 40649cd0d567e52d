"""Matrix products: mul, which flattens to matrices, and matmul, which batches over leading dims."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.declare import operator
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Differentiation, Lowering

_DTYPES = {"X": ALL_FLOATS, "Y": ALL_FLOATS}
_READS = ("X", "Y")

# mul ---------------------------------------------------------------------------------------------------------------

_FORCE_FP32 = Attr("force_fp32_output", "bool", False, doc="of Fluid's int8 kernels; of no effect")

_MUL_ATTRS = (
    Attr("x_num_col_dims", "int", 1, minimum=1, doc="how many leading dims of X are the matrix's rows"),
    Attr("y_num_col_dims", "int", 1, minimum=1, doc="how many leading dims of Y are the matrix's rows"),
    Attr("scale_x", "float", 1.0, doc="of Fluid's int8 kernels; of no effect"),
    Attr("scale_y", "floats", (1.0,), doc="of Fluid's int8 kernels; of no effect"),
    Attr("scale_out", "float", 1.0, doc="of Fluid's int8 kernels; of no effect"),
    _FORCE_FP32,
)


@operator(
    "mul",
    Differentiation(reads=_READS, doc="X@GRAD = Out@GRAD . Y^T, Y@GRAD = X^T . Out@GRAD, as matrices"),
    Lowering(library=True),
    inputs={
        "X": "of one dtype; columns of the first are rows of the second",
        "Y": "of one dtype; columns of the first are rows of the second",
    },
    attrs=_MUL_ATTRS,
    dtypes=_DTYPES,
    source="Fluid mul_op.cc",
    doc="Out = flatten(X, x_num_col_dims) . flatten(Y, y_num_col_dims), unflattened",
)
def mul(x: e.Tensor, y: e.Tensor, *, x_num_col_dims: int, y_num_col_dims: int) -> e.Tensor:
    """One product of two matrices."""
    rows, inner = x_num_col_dims, y_num_col_dims
    if x.rank <= rows:
        e.fail("X", f"a rank above x_num_col_dims = {rows}", "flatten less of X, or reshape it")
    if y.rank <= inner:
        e.fail("Y", f"a rank above y_num_col_dims = {inner}", "flatten less of Y, or reshape it")
    e.same_dtype(y, x)
    width = e.product(x.dims[rows:])
    if not e.agree(width, e.product(y.dims[:inner])):
        expected = f"{e.static_value(width)} rows when its first {inner} dims are flattened"
        e.fail("Y", f"{expected}, the width of X ({e.describe_dims(x.dims)})")
    a = e.reshape(x, (e.product(x.dims[:rows]), width))
    b = e.reshape(y, (e.product(y.dims[:inner]), e.product(y.dims[inner:])))
    return e.reshape(e.contract(a, b, "ik,kj->ij"), (*x.dims[:rows], *y.dims[inner:]))


# matmul ------------------------------------------------------------------------------------------------------------

_MATMUL_ATTRS = (
    Attr("transpose_X", "bool", False, doc="exchange the last two dims of X"),
    Attr("transpose_Y", "bool", False, doc="exchange the last two dims of Y"),
    Attr("alpha", "float", 1.0, doc="factor of the product"),
    Attr("head_number", "int", 1, minimum=1, maximum=1, doc="several heads are not supported; of no effect"),
    *(Attr(f"Scale_{name}", "float", 1.0, doc="of Fluid's int8 kernels; of no effect") for name in ("x", "y", "out")),
    _FORCE_FP32,
)


@operator(
    "matmul",
    Differentiation(
        reads=_READS,
        doc="X@GRAD = alpha Out@GRAD . op(Y)^T, Y@GRAD = alpha op(X)^T . Out@GRAD, transposed as X and Y are",
    ),
    Lowering(library=True),
    inputs={
        "X": "vectors, matrices or batches of them, of one dtype; leading dims are broadcast",
        "Y": "vectors, matrices or batches of them, of one dtype; leading dims are broadcast",
    },
    attrs=_MATMUL_ATTRS,
    dtypes=_DTYPES,
    source="Fluid matmul_op.cc",
    doc="Out = alpha op(X) . op(Y), batch by batch; a vector is a row on the left and a column on the right",
)
def matmul(x: e.Tensor, y: e.Tensor, *, transpose_X: bool, transpose_Y: bool, alpha: e.Number) -> e.Tensor:
    """A batched product; an operand without leading dims is broadcast."""
    for operand in (x, y):
        if not operand.rank:
            e.fail(e.slot(operand), "rank 1 or more")
    e.same_dtype(y, x)
    a = e.unsqueeze(x, 0) if x.rank == 1 else x
    b = e.unsqueeze(y, 1) if y.rank == 1 else y
    inner = a.dims[-2 if transpose_X else -1]
    if not e.agree(inner, b.dims[-1 if transpose_Y else -2]):
        operand_form = f"{e.describe(x)}; transpose_X={transpose_X}, transpose_Y={transpose_Y}"
        e.fail("Y", f"{e.static_value(inner)} where it is multiplied with X ({operand_form})")
    if a.rank > 2 and b.rank > 2 and not e.all_agree(a.dims[:-2], b.dims[:-2]):
        e.fail("Y", f"the leading dims of X, {e.describe_dims(a.dims[:-2])}, or none", "expand one of the two")
    lead = [chr(ord("a") + axis) for axis in range(max(a.rank, b.rank) - 2)]
    letters = "".join(lead)
    first = (letters if a.rank > 2 else "") + ("KI" if transpose_X else "IK")
    second = (letters if b.rank > 2 else "") + ("JK" if transpose_Y else "KJ")
    out = e.contract(a, b, f"{first},{second}->{letters}IJ")
    rows, columns = out.dims[-2:]
    dims = [*out.dims[:-2], *(() if x.rank == 1 and rows == 1 else (rows,))]
    dims += [] if y.rank == 1 and columns == 1 else [columns]
    out = e.reshape(out, dims or (1,))
    return out if alpha == 1 else out * alpha
