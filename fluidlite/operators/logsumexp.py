"""logsumexp: the logarithm of a sum of exponentials, without overflow."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.declare import gradient, operator
from fluidlite.operators.reduce import REDUCE_ATTRS, axes_of, without_axes


@operator(
    "logsumexp",
    attrs=REDUCE_ATTRS,
    dtypes={"X": ALL_FLOATS},
    doc="Out = ln(the sum over dims of exp(X))",
    source="Fluid logsumexp_op.cc",
)
def logsumexp(x: e.Tensor, *, dim: tuple[int, ...], keep_dim: bool, reduce_all: bool) -> e.Tensor:
    """Subtract the maximum, so that nothing overflows, unless it is infinite."""
    axes = axes_of(x, dim, reduce_all)
    maximum = e.reduce_max(x, axes, keep=True)
    shift = e.where(e.isfinite(maximum), maximum, 0)
    return without_axes(e.log(e.reduce_sum(e.exp(x - shift), axes, keep=True)) + shift, axes, keep_dim)


@gradient(logsumexp, doc="X@GRAD = Out@GRAD exp(X - Out)")
def logsumexp_grad(
    x: e.Tensor, out: e.Tensor, dout: e.Tensor, *, dim: tuple[int, ...], keep_dim: bool, reduce_all: bool
) -> e.Tensor:
    """Hand-written: the derived gradient reduces X two more times."""
    axes = axes_of(x, dim, reduce_all)
    reduced_dims = [1 if axis in axes else d for axis, d in enumerate(x.dims)]
    return e.exp(x - e.reshape(out, reduced_dims)) * e.reshape(dout, reduced_dims)
