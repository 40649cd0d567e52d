"""smooth_l1_loss with its gradient, a row an item, and the reductions of kldiv_loss, a part an item."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, ITEMSIZE, Call, Context, compute_dtype, register_kernel

from .reducing import reducer
from .source import Buffer, build, ctype, dealt, function, load, part, row_reduction, store
from .strided import filler

_SMOOTH = """
  const index_t at = gid * n;
  $keep
  $total
  $loss
"""


def _add(acc: str, value: str) -> str:
    return f"{acc} += {value};"


@register_kernel("smooth_l1_loss", "dialect")
def smooth_l1_loss(call: Call, context: Context) -> Any:
    """Out = the sum of each row's losses; near = min(|d|, 1 / sigma^2) gives both branches in one product."""
    dims, dtype = call.dims("X"), call.dtype("X")
    kind, weighted = ctype(context, compute_dtype(dtype)), call.has("InsideWeight")
    given = {"X": "x", "Y": "y", **({"InsideWeight": "inside", "OutsideWeight": "outside"} if weighted else {})}
    buffers, slots = [Buffer(name, dtype) for name in given.values()], list(given)
    for slot, name in (("Diff", "diff"), ("Out", "loss")):
        if call.has(slot):
            buffers.append(Buffer(name, dtype, True))
            slots.append(slot)

    def diff(j: str) -> str:
        inside = load(dtype, f"inside[at + {j}]") + " * " if weighted else ""
        return f"{inside}({load(dtype, f'x[at + {j}]')} - {load(dtype, f'y[at + {j}]')})"

    def step(acc: str, value: str) -> str:
        if value.startswith("acc"):  # partial sums are joined
            return _add(acc, value)
        d, _, scale = value.partition("|")
        far = f"const {kind} d = {d}, far = d < 0 ? -d : d, near = far > limit ? limit : far;"
        return f"{far} {acc} += {scale}near * (far - ({kind})0.5 * near);"

    def value(j: str) -> str:
        return diff(j) + "|" + (load(dtype, f"outside[at + {j}]") + " * " if weighted else "")

    each = "for (index_t j = 0; j < n; ++j) { " + store(context, dtype, "diff[at + j]", diff("j")) + " }"
    words = {
        "keep": each if call.has("Diff") else "",
        "total": row_reduction(kind, "total", "0", step, value) if call.has("Out") else "",
        "loss": store(context, dtype, "loss[gid]", "square * total") if call.has("Out") else "",
    }  # fmt: skip
    scalar = compute_dtype(dtype)
    kernel = build(
        context, f"smooth_l1_{dtype}", buffers, ["n", ("square", scalar), ("limit", scalar)], _SMOOTH, words
    )  # fmt: skip
    rows, square = dims[0], call.attr("sigma") ** 2
    numbers = (prod(dims[1:]), square, 1 / square if square else 0.0)

    def run(context: Context, io: IO) -> None:
        kernel(context, rows, [io.span(slot) for slot in slots], numbers, dealt(rows))

    return run


_SMOOTH_GRAD = """
  const index_t at = gid * n;
  const $T dy = $dout;
  for (index_t j = 0; j < n; ++j) {
    const $T d = square * $diff, grad = (d > 1 ? ($T)1 : d < -1 ? ($T)-1 : d) * dy$weight;
    $stores
  }
"""


@register_kernel("smooth_l1_loss_grad", "dialect")
def smooth_l1_loss_grad(call: Call, context: Context) -> Any:
    """X@GRAD = weights * min(max(sigma^2 * Diff, -1), 1) * Out@GRAD of the row, Y@GRAD its negative."""
    dims, dtype = call.dims("Diff"), call.dtype("Diff")
    weighted = call.has("InsideWeight")
    given = {"Diff": "diff", "Out@GRAD": "dout"}
    if weighted:
        given |= {"InsideWeight": "inside", "OutsideWeight": "outside"}
    made = {slot: name for slot, name in (("X@GRAD", "dx"), ("Y@GRAD", "dy_out")) if call.has(slot)}
    signs = {"dx": "grad", "dy_out": "-grad"}
    words = {
        "T": ctype(context, compute_dtype(dtype)),
        "dout": load(dtype, "dout[gid]"), "diff": load(dtype, "diff[at + j]"),
        "weight": "".join(f" * {load(dtype, f'{name}[at + j]')}" for name in ("inside", "outside") if weighted),
        "stores": " ".join(store(context, dtype, f"{name}[at + j]", signs[name]) for name in made.values()),
    }  # fmt: skip
    kernel = build(
        context, f"smooth_l1_grad_{dtype}",
        [*(Buffer(name, dtype) for name in given.values()), *(Buffer(name, dtype, True) for name in made.values())],
        ["n", ("square", compute_dtype(dtype))], _SMOOTH_GRAD, words,
    )  # fmt: skip
    rows, numbers = dims[0], (prod(dims[1:]), call.attr("sigma") ** 2)

    def run(context: Context, io: IO) -> None:
        kernel(context, rows, [io.span(slot) for slot in (*given, *made)], numbers, dealt(rows))

    return run


PART = 8192
_KLDIV = """
  const index_t at = gid * $part, n = size - at < $part ? size - at : $part;
  $total
  $store
"""


def _sums(call: Call) -> str | None:
    return "an expression gives the losses themselves" if call.attr("reduction") == "none" else None


@register_kernel("kldiv_loss", "dialect", supports=_sums)
def kldiv_loss(call: Call, context: Context) -> Any:
    """Loss = the sum of Target * (log(Target) - X), divided as the reduction says."""
    dims, dtype = call.dims("X"), call.dtype("X")
    wide = compute_dtype(dtype)
    kind, log = ctype(context, wide), function(context, "log", dtype)
    items = prod(dims)
    divisor = max({"mean": items, "batchmean": dims[0]}.get(call.attr("reduction"), 1), 1)
    if not items:
        zero = filler(context, dtype, 0.0)
        return lambda context, io: zero(context, io.span("Loss"), 1)

    def value(j: str) -> str:
        return f"{load(dtype, f'target[at + {j}]')}|{load(dtype, f'x[at + {j}]')}"

    def step(acc: str, value: str) -> str:
        if value.startswith("acc"):
            return _add(acc, value)
        target, _, x = value.partition("|")
        return f"const {kind} t = {target}; {acc} += t > 0 ? t * ({log}(t) - {x}) : ({kind})0;"

    kernel = build(
        context, f"kldiv_{dtype}", [Buffer("x", dtype), Buffer("target", dtype), Buffer("sums", wide, True)], ["size"],
        _KLDIV,
        {"part": str(PART), "total": row_reduction(kind, "total", "0", step, value),
         "store": store(context, wide, "sums[gid]", "total")},
    )  # fmt: skip
    parts = -(-items // PART)
    join = reducer(context, "sum", wide, dtype, (parts,), (0,), divisor)
    sums_bytes = -(-parts * ITEMSIZE[wide] // 64) * 64

    def run(context: Context, io: IO) -> None:
        assert io.workspace is not None
        space = io.workspace.span()
        sums, rest = space._replace(nbytes=sums_bytes), part(space, sums_bytes)
        kernel(context, parts, (io.span("X"), io.span("Target"), sums), (items,), 1)
        join.run(context, sums, io.span("Loss"), rest)

    run.workspace = sums_bytes + join.workspace  # type: ignore[attr-defined]
    return run
