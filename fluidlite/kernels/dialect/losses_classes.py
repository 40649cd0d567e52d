"""bpr_loss and cross_entropy2 with gradients: a row an item.

A class outside its row is recorded in the status word, and the row costs 0.
"""

from __future__ import annotations

from math import prod
from string import Template
from typing import Any

from fluidlite.plugin import IO, Call, Context, compute_dtype, register_kernel

from .source import HALVES, LANES, Buffer, build, ctype, dealt, function, load, store

_STATUS = Buffer("status", "int64", True)

# The logarithm of a product of factors from 1 to 2 stands for the sum of theirs: one logarithm for $run classes.
# Vectors take the label itself along, whose part is known; an infinite score there would give NaN, so such rows go one
# by one.
_BPR = """
  const index_t at = gid * n, chosen = label[gid];
  $T cost = 0;
  if (chosen < 0 || chosen >= n) bad_index(status, op_id, chosen, n);
  else {
    const $T here = $picked;
    $T total = 0;
    index_t j = 0;
    $vectors
    while (j < n) {
      $T factors = 1;
      for (int k = 0; k < $run && j < n; ++k, ++j) {
        const $T d = j == chosen ? ($T)0 : $x - here;
        factors *= 1 + $exp(d > 0 ? -d : d);
        total += d < 0 ? ($T)0 : d;
      }
      total += $log(factors);
    }
    cost = (total - $log(($T)2)) / (n - 1);
  }
  $loss
"""
_BPR_GRAD = """
  const index_t at = gid * n, chosen = label[gid];
  const int known = chosen >= 0 && chosen < n;
  const $T here = known ? $picked : ($T)0, dy = known ? $dy / (n - 1) : ($T)0;
  $T total = 0;
  index_t j = 0;
  $vectors
  for (; j < n; ++j) {
    const $T grad = j == chosen ? dy / 2 : dy / (1 + $exp(here - $x));
    total += grad;
    $store
  }
  if (known) { $last }
"""


_BPR_VECTORS = """while (here - here == 0 && j + $lanes <= n) {
      $V sums = ($V)(0), factors = ($V)(1);
      for (int k = 0; k < $run && j + $lanes <= n; ++k, j += $lanes) {
        const $V d = vload$lanes(0, x + at + j) - here, zero = ($V)(0);
        factors *= 1 + $exp(d > zero ? -d : d);
        sums += d < zero ? zero : d;
      }
      $T parts[$lanes], logs[$lanes];
      vstore$lanes(sums, 0, parts);
      vstore$lanes(factors, 0, logs);
      for (int v = 0; v < $lanes; ++v) total += parts[v] + $log(logs[v]);
    }"""
_GRAD_VECTORS = """{
    $V sums = ($V)(0);
    for (; here - here == 0 && j + $lanes <= n; j += $lanes) {
      const $V e = dy / (1 + $exp(here - vload$lanes(0, x + at + j)));
      vstore$lanes(e, 0, dx + at + j);
      sums += e;
    }
    $T parts[$lanes];
    vstore$lanes(sums, 0, parts);
    for (int v = 0; v < $lanes; ++v) total += parts[v];
  }"""
RUN = 64
"""How many factors up to 2 the product of a float32 holds, with room to spare."""


def _words(context: Context, dtype: str, vectors: str) -> dict[str, str]:
    """The words of both kernels; ``vectors`` takes classes side by side where the dialect has functions of vectors."""
    kind, exp, log = ctype(context, compute_dtype(dtype)), *(function(context, f, dtype) for f in ("exp", "log"))
    words = {"T": kind, "exp": exp, "log": log, "run": str(RUN), "x": load(dtype, "x[at + j]"),
             "picked": load(dtype, "x[at + chosen]")}  # fmt: skip
    vector = context.dialect.vector
    if vector and dtype not in HALVES and not exp.startswith("fl_"):
        lanes = 8 if dtype == "float64" else LANES
        more = {"V": vector.format(type=kind, width=lanes), "lanes": str(lanes)}
        return {**words, "vectors": Template(vectors).substitute(words, **more)}
    return {**words, "vectors": ""}


@register_kernel("bpr_loss", "dialect", indexes=True)
def bpr_loss(call: Call, context: Context) -> Any:
    """Y = the mean of log(1 + exp(X[j] - X[Label])) over the other classes; the factor of the label itself is 2."""
    dtype = call.dtype("X")
    words = {**_words(context, dtype, _BPR_VECTORS), "loss": store(context, dtype, "loss[gid]", "cost")}
    buffers = [Buffer("x", dtype), Buffer("label", call.dtype("Label")), Buffer("loss", dtype, True), _STATUS]
    kernel = build(context, f"bpr_{dtype}", buffers, ["n", "op_id"], _BPR, words)
    dims = call.dims("X")
    rows, n = prod(dims[:-1]), dims[-1]

    def run(context: Context, io: IO) -> None:
        spans = (io.span("X"), io.span("Label"), io.span("Y"), context.status_span())
        kernel(context, rows, spans, (n, io.op_id), dealt(rows))

    return run


