"""Geometry of convolutions for the kernels of all libraries.

Convolution, transposed convolution and their gradients are three computations on an image X, a filter W and the
windows Y = X * W: Y from X and W, X from Y and W (which adds each window where it was read), and W from X and Y. The
first two are one computation, a **correlation**: outputs with a distance of ``step`` read inputs with a distance of
``stride``. The image from windows of stride s needs s correlations per dim, each with a part of the filter.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import gcd, prod
from typing import NamedTuple

from fluidlite.geometry.windows import Windows, channels_last, join_dims, split_dims, windows_of
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD
from fluidlite.tensor.tensor_spec import Dims

EPILOGUE = {"relu": "", "relu6": "threshold", "leaky_relu": "alpha", "swish": "beta"}
"""Activations that Fluid's passes fuse into a convolution, with the attribute that ``fuse_alpha`` holds."""


ACTIVATIONS = ("fuse_relu", "fuse_brelu", "fuse_activation")
"""Attributes that name an activation of the result."""
RELU_BEFORE = "fuse_relu_before_depthwise_conv"


def fused_refusal(call: Call) -> str | None:
    """Return why kernels without fused operators refuse a convolution; None if they accept it."""
    slots = [slot for slot in ("Bias", "ResidualData") if call.has(slot)]
    before = (RELU_BEFORE,) if call.op.type.startswith("depthwise") else ()
    fused = [name for name in (*before, *ACTIVATIONS) if call.attrs.get(name)]
    return f"{', '.join(slots + fused)}: operators of their own" if slots or fused else None


def unknown_dims(call: Call) -> bool:
    """Whether channels or sizes of images or filters are unknown, on which kernel selection depends."""
    return any(-1 in spec.dims[1:] for specs in call.ins.values() for spec in specs)


