"""nearest_interp, bilinear_interp and the like, with gradients: one axis after the other.

Along an axis the result is the product with a matrix whose rows have a few neighbouring elements each. On the host,
it is multiplied in blocks beside its diagonal: BLAS is faster there than gathering elements, and gradients need no
scattering. Zeros of a block would turn infinities into NaN, so where X has any, its elements are gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from fluidlite.plugin import IO, Call, Context, Resample, Weights, compute_dtype, is_float, register_kernel, resample_of

from .common import immediate

BLOCK = 131072
"""Elements that are worked on at a time, on the host."""
REACH = 64
"""Rows and columns of a block of the matrix."""
SMALL = 262144
"""Products of so many multiplications BLAS does on one thread: dealing out so little work costs more than it saves."""

Step = Callable[[Any], Any]


def _view(dims: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """Dims as [before, axis, behind]."""
    return prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :])


def _gathering(xp: Any, weights: Weights, axis: int, dtype: Any, exact: bool) -> Step:
    """The sum of the first elements that rows have, of their second ones, and so on."""
    count = np.diff(weights.start)
    taps = []
    for k in range(int(count.max(initial=0))):
        there = count > k
        place = np.where(there, weights.start[:-1] + k, 0)
        weight = np.where(there, weights.weight[place], 0)
        taps.append((xp.asarray(weights.index[place]), xp.asarray(weight, dtype=dtype)))

    def step(x: Any) -> Any:
        before, _, behind = _view(x.shape, axis)
        seen, total = xp.reshape(x, (before, weights.source, behind)), None
        for index, weight in taps:
            part = xp.take(seen, index, axis=1)
            if not exact:
                part = part * weight[None, :, None]
            total = part if total is None else total + part
        return xp.reshape(total, (*x.shape[:axis], weights.target, *x.shape[axis + 1 :]))

    return step


def _dense(weights: Weights, low: int, high: int) -> tuple[slice, Any]:
    """Rows ``low`` to ``high`` of the matrix, as the columns that they have and those columns."""
    start, end = int(weights.start[low]), int(weights.start[high])
    index = weights.index[start:end]
    first, last = (int(index.min()), int(index.max()) + 1) if end > start else (0, 1)
    matrix = np.zeros((high - low, last - first))
    rows = np.repeat(np.arange(high - low), np.diff(weights.start[low : high + 1]))
    matrix[rows, index - first] = weights.weight[start:end]
    return slice(first, last), matrix


def _multiplying(xp: Any, weights: Weights, axis: int, dtype: Any, rows: int) -> Step:
    """Products with blocks of the matrix, ``rows`` of it each."""
    blocks = []
    for low in range(0, weights.target, rows):
        high = min(low + rows, weights.target)
        part, matrix = _dense(weights, low, high)
        blocks.append((slice(low, high), part, xp.asarray(matrix, dtype=dtype)))
    alone = len(blocks) == 1

    def step(x: Any) -> Any:
        before, _, behind = _view(x.shape, axis)
        dims = (*x.shape[:axis], weights.target, *x.shape[axis + 1 :])
        out = None if alone else xp.empty((before, weights.target, behind), dtype=x.dtype)
        for target, part, matrix in blocks:
            if behind == 1:
                source = xp.reshape(x, (before, weights.source))[:, part]
                made = xp.matmul(source, matrix.T)[:, :, None]
            else:
                made = xp.matmul(matrix, xp.reshape(x, (before, weights.source, behind))[:, part, :])
            if out is None:
                return xp.reshape(made, dims)
            out[:, target, :] = made
        return xp.reshape(out, dims)

    return step


def _multiplying_host(weights: Weights, axis: int, dtype: Any) -> Step:
    """The same, with products written where they belong."""
    wide = max(1.0, weights.source / max(weights.target, 1))
    rows = max(8, int(REACH / wide))
    blocks = []
    for low in range(0, weights.target, rows):
        high = min(low + rows, weights.target)
        part, matrix = _dense(weights, low, high)
        blocks.append((slice(low, high), part, matrix.astype(dtype)))
    lines = max(16, SMALL // max(matrix.size for _, _, matrix in blocks)) if blocks else 1

    def step(x: Any) -> Any:
        before, _, behind = _view(x.shape, axis)
        out = np.empty((*x.shape[:axis], weights.target, *x.shape[axis + 1 :]), x.dtype)
        if behind == 1:
            each = min(lines, before)
            for first, count in ((0, before - before % each), (before - before % each, before % each)):
                if count:
                    source = x.reshape(before, -1)[first : first + count].reshape(-1, min(each, count), weights.source)
                    made = out.reshape(before, -1)[first : first + count].reshape(-1, min(each, count), weights.target)
                    for target, part, matrix in blocks:
                        np.matmul(source[:, :, part], matrix.T, out=made[:, :, target])
        else:
            source, made = x.reshape(before, weights.source, behind), out.reshape(before, weights.target, behind)
            for target, part, matrix in blocks:
                np.matmul(matrix, source[:, part], out=made[:, target])
        return out

    return step


def _order(resample: Resample) -> list[int]:
    """The axes, those that shrink the tensor most first; of those that are left as they are, none."""
    axes = [i for i, axis in enumerate(resample.axes) if not _same(axis)]
    return sorted(axes, key=lambda i: (resample.axes[i].target / resample.axes[i].source, -i))


def _same(axis: Weights) -> bool:
    if axis.source != axis.target or len(axis.index) != axis.target:
        return False
    return bool((axis.index == np.arange(axis.target)).all() and (axis.weight == 1).all())


def _interpolate(call: Call, context: Context, source: str, target: str) -> Any:
    xp, resample, name = context.xp, resample_of(call), call.dtype(source)
    host, order = immediate(context), _order(resample)
    dtype = getattr(xp, compute_dtype(name) if is_float(name) else name if resample.exact else "float32")

    def gather(i: int) -> Step:
        return _gathering(xp, resample.axes[i], i + 1, dtype, resample.exact)

    gathers = [gather(i) for i in order]
    fast = gathers
    if target != "Out" and not host:
        fast = [_multiplying(xp, resample.axes[i], i + 1, dtype, resample.axes[i].target) for i in order]
    elif host and not resample.exact:
        fast = [_multiplying_host(resample.axes[i], i + 1, dtype) for i in order]
    careful = host and fast is not gathers
    largest = max(prod(resample.source[1:]), prod(resample.target[1:]), 1)
    rows = max(1, BLOCK // largest) if host else max(resample.outer, 1)

    def run(context: Context, io: IO) -> None:
        x, out = xp.reshape(io.array(source), resample.source), xp.reshape(io.array(target), resample.target)
        for at in range(0, resample.outer, rows):
            part = (slice(at, at + rows), ...)
            value = x[part]
            if value.dtype != dtype:
                value = xp.astype(value, dtype)
            steps = gathers if careful and not np.isfinite(value.sum()) else fast
            for step in steps:
                value = step(value)
            out[part] = value if value.dtype == out.dtype else xp.astype(value, out.dtype)

    return run


def _forward(call: Call, context: Context) -> Any:
    """Out = X, resampled."""
    return _interpolate(call, context, "X", "Out")


def _backward(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD, resampled by the transposed matrices."""
    return _interpolate(call, context, "Out@GRAD", "X@GRAD")


bilinear_interp = register_kernel("bilinear_interp", "array")(_forward)
nearest_interp = register_kernel("nearest_interp", "array")(_forward)
bicubic_interp = register_kernel("bicubic_interp", "array")(_forward)
linear_interp = register_kernel("linear_interp", "array")(_forward)
trilinear_interp = register_kernel("trilinear_interp", "array")(_forward)
bilinear_interp_grad = register_kernel("bilinear_interp_grad", "array")(_backward)
nearest_interp_grad = register_kernel("nearest_interp_grad", "array")(_backward)
bicubic_interp_grad = register_kernel("bicubic_interp_grad", "array")(_backward)
linear_interp_grad = register_kernel("linear_interp_grad", "array")(_backward)
trilinear_interp_grad = register_kernel("trilinear_interp_grad", "array")(_backward)
