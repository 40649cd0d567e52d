"""Boxes cut out of a tensor and put into one: what slices, crops, pads and their gradients do."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, ITEMSIZE, Box, Call, Context, box_of

from .source import part
from .strided import filler, mover, steps_of


def _steps(box: Box) -> tuple[list[int], int]:
    """Steps of the box's elements in the whole, and where the first of them is; both in elements."""
    steps = steps_of(box.dims)
    start = sum(at * step for at, step in zip(box.starts, steps, strict=True))
    return [step * every for step, every in zip(steps, box.steps, strict=True)], start


def cut(call: Call, context: Context) -> Any:
    """The part = the box of the whole."""
    box, dtype = box_of(call), call.dtype(box_of(call).whole)
    steps, start = _steps(box)
    move, begin = mover(context, dtype, dtype, box.sizes, steps, steps_of(box.sizes)), start * ITEMSIZE[dtype]
    return lambda context, io: move(context, part(io.span(box.whole), begin), io.span(box.part))


def paste(call: Call, context: Context, value: float = 0.0) -> Any:
    """The box of the whole = the part, and all around it is ``value``."""
    box, dtype = box_of(call), call.dtype(box_of(call).whole)
    steps, start = _steps(box)
    move, begin = mover(context, dtype, dtype, box.sizes, steps_of(box.sizes), steps), start * ITEMSIZE[dtype]
    fill = filler(context, dtype, bool(value) if dtype == "bool" else value)
    size, empty = prod(box.dims), 0 in box.sizes

    def run(context: Context, io: IO) -> None:
        whole = io.span(box.whole)
        fill(context, whole, size)
        if not empty:
            move(context, io.span(box.part), part(whole, begin))

    return run
