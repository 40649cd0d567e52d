"""Pooling layers: pool2d, pool3d and their adaptive forms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, overload

from fluidlite.base.arguments import as_int
from fluidlite.base.errors import AttributeValueError
from fluidlite.layer_helper import refuse
from fluidlite.layers.conv import _paddings, check_format, per_dim
from fluidlite.layers.declare import BodyArg, Names, Returned, also, layer, layer_like
from fluidlite.program.opdef import Attr
from fluidlite.program.variable import Variable

Size = int | Sequence[int]


_NAMES: Names = {
    "pool_size": BodyArg("ksize"),
    "pool_type": "pooling_type",
    "pool_stride": BodyArg("strides"),
    "pool_padding": BodyArg("paddings"),
    "data_format": "",
}
_POOL_TYPE = Attr("pool_type", "str", choices=("max", "avg"))
_ADAPTIVE_NAMES: Names = {"pool_size": BodyArg("ksize"), "pool_type": _POOL_TYPE, "require_index": Returned("Mask")}


def _pool(spatial: int, **arguments: Any) -> Any:
    size, is_global, data_format = arguments["pool_size"], arguments["global_pooling"], arguments["data_format"]
    check_format(spatial, data_format)
    if as_int(size) == -1 and not is_global:
        do = "say pool_size, or global_pooling=True"
        refuse("pool_size", size, f"an int of 1 or more, or {spatial} of them", do, error=AttributeValueError)
    paddings, algorithm = _paddings(arguments["pool_padding"], spatial, data_format, "pool_padding")
    if algorithm == "VALID" and arguments["ceil_mode"]:
        refuse("ceil_mode", True, "False, since pool_padding is 'VALID'", error=AttributeValueError)
    return also(
        ksize=per_dim("pool_size", size, spatial, -1 if is_global else 1),
        strides=per_dim("pool_stride", arguments["pool_stride"], spatial),
        paddings=paddings,
        padding_algorithm=algorithm,
        data_format=data_format,
    )


def _adaptive(spatial: int, **arguments: Any) -> Any:
    pool_type, require_index = arguments["pool_type"], arguments["require_index"]
    size = per_dim("pool_size", arguments["pool_size"], spatial)
    if pool_type == "max":
        return also(ksize=size, adaptive=True)
    if require_index:
        refuse("require_index", require_index, "False, since pool_type is 'avg'", error=AttributeValueError)
    return also(f"pool{spatial}d", ksize=size, adaptive=True, pooling_type="avg")


@layer("pool2d", _NAMES, body=partial(_pool, 2))
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
    """Return the maximum, or the mean, of windows of each channel.

    The result is (size + padding - pool_size) // pool_stride + 1 high and wide.

    input: Images, [images, channels, height, width] ([images, height, width, channels] if ``data_format`` is "NHWC"),
        floating
    pool_size: Size of a window; needed unless ``global_pooling``
    pool_padding: How far windows may reach beyond the image. Padding is never the maximum. "SAME": the result has
        ceil(size / stride) windows.
    data_format: "NCHW" or "NHWC"
    Raises: An argument has another form, "VALID" meets ``ceil_mode``, or no window fits in the padded image

    >>> pool2d(data("input", [2, 4, 8, 8]), 2).shape
    (2, 4, 7, 7)
    """


@layer_like(pool2d, "pool3d", body=partial(_pool, 3), data_format="NCDHW")
def pool3d() -> None:
    """Return the maximum, or the mean, of windows of each channel of a volume.

    Parameters are those of :func:`pool2d` with a depth before height and width; ``input`` is
    [images, channels, depth, height, width], or with "NDHWC" [images, depth, height, width, channels].

    data_format: "NCDHW" or "NDHWC"

    >>> pool3d(data("input", [2, 4, 4, 8, 8]), 2).shape
    (2, 4, 3, 7, 7)
    """


@overload
def adaptive_pool2d(
    input: Variable, pool_size: Size, pool_type: str = ..., require_index: Literal[False] = ..., name: str | None = ...
) -> Variable: ...


@overload
def adaptive_pool2d(
    input: Variable, pool_size: Size, pool_type: str = ..., *, require_index: Literal[True], name: str | None = ...
) -> tuple[Variable, Variable]: ...


@layer("max_pool2d_with_index", _ADAPTIVE_NAMES, returns="Out", stop_gradient=("Mask",), body=partial(_adaptive, 2))
def adaptive_pool2d(
    input: Variable, pool_size: Size, pool_type: str = "max", require_index: bool = False, name: str | None = None
) -> Variable | tuple[Variable, Variable]:
    """Return the maximum, or the mean, of a given number of windows.

    Window i of n covers floor(i size / n) to ceil((i + 1) size / n) of a dim.

    input: Images, [images, channels, height, width], floating
    pool_size: Height and width of the result
    require_index: With "max": return also where each element was, as int32 indices into its plane
    Raises: An argument has another form, or ``require_index`` is true for means

    >>> adaptive_pool2d(data("input", [2, 4, 8, 8]), [2, 2]).shape
    (2, 4, 2, 2)
    """


@layer_like(adaptive_pool2d, "max_pool3d_with_index", body=partial(_adaptive, 3))
def adaptive_pool3d() -> None:
    """Return the maximum, or the mean, of a given number of windows of a volume.

    Parameters are those of :func:`adaptive_pool2d` with a depth before height and width.

    input: Volumes, [images, channels, depth, height, width]
    pool_size: Dims of the result
    require_index: Also return the indices of the maxima
    Returns: With ``require_index`` (result, indices): int32, each index counts within its volume

    >>> adaptive_pool3d(data("input", [2, 4, 4, 8, 8]), 1).shape
    (2, 4, 1, 1, 1)
    """
