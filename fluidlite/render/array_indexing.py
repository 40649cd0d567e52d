"""Array calls that read and write where indices say."""

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

MOST_COMPARED = 2
"""Along an axis of at most so many elements all are compared with an index, rather than one written."""


def where(context: Any, condition: Any, a: Any, b: Any, out: Any = None) -> Any:
    """One or the other, element by element; by the place's own function if it has a faster one."""
    own = context.array.extra("where")
    if own is not None:
        return own(condition, a, b) if out is None else own(condition, a, b, out)
    chosen = context.xp.where(condition, a, b)
    if out is None:
        return chosen
    out[...] = chosen
    return out


def checked(context: Any, index: Any, size: int, mode: str, io: Any) -> tuple[Any, Any]:
    """Indices that can be read, and where they may be: None, everywhere."""
    xp = context.xp
    if mode == "check":
        return context.check_index(index, size, io), None
    inside = None if mode == "clamp" else (index >= 0) & (index < size)
    if inside is not None and context.array.eager and bool(xp.all(inside)):
        return index, None
    return xp.clip(index, 0, max(size - 1, 0)), inside


def take(xp: Any, x: Any, index: Any, inside: Any, axis: int, out: Any = None) -> Any:
    """Parts along an axis; 0 where an index is not inside."""
    dims = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    if not x.shape[axis] or not prod(dims):
        return zeros(xp, dims, x)
    if writable(out, x):  # NumPy needs no buffer where it need not raise
        xp.take(x, index, axis, out, "clip")
        if inside is not None:
            out[(*(slice(None),) * axis, ~inside)] = 0
        return out
    found = xp.reshape(xp.take(x, xp.reshape(index, (-1,)), axis=axis), dims)
    if inside is None:
        return found
    if type(found) is np.ndarray:
        found[(*(slice(None),) * axis, ~inside)] = 0
        return found
    where = xp.reshape(inside, (*(1,) * axis, *index.shape, *(1,) * (x.ndim - axis - 1)))
    return xp.where(where, found, xp.zeros_like(found))


def _flat(xp: Any, index: Any, axis: int, dims: Sequence[int]) -> Any:
    """Indices along an axis as those of the flat elements of ``dims``."""
    outer, inner = prod(dims[:axis]), prod(dims[axis + 1 :])
    flat = xp.reshape(index if inner == 1 else index * inner, (outer, -1, inner))
    for k, (count, step) in enumerate(((outer, dims[axis] * inner), (1, 0), (inner, 1))):
        if count > 1:
            flat = flat + iota(xp, [count if j == k else 1 for j in range(3)], k, "int64", index) * step
    return xp.reshape(flat, index.shape)


def pick(xp: Any, x: Any, index: Any, inside: Any, axis: int, out: Any = None) -> Any:
    """For each index the element at it along an axis; 0 where it is not inside."""
    if not prod(x.shape) or not prod(index.shape):
        return zeros(xp, index.shape, x)
    index = xp.astype(index, dtype_object(xp, "int64"))
    if inside is None and writable(out, x):
        return xp.take(xp.reshape(x, (-1,)), _flat(xp, index, axis, x.shape), 0, out, "clip")
    if strided(x) and x.flags.c_contiguous:
        found = xp.take(x, _flat(xp, index, axis, x.shape))
    elif hasattr(xp, "take_along_axis"):
        found = xp.take_along_axis(x, index, axis=axis)
    else:
        flat = xp.reshape(_flat(xp, index, axis, x.shape), (-1,))
        found = xp.reshape(xp.take(xp.reshape(x, (-1,)), flat, axis=0), index.shape)
    return found if inside is None else xp.where(inside, found, xp.zeros_like(found))


def _named_sums(context: Any, named: Any, parts: Any) -> Any:
    """For each row of a table the sum of the parts that are named there; what is not finite stays in its own row."""
    xp = context.xp
    one = xp.reshape(xp.full_like(parts[:1, :1, :1], 1), (1, 1))
    zero = xp.zeros_like(one)
    table, finite = xp.where(named, one, zero), xp.isfinite(parts)
    if not xp.isdtype(parts.dtype, "real floating") or (context.array.eager and bool(xp.all(finite))):
        return xp.matmul(table, parts)
    sums = xp.matmul(table, xp.where(finite, parts, zero))
    for number in (inf, -inf, nan):
        beyond = xp.isnan(parts) if number != number else parts == number
        there = xp.matmul(table, xp.where(beyond, one, zero)) > 0
        sums = sums + xp.where(there, one * number, zero)
    return sums


