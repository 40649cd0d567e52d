"""fill_constant and its kin, range, linspace, eye, diag."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, fill_number, register_kernel


def _fill(call: Call, context: Context) -> Any:
    value = fill_number(call)

    def run(context: Context, io: IO) -> None:
        io.array("Out")[...] = value

    return run


@register_kernel("fill_constant", "array")
def fill_constant(call: Call, context: Context) -> Any:
    """Out = value, converted to the dtype."""
    return _fill(call, context)


@register_kernel("fill_constant_batch_size_like", "array")
def fill_constant_batch_size_like(call: Call, context: Context) -> Any:
    """Out = value; its dims come from the definition."""
    return _fill(call, context)


@register_kernel("fill_any_like", "array")
def fill_any_like(call: Call, context: Context) -> Any:
    """Out = value; its dims are those of X."""
    return _fill(call, context)


def _ramp(call: Call, start: Any, step: Any) -> Any:
    (count,), dtype = call.dims("Out"), call.dtype("Out")

    def run(context: Context, io: IO) -> None:
        xp, out = context.xp, io.array("Out")
        value = xp.arange(count, dtype=getattr(xp, dtype))
        value *= step
        value += start
        out[...] = value

    return run


@register_kernel("range", "array")
def range_(call: Call, context: Context) -> Any:
    """Out[i] = Start + i Step."""
    start, step = call.value("Start"), call.value("Step")
    assert start is not None and step is not None
    return _ramp(call, start[0], step[0])


@register_kernel("linspace", "array")
def linspace(call: Call, context: Context) -> Any:
    """Out[i] = Start + i (Stop - Start) / (Num - 1)."""
    start, stop = call.value("Start"), call.value("Stop")
    assert start is not None and stop is not None
    return _ramp(call, start[0], (stop[0] - start[0]) / max(call.dims("Out")[0] - 1, 1))


@register_kernel("eye", "array")
def eye(call: Call, context: Context) -> Any:
    """Out = 1 on the diagonal, else 0."""
    one = True if call.dtype("Out") == "bool" else 1
    return _on_diagonal(call, context, lambda io, count: one)


@register_kernel("diag", "array")
def diag(call: Call, context: Context) -> Any:
    """Out = Diagonal on the diagonal, else 0."""
    return _on_diagonal(call, context, lambda io, count: io.array("Diagonal"))


def _on_diagonal(call: Call, context: Context, value: Any) -> Any:
    rows, columns = call.dims("Out")
    count = min(rows, columns)
    zero = False if call.dtype("Out") == "bool" else 0

    def run(context: Context, io: IO) -> None:
        out = io.array("Out")
        out[...] = zero
        flat = context.xp.reshape(out, (-1,), copy=False)
        flat[: (count - 1) * columns + count : columns + 1] = value(io, count)

    return run
