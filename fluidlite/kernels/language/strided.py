"""Moving elements between strided views: transposes, slices, joins, broadcasts, conversions and fills."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from string import Template

from fluidlite.kernel_support import ITEMSIZE
from fluidlite.plugin import Context, Span, compute_dtype

from .source import MOVED, Buffer, Kernel, build, ctype, decode, group_size, load, store

CHUNK = 4096
"""Longest run of elements that one item copies."""
SHORT = 16
"""Runs up to this are copied many an item, by a text that knows their length."""
TILE = 16
"""Rows and columns that one item transposes: larger squares fall into the same few lines of a cache."""

Mover = Callable[[Context, Span, Span], None]
"""``move(context, source, target)``."""

_RUN = """
  const index_t row = gid / chunks, from = (gid - row * chunks) * $chunk;
  index_t s = 0, t = 0;
  $decode
  s += from * $step;
  t += from * $step_out;
  const index_t count = run - from < $chunk ? run - from : $chunk;
  for (index_t j = 0; j < count; ++j) { $move }
"""

_SHORT = """
  const index_t row = gid / chunks, from = (gid - row * chunks) * several;
  index_t s = 0, t = 0;
  $decode
  s += from * us;
  t += from * ut;
  const index_t count = lines - from < several ? lines - from : several;
  for (index_t u = 0; u < count; ++u)
    for (int j = 0; j < $run; ++j) { $move }
"""

_TILES = """
  const index_t row = gid / (p_tiles * q_tiles), tile = gid - row * (p_tiles * q_tiles);
  const index_t p0 = tile / q_tiles * $tile, q0 = tile % q_tiles * $tile;
  index_t s = p0 * $ps + q0 * qs, t = p0 * pt + q0 * $qt;
  $decode
  if (p0 + $tile <= p_size && q0 + $tile <= q_size) {
    $turn
  } else {
    const int p1 = p_size - p0 < $tile ? (int)(p_size - p0) : $tile;
    const int q1 = q_size - q0 < $tile ? (int)(q_size - q0) : $tile;
    for (int i = 0; i < p1; ++i)
      for (int j = 0; j < q1; ++j) { $move }
  }
"""


_TURN = """$T values[$tile][$tile];
    for (int j = 0; j < $tile; ++j)
      for (int i = 0; i < $tile; ++i) values[j][i] = $load;
    for (int i = 0; i < $tile; ++i)
      for (int j = 0; j < $tile; ++j) { $store }"""


def _turn_vectors(vector: str) -> str:
    """Text that transposes a whole tile in vector variables, by OpenCL's names."""
    lines = [f"const {vector} v{j} = vload{TILE}(0, source + s + {j} * qs);" for j in range(TILE)]
    for i in range(TILE):
        column = ", ".join(f"v{j}.s{i:x}" for j in range(TILE))
        lines.append(f"vstore{TILE}(({vector})({column}), 0, target + t + {i} * pt);")
    return "\n    ".join(lines)


