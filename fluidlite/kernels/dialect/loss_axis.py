"""softmax_with_cross_entropy where the classes do not lie along the last axis: 16 neighbouring rows an item.

A class outside its row, unless it is ``ignore_index``, is recorded in the status word, and the row costs 0.
"""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import HALVES, IO, Call, Context, compute_dtype

from .source import LANES, Buffer, build, ctype, dealt, function, load, store

_STATUS = Buffer("status", "int64", True)
_HEAD = """
  const index_t chunks = (inner + $lanes - 1) / $lanes, o = gid / chunks, from = (gid - o * chunks) * $lanes;
  const int width = inner - from < $lanes ? (int)(inner - from) : $lanes;
  const index_t at = o * n * inner + from, row = o * inner + from;
"""
_SOFTMAX = """
  $T most[$lanes], total[$lanes];
  for (int v = 0; v < width; ++v) { most[v] = $first; total[v] = 0; }
  for (index_t j = 1; j < n; ++j)
    for (int v = 0; v < width; ++v) { const $T y = $x; most[v] = y > most[v] || y != y ? y : most[v]; }
  for (index_t j = 0; j < n; ++j)
    for (int v = 0; v < width; ++v) { const $T e = $exp($x - most[v]); $keep total[v] += e; }
  $softmax
"""
_CLASS = """
  for (int v = 0; v < width; ++v) {
    const index_t chosen = label[row + v];
    $T cost = 0;
    if (chosen != ignore) {
      if (chosen < 0 || chosen >= n) bad_index(status, op_id, chosen, n);
      else cost = $log(total[v]) - ($picked - most[v]);
    }
    $loss
  }
"""
_SHARES = """
  $T costs[$lanes];
  for (int v = 0; v < width; ++v) { costs[v] = 0; total[v] = $log(total[v]); }
  for (index_t j = 0; j < n; ++j)
    for (int v = 0; v < width; ++v) costs[v] += $target * (total[v] - ($x - most[v]));
  for (int v = 0; v < width; ++v) { const $T cost = costs[v]; $loss }
"""


def _dims(call: Call, slot: str) -> tuple[int, int, int]:
    """Return the classes, the step between them, and the number of items."""
    dims = call.dims(slot)
    axis = call.attr("axis") % len(dims)
    inner, outer = prod(dims[axis + 1 :]), prod(dims[:axis])
    return dims[axis], inner, outer * -(-inner // LANES)


def loss_along_axis(call: Call, context: Context) -> Any:
    """Softmax = softmax(Logits); Loss = log(sum(exp(Logits))) - Logits[Label], or its mean over soft labels."""
    dtype, soft, label = call.dtype("Logits"), call.attr("soft_label"), call.dtype("Label")
    kept = call.has("Softmax") and dtype not in HALVES
    x, out, exp = load(dtype, "x[at + j * inner + v]"), "out[at + j * inner + v]", function(context, "exp", dtype)
    each = "for (index_t j = 0; j < n; ++j)\n    for (int v = 0; v < width; ++v) { $ }"
    whole = store(context, dtype, out, f"{out} / total[v]" if kept else f"{exp}({x} - most[v]) / total[v]")
    words = {
        "T": ctype(context, compute_dtype(dtype)), "lanes": str(LANES), "x": x, "first": load(dtype, "x[at + v]"),
        "exp": exp, "log": function(context, "log", dtype), "keep": f"{out} = e;" if kept else "",
        "softmax": each.replace("$", whole) if call.has("Softmax") else "",
        "picked": load(dtype, "x[at + chosen * inner + v]"), "target": load(label, "label[at + j * inner + v]"),
        "loss": store(context, dtype, "loss[row + v]", "cost"),
    }  # fmt: skip
    slots = ["Logits", "Label", *(slot for slot in ("Softmax", "Loss") if call.has(slot))]
    names = {"Logits": "x", "Label": "label", "Softmax": "out", "Loss": "loss"}
    dtypes = {"Label": label}
    buffers = [Buffer(names[slot], dtypes.get(slot, dtype), slot in ("Softmax", "Loss")) for slot in slots]
    checked = call.has("Loss") and not soft
    body = _HEAD + _SOFTMAX + ((_SHARES if soft else _CLASS) if call.has("Loss") else "")
    kernel = build(
        context, f"loss_along_axis_{dtype}", [*buffers, *([_STATUS] if checked else [])],
        ["n", "inner", "ignore", "op_id"], body, words,
    )  # fmt: skip
    n, inner, items = _dims(call, "Logits")
    ignore = call.attr("ignore_index")

    def run(context: Context, io: IO) -> None:
        spans = [io.span(slot) for slot in slots]
        if checked:
            spans.append(context.status_span())
        kernel(context, items, spans, (n, inner, ignore, io.op_id), dealt(items))

    return run


_EACH = "for (index_t j = 0; j < n; ++j)\n    for (int v = 0; v < width; ++v) {{ {} }}"
_GRAD = """
  $T scale[$lanes], mass[$lanes];
  for (int v = 0; v < width; ++v) { scale[v] = $dloss; mass[v] = $start; }
  $mass
  for (index_t j = 0; j < n; ++j)
    for (int v = 0; v < width; ++v) { $store }
"""


def loss_grad_along_axis(call: Call, context: Context) -> Any:
    """Logits@GRAD = Loss@GRAD (Softmax - one_hot(Label)), 0 in ignored rows; of soft labels
    Loss@GRAD (Softmax sum(Label) - Label).
    """
    dtype, soft, label = call.dtype("Softmax"), call.attr("soft_label"), call.dtype("Label")
    kind, here = ctype(context, compute_dtype(dtype)), "[at + j * inner + v]"
    dloss = load(dtype, "dloss[row + v]")
    target = load(label, "label" + here) if soft else f"(j == label[row + v] ? ({kind})1 : ({kind})0)"
    words = {
        "T": kind, "lanes": str(LANES), "dloss": dloss if soft else f"label[row + v] == ignore ? ({kind})0 : {dloss}",
        "store": store(context, dtype, "dx" + here, f"scale[v] * (mass[v] * {load(dtype, 'y' + here)} - {target})"),
        "start": "0" if soft else "1",
        "mass": f"{_EACH.format(f'mass[v] += {target};')}" if soft else "",
    }  # fmt: skip
    kernel = build(
        context, f"loss_grad_along_axis_{dtype}",
        [Buffer("y", dtype), Buffer("label", label), Buffer("dloss", dtype), Buffer("dx", dtype, True)],
        ["n", "inner", "ignore"], _HEAD + _GRAD, words,
    )  # fmt: skip
    n, inner, items = _dims(call, "Softmax")
    numbers = (n, inner, call.attr("ignore_index"))

    def run(context: Context, io: IO) -> None:
        spans = [io.span(slot) for slot in ("Softmax", "Label", "Loss@GRAD", "Logits@GRAD")]
        kernel(context, items, spans, numbers, dealt(items))

    return run
