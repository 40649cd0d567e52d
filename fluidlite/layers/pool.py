"""Pooling layers: pool2d, pool3d and their adaptive forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite.base.errors import AttributeValueError
from fluidlite.framework.variable import Variable
from fluidlite.layer_helper import LayerHelper, check_variable, refuse
from fluidlite.layers.common import append
from fluidlite.layers.conv import _paddings, _per_dim

__all__ = ["adaptive_pool2d", "adaptive_pool3d", "pool2d", "pool3d"]

Size = int | Sequence[int]
_FORMATS = {2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}


def pool2d(
    input: Variable,
    pool_size: Size = -1,
    pool_type: str = "max",
    pool_stride: Size = 1,
    pool_padding: Size | Sequence[Sequence[int]] | str = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
    data_format: str = "NCHW",
) -> Variable:
    """Return the greatest element, or the mean, of windows of each channel.

    The result is (size + padding - pool_size) // pool_stride + 1 high and wide.

    Parameters
    ----------
    input : Variable
        Images, [images, channels, height, width] ([images, height, width, channels] if ``data_format`` is "NHWC"),
        floating.
    pool_size : int or (height, width)
        Size of a window; needed unless ``global_pooling``.
    pool_type : str
        "max" or "avg".
    pool_stride : int or (height, width)
        Distance between two windows.
    pool_padding : int, (height, width), (top, bottom, left, right), a pair for each dim of input, "SAME" or "VALID"
        What windows may reach beyond the image. It is never the greatest element. "SAME": the result has
        ceil(size / stride) windows.
    global_pooling : bool
        One window: the whole image, whatever ``pool_size`` and ``pool_padding`` say.
    use_cudnn : bool
        A hint.
    ceil_mode : bool
        A last window may be partly outside: the division above is rounded up.
    name : str, optional
    exclusive : bool
        The mean counts elements of the image only, not the padding.
    data_format : str
        "NCHW" or "NHWC".

    Returns
    -------
    Variable

    Raises
    ------
    ProgramError, AttributeValueError, ShapeError
        An argument has another form, "VALID" meets ``ceil_mode``, or no window fits in the padded image.
    """
    return _pool(
        2, input, pool_size, pool_type, pool_stride, pool_padding, global_pooling, use_cudnn, ceil_mode, name,
        exclusive, data_format,
    )  # fmt: skip


def pool3d(
    input: Variable,
    pool_size: Size = -1,
    pool_type: str = "max",
    pool_stride: Size = 1,
    pool_padding: Size | Sequence[Sequence[int]] | str = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
    data_format: str = "NCDHW",
) -> Variable:
    """Return the greatest element, or the mean, of windows of each channel of a volume.

    Parameters are those of :func:`pool2d` with a depth before height and width; ``input`` is
    [images, channels, depth, height, width], or with "NDHWC" [images, depth, height, width, channels].

    Parameters
    ----------
    input : Variable
    pool_size : int or (depth, height, width)
    pool_type : str
        "max" or "avg".
    pool_stride : int or (depth, height, width)
    pool_padding : int, (depth, height, width), six numbers, a pair for each dim of input, "SAME" or "VALID"
    global_pooling : bool
    use_cudnn : bool
        A hint.
    ceil_mode : bool
    name : str, optional
    exclusive : bool
    data_format : str
        "NCDHW" or "NDHWC".

    Returns
    -------
    Variable
    """
    return _pool(
        3, input, pool_size, pool_type, pool_stride, pool_padding, global_pooling, use_cudnn, ceil_mode, name,
        exclusive, data_format,
    )  # fmt: skip


def adaptive_pool2d(
    input: Variable, pool_size: Size, pool_type: str = "max", require_index: bool = False, name: str | None = None
) -> Variable | tuple[Variable, Variable]:
    """Return the greatest element, or the mean, of as many windows as are asked for.

    Window i of n covers floor(i size / n) to ceil((i + 1) size / n) of a dim.

    Parameters
    ----------
    input : Variable
        Images, [images, channels, height, width], floating.
    pool_size : int or (height, width)
        Height and width of the result.
    pool_type : str
        "max" or "avg".
    require_index : bool
        With "max": return also where each element was, as int32 indices into its plane.
    name : str, optional

    Returns
    -------
    Variable, or (Variable, Variable) if ``require_index``

    Raises
    ------
    ProgramError, AttributeValueError, ShapeError
        An argument has another form, or ``require_index`` is asked of means.
    """
    return _adaptive(2, input, pool_size, pool_type, require_index, name)


def adaptive_pool3d(
    input: Variable, pool_size: Size, pool_type: str = "max", require_index: bool = False, name: str | None = None
) -> Variable | tuple[Variable, Variable]:
    """Return the greatest element, or the mean, of as many windows of a volume as are asked for.

    Parameters are those of :func:`adaptive_pool2d` with a depth before height and width.

    Parameters
    ----------
    input : Variable
        Volumes, [images, channels, depth, height, width].
    pool_size : int or (depth, height, width)
        Dims of the result.
    pool_type : str
        "max" or "avg".
    require_index : bool
        Return where the greatest elements are too.
    name : str, optional

    Returns
    -------
    Variable
        With ``require_index`` (result, places): int32, each place counted within its volume.
    """
    return _adaptive(3, input, pool_size, pool_type, require_index, name)


def _check_type(pool_type: Any) -> str:
    if pool_type not in ("max", "avg"):
        refuse("pool_type", pool_type, "'max' or 'avg'", error=AttributeValueError)
    return str(pool_type)


def _pool(
    spatial: int, input: Variable, pool_size: Any, pool_type: str, pool_stride: Any, pool_padding: Any,
    global_pooling: bool, use_cudnn: bool, ceil_mode: bool, name: str | None, exclusive: bool, data_format: str,
) -> Variable:  # fmt: skip
    check_variable("input", input)
    if data_format not in _FORMATS[spatial]:
        refuse("data_format", data_format, " or ".join(map(repr, _FORMATS[spatial])), error=AttributeValueError)
    if pool_size == -1 and not global_pooling:
        do = "say pool_size, or global_pooling=True"
        refuse("pool_size", pool_size, f"an int of 1 or more, or {spatial} of them", do, error=AttributeValueError)
    paddings, algorithm = _paddings(pool_padding, spatial, data_format, "pool_padding")
    if algorithm == "VALID" and ceil_mode:
        refuse("ceil_mode", ceil_mode, "False, since pool_padding is 'VALID'", error=AttributeValueError)
    attrs = {
        "pooling_type": _check_type(pool_type),
        "ksize": _per_dim("pool_size", pool_size, spatial, -1 if global_pooling else 1),
        "global_pooling": global_pooling, "strides": _per_dim("pool_stride", pool_stride, spatial),
        "paddings": paddings, "padding_algorithm": algorithm, "use_cudnn": use_cudnn, "ceil_mode": ceil_mode,
        "use_mkldnn": False, "exclusive": exclusive, "data_format": data_format,
    }  # fmt: skip
    return append(f"pool{spatial}d", f"pool{spatial}d", {"X": input}, attrs, name=name)


def _adaptive(
    spatial: int, input: Variable, pool_size: Any, pool_type: str, require_index: bool, name: str | None
) -> Variable | tuple[Variable, Variable]:
    check_variable("input", input)
    if _check_type(pool_type) == "avg" and require_index:
        refuse("require_index", require_index, "False, since pool_type is 'avg'", error=AttributeValueError)
    attrs: dict[str, Any] = {"ksize": _per_dim("pool_size", pool_size, spatial), "adaptive": True}
    if pool_type == "avg":
        attrs["pooling_type"] = pool_type
        return append(f"pool{spatial}d", f"pool{spatial}d", {"X": input}, attrs, name=name)
    type = f"max_pool{spatial}d_with_index"
    helper = LayerHelper(type, name=name)
    out = helper.create_variable_for_type_inference(input.dtype)
    mask = helper.create_variable_for_type_inference("int32", stop_gradient=True)
    helper.append_op(type, {"X": input}, {"Out": out, "Mask": mask}, attrs)
    return (out, mask) if require_index else out
