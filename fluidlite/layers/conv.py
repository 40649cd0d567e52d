"""Convolution layers: conv2d, conv3d and their transposed forms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod, sqrt
from typing import Any

from fluidlite.base.errors import AttributeValueError
from fluidlite.initializer import Normal
from fluidlite.layer_helper import check_ints, refuse
from fluidlite.layers.declare import AddedBias, BodyArg, Names, Weight, also, layer, layer_like
from fluidlite.program.opdef import Attr
from fluidlite.program.variable import Variable

__all__ = ["conv2d", "conv2d_transpose", "conv3d", "conv3d_transpose"]

_FORMATS = {2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}
Size = int | Sequence[int]


_NAMES: Names = {
    "num_filters": Attr("num_filters", "int", minimum=1, doc="channels of the result"),
    "filter_size": "",
    "stride": BodyArg("strides"),
    "padding": BodyArg("paddings"),
    "dilation": BodyArg("dilations"),
    "data_format": "",
}


def check_format(spatial: int, data_format: str) -> None:
    """Raise unless a format is one of images, or of volumes."""
    if data_format not in _FORMATS[spatial]:
        refuse("data_format", data_format, " or ".join(map(repr, _FORMATS[spatial])), error=AttributeValueError)


def _channels(spatial: int, input: Variable, data_format: str, groups: int, num_filters: int) -> int:
    """Return the channels of ``input``, of ``spatial`` + 2 dims; raise unless groups divide them."""
    check_format(spatial, data_format)
    if len(input.shape) != spatial + 2:
        refuse("input", input, f"rank {spatial + 2}: {data_format}")
    channels = input.shape[-1 if data_format[-1] == "C" else 1]
    if channels < 1:
        refuse("input", input, "a known number of channels, 1 or more", "say it in layers.data, or reshape the input")
    for name, count in (("the channels of input", channels), ("num_filters", num_filters)):
        if count % groups:
            refuse("groups", groups, f"a divisor of {name}, {count}", error=AttributeValueError)
    return channels


def _window_attrs(spatial: int, arguments: dict[str, Any]) -> dict[str, Any]:
    """Attributes of all convolutions: strides, paddings, dilations, and the axis of the bias."""
    data_format = arguments["data_format"]
    paddings, algorithm = _paddings(arguments["padding"], spatial, data_format)
    return {
        "strides": per_dim("stride", arguments["stride"], spatial),
        "paddings": paddings,
        "padding_algorithm": algorithm,
        "dilations": per_dim("dilation", arguments["dilation"], spatial),
        "data_format": data_format,
        "Output": AddedBias(spatial + 1, spatial + 2) if data_format[-1] == "C" else AddedBias(1, 2),
    }


def _convolution(spatial: int, **arguments: Any) -> Any:
    input, num_filters, groups = arguments["input"], arguments["num_filters"], arguments["groups"] or 1
    channels = _channels(spatial, input, arguments["data_format"], groups, num_filters)
    kernel = per_dim("filter_size", arguments["filter_size"], spatial)
    initializer = Normal(0.0, sqrt(2.0 / (prod(kernel) * channels)))
    depthwise = spatial == 2 and channels == arguments["groups"] and not arguments["use_cudnn"]
    weight = Weight([num_filters, channels // groups, *kernel], initializer)
    return also("depthwise_conv2d" if depthwise else "", Filter=weight, **_window_attrs(spatial, arguments))


def _transposed_convolution(spatial: int, **arguments: Any) -> Any:
    input, num_filters, groups = arguments["input"], arguments["num_filters"], arguments["groups"] or 1
    filter_size, output_size, data_format = arguments["filter_size"], arguments["output_size"], arguments["data_format"]
    channels = _channels(spatial, input, data_format, groups, num_filters)
    windows = _window_attrs(spatial, arguments)
    sizes = [] if output_size is None else per_dim("output_size", output_size, spatial)
    if filter_size is not None:
        kernel = per_dim("filter_size", filter_size, spatial)
    elif not sizes:
        refuse("filter_size", None, "filter_size or output_size, one of the two")
    else:
        first = 1 if data_format[-1] == "C" else 2
        counts = input.shape[first : first + spatial]
        if min(counts) < 1:
            refuse("input", input, "known spatial dims, since output_size gives the filter's", "name filter_size")
        paddings, strides, dilations = windows["paddings"], windows["strides"], windows["dilations"]
        pads = paddings if len(paddings) == 2 * spatial else [p for p in paddings for _ in range(2)]
        kernel = [
            (size - (count - 1) * step + sum(pads[2 * i : 2 * i + 2]) - 1) // dilations[i] + 1
            for i, (size, count, step) in enumerate(zip(sizes, counts, strides, strict=True))
        ]
        if min(kernel) < 1:
            minimum = [(n - 1) * s + 1 for n, s in zip(counts, strides, strict=True)]
            refuse("output_size", output_size, f"{minimum} or more, less the padding", error=AttributeValueError)
    depthwise = spatial == 2 and channels == arguments["groups"] == num_filters and not arguments["use_cudnn"]
    weight = Weight([channels, num_filters // groups, *kernel])
    type = "depthwise_conv2d_transpose" if depthwise else ""
    return also(type, Filter=weight, output_size=sizes, **windows)


@layer("conv2d", _NAMES, body=partial(_convolution, 2))
def conv2d(
    input: Variable,
    num_filters: int,
    filter_size: Size,
    stride: Size = 1,
    padding: Size | Sequence[Sequence[int]] | str = 0,
    dilation: Size = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: Any = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Return act(convolution of the images with a filter + bias), [images, num_filters, height, width].

    Each output is (size + padding - dilation * (filter_size - 1) - 1) // stride + 1 high and wide.

    input: Images, [images, channels, height, width] ([images, height, width, channels] if ``data_format`` is "NHWC"),
        floating. The number of channels is known.
    padding: Zeros around each image. "SAME": the result has ceil(size / stride) windows, and dilation is 1.
    groups: Independent groups of channels; it divides channels and num_filters. None: 1. As many
        groups as channels without ``use_cudnn`` is the operator depthwise_conv2d.
    param_attr: Of the filter ``conv2d_0.w_0``, [num_filters, channels / groups, height, width]; normal with a
        standard deviation of sqrt(2 / (height * width * channels)) unless an initializer is named
    bias_attr: Of the bias ``conv2d_0.b_0``, [num_filters]; False: no bias
    data_format: "NCHW" or "NHWC"
    Raises: An argument has another form, groups do not divide, or the filter is larger than a padded image

    >>> conv2d(data("input", [2, 4, 8, 8]), 1, 2).shape
    (2, 1, 7, 7)
    """


