"""Shape functions: reshape, transpose, slice, stack, concat, pad, one-hot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from fluidlite.base.errors import AttributeValueError, ProgramError
from fluidlite.graph.value import Like, Value, emit, full, ints_of, value_like


def reshape(x: Like, shape: Sequence[int]) -> Value:
    """Return the elements of x in other dims; one dim may be -1, which is inferred."""
    dims = ints_of("shape", shape, -1)
    value = value_like(x)
    if 0 in dims:  # for the operator, 0 means the dim of the input
        if 0 not in value.shape and -1 not in value.shape:
            raise ProgramError(f"{value.name!r} {list(value.shape)} has elements; it cannot become {dims}")
        if any(d == 0 and (i >= len(value.shape) or value.shape[i] != 0) for i, d in enumerate(dims)):
            return full(0, dims, value.dtype, value)
    return emit("reshape2", {"X": value}, {"shape": dims})


def flatten(x: Like) -> Value:
    """Return the elements of x in one dim."""
    return emit("reshape2", {"X": value_like(x)}, {"shape": [-1]})


def transpose(x: Like, axes: Sequence[int] | None = None) -> Value:
    """Return x with permuted axes; None: in reverse order."""
    value = value_like(x)
    rank = len(value.shape)
    order = list(range(rank))[::-1] if axes is None else ints_of("axes", axes)
    if not rank:
        return value
    return emit("transpose2", {"X": value}, {"axis": [a + rank if a < 0 else a for a in order]})


def expand_dims(x: Like, axis: Union[int, Sequence[int]]) -> Value:
    """Return x with dims of 1 inserted at axes of the result."""
    axes = ints_of("axis", axis)
    return emit("unsqueeze2", {"X": value_like(x)}, {"axes": axes})


def squeeze(x: Like, axis: Union[int, Sequence[int], None] = None) -> Value:
    """Return x without dims of 1 at some axes; None: at all axes."""
    axes = [] if axis is None else ints_of("axis", axis)
    return emit("squeeze2", {"X": value_like(x)}, {"axes": axes})


def tensor_slice(x: Like, slices: Sequence[Any]) -> Value:
    """Return ``x[slices]``, with an int or a slice for each axis."""
    return value_like(x)[tuple(slices)]


def _values(x_list: Sequence[Like], what: str) -> list[Value]:
    if not isinstance(x_list, (list, tuple)) or not x_list:
        raise ProgramError(f"{what} takes a list of one value or more, got {x_list!r}")
    values = [value_like(x) for x in x_list]
    if len({value.dtype for value in values}) > 1:
        raise ProgramError(f"{what} takes values of one dtype, got {', '.join(value.dtype for value in values)}")
    return values


def stack(x_list: Sequence[Like], axis: int = 0) -> Value:
    """Return values of equal dims, stacked along a new axis."""
    return emit("stack", {"X": _values(x_list, "stack")}, {"axis": axis}, slot="Y")


def concat(x_list: Sequence[Like], axis: int = 0) -> Value:
    """Return values concatenated along an axis; the other dims are equal."""
    return emit("concat", {"X": _values(x_list, "concat")}, {"axis": axis})


def pad(x: Like, paddings: Sequence[Union[int, tuple[int, int]]], value: float = 0.0) -> Value:
    """Return x padded with a number.

    Parameters
    ----------
    x : Value
    paddings : one int or pair (before, after) for each axis
    value : float
    """
    inner = value_like(x)
    items = paddings if isinstance(paddings, (list, tuple)) else [paddings]
    pairs = [ints_of("paddings", item, 0) * (2 if isinstance(item, (int, np.integer)) else 1) for item in items]
    if len(pairs) != len(inner.shape) or any(len(item) != 2 for item in pairs):
        raise AttributeValueError(
            f"paddings is {paddings!r}; expected an int or a pair for each of the {len(inner.shape)} axes"
        )
    return emit("pad", {"X": inner}, {"paddings": [n for item in pairs for n in item], "pad_value": float(value)})


def one_hot(x: Like, depth: int, axis: int = -1, dtype: str = "float32") -> Value:
    """Return the one-hot encoding of integer classes, along a new axis of ``depth`` classes.

    A class outside 0 to ``depth`` - 1 raises at run time.
    """
    value = value_like(x, "int64")
    rank = len(value.shape)
    if not -rank - 1 <= axis <= rank:
        raise AttributeValueError(f"axis is {axis}; the result has {rank + 1} axes")
    if not rank:
        value = emit("reshape2", {"X": value}, {"shape": [1]})
    out = emit("one_hot_v2", {"X": value}, {"depth": depth, "dtype": dtype}, fixed=True)
    if not rank:
        return emit("reshape2", {"X": out}, {"shape": [depth]}, fixed=True)
    at = axis + rank + 1 if axis < 0 else axis
    order = [*range(at), rank, *range(at, rank)]
    return out if at == rank else emit("transpose2", {"X": out}, {"axis": order}, fixed=True)
