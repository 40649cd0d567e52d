"""spectral_norm: divide a weight by its largest singular value, estimated by power iterations."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import FLOATS
from fluidlite.expr.declare import operator
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Differentiation, Lowering


def _unit(line: e.Tensor, eps: e.Number) -> e.Tensor:
    return line / (e.sqrt(e.reduce_sum(line * line)) + eps)


@operator(
    "spectral_norm",
    Differentiation(
        reads=("Weight", "U", "V"),
        stop_gradient=dict.fromkeys(("U", "V"), "the vectors of the power iteration count as constants, as in Fluid"),
        doc="Weight@GRAD = (Out@GRAD - sum(Out@GRAD Weight) / s U V^T) / s, U and V being constants. Fluid's kernel "
        "gives this where all of Out@GRAD is one number, and is wrong elsewhere",
        memory="the product of U and V, and Out@GRAD less it: twice as much as Weight",
    ),
    Lowering(library=True, gradient_library=False),
    inputs={"Weight": "of rank 2 to 5, all dims known; float32 or float64"},
    attrs=(
        Attr(
            "dim",
            "int",
            0,
            choices=(0, 1),
            doc="the dim of Weight that is the rows of the matrix; the others are its columns",
        ),
        Attr(
            "power_iters",
            "int",
            1,
            minimum=0,
            maximum=1000,
            doc="number of power iterations on U and V; 0: they are used as they are",
        ),
        Attr("eps", "float", 1e-12, doc="is added to the lengths that divide U and V"),
    ),
    dtypes={"Weight": FLOATS},
    source="Fluid spectral_norm_op.cc",
    doc="Out = Weight / s with s = U^T W V, W being Weight as a matrix, after power_iters times V = W^T U / |W^T U| "
    "and U = W V / |W V|",
)
def spectral_norm(weight: e.Tensor, u: e.Tensor, v: e.Tensor, *, dim: int, power_iters: int, eps: e.Number) -> e.Tensor:
    """No derivative flows through the power iteration."""
    if not 2 <= weight.rank <= 5:
        e.fail("Weight", "a rank of 2 to 5")
    e.need(e.product(weight.dims) != 0, "Weight", "at least one element: an empty matrix has no singular value")
    rows, columns = weight.dims[dim], e.product(d for k, d in enumerate(weight.dims) if k != dim)
    for x, count, what in ((u, rows, "rows"), (v, columns, "columns")):
        e.same_dtype(x, weight)
        if not e.agree(e.product(x.dims), count):
            size = e.describe_dims([e.number(count)])[0]
            e.fail(e.slot(x), f"{size} numbers, as many as the matrix has {what} (Weight is {e.describe(weight)})")
    matrix = e.reshape(e.move_axis(weight, dim, 0), (rows, columns))
    constant = e.stop_gradient(matrix)
    left, right = e.reshape(u, (rows,)), e.reshape(v, (columns,))
    for _ in range(power_iters):
        right = _unit(e.contract(constant, left, "rc,r->c"), eps)
        left = _unit(e.contract(constant, right, "rc,c->r"), eps)
    left, right = e.stop_gradient(left), e.stop_gradient(right)
    return weight / e.reduce_sum(e.contract(matrix, right, "rc,c->r") * left)
