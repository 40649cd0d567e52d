"""Normalising in host memory: parts that stay in a core's cache go through all steps at once, on all threads.

The arrays are NumPy's, in the dims of a view; what is computed in float32 and stored in a half type is widened
part by part.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from fluidlite.plugin import Context

from .moments import View
from .threads import each_part

BLOCK = 262144
"""Elements of one part."""
WIDTH = 1024
"""Rows of a matrix are joined up to so many elements: NumPy's inner loops are slow to begin."""

Array = np.ndarray[Any, Any]
Work = Callable[[int], None]


class Parts:
    """Parts of a view along one axis, and memory of the type in which one computes."""

    def __init__(self, dims: tuple[int, ...], axis: int, kind: Any) -> None:
        self.axis, self.kind = axis, kind
        self.length, whole = dims[axis], prod(dims)
        self.step = max(1, BLOCK * self.length // whole) if whole else 1
        self.number = -(-self.length // self.step) if whole else 0
        self.size = whole // self.length * min(self.step, self.length) if whole else 0

    def of(self, array: Array, part: int) -> Array:
        """The part of an array; of one that broadcasts along the axis, the whole."""
        if array.shape[self.axis] == 1 != self.length:
            return array
        start = part * self.step
        return array[(*[slice(None)] * self.axis, slice(start, start + self.step))]

    def scratch(self) -> Array:
        """Memory for one part."""
        return np.empty(self.size, self.kind)

    def widened(self, array: Array) -> Callable[[Array], Array]:
        """Return the conversion of parts of ``array`` into the type in which one computes."""
        if array.dtype == self.kind:
            return _same
        memory = self.scratch()

        def widen(part: Array) -> Array:
            out = shaped(memory, part)
            np.copyto(out, part, "unsafe")
            return out

        return widen

    def written(self, array: Array) -> Callable[[Array], Array]:
        """Return where to compute parts of ``array``: in their own place, or beside it."""
        if array.dtype == self.kind:
            return _same
        memory = self.scratch()
        return lambda part: shaped(memory, part)


def _same(part: Array) -> Array:
    return part


def shaped(memory: Array, part: Array) -> Array:
    """So much of scratch memory as a part needs, in its shape."""
    return memory[: part.size].reshape(part.shape)


def finish(target: Array, value: Array) -> None:
    """Round what was computed beside its place."""
    if value is not target:
        target[...] = value


class Lines:
    """Sums over one axis at full size, which small arrays then join to statistics.

    The axis is the last, or dim 1 of what has the channels last: there whole rows of channels are added.

    Attributes
    ----------
    dims : tuple of int
        As which arrays are seen.
    split : int
        The axis along which parts have nothing to do with each other.
    """

    def __init__(self, view: View, kind: Any) -> None:
        self.view = view
        self.last = view.axes == (1, 3)
        if self.last:
            batch, inner, groups, each = view.dims
            self.dims: tuple[int, ...] = (batch, inner, groups * each)
            self.ones = np.ones((1, inner), kind)
        else:
            self.dims = view.dims
            self.ones = np.ones(view.dims[-1], kind)
        self.split = next(axis for axis in range(len(view.dims)) if axis not in view.axes)

    @property
    def slim(self) -> tuple[int, ...]:
        """Dims of sums over the axis."""
        return (self.dims[0], 1, self.dims[2]) if self.last else (*self.dims[:-1], 1)

    def small(self, array: Array | None) -> Array | None:
        """A statistic or parameter of the view, in dims that broadcast to ``dims``."""
        if array is None or not self.last:
            return array
        batch, _, groups, each = array.shape
        wanted = self.view.dims[3]
        return np.repeat(array, wanted // each, 3).reshape(batch, 1, groups * wanted)

    def statistic(self, array: Array) -> Array:
        """What ``joined`` gave, as the view's statistic."""
        return array[..., :: self.view.dims[3]].reshape(self.view.statistic) if self.last else array

    def total(self, array: Array) -> Array:
        """Sums over the axis."""
        sums: Array = self.ones @ array if self.last else np.vecdot(array, self.ones)[..., None]
        return sums

    def products(self, a: Array, b: Array, memory: Array | None) -> Array:
        """The same of products; only channels that are last need memory."""
        if not self.last:
            sums: Array = np.vecdot(a, b)[..., None]
            return sums
        assert memory is not None
        return self.total(np.multiply(a, b, shaped(memory, a)))

    def joined(self, sums: Array) -> Array:
        """Sums over all reduced axes, in float64; they broadcast to ``sums``."""
        if self.last:
            each = self.view.dims[3]
            joined = np.add.reduce(sums.reshape(len(sums), 1, -1, each), 3, np.float64)
            return np.repeat(joined, each, 2)
        rest = self.view.axes[:-1]
        return np.add.reduce(sums, rest, np.float64, keepdims=True) if rest else sums.astype(np.float64)


def forward(
    context: Context, x: Array, y: Array, view: View, scale: Array | None, bias: Array | None, epsilon: float, kind: Any
) -> tuple[Array, Array]:
    """Write (x - mean) / sqrt(variance + epsilon) scale + bias to ``y``; return mean and variance."""
    if view.columns:
        mean, variance = _column_moments(context, x, view, kind)
        factor = 1 / np.sqrt(variance + epsilon)
        affine(context, x, y, (factor if scale is None else factor * scale).astype(kind), bias, mean, kind)
        return mean, variance
    lines, count = Lines(view, kind), view.elements
    parts = Parts(lines.dims, lines.split, kind)
    x, y = x.reshape(lines.dims), y.reshape(lines.dims)
    along, tiny = view.parameter[-1] != 1 and not lines.last, np.finfo(kind).eps
    weights, shifts = lines.small(scale), lines.small(bias)
    shape = lines.joined(np.empty(lines.slim, kind)).shape
    mean, variance = np.empty(shape, kind), np.empty(shape, kind)

    def worker() -> Work:
        widen, written = parts.widened(x), parts.written(y)
        memory = parts.scratch() if lines.last else None

        def work(part: int) -> None:
            source, target = widen(parts.of(x, part)), parts.of(y, part)
            out = written(target)
            here, spread = parts.of(mean, part), parts.of(variance, part)
            here[...] = lines.joined(lines.total(source)) / count
            np.subtract(source, here, out)
            rest = lines.joined(lines.total(out)) / count  # what the first sum lost, if the mean is far from 0
            here += rest.astype(kind)
            squares = lines.joined(lines.products(out, out, memory)) / count
            spread[...] = np.maximum(squares - rest * rest, 0)
            factor = 1 / np.sqrt(spread + kind(epsilon))
            lost = (rest * factor).astype(kind)
            if weights is not None and not along:
                weight = parts.of(weights, part)
                factor, lost = factor * weight, lost * weight
            np.multiply(out, factor, out)
            if np.max(np.abs(lost), initial=0.0) > tiny:
                np.subtract(out, lost, out)
            if weights is not None and along:
                np.multiply(out, parts.of(weights, part), out)
            if shifts is not None:
                np.add(out, parts.of(shifts, part), out)
            finish(target, out)

        return work

    each_part(context, parts.number, worker)
    return lines.statistic(mean), lines.statistic(variance)


def affine(
    context: Context, x: Array, y: Array, factor: Array, shift: Array | None, centre: Array | None, kind: Any
) -> None:
    """Write (x - centre) factor + shift to ``y``; what is None is left out."""
    steps = [(np.subtract, centre), (np.multiply, factor), (np.add, shift)]
    used = [(function, operand) for function, operand in steps if operand is not None]
    if x.ndim == 2:
        fold = fold_of(*x.shape)
        x, y = joined(x, fold), joined(y, fold)
        used = [(function, tiled(operand, fold)) for function, operand in used]
    parts = Parts(x.shape, 0, kind)

    def worker() -> Work:
        widen, written = parts.widened(x), parts.written(y)

        def work(part: int) -> None:
            source, target = widen(parts.of(x, part)), parts.of(y, part)
            out = written(target)
            for function, operand in used:
                function(source, operand, out)
                source = out
            finish(target, out)

        return work

    each_part(context, parts.number, worker)


def fold_of(rows: int, columns: int) -> int:
    """How many rows of a matrix are joined to one."""
    fold = 1
    while rows % (2 * fold) == 0 and 2 * fold * columns <= WIDTH and rows > 2 * fold:
        fold *= 2
    return fold


def joined(matrix: Array, fold: int) -> Array:
    """A matrix with that many rows joined to one."""
    return matrix.reshape(matrix.shape[0] // fold, matrix.shape[1] * fold)


def tiled(row: Array, fold: int) -> Array:
    """A row of numbers, one a column, for a matrix with that many rows joined to one."""
    return row if fold == 1 else np.concatenate([row] * fold, 1)


def _column_moments(context: Context, x: Array, view: View, kind: Any) -> tuple[Array, Array]:
    """Mean and variance of each column: of each part by itself, then joined in float64.

    A part is centred by its own (roughly summed) mean first, so a mean far from 0 costs no digits.
    """
    rows, columns = view.dims
    fold = fold_of(rows, columns)
    x = joined(x, fold)
    parts = Parts(x.shape, 0, kind)
    means, squares = (np.empty((parts.number, fold, columns)) for _ in range(2))
    counts = np.empty((parts.number, 1, 1))

    def worker() -> Work:
        widen, memory = parts.widened(x), parts.scratch()
        ones = np.ones(parts.step, kind)

        def work(part: int) -> None:
            source = widen(parts.of(x, part))
            out, one, count = shaped(memory, source), ones[: len(source)], len(source)
            rough = one @ source / kind(count)
            np.subtract(source, rough, out)
            rest = (one @ out).astype(np.float64)
            np.multiply(out, out, out)
            means[part] = (rough + rest / count).reshape(fold, columns)
            squares[part] = (one @ out - rest * rest / count).reshape(fold, columns)
            counts[part] = count

        return work

    each_part(context, parts.number, worker)
    mean = np.add.reduce(means * counts, (0, 1)) / rows
    variance = np.add.reduce(squares + counts * np.square(means - mean), (0, 1)) / rows
    return mean.astype(kind)[None], variance.astype(kind)[None]
