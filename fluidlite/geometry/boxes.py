"""Where a part lies in a whole: ``slice``, ``crop``, ``pad`` and their kin, on metadata alone.

Half of these operators cut a box out of a tensor, the others put one into a tensor that is constant around it;
the gradient of either is the other. Kernels know these two movements, and ask here where the box lies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fluidlite.framework.opdef import GRAD
from fluidlite.geometry.numbers import Number, number_of, numbers_of

if TYPE_CHECKING:
    from fluidlite.framework.call import Call
    from fluidlite.framework.spec import Dims


@dataclass(frozen=True)
class Box:
    """``part = whole[start : start + size * step : step, ...]``, with one of each for every dim of whole.

    Attributes
    ----------
    whole, part : str
        Slots. The part may lack dims of 1.
    dims : tuple of int
        Of the whole.
    starts, sizes, steps : tuple of int
        A step may be negative: the start is then the last element.
    """

    whole: str
    part: str
    dims: Dims
    starts: Dims
    sizes: Dims
    steps: Dims

    @property
    def slices(self) -> tuple[slice, ...]:
        """The index of an array that gives the part."""
        return tuple(map(_slice, self.starts, self.sizes, self.steps))


def _slice(start: int, size: int, step: int) -> slice:
    if not size:
        return slice(0, 0)
    stop = start + (size - 1) * step + (1 if step > 0 else -1)
    return slice(start, stop if stop >= 0 else None, step)


Window = tuple[Sequence[Number], Sequence[int], Sequence[int]]
"""Starts, sizes and steps; None and -1 where they are not known yet."""


def taken(n: int, start: int, end: int, step: int) -> tuple[int, int]:
    """Return the first index and the number of those from ``start`` to ``end`` of ``n``, by ``step``.

    Negative bounds count from the end, and bounds outside are moved to the nearest, as in Python; but with a
    negative step, an end of -1 means in front of the first element.
    """
    found = range(n)[start : (-n - 1 if step < 0 and end == -1 else end) : step]
    return (found.start if found else 0), len(found)


def slice_window(call: Call) -> Window:
    """Return what ``slice`` and ``strided_slice`` take of Input; the definition has checked axes and counts."""
    dims, axes, flags = call.dims("Input"), call.attr("axes"), call.attr("infer_flags")
    firsts: list[Number] = [0] * len(dims)
    sizes, steps = list(dims), [1] * len(dims)
    unknown: tuple[Number, ...] = (None,) * len(axes)
    starts = numbers_of(call, "starts", "StartsTensorList", "StartsTensor") or unknown
    ends = numbers_of(call, "ends", "EndsTensorList", "EndsTensor") or unknown
    strides: tuple[Number, ...] = (1,) * len(axes)
    if "strides" in call.attrs:
        strides = numbers_of(call, "strides", "StridesTensorList", "StridesTensor") or unknown
    dropped = {axis % len(dims) for axis in call.attr("decrease_axis")}
    for i, (axis, start, end, step) in enumerate(zip(axes, starts, ends, strides, strict=True)):
        axis, n = axis % len(dims), dims[axis]
        if start == -1 and end == 0 and axis in dropped and flags[i : i + 1] == (-1,):
            end, step = n, 1  # x[i] with i = -1 from a tensor: its end was computed as i + 1
        if n < 0 or start is None or end is None or step is None:
            firsts[axis], sizes[axis] = None, -1
        else:
            firsts[axis], sizes[axis] = taken(n, start, end, step)
            steps[axis] = step
    return firsts, sizes, steps


def crop_window(call: Call) -> Window:
    """Return what ``crop`` takes of X, whose gradient knows it by Out@GRAD."""
    part = call.dims("Out" if call.has("Out") else "Out" + GRAD)
    return numbers_of(call, "offsets", "Offsets") or (), part, (1,) * len(part)


def crop_tensor_window(call: Call) -> Window:
    """Return what ``crop_tensor`` takes of X."""
    part = call.dims("Out" if call.has("Out") else "Out" + GRAD)
    return numbers_of(call, "offsets", "OffsetsTensor", "Offsets") or (), part, (1,) * len(part)


def pad_window(call: Call) -> Window:
    """Return where ``pad`` puts X into Out."""
    return call.attr("paddings")[::2], call.dims(_given(call, "X")), (1,) * len(call.dims(_given(call, "X")))


def pad_like_window(call: Call) -> Window:
    """Return where ``pad_constant_like`` puts Y into Out: at the beginning."""
    dims = call.dims(_given(call, "Y"))
    return (0,) * len(dims), dims, (1,) * len(dims)


def pad2d_window(call: Call) -> Window:
    """Return where ``pad2d`` puts X into Out."""
    dims = call.dims(_given(call, "X"))
    first = 2 if call.attr("data_format") == "NCHW" else 1
    top, _, left, _ = numbers_of(call, "paddings", "Paddings") or (None,) * 4
    starts: list[Number] = [0] * 4
    starts[first : first + 2] = top, left
    return starts, dims, (1,) * 4


def _given(call: Call, slot: str) -> str:
    return slot if call.has(slot) else slot + GRAD


_WINDOWS: dict[str, tuple[str, str, Callable[[Any], Window]]] = {
    "slice": ("Input", "Out", slice_window),
    "strided_slice": ("Input", "Out", slice_window),
    "crop": ("X", "Out", crop_window),
    "crop_tensor": ("X", "Out", crop_tensor_window),
    "pad": ("Out", "X", pad_window),
    "pad_constant_like": ("Out", "Y", pad_like_window),
    "pad2d": ("Out", "X", pad2d_window),
}


def box_of(call: Call) -> Box:
    """Return the box of an operator, at bind time.

    The operator is ``slice``, ``strided_slice``, ``crop``, ``crop_tensor``, ``pad``, ``pad2d``, ``pad_constant_like``,
    or the gradient of one.
    """
    forward = call.op.type.removesuffix("_grad")
    whole, part, window = _WINDOWS[forward]
    if forward != call.op.type:
        whole, part = whole + GRAD, part + GRAD
    starts, sizes, steps = window(call)
    assert None not in starts
    return Box(whole, part, call.dims(whole), tuple(n or 0 for n in starts), tuple(sizes), tuple(steps))


@dataclass(frozen=True)
class Parts:
    """Tensors that lie side by side in a whole: ``concat``, ``split``, ``stack``, ``unstack`` and their gradients.

    Attributes
    ----------
    whole, parts : str
        Slots; that of the parts is duplicable.
    joins : bool
        Whether the parts are read and the whole is written.
    axis : int
        Along which they lie.
    sizes : tuple of int
        Of each part along the axis. Stacked parts, which lack the axis, have 1.
    """

    whole: str
    parts: str
    joins: bool
    axis: int
    sizes: Dims


_SIDES = {
    "concat": ("Out", "X", True, False),
    "concat_grad": ("Out@GRAD", "X@GRAD", False, False),
    "split": ("X", "Out", False, False),
    "stack": ("Y", "X", True, True),
    "stack_grad": ("Y@GRAD", "X@GRAD", False, True),
    "unstack": ("X", "Y", False, True),
    "unstack_grad": ("X@GRAD", "Y@GRAD", True, True),
    "unbind": ("X", "Out", False, True),
}


def parts_of(call: Call) -> Parts:
    """Return how ``concat``, ``split``, ``stack``, ``unstack``, ``unbind`` or a gradient of one lays tensors out."""
    whole, parts, joins, stacked = _SIDES[call.op.type]
    axis = number_of(call, "axis", "AxisTensor")
    assert axis is not None
    axis %= len(call.dims(whole))
    sizes = tuple(1 if stacked else spec.dims[axis] for spec in call.specs(parts))
    return Parts(whole, parts, joins, axis, sizes)
