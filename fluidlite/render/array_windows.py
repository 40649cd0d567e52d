"""Array functions of windows: extraction, reduction, and the overlapping sum (unwindow)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from fluidlite.codegen.functions import where
from fluidlite.render.array_moves import concat, permute, zeros
from fluidlite.render.array_reductions import arg, first_of, reduce
from fluidlite.render.memory import strided, writable

MAX_UNROLLED_TAPS = 32
"""Elements of a window up to which a Python loop over them reduces all windows at once."""


def _taps(ndim: int, axis: int, taps: int, count: int, stride: int, dilation: int) -> Iterator[tuple[slice, ...]]:
    """The slices of the first element of each of ``count`` windows, of the second ones, and so on."""
    for k in range(taps):
        first = k * dilation
        part = slice(first, first + (count - 1) * stride + 1, stride) if count > 0 else slice(0, 0)
        yield tuple(part if at == axis else slice(None) for at in range(ndim))


def window(xp: Any, x: Any, axis: int, taps: int, count: int, stride: int, dilation: int) -> Any:
    """Copy windows along an axis; in memory the first elements of all windows come first, then the second ones."""
    parts = [x[(None, *part)] for part in _taps(x.ndim, axis, taps, count, stride, dilation)]
    order = [*range(1, axis + 2), 0, *range(axis + 2, x.ndim + 1)]
    return permute(xp, concat(xp, parts, 0), order)


def window_view(xp: Any, x: Any, axis: int, taps: int, count: int, stride: int, dilation: int) -> Any:
    """A strided view of windows along an axis; a copy if the namespace has no such views."""
    if not hasattr(xp, "lib") or not prod(x.shape):
        return window(xp, x, axis, taps, count, stride, dilation)
    step = x.strides[axis]
    dims = (*x.shape[:axis], count, taps, *x.shape[axis + 1 :])
    strides = (*x.strides[:axis], step * stride, step * dilation, *x.strides[axis + 1 :])
    return xp.lib.stride_tricks.as_strided(x, dims, strides)


def window_reduce(
    xp: Any, kind: str, x: Any, axis: int, taps: int, count: int, stride: int, dilation: int, dtype: str
) -> Any:
    """Reduce each window to one element, with an axis of length 1: element by element over all windows at once."""
    if kind in ("all", "any") or not prod(x.shape) or taps > min(2 * count, MAX_UNROLLED_TAPS):
        result = window_view(xp, x, axis, taps, count, stride, dilation)
        return reduce(xp, kind, result, (axis + 1,), dtype)
    join = {"sum": xp.add, "prod": xp.multiply, "max": xp.maximum, "min": xp.minimum}[kind]
    parts = _taps(x.ndim, axis, taps, count, stride, dilation)
    result = x[next(parts)]
    for k, part in enumerate(parts):
        result = join(result, x[part], out=result) if k and hasattr(xp, "lib") else join(result, x[part])
    return xp.reshape(result, (*result.shape[: axis + 1], 1, *result.shape[axis + 1 :]))


def window_arg(xp: Any, kind: str, x: Any, axis: int, taps: int, count: int, stride: int, dilation: int) -> Any:
    """The index of the first maximum, or minimum, in each window, with an axis of length 1."""
    if not prod(x.shape) or taps > min(2 * count, MAX_UNROLLED_TAPS):
        return arg(xp, kind, window_view(xp, x, axis, taps, count, stride, dilation), axis + 1)
    result = first_of(xp, kind, x, [x[part] for part in _taps(x.ndim, axis, taps, count, stride, dilation)])
    return xp.reshape(result, (*result.shape[: axis + 1], 1, *result.shape[axis + 1 :]))


def unwindow_one(
    context: Any, updates: Any, index: Any, axis: int, taps: int, size: int, stride: int, dilation: int, out: Any = None
) -> Any:
    """The overlapping sum of windows with one nonzero element each, at the index."""
    xp, dims = context.xp, tuple(d for k, d in enumerate(updates.shape) if k != axis + 1)
    parts, positions = xp.reshape(updates, dims), xp.reshape(index, dims)
    zero = zeros(xp, (), parts)

    def part_of(k: int, target: Any) -> Any:
        return where(context, positions == k, parts, zero, target)

    return _overlap_sum(xp, parts, axis, size, taps, stride, dilation, part_of, out)


def unwindow(xp: Any, parts: Any, axis: int, size: int, stride: int, dilation: int, out: Any = None) -> Any:
    """The overlapping sum of windows along an axis of ``size`` elements; ``parts`` has two axes (window, tap) there."""
    prefix = (slice(None),) * (axis + 1)
    like, taps = parts[(*prefix, 0, ...)], parts.shape[axis + 1]
    return _overlap_sum(xp, like, axis, size, taps, stride, dilation, lambda k, _: parts[(*prefix, k, ...)], out)


def _overlap_sum(
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
    """The overlapping sum of windows whose k-th elements are ``part_of(k, out)``.

    Elements that no earlier window contains are assigned instead of added.
    """
    count, dims = like.shape[axis], (*like.shape[:axis], size, *like.shape[axis + 1 :])
    covered = count * stride if dilation == 1 and stride <= taps else 0  # each element before it is in some window
    on_numpy = strided(like)
    if on_numpy:
        total = out if writable(out, like) else xp.empty(dims, dtype=like.dtype)
        total[(*(slice(None),) * axis, slice(covered, None))] = 0
    else:
        total = zeros(xp, dims, like)
    has_no_overlap = stride > (taps - 1) * dilation
    for k, part in enumerate(_taps(total.ndim, axis, taps, count, stride, dilation)):
        if has_no_overlap or (dilation == 1 and k < stride):
            target = total[part] if on_numpy else None
            value = part_of(k, target)
            if value is not target or target is None:
                total[part] = value
        else:
            total[part] += part_of(k, None)
    return total
