"""Slicing, padding and moving elements: slice, crop, multiplex, expand, pad, reverse, roll, tril."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite.layer_helper import (
    refuse,
)
from fluidlite.layers.declare import VariableList, also, layer
from fluidlite.layers.int_or_variable import NumberArgument
from fluidlite.program.variable import Variable

# Slice and crop ------------------------------------------------------------------------------------------------------


def _bounds(axes: Sequence[int], **bounds: NumberArgument) -> dict[str, Any]:
    """The attributes of bounds, and flags of axes with Variables as bounds: these are 0 in attributes, strides 1."""
    flags = [1] * len(axes)
    attrs: dict[str, Any] = {"infer_flags": flags}
    for name, bound in bounds.items():
        unknowns = bound.unknown if bound.attr or not bound.inputs else [True] * len(axes)
        flags[:] = [-1 if i < len(unknowns) and unknowns[i] else flag for i, flag in enumerate(flags)]
        attrs[name] = [int(name == "strides") if unknown else n for n, unknown in zip(*bound[::2], strict=True)]
    return attrs


@layer("slice")
def slice(input: Variable, axes: Sequence[int], starts: Any, ends: Any) -> Variable:
    """Return a range of each of some dims.

    >>> slice(data("input", [2, 3, 4]), 2, [0], 2).shape
    (2, 3, 2)
    """
    return also(**_bounds(axes, starts=starts, ends=ends))


@layer("strided_slice")
def strided_slice(input: Variable, axes: Sequence[int], starts: Any, ends: Any, strides: Any) -> Variable:
    """Return a range, with a stride, of each of some dims.

    >>> strided_slice(data("input", [2, 3, 4]), 1, data("starts", [1], "int64"), 4, 4).shape
    (2, -1, 4)
    """
    return also(**_bounds(axes, starts=starts, ends=ends, strides=strides))


@layer("crop", {"shape": "shape|Y"})
def crop(x: Variable, shape: Any = None, offsets: Any = None, name: str | None = None) -> Variable:
    """Return a block of ``x``.

    shape: Dims of the block, or a Variable that has them
    offsets: The begin of the block; default: 0

    >>> crop(data("x", [2, 3, 4]), [1, 2, 2]).shape
    (1, 2, 2)
    """
    if shape is None:
        refuse("shape", None, "dims, or a Variable that has them")
    return also() if offsets is not None else also(offsets=[0] * len(x.shape))


@layer("crop_tensor")
def crop_tensor(x: Variable, shape: Any = None, offsets: Any = None, name: str | None = None) -> Variable:
    """Return a block of ``x``.

    shape: Dims of the block; -1: all from the offset on. A Variable has the dims as integers.
    offsets: The begin of the block; default: 0

    >>> crop_tensor(data("x", [2, 3, 4]), [1, 2, 2]).shape
    (1, 2, 2)
    """
    if shape is None:
        refuse("shape", None, "dims: ints, Variables, or one Variable that holds them")
    return also() if offsets is not None else also(offsets=[0] * len(x.shape))


@layer("multiplex", {"inputs": "X", "index": "Ids"})
def multiplex(inputs: Sequence[Variable], index: Variable) -> Variable:
    """Select rows: row ``i`` is that of ``inputs[index[i]]``.

    index: Integers, [rows, 1]
    Raises: At a run, if an index is out of range

    >>> multiplex([data("inputs1", [2, 4]), data("inputs2", [2, 4])], data("index", [2, 1], "int64")).shape
    (2, 4)
    """


# Expand and pad ------------------------------------------------------------------------------------------------------


@layer("expand")
def expand(x: Variable, expand_times: Any, name: str | None = None) -> Variable:
    """Repeat ``x`` along each dim by ``expand_times`` (ints, Variables, or one Variable).

    >>> expand(data("x", [4, 4]), [2, 2]).shape
    (8, 8)
    """


@layer("expand_as")
def expand_as(x: Variable, target_tensor: Variable, name: str | None = None) -> Variable:
    """Repeat ``x`` along each dim, up to the dims of ``target_tensor``, which are multiples of its own.

    >>> expand_as(data("x", [2], "int64"), data("target_tensor", [2], "int64")).shape
    (2,)
    """


@layer("pad")
def pad(x: Variable, paddings: Sequence[int], pad_value: float = 0.0, name: str | None = None) -> Variable:
    """Put ``pad_value`` around ``x``.

    >>> pad(data("x", [2, 1], "int64"), [1, 1, 1, 1]).shape
    (4, 3)
    """


@layer("pad2d")
def pad2d(
    input: Variable,
    paddings: Any = [0, 0, 0, 0],  # noqa: B006  Fluid's default
    mode: str = "constant",
    pad_value: float = 0.0,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Put a border around images.

    Raises: If the mirrored border is not smaller than the image

    >>> pad2d(data("input", [2, 4, 8, 8])).shape
    (2, 4, 8, 8)
    """
    return also(paddings=[]) if isinstance(paddings, Variable) else also()


@layer("pad_constant_like")
def pad_constant_like(x: Variable, y: Variable, pad_value: float = 0.0, name: str | None = None) -> Variable:
    """Return ``y`` with ``pad_value`` behind each dim, up to the dims of ``x``.

    >>> pad_constant_like(data("x", [2, 1], "int64"), data("y", [2, 1])).shape
    (2, 1)
    """


@layer("meshgrid")
def meshgrid(input: Sequence[Variable], name: str | None = None) -> list[Variable]:
    """Return each vector repeated along the dims of the others.

    Returns: Each of the dims [size of the first, size of the second, ...]

    >>> [each.shape for each in meshgrid(data("input", [2], "int64"))]
    [(2,)]
    """
    return also(Out=VariableList("input", len(input)))


# Reverse and roll ----------------------------------------------------------------------------------------------------


@layer("reverse")
def reverse(x: Variable, axis: int | Sequence[int]) -> Variable:
    """Return ``x`` with the dims in ``axis`` in reverse order.

    >>> reverse(data("x", [2, 4, 8, 8]), [0]).shape
    (2, 4, 8, 8)
    """


@layer("flip")
def flip(input: Variable, dims: int | Sequence[int], name: str | None = None) -> Variable:
    """Return ``input`` with the dims in ``dims`` in reverse order.

    >>> flip(data("input", [2, 4, 8, 8]), [0]).shape
    (2, 4, 8, 8)
    """


@layer("roll")
def roll(input: Variable, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Variable:
    """Rotate dims: elements shifted beyond the end enter at the begin.

    >>> roll(data("input", [2, 4]), 4).shape
    (2, 4)
    """


@layer("tril_triu", attrs={"lower": True})
def tril(input: Variable, diagonal: int = 0, name: str | None = None) -> Variable:
    """Return the matrices of ``input`` on and below a diagonal (0: the main one, 1: that above), else 0.

    >>> tril(data("input", [2, 4, 4, 8, 8])).shape
    (2, 4, 4, 8, 8)
    """


@layer("tril_triu", attrs={"lower": False})
def triu(input: Variable, diagonal: int = 0, name: str | None = None) -> Variable:
    """Return the matrices of ``input`` on and above a diagonal (0: the main one, 1: that above), else 0.

    >>> triu(data("input", [2, 4, 8, 8])).shape
    (2, 4, 8, 8)
    """
