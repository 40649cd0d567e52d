"""softmax and log_softmax, with gradients: a line an item, or sixteen neighbouring lines."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, compute_dtype, register_kernel

from .lines import ACROSS, across, axis_of, down, each, exponentials, line_sums
from .source import HALVES, LANES, Buffer, Kernel, build, ctype, dealt, function, load, row_reduction, store, tree

_SOFTMAX = """
  const index_t at = gid * n;
  $most
  $total
  for (index_t j = 0; j < n; ++j) { $store }
"""


LEAST = -64
"""Fluid's softmax takes no smaller X - max, so that every probability has a logarithm."""


def _clipped(kind: str, name: str) -> str:
    """The statement that takes no less than ``LEAST``; NaN stays."""
    return f"{name} = {name} < ({kind}){LEAST} ? ({kind}){LEAST} : {name};"


def greater(acc: str, value: str, kind: str) -> str:
    """The statement that keeps the greater of two values, or a NaN."""
    return f"const {kind} y = {value}; {acc} = y > {acc} || y != y ? y : {acc};"


def softmax_words(context: Context, dtype: str, keep: bool = True, clip: bool = False) -> dict[str, str]:
    """Return the words of a row's softmax: ``$most``, ``$total`` and ``$store``.

    Exponentials wait in the output ``out`` (if ``keep``), but half types would round them there: they are computed
    again. ``clip``: no exponent is below ``LEAST``.
    """
    kind, exp = ctype(context, compute_dtype(dtype)), function(context, "expnear" if clip else "exp", dtype)
    keep = keep and dtype not in HALVES

    def value(j: str) -> str:
        return load(dtype, f"x[at + {j}]")

    def less(target: str, x: str, name: str) -> str:
        return f"{target}{x} - most; {_clipped(kind, name) if clip else ''}"

    lanes, kept = f"for (int v = 0; v < {LANES}; ++v)", "out[at + i{}] = {}; " if keep else ""
    joined = tree(lambda acc, value: f"{acc} += {value};")
    total = f"""{kind} total;
  {{
    {kind} acc[{LANES}], temp[{LANES}];
    {lanes} acc[v] = 0;
    index_t i = 0;
    for (; i + {LANES} <= n; i += {LANES}) {{
      {lanes} {{ {less("temp[v] = ", value("i + v"), "temp[v]")} }}
      {exponentials(context, dtype, clip)}
      {lanes} {{ {kept.format(" + v", "temp[v]")}acc[v] += temp[v]; }}
    }}
    for (; i < n; ++i) {{
      {less(f"{kind} d = ", value("i"), "d")}
      const {kind} e = {exp}(d);
      {kept.format("", "e")}acc[0] += e;
    }}
    {joined}
    total = acc[0];
  }}"""
    again = "" if keep else f"{less(f'{kind} d = ', value('j'), 'd')} "
    exponential = "out[at + j]" if keep else f"{exp}(d)"
    return {
        "T": kind, "x": value("j"), "total": total,
        "most": row_reduction(kind, "most", load(dtype, "x[at]"), lambda acc, y: greater(acc, y, kind), value),
        "log": function(context, "log", dtype),
        "store": again + store(context, dtype, "out[at + j]", f"{exponential} / total"),
    }  # fmt: skip


