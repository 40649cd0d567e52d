"""The gradients of layer_norm and group_norm, from the saved statistics.

The elements that share a statistic are a *row*: ``outer`` runs of ``inner`` contiguous elements, at stride ``step``.
A work-item computes one row. For the gradients of scale and bias with channels last, it sums several adjacent channels.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from string import Template
from typing import Any, NamedTuple

from fluidlite.kernel_support import SUM_BLOCK
from fluidlite.plugin import IO, Call, Context, KernelOptions, compute_dtype, register_kernel

from .source import LANES, Buffer, CompiledKernel, build, ctype, function, group_size, load, pairwise, store

_GRADS = {"dx": "X@GRAD", "dscale": "Scale@GRAD", "dbias": "Bias@GRAD"}
"""Output slots by their names in the kernels."""

# Row r starts at r / groups * major + r % groups * minor, its scale at r % groups * hop.
_ROWS = """
  const index_t q = gid / groups, g = gid - q * groups;
  const index_t base = q * major + g * minor, p = g * hop;
  const $T count = ($T)(outer * inner);
  const $T m = mean[gid], inv = $inverse;
  $sums
  const $T first = one / count, second = inv * inv * other / count;
  for (index_t o = 0; o < outer; ++o) {
    const index_t at = base + o * step;
    for (index_t i = 0; i < inner; ++i) { $store }
  }
"""
_CHANNELS = """
  $T one = 0, other = 0;
  for (index_t n = 0; n < batch; ++n) {
    const index_t row = n * groups + gid / each, base = (n * channels + gid) * inner;
    const $T m = mean[row], inv = $inverse;
    const index_t outer = 1, step = 0;
    $sums
    one += part_one;
    other += part_other * inv;
  }
  $stores
"""
# WIDTH is a constant in a full tile, so that a compiler can vectorize it, and a variable in a partial tile.
_COLUMNS = """
  const index_t columns = channels;
  const index_t j = gid * $lanes;
  const int width = columns - j < $lanes ? (int)(columns - j) : $lanes;
  $T one[$lanes], other[$lanes], block_one[$lanes], block_other[$lanes]; $own
  if (width == $lanes) { $whole }
  else { $cut }
"""
_JOIN = """for (int v = 0; v < WIDTH; ++v) {
      one[v] += block_one[v]; other[v] += block_other[v]; block_one[v] = 0; block_other[v] = 0;
    }"""
_TILE = """
    int count = 0;
    for (int v = 0; v < WIDTH; ++v) { one[v] = 0; other[v] = 0; block_one[v] = 0; block_other[v] = 0; }
    for (index_t n = 0; n < batch; ++n) {
      $statistics
      for (index_t s = 0; s < inner; ++s) {
        const index_t at = (n * inner + s) * columns + j;
        for (int v = 0; v < WIDTH; ++v) {
          const $T w = $dy;
          block_one[v] += w;
          block_other[v] += w * ($x - $m) * $inv;
        }
        if (++count == $block) { $join count = 0; }
      }
    }
    $join
    for (int v = 0; v < WIDTH; ++v) { $stores }
