"""Array calls that choose, element by element or row by row, and that compare with a number."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.render.memory import same_elements, strided

MANY = 1 << 11
"""From so many elements on a limit is taken by ``clip``, which takes longer to begin."""
ROWS = 1 << 12
"""From so many elements on rows are chosen by their numbers, where each has :data:`WIDE` elements or more."""
WIDE = 32


def where(context: Any, condition: Any, a: Any, b: Any, out: Any = None) -> Any:
    """One or the other, element by element; by the place's own function if it has a faster one."""
    found = _rows(condition, a, b, out)
    if found is not None:
        return found
    own = context.array.extra("where")
    if own is not None:
        return own(condition, a, b) if out is None else own(condition, a, b, out)
    chosen = context.xp.where(condition, a, b)
    if out is None:
        return chosen
    out[...] = chosen
    return out


def _rows(condition: Any, a: Any, b: Any, out: Any) -> Any:
    """One or the other, row by row: a copy, in which rows are assigned; None where it is no choice of long rows."""
    if type(condition) is not np.ndarray or not condition.ndim or condition.shape[-1] != 1:
        return None
    like = next((x for x in (b, a) if type(x) is np.ndarray and x.ndim), None)
    if like is None or like.size < max(ROWS, condition.size * WIDE) or like.ndim != condition.ndim:
        return None
    count = max(k for k, size in enumerate(condition.shape) if size != 1) + 1 if condition.size != 1 else 0
    dims, whole = like.shape, out is None or (out.dtype == like.dtype and out.flags.c_contiguous)
    if not whole or dims[:count] != condition.shape[:count] or not all(_has_rows(x, like) for x in (a, b)):
        return None
    made, chosen = np.empty(dims, like.dtype) if out is None else out, condition.reshape(-1)
    many = not same_elements(made, b) and 2 * np.count_nonzero(chosen) > chosen.size
    if many or same_elements(made, a):  # fewer rows are assigned than are there already
        a, b, chosen = b, a, ~chosen
    if not same_elements(made, b):
        if any(np.may_share_memory(made, x) for x in (a, b) if strided(x)):
            return None
        made[...] = b
    at = chosen.nonzero()[0]
    made.reshape(chosen.size, -1)[at] = a.reshape(chosen.size, -1)[at] if np.ndim(a) else a
    return made


def _has_rows(x: Any, like: Any) -> bool:
    """Whether an operand is a number, or an array of rows that lie one behind the other, like another one."""
    if not np.ndim(x):
        return not strided(x) or x.dtype == like.dtype
    return bool(x.shape == like.shape and x.dtype == like.dtype and x.flags.c_contiguous)


def sign(xp: Any, x: Any, out: Any = None) -> Any:
    """-1, 0 or 1 of floats, on NumPy, whose own function takes a branch an element; NaN of NaN."""
    if x.size < MANY:
        return xp.sign(x, out=out)
    found, number = (x > 0).view(np.int8), x == x
    np.subtract(found, (x < 0).view(np.int8), out=found)
    if not number.all():
        return xp.sign(x, out=out)
    if out is None:
        return found.astype(x.dtype)
    out[...] = found
    return out


def limit(xp: Any, kind: str, x: Any, number: Any, out: Any = None) -> Any:
    """The maximum, or minimum, of floats and a number, on NumPy, whose ``clip`` takes a quarter of the time."""
    if x.size < MANY:
        return getattr(xp, kind)(x, number, out=out)
    low, high = (number, np.inf) if kind == "maximum" else (-np.inf, number)
    return xp.clip(x, low, high, out=out)