@layer_like(conv2d, "conv3d", body=partial(_convolution, 3), data_format="NCDHW")
def conv3d() -> None:
    """Return act(convolution of volumes with a filter + bias), [images, num_filters, depth, height, width].

    As :func:`conv2d`, with a depth before each height.

    input: Volumes, [images, channels, depth, height, width] ("NDHWC": channels last), floating
    param_attr, bias_attr: Of the filter ``conv3d_0.w_0``, [num_filters, channels / groups, depth, height, width], and
        of the bias
    data_format: "NCDHW" or "NDHWC"

    >>> conv3d(data("input", [2, 4, 4, 8, 8]), 1, 2).shape
    (2, 1, 3, 7, 7)
    """


@layer("conv2d_transpose", {**_NAMES, "output_size": BodyArg("output_size")}, body=partial(_transposed_convolution, 2))
def conv2d_transpose(
    input: Variable,
    num_filters: int,
    output_size: Size | None = None,
    filter_size: Size | None = None,
    padding: Size | Sequence[Sequence[int]] | str = 0,
    stride: Size = 1,
    dilation: Size = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: Any = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Return act(transposed convolution + bias): each element of the images is spread over a window of the result.

    The result is (size - 1) * stride - padding + dilation * (filter_size - 1) + 1 high and wide, or up to stride - 1
    larger, as ``output_size`` says.

    input: Images, [images, channels, height, width] ("NHWC": channels last), floating
    output_size: Without ``filter_size`` it gives that
    filter_size: One of the two is given
    padding, stride, dilation, data_format: As those of the :func:`conv2d` that this transposes
    param_attr: Of the filter ``conv2d_transpose_0.w_0``, [channels, num_filters / groups, height, width]
    bias_attr: Of the bias, [num_filters]; False: no bias

    >>> conv2d_transpose(data("input", [2, 4, 8, 8]), 2, filter_size=3).shape
    (2, 2, 10, 10)
    """


@layer_like(conv2d_transpose, "conv3d_transpose", body=partial(_transposed_convolution, 3), data_format="NCDHW")
def conv3d_transpose() -> None:
    """Return act(transposed convolution of volumes + bias); as :func:`conv2d_transpose`, with a depth.

    input: Volumes, [images, channels, depth, height, width] ("NDHWC": channels last), floating
    output_size, filter_size: One of the two is given
    padding, stride, dilation, data_format: As those of the :func:`conv3d` that this transposes
    param_attr, bias_attr: Of the filter ``conv3d_transpose_0.w_0``, [channels, num_filters / groups, depth, height,
        width], and the bias

    >>> conv3d_transpose(data("input", [2, 4, 4, 8, 8]), 2, filter_size=3).shape
    (2, 2, 6, 10, 10)
    """


# Shared checks -------------------------------------------------------------------------------------------------------


def per_dim(argument: str, value: Any, spatial: int, minimum: int = 1) -> list[int]:
    """The numbers for all spatial dims, from one number or one for each."""
    numbers = check_ints(argument, value)
    numbers = numbers * spatial if len(numbers) == 1 else numbers
    if len(numbers) != spatial or min(numbers) < minimum:
        refuse(argument, value, f"an int of {minimum} or more, or {spatial} of them", error=AttributeValueError)
    return numbers


def four_paddings(argument: str, value: Any) -> list[int]:
    """Paddings above, left, below and right, from one, two or four numbers."""
    pads = check_ints(argument, value)
    pads = pads * (4 // len(pads)) if len(pads) in (1, 2, 4) else pads
    if len(pads) != 4 or min(pads) < 0:
        refuse(argument, value, "an int of 0 or more, 2 or 4 of them", error=AttributeValueError)
    return pads


def _paddings(value: Any, spatial: int, data_format: str, argument: str = "padding") -> tuple[list[int], str]:
    """Return the attributes ``paddings`` and ``padding_algorithm``."""
    if isinstance(value, str):
        if value.upper() not in ("SAME", "VALID"):
            refuse(argument, value, "numbers, 'SAME' or 'VALID'", error=AttributeValueError)
        return [0] * spatial, value.upper()
    if isinstance(value, (list, tuple)) and value and all(isinstance(pair, (list, tuple)) for pair in value):
        pairs = [check_ints(argument, pair) for pair in value]
        first = 1 if data_format[-1] == "C" else 2
        rest = pairs[:first] + pairs[first + spatial :]
        if len(pairs) != spatial + 2 or any(len(pair) != 2 for pair in pairs) or any(map(any, rest)):
            expected = f"{spatial + 2} pairs, of which those of images and channels are [0, 0]"
            refuse(argument, value, expected, error=AttributeValueError)
        numbers = [number for pair in pairs[first : first + spatial] for number in pair]
    else:
        numbers = check_ints(argument, value)
        numbers = numbers * spatial if len(numbers) == 1 else numbers
    if len(numbers) not in (spatial, 2 * spatial) or min(numbers) < 0:
        refuse(argument, value, f"an int of 0 or more, {spatial} or {2 * spatial} of them", error=AttributeValueError)
    if len(numbers) == 2 * spatial and numbers[::2] == numbers[1::2]:
        numbers = numbers[::2]
    return numbers, "EXPLICIT"
