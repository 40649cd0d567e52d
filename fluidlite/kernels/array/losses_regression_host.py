"""smooth_l1_loss with its gradient, and kldiv_loss, in host memory: in blocks that threads share.

Limits stand in arrays, for NumPy takes three times as long for the minimum with a number; and nothing is chosen
element by element, which takes it ten times as long as a product.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, compute_dtype

from .common import is_half, widener
from .threads import each_part

BLOCK = 65536
"""Elements of a block: three or four of them fit into a core's second-level cache."""

Part = tuple[slice, slice, int]


def _parts(rows: int, width: int) -> list[Part]:
    """Blocks of a matrix: whole rows, or parts of one row, each with its number in the row."""
    down, along = max(1, BLOCK // max(width, 1)), min(max(width, 1), BLOCK)
    return [
        (slice(i, min(i + down, rows)), slice(j, min(j + along, width)), k)
        for i in range(0, rows, down)
        for k, j in enumerate(range(0, width, along))
    ]


def smooth_l1_on_host(call: Call, context: Context) -> Any:
    """Out = the sum of each row's losses; near = min(|d|, 1 / sigma^2) gives both branches in one product."""
    xp, dims, dtype = context.xp, call.dims("X"), call.dtype("X")
    rows, width = dims[0], prod(dims[1:])
    square, half, widen = call.attr("sigma") ** 2, is_half(dtype), widener(dtype, context)
    weighted, kind = call.has("InsideWeight"), getattr(xp, compute_dtype(dtype))
    parts = _parts(rows, width)
    across = -(-width // BLOCK)

    def run(context: Context, io: IO) -> None:
        def matrix(slot: str) -> Any:
            return io.array(slot).reshape(rows, width)

        x, y = matrix("X"), matrix("Y")
        weights = [matrix(slot) for slot in ("InsideWeight", "OutsideWeight")] if weighted else []
        diff = matrix("Diff") if io.has("Diff") else None
        sums = xp.zeros((rows, across), dtype=kind)

        def worker() -> Callable[[int], None]:
            spare = [xp.empty(BLOCK, dtype=kind) for _ in range(3)]
            limits = xp.full(BLOCK, 1 / square if square else 0.0, dtype=kind)

            def work(part: int) -> None:
                i, j, k = parts[part]
                shape = (i.stop - i.start, j.stop - j.start)
                own, loss, near, limit = (a[: shape[0] * shape[1]].reshape(shape) for a in (*spare, limits))
                d = diff[i, j] if diff is not None and not half else own
                xp.subtract(widen(x[i, j]), widen(y[i, j]), d)
                if weights:
                    xp.multiply(d, widen(weights[0][i, j]), d)
                if diff is not None and half:
                    diff[i, j] = d
                xp.abs(d, loss)
                xp.minimum(loss, limit, out=near)
                xp.multiply(near, -0.5, own)
                xp.add(loss, own, loss)
                xp.multiply(loss, near, loss)
                if weights:
                    xp.multiply(loss, widen(weights[1][i, j]), loss)
                xp.add.reduce(loss, 1, None, sums[i, k])

            return work

        each_part(context, len(parts), worker)
        if io.has("Out"):
            io.array("Out")[:, 0] = square * xp.add.reduce(sums, 1)

    return run


def smooth_l1_grad_on_host(call: Call, context: Context) -> Any:
    """X@GRAD = weights * min(max(sigma^2 * Diff, -1), 1) * Out@GRAD of the row, Y@GRAD its negative."""
    xp, dims, dtype = context.xp, call.dims("Diff"), call.dtype("Diff")
    rows, width = dims[0], prod(dims[1:])
    square, half, widen = call.attr("sigma") ** 2, is_half(dtype), widener(dtype, context)
    weights = [slot for slot in ("InsideWeight", "OutsideWeight") if call.has(slot)]
    parts, kind = _parts(rows, width), getattr(xp, compute_dtype(dtype))

    def run(context: Context, io: IO) -> None:
        diff, dout = io.array("Diff").reshape(rows, width), widen(io.array("Out@GRAD")).reshape(rows, 1)
        scales = [io.array(slot).reshape(rows, width) for slot in weights]
        dx, dy = (io.array(slot).reshape(rows, width) if io.has(slot) else None for slot in ("X@GRAD", "Y@GRAD"))

        def worker() -> Callable[[int], None]:
            spare, one, less = (xp.full(BLOCK, number, dtype=kind) for number in (0, 1, -1))

            def work(part: int) -> None:
                i, j, _ = parts[part]
                shape = (i.stop - i.start, j.stop - j.start)
                grad, high, low = (a[: shape[0] * shape[1]].reshape(shape) for a in (spare, one, less))
                if dx is not None and not half:
                    grad = dx[i, j]
                xp.multiply(widen(diff[i, j]), square, grad)
                xp.minimum(grad, high, out=grad)
                xp.maximum(grad, low, out=grad)
                xp.multiply(grad, dout[i], grad)
                for scale in scales:
                    xp.multiply(grad, widen(scale[i, j]), grad)
                if dx is not None and half:
                    dx[i, j] = grad
                if dy is not None:
                    xp.negative(grad, grad if half else dy[i, j])
                if dy is not None and half:
                    dy[i, j] = grad

            return work

        each_part(context, len(parts), worker)

    return run


def kldiv_on_host(call: Call, context: Context, divisor: int) -> Any:
    """Loss = the sum of Target * (log(Target) - X), divided."""
    xp, dtype, items = context.xp, call.dtype("X"), prod(call.dims("X"))
    widen, kind = widener(dtype, context), getattr(xp, compute_dtype(dtype))
    parts = _parts(1, items)

    def run(context: Context, io: IO) -> None:
        values, targets = io.array("X").reshape(-1), io.array("Target").reshape(-1)
        sums = xp.zeros(max(len(parts), 1), dtype=kind)

        def worker() -> Callable[[int], None]:
            spare, zeros = xp.empty(BLOCK, dtype=kind), xp.zeros(BLOCK, dtype=kind)
            least = xp.full(BLOCK, xp.finfo(kind).tiny, dtype=kind)

            def work(part: int) -> None:
                _, j, k = parts[part]
                x, target, size = widen(values[j]), widen(targets[j]), j.stop - j.start
                loss = spare[:size]
                xp.maximum(target, least[:size], out=loss)
                xp.log(loss, loss)
                xp.subtract(loss, x, loss)
                xp.multiply(loss, xp.maximum(target, zeros[:size]), loss)
                sums[k] = xp.add.reduce(loss)
                if not xp.isfinite(sums[k]):  # an infinite X counts only where the target is above 0
                    loss = loss[target > 0]
                    sums[k] = xp.add.reduce(loss)

            return work

        each_part(context, len(parts), worker)
        io.array("Loss")[...] = xp.add.reduce(sums) / divisor

    return run
