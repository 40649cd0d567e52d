"""Repeating tensors: expand (tile), expand_as, meshgrid."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL
from fluidlite.expr.calls import infer
from fluidlite.expr.declare import gradient, operator
from fluidlite.geometry.numbers import numbers_of
from fluidlite.operators.inference import Inferred, spec_like, without_lod
from fluidlite.operators.operands import same_dtypes
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot, as_tensor, as_tensors
from fluidlite.program.operator_options import Differentiation, Inference
from fluidlite.tensor.tensor_spec import Spec

# expand ------------------------------------------------------------------------------------------------------------


def _infer_expand(call: Call) -> Inferred:
    x, times = call.spec("X"), numbers_of(call, "expand_times")
    if times is None:
        times = (None,) * x.rank
    if len(times) != x.rank:
        call.fail_attr("expand_times", f"{x.rank} numbers, one for each dim of X ({call.describe('X')})")
    if any(n is not None and n < 1 for n in times):
        call.fail_attr("expand_times", "numbers of 1 or more")
    hints = call.attr("expand_times") if len(call.attr("expand_times")) == x.rank else (-1,) * x.rank
    dims = []
    for d, n, hint in zip(x.dims, times, hints, strict=True):
        n = hint if n is None else n  # the attribute gives an estimate until the tensor's value is known
        dims.append(d * n if d >= 0 and n >= 1 else -1)
    return {"Out": spec_like(x, dims) if dims[:1] == list(x.dims[:1]) else Spec.of(dims, x.dtype)}


def _tiled(x: e.Tensor) -> e.Tensor:
    """Tile a tensor to the inferred dims, which are multiples of its own."""
    dims = e.results("Out")[0]
    source_dims: list[e.Number | int] = []
    tiled_dims: list[e.Number] = []
    for size, target in zip(x.dims, dims, strict=True):
        is_repeated = not bool(size == target)
        source_dims += [1, size] if is_repeated else [size]
        tiled_dims += [target // size, size] if is_repeated else [size]
    return e.reshape(e.broadcast(e.reshape(x, source_dims), tiled_dims), dims)


def _sum_repetitions(x: e.Tensor, dout: e.Tensor) -> e.Tensor:
    """The sum over the repetitions. Hand-written: it takes their number from the dims of Out@GRAD."""
    split_dims: list[e.Number] = []
    axes = []
    if dout.rank != x.rank:
        e.fail("Out@GRAD", f"rank {x.rank}, as X ({e.describe(x)})")
    for axis, (size, target) in enumerate(zip(x.dims, dout.dims, strict=True)):
        if not bool(size == target):
            multiple = f"a multiple of {{0}} elements in dim {axis}, as X has"
            e.need(target // size * size == target, "Out@GRAD", multiple, numbers=(size,))
            axes.append(len(split_dims))
            split_dims.append(target // size)
        split_dims.append(size)
    return e.reshape(e.reduce_sum(e.reshape(dout, split_dims), axes), x.dims) if axes else e.reshape(dout, x.dims)


_GRAD_DOC = "X@GRAD = the sum of Out@GRAD over the repetitions; on kernel languages partial sums take temporary memory"


@operator(
    "expand",
    Inference(_infer_expand),
    attrs=[
        Attr(
            "expand_times",
            "ints",
            (),
            minimum=-1,
            doc="how often each dim of X is repeated; -1: a tensor",
            tensors=(as_tensor("ExpandTimes"), as_tensors("expand_times_tensor")),
        )
    ],
    dtypes={"X": ALL},
    doc="Out = X, repeated along each dim",
    source="Fluid expand_op.cc",
)
def expand(x: e.Tensor) -> e.Tensor:
    """The dims of Out give the number of repetitions."""
    return _tiled(x)


gradient(expand, metadata=("X",), doc=_GRAD_DOC)(_sum_repetitions)


# expand_as ---------------------------------------------------------------------------------------------------------


def _infer_expand_as(call: Call) -> Inferred:
    x, target = call.spec("X"), call.dims("target_tensor")
    call.need(len(target) == x.rank, "target_tensor", f"rank {x.rank}, as X ({call.describe('X')})")
    for i, (d, n) in enumerate(zip(x.dims, target, strict=True)):
        if d >= 0 and n >= 0 and (n % d if d else n):
            call.fail("target_tensor", f"a multiple of {d} in dim {i}, for X is {call.describe('X')}")
    return {"Out": spec_like(x, target) if target[:1] == x.dims[:1] else Spec.of(target, x.dtype)}


@operator(
    "expand_as",
    Inference(_infer_expand_as),
    inputs=[
        Slot("X", doc="of one rank; only the dims of the target are read"),
        Slot("target_tensor", metadata_only=True, doc="its dims are those of Out"),
    ],
    dtypes={"X": ALL},
    doc="Out = X, repeated up to the dims of target_tensor",
    source="Fluid expand_as_op.cc",
)
def expand_as(x: e.Tensor, target_tensor: e.Tensor) -> e.Tensor:
    """Tile to the dims of the target."""
    return _tiled(x)


gradient(expand_as, metadata=("X",), doc=_GRAD_DOC)(_sum_repetitions)


# meshgrid ----------------------------------------------------------------------------------------------------------


@operator(
    "meshgrid",
    Differentiation(reads=(), doc="X@GRAD[i] = the sum of Out@GRAD[i] over all dims but i"),
    Inference(without_lod(infer)),
    inputs=[Slot("X", duplicable=True, doc="vectors, [size]")],
    outputs=[Slot("Out", duplicable=True)],
    dtypes={"X": ALL},
    doc="Out[i] = X[i] along dim i, repeated along the others",
    source="Fluid meshgrid_op.cc",
)
def meshgrid(x: tuple[e.Tensor, ...]) -> tuple[tuple[e.Tensor, ...]]:
    """A tensor of rank 0 counts as a vector of one element."""
    same_dtypes(x, "X")
    for part in x:
        if part.rank > 1:
            e.fail("X", "vectors, [n], or numbers")
    dims = [part.dims[0] if part.rank else 1 for part in x]
    placed = (e.reshape(part, [d if k == i else 1 for k, d in enumerate(dims)]) for i, part in enumerate(x))
    return (tuple(e.broadcast(part, dims) for part in placed),)
