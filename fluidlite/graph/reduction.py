"""Reductions over axes: sums, products, extremes, means. A reduction over all axes has shape ()."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Union

from fluidlite.base.errors import AttributeValueError, ShapeError
from fluidlite.graph.arithmetic import square
from fluidlite.graph.value import Like, Value, emit, ints_of, named_function, value_like

Axes = Union[int, Sequence[int], None]


def _axes(value: Value, axis: Axes) -> list[int]:
    rank = len(value.shape)
    axes = list(range(rank)) if axis is None else ints_of("axis", axis)
    for item in axes:
        if not -rank <= item < rank:
            raise AttributeValueError(
                f"axis is {axis!r}; {value.name!r} {list(value.shape)} has axes -{rank} to {rank - 1}"
            )
    positive_axes = sorted({item % rank for item in axes})
    if len(positive_axes) != len(axes):
        raise AttributeValueError(f"axis {axis!r} names an axis of {value.name!r} twice")
    return positive_axes


def _reduce(type: str, x: Like, axis: Axes, keepdims: bool) -> Value:
    value = value_like(x)
    axes = _axes(value, axis)
    if not axes:
        return value
    is_full = len(axes) == len(value.shape)
    attrs = {"dim": axes, "keep_dim": keepdims, "reduce_all": is_full}
    out = emit(type, {"X": value}, attrs)
    return emit("reshape2", {"X": out}, {"shape": []}) if is_full and not keepdims else out


class _Reduction(Protocol):
    def __call__(self, x: Like, axis: Axes = None, keepdims: bool = False) -> Value: ...


def _reduction(name: str, type: str, doc: str) -> _Reduction:
    def function(x: Like, axis: Axes = None, keepdims: bool = False) -> Value:
        return _reduce(type, x, axis, keepdims)

    return named_function(function, name, doc)


sum = _reduction("sum", "reduce_sum", "Return the sum over axes; None: over all.")
prod = _reduction("prod", "reduce_prod", "Return the product over axes; None: over all.")
max = _reduction("max", "reduce_max", "Return the maximum over axes; None: over all.")
min = _reduction("min", "reduce_min", "Return the minimum over axes; None: over all.")
mean = _reduction("mean", "reduce_mean", "Return the mean over axes; None: over all.")
any = _reduction("any", "reduce_any", "Return whether any element of a bool value is true over axes; None: over all.")
all = _reduction("all", "reduce_all", "Return whether all elements of a bool value are true over axes; None: over all.")


def variance(x: Like, axis: Axes = None, keepdims: bool = False) -> Value:
    """Return the mean of squared deviations from the mean over axes; None: over all."""
    value = value_like(x)
    axes = _axes(value, axis)
    return _reduce("reduce_mean", square(value - mean(value, axes, True)), axes, keepdims)


def squared_L2(x: Like, axis: Axes = None) -> Value:
    """Return the sum of squares over axes; None: over all."""
    return _reduce("reduce_sum", square(x), axis, False)


def _arg_extreme(type: str, x: Like, axis: int | None) -> Value:
    value = value_like(x)
    if not value.shape:
        raise ShapeError(f"{value.name!r} is a scalar; argmax and argmin need an axis")
    if axis is not None:
        _axes(value, axis)
        if len(value.shape) > 1:
            return emit(type, {"X": value}, {"axis": axis, "dtype": "int64"}, fixed=True)
    flat = emit("reshape2", {"X": value}, {"shape": [-1]}) if len(value.shape) > 1 else value
    return emit("reshape2", {"X": emit(type, {"X": flat}, {"axis": 0, "dtype": "int64"}, fixed=True)}, {"shape": []})


def argmax(x: Like, axis: int | None = None) -> Value:
    """Return the index of the first maximum along an axis, as int64; None: in the flattened value."""
    return _arg_extreme("arg_max", x, axis)


def argmin(x: Like, axis: int | None = None) -> Value:
    """Return the index of the first minimum along an axis, as int64; None: in the flattened value."""
    return _arg_extreme("arg_min", x, axis)
