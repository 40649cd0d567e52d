"""transpose2, concat, split, slice and crop, with gradients: movements between strided views."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

from fluidlite.plugin import IO, ITEMSIZE, Call, Context, OutOfRangeError, register_kernel

from .source import part
from .strided import filler, mover, steps_of


@register_kernel("transpose2", "dialect")
def transpose2(call: Call, context: Context) -> Any:
    """Out's axis i is X's axis ``axis[i]``."""
    axis, steps = call.attr("axis"), steps_of(call.dims("X"))
    return _permute(call, context, "X", "Out", [steps[i] for i in axis])


@register_kernel("transpose2_grad", "dialect")
def transpose2_grad(call: Call, context: Context) -> Any:
    """The inverse permutation."""
    axis, steps = call.attr("axis"), steps_of(call.dims("Out@GRAD"))
    return _permute(call, context, "Out@GRAD", "X@GRAD", [steps[axis.index(i)] for i in range(len(axis))])


def _permute(call: Call, context: Context, source: str, target: str, steps: Sequence[int]) -> Any:
    dims, dtype = call.dims(target), call.dtype(target)
    move = mover(context, dtype, dtype, dims, steps, steps_of(dims))
    return lambda context, io: move(context, io.span(source), io.span(target))


def _parts(call: Call, context: Context, parts: str, whole: str, join: bool) -> Any:
    """Copy the variables of slot ``parts`` into ``whole``, side by side along ``axis``, or out of it."""
    dims, dtype = call.dims(whole), call.dtype(whole)
    axis, steps = call.attr("axis") % len(dims), steps_of(dims)
    moves = []
    specs = call.specs(parts)
    ends = accumulate(spec.dims[axis] for spec in specs)
    for i, (spec, end) in enumerate(zip(specs, ends, strict=True)):
        own = steps_of(spec.dims)
        start = (end - spec.dims[axis]) * steps[axis] * ITEMSIZE[dtype]
        between = (own, steps) if join else (steps, own)
        if spec.size:
            moves.append((i, start, mover(context, dtype, dtype, spec.dims, *between)))

    def run(context: Context, io: IO) -> None:
        span = io.span(whole)
        for i, start, move in moves:
            if join:
                move(context, io.span(parts, i), part(span, start))
            else:
                move(context, part(span, start), io.span(parts, i))

    return run


@register_kernel("concat", "dialect")
def concat(call: Call, context: Context) -> Any:
    """The inputs one after another along ``axis``."""
    return _parts(call, context, "X", "Out", join=True)


@register_kernel("concat_grad", "dialect")
def concat_grad(call: Call, context: Context) -> Any:
    """X@GRAD[i] = the part of Out@GRAD that came from X[i]."""
    return _parts(call, context, "X@GRAD", "Out@GRAD", join=False)


@register_kernel("split", "dialect")
def split(call: Call, context: Context) -> Any:
    """The reverse of concat."""
    return _parts(call, context, "Out", "X", join=False)


def _window(call: Call, dims: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (start, dims) of the part that ``slice`` takes: negative positions count from the end, others clamp."""
    starts, sizes = [0] * len(dims), list(dims)
    for axis, start, end in zip(call.attr("axes"), call.attr("starts"), call.attr("ends"), strict=True):
        first, last, _ = slice(start, end).indices(dims[axis])
        starts[axis], sizes[axis] = first, max(last - first, 0)
    return tuple(starts), tuple(sizes)


@register_kernel("slice", "dialect")
def slice_(call: Call, context: Context) -> Any:
    """Out = Input[starts:ends] along ``axes``, without the axes in ``decrease_axis``."""
    starts, sizes = _window(call, call.dims("Input"))
    return _cut(call, context, "Input", starts, sizes)


@register_kernel("slice_grad", "dialect")
def slice_grad(call: Call, context: Context) -> Any:
    """Input@GRAD = Out@GRAD in the window, 0 elsewhere."""
    starts, sizes = _window(call, call.dims("Input@GRAD"))
    return _paste(call, context, "Input@GRAD", starts, sizes)


@register_kernel("crop", "dialect")
def crop(call: Call, context: Context) -> Any:
    """Out = the part of X of Out's dims that begins at the offsets (slot Offsets, else the attribute)."""
    return _cut(call, context, "X", call.attr("offsets"), call.dims("Out"))


@register_kernel("crop_grad", "dialect")
def crop_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD in the window, 0 elsewhere."""
    return _paste(call, context, "X@GRAD", call.attr("offsets"), call.dims("Out@GRAD"))


def _cut(call: Call, context: Context, slot: str, starts: Sequence[int], sizes: tuple[int, ...]) -> Any:
    dims, dtype = call.dims(slot), call.dtype(slot)
    move = mover(context, dtype, dtype, sizes, steps_of(dims), steps_of(sizes))
    start = _start(call, slot, starts, sizes)
    return lambda context, io: move(context, part(io.span(slot), start(io)), io.span("Out"))


def _paste(call: Call, context: Context, slot: str, starts: Sequence[int], sizes: tuple[int, ...]) -> Any:
    dims, dtype = call.dims(slot), call.dtype(slot)
    zero, size = filler(context, dtype, 0), prod(dims)
    move = mover(context, dtype, dtype, sizes, steps_of(sizes), steps_of(dims))
    start = _start(call, slot, starts, sizes)

    def run(context: Context, io: IO) -> None:
        grad = io.span(slot)
        zero(context, grad, size)
        if prod(sizes):
            move(context, io.span("Out@GRAD"), part(grad, start(io)))

    return run


def _start(call: Call, slot: str, starts: Sequence[int], sizes: tuple[int, ...]) -> Any:
    """Return the function that tells the byte at which a window begins."""
    dims = call.dims(slot)
    steps, width = steps_of(dims), ITEMSIZE[call.dtype(slot)]
    if not call.has("Offsets"):
        begin = sum(at * step for at, step in zip(starts, steps, strict=True)) * width
        return lambda io: begin

    def start(io: IO) -> int:
        offsets = io.tensor("Offsets").numpy().tolist()
        for axis, (at, size, whole) in enumerate(zip(offsets, sizes, dims, strict=True)):
            if at < 0 or at + size > whole:
                raise OutOfRangeError(
                    f"Offsets[{axis}] is {at}; expected 0 to {whole - size}, so that {size} of {whole} elements follow"
                )
        return int(sum(at * step for at, step in zip(offsets, steps, strict=True))) * width

    return start
