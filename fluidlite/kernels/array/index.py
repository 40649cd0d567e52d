"""gather and lookup_table with gradients, and one_hot."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .common import immediate, is_half

NO_PADDING = -1


@register_kernel("gather", "array", indexes=True)
def gather(call: Call, context: Context) -> Any:
    """Out[i] = X[Index[i]]."""
    xp, bound = context.xp, call.dims("X")[0]
    fast = immediate(context)

    def run(context: Context, io: IO) -> None:
        index = context.check_index(xp.reshape(io.array("Index"), (-1,)), bound, io)
        _take(xp, io.array("X"), index, io.array("Out"), fast)

    return run


def _take(xp: Any, x: Any, index: Any, out: Any, fast: bool) -> None:
    """Write the rows x[index] to ``out``; NumPy's take skips its buffer when the (checked) index may be clipped."""
    rows = (prod(index.shape), *x.shape[1:])
    if fast:
        xp.take(x, index, 0, out.reshape(rows), "clip")
    else:
        out[...] = xp.reshape(xp.take(x, index, axis=0), out.shape)


@register_kernel("gather_grad", "array", indexes=True)
def gather_grad(call: Call, context: Context) -> Any:
    """X@GRAD[Index[i]] += Out@GRAD[i], from zero."""
    xp, bound = context.xp, call.dims("X@GRAD")[0]
    add = _row_adder(call, context, "X@GRAD")

    def run(context: Context, io: IO) -> None:
        index = context.check_index(xp.reshape(io.array("Index"), (-1,)), bound, io)
        add(io.array("X@GRAD"), index, io.array("Out@GRAD"))

    return run


def _row_adder(call: Call, context: Context, slot: str) -> Callable[[Any, Any, Any], None]:
    """Return ``add(grad, index, rows)``: grad becomes zero plus the rows, each at its index."""
    xp, dims, half = context.xp, call.dims(slot), is_half(call.dtype(slot))
    scatter_add = context.array.extra("scatter_add")

    def add(grad: Any, index: Any, rows: Any) -> None:
        rows = xp.reshape(rows, (index.shape[0], *dims[1:]))
        if half:
            rows = xp.astype(rows, xp.float32)
        if scatter_add is not None:
            target = xp.zeros(dims, dtype=xp.float32) if half else grad
            if not half:
                grad[...] = 0.0
            scatter_add(target, index, rows)
            if half:
                grad[...] = xp.astype(target, grad.dtype)
            return
        # Without scatter_add the standard leaves a product with the one-hot matrix.
        chosen = xp.astype(xp.arange(dims[0], dtype=index.dtype)[:, None] == index[None, :], rows.dtype)
        value = xp.matmul(chosen, xp.reshape(rows, (index.shape[0], prod(dims[1:]))))
        grad[...] = xp.reshape(xp.astype(value, grad.dtype), dims)

    return add


@register_kernel("lookup_table", "array", indexes=True)
def lookup_table(call: Call, context: Context) -> Any:
    """Out[..., :] = W[Ids[..., 0]], zero where the id is ``padding_idx``."""
    xp, bound, padding = context.xp, call.dims("W")[0], call.attr("padding_idx")
    fast = immediate(context)

    def run(context: Context, io: IO) -> None:
        ids, out = xp.reshape(io.array("Ids"), (-1,)), io.array("Out")
        if padding == NO_PADDING:
            _take(xp, io.array("W"), context.check_index(ids, bound, io), out, fast)
            return
        padded = ids == padding
        ids = context.check_index(xp.where(padded, xp.zeros_like(ids), ids), bound, io)
        if fast:
            _take(xp, io.array("W"), ids, out, True)
            out.reshape(ids.size, -1)[padded] = 0
        else:
            rows = xp.take(io.array("W"), ids, axis=0)
            out[...] = xp.reshape(xp.where(padded[:, None], xp.zeros_like(rows), rows), out.shape)

    return run


@register_kernel("lookup_table_grad", "array", indexes=True)
def lookup_table_grad(call: Call, context: Context) -> Any:
    """W@GRAD[Ids[i]] += Out@GRAD[i], from zero, without the rows of ``padding_idx``."""
    xp, (bound, width), padding = context.xp, call.dims("W@GRAD"), call.attr("padding_idx")
    add = _row_adder(call, context, "W@GRAD")

    def run(context: Context, io: IO) -> None:
        ids = xp.reshape(io.array("Ids"), (-1,))
        rows = xp.reshape(io.array("Out@GRAD"), (ids.shape[0], width))
        if padding != NO_PADDING:
            padded = ids == padding
            ids = xp.where(padded, xp.zeros_like(ids), ids)
            rows = xp.where(padded[:, None], xp.zeros_like(rows), rows)
        add(io.array("W@GRAD"), context.check_index(ids, bound, io), rows)

    return run


@register_kernel("one_hot", "array", indexes=True)
def one_hot(call: Call, context: Context) -> Any:
    """Out[..., X[..., 0]] = 1, the rest 0."""
    xp, depth = context.xp, call.attr("depth")

    def run(context: Context, io: IO) -> None:
        index, out = context.check_index(xp.reshape(io.array("X"), (-1, 1)), depth, io), io.array("Out")
        chosen = xp.arange(depth, dtype=index.dtype)[None, :] == index
        out[...] = xp.reshape(xp.astype(chosen, out.dtype), out.shape)

    return run
