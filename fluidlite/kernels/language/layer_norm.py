"""The gradients of layer_norm and group_norm: a row an item."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, KernelOptions, compute_dtype, register_kernel

from .moments import (
    COLUMNS,
    NUMBERS,
    ROW,
    Rows,
    arrays,
    channels_of,
    inverse,
    lanes,
    loaded,
    row_stores,
    row_sums,
    rows_of,
    tile,
    weight,
)
from .source import LANES, Buffer, Kernel, build, group_size, store

BLOCK = 128
"""So many numbers of a column are added up before they join its sum."""
_BACKWARD = (
    ROW
    + """
  const $T m = mean[gid], inv = $inverse;
  $sums
  const $T first = one / count, second = inv * inv * other / count;
  $stores
"""
)

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


def _rows_kernel(context: Context, rows: Rows, dtype: str, scaled: bool) -> Kernel:
    """The kernel of the gradient of X."""
    wide = compute_dtype(dtype)
    kind, element = loaded(context, dtype)

    def factor(i: str) -> str:
        return f" * {weight('scale', rows.weights, i)}" if scaled else ""

    sums = row_sums(
        kind,
        lambda i: f"const {kind} w = {element('dy', f'at + {i}')}{factor(i)};",
        one=lambda i: "w",
        other=lambda i: f"w * ({element('x', f'at + {i}')} - m)",
    )
    rest = f" - first - ({element('x', 'at + i')} - m) * second"
    value = f"({element('dy', 'at + i')}{factor('i')}{rest}) * inv"
    stores = row_stores(store(context, dtype, "dx[at + i]", value))
    words = {"T": kind, "inverse": inverse(context, dtype, "spread[gid]"), "sums": sums, "stores": stores}
    buffers = [Buffer("x", dtype), Buffer("dy", dtype), Buffer("mean", wide), Buffer("spread", wide)]
    buffers += [Buffer("scale", wide)] if scaled else []
    buffers += [Buffer("dx", dtype, True)]
    name = f"normalise_grad_{dtype}_{rows.weights}_{int(scaled)}"
    return build(context, name, buffers, [*NUMBERS, ("epsilon", wide)], _BACKWARD, words)


_GRADS = {"dx": "X@GRAD", "dscale": "Scale@GRAD", "dbias": "Bias@GRAD"}
"""Output slots by the names that kernels give them."""


def _backward(call: Call, context: Context) -> Any:
    """X@GRAD, Scale@GRAD and Bias@GRAD, from the saved statistics."""
    rows, dtype, epsilon = rows_of(call), call.dtype("X"), call.attr("epsilon")
    scaled = call.has("Scale")
    kernel = None
    if call.has("X@GRAD"):
        kernel = _rows_kernel(context, rows, dtype, scaled)
    outputs = tuple(name for name in ("dscale", "dbias") if call.has(_GRADS[name]))
    where = channels_of(call)
    single = where.groups == 1
    wide = (256 if where.channels >= 1024 else 64) if single else LANES  # the wider, the fewer pages are begun anew
    if not where.last:
        sums = _channel_sums(context, dtype, outputs) if outputs else None
    else:
        sums = _column_sums(context, dtype, outputs, wide, single) if outputs else None
    numbers = (where.batch, where.inner, where.channels, where.groups, where.each, epsilon)
    items = -(-where.channels // wide) if where.last else where.channels

    def run(context: Context, io: IO) -> None:
        read = [io.span(slot) for slot in ("X", "Y@GRAD", "Mean", "Variance")]
        if kernel is not None and rows.number:
            scale = [io.span("Scale")] if scaled else []
            spans = (*read, *scale, io.span("X@GRAD"))
            kernel(context, rows.number, spans, (*rows.numbers, epsilon), group_size(rows.number))
        if sums is not None:
            spans = (*read, *(io.span(_GRADS[name]) for name in outputs))
            sums(context, items, spans, numbers, group_size(items))

    return run


def _sums_kernel(
    context: Context, name: str, dtype: str, outputs: tuple[str, ...], text: str, words: dict[str, str]
) -> Kernel:
    wide = compute_dtype(dtype)
    buffers = [Buffer("x", dtype), Buffer("dy", dtype), Buffer("mean", wide), Buffer("spread", wide)]
    buffers += [Buffer(output, wide, True) for output in outputs]
    numbers: list[str | tuple[str, str]] = ["batch", "inner", "channels", "groups", "each", ("epsilon", wide)]
    return build(context, f"{name}_{dtype}_{'_'.join(outputs)}", buffers, numbers, text, words)


def _channel_sums(context: Context, dtype: str, outputs: tuple[str, ...]) -> Kernel:
    """The kernel of the gradients of scale and bias where channels are dim 1: a channel an item."""
    kind, element = loaded(context, dtype)
    words = {
        "T": kind,
        "inverse": inverse(context, dtype, "spread[row]"),
        "sums": row_sums(
            kind,
            lambda i: f"const {kind} w = {element('dy', f'at + {i}')};",
            part_one=lambda i: "w",
            part_other=lambda i: f"w * ({element('x', f'at + {i}')} - m)",
        ),
        "stores": " ".join(f"{name}[gid] = {'other' if name == 'dscale' else 'one'};" for name in outputs),
    }
    return _sums_kernel(context, "channel_sums", dtype, outputs, _CHANNELS, words)


def _column_sums(context: Context, dtype: str, outputs: tuple[str, ...], wide: int, single: bool) -> Kernel:
    """The same where channels are last: ``wide`` of them an item, with a ``single`` mean and variance or their own."""
    kind, element = loaded(context, dtype)
    row = f"const index_t row = n{'' if single else ' * groups + (j + v) / each'};"
    inv = inverse(context, dtype, "spread[row]")
    if single:
        statistics, mine = f"{row} const {kind} m = mean[row], inv = {inv};", ("m", "inv")
    else:
        statistics, mine = lanes(f"{row} m[v] = mean[row]; inv[v] = {inv};"), ("m[v]", "inv[v]")
    added = lanes(
        f"const {kind} w = {element('dy', 'at + v')}; part_one[v] += w; "
        f"part_other[v] += w * ({element('x', 'at + v')} - {mine[0]}) * {mine[1]};"
    )
    begin = "part_one[v] = 0; part_other[v] = 0;"
    join = f"{{ {lanes(f'one[v] += part_one[v]; other[v] += part_other[v]; {begin}')} count = 0; }}"
    stores = " ".join(f"{name}[j + v] = {'other' if name == 'dscale' else 'one'}[v];" for name in outputs)
    body = f"""
    int count = 0;
    {lanes(f"one[v] = 0; other[v] = 0; {begin}")}
    for (index_t n = 0; n < batch; ++n) {{
      {statistics}
      for (index_t s = 0; s < inner; ++s) {{
        const index_t at = (n * inner + s) * columns + j;
        {added}
        if (++count == {BLOCK}) {join}
      }}
    }}
    {join}
    {lanes(stores)}
  """
    text = "  const index_t columns = channels;" + COLUMNS + "  $tile\n"
    declared = arrays(kind, ("one", "other", "part_one", "part_other", *(() if single else ("m", "inv"))), wide)
    words = {"lanes": str(wide), "tile": tile(declared, body, wide)}
    return _sums_kernel(context, f"column_sums_{int(single)}_{wide}", dtype, outputs, text, words)


CORES = KernelOptions(written_for="cores")
layer_norm_grad = register_kernel("layer_norm_grad", "language", options=CORES)(_backward)
group_norm_grad = register_kernel("group_norm_grad", "language", options=CORES)(_backward)
