"""Sums of products with what indices name, on NumPy: what is gathered is never made as a whole.

Along one axis such a sum is a product with a matrix of few elements a row. Where the indices of near rows are near to
each other, as those of an interpolation are, it is multiplied in blocks beside its diagonal: BLAS is faster than
gathering.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

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


class Band(NamedTuple):
    """A block of a matrix: which rows and columns it has, and its elements."""

    rows: slice
    columns: slice
    matrix: Any


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


def sums_along(x: Any, lines: Lines, axis: int, into: Any) -> Any:
    """``take(x, index, axis) * weights``, summed over each line.

    None where it is not faster so: indices are far apart, or something is not finite, which zeros would make NaN.
    """
    return _product(x, axis, lambda: lines.elements(x.shape[axis]), lines.number, into)


def adds_along(x: Any, lines: Lines, axis: int, size: int, into: Any) -> Any:
    """``x * weights`` added along an axis where the index says: the reverse of :func:`sums_along`.

    None where it is not faster so.
    """

    def elements() -> tuple[Any, Any, Any]:
        line, index, weights = lines.elements(size)
        return index, line, weights

    return _product(x, axis, elements, size, into)


def _product(x: Any, axis: int, elements: Elements, count: int, into: Any) -> Any:
    """The product of a matrix, told by rows, columns and values of its elements, and an axis; or None."""
    before, behind, size = prod(x.shape[:axis]), prod(x.shape[axis + 1 :]), x.shape[axis]
    if before * behind < FEW or before * behind * count < LEAST or not size:
        return None
    bands = _bands(*elements(), count, max(size / count, 1.0))
    if bands is None:
        return None
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
