"""Geometry of windows that slide over the spatial dims of an image or a volume, for the kernels of all libraries.

The layout is part of the meaning: with ``data_format`` "NHWC" the logical dims ARE [N, H, W, C]. Spatial dims are
always in the order (H, W) or (D, H, W), whatever the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fluidlite.program.op_call import Call
from fluidlite.tensor.tensor_spec import Dims

Pads = tuple[tuple[int, int], ...]
"""Padding (before, after) of each spatial dim."""


def channels_last(call: Call, name: str = "data_format") -> bool:
    return call.attr(name) in ("NHWC", "NDHWC")


def split_dims(dims: Sequence[int], last: bool) -> tuple[int, int, Dims]:
    """Return (images, channels, spatial dims)."""
    return (dims[0], dims[-1], tuple(dims[1:-1])) if last else (dims[0], dims[1], tuple(dims[2:]))


def join_dims(images: int, channels: int, spatial: Sequence[int], last: bool) -> Dims:
    """Return the dims of a batch of images in a layout."""
    return (images, *spatial, channels) if last else (images, channels, *spatial)


class Windows(NamedTuple):
    """Windows over an image: one entry for each spatial dim.

    ``kernel``: the size of a window. ``strides``: the distance between two windows. ``pads``: the padding of the image.
    ``dilations``: the distance between two elements of a window.
    """

    kernel: Dims
    strides: Dims
    pads: Pads
    dilations: Dims


def windows_of(call: Call, sizes: Sequence[int], kernel: Sequence[int], dilations: Sequence[int] = ()) -> Windows:
    """Return the windows that ``strides``, ``paddings`` and ``padding_algorithm`` of the call describe.

    ``dilations``: empty stands for 1 each. SAME sets them to 1, as Fluid does.
    """
    spatial, strides, algorithm = len(kernel), call.attr("strides"), call.attr("padding_algorithm")
    steps = tuple(dilations) or (1,) * spatial
    if algorithm == "VALID":
        pads: Pads = ((0, 0),) * spatial
    elif algorithm == "SAME":
        steps = (1,) * spatial
        pads = tuple(_same_pads(n, k, s) for n, k, s in zip(sizes, kernel, strides, strict=True))
    else:  # one number, or (before, after), for each spatial dim
        paddings = call.attr("paddings")
        pairs = (paddings, paddings) if len(paddings) == spatial else (paddings[::2], paddings[1::2])
        pads = tuple(zip(*pairs, strict=True))
    return Windows(tuple(kernel), strides, pads, steps)


def _same_pads(size: int, kernel: int, stride: int) -> tuple[int, int]:
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return (total // 2, total - total // 2)
