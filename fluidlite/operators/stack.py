"""Stacking along a new axis and the inverse: stack, unstack, unbind."""

from __future__ import annotations

from typing import Any

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL
from fluidlite.expr.calls import infer
from fluidlite.expr.declare import gradient, operator
from fluidlite.operators.inference import Inferred, normal_axis
from fluidlite.operators.operands import same_dtypes
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Infer, Slot
from fluidlite.program.operator_options import Differentiation, Inference

_AXIS = Attr("axis", "int", 0, doc="the axis of the stack")
Tensors = tuple[e.Tensor, ...]


def _stacked(parts: Tensors, axis: int, slot: str) -> e.Tensor:
    """Check that dims are equal, and stack along a new axis."""
    same_dtypes(parts, slot)
    first = parts[0]
    if not -first.rank - 1 <= axis <= first.rank:
        expected = f"an axis in [{-first.rank - 1}, {first.rank + 1}) of the stack; {slot} is {e.describe(first)}"
        e.fail_attr("axis", expected)
    for part in parts[1:]:
        e.need(part.rank == first.rank, slot, "tensors of equal dims")
        for size, other in zip(first.dims, part.dims, strict=False):
            e.need(size == other, slot, "tensors of equal dims")
    return e.stack(parts, axis)


def _unstacked(x: e.Tensor, axis: int) -> Tensors:
    """The slices of a tensor along an axis, which they lack."""
    at = e.axis("axis", axis, x)
    return tuple(e.squeeze(e.slice_axis(x, at, i, 1), at) for i in range(e.exactly(x.dims[at])))


def _infer_parts(slot: str, out: str) -> Infer:
    """Infer with the size of the axis; if it is unknown, the number of output variables gives it."""

    def infer_with_size(call: Call) -> Inferred:
        x, count = call.spec(slot), call.count(out)
        axis = normal_axis(call, "axis", call.attr("axis"), x.rank, slot)
        size = count if x.dims[axis] < 0 else x.dims[axis]
        if size > 65536 or count not in (0, size):  # checked before that many specs are created
            call.fail(slot, f"{count} parts along axis {axis}, as many as {out} has variables")
        sized = x.with_(dims=(*x.dims[:axis], size, *x.dims[axis + 1 :]))
        return infer(Call(call.op, {slot: (sized,)}, call.outs, call.attrs, call.place, call.training))

    return infer_with_size


# stack -------------------------------------------------------------------------------------------------------------


@operator(
    "stack",
    inputs=[Slot("X", duplicable=True)],
    outputs=["Y"],
    attrs=[_AXIS],
    dtypes={"X": ALL},
    doc="Y = the tensors X stacked along a new axis",
    source="Fluid stack_op.cc",
)
def stack(x: Tensors, *, axis: int) -> e.Tensor:
    """Stack one tensor or more."""
    return _stacked(x, axis, "X")


@gradient(
    stack, Inference(_infer_parts("Y@GRAD", "X@GRAD")), doc="X@GRAD[i] = the part of Y@GRAD that corresponds to X[i]"
)
def stack_grad(dy: e.Tensor, *, axis: int) -> tuple[Tensors]:
    """Hand-written: it takes the dims from Y@GRAD, so that X is not read."""
    return (_unstacked(dy, axis),)


# unstack -----------------------------------------------------------------------------------------------------------


def _infer_unstack(call: Call) -> Inferred:
    axis = normal_axis(call, "axis", call.attr("axis"), call.spec("X").rank)
    if call.dims("X")[axis] not in (-1, call.attr("num")):
        call.fail_attr("num", f"{call.dims('X')[axis]}, dim {axis} of X ({call.describe('X')})")
    return _infer_parts("X", "Y")(call)


@operator(
    "unstack",
    Inference(_infer_unstack),
    outputs=[Slot("Y", duplicable=True)],
    dtypes={"X": ALL},
    attrs=[_AXIS, Attr("num", "int", minimum=1, maximum=65536, doc="number of parts: X's dim at axis")],
    doc="Y = the parts of X along axis, without it",
    source="Fluid unstack_op.cc",
)
def unstack(x: e.Tensor, *, axis: int) -> tuple[Tensors]:
    """One output for each index along the axis."""
    return (_unstacked(x, axis),)


@gradient(unstack, Inference(infer), doc="X@GRAD = the gradients Y@GRAD side by side along axis")
def unstack_grad(dy: Tensors, *, axis: int) -> e.Tensor:
    """Hand-written: it takes the dims from Y@GRAD, so that X is not read."""
    return _stacked(dy, axis, "Y@GRAD")


# unbind ------------------------------------------------------------------------------------------------------------


def _grad_unbind(maker: Any) -> None:
    out_grads = maker.output_grads("Out")
    maker.op("stack", {"X": out_grads}, {"Y": maker.input_grad("X")}, {"axis": maker.attr("axis")})


@operator(
    "unbind",
    Differentiation(rule=_grad_unbind),
    Inference(_infer_parts("X", "Out")),
    outputs=[Slot("Out", duplicable=True)],
    attrs=[_AXIS],
    dtypes={"X": ALL},
    doc="Out = the parts of X along axis, without it",
    source="Fluid unbind_op.cc",
)
def unbind(x: e.Tensor, *, axis: int) -> tuple[Tensors]:
    """As unstack, without the attribute ``num``."""
    return (_unstacked(x, axis),)