"""


class _Norm(NamedTuple):
    """X as [batch, channels, inner], or [batch, inner, channels] if ``last``; each sample has ``groups`` statistics."""

    batch: int
    inner: int
    channels: int
    groups: int
    last: bool

    @property
    def each(self) -> int:
        """Channels of a group."""
        return self.channels // self.groups

    @property
    def rows(self) -> tuple[int, ...]:
        """The arguments of the row kernel: groups, major, minor, outer, step, inner and hop."""
        sample = self.inner * self.channels
        if self.last:
            return self.groups, sample, self.each, self.inner, self.channels, self.each, self.each
        return self.groups, sample, self.each * self.inner, self.each, self.inner, self.inner, self.each


def _norm_of(call: Call) -> _Norm:
    dims, attrs = call.dims("X"), call.attrs
    if "begin_norm_axis" in attrs:
        begin = attrs["begin_norm_axis"]
        return _Norm(prod(dims[:begin]), 1, prod(dims[begin:]), 1, True)
    if attrs["data_layout"] == "NHWC":
        return _Norm(dims[0], prod(dims[1:-1]), dims[-1], attrs["groups"], True)
    return _Norm(dims[0], prod(dims[2:]), dims[1], attrs["groups"], False)


class _KernelWriter:
    """Generates the kernels of one dtype."""

    def __init__(self, context: Context, dtype: str) -> None:
        self.context, self.dtype, self.wide = context, dtype, compute_dtype(dtype)
        self.kind = ctype(context, self.wide)
        self.buffers = [*(Buffer(name, dtype) for name in ("x", "dy")), *map(self._number, ("mean", "spread"))]

    def _number(self, name: str, written: bool = False) -> Buffer:
        return Buffer(name, self.wide, written)

    def _element(self, name: str, at: str) -> str:
        return load(self.dtype, f"{name}[{at}]")

    def _inverse(self, row: str) -> str:
        """1 / sqrt(variance + epsilon)."""
        return f"1 / {function(self.context, 'sqrt', self.dtype)}(spread[{row}] + epsilon)"

    def _sums(self, factor: Callable[[str], str], one: str, other: str) -> str:
        """Return the text that sums a row's gradients, times a factor, and their products with X minus its mean."""

        def step(i: str, lane: str) -> str:
            w = f"const {self.kind} w = {self._element('dy', f'at + {i}')}{factor(i)};"
            x = self._element("x", f"at + {i}")
            return f"{{ {w} {one}_acc[{lane}] += w; {other}_acc[{lane}] += w * ({x} - m); }}"

        joined = "\n  ".join(
            pairwise(lambda a, b: f"{a} += {b};").replace("acc", f"{name}_acc") for name in (one, other)
        )
        return f"""{self.kind} {one}_acc[{LANES}]; {self.kind} {other}_acc[{LANES}];
  for (int v = 0; v < {LANES}; ++v) {{ {one}_acc[v] = 0; {other}_acc[v] = 0; }}
  for (index_t o = 0; o < outer; ++o) {{
    const index_t at = base + o * step;
    index_t i = 0;
    for (; i + {LANES} <= inner; i += {LANES})
      for (int v = 0; v < {LANES}; ++v) {step("i + v", "v")}
    for (; i < inner; ++i) {step("i", "0")}
  }}
  {joined}
  {self.kind} {one} = {one}_acc[0]; {self.kind} {other} = {other}_acc[0];"""

    def rows(self, scaled: bool, along: bool) -> CompiledKernel:
        """Return the kernel of X's gradient; the scale's index is that in a run if ``along``, else the run's."""

        def factor(i: str) -> str:
            return f" * scale[p + {i if along else 'o'}]" if scaled else ""

        gradient = f"{self._element('dy', 'at + i')}{factor('i')}"
        value = f"({gradient} - first - ({self._element('x', 'at + i')} - m) * second) * inv"
        words = {
            "T": self.kind,
            "inverse": self._inverse("gid"),
            "sums": self._sums(factor, "one", "other"),
            "store": store(self.context, self.dtype, "dx[at + i]", value),
        }
        buffers = [*self.buffers, *([self._number("scale")] if scaled else []), Buffer("dx", self.dtype, True)]
        numbers: list[str | tuple[str, str]] = ["groups", "major", "minor", "outer", "step", "inner", "hop"]
        numbers.append(("epsilon", self.wide))
        name = f"normalise_grad_{self.dtype}_{'i' if along else 'o'}_{int(scaled)}"
        return build(self.context, name, buffers, numbers, _ROWS, words)

    def _channel_sums(self, name: str, outputs: tuple[str, ...], text: str, words: dict[str, str]) -> CompiledKernel:
        """Return a kernel of the gradients of scale and bias."""
        buffers = [*self.buffers, *(self._number(output, True) for output in outputs)]
        numbers: list[str | tuple[str, str]] = ["batch", "inner", "channels", "groups", "each", ("epsilon", self.wide)]
        name = f"{name}_{self.dtype}_{'_'.join(outputs)}"
        return build(self.context, name, buffers, numbers, text, {"T": self.kind, **words})

    def channels(self, outputs: tuple[str, ...]) -> CompiledKernel:
        """Return the kernel for channels in dim 1; a work-item sums one channel."""
        words = {
            "inverse": self._inverse("row"),
            "sums": self._sums(lambda i: "", "part_one", "part_other"),
            "stores": " ".join(f"{name}[gid] = {'other' if name == 'dscale' else 'one'};" for name in outputs),
        }
        return self._channel_sums("channel_sums", outputs, _CHANNELS, words)

    def columns(self, outputs: tuple[str, ...], lanes: int, single: bool) -> CompiledKernel:
        """Return the kernel for channels in the last dim, ``lanes`` a work-item; ``single``: with one group."""
        inverse = self._inverse("row")
        words = {"T": self.kind, "dy": self._element("dy", "at + v"), "x": self._element("x", "at + v")}
        words |= {"block": str(SUM_BLOCK), "join": _JOIN}
        if single:
            words |= {"m": "m", "inv": "inv", "own": ""}
            words["statistics"] = f"const index_t row = n; const {self.kind} m = mean[row], inv = {inverse};"
        else:
            words |= {"m": "m[v]", "inv": "inv[v]", "own": f"{self.kind} m[{lanes}], inv[{lanes}];"}
            row = "const index_t row = n * groups + (j + v) / each;"
            words["statistics"] = f"for (int v = 0; v < WIDTH; ++v) {{ {row} m[v] = mean[row]; inv[v] = {inverse}; }}"
        words["stores"] = " ".join(f"{name}[j + v] = {'other' if name == 'dscale' else 'one'}[v];" for name in outputs)
        tile = Template(_TILE).substitute(words)
        words |= {
            "lanes": str(lanes),
            "whole": tile.replace("WIDTH", str(lanes)),
            "cut": tile.replace("WIDTH", "width"),
        }
        return self._channel_sums(f"column_sums_{int(single)}_{lanes}", outputs, _COLUMNS, words)


