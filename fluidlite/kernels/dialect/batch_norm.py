"""batch_norm, with its gradient: a channel an item, or sixteen where channels are last."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, ITEMSIZE, Call, Context, compute_dtype, register_kernel

from .layer_norm import GRADS, backward_kernel, forward_kernel
from .moments import COLUMNS, arrays, columns_of, down, images_of, inverse, lanes, loaded, rows_of, tile
from .reduce import scratch
from .source import LANES, Buffer, Kernel, build, ctype, dealt, part, store
from .strided import filler, mover

_FACTORS = """
  const $T factor = scale[gid] * ($inverse);
  factor_out[gid] = factor;
  shift_out[gid] = bias[gid] - mean[gid] * factor;
"""

_RUNS = """
  const index_t c = gid % channels, at = gid * inner;
  const $T a = factor[c], b = shift[c];
  for (index_t i = 0; i < inner; ++i) { $store }
"""

_ROWS = """
  const index_t at = gid * channels;
  for (index_t i = 0; i < channels; ++i) { $store }
"""


def _by_averages(call: Call) -> bool:
    """Whether Mean and Variance normalise, and are left as they are."""
    return bool(call.attr("use_global_stats") or (call.attr("is_test") and not call.attr("trainable_statistics")))


def _count(call: Call) -> int:
    """Elements of a channel."""
    batch, _, inner, _ = images_of(call)
    return batch * inner


def _copied(call: Call, context: Context, source: str, target: str, zeros: tuple[str, ...]) -> Any:
    """One element a channel: there is nothing to normalise by, and the averages stay."""
    dtype, channels = call.dtype(source), images_of(call)[1]
    copy = mover(context, dtype, dtype, (prod(call.dims(source)),), (1,), (1,))
    wide = compute_dtype(dtype)
    fill = filler(context, wide, 0.0)
    keep = _kept(call, context)

    def run(context: Context, io: IO) -> None:
        if io.has(target):
            copy(context, io.span(source), io.span(target))
        for slot in zeros:
            if io.has(slot):
                fill(context, io.span(slot), channels)
        keep(context, io)

    return run


def _kept(call: Call, context: Context) -> Any:
    """Return ``keep(context, io)``: MeanOut = Mean and VarianceOut = Variance, which do nothing where they are one."""
    slots = [slot for slot in ("Mean", "Variance") if call.has(slot + "Out")]
    wide, channels = compute_dtype(call.dtype("X")), images_of(call)[1]
    copy = mover(context, wide, wide, (channels,), (1,), (1,)) if slots else None

    def keep(context: Context, io: IO) -> None:
        for slot in slots:
            old, new = io.span(slot), io.span(slot + "Out")
            if copy is not None and (old.handle is not new.handle or old.offset != new.offset):
                copy(context, old, new)

    return keep


def _column_forward(context: Context, dtype: str) -> Kernel:
    """The kernel that writes Y, and mean and variance of the columns of a matrix."""
    wide = compute_dtype(dtype)
    kind, element = loaded(context, dtype)
    value = "(d - rest[v]) * factor[v] + shift[v]"
    body = f"""
    {lanes("mean[v] = 0;")}
    {down(f"mean[v] += {element('x', 'at + v')};")}
    {lanes(f"mean[v] /= ({kind})rows; rest[v] = 0; spread[v] = 0;")}
    {down(f"const {kind} d = {element('x', 'at + v')} - mean[v]; rest[v] += d; spread[v] += d * d;")}
    {
        lanes(
            f"rest[v] /= ({kind})rows; spread[v] = spread[v] / ({kind})rows - rest[v] * rest[v]; "
            "spread[v] = spread[v] > 0 ? spread[v] : 0 * spread[v]; "
            "mean_out[j + v] = mean[v] + rest[v]; spread_out[j + v] = spread[v]; "
            f"factor[v] = scale[j + v] * ({inverse(context, dtype, 'spread[v]', False)}); shift[v] = bias[j + v];"
        )
    }
    {down(f"const {kind} d = {element('x', 'at + v')} - mean[v]; {store(context, dtype, 'y[at + v]', value)}")}
  """
    buffers = [Buffer("x", dtype), Buffer("y", dtype, True), Buffer("mean_out", wide, True)]
    buffers += [Buffer("spread_out", wide, True), Buffer("scale", wide), Buffer("bias", wide)]
    names = ("mean", "rest", "spread", "factor", "shift")
    words = {"lanes": str(LANES), "tile": tile(arrays(kind, names), body)}
    numbers: list[str | tuple[str, str]] = ["rows", "columns", ("epsilon", wide)]
    return build(context, f"normalise_columns_{dtype}", buffers, numbers, COLUMNS + "  $tile\n", words)


def _column_backward(context: Context, dtype: str, outputs: tuple[str, ...], fixed: bool) -> Kernel:
    """The kernel that writes those of ``dx``, ``dscale`` and ``dbias`` of the columns of a matrix."""
    wide = compute_dtype(dtype)
    kind, element = loaded(context, dtype)
    centred = f"({element('x', 'at + v')} - m[v])"
    stores = f"first[v] = one[v] / ({kind})rows; second[v] = other[v] * inv[v] * inv[v] / ({kind})rows; "
    stores += "dscale[j + v] = other[v] * inv[v]; " if "dscale" in outputs else ""
    stores += "dbias[j + v] = one[v]; " if "dbias" in outputs else ""
    rest = "" if fixed else f" - first[v] - {centred} * second[v]"
    value = f"({element('dy', 'at + v')}{rest}) * (inv[v] * scale[j + v])"
    written = down(store(context, dtype, "dx[at + v]", value)) if "dx" in outputs else ""
    summed = down(f"const {kind} w = {element('dy', 'at + v')}; one[v] += w; other[v] += w * {centred};")
    body = f"""
    {lanes("m[v] = mean[j + v]; inv[v] = spread[j + v]; one[v] = 0; other[v] = 0;")}
    {summed if not fixed or len(outputs) > 1 or "dx" not in outputs else ""}
    {lanes(stores)}
    {written}
  """
    buffers = [Buffer("x", dtype), Buffer("dy", dtype), Buffer("mean", wide), Buffer("spread", wide)]
    buffers += [Buffer("scale", wide), *(Buffer(name, dtype if name == "dx" else wide, True) for name in outputs)]
    words = {"lanes": str(LANES), "tile": tile(arrays(kind, ("m", "inv", "one", "other", "first", "second")), body)}
    name = f"normalise_columns_grad_{dtype}_{int(fixed)}_{'_'.join(outputs)}"
    return build(context, name, buffers, ["rows", "columns"], COLUMNS + "  $tile\n", words)


def _statistics(call: Call, context: Context, averages: bool) -> Any:
    """Return ``launch(context, io, mean, variance)``, which writes the moved averages and what is saved.

    An item does a channel: it reads an average before it writes it, to the same memory.
    """
    wide = compute_dtype(call.dtype("X"))
    given, lines = call.has("MomentumTensor"), []
    kept = f"({ctype(context, wide)})momentum_tensor[0]" if given else "momentum"
    moved = [slot for slot in ("Mean", "Variance") if not averages and call.has(slot + "Out")]
    saved = [slot for slot in ("SavedMean", "SavedVariance") if call.has(slot)]
    buffers = [Buffer("mean", wide), Buffer("variance", wide)]
    buffers += [Buffer("momentum_tensor", call.dtype("MomentumTensor"))] if given else []
    for slot in moved:
        name = slot.lower()
        buffers += [Buffer(f"old_{name}", wide), Buffer(f"new_{name}", wide, True)]
        lines.append(f"new_{name}[gid] = old_{name}[gid] * {kept} + {name}[gid] * (1 - {kept});")
    if "SavedMean" in saved:
        lines.append("saved_mean[gid] = mean[gid];")
    if "SavedVariance" in saved:
        lines.append(f"saved_variance[gid] = {inverse(context, wide, 'variance[gid]', False)};")
    names = {"SavedMean": "saved_mean", "SavedVariance": "saved_variance"}
    buffers += [Buffer(names[slot], wide, True) for slot in saved]
    if not moved and not saved:
        return lambda context, io, mean, variance: None
    name = f"batch_norm_statistics_{wide}_{''.join((*moved, *saved))}"
    name += f"_{call.dtype('MomentumTensor')}" if given else ""
    numbers = [("momentum", wide), ("epsilon", wide)]
    kernel = build(context, name, buffers, numbers, "  " + "\n  ".join(lines), aliased=True)
    channels, args = images_of(call)[1], (call.attr("momentum"), call.attr("epsilon"))

    def launch(context: Context, io: IO, mean: Any, variance: Any) -> None:
        spans = [mean, variance, *([io.span("MomentumTensor")] if given else [])]
        for slot in moved:
            spans += [io.span(slot), io.span(slot + "Out")]
        kernel(context, channels, (*spans, *(io.span(slot) for slot in saved)), args)

    return launch


def _affine(call: Call, context: Context) -> Any:
    """Y by the averages: a factor and a shift for each channel, then a run of a channel, or a row of them, an item."""
    dtype = call.dtype("X")
    wide = compute_dtype(dtype)
    kind, element = loaded(context, dtype)
    batch, channels, inner, last = images_of(call)
    last = last or inner == 1
    words = {"T": kind, "inverse": inverse(context, dtype, "variance[gid]", False)}
    buffers = [*(Buffer(name, wide) for name in ("scale", "bias", "mean", "variance"))]
    buffers += [Buffer("factor_out", wide, True), Buffer("shift_out", wide, True)]
    factors = build(context, f"batch_norm_factors_{wide}", buffers, [("epsilon", wide)], _FACTORS, words)
    a, b = ("factor[i]", "shift[i]") if last else ("a", "b")
    words = {"T": kind, "store": store(context, dtype, "y[at + i]", f"{element('x', 'at + i')} * {a} + {b}")}
    buffers = [Buffer("x", dtype), Buffer("y", dtype, True), Buffer("factor", wide), Buffer("shift", wide)]
    name = f"batch_norm_{'rows' if last else 'runs'}_{dtype}"
    kernel = build(context, name, buffers, ["inner", "channels"], _ROWS if last else _RUNS, words)
    statistics, keep = _statistics(call, context, True), _kept(call, context)
    items = batch * inner if last else batch * channels
    epsilon, size = call.attr("epsilon"), channels * ITEMSIZE[wide]

    def run(context: Context, io: IO) -> None:
        factor = scratch(io)
        assert factor is not None
        shift = part(factor, size)
        averages = [io.span(slot) for slot in ("Mean", "Variance")]
        factors(context, channels, (io.span("Scale"), io.span("Bias"), *averages, factor, shift), (epsilon,))
        if items:
            kernel(context, items, (io.span("X"), io.span("Y"), factor, shift), (inner, channels), dealt(items))
        statistics(context, io, *averages)
        keep(context, io)

    run.workspace = 2 * size  # type: ignore[attr-defined]
    return run


@register_kernel("batch_norm", "dialect")
def batch_norm(call: Call, context: Context) -> Any:
    """Y, moved averages and the statistics that were used."""
    if _by_averages(call):
        return _affine(call, context)
    if _count(call) == 1:
        return _copied(call, context, "X", "Y", ("SavedMean", "SavedVariance"))
    dtype, epsilon, rows = call.dtype("X"), call.attr("epsilon"), rows_of(call)
    statistics = _statistics(call, context, False)
    if rows is not None:
        kernel = forward_kernel(context, rows, dtype, True, True, False)
        items, numbers = rows.number, (*rows.numbers, epsilon)
    else:
        kernel = _column_forward(context, dtype)
        shape = columns_of(call)
        items, numbers = -(-shape[1] // LANES), (*shape, epsilon)
    size = images_of(call)[1] * ITEMSIZE[compute_dtype(dtype)]

    def run(context: Context, io: IO) -> None:
        mean = scratch(io)
        assert mean is not None
        variance = part(mean, size)
        spans = (io.span("X"), io.span("Y"), mean, variance, io.span("Scale"), io.span("Bias"))
        kernel(context, items, spans, numbers, dealt(items))
        statistics(context, io, mean, variance)

    run.workspace = 2 * size  # type: ignore[attr-defined]
    return run


@register_kernel("batch_norm_grad", "dialect")
def batch_norm_grad(call: Call, context: Context) -> Any:
    """The gradients of X, Scale and Bias."""
    averages = _by_averages(call)
    if not averages and _count(call) == 1:
        return _copied(call, context, "Y@GRAD", "X@GRAD", ("Scale@GRAD", "Bias@GRAD"))
    dtype, rows = call.dtype("X"), rows_of(call)
    outputs = tuple(name for name, slot in GRADS.items() if call.has(slot))
    if rows is not None:
        kernel = backward_kernel(context, rows, dtype, True, True, outputs, averages)
        items, numbers = rows.number, (*rows.numbers, call.attr("epsilon"))
    else:
        kernel = _column_backward(context, dtype, outputs, averages)
        shape = columns_of(call)
        items, numbers = -(-shape[1] // LANES), shape

    def run(context: Context, io: IO) -> None:
        read = [io.span(slot) for slot in ("X", "Y@GRAD", "SavedMean", "SavedVariance", "Scale")]
        spans = (*read, *(io.span(GRADS[name]) for name in outputs))
        kernel(context, items, spans, numbers, dealt(items))

    return run