@register_kernel("bpr_loss_grad", "dialect")
def bpr_loss_grad(call: Call, context: Context) -> Any:
    """X@GRAD[j] = Y@GRAD / (1 + exp(X[Label] - X[j])) / (classes - 1), and at Label less their sum."""
    dtype = call.dtype("X")
    words = {
        **_words(context, dtype, _GRAD_VECTORS), "dy": load(dtype, "dy_in[gid]"),
        "store": store(context, dtype, "dx[at + j]", "grad"),
        "last": store(context, dtype, "dx[at + chosen]", "dy / 2 - total"),
    }  # fmt: skip
    kernel = build(
        context, f"bpr_grad_{dtype}",
        [Buffer("x", dtype), Buffer("label", call.dtype("Label")), Buffer("dy_in", dtype), Buffer("dx", dtype, True)],
        ["n"], _BPR_GRAD, words,
    )  # fmt: skip
    dims = call.dims("X")
    rows, n = prod(dims[:-1]), dims[-1]

    def run(context: Context, io: IO) -> None:
        spans = [io.span(slot) for slot in ("X", "Label", "Y@GRAD", "X@GRAD")]
        kernel(context, rows, spans, (n,), dealt(rows))

    return run


_TWO = """
  const index_t chosen = label[gid];
  $T match = 0, cost = 0;
  if (chosen != ignore) {
    if (chosen < 0 || chosen >= n) bad_index(status, op_id, chosen, n);
    else {
      match = $x;
      const $T c = -$log(match);
      cost = c > ($T)1e20 ? ($T)1e20 : c;
    }
  }
  $stores
"""


@register_kernel("cross_entropy2", "dialect", indexes=True)
def cross_entropy2(call: Call, context: Context) -> Any:
    """MatchX = X[Label], Y = -log(MatchX); both 0 in ignored rows."""
    dtype = call.dtype("X")
    results = {slot: name for slot, name in (("Y", "cost"), ("MatchX", "match")) if call.has(slot)}
    words = {
        "T": ctype(context, compute_dtype(dtype)), "x": load(dtype, "x[gid * n + chosen]"),
        "log": function(context, "log", dtype),
        "stores": " ".join(store(context, dtype, f"{name}_out[gid]", name) for name in results.values()),
    }  # fmt: skip
    kernel = build(
        context, f"cross_entropy2_{dtype}",
        [Buffer("x", dtype), Buffer("label", call.dtype("Label")),
         *(Buffer(f"{name}_out", dtype, True) for name in results.values()), _STATUS],
        ["n", "ignore", "op_id"], _TWO, words,
    )  # fmt: skip
    dims = call.dims("X")
    rows, n, ignore = prod(dims[:-1]), dims[-1], call.attr("ignore_index")

    def run(context: Context, io: IO) -> None:
        spans = [io.span(slot) for slot in ("X", "Label", *results)]
        kernel(context, rows, [*spans, context.status_span()], (n, ignore, io.op_id), dealt(rows))

    return run


_TWO_GRAD = """
  const index_t at = gid * n, chosen = label[gid];
  const $T grad = chosen == ignore ? ($T)0 : -$dy / $match;
  for (index_t j = 0; j < n; ++j) { $store }
"""


@register_kernel("cross_entropy_grad2", "dialect")
def cross_entropy_grad2(call: Call, context: Context) -> Any:
    """X@GRAD = -Y@GRAD / MatchX at Label, 0 elsewhere."""
    dtype, dims = call.dtype("X@GRAD"), call.dims("X@GRAD")
    kind = ctype(context, compute_dtype(dtype))
    words = {
        "T": kind, "dy": load(dtype, "dy[gid]"), "match": load(dtype, "match[gid]"),
        "store": store(context, dtype, "dx[at + j]", f"j == chosen ? grad : ({kind})0"),
    }  # fmt: skip
    kernel = build(
        context, f"cross_entropy_grad2_{dtype}",
        [Buffer("label", call.dtype("Label")), Buffer("match", dtype), Buffer("dy", dtype), Buffer("dx", dtype, True)],
        ["n", "ignore"], _TWO_GRAD, words,
    )  # fmt: skip
    rows, n, ignore = prod(dims[:-1]), dims[-1], call.attr("ignore_index")

    def run(context: Context, io: IO) -> None:
        spans = [io.span(slot) for slot in ("Label", "MatchX", "Y@GRAD", "X@GRAD")]
        kernel(context, rows, spans, (n, ignore), dealt(rows))

    return run
