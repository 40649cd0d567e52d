"""Elements of images in another order, as kernels of several libraries see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from fluidlite.framework.call import Call
    from fluidlite.framework.spec import Dims


class Shuffle(NamedTuple):
    """A transpose between views of two tensors.

    Attributes
    ----------
    source, target : str
        Slots.
    dims : tuple of int
        The dims under which the source is seen.
    axes : tuple of int
        Which of them each dim of the target's view is.
    """

    source: str
    target: str
    dims: Dims
    axes: tuple[int, ...]


def _pixel(call: Call, x: Dims) -> tuple[Dims, tuple[int, ...]]:
    (n, c, h, w), r = x, call.attr("upscale_factor")
    return (n, c // (r * r), r, r, h, w), (0, 1, 4, 2, 5, 3)


def _depth(call: Call, x: Dims) -> tuple[Dims, tuple[int, ...]]:
    (n, c, h, w), s = x, call.attr("blocksize")
    return (n, s, s, c // (s * s), h, w), (0, 3, 4, 1, 5, 2)


def _channel(call: Call, x: Dims) -> tuple[Dims, tuple[int, ...]]:
    (n, c, h, w), group = x, call.attr("group")
    return (n, group, c // group, h * w), (0, 2, 1, 3)


_ORDERS: dict[str, Callable[[Call, Dims], tuple[Dims, tuple[int, ...]]]] = {
    "pixel_shuffle": _pixel,
    "space_to_depth": _depth,
    "shuffle_channel": _channel,
}


def shuffle_of(call: Call) -> Shuffle:
    """Return the transpose that pixel_shuffle, space_to_depth or shuffle_channel is, or a gradient of theirs."""
    type = call.op.type.removesuffix("_grad")
    if type == call.op.type:
        return Shuffle("X", "Out", *_ORDERS[type](call, call.dims("X")))
    dims, axes = _ORDERS[type](call, call.dims("X@GRAD"))
    inverse = tuple(axes.index(i) for i in range(len(axes)))
    return Shuffle("Out@GRAD", "X@GRAD", tuple(dims[i] for i in axes), inverse)


def shifted_channels(call: Call, slot: str) -> tuple[int, int]:
    """Return where the channels end that temporal_shift brings a step later, and where those a step earlier."""
    return shifted(call.dims(slot)[1], call.attr("shift_ratio"))


def shifted(channels: int, ratio: float) -> tuple[int, int]:
    """The same of so many channels; both are rounded down in float32, as Fluid does."""
    count, part = np.float32(channels), np.float32(ratio)
    return int(count * part), int(count * np.float32(2) * part)
