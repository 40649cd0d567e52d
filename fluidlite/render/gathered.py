"""Sums of products with what indices name, on NumPy: what is gathered is never made as a whole.

Along one axis such a sum is a product with a matrix of few elements a row. Where the indices of near rows are near to
each other, as those of an interpolation are, it is multiplied in blocks beside its diagonal: BLAS is faster than
gathering. Elsewhere blocks of what is gathered stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from math import prod
from typing import Any, NamedTuple

import numpy as np

BLOCK = 1 << 16
"""Elements that are gathered at a time."""
REACH = 64
"""Rows and columns of a block of a matrix."""
FEW = 16
"""Lines with at least so many elements beside each other are worth a matrix."""
LEAST = 1 << 14
"""Results of fewer elements are computed sooner than a matrix is made."""
FAR = 8
"""Places between the indices of near rows, on average, up to which they are near to each other."""
WASTE = 64
"""Elements of blocks for each one that counts: beyond, gathering is faster than BLAS."""
SMALL = 1 << 18
"""Products of so many multiplications BLAS does on one thread: dealing out so little work costs more than it saves."""


SMALL_MATRIX = 1 << 12
"""Elements of a matrix that is made as a whole, and kept for the next call of the same indices and weights."""


class Band(NamedTuple):
    """A block of a matrix: which rows and columns it has, and its elements."""

    rows: slice
    columns: slice
    matrix: Any


Known = list[Band]
"""The matrix of an earlier call of the same indices and weights, if it is small."""
Elements = Callable[[], tuple[Any, Any, Any]]
"""Gives rows, columns and values of the elements of a matrix."""


def on_numpy(x: Any) -> bool:
    """Whether an array is NumPy's own, of floats: classes made of it may lie on a device."""
    return type(x) is np.ndarray and x.dtype.kind == "f"


class Lines(NamedTuple):
    """A sparse matrix: in each line the indices of its elements, and these.

    ``index``: of two axes; the lines are along the first one, unless ``turned``.
    ``inside``: which indices count; None: all.
    ``weights``: the elements; ``weights_turned``: their axes are in the other order than the indices'.
    """

    index: Any
    inside: Any
    weights: Any
    turned: bool
    weights_turned: bool

    def elements(self, size: int) -> tuple[Any, Any, Any]:
        """Return line, index and value of all elements that are not 0, and whose index is below a size."""
        weights = self.weights.T if self.weights_turned else self.weights
        some = (self.index >= 0) & (self.index < size) & (weights != 0)
        if self.inside is not None:
            some &= self.inside
        if self.turned:
            line, at = np.nonzero(some.T)
            return line, self.index[at, line], weights[at, line]
        line, at = np.nonzero(some)
        return line, self.index[line, at], weights[line, at]

    @property
    def number(self) -> int:
        """The number of lines."""
        return int(self.index.shape[self.turned])


def sums_along(x: Any, lines: Lines, axis: int, into: Any, known: Known | None = None) -> Any:
    """``take(x, index, axis) * weights``, summed over each line.

    None where it is not faster so: indices are far apart, or something is not finite, which zeros would make NaN.
    """
    return _product(x, axis, lambda: lines.elements(x.shape[axis]), lines.number, into, known)


def adds_along(x: Any, lines: Lines, axis: int, size: int, into: Any, known: Known | None = None) -> Any:
    """``x * weights`` added along an axis where the index says: the reverse of :func:`sums_along`.

    None where it is not faster so.
    """

    def elements() -> tuple[Any, Any, Any]:
        line, index, weights = lines.elements(size)
        return index, line, weights

    return _product(x, axis, elements, size, into, known)


def _product(x: Any, axis: int, elements: Elements, count: int, into: Any, known: Known | None) -> Any:
    """The product of a matrix, told by rows, columns and values of its elements, and an axis; or None.

    ``known`` holds the matrix, if it is small, from one call to the next.
    """
    before, behind, size = prod(x.shape[:axis]), prod(x.shape[axis + 1 :]), x.shape[axis]
    if known is not None and 0 < count * size <= SMALL_MATRIX:
        if not known:
            rows, columns, weights = elements()
            whole = np.zeros((count, size), x.dtype)
            np.add.at(whole, (rows, columns), weights)
            known.append(Band(slice(0, count), slice(0, size), whole))
        bands = known[:1]
    elif before * behind < FEW or before * behind * count < LEAST or not size:
        return None
    else:
        found = _bands(*elements(), count, max(size / count, 1.0))
        if found is None:
            return None
        bands = found
    made = output_buffer((*x.shape[:axis], count, *x.shape[axis + 1 :]), x, into)
    _multiply(x, bands, made, before, behind)
    few = made if made.size < x.size else x  # what is not finite in one is not in the other
    return made if np.isfinite(few.sum()) else None


