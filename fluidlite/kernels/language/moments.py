"""What the gradients of normalising by mean and variance are made of.

A statistic belongs to a *row*: ``outer`` runs of ``inner`` neighbouring elements, ``step`` apart. An item does one
row. Where channels are last, an item sums several of them, which are neighbours in memory.
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


def rows_of(call: Call) -> Rows:
    """The rows of a call."""
    dims, attrs = call.dims("X"), call.attrs
    if "begin_norm_axis" in attrs:
        begin = attrs["begin_norm_axis"]
        length = prod(dims[begin:])
        return Rows(prod(dims[:begin]), 1, length, 0, 1, length, length, 0, "i")
    batch, channels, inner, last = images_of(call)
    groups = attrs["groups"]
    each = channels // groups
    if last:
        return Rows(batch * groups, groups, inner * channels, each, inner, channels, each, each, "i")
    return Rows(batch * groups, groups, channels * inner, each * inner, each, inner, inner, each, "o")


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
    groups = call.attr("groups")
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


def row_stores(store: str) -> str:
    """Text that runs ``store`` at every position ``i`` of every run ``o``."""
    return f"""for (index_t o = 0; o < outer; ++o) {{
    const index_t at = base + o * step;
    for (index_t i = 0; i < inner; ++i) {{ {store} }}
  }}"""


def weight(name: str, weights: str, i: str = "i") -> str:
    """The element of scale or bias for position ``i`` of run ``o``."""
    return f"{name}[p + {i if weights == 'i' else weights}]"


def inverse(context: Context, dtype: str, spread: str) -> str:
    """1 / sqrt(variance + epsilon)."""
    return f"1 / {function(context, 'sqrt', dtype)}({spread} + epsilon)"


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


def arrays(kind: str, names: Sequence[str], wide: int = LANES) -> str:
    """Declarations of one number a column."""
    return " ".join(f"{kind} {name}[{wide}];" for name in names)


def loaded(context: Context, dtype: str) -> tuple[str, Callable[[str, str], str]]:
    """The type in which a dtype is computed, and ``element(buffer, index)``, which reads one."""
    return ctype(context, compute_dtype(dtype)), lambda name, index: load(dtype, f"{name}[{index}]")
