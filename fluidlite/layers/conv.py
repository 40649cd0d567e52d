"""Convolution layers: conv2d, conv3d and their transposed forms."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

from fluidlite.base.errors import AttributeValueError
from fluidlite.framework.variable import Variable
from fluidlite.initializer import Normal
from fluidlite.layer_helper import LayerHelper, check_int, check_ints, check_variable, refuse

__all__ = ["conv2d", "conv2d_transpose", "conv3d", "conv3d_transpose"]

_FORMATS = {2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}
Size = int | Sequence[int]


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

    Parameters
    ----------
    input : Variable
        Images, [images, channels, height, width] ([images, height, width, channels] if ``data_format`` is "NHWC"),
        floating. The number of channels is known.
    num_filters : int
        Channels of the result.
    filter_size : int or (height, width)
    stride, dilation : int or (height, width)
        Distance between windows, and between the elements that a filter reads.
    padding : int, (height, width), (top, bottom, left, right), a pair for each dim of input, "SAME" or "VALID"
        Zeros around each image. "SAME": the result has ceil(size / stride) windows, and dilation is 1.
    groups : int, optional
        Groups of channels that do not see each other; it divides channels and num_filters. None: 1. As many groups as
        channels without ``use_cudnn`` is the operator depthwise_conv2d.
    param_attr : ParamAttr, optional
        Of the filter ``conv2d_0.w_0``, [num_filters, channels / groups, height, width]; normal with a standard
        deviation of sqrt(2 / (height * width * channels)) unless an initializer is named.
    bias_attr : ParamAttr, optional
        Of the bias ``conv2d_0.b_0``, [num_filters]; False: no bias.
    use_cudnn : bool
        A hint.
    act : str, optional
        An activation.
    name : str, optional
    data_format : str
        "NCHW" or "NHWC".

    Returns
    -------
    Variable

    Raises
    ------
    ProgramError, AttributeValueError, ShapeError
        An argument has another form, groups do not divide, or the filter is larger than a padded image.
    """
    channels = _channels(input, 2, data_format)
    depthwise = channels == groups and num_filters % channels == 0 and not use_cudnn
    return _convolution(
        "depthwise_conv2d" if depthwise else "conv2d", 2, input, num_filters, filter_size, stride, padding, dilation,
        groups, param_attr, bias_attr, use_cudnn, act, name, data_format,
    )  # fmt: skip


