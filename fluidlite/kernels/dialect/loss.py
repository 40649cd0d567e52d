"""cross_entropy and softmax_with_cross_entropy with gradients: a row an item.

A class outside its row, unless it is ``ignore_index``, is recorded in the status word, and the row costs 0.
"""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, compute_dtype, register_kernel

from .loss_axis import loss_along_axis, loss_grad_along_axis
from .softmax import softmax_words
from .source import Buffer, build, ctype, dealt, function, load, row_reduction, store

_STATUS = Buffer("status", "int64", True)
_CLASS = """
  const index_t at = gid * n, chosen = label[gid];
  $T cost = 0;
  if (chosen != ignore) {
    if (chosen < 0 || chosen >= n) bad_index(status, op_id, chosen, n);
    else { $cost }
  }
"""
_SHARES = """
  const index_t at = gid * n;
  $cost
"""
_SOFTMAX = """
  const index_t at = gid * n;
  $most
  $total
  const $T log_total = $log(total);
"""


def _label(call: Call) -> tuple[bool, str]:
    return call.attr("soft_label"), call.dtype("Label")


def _inner(call: Call, slot: str) -> int:
    """How many elements lie between two classes of a row."""
    dims = call.dims(slot)
    return prod(dims[call.attr("axis") % len(dims) + 1 :])


@register_kernel("cross_entropy", "dialect", indexes=True)
def cross_entropy(call: Call, context: Context) -> Any:
    """Y = -log(X[Label]), or -sum(Label log(X)); -log(0) counts as 1e20."""
    dtype = call.dtype("X")
    soft, label = _label(call)
    kind, log = ctype(context, compute_dtype(dtype)), function(context, "log", dtype)

    def least(x: str) -> str:
        return f"const {kind} c = -{log}({x}), d = c > ({kind})1e20 ? ({kind})1e20 : c;"

    def share(acc: str, value: str) -> str:
        if value.startswith("acc"):  # partial sums are joined
            return f"{acc} += {value};"
        return f"{least(load(dtype, f'x[at + {value}]'))} {acc} += {load(label, f'label[at + {value}]')} * d;"

    if soft:
        one = row_reduction(kind, "cost", "0", share, lambda j: j)
    else:
        one = f"{least(load(dtype, 'x[at + chosen]'))} cost = d;"
    body = (_SHARES if soft else _CLASS) + "  " + store(context, dtype, "out[gid]", "cost")
    buffers = [Buffer("x", dtype), Buffer("label", label), Buffer("out", dtype, True)]
    return _launcher(call, context, "cross_entropy", buffers, ("X", "Label", "Y"), body, {"T": kind, "cost": one}, "X")


_CLASS_GRAD = """
  const index_t at = gid * n, chosen = label[gid];
  const $T scale = chosen == ignore ? 0 : $dy;
  for (index_t j = 0; j < n; ++j) { $store }
"""
_ONE_GRAD = """
  const index_t at = gid * n, chosen = label[gid];
  for (index_t j = 0; j < n; ++j) dx[at + j] = 0;
  if (chosen != ignore && chosen >= 0 && chosen < n) { $store }
"""
_SOFT_GRAD = """
  const index_t at = gid * n;
  const $T scale = $dy;
  $mass
  for (index_t j = 0; j < n; ++j) { $store }
"""
_SHARES_GRAD = """
  const index_t at = gid * n;
  const $T scale = $dy;
  for (index_t j = 0; j < n; ++j) { $store }
"""


@register_kernel("cross_entropy_grad", "dialect")
def cross_entropy_grad(call: Call, context: Context) -> Any:
    """X@GRAD = -Y@GRAD / X at the label, or -Y@GRAD Label / X."""
    dtype = call.dtype("X")
    soft, label = _label(call)
    dy = load(dtype, "dy[gid]")
    if soft:
        share = f"-scale * {load(label, 'label[at + j]')} / {load(dtype, 'x[at + j]')}"
        stored = store(context, dtype, "dx[at + j]", share)
    else:
        stored = store(context, dtype, "dx[at + chosen]", f"-{dy} / {load(dtype, 'x[at + chosen]')}")
    words = {"T": ctype(context, compute_dtype(dtype)), "dy": dy, "store": stored}
    buffers = [Buffer("x", dtype), Buffer("label", label), Buffer("dy", dtype), Buffer("dx", dtype, True)]
    slots = ("X", "Label", "Y@GRAD", "X@GRAD")
    body = _SHARES_GRAD if soft else _ONE_GRAD
    return _launcher(call, context, "cross_entropy_grad", buffers, slots, body, words, "X")


