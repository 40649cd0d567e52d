"""Layers on images: other sizes, other orders, images as sequences; and row_conv, which looks ahead in sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite.base.errors import AttributeValueError
from fluidlite.framework.variable import Variable
from fluidlite.layer_helper import LayerHelper, check_float, check_int, check_ints, check_variable, refuse
from fluidlite.layers.common import append
from fluidlite.layers.conv import _per_dim
from fluidlite.layers.tensor import fill_constant

__all__ = [
    "im2sequence", "image_resize", "image_resize_short", "pixel_shuffle", "resize_bilinear", "resize_linear",
    "resize_nearest", "resize_trilinear", "row_conv", "shuffle_channel", "space_to_depth", "temporal_shift",
]  # fmt: skip

Size = int | Sequence[int]

# Other sizes -------------------------------------------------------------------------------------------------------

_METHODS = {
    "LINEAR": ("linear", 1, ("NCW", "NWC")),
    "BILINEAR": ("bilinear", 2, ("NCHW", "NHWC")),
    "TRILINEAR": ("trilinear", 3, ("NCDHW", "NDHWC")),
    "NEAREST": ("nearest", 2, ("NCHW", "NHWC")),
    "BICUBIC": ("bicubic", 2, ("NCHW", "NHWC")),
}


def image_resize(
    input: Variable,
    out_shape: Sequence[int | Variable] | Variable | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    resample: str = "BILINEAR",
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCHW",
) -> Variable:
    """Return the images in another size.

    Parameters
    ----------
    input : Variable
        Images, [images, channels, height, width] ([images, height, width, channels] if ``data_format`` is "NHWC");
        with "TRILINEAR" volumes, with a depth before the height, and with "LINEAR" lines, without height.
    out_shape : (height, width) or Variable, optional
        The size of the result; numbers may be Variables of [1], int32 or int64, or all of it one of [2].
    scale : float or Variable, optional
        How many times as large the result is, rounded down, if ``out_shape`` does not say it.
    name : str, optional
    resample : str
        "BILINEAR", "NEAREST", "BICUBIC", "TRILINEAR" or "LINEAR".
    actual_shape : Variable, optional
        The size of the result; it wins over ``out_shape`` and ``scale``, of which one must still be given.
    align_corners : bool
        The corner elements keep their places. Else a result's element i is i * size / out_size of the image.
    align_mode : int
        Without ``align_corners``, for the linear methods, 0: (i + 0.5) * size / out_size - 0.5, 1: as above.
    data_format : str
        "NCHW" or "NHWC", "NCDHW" or "NDHWC" for "TRILINEAR", "NCW" or "NWC" for "LINEAR".

    Returns
    -------
    Variable

    Raises
    ------
    ProgramError, AttributeValueError, ShapeError
        An argument has another form, or neither ``out_shape`` nor ``scale`` is given.
    """
    check_variable("input", input)
    if resample not in _METHODS:
        refuse("resample", resample, "one of " + ", ".join(map(repr, _METHODS)), error=AttributeValueError)
    method, spatial, formats = _METHODS[resample]
    if data_format not in formats:
        refuse("data_format", data_format, " or ".join(map(repr, formats)), error=AttributeValueError)
    if not isinstance(align_corners, bool):
        refuse("align_corners", align_corners, "True or False")
    if align_mode not in (0, 1):
        refuse("align_mode", align_mode, "0 or 1", error=AttributeValueError)
    if out_shape is None and scale is None:
        refuse("out_shape", None, "the size of the result, or a scale")
    inputs: dict[str, Any] = {"X": input}
    attrs: dict[str, Any] = {
        "interp_method": method, "align_corners": align_corners, "align_mode": align_mode,
        "data_layout": "NCHW" if data_format[1] == "C" else "NHWC",
    }  # fmt: skip
    if isinstance(out_shape, Variable):
        inputs["OutSize"] = out_shape
    elif out_shape is not None:
        _say_sizes(out_shape, spatial, inputs, attrs)
    elif isinstance(scale, Variable):
        inputs["Scale"] = scale
    else:
        attrs["scale"] = check_float("scale", scale)
        if attrs["scale"] <= 0:
            refuse("scale", scale, "a number above 0", error=AttributeValueError)
    if actual_shape is not None:
        inputs["OutSize"] = check_variable("actual_shape", actual_shape)
    return append(f"{method}_interp", f"{method}_interp", inputs, attrs, name=name)


def _say_sizes(out_shape: Any, spatial: int, inputs: dict[str, Any], attrs: dict[str, Any]) -> None:
    """Put the sizes into attributes, or into tensors if one of them is."""
    if not isinstance(out_shape, (list, tuple)) or len(out_shape) != spatial:
        refuse("out_shape", out_shape, f"{spatial} sizes, or a Variable that has them")
    names = ("out_d", "out_h", "out_w")[-spatial:]
    if any(isinstance(size, Variable) for size in out_shape):
        sizes = (size if isinstance(size, Variable) else check_int("out_shape", size, 1) for size in out_shape)
        inputs["SizeTensor"] = [
            size if isinstance(size, Variable) else fill_constant([1], "int32", size) for size in sizes
        ]
        return
    for name, size in zip(names, out_shape, strict=True):
        attrs[name] = check_int("out_shape", size, 1)


def resize_linear(
    input: Variable,
    out_shape: Sequence[int | Variable] | Variable | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCW",
) -> Variable:
    """Return the lines in another length, each element from the two around its place: :func:`image_resize`.

    Parameters
    ----------
    input : Variable
    out_shape : (width,) or Variable, optional
    scale : float or Variable, optional
    name : str, optional
    actual_shape : Variable, optional
    align_corners : bool
    align_mode : int
    data_format : str

    Returns
    -------
    Variable
    """
    return image_resize(input, out_shape, scale, name, "LINEAR", actual_shape, align_corners, align_mode, data_format)


def resize_bilinear(
    input: Variable,
    out_shape: Sequence[int | Variable] | Variable | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCHW",
) -> Variable:
    """Return the images in another size, each element from the four around its place: :func:`image_resize`.

    Parameters
    ----------
    input : Variable
    out_shape : (height, width) or Variable, optional
    scale : float or Variable, optional
    name : str, optional
    actual_shape : Variable, optional
    align_corners : bool
    align_mode : int
    data_format : str

    Returns
    -------
    Variable
    """
    return image_resize(input, out_shape, scale, name, "BILINEAR", actual_shape, align_corners, align_mode, data_format)


def resize_trilinear(
    input: Variable,
    out_shape: Sequence[int | Variable] | Variable | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCDHW",
) -> Variable:
    """Return the volumes in another size, each element from the eight around its place: :func:`image_resize`.

    Parameters
    ----------
    input : Variable
    out_shape : (depth, height, width) or Variable, optional
    scale : float or Variable, optional
    name : str, optional
    actual_shape : Variable, optional
    align_corners : bool
    align_mode : int
    data_format : str

    Returns
    -------
    Variable
    """
    return image_resize(
        input, out_shape, scale, name, "TRILINEAR", actual_shape, align_corners, align_mode, data_format
    )


def resize_nearest(
    input: Variable,
    out_shape: Sequence[int | Variable] | Variable | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    data_format: str = "NCHW",
) -> Variable:
    """Return the images in another size, each element the one nearest to its place: :func:`image_resize`.

    Parameters
    ----------
    input : Variable
    out_shape : (height, width) or Variable, optional
    scale : float or Variable, optional
    name : str, optional
    actual_shape : Variable, optional
    align_corners : bool
    data_format : str

    Returns
    -------
    Variable
    """
    return image_resize(input, out_shape, scale, name, "NEAREST", actual_shape, align_corners, 1, data_format)


def image_resize_short(input: Variable, out_short_len: int, resample: str = "BILINEAR") -> Variable:
    """Return the images in another size, of which the shorter side is ``out_short_len``, in their proportions.

    Parameters
    ----------
    input : Variable
        Images, [images, channels, height, width], of known height and width.
    out_short_len : int
    resample : str
        As in :func:`image_resize`.

    Returns
    -------
    Variable
    """
    check_variable("input", input)
    if len(input.shape) != 4 or min(input.shape[2:]) < 1:
        refuse("input", input, "[images, channels, height, width], height and width known")
    short = check_int("out_short_len", out_short_len, 1)
    sizes = list(input.shape[2:])
    less = sizes.index(min(sizes))
    sizes[1 - less] = int(sizes[1 - less] * (short / sizes[less]) + 0.5)
    sizes[less] = short
    return image_resize(input, sizes, resample=resample)


# Other orders ------------------------------------------------------------------------------------------------------


def pixel_shuffle(x: Variable, upscale_factor: int) -> Variable:
    """Return images r times as high and wide, of [images, channels r^2, height, width]; r is ``upscale_factor``.

    Parameters
    ----------
    x : Variable
    upscale_factor : int

    Returns
    -------
    Variable
        [images, channels, height r, width r].
    """
    attrs = {"upscale_factor": check_int("upscale_factor", upscale_factor, 1)}
    return append("pixel_shuffle", "pixel_shuffle", {"X": check_variable("x", x)}, attrs)


def space_to_depth(x: Variable, blocksize: int, name: str | None = None) -> Variable:
    """Return images of s^2 times the channels, s times less high and wide; s is ``blocksize``, 2 or more.

    Elements go where Fluid's operator puts them (YOLO's reorg layer): see the operator's formula. s^2 divides the
    channels of ``x``, [images, channels, height, width], and s its height and width.

    Parameters
    ----------
    x : Variable
    blocksize : int
    name : str, optional

    Returns
    -------
    Variable
        [images, channels s^2, height / s, width / s].
    """
    attrs = {"blocksize": check_int("blocksize", blocksize, 2)}
    return append("space_to_depth", "space_to_depth", {"X": check_variable("x", x)}, attrs, name=name)


def shuffle_channel(x: Variable, group: int, name: str | None = None) -> Variable:
    """Return images whose channels take turns among ``group`` groups; it divides the channels of ``x``.

    Parameters
    ----------
    x : Variable
        [images, channels, height, width].
    group : int
    name : str, optional

    Returns
    -------
    Variable
    """
    attrs = {"group": check_int("group", group, 1)}
    return append("shuffle_channel", "shuffle_channel", {"X": check_variable("x", x)}, attrs, name=name)


def temporal_shift(x: Variable, seg_num: int, shift_ratio: float = 0.25, name: str | None = None) -> Variable:
    """Return images, ``seg_num`` in a row being a sequence, of which some channels come from their neighbours.

    Parameters
    ----------
    x : Variable
        [sequences * seg_num, channels, height, width], floating.
    seg_num : int
        Images of a sequence.
    shift_ratio : float
        A first part of the channels is the image before's, a second of the same size the next image's; between 0
        and 0.5.
    name : str, optional

    Returns
    -------
    Variable
    """
    attrs = {"seg_num": check_int("seg_num", seg_num, 1), "shift_ratio": check_float("shift_ratio", shift_ratio)}
    return append("temporal_shift", "temporal_shift", {"X": check_variable("x", x)}, attrs, name=name)


# Sequences ---------------------------------------------------------------------------------------------------------


def im2sequence(
    input: Variable,
    filter_size: Size = 1,
    stride: Size = 1,
    padding: Size = 0,
    input_image_size: Variable | None = None,
    out_stride: Size = 1,
    name: str | None = None,
) -> Variable:
    """Return the windows of each image as a sequence, a row [channels * height * width] for each window.

    Parameters
    ----------
    input : Variable
        Images, [images, channels, height, width], floating.
    filter_size : int or (height, width)
        Size of a window.
    stride : int or (height, width)
        Distance between two.
    padding : int, (height, width) or (above, left, below, right)
        Zeros around each image.
    input_image_size : Variable, optional
        Heights and widths of the images before a network made them smaller, [images, 2]: windows beyond them are
        left out. It counts where there are several images.
    out_stride : int or (height, width)
        How many times smaller the images have become.
    name : str, optional

    Returns
    -------
    Variable
        [all windows, channels * height * width], a LoD tensor: one sequence an image.
    """
    pads = check_ints("padding", padding)
    pads = pads * (4 // len(pads)) if len(pads) in (1, 2, 4) else pads
    if len(pads) != 4 or min(pads) < 0:
        refuse("padding", padding, "an int of 0 or more, 2 or 4 of them", error=AttributeValueError)
    inputs = {"X": check_variable("input", input)}
    attrs: dict[str, Any] = {
        "kernels": _per_dim("filter_size", filter_size, 2), "strides": _per_dim("stride", stride, 2), "paddings": pads,
    }  # fmt: skip
    if input_image_size is not None:
        inputs["Y"] = check_variable("input_image_size", input_image_size)
        attrs["out_stride"] = _per_dim("out_stride", out_stride, 2)
    return append("im2sequence", "im2sequence", inputs, attrs, name=name)


def row_conv(input: Variable, future_context_size: int, param_attr: Any = None, act: Any = None) -> Variable:
    """Return, for each step of sequences, a sum of itself and the steps ahead, weighted by column.

    Parameters
    ----------
    input : Variable
        [rows, width] with LoD, or [batch, steps, width]; floating, of known width.
    future_context_size : int
        How many steps ahead.
    param_attr : ParamAttr, optional
        Of the weights ``row_conv_0.w_0``, [future_context_size + 1, width].
    act : str, optional
        An activation.

    Returns
    -------
    Variable
    """
    helper = LayerHelper("row_conv", input=check_variable("input", input), param_attr=param_attr, act=act)
    ahead = check_int("future_context_size", future_context_size, 0)
    if not input.shape or input.shape[-1] < 1:
        refuse("input", input, "a known last dim, 1 or more")
    attr = helper.param_attr
    if isinstance(attr, list):
        refuse("param_attr", param_attr, "one ParamAttr: the layer has one weight")
    weights = helper.create_parameter(attr, [ahead + 1, input.shape[-1]], helper.input_dtype())
    out = helper.create_variable_for_type_inference(input.dtype)
    helper.append_op("row_conv", {"X": input, "Filter": weights}, {"Out": out})
    return helper.append_activation(out)