@dataclass(frozen=True)
class CorrelationAxis:
    """One spatial dim of a correlation.

    For 0 <= o < ``count``, the output at ``first + step * o`` is the sum over 0 <= t < ``taps`` of the input at
    ``start + stride * o + reach * t`` (0 outside of it) times the filter at ``tap + tap_step * t``.
    """

    count: int
    first: int
    step: int
    start: int
    stride: int
    reach: int
    taps: int
    tap: int
    tap_step: int

    @property
    def least(self) -> int:
        """The minimum input index that the first output reads; it may be out of range."""
        return self.start + min(0, self.reach * (self.taps - 1))

    def offset(self, t: int) -> int:
        """The distance from ``least`` to tap ``t`` of the first output."""
        return self.start + self.reach * t - self.least

    def inside(self, t: int, size: int, low: int = 0, high: int | None = None) -> tuple[int, int]:
        """The outputs in [low, high) whose tap ``t`` is in an input of ``size`` elements, as [first, end)."""
        at = self.start + self.reach * t
        high = self.count if high is None else high
        first = min(max(low, -(at // self.stride)), high)
        return first, max(first, min(high, (size - 1 - at) // self.stride + 1))


class Convolution(NamedTuple):
    """One of the three computations of a call.

    Attributes
    ----------
    kind : str
        The computed one of ``"windows"``, ``"image"`` and ``"filter"``.
    image, filter, windows : str
        The slots; that of ``kind`` is an output.
    images, groups : int
    channels, filters : int
        Of one group: channels of the image, and of the windows.
    sizes, counts : ints
        Spatial dims of the image and of the windows.
    shape : Windows
        Size of the filter, strides, pads, dilations.
    last : bool
        Whether channels come last in image and windows. The filter is [groups * filters, channels, ...] always.
    """

    kind: str
    image: str
    filter: str
    windows: str
    images: int
    groups: int
    channels: int
    filters: int
    sizes: Dims
    counts: Dims
    shape: Windows
    last: bool

    @property
    def out(self) -> str:
        """The computed slot."""
        return {"windows": self.windows, "image": self.image, "filter": self.filter}[self.kind]

    def sides(self) -> tuple[str, int, int, Dims, Dims]:
        """The sides of a correlation: the slot that it reads, channels of a group that it reads and computes, sizes."""
        image, windows = (self.image, self.channels, self.sizes), (self.windows, self.filters, self.counts)
        (slot, inner, sizes), (_, rows, outs) = (image, windows) if self.kind == "windows" else (windows, image)
        return slot, inner, rows, sizes, outs

    @property
    def taps(self) -> int:
        """Filter elements per channel."""
        return prod(self.shape.kernel)

    def flattened(self) -> Convolution:
        """Treat an image that one window covers as one pixel with many channels: the convolution is a matmul then."""
        kernel, _, pads, _ = self.shape
        if self.last or set(self.counts) != {1} or self.sizes != kernel or any(map(any, pads)):
            return self
        ones = (1,) * len(kernel)
        shape = Windows(ones, ones, ((0, 0),) * len(kernel), ones)
        return self._replace(channels=self.channels * self.taps, sizes=ones, shape=shape)

    def image_dims(self) -> Dims:
        return join_dims(self.images, self.groups * self.channels, self.sizes, self.last)

    def windows_dims(self) -> Dims:
        return join_dims(self.images, self.groups * self.filters, self.counts, self.last)

    def lines(self) -> tuple[CorrelationAxis, ...]:
        """The correlation that computes the windows."""
        kernel, strides, pads, dilations = self.shape
        return tuple(
            CorrelationAxis(n, 0, 1, -pad[0], stride, dilation, taps, 0, 1)
            for n, taps, stride, pad, dilation in zip(self.counts, kernel, strides, pads, dilations, strict=True)
        )

    def correlations(self) -> list[tuple[CorrelationAxis, ...]]:
        """The correlations that compute the windows, or the image; one without taps gives zeros."""
        if self.kind == "windows":
            return [self.lines()]
        kernel, strides, pads, dilations = self.shape
        # the stride of a single window is unused: one larger than the window gives each output one tap
        strides = tuple(
            stride if count > 1 else max(stride, (taps - 1) * dilation + 1)
            for stride, count, taps, dilation in zip(strides, self.counts, kernel, dilations, strict=True)
        )
        return list(product(*map(_lines_to_image, self.sizes, kernel, strides, (p[0] for p in pads), dilations)))


def _lines_to_image(size: int, kernel: int, stride: int, pad: int, dilation: int) -> list[CorrelationAxis]:
    """Return the correlations from windows to an image along one dim: one for each index modulo the stride.

    Tap k of window (i + pad - k * dilation) / stride reads index i = first + stride * o if the quotient is an integer:
    that holds for every ``tap_step``-th tap, beginning with the first one that fits.
    """
    lines = []
    common = gcd(dilation, stride)
    tap_step = stride // common
    for first in range(min(stride, size)):
        count = (size - first - 1) // stride + 1
        fits = [k for k in range(min(kernel, tap_step)) if (first + pad - k * dilation) % stride == 0]
        if fits:
            tap = fits[0]
            taps, start = (kernel - tap - 1) // tap_step + 1, (first + pad - tap * dilation) // stride
            lines.append(CorrelationAxis(count, first, stride, start, 1, -(dilation // common), taps, tap, tap_step))
        else:
            lines.append(CorrelationAxis(count, first, stride, 0, 1, 1, 0, 0, 1))
    return lines


def convolutions_of(call: Call) -> tuple[Convolution, ...]:
    """Return the computations of a call of a convolution, a transposed convolution, or a gradient of one.

    One for each requested output. Dims must be known.
    """
    transposed, last = "transpose" in call.op.type, channels_last(call)
    backward = call.op.type.endswith("_grad")
    output = "Output" + GRAD if backward else "Output"
    image, windows = (output, "Input") if transposed else ("Input", output)
    images, channels, sizes = split_dims(call.dims(image), last)
    _, filters, counts = split_dims(call.dims(windows), last)
    groups = call.attr("groups")
    input_sizes = split_dims(call.dims("Input"), last)[2]  # for SAME padding
    shape = windows_of(call, input_sizes, call.dims("Filter")[2:], call.attr("dilations"))

    def convolution(kind: str, image: str, filter: str, windows: str) -> Convolution:
        sides = (channels // groups, filters // groups, sizes, counts)
        return Convolution(kind, image, filter, windows, images, groups, *sides, shape, last)

    if not backward:
        return (convolution("image" if transposed else "windows", image, "Filter", windows),)
    gradients = []
    if call.has("Input" + GRAD):
        gradients.append(
            convolution("windows", image, "Filter", "Input" + GRAD)
            if transposed
            else convolution("image", "Input" + GRAD, "Filter", windows)
        )
    if call.has("Filter" + GRAD):
        gradients.append(convolution("filter", image, "Filter" + GRAD, windows))
    return tuple(gradients)
