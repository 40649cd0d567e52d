"""unfold and its gradient: each element of a window is a strided view of the image."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fluidlite.plugin import IO, Call, Context, block_counts, compute_dtype, register_kernel

from .common import immediate, numpy_style, widener

Part = tuple[Any, ...]
_ALL = slice(None)


def _taps(call: Call) -> tuple[tuple[int, ...], list[tuple[Part, Part, bool]]]:
    """Return the dims [images, channels, i, j, rows, columns] of Y, and of each element of a window: where it is in
    Y, where in X, and whether some of it is padding. One that is all padding has no place in X.
    """
    images, channels = call.dims("X")[:2]
    (kh, kw), counts = call.attr("kernel_sizes"), block_counts(call)

    def found() -> Iterator[tuple[Part, Part, bool]]:
        for i in range(kh):
            for j in range(kw):
                across, along = _inside(call, 0, i, counts[0]), _inside(call, 1, j, counts[1])
                if across is None or along is None:
                    yield (_ALL, _ALL, i, j, _ALL, _ALL), (), True
                    continue
                (rows, h), (columns, w) = across, along
                padded = any(part.stop - part.start < n for part, n in zip((rows, columns), counts, strict=True))
                yield (_ALL, _ALL, i, j, rows, columns), (_ALL, _ALL, h, w), padded

    return (images, channels, kh, kw, *counts), list(found())


def _inside(call: Call, axis: int, element: int, count: int) -> tuple[slice, slice] | None:
    """The windows whose element number so and so lies in the image, and where."""
    step, size = call.attr("strides")[axis], call.dims("X")[2 + axis]
    shift = element * call.attr("dilations")[axis] - call.attr("paddings")[axis]
    first, last = max(0, -(shift // step)), min(count - 1, (size - 1 - shift) // step)
    if first > last:
        return None
    return slice(first, last + 1), slice(first * step + shift, last * step + shift + 1, step)


@register_kernel("unfold", "array")
def unfold(call: Call, context: Context) -> Any:
    """One copy an element of the window."""
    xp, (dims, taps) = context.xp, _taps(call)

    def run(context: Context, io: IO) -> None:
        x, y = io.array("X"), xp.reshape(io.array("Y"), dims)
        for part, source, padded in taps:
            if padded:
                y[(*part[:4], _ALL, _ALL)] = 0.0
            if source:
                y[part] = x[source]

    return run


@register_kernel("unfold_grad", "array")
def unfold_grad(call: Call, context: Context) -> Any:
    """The windows' elements are added back; on the host image by image, so that it stays in the cache."""
    xp, (dims, taps), dtype = context.xp, _taps(call), call.dtype("Y@GRAD")
    widen, kind, add = widener(dtype, context), getattr(xp, compute_dtype(dtype)), numpy_style(context)
    images, *size = call.dims("X@GRAD")
    step = 1 if immediate(context) else images

    def run(context: Context, io: IO) -> None:
        dy, dx = xp.reshape(io.array("Y@GRAD"), dims), io.array("X@GRAD")
        for image in range(0, images, step):
            total = xp.zeros((step, *size), dtype=kind)
            for part, source, _ in taps:
                if source:
                    value = widen(dy[(slice(image, image + step), *part[1:])])
                    if add:
                        xp.add(total[source], value, out=total[source])
                    else:
                        total[source] = total[source] + value
            dx[image : image + step, ...] = xp.astype(total, dx.dtype)

    return run
