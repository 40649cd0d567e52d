"""Pairwise sums in array namespaces: rounding errors grow with the logarithm of the number of summands.

Namespaces on the host sum pairwise along the last contiguous axes, but sequentially along other axes. So these are
split into blocks, recursively. Products with ones, or with another array, by NumPy's BLAS are several times as fast;
they, too, are limited to a block of summands.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

BLOCK = 32
"""The maximum number of rows that are summed sequentially, along an axis that is not contiguous."""
RUN = 1024
"""The maximum number of contiguous numbers in one BLAS call, which sums in the lanes of several registers."""

_ONES = {kind: np.ones(RUN, kind) for kind in "fd"}
MIN_RUN = 32
"""Contiguous runs of fewer numbers are summed last: a BLAS call costs more than the additions."""


def pairwise_sum(xp: Any, x: Any, axes: tuple[int, ...], dtype: Any, out: Any = None) -> Any:
    """Sum over axes, which stay with size 1, in ``dtype``."""
    if isinstance(x, np.ndarray) and x.size <= RUN and prod([x.shape[axis] for axis in axes]) <= BLOCK:
        return xp.add.reduce(x, axes, dtype, out, True)
    sums = _sum_by_products(xp, x, axes) if _can_multiply(xp, x, dtype) else _sum(xp, x, axes, dtype, out)
    if out is None or sums is out:
        return sums
    out[...] = sums
    return out


def product_sum(xp: Any, a: Any, b: Any, axes: tuple[int, ...], dtype: Any) -> Any:
    """Sum of a product over axes, which stay with size 1, in ``dtype``; by dot products where BLAS can compute them."""
    is_full = len(axes) == a.ndim and a.shape == b.shape and hasattr(xp, "vecdot")
    if is_full and _is_contiguous(a, dtype) and _is_contiguous(b, dtype):  # the usual case; the checks below cost more
        return _dots(xp, a.reshape(-1), b.reshape(-1)).reshape((1,) * a.ndim)
    same_rows = a.ndim > 0 and a.shape[-1] == b.shape[-1] and a.ndim - 1 in axes
    if not same_rows or not (_can_multiply(xp, a, dtype) and _can_multiply(xp, b, dtype)):
        return pairwise_sum(xp, a * b, axes, dtype)
    joined = min(_joined_axes(a, axes), _joined_axes(b, axes)) if a.shape == b.shape else 1
    if _is_short(a, joined) and any(a.shape[axis] > 1 for axis in axes if axis < a.ndim - joined):
        return pairwise_sum(xp, a * b, axes, dtype)
    sums = _dots(xp, _flat(a, joined), _flat(b, joined))
    sums = sums.reshape((*sums.shape[:-1], *(1,) * joined))
    left = tuple(axis for axis in axes if axis < sums.ndim - joined)
    return _sum_by_products(xp, sums, left) if left else sums


def _can_multiply(xp: Any, x: Any, dtype: Any) -> bool:
    """Whether BLAS can sum an array by products: NumPy floats, contiguous along the last axis."""
    return (
        isinstance(x, np.ndarray)
        and hasattr(xp, "vecdot")
        and x.dtype == dtype
        and x.dtype.char in "fd"
        and x.size > 0
        and x.ndim > 0
        and (x.shape[-1] == 1 or x.strides[-1] == x.itemsize)
    )


def _is_contiguous(x: Any, dtype: Any) -> bool:
    """Whether an array is a C-contiguous NumPy array of floats."""
    return type(x) is np.ndarray and x.dtype == dtype and x.dtype.char in "fd" and x.flags.c_contiguous and x.size > 0


def _joined_axes(x: Any, axes: tuple[int, ...]) -> int:
    """The number of trailing axes that are summed as one axis; 1 unless the array is contiguous."""
    if not x.flags.c_contiguous:
        return 1
    count = 0
    while count < x.ndim and (x.shape[-1 - count] == 1 or x.ndim - 1 - count in axes):
        count += 1
    return max(count, 1)


def _flat(x: Any, joined: int) -> Any:
    """Flatten the last axes to one."""
    return x if joined == 1 else x.reshape((*x.shape[: x.ndim - joined], -1))


def _is_short(x: Any, joined: int) -> bool:
    """Whether the last axes have fewer elements than MIN_RUN."""
    return bool(prod(x.shape[x.ndim - joined :]) < MIN_RUN)


def _dots(xp: Any, a: Any, b: Any) -> Any:
    """Dot products along the last axis, which stays with size 1, one run at a time; b may be the ones of a run."""
    size = a.shape[-1]
    whole = size // RUN * RUN
    if size <= RUN:
        return xp.vecdot(a, b[..., :size])[..., None]

    def runs(x: Any) -> Any:
        return x if x.ndim == 1 and x.size == RUN else x[..., :whole].reshape((*x.shape[:-1], -1, RUN))

    sums = xp.sum(xp.vecdot(runs(a), runs(b)), axis=-1, keepdims=True)
    if whole < size:
        rest = b[..., whole:] if b.shape[-1] == size else b[: size - whole]
        sums += xp.vecdot(a[..., whole:], rest)[..., None]
    return sums


def _sum_by_products(xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """Sums as products with ones: over trailing axes as dot products, over other axes as rows of a matrix."""
    left = [axis for axis in axes if x.shape[axis] > 1]
    if not left:
        return xp.asarray(x, copy=True)
    ones = _ONES[x.dtype.char]
    if all(x.shape[axis] == 1 for axis in range(max(left) + 1, x.ndim)):
        joined, rank = _joined_axes(x, axes), x.ndim
        before = tuple(axis for axis in left if axis < rank - joined)
        if 0 < len(before) < len(left) and _is_short(x, joined):
            return _sum_by_products(xp, _sum_by_products(xp, x, before), axes)
        x = _dots(xp, _flat(x, joined), ones)
        x = x.reshape((*x.shape[:-1], *(1,) * (rank - x.ndim + 1)))
        left = [axis for axis in left if axis < rank - joined]
    for axis in reversed(left):
        if axis < x.ndim - 2 and not x.flags.c_contiguous:
            x = _sum(xp, x, (axis,), x.dtype)
            continue
        dims = x.shape
        rows = x if axis == x.ndim - 2 else x.reshape((*dims[: axis + 1], -1))
        while (count := rows.shape[axis]) > 1:
            rows = _sum_rows(xp, rows, count, ones)
        x = rows.reshape((*dims[:axis], 1, *dims[axis + 1 :]))
    return x


def _sum_rows(xp: Any, x: Any, count: int, ones: Any) -> Any:
    """Sum blocks of rows of the last matrices."""
    if count <= BLOCK:
        return xp.matmul(ones[:count], x)[..., None, :]
    whole = count // BLOCK * BLOCK
    sums = xp.matmul(ones[:BLOCK], x[..., :whole, :].reshape((*x.shape[:-2], -1, BLOCK, x.shape[-1])))
    if whole == count:
        return sums
    return xp.concatenate([sums, xp.matmul(ones[: count - whole], x[..., whole:, :])[..., None, :]], axis=-2)


def _sum(xp: Any, x: Any, axes: tuple[int, ...], dtype: Any, out: Any = None) -> Any:
    """Sums by the namespace's function, in blocks along axes where it sums sequentially."""
    left = list(axes)
    for axis in range(x.ndim - 1, -1, -1):
        if x.shape[axis] == 1:
            continue
        if axis not in left:
            break
        left.remove(axis)
    if not any(x.shape[axis] > BLOCK for axis in left) or hasattr(x, "__cuda_array_interface__"):
        if out is None:
            return xp.sum(x, axis=axes, dtype=dtype, keepdims=True)
        return xp.add.reduce(x, axes, dtype, out, True)
    last = tuple(axis for axis in axes if axis not in left)
    if last:
        x = xp.sum(x, axis=last, dtype=dtype, keepdims=True)
    for axis in left:
        while x.shape[axis] > BLOCK:
            whole = x.shape[axis] // BLOCK
            head, rest = (
                (slice(None),) * axis + (each, ...)
                for each in (slice(0, whole * BLOCK), slice(whole * BLOCK, x.shape[axis]))
            )
            blocks = xp.reshape(x[head], (*x.shape[:axis], whole, BLOCK, *x.shape[axis + 1 :]))
            parts = [xp.sum(blocks, axis=axis + 1, dtype=dtype)]
            if x.shape[axis] > whole * BLOCK:
                parts.append(xp.sum(x[rest], axis=axis, dtype=dtype, keepdims=True))
            x = (xp.concat if hasattr(xp, "concat") else xp.concatenate)(parts, axis=axis)
        x = xp.sum(x, axis=axis, dtype=dtype, keepdims=True)
    return x
