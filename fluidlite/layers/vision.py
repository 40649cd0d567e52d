"""Layers on images: resize, pixel_shuffle, space_to_depth, im2sequence; and row_conv on sequences."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from fluidlite.base.errors import AttributeValueError
from fluidlite.layer_helper import check_int, check_variable, refuse
from fluidlite.layers.conv import four_paddings, per_dim
from fluidlite.layers.declare import BodyArg, Names, Weight, also, layer, layer_like
from fluidlite.layers.int_or_variable import numbers
from fluidlite.program.opdef import Attr
from fluidlite.program.variable import Variable

Size = int | Sequence[int]
_CONTEXT_ATTR = Attr("future_context_size", "int", minimum=0, doc="the number of future steps")

# Resize --------------------------------------------------------------------------------------------------------------

_METHODS = {
    "LINEAR": ("linear", 1, ("NCW", "NWC")),
    "BILINEAR": ("bilinear", 2, ("NCHW", "NHWC")),
    "TRILINEAR": ("trilinear", 3, ("NCDHW", "NDHWC")),
    "NEAREST": ("nearest", 2, ("NCHW", "NHWC")),
    "BICUBIC": ("bicubic", 2, ("NCHW", "NHWC")),
}


_SIZE_NAMES: Names = {
    "out_shape": "",
    "actual_shape": "OutSize",
    "align_corners": BodyArg("align_corners"),
    "data_format": "",
}


def _resize(
    out_shape: Any, scale: Any, actual_shape: Any, resample: Any, data_format: Any, align_mode: int = 1, **values: Any
) -> Any:
    """The body of resizing layers: the size or the scale, as numbers or Variables."""
    method, spatial, formats = _METHODS[resample]
    if data_format not in formats:
        refuse("data_format", data_format, " or ".join(map(repr, formats)), error=AttributeValueError)
    if not isinstance(values["align_corners"], bool):
        refuse("align_corners", values["align_corners"], "True or False")
    if out_shape is None and scale is None:
        refuse("out_shape", None, "the size of the result, or a scale")
    if isinstance(scale, float) and out_shape is None and scale <= 0:
        refuse("scale", scale, "a number above 0", error=AttributeValueError)
    sizes = {} if out_shape is None else {"scale": None, "Scale": None, **_sizes(out_shape, spatial)}
    if actual_shape is not None:
        sizes["OutSize"] = actual_shape
    layout = "NCHW" if data_format[1] == "C" else "NHWC"
    corners = values["align_corners"]
    attrs = {"interp_method": method, "align_corners": corners, "align_mode": align_mode, "data_layout": layout}
    return also(f"{method}_interp", **attrs, **sizes)


def _sizes(out_shape: Any, spatial: int) -> dict[str, Any]:
    """The sizes as attributes, or as tensors if one of them is."""
    if not isinstance(out_shape, Variable) and (not isinstance(out_shape, (list, tuple)) or len(out_shape) != spatial):
        refuse("out_shape", out_shape, f"{spatial} sizes, or a Variable that has them")
    sizes = numbers("out_shape", out_shape, "OutSize", "SizeTensor", minimum=1)
    return sizes.inputs or dict(zip(("out_d", "out_h", "out_w")[-spatial:], sizes.attr, strict=True))


@layer("bilinear_interp", {**_SIZE_NAMES, "resample": Attr("resample", "str", choices=(*_METHODS,))}, body=_resize)
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

    input: Images, [images, channels, height, width] ([images, height, width, channels] if ``data_format`` is "NHWC");
        with "TRILINEAR" volumes, with a depth before the height, and with "LINEAR" lines, without height
    out_shape: The size of the result; numbers may be Variables of [1], int32 or int64, or all of it one of [2]
    scale: The ratio of sizes, rounded down, if ``out_shape`` is None
    align_corners: The corner elements stay at the corners. Else a result's element i is i * size / out_size of the
        image.
    data_format: "NCHW" or "NHWC", "NCDHW" or "NDHWC" for "TRILINEAR", "NCW" or "NWC" for "LINEAR"
    Raises: An argument has another form, or neither ``out_shape`` nor ``scale`` is given

    >>> image_resize(data("input", [2, 4, 8, 8]), [3, 3]).shape
    (2, 4, 3, 3)
    """


