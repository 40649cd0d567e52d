"""Concatenation and splitting along an axis: concat, split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL
from fluidlite.expr.calls import infer
from fluidlite.expr.declare import gradient, operator
from fluidlite.expr.gradients import infer_gradient
from fluidlite.geometry.numbers import OptionalInt, number_of, numbers_of
from fluidlite.operators.inference import (
    Inferred,
    dims_compatible,
    normal_axis,
    spec_like,
)
from fluidlite.operators.operands import same_dtypes
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD, Attr, Slot, as_tensor, as_tensors
from fluidlite.program.operator_options import Differentiation, Inference
from fluidlite.tensor.lod import concatenated_lod
from fluidlite.tensor.tensor_spec import Spec

# concat and split --------------------------------------------------------------------------------------------------


def _axis(call: Call, rank: int) -> int | None:
    """Return the axis as 0..rank-1; None if a tensor of unknown value gives it."""
    axis = number_of(call, "axis")
    return axis if axis is None else normal_axis(call, "axis", axis, rank)


def _infer_concat(call: Call) -> Inferred:
    specs = call.specs("X")
    axis = _axis(call, specs[0].rank) if call.has("AxisTensor") and specs else call.attr("axis")
    if axis is None:
        return {"Out": Spec.of((-1,) * specs[0].rank, specs[0].dtype)}
    inferred = infer(call)
    if axis % specs[0].rank:
        return inferred
    levels = {spec.lod_level for spec in specs}
    call.need(len(levels) == 1, "X", "as many LoD levels in each, for axis 0", do="give all of them sequences, or none")
    out, lods = inferred["Out"], [spec.lod for spec in specs]
    assert isinstance(out, Spec)
    lod = concatenated_lod(lods) if all(lods) else ()  # some LoDs are still unknown
    return {"Out": out.with_(lod=lod, lod_level=specs[0].lod_level)}


def _infer_concat_grad(call: Call) -> Inferred:
    specs = call.specs("X")
    if call.has("AxisTensor") and _axis(call, specs[0].rank) is None:
        return {"X@GRAD": [spec_like(spec) for spec in specs]}
    return infer_gradient(GRAD)(call)


@operator(
    "concat",
    Inference(_infer_concat),
    inputs=[Slot("X", duplicable=True, doc="of one dtype, and of equal dims but for axis")],
    attrs=[Attr("axis", "int", 0, doc="the axis along which X are concatenated", tensors=(as_tensor("AxisTensor"),))],
    dtypes={"X": ALL},
    doc="Out = the concatenation of the tensors X along axis",
    source="Fluid concat_op.cc",
)
def concat(x: tuple[e.Tensor, ...], *, axis: e.Numeric) -> e.Tensor:
    """Check that dtypes, ranks and the other dims are equal, and concatenate."""
    same_dtypes(x, "X")
    for part in x:
        if part.rank != x[0].rank:
            e.fail("X", "tensors of one rank")
    at = e.axis("axis", e.exactly(axis), x[0])
    for part in x[1:]:
        for i, (size, other) in enumerate(zip(x[0].dims, part.dims, strict=True)):
            if i != at:
                e.need(size == other, "X", f"tensors of equal dims, but for axis {at}")
    return e.concat(x, at)


@gradient(
    concat,
    Inference(_infer_concat_grad),
    metadata=("X",),
    doc="X@GRAD[i] = the part of Out@GRAD that corresponds to X[i]",
)
def concat_grad(x: tuple[e.Tensor, ...], dout: e.Tensor, *, axis: e.Numeric) -> tuple[tuple[e.Tensor, ...]]:
    """Hand-written: the derived gradient cannot be traced before the axis is known."""
    at = e.axis("axis", e.exactly(axis), dout)
    sizes = [part.dims[at] for part in x]
    for part in x:
        e.need_dims(dout, [e.number(sum(sizes)) if k == at else d for k, d in enumerate(part.dims)], "Out@GRAD", "Out")
    return (_split_along(dout, at, sizes),)


def _split_along(x: e.Tensor, axis: int, sizes: Sequence[e.Number]) -> tuple[e.Tensor, ...]:
    """Slices of these sizes, one after the other along the axis."""
    parts, start = [], sizes[0] * 0
    for size in sizes:
        parts.append(e.slice_axis(x, axis, start, size))
        start = start + size
    return tuple(parts)


def _sections(call: Call, axis: int, extent: int) -> list[int]:
    """Return the size of each part; -1 where it is unknown."""
    requested, declared = numbers_of(call, "sections") or (), call.attr("sections")
    if any(n is not None and n < -1 for n in requested) or requested.count(-1) > 1:
        call.fail_attr("sections", "sizes of 0 or more, at most one of them -1")
    sections: list[OptionalInt] = list(requested)
    if None in sections:  # the attribute gives an estimate until the tensors' values are known
        hints = declared if len(declared) == len(requested) else (-1,) * len(requested)
        estimates = [max(hint, -1) if n is None else n for n, hint in zip(sections, hints, strict=True)]
        if -1 in estimates or dims_compatible(sum(estimates), extent):
            return estimates
        return [-1 if n is None else n for n in sections]  # the estimate contradicts the size of X
    sizes = [n for n in sections if n is not None]
    if -1 in sizes and extent < 0:
        return sizes
    if -1 in sizes:
        sizes[sizes.index(-1)] = extent - sum(n for n in sizes if n >= 0)
    if not dims_compatible(sum(sizes), extent) or min(sizes) < 0:
        call.fail_attr("sections", f"sizes that sum to {extent}, dim {axis} of X ({call.describe('X')})")
    return sizes


def _infer_split(call: Call) -> Inferred:
    x = call.spec("X")
    axis = _axis(call, x.rank)
    num = call.attr("num")
    divided = not call.attr("sections") and not call.has("SectionsTensorList")
    if divided and num < 1:
        call.fail_attr("num", "1 or more, since sections is empty")
    if axis is None:
        count = num if divided else len(numbers_of(call, "sections") or ())
        return {"Out": [Spec.of((-1,) * x.rank, x.dtype)] * count}
    extent = x.dims[axis]
    if not divided:
        sections = _sections(call, axis, extent)
    else:
        if extent >= 0 and extent % num:
            call.fail_attr("num", f"a divisor of {extent}, dim {axis} of X ({call.describe('X')})")
        sections = [extent // num if extent >= 0 else -1] * num

    def part(n: int) -> Spec:
        dims = (*x.dims[:axis], n, *x.dims[axis + 1 :])
        return spec_like(x, dims) if axis else Spec.of(dims, x.dtype)

    return {"Out": [part(n) for n in sections]}


def _grad_split(maker: Any) -> None:
    inputs = {"X": maker.output_grads("Out")}
    if maker.operator.input("AxisTensor"):
        inputs["AxisTensor"] = maker.input("AxisTensor")
    maker.op("concat", inputs, {"Out": maker.input_grad("X")}, {"axis": maker.attr("axis")})


@operator(
    "split",
    Differentiation(rule=_grad_split),
    Inference(_infer_split),
    outputs=[Slot("Out", duplicable=True)],
    attrs=[
        Attr("num", "int", 0, minimum=0, maximum=65536, doc="how many equal parts, if sections is empty"),
        Attr(
            "sections",
            "ints",
            (),
            doc="the size of each part; one may be -1: the remainder",
            tensors=(as_tensors("SectionsTensorList"),),
        ),
        Attr("axis", "int", 0, doc="the axis that is divided", tensors=(as_tensor("AxisTensor"),)),
    ],
    dtypes={"X": ALL},
    doc="Out = the parts of X along axis",
    source="Fluid split_op.cc",
)
def split(x: e.Tensor, *, axis: e.Numeric) -> Any:
    """Split into the sizes that inference has computed."""
    at = e.axis("axis", e.exactly(axis), x)
    return (_split_along(x, at, [dims[at] for dims in e.results("Out")]),)
