"""fill_constant and its kin, range, linspace, eye, diag."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, ITEMSIZE, Call, Context, compute_dtype, fill_number, register_kernel

from .source import MOVED, Buffer, build, store
from .strided import filler


def _fill(call: Call, context: Context) -> Any:
    dtype, size = call.dtype("Out"), prod(call.dims("Out"))
    fill = filler(context, dtype, fill_number(call))
    return lambda context, io: fill(context, io.span("Out"), size)


@register_kernel("fill_constant", "dialect")
def fill_constant(call: Call, context: Context) -> Any:
    """Out = value, converted to the dtype."""
    return _fill(call, context)


@register_kernel("fill_constant_batch_size_like", "dialect")
def fill_constant_batch_size_like(call: Call, context: Context) -> Any:
    """Out = value; its dims come from the definition."""
    return _fill(call, context)


@register_kernel("fill_any_like", "dialect")
def fill_any_like(call: Call, context: Context) -> Any:
    """Out = value; its dims are those of X."""
    return _fill(call, context)


def _ramp(call: Call, context: Context, start: Any, step: Any) -> Any:
    dtype, (count,) = call.dtype("Out"), call.dims("Out")
    wide = compute_dtype(dtype) if "float" in dtype else "int64"
    kernel = build(
        context, f"ramp_{dtype}", [Buffer("out", dtype, True)], [("start", wide), ("step", wide)],
        "  " + store(context, dtype, "out[gid]", "start + gid * step"),
    )  # fmt: skip
    kind = int if wide == "int64" else float
    numbers = (kind(start), kind(step))
    return lambda context, io: kernel(context, count, (io.span("Out"),), numbers)


@register_kernel("range", "dialect")
def range_(call: Call, context: Context) -> Any:
    """Out[i] = Start + i Step."""
    start, step = call.value("Start"), call.value("Step")
    assert start is not None and step is not None
    return _ramp(call, context, start[0], step[0])


@register_kernel("linspace", "dialect")
def linspace(call: Call, context: Context) -> Any:
    """Out[i] = Start + i (Stop - Start) / (Num - 1)."""
    start, stop = call.value("Start"), call.value("Stop")
    assert start is not None and stop is not None
    return _ramp(call, context, start[0], (stop[0] - start[0]) / max(call.dims("Out")[0] - 1, 1))


def _diagonal(call: Call, context: Context, given: bool) -> Any:
    """Out = 0, then a number, or those that are given, on the diagonal."""
    dtype, (rows, columns) = call.dtype("Out"), call.dims("Out")
    zero = filler(context, dtype, 0)
    kind = MOVED[ITEMSIZE[dtype]] if given else dtype
    kernel = build(
        context, f"diagonal_{kind}{'_given' if given else ''}",
        [*([Buffer("x", kind)] if given else []), Buffer("out", kind, True)], ["columns"],
        "  " + store(context, kind, "out[gid * (columns + 1)]", "x[gid]" if given else "1"),
    )  # fmt: skip

    def run(context: Context, io: IO) -> None:
        out = io.span("Out")
        zero(context, out, rows * columns)
        kernel(context, min(rows, columns), [*([io.span("Diagonal")] if given else []), out], (columns,))

    return run


@register_kernel("eye", "dialect")
def eye(call: Call, context: Context) -> Any:
    """Out = 1 on the diagonal, else 0."""
    return _diagonal(call, context, given=False)


@register_kernel("diag", "dialect")
def diag(call: Call, context: Context) -> Any:
    """Out = Diagonal on the diagonal, else 0."""
    return _diagonal(call, context, given=True)
