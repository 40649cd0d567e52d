"""norm (to length 1 along an axis) and lrn (by neighbouring channels), with gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, Span, compute_dtype, register_kernel

from .lines import ACROSS, axis_of, down, each, exponentials, line_sums, replaced
from .lines import across as lines_across
from .source import LANES, Buffer, build, ctype, dealt, function, load, store


@register_kernel("norm", "dialect")
def norm(call: Call, context: Context) -> Any:
    """Out = X / Norm."""
    axis, dtype, epsilon = axis_of(call, "X"), call.dtype("X"), call.attr("epsilon")
    root, wanted = function(context, "sqrt", dtype), call.has("Norm")

    def square(position: str) -> str:
        x = load(dtype, f"x[{position}]")
        return f"{x} * {x}"

    def middle(line: str, total: str) -> str:
        kept = store(context, dtype, f"length[{line}]", total) if wanted else ""
        return f"{total} = {root}({total} + epsilon); {kept}"

    def divided(position: str, line: str, total: str, temp: str) -> str:
        return store(context, dtype, f"out[{position}]", f"{load(dtype, f'x[{position}]')} / {total}")

    buffers = [Buffer("x", dtype), Buffer("out", dtype, True)]
    buffers += [Buffer("length", dtype, True)] if wanted else []
    numbers = [("epsilon", compute_dtype(dtype))]
    name = "norm" if wanted else "norm_only"
    launch = line_sums(context, name, axis, dtype, buffers, numbers, square, divided, middle)

    def run(context: Context, io: IO) -> None:
        spans = [io.span("X"), io.span("Out")]
        launch(context, [*spans, io.span("Norm")] if wanted else spans, (epsilon,))

    return run


@register_kernel("norm_grad", "dialect")
def norm_grad(call: Call, context: Context) -> Any:
    """X@GRAD = what of Out@GRAD is across X, divided by Norm."""
    axis, dtype = axis_of(call, "X"), call.dtype("X")

    def product(position: str) -> str:
        return f"{load(dtype, f'x[{position}]')} * {load(dtype, f'dout[{position}]')}"

    def middle(line: str, total: str) -> str:
        length = load(dtype, f"length[{line}]")
        return f"{total} = {total} / ({length} * {length});"

    def across(position: str, line: str, total: str, temp: str) -> str:
        rest = f"{load(dtype, f'dout[{position}]')} - {load(dtype, f'x[{position}]')} * {total}"
        return store(context, dtype, f"dx[{position}]", f"({rest}) / {load(dtype, f'length[{line}]')}")

    names = ("x", "length", "dout")
    buffers = [*(Buffer(name, dtype) for name in names), Buffer("dx", dtype, True)]
    launch = line_sums(context, "norm_grad", axis, dtype, buffers, (), product, across, middle)

    def run(context: Context, io: IO) -> None:
        launch(context, [io.span(slot) for slot in ("X", "Norm", "Out@GRAD", "X@GRAD")], ())

    return run


# lrn: channels are the lines' axis ----------------------------------------------------------------------------------


def _neighbours(context: Context, name: str, call: Call, buffers: list[Buffer], attrs: tuple[str, ...],
                term: Callable[[str], str], near: Callable[[str], str], base: Callable[[str], str],
                store: Callable[[str], str]) -> Any:  # fmt: skip
    """Return ``launch(context, spans)`` of sums over neighbouring channels and a statement for each element.

    ``near(total)`` and ``base(position)`` are what a position keeps of the sum of ``term(other)`` (in ``kept[v]``)
    and the number whose power by -beta it is given (in ``temp[v]``) when ``store(position)`` runs.
    """
    dtype = call.dtype("X")
    kind = ctype(context, compute_dtype(dtype))
    batch, channels, inner = call.dims("X")[0], call.dims("X")[1], prod(call.dims("X")[2:])
    if call.attr("data_format") == "NHWC":
        batch, channels, inner = prod(call.dims("X")[:3]), call.dims("X")[3], 1
    power = replaced(context, dtype, "log") + " " + each("temp[v] *= -beta;") + " " + exponentials(context, dtype)
    window = "for (index_t d = c - half_n < 0 ? -c : -half_n; d <= half_n && c + d < n; ++d)"
    if inner == 1:  # a pixel an item, sixteen channels at a time
        summed = f"const index_t c = i + v; {kind} sum = 0; {window} sum += {term('at + c + d')};"
        read = each(f"{summed} kept[v] = {near('sum')}; temp[v] = {base('at + c')};")
        loop = f"{read} {power} {each(store('at + i + v'))}".replace("WIDTH", "width")
        text = f"""
  const index_t at = gid * n;
  {kind} temp[{LANES}], kept[{LANES}];
  for (int v = 0; v < {LANES}; ++v) temp[v] = 1;
  for (index_t i = 0; i < n; i += {LANES}) {{
    const int width = n - i < {LANES} ? (int)(n - i) : {LANES};
    {loop}
  }}
