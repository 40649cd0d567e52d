"""expand and expand_as, with gradients."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, ITEMSIZE, Call, Context, register_kernel

from .reduce import scratch
from .reducing import reducer
from .source import MOVED, Buffer, build, dealt
from .strided import mover, steps_of


def _woven(part: tuple[int, ...], whole: tuple[int, ...]) -> list[int]:
    """Dims of the whole as (times, size, times, size, ...)."""
    return [n for d, m in zip(part, whole, strict=True) for n in (m // d if d else 1, d)]


SHORT = 32
"""Rows of fewer elements are repeated by one item, not moved one by one."""
CHUNK = 4096

_REPEAT = """
  const index_t row = gid / parts, from = (gid - row * parts) * each;
  const index_t to = from + each < times ? from + each : times;
  for (index_t t = from; t < to; ++t)
    for (index_t k = 0; k < width; ++k) out[(row * times + t) * width + k] = x[row * width + k];
"""


def _repeat(call: Call, context: Context, rows: int, times: int, width: int) -> Any:
    """Each row of ``width`` elements is written ``times`` times."""
    moved = MOVED[ITEMSIZE[call.dtype("X")]]
    kernel = build(
        context, f"repeat_{moved}", [Buffer("x", moved), Buffer("out", moved, True)],
        ["parts", "each", "times", "width"], _REPEAT,
    )  # fmt: skip
    each = max(1, CHUNK // width)
    parts = -(-times // each)
    items, numbers = rows * parts, (parts, each, times, width)
    return lambda context, io: kernel(context, items, (io.span("X"), io.span("Out")), numbers, dealt(items))


def _expand(call: Call, context: Context) -> Any:
    """Out = X, repeated: a move whose source stands still along the repetitions."""
    x, dtype = call.dims("X"), call.dtype("X")
    dims = _woven(x, call.dims("Out"))
    if x and 1 < x[-1] < SHORT and dims[-2] > 1 and all(times == 1 for times in dims[:-2:2]):
        return _repeat(call, context, prod(x[:-1]), dims[-2], x[-1])
    steps = [n for step in steps_of(x) for n in (0, step)]
    move = mover(context, dtype, dtype, dims, steps, steps_of(dims))
    return lambda context, io: move(context, io.span("X"), io.span("Out"))


def _expand_grad(call: Call, context: Context) -> Any:
    """X@GRAD = the sum of Out@GRAD over the repetitions."""
    dims, dtype = _woven(call.dims("X@GRAD"), call.dims("Out@GRAD")), call.dtype("X@GRAD")
    made = reducer(context, "sum", dtype, dtype, dims, tuple(range(0, len(dims), 2)))

    def run(context: Context, io: IO) -> None:
        made.run(context, io.span("Out@GRAD"), io.span("X@GRAD"), scratch(io))

    run.workspace = made.workspace  # type: ignore[attr-defined]
    return run


expand = register_kernel("expand", "dialect")(_expand)
expand_as = register_kernel("expand_as", "dialect")(_expand)
expand_grad = register_kernel("expand_grad", "dialect")(_expand_grad)
expand_as_grad = register_kernel("expand_as_grad", "dialect")(_expand_grad)
