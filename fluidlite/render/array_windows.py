"""Array calls of windows: their elements, reductions of them, and sums of them where they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from fluidlite.render.array_indexing import where
from fluidlite.render.array_moves import concat, permute, zeros
from fluidlite.render.array_reductions import arg, first_of, reduce
from fluidlite.render.memory import strided, writable

MOST_TAPS = 32
"""Windows of so many elements are reduced an element after the other, all windows at once; others each as a whole."""


def _taps(ndim: int, axis: int, taps: int, count: int, stride: int, dilation: int) -> Iterator[tuple[slice, ...]]:
    """Where the first element of each of ``count`` windows lies, the second of each, and so on."""
    for k in range(taps):
        first = k * dilation
        part = slice(first, first + (count - 1) * stride + 1, stride) if count > 0 else slice(0, 0)
        yield tuple(part if at == axis else slice(None) for at in range(ndim))


def window(xp: Any, x: Any, axis: int, taps: int, count: int, stride: int, dilation: int) -> Any:
    """Windows along an axis; in memory their first elements lie side by side, then their second ones, and so on."""
    found = [x[(None, *part)] for part in _taps(x.ndim, axis, taps, count, stride, dilation)]
    order = [*range(1, axis + 2), 0, *range(axis + 2, x.ndim + 1)]
    return permute(xp, concat(xp, found, 0), order)


def window_view(xp: Any, x: Any, axis: int, taps: int, count: int, stride: int, dilation: int) -> Any:
    """Windows along an axis where they are, in a namespace that has such views."""
    if not hasattr(xp, "lib") or not prod(x.shape):
        return window(xp, x, axis, taps, count, stride, dilation)
    step = x.strides[axis]
    dims = (*x.shape[:axis], count, taps, *x.shape[axis + 1 :])
    strides = (*x.strides[:axis], step * stride, step * dilation, *x.strides[axis + 1 :])
    return xp.lib.stride_tricks.as_strided(x, dims, strides)


def window_reduce(
    xp: Any, kind: str, x: Any, axis: int, taps: int, count: int, stride: int, dilation: int, dtype: str
) -> Any:
    """Windows reduced to one element each, which have an axis of 1: the first elements of all at once, and so on."""
    if kind in ("all", "any") or not prod(x.shape) or taps > min(2 * count, MOST_TAPS):
        found = window_view(xp, x, axis, taps, count, stride, dilation)
        return reduce(xp, kind, found, (axis + 1,), dtype)
    join = {"sum": xp.add, "prod": xp.multiply, "max": xp.maximum, "min": xp.minimum}[kind]
    parts = _taps(x.ndim, axis, taps, count, stride, dilation)
    found = x[next(parts)]
    for k, part in enumerate(parts):
        found = join(found, x[part], out=found) if k and hasattr(xp, "lib") else join(found, x[part])
    return xp.reshape(found, (*found.shape[: axis + 1], 1, *found.shape[axis + 1 :]))


def window_arg(xp: Any, kind: str, x: Any, axis: int, taps: int, count: int, stride: int, dilation: int) -> Any:
    """The index of the first maximum, or minimum, in each window, which have an axis of 1."""
    if not prod(x.shape) or taps > min(2 * count, MOST_TAPS):
        return arg(xp, kind, window_view(xp, x, axis, taps, count, stride, dilation), axis + 1)
    found = first_of(xp, kind, x, [x[part] for part in _taps(x.ndim, axis, taps, count, stride, dilation)])
    return xp.reshape(found, (*found.shape[: axis + 1], 1, *found.shape[axis + 1 :]))


def unwindow_one(
    context: Any,
    updates: Any,
    index: Any,
    axis: int,
    taps: int,
    size: int,
    stride: int,
    dilation: int,
    out: Any = None,
) -> Any:
    """Sums of windows that have one element each, which the index names, where they lie."""
    xp, dims = context.xp, tuple(d for k, d in enumerate(updates.shape) if k != axis + 1)
    parts, at = xp.reshape(updates, dims), xp.reshape(index, dims)
    none = zeros(xp, (), parts)

    def part_of(k: int, target: Any) -> Any:
        return where(context, at == k, parts, none, target)

    return _unwound(xp, parts, axis, size, taps, stride, dilation, part_of, out)


def unwindow(xp: Any, parts: Any, axis: int, size: int, stride: int, dilation: int, out: Any = None) -> Any:
    """Sums of windows where they lie, along an axis of ``size`` elements: ``parts`` has two axes in its place."""
    whole = (slice(None),) * (axis + 1)
    like, taps = parts[(*whole, 0, ...)], parts.shape[axis + 1]
    return _unwound(xp, like, axis, size, taps, stride, dilation, lambda k, _: parts[(*whole, k, ...)], out)


def _unwound(
    xp: Any,
    like: Any,
    axis: int,
    size: int,
    taps: int,
    stride: int,
    dilation: int,
    part_of: Callable[[int, Any], Any],
    out: Any = None,
) -> Any:
    """Sums of windows of which the k-th elements are ``part_of(k, where it may write them)``.

    Nothing is added where windows do not overlap, nor to the first element of each that no window in front has.
    """
    count, dims = like.shape[axis], (*like.shape[:axis], size, *like.shape[axis + 1 :])
    reached = count * stride if dilation == 1 and stride <= taps else 0  # each element so far is of some window
    on_numpy = strided(like)
    if on_numpy:
        total = out if writable(out, like) else xp.empty(dims, dtype=like.dtype)
        total[(*(slice(None),) * axis, slice(reached, None))] = 0
    else:
        total = zeros(xp, dims, like)
    alone = stride > (taps - 1) * dilation
    for k, part in enumerate(_taps(total.ndim, axis, taps, count, stride, dilation)):
        if alone or (dilation == 1 and k < stride):
            target = total[part] if on_numpy else None
            made = part_of(k, target)
            if made is not target or target is None:
                total[part] = made
        else:
            total[part] += part_of(k, None)
    return total
