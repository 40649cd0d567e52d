"""The box that ``slice`` and ``strided_slice`` read, from metadata alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fluidlite.geometry.numbers import OptionalInt, numbers_of

if TYPE_CHECKING:
    from fluidlite.program.op_call import Call

Window = tuple[Sequence[OptionalInt], Sequence[int], Sequence[int]]
"""Starts, sizes and steps; None and -1 stand for unknown ones."""


def slice_of_range(n: int, start: int, end: int, step: int) -> tuple[int, int]:
    """Return the first index and the length of the slice ``start:end:step`` of ``n`` elements.

    Negative bounds count from the end, and bounds out of range are clamped, as in Python; but with a negative step, an
    end of -1 means before the first element.
    """
    indices = range(n)[start : (-n - 1 if step < 0 and end == -1 else end) : step]
    return (indices.start if indices else 0), len(indices)


def slice_window(call: Call) -> Window:
    """Return the box of Input that ``slice`` and ``strided_slice`` read; the definition has checked axes and counts."""
    dims, axes, flags = call.dims("Input"), call.attr("axes"), call.attr("infer_flags")
    firsts: list[OptionalInt] = [0] * len(dims)
    sizes, steps = list(dims), [1] * len(dims)
    unknown: tuple[OptionalInt, ...] = (None,) * len(axes)
    starts = numbers_of(call, "starts") or unknown
    ends = numbers_of(call, "ends") or unknown
    strides: tuple[OptionalInt, ...] = (1,) * len(axes)
    if "strides" in call.attrs:
        strides = numbers_of(call, "strides") or unknown
    dropped = {axis % len(dims) for axis in call.attr("decrease_axis")}
    for i, (axis, start, end, step) in enumerate(zip(axes, starts, ends, strides, strict=True)):
        axis, n = axis % len(dims), dims[axis]
        if start == -1 and end == 0 and axis in dropped and flags[i : i + 1] == (-1,):
            end, step = n, 1  # x[i] with i = -1 from a tensor: its end was computed as i + 1
        if n < 0 or start is None or end is None or step is None:
            firsts[axis], sizes[axis] = None, -1
        else:
            firsts[axis], sizes[axis] = slice_of_range(n, start, end, step)
            steps[axis] = step
    return firsts, sizes, steps