@register_kernel("softmax_with_cross_entropy", "dialect", indexes=True)
def softmax_with_cross_entropy(call: Call, context: Context) -> Any:
    """Softmax = softmax(Logits); Loss = log(sum(exp(Logits))) - Logits[Label], or its mean over soft labels."""
    if _inner(call, "Logits") != 1:
        return loss_along_axis(call, context)
    dtype = call.dtype("Logits")
    soft, label = _label(call)
    words = softmax_words(context, dtype, call.has("Softmax"))
    body = _SOFTMAX
    buffers, slots = [Buffer("x", dtype), Buffer("label", label)], ["Logits", "Label"]
    if call.has("Softmax"):
        body += "  for (index_t j = 0; j < n; ++j) { $store }\n"
        buffers.append(Buffer("out", dtype, True))
        slots.append("Softmax")
    if soft:
        words["cost"] = row_reduction(
            words["T"], "cost", "0", lambda acc, value: f"{acc} += {value};",
            lambda j: f"{load(label, f'label[at + {j}]')} * (log_total - ({load(dtype, f'x[at + {j}]')} - most))",
        )  # fmt: skip
    else:
        words["cost"] = f"cost = log_total - ({load(dtype, 'x[at + chosen]')} - most);"
    rest = (_SHARES if soft else _CLASS).replace("const index_t at = gid * n, chosen", "const index_t chosen")
    body += rest.replace("  const index_t at = gid * n;\n", "") + "  " + store(context, dtype, "loss[gid]", "cost")
    buffers.append(Buffer("loss", dtype, True))
    slots.append("Loss")
    return _launcher(call, context, "softmax_with_cross_entropy", buffers, tuple(slots), body, words, "Logits")


@register_kernel("softmax_with_cross_entropy_grad", "dialect")
def softmax_with_cross_entropy_grad(call: Call, context: Context) -> Any:
    """Logits@GRAD = Loss@GRAD (Softmax - one_hot(Label)), 0 in ignored rows; of soft labels
    Loss@GRAD (Softmax sum(Label) - Label).
    """
    if _inner(call, "Softmax") != 1:
        return loss_grad_along_axis(call, context)
    dtype = call.dtype("Softmax")
    soft, label = _label(call)
    kind, y = ctype(context, compute_dtype(dtype)), load(dtype, "y[at + j]")
    words = {"T": kind, "dy": load(dtype, "dloss[gid]")}
    if soft:
        words["mass"] = row_reduction(
            kind, "mass", "0", lambda acc, value: f"{acc} += {value};", lambda j: load(label, f"label[at + {j}]")
        )
        apart = f"mass * {y} - {load(label, 'label[at + j]')}"
    else:
        apart = f"{y} - (j == chosen ? ({kind})1 : ({kind})0)"
    words["store"] = store(context, dtype, "dx[at + j]", f"scale * ({apart})")
    buffers = [Buffer("y", dtype), Buffer("label", label), Buffer("dloss", dtype), Buffer("dx", dtype, True)]
    slots = ("Softmax", "Label", "Loss@GRAD", "Logits@GRAD")
    body = _SOFT_GRAD if soft else _CLASS_GRAD
    return _launcher(call, context, "softmax_with_cross_entropy_grad", buffers, slots, body, words, "Softmax")


def _launcher(
    call: Call,
    context: Context,
    name: str,
    buffers: list[Buffer],
    slots: tuple[str, ...],
    body: str,
    words: dict[str, str],
    scores: str,
) -> Any:
    """Return ``run`` of a kernel over the rows of ``scores``; hard labels come with ``ignore`` and the status word."""
    dims = call.dims(scores)
    n = dims[call.attrs.get("axis", -1)]
    rows = prod(dims) // n if n else prod(dims[:-1])
    checked = "bad_index(" in body
    kernel = build(
        context, f"{name}_{buffers[0].dtype}", [*buffers, *([_STATUS] if checked else [])],
        ["n", "ignore", "op_id"], body, words,
    )  # fmt: skip
    ignore = call.attr("ignore_index")

    def run(context: Context, io: IO) -> None:
        spans = [io.span(slot) for slot in slots]
        if checked:
            spans.append(context.status_span())
        kernel(context, rows, spans, (n, ignore, io.op_id), dealt(rows))

    return run