"""
        names, items, words = ["n"], batch, {}
        sizes: tuple[int, ...] = (channels,)
    else:
        added = each(f"kept[v] += {term('base + (c + d) * post + v')};")
        summed = each("kept[v] = 0;") + f"{window} {{ {added} }}"
        steps = "const index_t c = r; " + summed + each(f"kept[v] = {near('kept[v]')}; temp[v] = {base('at + v')};")
        steps += power + each(store("at + v"))
        words, text = lines_across(context, dtype, down(steps), f", kept[{LANES}]"), ACROSS
        names, sizes = ["n", "post"], (channels, inner)
        items = batch * -(-inner // LANES)
    wide = compute_dtype(dtype)
    numbers: list[str | tuple[str, str]] = [*names, "half_n", *((attr, wide) for attr in attrs)]
    how = "along" if inner == 1 else "across"
    kernel = build(context, f"{name}_{how}_{dtype}", buffers, numbers, text, words)
    args = (*sizes, call.attr("n") // 2, *(call.attr(attr) for attr in attrs))

    def launch(context: Context, spans: Sequence[Span]) -> None:
        kernel(context, items, spans, args, dealt(items))

    return launch


@register_kernel("lrn", "dialect")
def lrn(call: Call, context: Context) -> Any:
    """Out = X MidOut^-beta."""
    dtype, wanted = call.dtype("X"), call.has("MidOut")

    def square(position: str) -> str:
        x = load(dtype, f"x[{position}]")
        return f"{x} * {x}"

    def written(position: str) -> str:
        out = store(context, dtype, f"out[{position}]", f"{load(dtype, f'x[{position}]')} * temp[v]")
        return out + (" " + store(context, dtype, f"mid[{position}]", "kept[v]") if wanted else "")

    buffers = [Buffer("x", dtype), Buffer("out", dtype, True), *([Buffer("mid", dtype, True)] if wanted else [])]
    launch = _neighbours(
        context, f"lrn_{int(wanted)}", call, buffers, ("k", "alpha", "beta"),
        square, lambda total: f"k + alpha * {total}", lambda position: "kept[v]", written,
    )  # fmt: skip
    slots = ("X", "Out", "MidOut")[: 3 if wanted else 2]

    def run(context: Context, io: IO) -> None:
        launch(context, [io.span(slot) for slot in slots])

    return run


@register_kernel("lrn_grad", "dialect")
def lrn_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD MidOut^-beta - 2 alpha beta X (the neighbours' sum of Out Out@GRAD / MidOut)."""
    dtype = call.dtype("X")

    def at(name: str, position: str) -> str:
        return load(dtype, f"{name}[{position}]")

    def term(position: str) -> str:
        return f"{at('out', position)} * {at('dout', position)} / {at('mid', position)}"

    def written(position: str) -> str:
        value = f"{at('dout', position)} * temp[v] - {at('x', position)} * kept[v]"
        return store(context, dtype, f"dx[{position}]", value)

    buffers = [*(Buffer(name, dtype) for name in ("x", "out", "mid", "dout")), Buffer("dx", dtype, True)]
    launch = _neighbours(
        context, "lrn_grad", call, buffers, ("alpha", "beta"),
        term, lambda total: f"2 * alpha * beta * {total}", lambda position: at("mid", position), written,
    )  # fmt: skip

    def run(context: Context, io: IO) -> None:
        launch(context, [io.span(slot) for slot in ("X", "Out", "MidOut", "Out@GRAD", "X@GRAD")])

    return run