def mover(
    context: Context,
    source: str,
    target: str,
    dims: Sequence[int],
    source_steps: Sequence[int],
    target_steps: Sequence[int],
) -> Mover:
    """Return ``move(context, source, target)`` of the elements of ``dims`` between two strided views.

    Steps are in elements; 0 in the source broadcasts. Without a conversion, bits are moved as they are.
    """
    if 0 in dims:
        return lambda context, source, target: None
    plain = source == target
    if plain:
        source = target = MOVED[ITEMSIZE[source]]
    axes = collapsed(dims, source_steps, target_steps)
    inner = min(range(len(axes)), key=lambda d: axes[d][2])
    other = min(range(len(axes)), key=lambda d: (axes[d][1] == 0, axes[d][1]))
    tiled = axes[inner][1] > 1 and axes[other][1] < axes[inner][1]
    outer = [axis for d, axis in enumerate(axes) if d != inner and not (tiled and d == other)]
    short = not tiled and axes[inner][0] <= SHORT and len(axes) > 1
    lines = outer.pop() if short else (1, 0, 0)
    text = _Text(context, source, target, plain, len(outer))
    tail = tuple(number for axis in outer for number in axis)
    rows = prod(axis[0] for axis in outer)
    args: tuple[int, ...]
    if tiled:
        (p, ps, pt), (q, qs, qt) = axes[other], axes[inner]
        p_tiles, q_tiles = -(-p // TILE), -(-q // TILE)
        kernel = text.tiles(ps == 1, qt == 1)
        args, items = (p_tiles, q_tiles, p, q, ps, pt, qs, qt, *tail), rows * p_tiles * q_tiles
    elif short:
        run, qs, qt = axes[inner]
        several = CHUNK // run
        chunks = -(-lines[0] // several)
        kernel = text.short_runs(run, qs, qt)
        args, items = (chunks, several, *lines, qs, qt, *tail), rows * chunks
    else:
        run, qs, qt = axes[inner]
        chunks = -(-run // CHUNK)
        kernel = text.runs(qs, qt)
        args, items = (chunks, run, qs, qt, *tail), rows * chunks
    group = group_size(items)

    def move(context: Context, source: Span, target: Span) -> None:
        kernel(context, items, (source, target), args, group)

    return move


class _Text:
    """The kernels of a pair of dtypes and a number of outer axes."""

    def __init__(self, context: Context, source: str, target: str, plain: bool, outer: int) -> None:
        self.context, self.source, self.target, self.plain = context, source, target, plain
        self.wide = compute_dtype(source)
        self.buffers = [Buffer("source", source), Buffer("target", target, True)]
        self.names = [f"{word}{d}" for d in range(outer) for word in ("n", "s", "t")]
        axes = [(f"n{d}", (("s", f"s{d}"), ("t", f"t{d}"))) for d in range(outer)]
        self.decode = decode("row", axes) if outer else ""
        self.suffix = f"{outer}_{source}_{target}" + ("" if plain else "_converted")

    def _move(self, target: str, source: str) -> str:
        return store(self.context, self.target, target, load(self.source, source))

    def runs(self, source_step: int, target_step: int) -> Kernel:
        """One run of the target's innermost axis an item."""
        step, step_out = _steps(source_step, target_step)
        words = {
            "chunk": str(CHUNK),
            "decode": self.decode,
            "step": step,
            "step_out": step_out,
            "move": self._move(f"target[t + j * {step_out}]", f"source[s + j * {step}]"),
        }
        names = ["chunks", "run", "qs", "qt", *self.names]
        return build(self.context, f"move_runs_{self.suffix}", self.buffers, names, _RUN, words)

    def short_runs(self, run: int, source_step: int, target_step: int) -> Kernel:
        """Several runs of the target's innermost axis an item."""
        step, step_out = _steps(source_step, target_step)
        move = self._move(f"target[t + u * ut + j * {step_out}]", f"source[s + u * us + j * {step}]")
        words = {"run": str(run), "decode": self.decode, "move": move}
        names = ["chunks", "several", "lines", "us", "ut", "qs", "qt", *self.names]
        return build(self.context, f"move_short_{run}_{self.suffix}", self.buffers, names, _SHORT, words)

    def tiles(self, source_unit: bool, target_unit: bool) -> Kernel:
        """One square of the source's and the target's innermost axes an item."""
        vector, kind = self.context.language.vector, ctype(self.context, self.wide)
        step, step_out = "1" if source_unit else "ps", "1" if target_unit else "qt"
        at, to = f"source[s + i * {step} + j * qs]", f"target[t + i * pt + j * {step_out}]"
        words = {
            "tile": str(TILE),
            "decode": self.decode,
            "ps": step,
            "qt": step_out,
            "T": kind,
            "load": load(self.source, at),
            "store": store(self.context, self.target, to, "values[j][i]"),
            "move": self._move(to, at),
        }
        if vector and self.plain and source_unit and target_unit:
            words["turn"] = _turn_vectors(vector.format(type=kind, width=TILE))
        else:
            words["turn"] = Template(_TURN).substitute(words)
        names = ["p_tiles", "q_tiles", "p_size", "q_size", "ps", "pt", "qs", "qt", *self.names]
        return build(self.context, f"move_tiles_{self.suffix}", self.buffers, names, _TILES, words)


def _steps(source: int, target: int) -> tuple[str, str]:
    """Text of the steps of a run: those that a compiler makes vectors of are written out."""
    return str(source) if -1 <= source <= 1 else "qs", "1" if target == 1 else "qt"


def collapsed(dims: Sequence[int], source: Sequence[int], target: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (size, source step, target step) of the axes, those of size 1 dropped and neighbours joined."""
    axes: list[tuple[int, int, int]] = []
    for axis in zip(dims, source, target, strict=True):
        if axis[0] == 1:
            continue
        if axes and axes[-1][1] == axis[0] * axis[1] and axes[-1][2] == axis[0] * axis[2]:
            axes[-1] = (axes[-1][0] * axis[0], axis[1], axis[2])
        else:
            axes.append(axis)
    return axes or [(1, 1, 1)]


def steps_of(dims: Sequence[int]) -> tuple[int, ...]:
    """Steps, in elements, of dims in C order."""
    steps, step = [], 1
    for size in reversed(dims):
        steps.append(step)
        step *= size
    return tuple(reversed(steps))


def filler(context: Context, dtype: str, value: float | int) -> Callable[[Context, Span, int], None]:
    """Return ``fill(context, target, size)``, which sets every element to ``value``."""
    kind = "float64" if dtype == "float64" else "float32" if "float" in dtype else "int64"
    kernel = build(
        context,
        f"fill_{dtype}",
        [Buffer("target", dtype, True)],
        [("value", kind)],
        "  " + store(context, dtype, "target[gid]", "value"),
    )
    number = (float(value) if kind != "int64" else int(value),)

    def fill(context: Context, target: Span, size: int) -> None:
        if size:
            kernel(context, size, (target,), number)

    return fill
