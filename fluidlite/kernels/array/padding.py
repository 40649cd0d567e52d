"""pad, pad2d and pad_constant_like, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, box_of, register_kernel

from .boxes import cut, paste
from .common import immediate, numpy_style, storer, widener
from .threads import each_part


@register_kernel("pad", "array")
def pad(call: Call, context: Context) -> Any:
    """Out = X with ``pad_value`` around it."""
    return paste(call, context, call.attr("pad_value"))


@register_kernel("pad_grad", "array")
def pad_grad(call: Call, context: Context) -> Any:
    """X@GRAD = the part of Out@GRAD where X lies."""
    return cut(call, context)


@register_kernel("pad_constant_like", "array")
def pad_constant_like(call: Call, context: Context) -> Any:
    """Out = Y with ``pad_value`` behind it."""
    return paste(call, context, call.attr("pad_value"))


@register_kernel("pad_constant_like_grad", "array")
def pad_constant_like_grad(call: Call, context: Context) -> Any:
    """Y@GRAD = the part of Out@GRAD where Y lies."""
    return cut(call, context)


_BLOCK = 1 << 17
"""Elements of images that are padded together: they stay in a cache from the first move to the last."""
_NARROW = 8
"""Columns up to which a border is moved column by column: a strided line is quicker than many short rows."""


class _Border:
    """One padded axis: ``n`` elements, ``before`` in front of and ``after`` behind them."""

    def __init__(self, axis: int, n: int, before: int, whole: int) -> None:
        self.n, self.before, self.after = n, before, whole - n - before
        self.lead = (slice(None),) * axis

    def at(self, start: int, stop: int, backwards: bool = False) -> tuple[Any, ...]:
        """The index of elements ``start`` to ``stop`` of the axis, or the same from the last to the first."""
        if not backwards:
            return (*self.lead, slice(start, stop), ...)
        return (*self.lead, slice(stop - 1, start - 1 if start else None, -1), ...)

    @property
    def inside(self) -> tuple[Any, ...]:
        """Where the axis itself lies among its padding."""
        return self.at(self.before, self.before + self.n)

    def sides(self, mode: str) -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """For each side, where the padding is, and which elements of the axis it repeats, in its order."""
        n, before, after = self.n, self.before, self.after
        found = []
        if before:
            found.append((self.at(0, before), self.at(1, before + 1, True) if mode == "reflect" else self.at(0, 1)))
        if after:
            start = before + n
            source = self.at(n - 1 - after, n - 1, True) if mode == "reflect" else self.at(n - 1, n)
            found.append((self.at(start, start + after), source))
        return found

    def lines(self, mode: str) -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """The same, line by line where the padding is narrow."""
        if max(self.before, self.after) > _NARROW:
            return self.sides(mode)
        n, before = self.n, self.before
        pairs = [(i, before - i if mode == "reflect" else 0) for i in range(before)]
        pairs += [(before + n + i, n - 2 - i if mode == "reflect" else n - 1) for i in range(self.after)]
        return [((*self.lead, target, ...), (*self.lead, source, ...)) for target, source in pairs]


class _Images:
    """The images of a pad2d as [images, rows, columns, elements of a pixel]; they are made in blocks."""

    def __init__(self, call: Call, x: str, out: str) -> None:
        dims, whole = call.dims(x), call.dims(out)
        axis = 2 if call.attr("data_format") == "NCHW" else 1
        top, left = box_of(call).starts[axis : axis + 2]
        self.count, pixel = prod(dims[:axis]), prod(dims[axis + 2 :])
        self.dims = (self.count, *dims[axis : axis + 2], pixel)
        self.whole = (self.count, *whole[axis : axis + 2], pixel)
        self.rows = _Border(1, dims[axis], top, whole[axis])
        self.columns = _Border(2, dims[axis + 1], left, whole[axis + 1])

    def in_blocks(self, context: Context, work: Callable[[tuple[Any, ...]], None]) -> None:
        """Call ``work(index)`` for images that are made together; NumPy does several at once."""
        many = max(1, _BLOCK // max(prod(self.whole[1:]), 1))
        blocks = [(slice(at, min(at + many, self.count)), ...) for at in range(0, self.count, many)]
        if immediate(context):
            each_part(context, len(blocks), lambda: lambda i: work(blocks[i]))
        else:
            for block in blocks:
                work(block)


@register_kernel("pad2d", "array")
def pad2d(call: Call, context: Context) -> Any:
    """Out = the images of X with a border: ``pad_value``, or what they hold."""
    mode = call.attr("mode")
    if mode == "constant":
        return paste(call, context, call.attr("pad_value"))
    xp, images = context.xp, _Images(call, "X", "Out")
    columns = images.columns.lines(mode)
    rows = images.rows.sides(mode)

    def pad_block(x: Any, out: Any) -> None:
        middle = out[images.rows.inside]
        image = middle[images.columns.inside]
        image[...] = x
        for target, source in columns:
            middle[target] = image[source]
        for target, source in rows:
            out[target] = middle[source]

    def run(context: Context, io: IO) -> None:
        x, out = io.array("X").reshape(images.dims), io.array("Out").reshape(images.whole)
        images.in_blocks(context, lambda block: pad_block(x[block], out[block]))

    def run_new(context: Context, io: IO) -> None:
        out = xp.empty(images.whole, dtype=io.array("Out").dtype)
        pad_block(xp.reshape(io.array("X"), images.dims), out)
        io.array("Out")[...] = xp.reshape(out, call.dims("Out"))

    return run if numpy_style(context) else run_new


def _fold(context: Context, source: Any, border: _Border, mode: str) -> Any:
    """Return the source without the padding of an axis, which is added to what it repeats."""
    xp = context.xp
    inside = source[border.inside]
    folded = xp.empty(inside.shape, dtype=inside.dtype)
    folded[...] = inside
    for padding, repeated in border.sides(mode):
        value = source[padding]
        if mode == "edge":
            value = xp.sum(value, axis=len(border.lead), keepdims=True)
        folded[repeated] = folded[repeated] + value
    return folded


@register_kernel("pad2d_grad", "array")
def pad2d_grad(call: Call, context: Context) -> Any:
    """X@GRAD = Out@GRAD inside, and what the border repeats gets the border's, too."""
    mode = call.attr("mode")
    if mode == "constant":
        return cut(call, context)
    xp, widen, store = context.xp, widener(call.dtype("Out@GRAD"), context), storer(context)
    images = _Images(call, "X@GRAD", "Out@GRAD")

    def run(context: Context, io: IO) -> None:
        dout, grad = xp.reshape(io.array("Out@GRAD"), images.whole), io.array("X@GRAD")
        made = grad.reshape(images.dims) if numpy_style(context) else xp.empty(images.dims, dtype=grad.dtype)

        def fold_block(block: tuple[Any, ...]) -> None:
            rows = _fold(context, widen(dout[block]), images.rows, mode)
            store(made[block], _fold(context, rows, images.columns, mode))

        images.in_blocks(context, fold_block)
        if not numpy_style(context):
            grad[...] = xp.reshape(made, grad.shape)

    return run
