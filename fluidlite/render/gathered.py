"""Contractions with gathered operands on NumPy, without materializing the gathered tensor.

Along one axis, gather and weighted sum are a product with a sparse matrix. If neighbouring rows have close indices, as
in an interpolation, that is a band matrix. It is multiplied by dense blocks, since BLAS is faster than gathering.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

BLOCK_SIZE = 64
"""Rows and columns of a block."""
MIN_LINES = 16
"""Lines of the operand that share the matrix: with fewer, building it does not pay off."""
MIN_RESULTS = 1 << 14
"""Elements of the result: with fewer, building the matrix does not pay off."""
MAX_MEAN_STEP = 8
"""Mean distance between the indices of consecutive elements: a matrix with larger ones is no band matrix."""
MAX_FILL = 64
"""Elements of the blocks per nonzero element: beyond it gathering is faster than BLAS."""
SERIAL_PRODUCTS = 1 << 18
"""Multiplications of a product that BLAS computes on one thread, since starting more would cost more than it saves."""


class Band(NamedTuple):
    """A dense block of a band matrix, with its rows and columns."""

    rows: slice
    columns: slice
    matrix: Any


Triplets = Callable[[], tuple[Any, Any, Any]]
"""Returns rows, columns and values of the nonzero elements of a matrix."""


def on_numpy(x: Any) -> bool:
    """Whether an array is a NumPy array of floats; subclasses may be on a device."""
    return type(x) is np.ndarray and x.dtype.kind == "f"


class SparseMatrix(NamedTuple):
    """A sparse matrix by lines: the indices and the values of the elements of each line.

    ``index``: two axes, of which the first counts the lines, unless ``transposed``.
    ``inside``: a mask of the valid indices; None: all.
    ``weights``: the values, with their axes in the other order if ``weights_transposed``.
    """

    index: Any
    inside: Any
    weights: Any
    transposed: bool
    weights_transposed: bool

    def elements(self, size: int) -> tuple[Any, Any, Any]:
        """Return line, index and value of all nonzero elements with an index in [0, size)."""
        weights = self.weights.T if self.weights_transposed else self.weights
        is_nonzero = (self.index >= 0) & (self.index < size) & (weights != 0)
        if self.inside is not None:
            is_nonzero &= self.inside
        if self.transposed:
            line, position = np.nonzero(is_nonzero.T)
            return line, self.index[position, line], weights[position, line]
        line, position = np.nonzero(is_nonzero)
        return line, self.index[line, position], weights[line, position]

    @property
    def number(self) -> int:
        """The number of lines."""
        return int(self.index.shape[self.transposed])


def sums_along(x: Any, lines: SparseMatrix, axis: int, into: Any) -> Any:
    """``take(x, index, axis) * weights``, summed over each line.

    None if gathering is faster, or if a value is not finite: zeros of the blocks would turn that into NaN.
    """
    return _product(x, axis, lambda: lines.elements(x.shape[axis]), lines.number, into)


def adds_along(x: Any, lines: SparseMatrix, axis: int, size: int, into: Any) -> Any:
    """Scatter-add ``x * weights`` along an axis: the adjoint of :func:`sums_along`. None if scattering is faster."""

    def elements() -> tuple[Any, Any, Any]:
        line, index, weights = lines.elements(size)
        return index, line, weights

    return _product(x, axis, elements, size, into)


def _product(x: Any, axis: int, elements: Triplets, count: int, into: Any) -> Any:
    """The product of a sparse matrix with an axis of ``x``, or None; ``count``: the rows of the matrix."""
    outer, inner, size = prod(x.shape[:axis]), prod(x.shape[axis + 1 :]), x.shape[axis]
    if outer * inner < MIN_LINES or outer * inner * count < MIN_RESULTS or not size:
        return None
    bands = _bands(*elements(), count, max(size / count, 1.0))
    if bands is None:
        return None
    result = output_buffer((*x.shape[:axis], count, *x.shape[axis + 1 :]), x, into)
    _multiply(x, bands, result, outer, inner)
    smaller = result if result.size < x.size else x  # a value that is not finite in one is not in the other
    return result if np.isfinite(smaller.sum()) else None


def _multiply(x: Any, bands: list[Band], out: Any, outer: int, inner: int) -> None:
    """Multiply the blocks of a matrix with an axis of ``x``."""
    if inner != 1:
        source, target = x.reshape(outer, -1, inner), out.reshape(outer, -1, inner)
        for band in bands:
            np.matmul(band.matrix, source[:, band.columns], out=target[:, band.rows])
        return
    lines = min(max(16, SERIAL_PRODUCTS // max(band.matrix.size for band in bands)), outer)
    source, target = x.reshape(outer, -1), out.reshape(outer, -1)
    even = outer - outer % lines
    for part, each in ((slice(0, even), lines), (slice(even, outer), outer % lines)):
        if each:
            batch, into = (side[part].reshape(-1, each, side.shape[1]) for side in (source, target))
            for band in bands:
                np.matmul(batch[:, :, band.columns], band.matrix.T, out=into[:, :, band.rows])


def output_buffer(dims: tuple[int, ...], like: Any, into: Any) -> Any:
    """The array ``into`` under the dims of a result, or a new array."""
    fits = into is not None and into.dtype == like.dtype and into.flags.c_contiguous
    return into.reshape(dims) if fits else np.empty(dims, like.dtype)


def _bands(rows: Any, columns: Any, weights: Any, count: int, wide: float) -> list[Band] | None:
    """Split a matrix into dense blocks, about ``wide`` times as wide as high; None if they would be mostly zeros."""
    if max(np.abs(np.diff(side)).sum() for side in (rows, columns)) > MAX_MEAN_STEP * len(columns):
        return None
    order = np.argsort(rows, kind="stable")
    rows, columns, weights = rows[order], columns[order], weights[order]
    height = max(8, int(BLOCK_SIZE / wide))
    begins = np.searchsorted(rows, np.arange(0, count + height, height))
    bands, area = [], 0
    for k, low in enumerate(range(0, count, height)):
        high, part = min(low + height, count), slice(begins[k], begins[k + 1])
        block_columns = columns[part]
        first, last = (int(block_columns.min()), int(block_columns.max()) + 1) if block_columns.size else (0, 1)
        area += (high - low) * (last - first)
        if area > MAX_FILL * max(weights.size, BLOCK_SIZE * BLOCK_SIZE):
            return None
        matrix = np.zeros((high - low) * (last - first), weights.dtype)
        np.add.at(matrix, (rows[part] - low) * (last - first) + (block_columns - first), weights[part])
        bands.append(Band(slice(low, high), slice(first, last), matrix.reshape(high - low, last - first)))
    return bands
