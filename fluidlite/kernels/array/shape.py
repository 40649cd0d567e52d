"""transpose2, concat, split, slice and crop, with gradients. Reshapes are the memory capability's."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

from fluidlite.plugin import IO, Call, Context, OutOfRangeError, register_kernel

from .common import numpy_style


@register_kernel("transpose2", "array")
def transpose2(call: Call, context: Context) -> Any:
    """Out's axis i is X's axis ``axis[i]``."""
    return _permute(call, context, "X", "Out", tuple(call.attr("axis")))


@register_kernel("transpose2_grad", "array")
def transpose2_grad(call: Call, context: Context) -> Any:
    """The inverse permutation."""
    axis = call.attr("axis")
    inverse = tuple(sorted(range(len(axis)), key=lambda i: axis[i] % len(axis)))
    return _permute(call, context, "Out@GRAD", "X@GRAD", inverse)


def _permute(call: Call, context: Context, source: str, target: str, axes: tuple[int, ...]) -> Any:
    permute, axes = context.xp.permute_dims, tuple(axis % len(axes) for axis in axes)

    def run(context: Context, io: IO) -> None:
        io.array(target)[...] = permute(io.array(source), axes)

    return run


@register_kernel("concat", "array")
def concat(call: Call, context: Context) -> Any:
    """The inputs one after another along ``axis``."""
    xp, axis = context.xp, call.attr("axis") % len(call.dims("Out"))
    if numpy_style(context):

        def run_into(context: Context, io: IO) -> None:
            xp.concatenate(io.arrays("X"), axis, io.array("Out"))

        return run_into

    def run(context: Context, io: IO) -> None:
        io.array("Out")[...] = xp.concat(io.arrays("X"), axis=axis)

    return run


def _parts(call: Call, slot: str, axis: int) -> list[tuple[Any, ...]]:
    """Where each variable of a slot lies in the whole, along ``axis``."""
    sizes = [spec.dims[axis] for spec in call.specs(slot)]
    ends = list(accumulate(sizes))
    before = (slice(None),) * axis
    return [(*before, slice(end - size, end), ...) for size, end in zip(sizes, ends, strict=True)]


@register_kernel("concat_grad", "array")
def concat_grad(call: Call, context: Context) -> Any:
    """X@GRAD[i] = the part of Out@GRAD that came from X[i]."""
    parts = _parts(call, "X", call.attr("axis") % len(call.dims("Out@GRAD")))

    def run(context: Context, io: IO) -> None:
        dout = io.array("Out@GRAD")
        for i, part in enumerate(parts):
            io.array("X@GRAD", i)[...] = dout[part]

    return run


@register_kernel("split", "array")
def split(call: Call, context: Context) -> Any:
    """The reverse of concat."""
    parts = _parts(call, "Out", call.attr("axis") % len(call.dims("X")))

    def run(context: Context, io: IO) -> None:
        x = io.array("X")
        for i, part in enumerate(parts):
            io.array("Out", i)[...] = x[part]

    return run


def _window(call: Call, dims: tuple[int, ...]) -> tuple[slice, ...]:
    """The part of an array that ``slice`` takes: negative positions count from the end, too large ones clamp."""
    window = [slice(0, size) for size in dims]
    for axis, start, end in zip(call.attr("axes"), call.attr("starts"), call.attr("ends"), strict=True):
        window[axis] = slice(*slice(start, end).indices(dims[axis])[:2])
    return tuple(window)


@register_kernel("slice", "array")
def slice_(call: Call, context: Context) -> Any:
    """Out = X[starts:ends] along ``axes``, without the axes in ``decrease_axis``."""
    xp, window, dims = context.xp, _window(call, call.dims("Input")), call.dims("Out")

    def run(context: Context, io: IO) -> None:
        io.array("Out")[...] = xp.reshape(io.array("Input")[window], dims)

    return run


@register_kernel("slice_grad", "array")
def slice_grad(call: Call, context: Context) -> Any:
    """Input@GRAD = Out@GRAD in the window, 0 elsewhere."""
    return _paste(call, context, "Input@GRAD", _window(call, call.dims("Input@GRAD")))


def _paste(call: Call, context: Context, slot: str, window: tuple[slice, ...]) -> Any:
    xp, dims = context.xp, tuple(max(part.stop - part.start, 0) for part in window)

    def run(context: Context, io: IO) -> None:
        grad = io.array(slot)
        grad[...] = 0.0
        grad[window] = xp.reshape(io.array("Out@GRAD"), dims)

    return run


def _crop_window(call: Call, whole: tuple[int, ...], part: tuple[int, ...]) -> Callable[[IO], tuple[slice, ...]]:
    """Return the function that says where the crop lies; the definition has checked the attribute, not the tensor."""
    if not call.has("Offsets"):
        fixed = tuple(slice(start, start + size) for start, size in zip(call.attr("offsets"), part, strict=True))
        return lambda io: fixed

    def window(io: IO) -> tuple[slice, ...]:
        starts = [int(start) for start in io.array("Offsets")]
        for start, size, limit in zip(starts, part, whole, strict=True):
            if not 0 <= start <= limit - size:
                raise OutOfRangeError(
                    f"Offsets is {starts}: a crop of {list(part)} does not lie in {list(whole)} from there"
                )
        return tuple(slice(start, start + size) for start, size in zip(starts, part, strict=True))

    return window


@register_kernel("crop", "array")
def crop(call: Call, context: Context) -> Any:
    """Out = the part of X of Out's dims that begins at the offsets (slot Offsets, else the attribute)."""
    window = _crop_window(call, call.dims("X"), call.dims("Out"))

    def run(context: Context, io: IO) -> None:
        io.array("Out")[...] = io.array("X")[window(io)]

    return run


@register_kernel("crop_grad", "array")
def crop_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD in the window, 0 elsewhere."""
    window = _crop_window(call, call.dims("X@GRAD"), call.dims("Out@GRAD"))

    def run(context: Context, io: IO) -> None:
        grad = io.array("X@GRAD")
        grad[...] = 0.0
        grad[window(io)] = io.array("Out@GRAD")

    return run
