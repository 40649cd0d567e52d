"""logsumexp over neighbouring dims, with its gradient: a line an item, or sixteen neighbouring lines."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, compute_dtype, register_kernel

from .lines import ACROSS, Axis, across, down, each, exponentials
from .reducing import ENOUGH, PART
from .softmax import greater, softmax_words
from .source import LANES, Buffer, build, ctype, dealt, function, load, store

_ALONG = """
  const index_t at = gid * n;
  $most
  $total
  $store
"""
_GRAD = """
  const index_t at = gid * n;
  const $T high = $out, scale = $dout;
  $T temp[$lanes];
  index_t i = 0;
  for (; i + $lanes <= n; i += $lanes) {
    for (int v = 0; v < $lanes; ++v) temp[v] = $x_v - high;
    $exponentials
    for (int v = 0; v < $lanes; ++v) { $store_v }
  }
  for (; i < n; ++i) { $store_1 }
"""


def _axis(call: Call) -> Axis | None:
    """The dims that are reduced, as one axis; None if they are not neighbours."""
    dims = call.dims("X")
    axes = range(len(dims)) if call.attr("reduce_all") else sorted({axis % len(dims) for axis in call.attr("dim")})
    axes = [axis for axis in axes if dims[axis] != 1] or [len(dims)]
    first, last = axes[0], axes[-1]
    if len(axes) != len([axis for axis in range(first, last + 1) if axis == len(dims) or dims[axis] != 1]):
        return None
    return Axis(prod(dims[:first]), prod(dims[first : last + 1]), prod(dims[last + 1 :]))


def _supports(call: Call) -> str | None:
    axis = _axis(call)
    if axis is None:
        return "the dims to reduce are not neighbours"
    if axis.items < ENOUGH and axis.n >= 2 * PART:
        return "few long lines are cut into parts by the operators that it consists of"
    return None


@register_kernel("logsumexp", "dialect", supports=_supports)
def logsumexp(call: Call, context: Context) -> Any:
    """Out = max + log(sum(exp(X - max)))."""
    axis, dtype = _axis(call), call.dtype("X")
    assert axis is not None
    log, kind = function(context, "log", dtype), ctype(context, compute_dtype(dtype))
    if axis.along:
        words = softmax_words(context, dtype, False)
        words["store"] = store(context, dtype, "out[gid]", f"most + {log}(total)")
        text = _ALONG
    else:

        def x(position: str) -> str:
            return load(dtype, f"x[{position}]")

        body = each(f"most[v] = {x('base + v')}; total[v] = 0;") + down(each(greater("most[v]", x("at + v"), kind)))
        body += down(
            each(f"temp[v] = {x('at + v')} - most[v];") + exponentials(context, dtype) + each("total[v] += temp[v];")
        )
        body += each(store(context, dtype, "out[line + v]", f"most[v] + {log}(total[v])"))
        words, text = across(context, dtype, body, f", most[{LANES}]"), ACROSS
    buffers = [Buffer("x", dtype), Buffer("out", dtype, True)]
    name = f"logsumexp_{'along' if axis.along else 'across'}_{dtype}"
    kernel = build(context, name, buffers, axis.names, text, words)
    items, numbers, group = axis.items, axis.numbers, dealt(axis.items)

    def run(context: Context, io: IO) -> None:
        kernel(context, items, (io.span("X"), io.span("Out")), numbers, group)

    return run


@register_kernel("logsumexp_grad", "dialect", supports=_supports)
def logsumexp_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD exp(X - Out)."""
    axis, dtype = _axis(call), call.dtype("X")
    assert axis is not None
    exp = function(context, "exp", dtype)

    def value(name: str, position: str) -> str:
        return load(dtype, f"{name}[{position}]")

    def put(position: str, product: str) -> str:
        return store(context, dtype, f"dx[{position}]", product)

    if axis.along:
        words = {
            "T": ctype(context, compute_dtype(dtype)), "lanes": str(LANES), "out": value("out", "gid"),
            "dout": value("dout", "gid"), "x_v": value("x", "at + i + v"), "exponentials": exponentials(context, dtype),
            "store_v": put("at + i + v", "scale * temp[v]"),
            "store_1": put("at + i", f"scale * {exp}({value('x', 'at + i')} - high)"),
        }  # fmt: skip
        text = _GRAD
    else:
        body = each(f"high[v] = {value('out', 'line + v')}; total[v] = {value('dout', 'line + v')};") + down(
            each(f"temp[v] = {value('x', 'at + v')} - high[v];")
            + exponentials(context, dtype)
            + each(put("at + v", "total[v] * temp[v]"))
        )
        words, text = across(context, dtype, body, f", high[{LANES}]"), ACROSS
    buffers = [*(Buffer(name, dtype) for name in ("x", "out", "dout")), Buffer("dx", dtype, True)]
    name = f"logsumexp_grad_{'along' if axis.along else 'across'}_{dtype}"
    kernel = build(context, name, buffers, axis.names, text, words)
    items, numbers, group = axis.items, axis.numbers, dealt(axis.items)

    def run(context: Context, io: IO) -> None:
        spans = [io.span(slot) for slot in ("X", "Out", "Out@GRAD", "X@GRAD")]
        kernel(context, items, spans, numbers, group)

    return run
