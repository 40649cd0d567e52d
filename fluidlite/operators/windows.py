"""What convolution and pooling share: windows that slide over the spatial dims of an image or a volume.

Layouts are a meaning here: with ``data_format`` "NHWC" the logical dims ARE [N, H, W, C]. Everything below speaks of
spatial dims in their order (H, W or D, H, W), whatever the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fluidlite.framework.call import Call
from fluidlite.framework.layout import NDHWC, NHWC, Layout
from fluidlite.framework.opdef import Attr
from fluidlite.framework.relayout import Relaid
from fluidlite.framework.spec import Dims

Pads = tuple[tuple[int, int], ...]
"""How far the image is padded (before, after) in each spatial dim."""

FORMATS = {2: ("NCHW", "NHWC", "AnyLayout"), 3: ("NCDHW", "NDHWC", "AnyLayout")}
"""The values of ``data_format`` for each number of spatial dims."""

PADDING_ALGORITHM = Attr(
    "padding_algorithm",
    "str",
    "EXPLICIT",
    choices=("EXPLICIT", "SAME", "VALID"),
    doc="EXPLICIT: paddings count; SAME: Output has ceil(size / stride) windows; VALID: no padding",
)


def data_format(spatial: int, default: str | None = None) -> Attr:
    """Return the attribute ``data_format`` of an operator on that many spatial dims."""
    return Attr(
        "data_format",
        "str",
        FORMATS[spatial][0] if default is None else default,
        choices=("NCHW", "NHWC", "NCDHW", "NDHWC", "AnyLayout"),
        doc="the order of the logical dims; AnyLayout: channels come second",
    )


def channels_last(call: Call, name: str = "data_format") -> bool:
    """Whether the channels come last."""
    return call.attr(name) in ("NHWC", "NDHWC")


def channels_to_end(*slots: str, name: str = "data_format") -> Callable[[Call, Layout], Relaid | None]:
    """Return the rule of an operator on images in those slots: where channels lie last, its attribute says so."""

    def rule(call: Call, layout: Layout) -> Relaid | None:
        if layout not in (NHWC, NDHWC) or channels_last(call, name):
            return None
        attr = call.op.attr(name)
        known = attr is None or attr.choices is None or layout.name in attr.choices
        attrs = {**call.attrs, name: layout.name if known else NHWC.name}
        return Relaid(call.op, attrs, frozenset(slot for slot in slots if call.has(slot)))

    return rule


def split_dims(dims: Sequence[int], last: bool) -> tuple[int, int, Dims]:
    """Return (images, channels, spatial dims)."""
    return (dims[0], dims[-1], tuple(dims[1:-1])) if last else (dims[0], dims[1], tuple(dims[2:]))


def join_dims(images: int, channels: int, spatial: Sequence[int], last: bool) -> Dims:
    """Return the dims of a batch of images in a layout."""
    return (images, *spatial, channels) if last else (images, channels, *spatial)


class Windows(NamedTuple):
    """Windows over an image: one entry for each spatial dim.

    ``kernel`` is the size of a window, ``strides`` the distance between two, ``pads`` what the image is padded with,
    ``dilations`` the distance between two elements of a window.
    """

    kernel: Dims
    strides: Dims
    pads: Pads
    dilations: Dims

    def reach(self, i: int) -> int:
        """Elements from the first to the last of a window in dim ``i``."""
        return self.dilations[i] * (self.kernel[i] - 1) + 1

    def number(self, size: int, i: int, ceil: bool = False) -> int:
        """Number of windows in dim ``i`` of an image of ``size``; -1 if unknown, < 1 if none fits.

        ``ceil`` counts a last window that is only partly inside.
        """
        if size < 0 or self.kernel[i] < 0:
            return -1
        room = size + sum(self.pads[i]) - self.reach(i)
        return (room + (self.strides[i] - 1 if ceil else 0)) // self.strides[i] + 1

    def spread(self, number: int, i: int) -> int:
        """Size of the smallest image that has ``number`` windows in dim ``i``; -1 if unknown."""
        if number < 0 or self.kernel[i] < 0:
            return -1
        return (number - 1) * self.strides[i] + self.reach(i) - sum(self.pads[i])


def explicit_pads(call: Call, spatial: int, name: str = "paddings") -> Pads:
    """Return the attribute ``paddings`` as pairs: it has a number, or (before, after), for each spatial dim."""
    given = call.attr(name)
    if any(p < 0 for p in given):
        call.fail_attr(name, "numbers of 0 or more")
    if len(given) == spatial:
        return tuple((p, p) for p in given)
    if len(given) == 2 * spatial:
        return tuple(zip(given[::2], given[1::2], strict=True))
    call.fail_attr(name, f"{spatial} numbers, or {2 * spatial}: before and after in each spatial dim")


def per_dim(call: Call, name: str, spatial: int, minimum: int = 1) -> Dims:
    """Return an attribute that has a number of ``minimum`` or more for each spatial dim."""
    given: Dims = call.attr(name)
    if len(given) != spatial or any(v < minimum for v in given):
        call.fail_attr(name, f"{spatial} numbers of {minimum} or more, one for each spatial dim")
    return given


def windows_of(call: Call, sizes: Sequence[int], kernel: Sequence[int], dilations: Sequence[int] = ()) -> Windows:
    """Return the windows that ``strides``, ``paddings`` and ``padding_algorithm`` of the call say.

    Parameters
    ----------
    call : Call
    sizes : ints
        Spatial dims of the image; -1 where unknown (then SAME pads nothing, and the count is unknown too).
    kernel : ints
        Size of a window.
    dilations : ints
        Empty: 1 each. SAME makes them 1, as Fluid does.
    """
    spatial = len(kernel)
    strides = per_dim(call, "strides", spatial)
    pads = explicit_pads(call, spatial)
    steps = tuple(dilations) or (1,) * spatial
    algorithm = call.attr("padding_algorithm")
    if algorithm == "VALID":
        pads = ((0, 0),) * spatial
    elif algorithm == "SAME":
        steps = (1,) * spatial
        pads = tuple(_same(n, k, s) for n, k, s in zip(sizes, kernel, strides, strict=True))
    return Windows(tuple(kernel), strides, pads, steps)


def _same(size: int, kernel: int, stride: int) -> tuple[int, int]:
    if size < 0 or kernel < 0:
        return (0, 0)
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return (total // 2, total - total // 2)
