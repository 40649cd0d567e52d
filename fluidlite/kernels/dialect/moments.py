"""Normalising by mean and variance, with gradients: the kernels that the normalisation operators share.

A statistic belongs to a *row*: ``outer`` runs of ``inner`` neighbouring elements, ``step`` apart. An item does one
row. Where rows are the columns of a matrix, an item does sixteen of them, which are neighbours in memory.
Sums are of differences from a first mean, so that a mean far from 0 costs no digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from fluidlite.plugin import Call, Context, compute_dtype

from .source import LANES, ctype, function, load, tree

NUMBERS: tuple[str, ...] = ("groups", "major", "minor", "outer", "step", "inner", "hop")


class Rows(NamedTuple):
    """Where the rows of X are.

    Row r begins at ``r / groups * major + r % groups * minor``; its scale and bias at ``r % groups * hop``, and
    they differ from run to run (``weights`` is ``"o"``), along runs (``"i"``), or not at all (``"0"``).
    """

    number: int
    groups: int
    major: int
    minor: int
    outer: int
    step: int
    inner: int
    hop: int
    weights: str

    @property
    def numbers(self) -> tuple[int, ...]:
        """Arguments in the order of ``NUMBERS``."""
        return self[1:8]


class Channels(NamedTuple):
    """Where the elements of one channel are, for sums over batch and positions.

    Attributes
    ----------
    batch, inner, channels : int
        X as [batch, channels, inner], or [batch, inner, channels] if ``last``.
    groups, each : int
        The statistic of channel c of sample n has the number ``n * groups + c / each``.
    """

    batch: int
    inner: int
    channels: int
    groups: int
    each: int
    last: bool


def rows_of(call: Call) -> Rows | None:
    """The rows of a call; None if they are the columns of a matrix (see ``columns_of``)."""
    dims, attrs = call.dims("X"), call.attrs
    if "begin_norm_axis" in attrs:
        begin = attrs["begin_norm_axis"]
        length = prod(dims[begin:])
        return Rows(prod(dims[:begin]), 1, length, 0, 1, length, length, 0, "i")
    batch, channels, inner, last = images_of(call)
    if "groups" in attrs:
        groups = attrs["groups"]
        each = channels // groups
        if last:
            return Rows(batch * groups, groups, inner * channels, each, inner, channels, each, each, "i")
        return Rows(batch * groups, groups, channels * inner, each * inner, each, inner, inner, each, "o")
    if "momentum" not in attrs:  # instance_norm
        return Rows(batch * channels, channels, channels * inner, inner, 1, inner, inner, 1, "0")
    if last or inner == 1:
        return None
    return Rows(channels, channels, 0, inner, batch, channels * inner, inner, 1, "0")


def columns_of(call: Call) -> tuple[int, int]:
    """Rows and columns of the matrix whose columns are normalised."""
    batch, channels, inner, _ = images_of(call)
    return batch * inner, channels


def images_of(call: Call) -> tuple[int, int, int, bool]:
    """X as batch, channels and inner size, and whether channels are last."""
    dims = call.dims("X")
    if call.attrs.get("data_layout") == "NHWC":
        return dims[0], dims[-1], prod(dims[1:-1]), True
    return dims[0], dims[1], prod(dims[2:]), False


def channels_of(call: Call) -> Channels:
    """Where the gradients of scale and bias are summed."""
    if "begin_norm_axis" in call.attrs:
        begin, dims = call.attr("begin_norm_axis"), call.dims("X")
        length = prod(dims[begin:])
        return Channels(prod(dims[:begin]), 1, length, 1, length, True)
    batch, channels, inner, last = images_of(call)
    groups = call.attrs.get("groups", channels)
    return Channels(batch, inner, channels, groups, channels // groups, last)


# Texts of rows -----------------------------------------------------------------------------------------------------

ROW = """
  const index_t q = gid / groups, g = gid - q * groups;
  const index_t base = q * major + g * minor, p = g * hop;
  const $T count = ($T)(outer * inner);