def _across(context: Context, dtype: str, logarithm: bool) -> Kernel:
    """The kernel of lines that are neighbours: the greatest, the sum of exponentials, and the results."""
    half, log = dtype in HALVES, function(context, "log", dtype)
    kind = ctype(context, compute_dtype(dtype))

    def value(position: str) -> str:
        return load(dtype, f"x[{position}]")

    clip = "" if logarithm else _clipped(kind, "temp[v]")
    exp = each(f"temp[v] = {value('at + v')} - most[v]; {clip}") + exponentials(context, dtype, not logarithm)
    most = each(greater("most[v]", value("at + v"), kind))
    keep = not half and not logarithm  # exponentials wait in the output; half types would round them there
    kept = " out[at + v] = temp[v];" if keep else ""
    body = each(f"most[v] = {value('base + v')}; total[v] = 0;") + down(most)
    body += down(exp + each(f"total[v] += temp[v];{kept}"))
    if logarithm:
        result = f"{value('at + v')} - most[v] - total[v]"
        body += each(f"total[v] = {log}(total[v]);") + down(each(store(context, dtype, "out[at + v]", result)))
    elif keep:
        body += down(each("out[at + v] = out[at + v] / total[v];"))
    else:
        body += down(exp + each(store(context, dtype, "out[at + v]", "temp[v] / total[v]")))
    words = across(context, dtype, body, f", most[{LANES}]")
    name = f"{'log_' if logarithm else ''}softmax_across_{dtype}"
    return build(context, name, [Buffer("x", dtype), Buffer("out", dtype, True)], ["n", "post"], ACROSS, words)


def _along(context: Context, dtype: str, logarithm: bool) -> Kernel:
    """The kernel of contiguous lines."""
    words = softmax_words(context, dtype, not logarithm, clip=not logarithm)
    if logarithm:
        words["total"] += f"\n  const {words['T']} shift = {words['log']}(total);"
        words["store"] = store(context, dtype, "out[at + j]", f"{words['x']} - most - shift")
    name = f"{'log_' if logarithm else ''}softmax_{dtype}"
    return build(context, name, [Buffer("x", dtype), Buffer("out", dtype, True)], ["n"], _SOFTMAX, words)


def _forward(call: Call, context: Context, logarithm: bool) -> Any:
    axis = axis_of(call, "X")
    kernel = (_along if axis.along else _across)(context, call.dtype("X"), logarithm)
    items, numbers, group = axis.items, axis.numbers, dealt(axis.items)

    def run(context: Context, io: IO) -> None:
        kernel(context, items, (io.span("X"), io.span("Out")), numbers, group)

    return run


@register_kernel("softmax", "dialect")
def softmax(call: Call, context: Context) -> Any:
    """Out = exp(max(X - max, -64)) / the sum of the same."""
    return _forward(call, context, False)


@register_kernel("log_softmax", "dialect")
def log_softmax(call: Call, context: Context) -> Any:
    """Out = X - max - log(sum(exp(X - max)))."""
    return _forward(call, context, True)


def _backward(call: Call, context: Context, logarithm: bool) -> Any:
    axis, dtype = axis_of(call, "Out"), call.dtype("Out")

    def out(position: str) -> str:
        return load(dtype, f"out[{position}]")

    def dout(position: str) -> str:
        return load(dtype, f"dout[{position}]")

    def product(position: str) -> str:
        return f"{out(position)} * {dout(position)}"

    def plain(position: str, line: str, total: str, temp: str) -> str:
        return store(context, dtype, f"dx[{position}]", f"{out(position)} * ({dout(position)} - {total})")

    def exponential(position: str, line: str, total: str, temp: str) -> str:
        return store(context, dtype, f"dx[{position}]", f"{dout(position)} - {temp} * {total}")

    buffers = [Buffer("out", dtype), Buffer("dout", dtype), Buffer("dx", dtype, True)]
    if logarithm:
        launch = line_sums(
            context, "log_softmax_grad", axis, dtype, buffers, (), dout, exponential, before=out
        )  # fmt: skip
    else:
        launch = line_sums(context, "softmax_grad", axis, dtype, buffers, (), product, plain)

    def run(context: Context, io: IO) -> None:
        launch(context, (io.span("Out"), io.span("Out@GRAD"), io.span("X@GRAD")), ())

    return run


@register_kernel("softmax_grad", "dialect")
def softmax_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out (Out@GRAD - sum(Out Out@GRAD))."""
    return _backward(call, context, False)


@register_kernel("log_softmax_grad", "dialect")
def log_softmax_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD - exp(Out) sum(Out@GRAD)."""
    return _backward(call, context, True)
