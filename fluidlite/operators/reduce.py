"""Reductions: mean, reduce_{sum, mean, max, min, prod, all, any}; and sum, which adds tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.expr.calls import infer
from fluidlite.expr.declare import operator
from fluidlite.operators.inference import Inferred, spec_like
from fluidlite.operators.operands import same_dtypes
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Differentiation, Inference, Lowering
from fluidlite.tensor.tensor_spec import specs_of

# mean --------------------------------------------------------------------------------------------------------------


@operator(
    "mean",
    Differentiation(reads=(), doc="X@GRAD = Out@GRAD / size of X, everywhere"),
    dtypes={"X": ALL_FLOATS},
    doc="Out = the mean of all elements of X, as [1]",
    source="Fluid mean_op.cc",
)
def mean(x: e.Tensor) -> e.Tensor:
    """The sum over the number of elements."""
    return e.reshape(e.reduce_mean(x), (1,))


# reduce_* ----------------------------------------------------------------------------------------------------------

REDUCE_ATTRS = (
    Attr("dim", "ints", (0,), doc="the dims to reduce; negative ones count from the end"),
    Attr("keep_dim", "bool", False, doc="keep reduced dims as 1"),
    Attr("reduce_all", "bool", False, doc="reduce all dims, and ignore dim"),
)


def axes_of(x: e.Tensor, dim: tuple[int, ...], reduce_all: bool) -> tuple[int, ...]:
    """The axes that a reduce operator reduces, sorted."""
    return tuple(range(x.rank)) if reduce_all else e.axes("dim", dim, x)


def without_axes(reduced: e.Tensor, axes: tuple[int, ...], keep_dim: bool) -> e.Tensor:
    """Remove the reduced axes, which have size 1; as in Fluid a result without dims becomes [1]."""
    dims = reduced.dims if keep_dim else [d for axis, d in enumerate(reduced.dims) if axis not in axes]
    return e.reshape(reduced, tuple(dims) or (1,))


_VALUES = ("X", "Out")
_NUMBERS = (*ALL_FLOATS, *INTS)


def _reduction(
    type: str,
    reduce: Callable[..., e.Tensor],
    reads: tuple[str, ...] | None,
    doc: str,
    grad_doc: str = "",
    dtypes: tuple[str, ...] = _NUMBERS,
    library: bool = False,
) -> None:
    def reduction(x: e.Tensor, *, dim: tuple[int, ...], keep_dim: bool, reduce_all: bool) -> e.Tensor:
        axes = axes_of(x, dim, reduce_all)
        return without_axes(reduce(x, axes, True), axes, keep_dim)

    operator(
        type,
        Differentiation(reads=reads, doc=grad_doc),
        Lowering(library=library),
        attrs=REDUCE_ATTRS,
        dtypes={"X": dtypes},
        doc=doc,
        source="Fluid reduce_op.h",
    )(reduction)


_reduction(
    "reduce_sum",
    e.reduce_sum,
    (),
    "Out = the sum of X over the dims",
    "X@GRAD = Out@GRAD, expanded to X",
)
_reduction(
    "reduce_mean",
    e.reduce_mean,
    (),
    "Out = the mean of X over the dims",
    "X@GRAD = Out@GRAD / the number of elements reduced to one, expanded to X",
    ALL_FLOATS,
)
_reduction(
    "reduce_max",
    e.reduce_max,
    _VALUES,
    "Out = the maximum of X over the dims; NaN if one is NaN",
    "X@GRAD = Out@GRAD where X equals Out (every equal maximum), else 0",
)
_reduction(
    "reduce_min",
    e.reduce_min,
    _VALUES,
    "Out = the minimum of X over the dims; NaN if one is NaN",
    "X@GRAD = Out@GRAD where X equals Out (every equal minimum), else 0",
)
_reduction(
    "reduce_prod",
    e.reduce_prod,
    _VALUES,
    "Out = the product of X over the dims",
    "X@GRAD = Out@GRAD times the product of the other elements, which may be 0",
)
# A library's kernel tests many truth values at once and returns early.
_reduction(
    "reduce_all",
    e.reduce_all,
    None,
    "Out = whether all of X over the dims are true",
    dtypes=("bool",),
    library=True,
)
_reduction(
    "reduce_any",
    e.reduce_any,
    None,
    "Out = whether one of X over the dims is true",
    dtypes=("bool",),
    library=True,
)

# sum ---------------------------------------------------------------------------------------------------------------


def _infer_sum(call: Call) -> Inferred:
    """As in Fluid, Out has the LoD of the first tensor."""
    (out,) = specs_of(infer(call)["Out"])
    return {"Out": spec_like(call.spec("X"), out.dims)}


def _grad_sum(maker: Any) -> None:
    """Copy Out@GRAD to each requested gradient."""
    dout = maker.output_grad("Out")
    for i in range(maker.count("X")):
        grad = maker.input_grad("X", i)
        if grad is not None:
            maker.op("scale", {"X": dout}, {"Out": grad}, {"scale": 1.0})


@operator(
    "sum",
    Differentiation(rule=_grad_sum),
    Inference(_infer_sum),
    inputs=[Slot("X", duplicable=True)],
    dtypes={"X": (*ALL_FLOATS, *INTS)},
    doc="Out = X[0] + X[1] + ..., in this order; many half-type tensors add up in a float32 copy",
    source="Fluid sum_op.cc",
)
def sum_(x: tuple[e.Tensor, ...]) -> e.Tensor:
    """Add the tensors in order."""
    same_dtypes(x, "X")
    total, dims = x[0], x[0].dims
    for operand in x[1:]:
        if not (e.all_agree(x[0].dims, operand.dims) and e.all_agree(dims, operand.dims)):
            e.fail("X", "tensors of equal dims")
        dims = tuple(b if e.static_value(a) is None else a for a, b in zip(dims, operand.dims, strict=True))
        total = total + operand
    return total