def _multiply(x: Any, bands: list[Band], out: Any, before: int, behind: int) -> None:
    """Write the products of blocks of a matrix and an axis."""
    if behind != 1:
        source, target = x.reshape(before, -1, behind), out.reshape(before, -1, behind)
        for band in bands:
            np.matmul(band.matrix, source[:, band.columns], out=target[:, band.rows])
        return
    lines = min(max(16, SMALL // max(band.matrix.size for band in bands)), before)
    source, target = x.reshape(before, -1), out.reshape(before, -1)
    whole = before - before % lines
    for part, each in ((slice(0, whole), lines), (slice(whole, before), before % lines)):
        if each:
            several, into = (side[part].reshape(-1, each, side.shape[1]) for side in (source, target))
            for band in bands:
                np.matmul(several[:, :, band.columns], band.matrix.T, out=into[:, :, band.rows])


def output_buffer(dims: tuple[int, ...], like: Any, into: Any) -> Any:
    """Where a result may be written, or new memory."""
    fits = into is not None and into.dtype == like.dtype and into.flags.c_contiguous
    return into.reshape(dims) if fits else np.empty(dims, like.dtype)


def _bands(rows: Any, columns: Any, weights: Any, count: int, wide: float) -> list[Band] | None:
    """A matrix in blocks of rows, ``wide`` times as wide as high; None if most of them would be zeros."""
    if max(np.abs(np.diff(side)).sum() for side in (rows, columns)) > FAR * len(columns):
        return None
    order = np.argsort(rows, kind="stable")
    rows, columns, weights = rows[order], columns[order], weights[order]
    height = max(8, int(REACH / wide))
    begins = np.searchsorted(rows, np.arange(0, count + height, height))
    found, area = [], 0
    for k, low in enumerate(range(0, count, height)):
        high, part = min(low + height, count), slice(begins[k], begins[k + 1])
        mine = columns[part]
        first, last = (int(mine.min()), int(mine.max()) + 1) if mine.size else (0, 1)
        area += (high - low) * (last - first)
        if area > WASTE * max(weights.size, REACH * REACH):
            return None
        matrix = np.zeros((high - low) * (last - first), weights.dtype)
        np.add.at(matrix, (rows[part] - low) * (last - first) + (mine - first), weights[part])
        found.append(Band(slice(low, high), slice(first, last), matrix.reshape(high - low, last - first)))
    return found


class Rows(NamedTuple):
    """The letters of an axis-0 gather and a product with it: ``lead`` of all, then those of each."""

    lead: int
    gathered: str
    factor: str
    result: str


def rows_of(places: int, gathered: str, factor: str, result: str) -> Rows | None:
    """How a product of what is gathered along axis 0 is one of a matrix and a vector for each of many places.

    ``places``: letters that the index has. None where it is another product.
    """
    same = takewhile(lambda names: len(set(names)) == 1, zip(gathered, factor, result, strict=False))
    lead = min(len(list(same)), places)
    rest = Rows(lead, gathered[lead:], factor[lead:], result[lead:])
    parts = sorted(rest.factor + rest.result)
    return rest if lead and parts == sorted(rest.gathered) else None


def sums_of_rows(x: Any, index: Any, inside: Any, factor: Any, letters: Rows, dims: tuple[int, ...], into: Any) -> Any:
    """The product of the parts of ``x`` that the index names and a factor, in blocks of places."""
    lead = prod(index.shape[: letters.lead])
    index, each, width = index.reshape(lead, -1), index.shape[letters.lead :], x.shape[1:]
    inside = None if inside is None or inside.all() else inside.reshape(lead, -1)
    factor, made = factor.reshape(lead, *factor.shape[letters.lead :]), output_buffer(dims, x, into)
    target = made.reshape(lead, *dims[letters.lead :])
    text = f"Z{letters.gathered},Z{letters.factor}->Z{letters.result}"
    step = max(1, BLOCK // max(1, prod(each) * prod(width)))
    buffer = np.empty((min(step, lead), index.shape[1], *width), x.dtype)
    for at in range(0, lead, step):
        part = slice(at, min(at + step, lead))
        found = buffer[: part.stop - at]
        np.take(x, index[part], 0, found, "clip")
        if inside is not None:
            found[~inside[part]] = 0
        np.einsum(text, found.reshape(-1, *each, *width), factor[part], out=target[part])
    return made


def adds_of_rows(scatter_add: Callable[..., None], a: Any, b: Any, index: Any, letters: Rows, out: Any) -> None:
    """The product of two factors, added to the parts of ``out`` that the index names, in blocks of places."""
    lead = prod(index.shape[: letters.lead])
    index, (size, *width) = index.reshape(lead, -1), out.shape
    each = index.shape[1] * prod(width)
    a, b = (x.reshape(lead, *x.shape[letters.lead :]) for x in (a, b))
    text = f"Z{letters.factor},Z{letters.result}->Z{letters.gathered}"
    step = max(1, BLOCK // max(1, each))
    for at in range(0, lead, step):
        part = slice(at, at + step)
        parts, where = np.einsum(text, a[part], b[part]).reshape(-1, *width), index[part].reshape(-1)
        inside = (where >= 0) & (where < size)
        if not inside.all():
            parts, where = parts[inside], where[inside]
        scatter_add(out, where, parts)
