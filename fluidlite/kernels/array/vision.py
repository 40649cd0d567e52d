"""im2sequence and row_conv, with gradients."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from fluidlite.plugin import IO, Call, Context, ImageRun, compute_dtype, image_runs, register_kernel, row_offsets

from .common import immediate, is_half, numpy_style, storer, widener

Part = tuple[Any, ...]


def _taps(call: Call, run: ImageRun) -> Iterator[tuple[Part, Part]]:
    """Yield, for each element of a window: where it is in Out [images, h, w, channels, kh, kw], and where in X."""
    (kh, kw), (sh, sw), (up, left) = call.attr("kernels"), call.attr("strides"), call.attr("paddings")[:2]
    height, width = call.dims("X")[2:]
    images = slice(run.first, run.first + run.images)
    for i in range(kh):
        rows = _inside(i - up, sh, run.height, height)
        for j in range(kw):
            columns = _inside(j - left, sw, run.width, width)
            if rows and columns:
                out = (slice(None), rows[0], columns[0], slice(None), i, j)
                yield out, (images, slice(None), rows[1], columns[1])


def _inside(shift: int, step: int, count: int, size: int) -> tuple[slice, slice] | None:
    """The windows o whose element o * step + shift lies in an image of ``size``, and those elements."""
    first, last = max(0, -(shift // step)), min(count - 1, (size - 1 - shift) // step)
    if first > last:
        return None
    return slice(first, last + 1), slice(first * step + shift, last * step + shift + 1, step)


def _runs(call: Call) -> list[tuple[ImageRun, Part, tuple[int, ...], list[tuple[Part, Part]]]]:
    channels, (kh, kw) = call.dims("X")[1], call.attr("kernels")
    found: list[tuple[ImageRun, Part, tuple[int, ...], list[tuple[Part, Part]]]] = []
    for run in image_runs(call) or ():
        dims = (run.images, run.height, run.width, channels, kh, kw)
        rows = slice(run.row, run.row + run.images * run.height * run.width)
        found.append((run, (rows, slice(None)), dims, list(_taps(call, run))))
    return found


@register_kernel("im2sequence", "array")
def im2sequence(call: Call, context: Context) -> Any:
    """Each element of a window is a strided view of X; padding is 0."""
    xp, runs = context.xp, _runs(call)

    def run(context: Context, io: IO) -> None:
        x, out = io.array("X"), io.array("Out")
        for one, rows, dims, taps in runs:
            target = xp.reshape(out[rows], dims)
            if len(taps) < dims[4] * dims[5] or any(_size(part) != (one.height, one.width) for part, _ in taps):
                target[...] = 0.0
            for part, source in taps:
                target[part] = xp.permute_dims(x[source], (0, 2, 3, 1))

    return run


def _size(part: Part) -> tuple[int, int]:
    return part[1].stop - part[1].start, part[2].stop - part[2].start


@register_kernel("im2sequence_grad", "array")
def im2sequence_grad(call: Call, context: Context) -> Any:
    """The windows' elements are added back, with the channels last as in Out; on the host image by image."""
    xp, runs, widen = context.xp, _runs(call), widener(call.dtype("Out@GRAD"), context)
    _, channels, height, width = call.dims("X@GRAD")
    kind, add = getattr(xp, compute_dtype(call.dtype("Out@GRAD"))), numpy_style(context)
    one_by_one = immediate(context)

    def run(context: Context, io: IO) -> None:
        dout, dx = io.array("Out@GRAD"), io.array("X@GRAD")
        for one, rows, dims, taps in runs:
            source = xp.reshape(dout[rows], dims)
            step = 1 if one_by_one else one.images
            for image in range(0, one.images, step):
                total = xp.zeros((step, height, width, channels), dtype=kind)
                for part, (_, _, h, w) in taps:
                    value = widen(source[(slice(image, image + step), *part[1:])])
                    if add:
                        xp.add(total[:, h, w], value, out=total[:, h, w])
                    else:
                        total[:, h, w, :] = total[:, h, w, :] + value
                images = slice(one.first + image, one.first + image + step)
                dx[images, ...] = xp.astype(xp.permute_dims(total, (0, 3, 1, 2)), dx.dtype)

    return run


# row_conv ----------------------------------------------------------------------------------------------------------


def _sequences(call: Call, context: Context, slot: str) -> tuple[tuple[int, ...], list[Part]]:
    """The dims under which sequences are [batch, steps, width], and where those lie that are made at a time."""
    dims = call.dims(slot)
    if len(dims) == 3:  # on the host one after the other, so that it stays in the cache
        return dims, [(slice(i, i + 1),) for i in range(dims[0])] if immediate(context) else [(slice(None),)]
    return (1, *dims), [(slice(None), slice(a, b)) for a, b in pairwise(row_offsets(call, slot)) if a < b]


@register_kernel("row_conv", "array")
def row_conv(call: Call, context: Context) -> Any:
    """Each row of the filter times the sequence from there on."""
    xp, (dims, parts), ahead = context.xp, _sequences(call, context, "X"), call.dims("Filter")[0]
    half = is_half(call.dtype("X"))
    widen = widener(call.dtype("X"), context)

    def run(context: Context, io: IO) -> None:
        x, weights = xp.reshape(io.array("X"), dims), widen(io.array("Filter"))
        out = xp.reshape(io.array("Out"), dims)
        for part in parts:
            sequence = widen(x[(*part, ...)])
            steps = sequence.shape[1]
            total = sequence * weights[0, :]
            for w in range(1, min(ahead, steps)):
                total[:, : steps - w, :] += sequence[:, w:, :] * weights[w, :]
            out[(*part, ...)] = xp.astype(total, out.dtype) if half else total

    return run


@register_kernel("row_conv_grad", "array")
def row_conv_grad(call: Call, context: Context) -> Any:
    """The same backwards, and what each row of the filter was multiplied with."""
    xp, (dims, parts) = context.xp, _sequences(call, context, "X")
    ahead, width = call.dims("Filter")
    kind = getattr(xp, compute_dtype(call.dtype("X")))
    widen, store = widener(call.dtype("X"), context), storer(context)
    want_x, want_filter = call.has("X@GRAD"), call.has("Filter@GRAD")

    def run(context: Context, io: IO) -> None:
        x, dout = xp.reshape(io.array("X"), dims), xp.reshape(io.array("Out@GRAD"), dims)
        weights = widen(io.array("Filter"))
        dx = xp.reshape(io.array("X@GRAD"), dims) if want_x else None
        dfilter = xp.zeros((ahead, width), dtype=kind)
        for part in parts:
            grad = widen(dout[(*part, ...)])
            steps = grad.shape[1]
            if dx is not None:
                total = grad * weights[0, :]
                for w in range(1, min(ahead, steps)):
                    total[:, w:, :] += grad[:, : steps - w, :] * weights[w, :]
                dx[(*part, ...)] = xp.astype(total, dx.dtype)
            if want_filter:
                sequence = widen(x[(*part, ...)])
                for w in range(min(ahead, steps)):
                    dfilter[w, :] += xp.sum(sequence[:, w:, :] * grad[:, : steps - w, :], axis=(0, 1))
        if want_filter:
            store(io.array("Filter@GRAD"), dfilter)

    return run
