"""Sums, products, maxima and minima over any axes, of elements or of a function of them.

The axes of a contiguous tensor collapse to alternating kept and reduced ones. If the last is reduced, an item
makes one element of the result with 16 partial results side by side; if it is kept, an item makes 16 consecutive
elements, or more of a dtype under four bytes or of long lines. Where that gives few items for much work, the longest
reduced axis is cut into parts, whose partial results a second launch reduces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from fluidlite.plugin import ITEMSIZE, Context, Pairwise, Span, compute_dtype

from .source import LANES, Buffer, build, ctype, dealt, decode, load, store, tree, wrapping
from .strided import collapsed, steps_of

ENOUGH = 32
PART = 8192
"""With fewer items than ``ENOUGH``, work is cut into parts of about so many elements."""

_JOIN = {
    "max": "{{ const $T y = {1}; {0} = y > {0}$nan ? y : {0}; }}",
    "min": "{{ const $T y = {1}; {0} = y < {0}$nan ? y : {0}; }}",
}
"""How the greater, or the lesser, of two results is kept."""

_SIGN = {"sum": "+", "prod": "*"}
_START = {"sum": "0", "prod": "1"}
"""What the others begin with is any element."""

_MAPPED = {
    "squares": ("sum", "{0} * {0}"),
    "sizes": ("sum", "({0} < 0 ? -{0} : {0})"),
    "factors": ("prod", "({0} == 0 ? ($T)1 : {0})"),
    "zeros": ("sum", "($T)({0} == 0)"),
    "infinite": ("max", "($T)({0} == {0} && {0} - {0} != {0} - {0})"),
    "nan": ("max", "($T)({0} != {0})"),
    "finite": ("min", "($T)({0} - {0} == {0} - {0})"),
}
"""What is reduced, and how, where that is not the elements themselves."""

_ROWS = """
  const index_t kept = gid / parts, part = gid - kept * parts;
  const index_t from = part * length, to = from + length < whole ? from + length : whole;
  index_t at = 0;
  $decode
  $declare
  $loops {
    const index_t base = $base;
    index_t c = $from;
    $blocks
    for (; c + $lanes <= $stop; c += $lanes)
      for (int v = 0; v < $lanes; ++v) { $step_v }
    for (; c < $stop; ++c) { $step_0 }
    $after
  }
  $finish
  $tree
  const index_t place = part * kept_size + kept;
  $store
"""

_COLUMNS = """
  const index_t chunks = (inner + $lanes - 1) / $lanes;
  const index_t row = gid / chunks, j = (gid - row * chunks) * $lanes;
  const index_t kept = row / parts, part = row - kept * parts;
  const index_t from = part * length, to = from + length < whole ? from + length : whole;
  const index_t left_over = inner - j < $lanes ? inner - j : $lanes;
  const int width = (int)left_over;
  index_t at = j;
  $decode
  $declare
  if (width == $lanes) {
    $loops { const index_t base = $base; for (int v = 0; v < $lanes; ++v) { $step } } $after
  } else {
    $loops { const index_t base = $base; for (int v = 0; v < width; ++v) { $step } } $after
  }
  $finish
  for (int v = 0; v < width; ++v) {
    const index_t place = (part * kept_size + kept) * inner + j + v;
    $store
  }
