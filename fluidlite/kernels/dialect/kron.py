"""kron: a row of the result an item."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, compute_dtype, register_kernel

from .source import Buffer, build, dealt, decode, load, store, wrapping
from .strided import steps_of

_ROW = """
  index_t a = 0, b = 0;
  $decode
  const index_t to = gid * p * q;
  for (index_t i = 0; i < p; ++i)
    for (index_t j = 0; j < q; ++j) { $store }
"""


@register_kernel("kron", "dialect")
def kron(call: Call, context: Context) -> Any:
    """Out[i q + j] = X[i] Y[j] in each dim, with q the size of Y."""
    x, y, dtype = call.dims("X"), call.dims("Y"), call.dtype("X")
    rank = max(len(x), len(y))
    x, y = ((1,) * (rank - len(dims)) + dims for dims in (x, y))
    axes = []  # of the rows of the result: each dim of X, and in it that of Y
    for d, (here, there) in enumerate(zip(steps_of(x)[:-1], steps_of(y)[:-1], strict=True)):
        axes += [(f"n{2 * d}", "a", x[d], here), (f"n{2 * d + 1}", "b", y[d], there)]
    times = wrapping(context, compute_dtype(dtype), "*")
    product = times.format(load(dtype, "x[a + i]"), load(dtype, "y[b + j]"))
    kernel = build(
        context, f"kron_{rank}_{dtype}", [Buffer("x", dtype), Buffer("y", dtype), Buffer("out", dtype, True)],
        ["p", "q", *(word for name, _, _, _ in axes for word in (name, f"step_{name}"))], _ROW,
        {
            "decode": decode("gid", [(name, ((to, f"step_{name}"),)) for name, to, _, _ in axes]) if axes else "",
            "store": store(context, dtype, "out[to + i * q + j]", product),
        },
    )  # fmt: skip
    rows = prod(size for _, _, size, _ in axes)
    numbers = (x[-1], y[-1], *(number for _, _, size, step in axes for number in (size, step)))
    items = rows if prod(call.dims("Out")) else 0

    def run(context: Context, io: IO) -> None:
        kernel(context, items, [io.span(slot) for slot in ("X", "Y", "Out")], numbers, dealt(items))

    return run
