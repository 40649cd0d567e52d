"""Boxes cut out of a tensor and put into one: what slices, crops, pads and their gradients do."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Box, Call, Context, box_of, is_float


def cut(call: Call, context: Context) -> Any:
    """The part = the box of the whole."""
    xp, box = context.xp, box_of(call)
    window, dims = box.slices, call.dims(box.part)

    def run(context: Context, io: IO) -> None:
        io.array(box.part)[...] = xp.reshape(io.array(box.whole)[window], dims)

    return run


def paste(call: Call, context: Context, value: float = 0.0) -> Any:
    """The box of the whole = the part, and all around it is ``value``."""
    xp, box = context.xp, box_of(call)
    window, around = box.slices, _around(box)
    dtype = call.dtype(box.whole)
    constant = float(value) if is_float(dtype) else bool(value) if dtype == "bool" else int(value)

    def run(context: Context, io: IO) -> None:
        whole = io.array(box.whole)
        for slab in around:
            whole[slab] = constant
        whole[window] = xp.reshape(io.array(box.part), box.sizes)

    return run


def _around(box: Box) -> list[Any]:
    """The slabs that, with the box, cover the whole: once each element, unless the box has gaps."""
    if any(step != 1 for step in box.steps) or not box.dims:
        return [...]
    slabs: list[Any] = []
    before: tuple[slice, ...] = ()
    for axis, (start, size, n) in enumerate(zip(box.starts, box.sizes, box.dims, strict=True)):
        rows = prod(box.sizes[:axis]) * prod(box.dims[axis + 1 :])
        for first, last in ((0, start), (start + size, n)):
            if first < last and rows:
                slabs.append((*before, slice(first, last), ...))
        before = (*before, slice(start, start + size))
    return slabs