def add_at(
    context: Any, updates: Any, index: Any, axis: int, size: int, base: Any, in_range: bool = False, out: Any = None
) -> Any:
    """``base``, or zeros, to which parts are added where their index says.

    Outside (``in_range``: nowhere) nothing is.
    """
    xp = context.xp
    dims = (*updates.shape[:axis], size, *updates.shape[axis + index.ndim :])
    if not prod(updates.shape) or not size:
        return zeros(xp, dims, updates) if base is None else base
    outer, places, inner = (prod(updates.shape[:axis]), prod(index.shape), prod(updates.shape[axis + index.ndim :]))
    flat, own = xp.reshape(index, (-1,)), context.array.extra("scatter_add")
    if own is None:  # one product with a matrix of ones and zeros, whose sums are in order
        parts = xp.reshape(updates, (outer, places, inner))
        named = xp.reshape(flat, (1, -1)) == xp.reshape(iota(xp, (size,), 0, "int64", flat), (-1, 1))
        sums = xp.reshape(_named_sums(context, named, parts), dims)
        return sums if base is None else base + sums
    parts = updates
    if not in_range:
        inside = (flat >= 0) & (flat < size)
        if not (context.array.eager and bool(xp.all(inside))):
            kept, flat = xp.reshape(inside, (1, places, 1)), xp.where(inside, flat, xp.zeros_like(flat))
            parts = xp.reshape(parts, (outer, places, inner))
            parts = xp.where(kept, parts, xp.zeros_like(parts))
    if writable(out, updates, flat=True):
        table = made = out
        if not same_elements(made, base):
            made[...] = 0 if base is None else base
    else:
        table = made = zeros(xp, dims, updates)  # a copy of base might have its order of elements
        if base is not None:
            made[...] = base
    if axis and inner > 1 and context.array.eager and 1 < places < outer:  # a slice for each index, where those are few
        target, parts = (xp.reshape(each, (outer, -1, inner)) for each in (table, parts))
        for position, at in enumerate(flat.tolist()):
            target[:, at] += parts[:, position]
        return made
    if outer > 1:
        starts = xp.reshape(iota(xp, (outer,), 0, "int64", flat), (outer, 1)) * size
        flat = xp.reshape(starts + xp.reshape(flat, (1, places)), (-1,))
    table, parts = (xp.reshape(each, (-1,) if inner == 1 else (-1, inner)) for each in (table, parts))
    own(table, flat, parts)
    return made


def set_at(context: Any, x: Any, updates: Any, index: Any, inside: Any, axis: int, out: Any = None) -> Any:
    """``x`` with the parts that indices name, all in range, replaced; of equal ones the last counts."""
    xp, size = context.xp, x.shape[axis]
    if not prod(updates.shape):
        return x
    flat = xp.reshape(index, (-1,))
    dims = (*x.shape[:axis], flat.shape[0], *x.shape[axis + 1 :])
    parts = xp.reshape(updates, dims)
    if context.array.eager and hasattr(x, "__array_interface__"):  # assigned in order
        found = out if writable(out, x) else xp.empty_like(x)
        found[...] = x
        found[(*(slice(None),) * axis, flat)] = parts
        return found
    last, named = _last_entries(xp, xp.astype(flat, dtype_object(xp, "int64"), copy=False), size)
    new = xp.take(parts, last, axis=axis)
    return xp.where(xp.reshape(named, (*(1,) * axis, size, *(1,) * (x.ndim - axis - 1))), new, x)


def _last_entries(xp: Any, index: Any, size: int) -> tuple[Any, Any]:
    """For each number below a size, the last entry of an index that is it, and whether one is; by sorting."""
    line = iota(xp, (size,), 0, "int64", index)
    if not (hasattr(xp, "argsort") and hasattr(xp, "searchsorted")):
        entry, same = iota(xp, index.shape, 0, "int64", index), xp.reshape(index, (1, -1)) == xp.reshape(line, (-1, 1))
        last = xp.max(xp.where(same, xp.reshape(entry, (1, -1)), xp.full_like(entry, -1)), axis=1)
        return xp.maximum(last, xp.zeros_like(last)), last >= 0
    stable = {"stable": True} if "stable" in inspect.signature(xp.argsort).parameters else {}  # CuPy's always is
    order = xp.argsort(index, axis=-1, **stable)
    found = xp.take(index, order, axis=0)
    behind = xp.astype(xp.searchsorted(found, line, side="right"), line.dtype)
    at = xp.maximum(behind - 1, xp.zeros_like(behind))
    return xp.take(order, at, axis=0), xp.take(found, at, axis=0) == line


