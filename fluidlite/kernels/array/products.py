"""cos_sim, bilinear_tensor_product and conv_shift with gradients; where functions write in place, by blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .blocks import BLOCK
from .common import numpy_style, storer, widener


def _matrix(call: Call, slot: str) -> tuple[int, int]:
    dims = call.dims(slot)
    return dims[0], prod(dims[1:])


def _parts(rows: int, width: int) -> Iterator[slice]:
    """Blocks of rows that stay in cache."""
    step = max(1, BLOCK // max(width, 1))
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


# cos_sim -----------------------------------------------------------------------------------------------------------


@register_kernel("cos_sim", "array")
def cos_sim(call: Call, context: Context) -> Any:
    """Out = X . Y / (|X| |Y|) of each row."""
    xp, widen, read = context.xp, widener(call.dtype("X"), context), context.xp.reshape
    (rows, width), (y_rows, _) = _matrix(call, "X"), _matrix(call, "Y")
    dot = _row_dot(context)

    def run(context: Context, io: IO) -> None:
        x, y = read(io.array("X"), (rows, width)), read(io.array("Y"), (y_rows, width))
        out, x_norm, y_norm = (io.array(slot) if io.has(slot) else None for slot in ("Out", "XNorm", "YNorm"))
        if y_rows == 1:
            single = widen(y)
            single_norm = xp.sqrt(dot(single, single))
            if y_norm is not None:
                y_norm[...] = xp.astype(single_norm, y_norm.dtype)
        for part in _parts(rows, width):
            a = widen(x[part, :])
            b = single if y_rows == 1 else widen(y[part, :])
            norm, other = xp.sqrt(dot(a, a)), single_norm if y_rows == 1 else xp.sqrt(dot(b, b))
            if out is not None:
                out[part, :] = xp.astype(dot(a, b) / (norm * other), out.dtype)
            if x_norm is not None:
                x_norm[part, :] = xp.astype(norm, x_norm.dtype)
            if y_norm is not None and y_rows != 1:
                y_norm[part, :] = xp.astype(other, y_norm.dtype)

    return run


def _row_dot(context: Context) -> Callable[[Any, Any], Any]:
    """Return the products of rows, [rows, 1]; one row of the second serves all."""
    xp = context.xp
    einsum = getattr(xp, "einsum", None)

    def dot(a: Any, b: Any) -> Any:
        if b.shape[0] == 1 and a.shape[0] != 1:
            return xp.matmul(a, xp.matrix_transpose(b))
        if einsum is not None:  # no array of the products
            return einsum("ij,ij->i", a, b)[:, None]
        return xp.sum(a * b, axis=1, keepdims=True)

    return dot


@register_kernel("cos_sim_grad", "array")
def cos_sim_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD (Y / (|X| |Y|) - Out X / |X|^2), and so of Y."""
    xp, widen, read = context.xp, widener(call.dtype("X"), context), context.xp.reshape
    (rows, width), (y_rows, _) = _matrix(call, "X"), _matrix(call, "Y")
    store, wants_x, wants_y = storer(context), call.has("X@GRAD"), call.has("Y@GRAD")
    views = numpy_style(context)

    def target(io: IO, slot: str) -> Any:
        """A gradient as matrix: a view of the output, or what is stored in it at the end."""
        array = io.array(slot)
        return array.reshape(rows, width) if views else xp.empty((rows, width), dtype=array.dtype)

    def run(context: Context, io: IO) -> None:
        x, y = read(io.array("X"), (rows, width)), read(io.array("Y"), (y_rows, width))
        out, dout = widen(io.array("Out")), widen(io.array("Out@GRAD"))
        x_norm, y_norm = widen(io.array("XNorm")), widen(io.array("YNorm"))
        both, along = dout / (x_norm * y_norm), dout * out
        mine, its = along / (x_norm * x_norm), along / (y_norm * y_norm)
        single = widen(y) if y_rows == 1 else None
        dx = target(io, "X@GRAD") if wants_x else None
        dy = target(io, "Y@GRAD") if wants_y and y_rows != 1 else None
        total = xp.zeros((1, width), dtype=dout.dtype)
        for part in _parts(rows, width):
            a = widen(x[part, :])
            b = single if single is not None else widen(y[part, :])
            if dx is not None:
                store(dx[part, :], both[part, :] * b - mine[part, :] * a)
            if dy is not None:
                store(dy[part, :], both[part, :] * a - its[part, :] * b)
            elif wants_y:
                total = total + xp.matmul(xp.matrix_transpose(both[part, :]), a)
        if wants_y and single is not None:
            store(io.array("Y@GRAD"), total - xp.sum(its) * single)
        for slot, made in (("X@GRAD", dx), ("Y@GRAD", dy)):
            if made is not None and not views:
                store(io.array(slot), made)

    return run


