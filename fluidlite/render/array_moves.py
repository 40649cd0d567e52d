"""Array functions that move elements, create constants, and store results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fluidlite.base.errors import ProgramError
from fluidlite.codegen.functions import dtype_object
from fluidlite.render.memory import strided

MAX_SHORT_AXIS = 16
"""Length of an axis up to which Python iterates over it, and NumPy works on all of its lines at once."""
MIN_ANALYZED_ELEMENTS = 1 << 12
"""Elements of an array from which analyzing its strides, or iterating over a short axis, pays off."""


def full(xp: Any, dims: Sequence[int], value: Any, dtype: str, like: Any) -> Any:
    """A constant array on the device of ``like``."""
    dtype_of_namespace = dtype_object(xp, dtype)
    try:
        return xp.full(tuple(dims), value, dtype=dtype_of_namespace, device=like.device)
    except (TypeError, AttributeError):  # a namespace of one device
        return xp.full(tuple(dims), value, dtype=dtype_of_namespace)


def zeros(xp: Any, dims: Sequence[int], like: Any) -> Any:
    """Zeros of the dtype of ``like``, and on its device."""
    if strided(like):
        return np.zeros(tuple(dims), like.dtype)
    return full(xp, dims, 0, str(like.dtype).rpartition(".")[2], like)


def empty(xp: Any, dims: Sequence[int], like: Any) -> Any:
    """An uninitialized array with the dtype of ``like`` on its device; zeros if the namespace has none."""
    return np.empty(tuple(dims), like.dtype) if strided(like) else zeros(xp, dims, like)


def permute(xp: Any, x: Any, axes: Sequence[int]) -> Any:
    """Permute axes."""
    return xp.permute_dims(x, tuple(axes))


def concat(xp: Any, parts: Sequence[Any], axis: int) -> Any:
    """Concatenate arrays along an axis."""
    return xp.concat(list(parts), axis=axis)


def broadcast(xp: Any, x: Any, dims: Sequence[int]) -> Any:
    """Broadcast along axes of length 1."""
    return x if tuple(x.shape) == tuple(dims) else xp.broadcast_to(x, tuple(dims))


def slices(xp: Any, x: Any, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> Any:
    """Strided slices; negative steps use flip, which every namespace has."""
    index, flipped = [], []
    for axis, (start, size, step) in enumerate(zip(starts, sizes, steps, strict=True)):
        first = start if step > 0 else start + (size - 1) * step
        if size <= 0:
            index.append(slice(0, 0))
            continue
        index.append(slice(first, first + (size - 1) * abs(step) + 1, abs(step)))
        if step < 0:
            flipped.append(axis)
    sliced = x[tuple(index)] if index else x
    if tuple(sliced.shape) != tuple(max(size, 0) for size in sizes):
        raise ProgramError(
            f"a slice of {list(x.shape)} from {list(starts)} by {list(steps)} has no {list(sizes)} elements"
        )
    return xp.flip(sliced, axis=tuple(flipped)) if flipped else sliced


def pad(xp: Any, x: Any, value: Any, low: Sequence[int], high: Sequence[int], between: Sequence[int]) -> Any:
    """Pad at both ends and between elements; negative counts at the ends crop."""
    padded = empty(xp, [total for total, _, _ in map(_padded, x.shape, low, high, between)], x)
    pad_into(xp, padded, x, value, low, high, between)
    return padded


def _padded(size: int, low: int, high: int, between: int) -> tuple[int, slice, slice]:
    """For one axis: the padded length, the slice of the output to write, and the slice of elements to read."""
    total, step = max(low + size + max(size - 1, 0) * between + high, 0), between + 1
    first = 0 if low >= 0 else -(low // step)  # the first element that is not cropped
    last = max(first, min(size, max(0, -(-(total - low) // step))))
    start = low + first * step
    return total, slice(start, max(start, low + (last - 1) * step + 1), step), slice(first, last)


def pad_into(
    xp: Any, out: Any, x: Any, value: Any, low: Sequence[int], high: Sequence[int], between: Sequence[int]
) -> None:
    """Write the result of :func:`pad` to an array."""
    if hasattr(value, "dtype") and value.dtype != out.dtype:
        value = xp.astype(value, out.dtype)
    axes = list(map(_padded, x.shape, low, high, between))
    out[...] = value
    if all(part.stop > part.start for _, _, part in axes):
        store(xp, out[tuple(into for _, into, _ in axes)], x[tuple(part for _, _, part in axes)])


def store(xp: Any, out: Any, value: Any) -> None:
    """Copy a result to an output; half types are rounded here."""
    if value is out:
        return
    for at in _short_axes(out, value):
        out[at] = value[at] if value.dtype == out.dtype else xp.astype(value[at], out.dtype)


def _short_axes(out: Any, value: Any) -> Iterator[Any]:
    """The indices of the parts to copy: on NumPy one for each element of short last axes, unless they are contiguous.

    NumPy's inner loop runs along the last axis of the output, which is slow if that is short. Arrays that share memory
    are copied at once: NumPy then reads each element before it is overwritten.
    """
    on_numpy = type(out) is type(value) is np.ndarray and value.shape == out.shape
    if not on_numpy or value.size < MIN_ANALYZED_ELEMENTS or value.strides == out.strides:
        yield ...
        return
    count, elements = 0, 1
    while count < value.ndim and elements * value.shape[-1 - count] <= MAX_SHORT_AXIS:
        elements, count = elements * value.shape[-1 - count], count + 1
    is_whole = elements == 1 or count == value.ndim or value.shape[-1 - count] <= value.shape[-1]
    if is_whole or np.may_share_memory(out, value):
        yield ...
        return
    for at in np.ndindex(value.shape[value.ndim - count :]):
        yield (..., *at)


def target(out: Any, dtype: str) -> Any:
    """The output as the ``out`` argument of NumPy; None if the result must be rounded first."""
    return out if out.dtype == dtype else None


def view(xp: Any, out: Any, dims: Sequence[int]) -> Any:
    """A reshaped view of a contiguous output."""
    if tuple(out.shape) == tuple(dims):
        return out
    return xp.reshape(out, tuple(dims), copy=None if 0 in out.shape else False)  # an empty array cannot share memory


def part(out: Any, axis: int, start: int, size: int) -> Any:
    """A slice of an output along an axis."""
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