@layer("bilinear_interp", _SIZE_NAMES, body=partial(_resize, resample="BILINEAR"))
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

    >>> resize_bilinear(data("input", [2, 4, 8, 8]), [3, 3]).shape
    (2, 4, 3, 3)
    """


@layer_like(resize_bilinear, "linear_interp", body=partial(_resize, resample="LINEAR"), data_format="NCW")
def resize_linear() -> None:
    """Return the lines in another length, each element from the two around its place: :func:`image_resize`.

    >>> resize_linear(data("input", [2, 3, 4]), [3]).shape
    (2, 3, 3)
    """


@layer_like(resize_bilinear, "trilinear_interp", body=partial(_resize, resample="TRILINEAR"), data_format="NCDHW")
def resize_trilinear() -> None:
    """Return the volumes in another size, each element from the eight around its place: :func:`image_resize`.

    >>> resize_trilinear(data("input", [2, 4, 4, 8, 8]), [3, 3, 3]).shape
    (2, 4, 3, 3, 3)
    """


@layer("nearest_interp", _SIZE_NAMES, body=partial(_resize, resample="NEAREST"))
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

    >>> resize_nearest(data("input", [2, 4, 8, 8]), [3, 3]).shape
    (2, 4, 3, 3)
    """


def image_resize_short(input: Variable, out_short_len: int, resample: str = "BILINEAR") -> Variable:
    """Resize images so that the shorter side is ``out_short_len``, with their proportions.

    input: Images, [images, channels, height, width], of known height and width
    resample: As in :func:`image_resize`
    """
    check_variable("input", input)
    if len(input.shape) != 4 or min(input.shape[2:]) < 1:
        refuse("input", input, "[images, channels, height, width], height and width known")
    short_size = check_int("out_short_len", out_short_len, 1)
    sizes = list(input.shape[2:])
    short_axis = sizes.index(min(sizes))
    sizes[1 - short_axis] = int(sizes[1 - short_axis] * (short_size / sizes[short_axis]) + 0.5)
    sizes[short_axis] = short_size
    return image_resize(input, sizes, resample=resample)


# Reorder -------------------------------------------------------------------------------------------------------------


@layer("pixel_shuffle")
def pixel_shuffle(x: Variable, upscale_factor: int) -> Variable:
    """Return images r times as high and wide, of [images, channels r^2, height, width]; r is ``upscale_factor``.

    Returns: [images, channels, height r, width r]

    >>> pixel_shuffle(data("x", [2, 4, 8, 8]), 2).shape
    (2, 1, 16, 16)
    """


@layer("space_to_depth")
def space_to_depth(x: Variable, blocksize: int, name: str | None = None) -> Variable:
    """Move blocks of s x s pixels into channels: s^2 times the channels; s is ``blocksize``, 2 or more.

    Elements go where Fluid's operator puts them (YOLO's reorg layer): see the operator's formula. s^2 divides the
    channels of ``x``, [images, channels, height, width], and s its height and width.

    Returns: [images, channels s^2, height / s, width / s]

    >>> space_to_depth(data("x", [2, 4, 8, 8]), 2).shape
    (2, 16, 4, 4)
    """


@layer("shuffle_channel")
def shuffle_channel(x: Variable, group: int, name: str | None = None) -> Variable:
    """Interleave the channels of ``group`` groups; it divides the channels of ``x``.

    >>> shuffle_channel(data("x", [2, 4, 8, 8]), 4).shape
    (2, 4, 8, 8)
    """


@layer("temporal_shift")
def temporal_shift(x: Variable, seg_num: int, shift_ratio: float = 0.25, name: str | None = None) -> Variable:
    """Return images, ``seg_num`` consecutive ones being a sequence, with some channels of the neighbouring images.

    >>> temporal_shift(data("x", [2, 4, 8, 8]), 1).shape
    (2, 4, 8, 8)
    """


# Sequences -----------------------------------------------------------------------------------------------------------


@layer("im2sequence", {"filter_size": "", "stride": "", "padding": "", "input_image_size": "Y", "out_stride": ""})
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

    filter_size: Size of a window
    stride: Distance between two
    padding: Zeros around each image
    out_stride: The ratio of the original size to the size of ``input``
    Returns: [all windows, channels * height * width], a LoD tensor: one sequence for each image

    >>> im2sequence(data("input", [2, 4, 8, 8])).shape
    (128, 4)
    """
    sizes = {} if input_image_size is None else {"out_stride": per_dim("out_stride", out_stride, 2)}
    kernels, strides = per_dim("filter_size", filter_size, 2), per_dim("stride", stride, 2)
    return also(kernels=kernels, strides=strides, paddings=four_paddings("padding", padding), **sizes)


@layer("row_conv", {"future_context_size": _CONTEXT_ATTR})
def row_conv(input: Variable, future_context_size: int, param_attr: Any = None, act: Any = None) -> Variable:
    """Return, for each step of sequences, the weighted sum of itself and the next steps, with weights for each column.

    param_attr: Of the weights ``row_conv_0.w_0``, [future_context_size + 1, width]

    >>> row_conv(data("input", [2, 3, 4]), 2).shape
    (2, 3, 4)
    """
    if not input.shape or input.shape[-1] < 1:
        refuse("input", input, "a known last dim, 1 or more")
    return also(Filter=Weight([future_context_size + 1, input.shape[-1]]))
