"""layer_norm, group_norm and instance_norm, with gradients: a row an item."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, ITEMSIZE, Call, Context, Span, compute_dtype, register_kernel

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
    nothing,
    row_stores,
    row_sums,
    rows_of,
    tile,
    weight,
)
from .reduce import scratch
from .source import LANES, Buffer, Kernel, build, dealt, part, store

_FORWARD = (
    ROW
    + """
  $first
  const $T mean = first / count;
  $second
  const $T rest = second / count;
  const $T spread = square / count - rest * rest, variance = spread > 0 ? spread : 0 * spread;
  const $T inv = $inverse;
  mean_out[gid] = mean + rest;
  spread_out[gid] = $kept;
  $stores
"""
)

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


def forward_kernel(context: Context, rows: Rows, dtype: str, scaled: bool, shifted: bool, inverted: bool) -> Kernel:
    """The kernel that writes Y, and mean and variance (or 1 / sqrt of it and epsilon) of each row."""
    wide = compute_dtype(dtype)
    kind, element = loaded(context, dtype)
    value, before = "(d - rest) * inv", ""
    if scaled:
        value = f"(d - rest) * (inv * {weight('scale', rows.weights)})"
    if shifted:
        value += f" + {weight('bias', rows.weights)}"
    centred = f"const {kind} d = {element('x', 'at + i')} - mean;"
    words = {
        "T": kind, "first": row_sums(kind, nothing, first=lambda i: element("x", f"at + {i}")),
        "second": row_sums(
            kind, lambda i: f"const {kind} d = {element('x', f'at + {i}')} - mean;",
            second=lambda i: "d", square=lambda i: "d * d",
        ),
        "inverse": inverse(context, dtype, "variance", False), "kept": "inv" if inverted else "variance",
        "stores": row_stores(before, f"{centred} {store(context, dtype, 'y[at + i]', value)}"),
    }  # fmt: skip
    buffers = [Buffer("x", dtype), Buffer("y", dtype, True), Buffer("mean_out", wide, True)]
    buffers += [Buffer("spread_out", wide, True)]
    buffers += [Buffer(name, wide) for name, wanted in (("scale", scaled), ("bias", shifted)) if wanted]
    name = f"normalise_{dtype}_{rows.weights}_{int(scaled)}{int(shifted)}{int(inverted)}"
    return build(context, name, buffers, [*NUMBERS, ("epsilon", wide)], _FORWARD, words)


def _forward(call: Call, context: Context, mean_slot: str, spread_slot: str, inverted: bool) -> Any:
    rows, dtype, epsilon = rows_of(call), call.dtype("X"), call.attr("epsilon")
    assert rows is not None
    given = [slot for slot in ("Scale", "Bias") if call.has(slot)]
    kernel = forward_kernel(context, rows, dtype, "Scale" in given, "Bias" in given, inverted)
    size = rows.number * ITEMSIZE[compute_dtype(dtype)]
    kept = {mean_slot: call.has(mean_slot), spread_slot: call.has(spread_slot)}

    def run(context: Context, io: IO) -> None:
        spans: list[Span] = [io.span("X"), io.span("Y")]
        free = scratch(io)
        for slot, wanted in kept.items():
            if wanted:
                spans.append(io.span(slot))
            else:
                assert free is not None
                spans.append(free)
                free = part(free, size)
        spans += [io.span(slot) for slot in given]
        kernel(context, rows.number, spans, (*rows.numbers, epsilon), dealt(rows.number))

    run.workspace = size * list(kept.values()).count(False)  # type: ignore[attr-defined]
    return run


def backward_kernel(
    context: Context, rows: Rows, dtype: str, scaled: bool, inverted: bool, outputs: tuple[str, ...], fixed: bool
) -> Kernel:
    """The kernel that writes those of ``dx``, ``dscale`` and ``dbias`` (the last two: of rows with one scale)."""
    wide = compute_dtype(dtype)
    kind, element = loaded(context, dtype)
    single = rows.weights == "0"

    def factor(i: str) -> str:
        return f" * {weight('scale', rows.weights, i)}" if scaled and not single else ""

    sums = row_sums(
        kind, lambda i: f"const {kind} w = {element('dy', f'at + {i}')}{factor(i)};",
        one=lambda i: "w", other=lambda i: f"w * ({element('x', f'at + {i}')} - m)",
    )  # fmt: skip
    if fixed and outputs == ("dx",):
        sums = f"const {kind} one = 0, other = 0;"
    stores = ""
    if "dx" in outputs:
        slope = f"inv * {weight('scale', rows.weights)}" if scaled and single else "inv"
        rest = "" if fixed else f" - first - ({element('x', 'at + i')} - m) * second"
        value = f"({element('dy', 'at + i')}{factor('i')}{rest}) * slope"
        stores = f"const {kind} slope = {slope};\n  " + row_stores("", store(context, dtype, "dx[at + i]", value))
    stores += " dscale[gid] = other * inv;" if "dscale" in outputs else ""
    stores += " dbias[gid] = one;" if "dbias" in outputs else ""
    words = {"T": kind, "inverse": inverse(context, dtype, "spread[gid]", inverted), "sums": sums, "stores": stores}
    buffers = [Buffer("x", dtype), Buffer("dy", dtype), Buffer("mean", wide), Buffer("spread", wide)]
    buffers += [Buffer("scale", wide)] if scaled else []
    buffers += [Buffer(name, dtype if name == "dx" else wide, True) for name in outputs]
    name = f"normalise_grad_{dtype}_{rows.weights}_{int(scaled)}{int(inverted)}{int(fixed)}_{'_'.join(outputs)}"
    return build(context, name, buffers, [*NUMBERS, ("epsilon", wide)], _BACKWARD, words)


GRADS = {"dx": "X@GRAD", "dscale": "Scale@GRAD", "dbias": "Bias@GRAD"}
"""Output slots by the names that kernels give them."""


def _backward(call: Call, context: Context, mean_slot: str, spread_slot: str, inverted: bool) -> Any:
    rows, dtype, epsilon = rows_of(call), call.dtype("X"), call.attr("epsilon")
    assert rows is not None
    scaled = call.has("Scale")
    kernel = None
    if call.has("X@GRAD"):
        kernel = backward_kernel(context, rows, dtype, scaled, inverted, ("dx",), False)
    outputs = tuple(name for name in ("dscale", "dbias") if call.has(GRADS[name]))
    where = channels_of(call)
    single = where.groups == 1
    wide = (256 if where.channels >= 1024 else 64) if single else LANES  # the wider, the fewer pages are begun anew
    if not where.last:
        sums = _channel_sums(context, dtype, inverted, outputs) if outputs else None
    else:
        sums = _column_sums(context, dtype, inverted, outputs, wide, single) if outputs else None
    numbers = (where.batch, where.inner, where.channels, where.groups, where.each, epsilon)
    items = -(-where.channels // wide) if where.last else where.channels

    def run(context: Context, io: IO) -> None:
        read = [io.span(slot) for slot in ("X", "Y@GRAD", mean_slot, spread_slot)]
        if kernel is not None and rows.number:
            scale = [io.span("Scale")] if scaled else []
            spans = (*read, *scale, io.span("X@GRAD"))
            kernel(context, rows.number, spans, (*rows.numbers, epsilon), dealt(rows.number))
        if sums is not None:
            spans = (*read, *(io.span(GRADS[name]) for name in outputs))
            sums(context, items, spans, numbers, dealt(items))

    return run


def _sums_kernel(
    context: Context, name: str, dtype: str, outputs: tuple[str, ...], text: str, words: dict[str, str]
) -> Kernel:
    wide = compute_dtype(dtype)
    buffers = [Buffer("x", dtype), Buffer("dy", dtype), Buffer("mean", wide), Buffer("spread", wide)]
    buffers += [Buffer(output, wide, True) for output in outputs]
    numbers: list[str | tuple[str, str]] = ["batch", "inner", "channels", "groups", "each", ("epsilon", wide)]
    return build(context, f"{name}_{dtype}_{'_'.join(outputs)}", buffers, numbers, text, words)


def _channel_sums(context: Context, dtype: str, inverted: bool, outputs: tuple[str, ...]) -> Kernel:
    """The kernel of the gradients of scale and bias where channels are dim 1: a channel an item."""
    kind, element = loaded(context, dtype)
    words = {
        "T": kind, "inverse": inverse(context, dtype, "spread[row]", inverted),
        "sums": row_sums(
            kind, lambda i: f"const {kind} w = {element('dy', f'at + {i}')};",
            part_one=lambda i: "w", part_other=lambda i: f"w * ({element('x', f'at + {i}')} - m)",
        ),
        "stores": " ".join(f"{name}[gid] = {'other' if name == 'dscale' else 'one'};" for name in outputs),
    }  # fmt: skip
    return _sums_kernel(context, f"channel_sums_{int(inverted)}", dtype, outputs, _CHANNELS, words)


def _column_sums(
    context: Context, dtype: str, inverted: bool, outputs: tuple[str, ...], wide: int, single: bool
) -> Kernel:
    """The same where channels are last: ``wide`` of them an item, with a ``single`` mean and variance or their own."""
    kind, element = loaded(context, dtype)
    row = f"const index_t row = n{'' if single else ' * groups + (j + v) / each'};"
    inv = inverse(context, dtype, "spread[row]", inverted)
    if single:
        statistics, mine = f"{row} const {kind} m = mean[row], inv = {inv};", ("m", "inv")
    else:
        statistics, mine = lanes(f"{row} m[v] = mean[row]; inv[v] = {inv};"), ("m[v]", "inv[v]")
    added = lanes(
        f"const {kind} w = {element('dy', 'at + v')}; one[v] += w; "
        f"other[v] += w * ({element('x', 'at + v')} - {mine[0]}) * {mine[1]};"
    )
    stores = " ".join(f"{name}[j + v] = {'other' if name == 'dscale' else 'one'}[v];" for name in outputs)
    body = f"""
    {lanes("one[v] = 0; other[v] = 0;")}
    for (index_t n = 0; n < batch; ++n) {{
      {statistics}
      for (index_t s = 0; s < inner; ++s) {{ const index_t at = (n * inner + s) * columns + j; {added} }}
    }}
    {lanes(stores)}
  """
    text = "  const index_t columns = channels;" + COLUMNS + "  $tile\n"
    declared = arrays(kind, ("one", "other", *(() if single else ("m", "inv"))), wide)
    words = {"lanes": str(wide), "tile": tile(declared, body, wide)}
    return _sums_kernel(context, f"column_sums_{int(inverted)}{int(single)}_{wide}", dtype, outputs, text, words)


@register_kernel("layer_norm", "dialect")
def layer_norm(call: Call, context: Context) -> Any:
    """Rows are normalised."""
    return _forward(call, context, "Mean", "Variance", False)


@register_kernel("layer_norm_grad", "dialect")
def layer_norm_grad(call: Call, context: Context) -> Any:
    """Its gradients."""
    return _backward(call, context, "Mean", "Variance", False)


@register_kernel("group_norm", "dialect")
def group_norm(call: Call, context: Context) -> Any:
    """Groups of channels of a sample are normalised."""
    return _forward(call, context, "Mean", "Variance", False)


@register_kernel("group_norm_grad", "dialect")
def group_norm_grad(call: Call, context: Context) -> Any:
    """Its gradients."""
    return _backward(call, context, "Mean", "Variance", False)


@register_kernel("instance_norm", "dialect")
def instance_norm(call: Call, context: Context) -> Any:
    """Channels of a sample are normalised."""
    return _forward(call, context, "SavedMean", "SavedVariance", True)


@register_kernel("instance_norm_grad", "dialect")
def instance_norm_grad(call: Call, context: Context) -> Any:
    """Its gradients."""
    return _backward(call, context, "SavedMean", "SavedVariance", True)