"""


class Reducer(NamedTuple):
    """``run(context, source, target, workspace)`` with the bytes of workspace that it takes."""

    run: Callable[[Context, Span, Span, Span | None], None]
    workspace: int


def reducer(
    context: Context, how: str, source: str, target: str, dims: Sequence[int], axes: Sequence[int], count: int = 0
) -> Reducer:
    """Reduce ``dims`` over ``axes`` and divide by ``count`` unless 0.

    ``how`` is ``"sum"``, ``"prod"``, ``"max"`` or ``"min"``, or one of these over a function of the elements: the sum
    of their ``"squares"``, ``"sizes"`` or ``"zeros"`` (1 for each), the product of the ``"factors"`` that are not 0,
    whether one is ``"infinite"`` or ``"nan"``, or all are ``"finite"``.
    """
    dtype = compute_dtype(source)
    kept_dims = [size for axis, size in enumerate(dims) if axis not in axes]
    parts, launch = _stage(context, how, source, target, dims, axes, count, cut=True)
    if parts == 1:
        return Reducer(lambda context, a, b, _: launch(context, a, b), 0)
    _, first = _stage(context, how, source, dtype, dims, axes, 0, cut=True)
    join = _MAPPED.get(how, (how, ""))[0]
    _, second = _stage(context, join, dtype, target, (parts, *kept_dims), (0,), count, cut=False)

    def run(context: Context, source: Span, target: Span, workspace: Span | None) -> None:
        assert workspace is not None
        first(context, source, workspace)
        second(context, workspace, target)

    return Reducer(run, parts * prod(kept_dims) * ITEMSIZE[dtype])


def _stage(
    context: Context,
    how: str,
    source: str,
    target: str,
    dims: Sequence[int],
    axes: Sequence[int],
    count: int,
    cut: bool,
) -> tuple[int, Callable[[Context, Span, Span], None]]:
    """Return the number of parts, and one launch that reduces each of them."""
    # a kept axis has steps in the result, a reduced one none: so neighbours of one kind collapse
    marks = [0 if axis in axes else 1 for axis in range(len(dims))]
    inner_steps = steps_of(tuple(size if mark else 1 for size, mark in zip(dims, marks, strict=True)))
    marked = [step if mark else 0 for step, mark in zip(inner_steps, marks, strict=True)]
    merged = collapsed(dims, steps_of(dims), marked)
    kept = [(size, step) for size, step, mark in merged if mark]
    reduced = [(size, step) for size, step, mark in merged if not mark]
    empty = 0 in [dims[axis] for axis in axes]
    if empty:  # the sum of nothing: loops that run over nothing
        kept, reduced = [(prod(size for d, size in enumerate(dims) if d not in axes), 0)], [(0, 0)]
    reduced = reduced or [(1, 1 if not kept else 0)]
    rows = not kept or reduced[-1][1] == 1
    inner = 1 if rows else kept[-1][0]
    outer = kept if rows else kept[:-1]
    longest = max(range(len(reduced)), key=lambda d: reduced[d][0])
    whole = reduced[longest][0]
    kept_size = prod(size for size, _ in outer)
    lanes = LANES if rows else LANES * max(1, 4 // ITEMSIZE[source])  # a cache line of the source
    if not rows and kept_size * (inner // (4 * lanes)) >= ENOUGH:
        lanes *= 4  # lines side by side: fewer pages are begun anew
    items = kept_size * (1 if rows else -(-inner // lanes))
    work = prod(size for size, _ in reduced) * kept_size * inner
    parts = 1
    if cut and items < ENOUGH and work >= 2 * PART:
        parts = min(whole, -(-work // PART), max(1, ENOUGH * 4 // items))
    length = -(-whole // parts) if whole else 1
    parts = -(-whole // length) if whole else 1
    last = length if longest == len(reduced) - 1 else reduced[-1][0]
    each = prod(size for size, _ in reduced) // max(parts, 1)  # elements that an item reduces to one
    many = (-(-each // max(last, 1)) * (last // lanes + last % lanes) if rows else each) > 2 * Pairwise.STEPS
    kernel = build(
        context, f"reduce_{how}_{'rows' if rows else 'columns'}_{source}_{target}",
        [Buffer("x", source), Buffer("out", target, True)],
        ["parts", "length", "whole", "inner", "kept_size", "count",
         *(f"{word}{d}" for d in range(len(outer)) for word in ("n", "s")),
         *(f"{word}{d}" for d in range(len(reduced)) for word in ("m", "r"))],
        _ROWS if rows else _COLUMNS,
        _words(context, how, source, target, rows, lanes, len(outer), len(reduced), longest, bool(count), many),
    )  # fmt: skip
    numbers = (parts, length, whole, inner, kept_size, count or 1, *sum(outer, ()), *sum(reduced, ()))
    total = items * parts
    group = dealt(total) if work // max(total, 1) < 4096 else 1

    def launch(context: Context, source: Span, target: Span) -> None:
        kernel(context, total, (source, target), numbers, group)

    return parts, launch


def _words(
    context: Context,
    how: str,
    source: str,
    target: str,
    rows: bool,
    lanes: int,
    kept: int,
    reduced: int,
    longest: int,
    mean: bool,
    many: bool,
) -> dict[str, str]:
    """The words that fill the templates in for a number of axes and the axis that is cut."""
    dtype = compute_dtype(source)
    kind = ctype(context, dtype)
    join, function = _MAPPED.get(how, (how, "{0}"))
    if join in _SIGN:
        step = f"{{0}} = {wrapping(context, dtype, _SIGN[join])};"
    else:
        step = _JOIN[join].replace("$T", kind).replace("$nan", " || y != y" if "float" in dtype else "")
    value = function.replace("$T", kind)

    def read(element: str) -> str:
        return value.format(load(source, element))

    def bounds(d: int) -> tuple[str, str]:
        return ("from", "to") if d == longest else ("0", f"m{d}")

    looped = list(range(reduced - 1) if rows else range(reduced))
    heads = [f"for (index_t i{d} = {bounds(d)[0]}; i{d} < {bounds(d)[1]}; ++i{d})" for d in looped]
    base = " + ".join(["at", *(f"i{d} * r{d}" for d in looped)])
    start = _START.get(join) or read(f"x[at + from * r{longest}{'' if rows else ' + v'}]")
    result = "acc[0]" if rows else "acc[v]"
    last, end = bounds(reduced - 1)
    if join == "sum" and "float" in dtype and many:
        pairs = Pairwise(kind, lanes)
        block, limit = Pairwise.STEPS * (lanes if rows else 1), "b" if rows else f"b{reduced - 1}"
        stop = f"const index_t stop = {end} - {limit} < {block} ? {end} : {limit} + {block};"
        blocks = f"for (index_t b = {last}; b < {end}; b += {block}) {{ {stop}"
        if not rows:  # the innermost loop in blocks, after each of which sums are kept
            heads[-1:] = [
                f"for (index_t {limit} = {last}; {limit} < {end}; {limit} += {block}) {{ {stop}",
                f"for (index_t i{reduced - 1} = {limit}; i{reduced - 1} < stop; ++i{reduced - 1})",
            ]
        count = f"(int)(stop - b) / {lanes} + (int)(stop - b) % {lanes}" if rows else f"(int)(stop - {limit})"
        sums = {
            "declare": pairs.declare, "finish": pairs.finish, "blocks": blocks, "stop": "stop",
            "after": pairs.after(count) + " }",
        }  # fmt: skip
    else:
        first = f"for (int v = 0; v < {lanes if rows else 'width'}; ++v) acc[v] = {start};"
        sums = {"declare": f"{kind} acc[{lanes}]; {first}", "finish": "", "blocks": "", "stop": end, "after": ""}
    return {
        "T": kind, "lanes": str(lanes), "loops": " ".join(heads), "base": base, **sums,
        "decode": decode("kept", [(f"n{d}", (("at", f"s{d}"),)) for d in range(kept)]) if kept else "",
        "from": last,
        "step_v": step.format("acc[v]", read("x[base + c + v]")),
        "step_0": step.format("acc[0]", read("x[base + c]")),
        "step": step.format("acc[v]", read("x[base + v]")),
        "tree": tree(step.format),
        "store": store(context, target, "out[place]", f"{result} / ({kind})count" if mean else result),
    }  # fmt: skip
