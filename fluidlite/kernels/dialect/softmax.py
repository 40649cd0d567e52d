"""softmax over the last axis, with its gradient: a row an item."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, compute_dtype, register_kernel

from .source import HALVES, Buffer, build, ctype, dealt, function, load, store

_SOFTMAX = """
  const index_t at = gid * n;
  $T most = $first;
  for (index_t j = 1; j < n; ++j) { const $T y = $x; most = y > most || y != y ? y : most; }
  $T total = 0;
  for (index_t j = 0; j < n; ++j) { const $T e = $exp($x - most); total += e; $keep }
  for (index_t j = 0; j < n; ++j) { $store }
"""
_GRAD = """
  const index_t at = gid * n;
  $T total = 0;
  for (index_t j = 0; j < n; ++j) total += $y * $dy;
  for (index_t j = 0; j < n; ++j) { $store }
"""


def softmax_words(context: Context, dtype: str, out: str = "out") -> dict[str, str]:
    """Words for a row's softmax: exponentials wait in the output, but half types would round them there."""
    x, exp = load(dtype, "x[at + j]"), function(context, "exp", dtype)
    half = dtype in HALVES
    exponential = f"{exp}({x} - most)" if half else f"{out}[at + j]"
    return {
        "T": ctype(context, compute_dtype(dtype)), "x": x, "first": load(dtype, "x[at]"), "exp": exp,
        "log": function(context, "log", dtype), "keep": "" if half else f"{out}[at + j] = e;",
        "store": store(context, dtype, f"{out}[at + j]", f"{exponential} / total"),
    }  # fmt: skip


@register_kernel("softmax", "dialect")
def softmax(call: Call, context: Context) -> Any:
    """Out = exp(X - max) / sum(exp(X - max))."""
    dims, dtype = call.dims("X"), call.dtype("X")
    kernel = build(
        context, f"softmax_{dtype}", [Buffer("x", dtype), Buffer("out", dtype, True)], ["n"],
        _SOFTMAX, softmax_words(context, dtype),
    )  # fmt: skip
    rows, n = prod(dims[:-1]), dims[-1]

    def run(context: Context, io: IO) -> None:
        kernel(context, rows, (io.span("X"), io.span("Out")), (n,), dealt(rows))

    return run


@register_kernel("softmax_grad", "dialect")
def softmax_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out (Out@GRAD - sum(Out Out@GRAD))."""
    dims, dtype = call.dims("Out"), call.dtype("Out")
    y, dy = load(dtype, "out[at + j]"), load(dtype, "dout[at + j]")
    kernel = build(
        context, f"softmax_grad_{dtype}", [Buffer("out", dtype), Buffer("dout", dtype), Buffer("dx", dtype, True)],
        ["n"], _GRAD,
        {"T": ctype(context, compute_dtype(dtype)), "y": y, "dy": dy,
         "store": store(context, dtype, "dx[at + j]", f"{y} * ({dy} - total)")},
    )  # fmt: skip
    rows, n = prod(dims[:-1]), dims[-1]

    def run(context: Context, io: IO) -> None:
        kernel(context, rows, (io.span("Out"), io.span("Out@GRAD"), io.span("X@GRAD")), (n,), dealt(rows))

    return run