def put(
    context: Any, updates: Any, index: Any, axis: int, size: int, base: Any, in_range: bool = False, out: Any = None
) -> Any:
    """``base``, or zeros, to which each element is added at its index along an axis.

    Outside (``in_range``: nowhere) nothing is.
    """
    xp, dims = context.xp, tuple(size if k == axis else d for k, d in enumerate(updates.shape))
    if not prod(updates.shape) or not size:
        return zeros(xp, dims, updates) if base is None else base
    index = xp.astype(index, dtype_object(xp, "int64"), copy=False)
    writes = writable(out, updates, flat=True)
    one = updates.shape[axis] == 1  # no element gets two
    if one and not (size > MOST_COMPARED and context.array.eager and strided(updates)):
        made = xp.where(index == iota(xp, dims, axis, "int64", index), updates, xp.zeros_like(updates))
        made = made if base is None else base + made
        if not writes:
            return made
        out[...] = made
        return out
    if context.array.extra("scatter_add") is None:  # an axis beside the one along which is counted
        wide = (*updates.shape[: axis + 1], size, *updates.shape[axis + 1 :])
        line = iota(xp, (*(1,) * (axis + 1), size, *(1,) * (updates.ndim - axis - 1)), axis + 1, "int64", index)
        beside = (*updates.shape[: axis + 1], 1, *updates.shape[axis + 1 :])
        named, spread = xp.reshape(index, beside) == line, xp.broadcast_to(xp.reshape(updates, beside), wide)
        made = xp.sum(xp.where(named, spread, xp.zeros_like(spread)), axis=axis, dtype=updates.dtype)
        return made if base is None else base + made
    if not in_range:
        inside = (index >= 0) & (index < size)
        if not (context.array.eager and bool(xp.all(inside))):
            updates = xp.where(inside, updates, xp.zeros_like(updates))
            index = xp.where(inside, index, xp.zeros_like(index))
    flat, parts = xp.reshape(_flat(xp, index, axis, dims), (-1,)), xp.reshape(updates, (-1,))
    if one:
        made = out if writes else xp.empty(dims, dtype=updates.dtype)
        if not same_elements(made, base):
            made[...] = 0 if base is None else base
        if base is None:
            xp.reshape(made, (-1,))[flat] = parts
        else:
            xp.reshape(made, (-1,))[flat] += parts
        return made
    into, begin = (None if each is None else xp.reshape(each, (-1,)) for each in (out if writes else None, base))
    made = add_at(context, parts, flat, 0, prod(dims), begin, True, into)
    return xp.reshape(made, dims) if into is None else out


def take_contract(
    xp: Any,
    x: Any,
    index: Any,
    inside: Any,
    axis: int,
    factor: Any,
    mine: str,
    theirs: str,
    out: str,
    into: Any = None,
) -> Any:
    """Sums of products of what indices name along an axis, whose letters are ``mine``, and a factor."""
    named = mine[axis : axis + index.ndim]
    alone = [n for n in named if n not in out]
    along = len(named) == 2 and len(alone) == 1 and out == mine.replace(alone[0], "")
    if along and sorted(theirs) == sorted(named) and gathered.on_numpy(x) and x.dtype == factor.dtype:
        lines = gathered.Lines(index, inside, factor, named[0] == alone[0], theirs != named)
        found = gathered.sums_along(x, lines, axis, into)
        if found is not None:
            return found
    return contract(xp, take(xp, x, index, inside, axis), factor, mine, theirs, out, into)


def add_contract(
    context: Any,
    a: Any,
    b: Any,
    mine: str,
    theirs: str,
    out: str,
    index: Any,
    axis: int,
    size: int,
    base: Any,
    in_range: bool = False,
    into: Any = None,
) -> Any:
    """What :func:`add_at` adds up is a product of two factors."""
    named = out[axis : axis + index.ndim]
    if base is None and len(named) == 2 and gathered.on_numpy(a) and a.dtype == b.dtype:
        for x, letters, factor, others in ((a, mine, b, theirs), (b, theirs, a, mine)):
            fresh = [n for n in named if n not in letters]
            if len(fresh) == 1 and letters == out.replace(fresh[0], "") and sorted(others) == sorted(named):
                lines = gathered.Lines(index, None, factor, named[0] == fresh[0], others != named)
                found = gathered.adds_along(x, lines, axis, size, into)
                if found is not None:
                    return found
    product = contract(context.xp, a, b, mine, theirs, out)
    return add_at(context, product, index, axis, size, base, in_range, into)
