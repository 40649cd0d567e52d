"""softmax over the last axis, with its gradient: a row an item."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, compute_dtype, register_kernel

from .source import HALVES, LANES, Buffer, build, ctype, dealt, function, load, row_reduction, store

_SOFTMAX = """
  const index_t at = gid * n;
  $most
  $total
  for (index_t j = 0; j < n; ++j) { $store }
"""
_GRAD = """
  const index_t at = gid * n;
  $total
  for (index_t j = 0; j < n; ++j) { $store }
"""


def _add(acc: str, value: str) -> str:
    return f"{acc} += {value};"


def _greater(acc: str, value: str) -> str:
    return f"const y_t y = {value}; {acc} = y > {acc} || y != y ? y : {acc};"


def softmax_words(context: Context, dtype: str, keep: bool = True) -> dict[str, str]:
    """Return the words of a row's softmax: ``$most``, ``$total`` and ``$store``.

    Exponentials wait in the output ``out`` (if ``keep``), but half types would round them there: they are computed
    again. Where the dialect has vectors and an ``exp``, that is called on vectors, which is ten times as fast.
    """
    kind, exp = ctype(context, compute_dtype(dtype)), function(context, "exp", dtype)
    half = dtype in HALVES
    keep = keep and not half

    def value(j: str) -> str:
        return load(dtype, f"x[at + {j}]")

    total = f"{kind} total = 0;\n  index_t i = 0;"
    vector = context.dialect.vector
    if vector and not half and not exp.startswith("fl_"):
        lanes = 8 if dtype == "float64" else LANES
        name = vector.format(type=kind, width=lanes)
        kept = f" vstore{lanes}(e, 0, out + at + i);" if keep else ""
        total += f"""
  if (n >= {lanes}) {{
    {name} sums = ({name})(0);
    for (; i + {lanes} <= n; i += {lanes}) {{
      const {name} e = {exp}(vload{lanes}(0, x + at + i) - most);
      sums += e;{kept}
    }}
    {kind} parts[{lanes}];
    vstore{lanes}(sums, 0, parts);
    for (int v = 0; v < {lanes}; ++v) total += parts[v];
  }}"""
    kept = "out[at + i] = e; " if keep else ""
    total += f"\n  for (; i < n; ++i) {{ const {kind} e = {exp}({value('i')} - most); {kept}total += e; }}"
    exponential = "out[at + j]" if keep else f"{exp}({value('j')} - most)"
    return {
        "T": kind, "x": value("j"), "total": total,
        "most": row_reduction(kind, "most", load(dtype, "x[at]"), _greater, value).replace("y_t", kind),
        "log": function(context, "log", dtype),
        "store": store(context, dtype, "out[at + j]", f"{exponential} / total"),
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
    kind = ctype(context, compute_dtype(dtype))

    def product(j: str, less: str = "") -> str:
        return f"{load(dtype, f'out[at + {j}]')} * ({load(dtype, f'dout[at + {j}]')}{less})"

    kernel = build(
        context, f"softmax_grad_{dtype}", [Buffer("out", dtype), Buffer("dout", dtype), Buffer("dx", dtype, True)],
        ["n"], _GRAD,
        {"total": row_reduction(kind, "total", "0", _add, product),
         "store": store(context, dtype, "dx[at + j]", product("j", " - total"))},
    )  # fmt: skip
    rows, n = prod(dims[:-1]), dims[-1]

    def run(context: Context, io: IO) -> None:
        kernel(context, rows, (io.span("Out"), io.span("Out@GRAD"), io.span("X@GRAD")), (n,), dealt(rows))

    return run