def _backward(call: Call, context: Context) -> Any:
    """X@GRAD, Scale@GRAD and Bias@GRAD."""
    norm, epsilon, scaled = _norm_of(call), call.attr("epsilon"), call.has("Scale")
    writer, items = _KernelWriter(context, call.dtype("X")), norm.batch * norm.groups
    kernel = writer.rows(scaled, norm.last) if call.has("X@GRAD") else None
    outputs = tuple(name for name in ("dscale", "dbias") if call.has(_GRADS[name]))
    single = norm.groups == 1
    lanes = (256 if norm.channels >= 1024 else 64) if single else LANES  # wide tiles touch fewer pages
    sums = None
    if outputs:
        sums = writer.columns(outputs, lanes, single) if norm.last else writer.channels(outputs)
    numbers = (norm.batch, norm.inner, norm.channels, norm.groups, norm.each, epsilon)
    sum_items = -(-norm.channels // lanes) if norm.last else norm.channels

    def run(context: Context, io: IO) -> None:
        read = [io.span(slot) for slot in ("X", "Y@GRAD", "Mean", "Variance")]
        if kernel is not None and items:
            spans = (*read, *([io.span("Scale")] if scaled else []), io.span("X@GRAD"))
            kernel(context, items, spans, (*norm.rows, epsilon), group_size(items))
        if sums is not None:
            spans = (*read, *(io.span(_GRADS[name]) for name in outputs))
            sums(context, sum_items, spans, numbers, group_size(sum_items))

    return run


OPTIONS = KernelOptions(written_for="cores")
layer_norm_grad = register_kernel("layer_norm_grad", "language", options=OPTIONS)(_backward)
group_norm_grad = register_kernel("group_norm_grad", "language", options=OPTIONS)(_backward)