# bilinear_tensor_product -------------------------------------------------------------------------------------------


@register_kernel("bilinear_tensor_product", "array", vendor=True)
def bilinear(call: Call, context: Context) -> Any:
    """Out[:, i] = the products of the rows of X Weight[i] and Y, + Bias[i]."""
    xp, widen, dot = context.xp, widener(call.dtype("X"), context), _row_dot(context)
    size, has_bias = call.dims("Weight")[0], call.has("Bias")

    def run(context: Context, io: IO) -> None:
        x, y, out = widen(io.array("X")), widen(io.array("Y")), io.array("Out")
        weight = io.array("Weight")
        bias = widen(io.array("Bias")) if has_bias else None
        for i in range(size):
            value = dot(xp.matmul(x, widen(weight[i, ...])), y)
            if bias is not None:
                value = value + bias[:, i : i + 1]
            out[:, i : i + 1] = xp.astype(value, out.dtype)

    return run


@register_kernel("bilinear_tensor_product_grad", "array", vendor=True)
def bilinear_grad(call: Call, context: Context) -> Any:
    """One product of matrices for each gradient and i."""
    xp, widen, store = context.xp, widener(call.dtype("X"), context), storer(context)
    size, turn = call.dims("Weight")[0], context.xp.matrix_transpose
    wants = {slot: call.has(slot + "@GRAD") for slot in ("X", "Y", "Weight", "Bias")}

    def run(context: Context, io: IO) -> None:
        x, y, dout = widen(io.array("X")), widen(io.array("Y")), widen(io.array("Out@GRAD"))
        weight = io.array("Weight")
        dx, dy = xp.zeros_like(x), xp.zeros_like(y)
        for i in range(size):
            column, matrix = dout[:, i : i + 1], widen(weight[i, ...])
            if wants["X"] or wants["Weight"]:
                scaled = column * y
            if wants["X"]:
                dx += xp.matmul(scaled, turn(matrix))
            if wants["Y"]:
                dy += xp.matmul(column * x, matrix)
            if wants["Weight"]:
                target = io.array("Weight@GRAD")
                target[i, ...] = xp.astype(xp.matmul(turn(x), scaled), target.dtype)
        for slot, value in (("X", dx), ("Y", dy)):
            if wants[slot]:
                store(io.array(slot + "@GRAD"), value)
        if wants["Bias"]:
            store(io.array("Bias@GRAD"), xp.sum(dout, axis=0))

    return run


# conv_shift --------------------------------------------------------------------------------------------------------


def _round(xp: Any, x: Any, half: int) -> Any:
    """X with ``half`` columns of its other end on either side."""
    return xp.concat([x[:, x.shape[1] - half :], x, x[:, :half]], axis=1) if half else x


@register_kernel("conv_shift", "array")
def conv_shift(call: Call, context: Context) -> Any:
    """Out[:, j] = the sum over k of X[:, j + k - half] Y[:, k]."""
    xp, widen, store = context.xp, widener(call.dtype("X"), context), storer(context)
    (rows, width), count = call.dims("X"), call.dims("Y")[1]

    def run(context: Context, io: IO) -> None:
        x, y, out = io.array("X"), io.array("Y"), io.array("Out")
        for part in _parts(rows, 4 * width):
            around, weights = _round(xp, widen(x[part, :]), count // 2), widen(y[part, :])
            total = around[:, :width] * weights[:, :1]
            for k in range(1, count):
                total += around[:, k : k + width] * weights[:, k : k + 1]
            store(out[part, :], total)

    return run


@register_kernel("conv_shift_grad", "array")
def conv_shift_grad(call: Call, context: Context) -> Any:
    """X@GRAD by the filter turned round, Y@GRAD as products of rows."""
    xp, widen, store = context.xp, widener(call.dtype("X"), context), storer(context)
    (rows, width), count = call.dims("X"), call.dims("Y")[1]
    wants_x, wants_y, dot = call.has("X@GRAD"), call.has("Y@GRAD"), _row_dot(context)

    def run(context: Context, io: IO) -> None:
        x, y, dout = io.array("X"), io.array("Y"), io.array("Out@GRAD")
        for part in _parts(rows, 4 * width):
            given = widen(dout[part, :])
            if wants_x:
                around, weights = _round(xp, given, count // 2), widen(y[part, :])
                total = around[:, :width] * weights[:, count - 1 :]
                for k in range(1, count):
                    total += around[:, k : k + width] * weights[:, count - 1 - k : count - k]
                store(io.array("X@GRAD")[part, :], total)
            if wants_y:
                around, dy = _round(xp, widen(x[part, :]), count // 2), io.array("Y@GRAD")
                for k in range(count):
                    dy[part, k : k + 1] = xp.astype(dot(around[:, k : k + width], given), dy.dtype)

    return run