"""

Term = Callable[[str], str]


def row_sums(kind: str, before: Term, **terms: Term) -> str:
    """Text that sums terms over a row: ``terms`` by name, each of position ``i`` of run ``o``, which begins at ``at``.

    ``before(i)`` is a statement that they share.
    """

    def step(i: str, lane: str) -> str:
        added = " ".join(f"{name}_acc[{lane}] += {term(i)};" for name, term in terms.items())
        return f"{{ {before(i)} {added} }}"

    declared = " ".join(f"{kind} {name}_acc[{LANES}];" for name in terms)
    cleared = " ".join(f"{name}_acc[v] = 0;" for name in terms)
    joined = "\n  ".join(tree(lambda a, b: f"{a} += {b};").replace("acc", f"{name}_acc") for name in terms)
    results = " ".join(f"{kind} {name} = {name}_acc[0];" for name in terms)
    return f"""{declared}
  for (int v = 0; v < {LANES}; ++v) {{ {cleared} }}
  for (index_t o = 0; o < outer; ++o) {{
    const index_t at = base + o * step;
    index_t i = 0;
    for (; i + {LANES} <= inner; i += {LANES})
      for (int v = 0; v < {LANES}; ++v) {step("i + v", "v")}
    for (; i < inner; ++i) {step("i", "0")}
  }}
  {joined}
  {results}"""


def row_stores(before: str, store: str) -> str:
    """Text that runs ``store`` at every position ``i`` of every run ``o``, after ``before`` in each run."""
    return f"""for (index_t o = 0; o < outer; ++o) {{
    const index_t at = base + o * step;
    {before}
    for (index_t i = 0; i < inner; ++i) {{ {store} }}
  }}"""


def weight(name: str, weights: str, i: str = "i") -> str:
    """The element of scale or bias for position ``i`` of run ``o``."""
    return f"{name}[p + {i if weights == 'i' else weights}]"


def inverse(context: Context, dtype: str, spread: str, inverted: bool) -> str:
    """1 / sqrt(variance + epsilon), of a stored statistic that may hold just that."""
    return spread if inverted else f"1 / {function(context, 'sqrt', dtype)}({spread} + epsilon)"


def nothing(i: str) -> str:
    """No statement."""
    return ""


# Texts of columns --------------------------------------------------------------------------------------------------

COLUMNS = """
  const index_t j = gid * $lanes;
  const int width = columns - j < $lanes ? (int)(columns - j) : $lanes;
"""


def tile(declared: str, body: str, wide: int = LANES) -> str:
    """Text of ``body`` with ``WIDTH`` as a constant, for a compiler to make vectors, and for a tile that is cut off."""
    whole, cut = body.replace("WIDTH", str(wide)), body.replace("WIDTH", "width")
    return f"{declared}\n  if (width == {wide}) {{ {whole} }}\n  else {{ {cut} }}"


def lanes(statement: str) -> str:
    """Text of one statement for each column ``v`` of a tile."""
    return f"for (int v = 0; v < WIDTH; ++v) {{ {statement} }}"


def down(statement: str, rows: str = "rows") -> str:
    """Text of one statement for each row ``r`` and column ``v``; ``at + v`` is the element."""
    inside = lanes(statement)
    return f"for (index_t r = 0; r < {rows}; ++r) {{ const index_t at = r * columns + j; {inside} }}"


def arrays(kind: str, names: Sequence[str], wide: int = LANES) -> str:
    """Declarations of one number a column."""
    return " ".join(f"{kind} {name}[{wide}];" for name in names)


def loaded(context: Context, dtype: str) -> tuple[str, Callable[[str, str], str]]:
    """The type in which a dtype is computed, and ``element(buffer, index)``, which reads one."""
    return ctype(context, compute_dtype(dtype)), lambda name, index: load(dtype, f"{name}[{index}]")


__all__ = [
    "COLUMNS", "NUMBERS", "ROW", "Channels", "Rows", "arrays", "channels_of", "columns_of", "down", "images_of",
    "inverse", "lanes", "loaded", "nothing", "row_stores", "row_sums", "rows_of", "tile", "weight",
]  # fmt: skip
