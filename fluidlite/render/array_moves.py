"""Array calls that move elements, make constants, and store results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fluidlite.base.errors import ProgramError
from fluidlite.codegen.functions import dtype_object
from fluidlite.render.memory import strided

FEW = 16
"""Lines with at most this many elements: the maximum is found element after element, in all lines at once."""
TINY = 1 << 12
"""Elements that are copied sooner than thought about."""


def full(xp: Any, dims: Sequence[int], value: Any, dtype: str, like: Any) -> Any:
    """Numbers on the device of ``like``."""
    kind = dtype_object(xp, dtype)
    try:
        return xp.full(tuple(dims), value, dtype=kind, device=like.device)
    except (TypeError, AttributeError):  # a namespace of one device
        return xp.full(tuple(dims), value, dtype=kind)


def zeros(xp: Any, dims: Sequence[int], like: Any) -> Any:
    """Zeros of the dtype of ``like``, and on its device."""
    if strided(like):
        return np.zeros(tuple(dims), like.dtype)
    return full(xp, dims, 0, str(like.dtype).rpartition(".")[2], like)


def empty(xp: Any, dims: Sequence[int], like: Any) -> Any:
    """Memory for elements of the dtype of ``like``, on its device; what they are is not said."""
    return np.empty(tuple(dims), like.dtype) if strided(like) else zeros(xp, dims, like)


def permute(xp: Any, x: Any, axes: Sequence[int]) -> Any:
    """Axes in another order."""
    return xp.permute_dims(x, tuple(axes))


def concat(xp: Any, parts: Sequence[Any], axis: int) -> Any:
    """One behind the other."""
    return xp.concat(list(parts), axis=axis)


def broadcast(xp: Any, x: Any, dims: Sequence[int]) -> Any:
    """Repeated along axes of 1."""
    return x if tuple(x.shape) == tuple(dims) else xp.broadcast_to(x, tuple(dims))


def slices(xp: Any, x: Any, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> Any:
    """Elements from ``starts`` on, ``steps`` apart; negative steps by flip, which every namespace has."""
    index, turned = [], []
    for axis, (start, size, step) in enumerate(zip(starts, sizes, steps, strict=True)):
        first = start if step > 0 else start + (size - 1) * step
        if size <= 0:
            index.append(slice(0, 0))
            continue
        index.append(slice(first, first + (size - 1) * abs(step) + 1, abs(step)))
        if step < 0:
            turned.append(axis)
    found = x[tuple(index)] if index else x
    if tuple(found.shape) != tuple(max(size, 0) for size in sizes):
        raise ProgramError(
            f"a slice of {list(x.shape)} from {list(starts)} by {list(steps)} has no {list(sizes)} elements"
        )
    return xp.flip(found, axis=tuple(turned)) if turned else found


def pad(xp: Any, x: Any, value: Any, low: Sequence[int], high: Sequence[int], between: Sequence[int]) -> Any:
    """Numbers in front, behind and between; negative counts in front and behind cut off."""
    made = empty(xp, [total for total, _, _ in map(_padded, x.shape, low, high, between)], x)
    pad_into(xp, made, x, value, low, high, between)
    return made


def _padded(size: int, low: int, high: int, between: int) -> tuple[int, slice, slice]:
    """Of one axis: its length, where elements go, and which of them."""
    total, step = max(low + size + max(size - 1, 0) * between + high, 0), between + 1
    first = 0 if low >= 0 else -(low // step)  # the first element that lies inside
    last = max(first, min(size, max(0, -(-(total - low) // step))))
    start = low + first * step
    return total, slice(start, max(start, low + (last - 1) * step + 1), step), slice(first, last)


def pad_into(
    xp: Any, out: Any, x: Any, value: Any, low: Sequence[int], high: Sequence[int], between: Sequence[int]
) -> None:
    """Write what :func:`pad` makes."""
    if hasattr(value, "dtype") and value.dtype != out.dtype:
        value = xp.astype(value, out.dtype)
    axes = list(map(_padded, x.shape, low, high, between))
    out[...] = value
    if all(part.stop > part.start for _, _, part in axes):
        store(xp, out[tuple(into for _, into, _ in axes)], x[tuple(part for _, _, part in axes)])


def store(xp: Any, out: Any, value: Any) -> None:
    """Write a result; half types are rounded here."""
    if value is out:
        return
    for at in _short_axes(out, value):
        out[at] = value[at] if value.dtype == out.dtype else xp.astype(value[at], out.dtype)


def _short_axes(out: Any, value: Any) -> Iterator[Any]:
    """What is copied at a time: on NumPy one element of short last axes, unless they lie as one with those in front.

    NumPy's loops run along the last axis of what is written. Of arrays that share memory all is copied at once: NumPy
    then reads each element before it is overwritten.
    """
    on_numpy = type(out) is type(value) is np.ndarray and value.shape == out.shape
    if not on_numpy or value.size < TINY or value.strides == out.strides:
        yield ...
        return
    count, taps = 0, 1
    while count < value.ndim and taps * value.shape[-1 - count] <= FEW:
        taps, count = taps * value.shape[-1 - count], count + 1
    alone = taps == 1 or count == value.ndim or value.shape[-1 - count] <= value.shape[-1]
    if alone or np.may_share_memory(out, value):
        yield ...
        return
    for at in np.ndindex(value.shape[value.ndim - count :]):
        yield (..., *at)


def target(out: Any, dtype: str) -> Any:
    """What is written, for NumPy's functions; None where the result is rounded before."""
    return out if out.dtype == dtype else None


def view(xp: Any, out: Any, dims: Sequence[int]) -> Any:
    """What is written, which is contiguous, under other dims."""
    if tuple(out.shape) == tuple(dims):
        return out
    return xp.reshape(out, tuple(dims), copy=None if 0 in out.shape else False)  # of no elements none are shared


def part(out: Any, axis: int, start: int, size: int) -> Any:
    """Some elements of an axis of what is written."""
    return out[(*(slice(None),) * axis, slice(start, start + size), ...)]


def iota(xp: Any, dims: Sequence[int], axis: int, dtype: str, like: Any) -> Any:
    """0, 1, 2, ... along an axis."""
    kind = dtype_object(xp, dtype)
    try:
        row = xp.arange(dims[axis], dtype=kind, device=like.device)
    except (TypeError, AttributeError):
        row = xp.arange(dims[axis], dtype=kind)
    if len(dims) == 1:
        return row
    shape = [1] * len(dims)
    shape[axis] = dims[axis]
    if tuple(shape) == tuple(dims):
        return xp.reshape(row, tuple(shape))
    return xp.broadcast_to(xp.reshape(row, tuple(shape)), tuple(dims))
