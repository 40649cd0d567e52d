"""Sorting and selection: argsort, top_k, arg_max and arg_min. They are stable: of equal elements the first wins."""

from __future__ import annotations

from collections.abc import Callable

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, ALL_INTS, INTS
from fluidlite.expr.declare import gradient, operator
from fluidlite.geometry.numbers import number_of
from fluidlite.operators.inference import Inferred, normal_axis, spec_like
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, as_tensor
from fluidlite.program.operator_options import Execution, Inference
from fluidlite.program.registry import register_op

NUMBERS = (*ALL_FLOATS, *INTS)

# argsort -----------------------------------------------------------------------------------------------------------

_SORT = (
    Attr("axis", "int", -1, doc="the axis along which to sort; negative ones count from the end"),
    Attr("descending", "bool", False, doc="largest first"),
)


def _infer_argsort(call: Call) -> Inferred:
    x = call.spec("X")
    call.need(x.rank >= 1, "X", "rank 1 or more")
    normal_axis(call, "axis", call.attr("axis"), x.rank)
    return {"Out": spec_like(x), "Indices": spec_like(x, dtype="int64")}


_argsort = register_op(
    "argsort",
    Inference(_infer_argsort),
    inputs=("X",),
    outputs=("Out", "Indices"),
    attrs=_SORT,
    dtypes={"X": NUMBERS},
    doc="Out = X sorted along the axis, NaN last; Indices = the original index of each element; stable; takes "
    "temporary memory of both outputs, and twice that if only one is requested",
    source="Fluid argsort_op.cc",
)


@gradient(
    _argsort,
    Execution(memory="where arrays compute, Indices as places in all of X: twice as much as X in float32"),
    metadata=("X",),
    doc="X@GRAD[Indices[i]] = Out@GRAD[i] along the axis",
)
def argsort_grad(x: e.Tensor, indices: e.Tensor, dout: e.Tensor, *, axis: int) -> e.Tensor:
    """Scatter each element to its original index."""
    at = axis % x.rank
    return e.put(dout, e.checked(indices, x.dims[at]), at, x.dims[at])


# top_k -------------------------------------------------------------------------------------------------------------


def _infer_top_k(call: Call) -> Inferred:
    x, k = call.spec("X"), number_of(call, "k")
    call.need(x.rank >= 1, "X", "rank 1 or more")
    if k is None:
        k = -1
    elif k < 1:
        call.fail_attr("k", "1 or more")
    if 0 <= x.dims[-1] < k:
        call.fail("X", f"at least k = {k} columns")
    dims = (*x.dims[:-1], k)
    return {"Out": spec_like(x, dims), "Indices": spec_like(x, dims, "int64")}


_top_k = register_op(
    "top_k",
    Inference(_infer_top_k, kernel_dtype="X"),
    Execution(memory="where arrays compute, a copy of X in which selected elements are masked"),
    inputs=("X", as_tensor("K")),
    outputs=("Out", "Indices"),
    attrs=(Attr("k", "int", 1, minimum=1, doc="how many of the largest", tensors=(as_tensor("K"),)),),
    dtypes={"X": NUMBERS, "K": INTS},
    doc="Out = the k largest of each row of X, largest first; Indices = where they are (of equal ones, the first)",
    source="Fluid top_k_op.cc",
)


@gradient(_top_k, metadata=("X",), doc="X@GRAD[..., Indices[..., j]] = Out@GRAD[..., j], else 0")
def top_k_grad(x: e.Tensor, indices: e.Tensor, dout: e.Tensor) -> e.Tensor:
    """Scatter each element to its original index."""
    return e.put(dout, e.checked(indices, x.dims[-1]), -1, x.dims[-1])


# arg_max, arg_min --------------------------------------------------------------------------------------------------


def _index_of(type: str, find: Callable[..., e.Tensor], word: str) -> None:
    @operator(
        type,
        attrs=[
            Attr("axis", "int", doc="the axis along which to look; negative ones count from the end"),
            Attr("keepdims", "bool", False, doc="keep the axis as 1"),
            Attr("flatten", "bool", False, doc="flatten X and ignore axis; Out is [1]"),
            Attr("dtype", "dtype", optional=True, choices=INTS, doc="dtype of Out; none, or -1: int64"),
        ],
        dtypes={"X": (*ALL_FLOATS, *ALL_INTS)},
        doc=f"Out = where X is {word} along the axis: the first of equal ones, the first NaN if there is one",
        source="Fluid arg_min_max_op_base.h",
    )
    def index_of(x: e.Tensor, *, axis: int, keepdims: bool, flatten: bool, dtype: str | None) -> e.Tensor:
        """Reduce along an axis of X, or over the flattened X."""
        if not x.rank:
            e.fail("X", "rank 1 or more")
        values = e.reshape(x, (e.product(x.dims),)) if flatten else x
        at = 0 if flatten else e.axis("axis", axis, x)
        results = e.product(d for i, d in enumerate(values.dims) if i != at)
        is_empty = e.lowest(results, 1) * (1 - e.lowest(values.dims[at], 1))
        e.need(is_empty == 0, "X", "one element or more to choose from")
        index = find(e.wide(values), at, keepdims and not flatten)
        return e.cast(index if index.rank else e.reshape(index, (1,)), dtype or "int64")


_index_of("arg_max", e.argmax, "largest")
_index_of("arg_min", e.argmin, "least")
