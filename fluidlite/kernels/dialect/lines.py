"""Operators that work line by line along one axis: a sum over each line, then each element by itself.

Where the axis is the last, an item does one line; else sixteen lines that are neighbours in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from fluidlite.plugin import Call, Context, Span, compute_dtype

from .source import LANES, Buffer, build, ctype, dealt, function, row_reduction

ALONG = """
  const index_t at = gid * n;
  $sum
  $middle
  index_t i = 0;
  for (; i + $lanes <= n; i += $lanes) { $whole }
  for (; i < n; ++i) { $single }
"""

ACROSS = """
  const index_t tiles = (post + $lanes - 1) / $lanes, row = gid / tiles, j = (gid - row * tiles) * $lanes;
  const index_t base = row * n * post + j, line = row * post + j;
  const int width = post - j < $lanes ? (int)(post - j) : $lanes;
  $T temp[$lanes], total[$lanes]$more;
  for (int v = 0; v < $lanes; ++v) temp[v] = 0;
  if (width == $lanes) { $full } else { $partial }
"""


class Axis(NamedTuple):
    """An axis of ``n`` elements, with ``pre`` elements of dims before it and ``post`` of dims after it."""

    pre: int
    n: int
    post: int

    @property
    def along(self) -> bool:
        """Whether lines are contiguous."""
        return self.post == 1

    @property
    def items(self) -> int:
        """How many items do all lines."""
        return self.pre if self.along else self.pre * -(-self.post // LANES)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Arguments: ``n``, and across lines ``post``."""
        return (self.n,) if self.along else (self.n, self.post)

    @property
    def names(self) -> list[str | tuple[str, str]]:
        """Their names."""
        return ["n"] if self.along else ["n", "post"]


def axis_of(call: Call, slot: str) -> Axis:
    """The attribute ``axis`` on the dims of a slot."""
    dims = call.dims(slot)
    axis = call.attr("axis") % len(dims)
    return Axis(prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :]))


def each(statement: str) -> str:
    """Text of one statement for each line ``v`` of a tile."""
    return f"for (int v = 0; v < WIDTH; ++v) {{ {statement} }}"


def down(statement: str) -> str:
    """Text of one statement for each element of a tile of lines: ``at + v``."""
    return f"for (index_t r = 0; r < n; ++r) {{ const index_t at = base + r * post; {statement} }}"


def replaced(context: Context, dtype: str, name: str) -> str:
    """Text that replaces the numbers of ``temp`` by a function of them; on vectors where the dialect has them."""
    called = function(context, name, dtype)
    vector = context.dialect.vector
    if not vector or called.startswith("fl_"):
        return f"for (int v = 0; v < {LANES}; ++v) temp[v] = {called}(temp[v]);"
    width = 8 if dtype == "float64" else LANES
    starts = range(0, LANES, width)
    return " ".join(f"vstore{width}({called}(vload{width}(0, temp + {s})), 0, temp + {s});" for s in starts)


def exponentials(context: Context, dtype: str, near: bool = False) -> str:
    """Text that replaces the numbers of ``temp`` by their exponentials; ``near``: none is beyond -80 or 80."""
    return replaced(context, dtype, "expnear" if near else "exp")


def across(context: Context, dtype: str, body: str, more: str = "") -> dict[str, str]:
    """The words of ``ACROSS``: ``body`` with a constant for ``WIDTH``, for a compiler to make vectors, and without."""
    return {
        "T": ctype(context, compute_dtype(dtype)), "lanes": str(LANES), "more": more,
        "full": body.replace("WIDTH", str(LANES)), "partial": body.replace("WIDTH", "width"),
    }  # fmt: skip


def line_sums(
    context: Context,
    name: str,
    axis: Axis,
    dtype: str,
    buffers: Sequence[Buffer],
    numbers: Sequence[tuple[str, str]],
    term: Callable[[str], str],
    store: Callable[[str, str, str, str], str],
    middle: Callable[[str, str], str] | None = None,
    before: Callable[[str], str] | None = None,
) -> Callable[[Context, Sequence[Span], Sequence[Any]], None]:
    """Return ``launch(context, spans, numbers)`` of a sum over each line and a statement for each element.

    Parameters
    ----------
    dtype : str
        Of the elements.
    term : callable
        ``term(position)`` is added up.
    store : callable
        ``store(position, line, total, temp)`` is the statement; ``temp`` is exp(``before(position)``).
    middle : callable
        ``middle(line, total)`` is a statement between the two, which may change the total.
    before : callable
    """
    kind = ctype(context, compute_dtype(dtype))
    exp = exponentials(context, dtype) if before is not None else ""

    def prepared(position: str) -> str:
        return f"temp[v] = {before(position)};" if before is not None else ""

    if axis.along:
        declared = f"{kind} temp[{LANES}]; " if before is not None else ""
        lanes = f"for (int v = 0; v < {LANES}; ++v)"
        single = f"{function(context, 'exp', dtype)}({before('at + i')})" if before is not None else ""
        whole = f"{declared}{lanes} {{ {prepared('at + i + v')} }} {exp}" if before is not None else ""
        words = {
            "lanes": str(LANES), "middle": middle("gid", "total") if middle is not None else "",
            "sum": row_reduction(kind, "total", "0", lambda acc, value: f"{acc} += {value};",
                                 lambda j: term(f"at + {j}")),
            "whole": f"{whole} {lanes} {{ {store('at + i + v', 'gid', 'total', 'temp[v]')} }}",
            "single": store("at + i", "gid", "total", single),
        }  # fmt: skip
        text = ALONG
    else:
        stores = each(store("at + v", "line + v", "total[v]", "temp[v]"))
        body = each("total[v] = 0;") + down(each(f"total[v] += {term('at + v')};"))
        body += each(middle("line + v", "total[v]")) if middle is not None else ""
        body += down((each(prepared("at + v")) + exp if before is not None else "") + stores)
        words, text = across(context, dtype, body), ACROSS
    how = "along" if axis.along else "across"
    kernel = build(context, f"{name}_{how}_{dtype}", list(buffers), [*axis.names, *numbers], text, words)
    items, sizes, group = axis.items, axis.numbers, dealt(axis.items)

    def launch(context: Context, spans: Sequence[Span], given: Sequence[Any]) -> None:
        kernel(context, items, spans, (*sizes, *given), group)

    return launch


__all__ = ["ACROSS", "Axis", "across", "axis_of", "down", "each", "exponentials", "line_sums", "replaced"]