def conv3d(
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
    data_format: str = "NCDHW",
) -> Variable:
    """Return act(convolution of volumes with a filter + bias), [images, num_filters, depth, height, width].

    As :func:`conv2d`, with a depth before each height.

    Parameters
    ----------
    input : Variable
        Volumes, [images, channels, depth, height, width] ("NDHWC": channels last), floating.
    num_filters : int
    filter_size, stride, dilation : int or (depth, height, width)
    padding : int, (depth, height, width), six numbers, a pair for each dim of input, "SAME" or "VALID"
    groups : int, optional
    param_attr, bias_attr : ParamAttr, optional
        Of the filter ``conv3d_0.w_0``, [num_filters, channels / groups, depth, height, width], and of the bias.
    use_cudnn : bool
        A hint.
    act : str, optional
    name : str, optional
    data_format : str
        "NCDHW" or "NDHWC".

    Returns
    -------
    Variable
    """
    return _convolution(
        "conv3d", 3, input, num_filters, filter_size, stride, padding, dilation, groups, param_attr, bias_attr,
        use_cudnn, act, name, data_format,
    )  # fmt: skip


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

    Parameters
    ----------
    input : Variable
        Images, [images, channels, height, width] ("NHWC": channels last), floating.
    num_filters : int
        Channels of the result.
    output_size : int or (height, width), optional
        Without ``filter_size`` it gives that.
    filter_size : int or (height, width), optional
        One of the two is given.
    padding, stride, dilation, groups, data_format
        As those of the :func:`conv2d` that this transposes.
    param_attr : ParamAttr, optional
        Of the filter ``conv2d_transpose_0.w_0``, [channels, num_filters / groups, height, width].
    bias_attr : ParamAttr, optional
        Of the bias, [num_filters]; False: no bias.
    use_cudnn : bool
        A hint; without it, one filter for each channel in a group of its own is depthwise_conv2d_transpose.
    act : str, optional
    name : str, optional

    Returns
    -------
    Variable
    """
    channels = _channels(input, 2, data_format)
    depthwise = channels == groups == num_filters and not use_cudnn
    return _transposed(
        "depthwise_conv2d_transpose" if depthwise else "conv2d_transpose", 2, input, num_filters, output_size,
        filter_size, padding, stride, dilation, groups, param_attr, bias_attr, use_cudnn, act, name, data_format,
    )  # fmt: skip


def conv3d_transpose(
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
    data_format: str = "NCDHW",
) -> Variable:
    """Return act(transposed convolution of volumes + bias); as :func:`conv2d_transpose`, with a depth.

    Parameters
    ----------
    input : Variable
        Volumes, [images, channels, depth, height, width] ("NDHWC": channels last), floating.
    num_filters : int
    output_size, filter_size : int or (depth, height, width), optional
        One of the two is given.
    padding, stride, dilation, groups, data_format
        As those of the :func:`conv3d` that this transposes.
    param_attr, bias_attr : ParamAttr, optional
        Of the filter ``conv3d_transpose_0.w_0``, [channels, num_filters / groups, depth, height, width], and the bias.
    use_cudnn : bool
        A hint.
    act : str, optional
    name : str, optional

    Returns
    -------
    Variable
    """
    return _transposed(
        "conv3d_transpose", 3, input, num_filters, output_size, filter_size, padding, stride, dilation, groups,
        param_attr, bias_attr, use_cudnn, act, name, data_format,
    )  # fmt: skip


# What they share ---------------------------------------------------------------------------------------------------


def _channels(input: Variable, spatial: int, data_format: str) -> int:
    """Return the channels of ``input``, which has ``spatial`` + 2 dims in that format."""
    check_variable("input", input)
    if data_format not in _FORMATS[spatial]:
        refuse("data_format", data_format, " or ".join(map(repr, _FORMATS[spatial])), error=AttributeValueError)
    if len(input.shape) != spatial + 2:
        refuse("input", input, f"rank {spatial + 2}: {data_format}")
    channels = input.shape[-1 if data_format[-1] == "C" else 1]
    if channels < 1:
        refuse("input", input, "a known number of channels, 1 or more", "say it in layers.data, or reshape the input")
    return channels


def _per_dim(argument: str, value: Any, spatial: int, minimum: int = 1) -> list[int]:
    numbers = check_ints(argument, value)
    numbers = numbers * spatial if len(numbers) == 1 else numbers
    if len(numbers) != spatial or min(numbers) < minimum:
        refuse(argument, value, f"an int of {minimum} or more, or {spatial} of them", error=AttributeValueError)
    return numbers


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


def _groups(groups: int | None, **counts: int) -> int:
    number = 1 if groups is None else check_int("groups", groups, minimum=1)
    for what, count in counts.items():
        if count % number:
            refuse("groups", groups, f"a divisor of {what}, {count}", error=AttributeValueError)
    return number


def _apply(
    type: str, input: Variable, dims: list[int], attrs: dict[str, Any],
    initializer: Any, param_attr: Any, bias_attr: Any, act: Any, name: str | None,
) -> Variable:  # fmt: skip
    """Append the operator on a new filter of ``dims``, the bias and the activation."""
    helper = LayerHelper(type, name=name, input=input, param_attr=param_attr, bias_attr=bias_attr, act=act)
    attr = helper.param_attr
    if isinstance(attr, list):
        refuse("param_attr", param_attr, "one ParamAttr: a convolution has one filter")
    dtype = helper.input_dtype()
    weight = helper.create_parameter(attr, dims, dtype, default_initializer=initializer)
    out = helper.create_variable_for_type_inference(dtype)
    helper.append_op(type, {"Input": input, "Filter": weight}, {"Output": out}, attrs)
    axis = len(dims) - 1 if attrs["data_format"][-1] == "C" else 1
    return helper.append_activation(helper.append_bias_op(out, dim_start=axis, dim_end=axis + 1))


def _convolution(
    type: str, spatial: int, input: Variable, num_filters: int, filter_size: Any, stride: Any, padding: Any,
    dilation: Any, groups: int | None, param_attr: Any, bias_attr: Any, use_cudnn: bool, act: Any, name: str | None,
    data_format: str,
) -> Variable:  # fmt: skip
    channels = _channels(input, spatial, data_format)
    num_filters = check_int("num_filters", num_filters, minimum=1)
    number = _groups(groups, **{"the channels of input": channels, "num_filters": num_filters})
    kernel = _per_dim("filter_size", filter_size, spatial)
    paddings, algorithm = _paddings(padding, spatial, data_format)
    attrs = {
        "strides": _per_dim("stride", stride, spatial), "paddings": paddings, "groups": number,
        "dilations": _per_dim("dilation", dilation, spatial), "use_cudnn": use_cudnn, "use_mkldnn": False,
        "padding_algorithm": algorithm, "data_format": data_format,
    }  # fmt: skip
    return _apply(
        type, input, [num_filters, channels // number, *kernel], attrs,
        Normal(0.0, sqrt(2.0 / (prod(kernel) * channels))), param_attr, bias_attr, act, name,
    )  # fmt: skip


def _transposed(
    type: str, spatial: int, input: Variable, num_filters: int, output_size: Any, filter_size: Any, padding: Any,
    stride: Any, dilation: Any, groups: int | None, param_attr: Any, bias_attr: Any, use_cudnn: bool, act: Any,
    name: str | None, data_format: str,
) -> Variable:  # fmt: skip
    channels = _channels(input, spatial, data_format)
    num_filters = check_int("num_filters", num_filters, minimum=1)
    number = _groups(groups, **{"the channels of input": channels, "num_filters": num_filters})
    paddings, algorithm = _paddings(padding, spatial, data_format)
    strides, dilations = _per_dim("stride", stride, spatial), _per_dim("dilation", dilation, spatial)
    sizes = [] if output_size is None else _per_dim("output_size", output_size, spatial)
    if filter_size is not None:
        kernel = _per_dim("filter_size", filter_size, spatial)
    elif not sizes:
        refuse("filter_size", None, "filter_size or output_size, one of the two")
    else:
        first = 1 if data_format[-1] == "C" else 2
        counts = input.shape[first : first + spatial]
        if min(counts) < 1:
            refuse("input", input, "known spatial dims, since output_size gives the filter's", "name filter_size")
        pads = paddings if len(paddings) == 2 * spatial else [p for p in paddings for _ in range(2)]
        kernel = [
            (size - (count - 1) * step + sum(pads[2 * i : 2 * i + 2]) - 1) // dilations[i] + 1
            for i, (size, count, step) in enumerate(zip(sizes, counts, strides, strict=True))
        ]
        if min(kernel) < 1:
            refuse("output_size", output_size, f"{[(n - 1) * s + 1 for n, s in zip(counts, strides, strict=True)]} "
                   "or more, less the padding", error=AttributeValueError)  # fmt: skip
    attrs = {
        "output_size": sizes, "strides": strides, "paddings": paddings, "padding_algorithm": algorithm,
        "dilations": dilations, "groups": number, "use_cudnn": use_cudnn, "data_format": data_format,
    }  # fmt: skip
    dims = [channels, num_filters // number, *kernel]
    return _apply(type, input, dims, attrs, None, param_attr, bias_attr, act, name)
