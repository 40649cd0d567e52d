"""Array functions that gather and scatter."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from math import inf, nan, prod
from typing import Any

import numpy as np

from fluidlite.codegen.functions import dtype_object
from fluidlite.render import gathered
from fluidlite.render.array_moves import iota, zeros
from fluidlite.render.contractions import contract
from fluidlite.render.memory import same_elements, strided, writable

MAX_COMPARED_LENGTH = 2
"""Length of an axis up to which a put compares all of its elements with the index instead of indexing."""


def checked(context: Any, index: Any, size: int, mode: str, io: Any) -> tuple[Any, Any]:
    """Make indices safe to read, by mode; return them with a mask of those in range (None: all)."""
    xp = context.xp
    if mode == "check":
        return context.check_index(index, size, io), None
    inside = None if mode == "clamp" else (index >= 0) & (index < size)
    if inside is not None and context.array.eager and bool(xp.all(inside)):
        return index, None
    return xp.clip(index, 0, max(size - 1, 0)), inside


def take(xp: Any, x: Any, index: Any, inside: Any, axis: int, out: Any = None) -> Any:
    """Gather slices along an axis; 0 where an index is not inside."""
    dims = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    if not x.shape[axis] or not prod(dims):
        return zeros(xp, dims, x)
    if writable(out, x):  # NumPy needs no buffer where it need not raise
        xp.take(x, index, axis, out, "clip")
        if inside is not None:
            out[(*(slice(None),) * axis, ~inside)] = 0
        return out
    gathered_slices = xp.reshape(xp.take(x, xp.reshape(index, (-1,)), axis=axis), dims)
    if inside is None:
        return gathered_slices
    if type(gathered_slices) is np.ndarray:
        gathered_slices[(*(slice(None),) * axis, ~inside)] = 0
        return gathered_slices
    mask = xp.reshape(inside, (*(1,) * axis, *index.shape, *(1,) * (x.ndim - axis - 1)))
    return xp.where(mask, gathered_slices, xp.zeros_like(gathered_slices))


def _flat(xp: Any, index: Any, axis: int, dims: Sequence[int]) -> Any:
    """Convert indices along an axis to indices of the flattened ``dims``."""
    outer, inner = prod(dims[:axis]), prod(dims[axis + 1 :])
    flat = xp.reshape(index if inner == 1 else index * inner, (outer, -1, inner))
    for k, (count, step) in enumerate(((outer, dims[axis] * inner), (1, 0), (inner, 1))):
        if count > 1:
            flat = flat + iota(xp, [count if j == k else 1 for j in range(3)], k, "int64", index) * step
    return xp.reshape(flat, index.shape)


def pick(xp: Any, x: Any, index: Any, inside: Any, axis: int, out: Any = None) -> Any:
    """Gather elements along an axis, as take_along_axis does; 0 where an index is not inside."""
    if not prod(x.shape) or not prod(index.shape):
        return zeros(xp, index.shape, x)
    index = xp.astype(index, dtype_object(xp, "int64"))
    if inside is None and writable(out, x):
        return xp.take(xp.reshape(x, (-1,)), _flat(xp, index, axis, x.shape), 0, out, "clip")
    if strided(x) and x.flags.c_contiguous:
        elements = xp.take(x, _flat(xp, index, axis, x.shape))
    elif hasattr(xp, "take_along_axis"):
        elements = xp.take_along_axis(x, index, axis=axis)
    else:
        flat = xp.reshape(_flat(xp, index, axis, x.shape), (-1,))
        elements = xp.reshape(xp.take(xp.reshape(x, (-1,)), flat, axis=0), index.shape)
    return elements if inside is None else xp.where(inside, elements, xp.zeros_like(elements))


def _named_sums(context: Any, selected: Any, parts: Any) -> Any:
    """For each row of a boolean table, the sum of the selected parts by a matrix product.

    Infinities and NaN do not leak into other rows.
    """
    xp = context.xp
    one = xp.reshape(xp.full_like(parts[:1, :1, :1], 1), (1, 1))
    zero = xp.zeros_like(one)
    table, finite = xp.where(selected, one, zero), xp.isfinite(parts)
    if not xp.isdtype(parts.dtype, "real floating") or (context.array.eager and bool(xp.all(finite))):
        return xp.matmul(table, parts)
    sums = xp.matmul(table, xp.where(finite, parts, zero))
    for number in (inf, -inf, nan):
        is_value = xp.isnan(parts) if number != number else parts == number
        occurs = xp.matmul(table, xp.where(is_value, one, zero)) > 0
        sums = sums + xp.where(occurs, one * number, zero)
    return sums


def add_at(
    context: Any, updates: Any, index: Any, axis: int, size: int, base: Any, in_range: bool = False, out: Any = None
) -> Any:
    """Scatter-add slices along an axis to ``base``, or to zeros.

    Indices out of range are ignored; with ``in_range`` there are none.
    """
    xp = context.xp
    dims = (*updates.shape[:axis], size, *updates.shape[axis + index.ndim :])
    if not prod(updates.shape) or not size:
        return zeros(xp, dims, updates) if base is None else base
    outer, count, inner = (prod(updates.shape[:axis]), prod(index.shape), prod(updates.shape[axis + index.ndim :]))
    flat, device_scatter = xp.reshape(index, (-1,)), context.array.extra("scatter_add")
    if device_scatter is None:  # a matrix product with a 0/1 matrix, whose sums are in order
        parts = xp.reshape(updates, (outer, count, inner))
        selected = xp.reshape(flat, (1, -1)) == xp.reshape(iota(xp, (size,), 0, "int64", flat), (-1, 1))
        sums = xp.reshape(_named_sums(context, selected, parts), dims)
        return sums if base is None else base + sums
    parts = updates
    if not in_range:
        inside = (flat >= 0) & (flat < size)
        if not (context.array.eager and bool(xp.all(inside))):
            mask, flat = xp.reshape(inside, (1, count, 1)), xp.where(inside, flat, xp.zeros_like(flat))
            parts = xp.reshape(parts, (outer, count, inner))
            parts = xp.where(mask, parts, xp.zeros_like(parts))
    if writable(out, updates, flat=True):
        table = result = out
        if not same_elements(result, base):
            result[...] = 0 if base is None else base
    else:
        table = result = zeros(xp, dims, updates)  # a copy of base might have its order of elements
        if base is not None:
            result[...] = base
    if axis and inner > 1 and context.array.eager and 1 < count < outer:  # a slice for each of few indices
        target, parts = (xp.reshape(each, (outer, -1, inner)) for each in (table, parts))
        for position, at in enumerate(flat.tolist()):
            target[:, at] += parts[:, position]
        return result
    if outer > 1:
        starts = xp.reshape(iota(xp, (outer,), 0, "int64", flat), (outer, 1)) * size
        flat = xp.reshape(starts + xp.reshape(flat, (1, count)), (-1,))
    table, parts = (xp.reshape(each, (-1,) if inner == 1 else (-1, inner)) for each in (table, parts))
    device_scatter(table, flat, parts)
    return result


def set_at(context: Any, x: Any, updates: Any, index: Any, inside: Any, axis: int, out: Any = None) -> Any:
    """Replace slices of ``x``; all indices are in range, and of equal ones the last wins."""
    xp, size = context.xp, x.shape[axis]
    if not prod(updates.shape):
        return x
    flat = xp.reshape(index, (-1,))
    dims = (*x.shape[:axis], flat.shape[0], *x.shape[axis + 1 :])
    parts = xp.reshape(updates, dims)
    if context.array.eager and hasattr(x, "__array_interface__"):  # assigned in order
        result = out if writable(out, x) else xp.empty_like(x)
        result[...] = x
        result[(*(slice(None),) * axis, flat)] = parts
        return result
    last, occurs = _last_entries(xp, xp.astype(flat, dtype_object(xp, "int64"), copy=False), size)
    new = xp.take(parts, last, axis=axis)
    return xp.where(xp.reshape(occurs, (*(1,) * axis, size, *(1,) * (x.ndim - axis - 1))), new, x)


def _last_entries(xp: Any, index: Any, size: int) -> tuple[Any, Any]:
    """By row below ``size``, the position of its last occurrence in an index, and whether it occurs; by sorting."""
    rows = iota(xp, (size,), 0, "int64", index)
    if not (hasattr(xp, "argsort") and hasattr(xp, "searchsorted")):
        entry, same = iota(xp, index.shape, 0, "int64", index), xp.reshape(index, (1, -1)) == xp.reshape(rows, (-1, 1))
        last = xp.max(xp.where(same, xp.reshape(entry, (1, -1)), xp.full_like(entry, -1)), axis=1)
        return xp.maximum(last, xp.zeros_like(last)), last >= 0
    stable = {"stable": True} if "stable" in inspect.signature(xp.argsort).parameters else {}  # CuPy's always is
    order = xp.argsort(index, axis=-1, **stable)
    sorted_index = xp.take(index, order, axis=0)
    ends = xp.astype(xp.searchsorted(sorted_index, rows, side="right"), rows.dtype)
    positions = xp.maximum(ends - 1, xp.zeros_like(ends))
    return xp.take(order, positions, axis=0), xp.take(sorted_index, positions, axis=0) == rows


def put(
    context: Any, updates: Any, index: Any, axis: int, size: int, base: Any, in_range: bool = False, out: Any = None
) -> Any:
    """Scatter-add elements along an axis to ``base``, or to zeros.

    Indices out of range are ignored; with ``in_range`` there are none.
    """
    xp, dims = context.xp, tuple(size if k == axis else d for k, d in enumerate(updates.shape))
    if not prod(updates.shape) or not size:
        return zeros(xp, dims, updates) if base is None else base
    index = xp.astype(index, dtype_object(xp, "int64"), copy=False)
    can_write = writable(out, updates, flat=True)
    is_single = updates.shape[axis] == 1  # no element gets two updates
    if is_single and not (size > MAX_COMPARED_LENGTH and context.array.eager and strided(updates)):
        result = xp.where(index == iota(xp, dims, axis, "int64", index), updates, xp.zeros_like(updates))
        result = result if base is None else base + result
        if not can_write:
            return result
        out[...] = result
        return out
    if context.array.extra("scatter_add") is None:  # compare along an additional axis
        wide = (*updates.shape[: axis + 1], size, *updates.shape[axis + 1 :])
        line = iota(xp, (*(1,) * (axis + 1), size, *(1,) * (updates.ndim - axis - 1)), axis + 1, "int64", index)
        thin = (*updates.shape[: axis + 1], 1, *updates.shape[axis + 1 :])
        selected, values = (xp.reshape(index, thin) == line, xp.broadcast_to(xp.reshape(updates, thin), wide))
        result = xp.sum(xp.where(selected, values, xp.zeros_like(values)), axis=axis, dtype=updates.dtype)
        return result if base is None else base + result
    if not in_range:
        inside = (index >= 0) & (index < size)
        if not (context.array.eager and bool(xp.all(inside))):
            updates = xp.where(inside, updates, xp.zeros_like(updates))
            index = xp.where(inside, index, xp.zeros_like(index))
    flat, parts = xp.reshape(_flat(xp, index, axis, dims), (-1,)), xp.reshape(updates, (-1,))
    if is_single:
        result = out if can_write else xp.empty(dims, dtype=updates.dtype)
        if not same_elements(result, base):
            result[...] = 0 if base is None else base
        if base is None:
            xp.reshape(result, (-1,))[flat] = parts
        else:
            xp.reshape(result, (-1,))[flat] += parts
        return result
    into, begin = (None if each is None else xp.reshape(each, (-1,)) for each in (out if can_write else None, base))
    result = add_at(context, parts, flat, 0, prod(dims), begin, True, into)
    return xp.reshape(result, dims) if into is None else out


def take_contract(
    xp: Any,
    x: Any,
    index: Any,
    inside: Any,
    axis: int,
    factor: Any,
    x_letters: str,
    letters: str,
    out: str,
    into: Any = None,
) -> Any:
    """Contract gathered slices, with axes ``x_letters``, and a factor, with axes ``letters``."""
    axes = x_letters[axis : axis + index.ndim]
    summed = [n for n in axes if n not in out]
    is_along = len(axes) == 2 and len(summed) == 1 and out == x_letters.replace(summed[0], "")
    if is_along and sorted(letters) == sorted(axes) and gathered.on_numpy(x) and x.dtype == factor.dtype:
        matrix = gathered.SparseMatrix(index, inside, factor, axes[0] == summed[0], letters != axes)
        result = gathered.sums_along(x, matrix, axis, into)
        if result is not None:
            return result
    return contract(xp, take(xp, x, index, inside, axis), factor, x_letters, letters, out, into)


def add_contract(
    context: Any,
    a: Any,
    b: Any,
    a_letters: str,
    b_letters: str,
    out: str,
    index: Any,
    axis: int,
    size: int,
    base: Any,
    in_range: bool = False,
    into: Any = None,
) -> Any:
    """Scatter-add the contraction of two factors; see :func:`add_at`."""
    axes = out[axis : axis + index.ndim]
    if base is None and len(axes) == 2 and gathered.on_numpy(a) and a.dtype == b.dtype:
        for x, letters, factor, rest in ((a, a_letters, b, b_letters), (b, b_letters, a, a_letters)):
            fresh = [n for n in axes if n not in letters]
            if len(fresh) == 1 and letters == out.replace(fresh[0], "") and sorted(rest) == sorted(axes):
                matrix = gathered.SparseMatrix(index, None, factor, axes[0] == fresh[0], rest != axes)
                result = gathered.adds_along(x, matrix, axis, size, into)
                if result is not None:
                    return result
    product = contract(context.xp, a, b, a_letters, b_letters, out)
    return add_at(context, product, index, axis, size, base, in_range, into)
