"""Neural network functions: convolution, pooling, lookup, softmax, cross entropies, random values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from fluidlite.base.errors import AttributeValueError, ShapeError
from fluidlite.compiler.ir.node import WRITE
from fluidlite.graph import reduction
from fluidlite.graph.arithmetic import multiply, negative, safelog
from fluidlite.graph.value import Like, Value, as_value, emit, ints_of, pair, value_like
from fluidlite.program.operator import Operator
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor_spec import all_dims_compatible

Size = Union[int, Sequence[int]]


def _sizes(name: str, size: Size, count: int) -> list[int]:
    sizes = ints_of(name, size)
    sizes = sizes * count if isinstance(size, (int, np.integer)) else sizes
    if len(sizes) != count:
        raise AttributeValueError(f"{name} is {size!r}; expected an int, or {count} of them")
    return sizes


def _spatial(what: str, value: Value) -> int:
    count = len(value.shape) - 2
    if count not in (2, 3):
        raise ShapeError(
            f"{what} of {value.name!r} {list(value.shape)}; expected [images, channels, height, width] "
            "or [volumes, channels, depth, height, width]"
        )
    return count


def convolution(
    inputs: Like, filters: Like, strides: Size = 1, padding: Size = 0, dilation: Size = 1, groups: int = 1
) -> Value:
    """Return the convolution of images or volumes with filters.

    Parameters
    ----------
    inputs : Value
        [images, channels, height, width] or [volumes, channels, depth, height, width].
    filters : Value
        [filters, channels / groups, height, width], with depth before height for volumes.
    strides, padding, dilation : int, or one for each spatial axis
    groups : int

    Returns
    -------
    Value
        [images, filters, ...].
    """
    return _convolution("convolution", "", inputs, filters, strides, padding, dilation, groups)


def deconvolution(
    inputs: Like, filters: Like, strides: Size = 1, padding: Size = 0, dilation: Size = 1, groups: int = 1
) -> Value:
    """Return the transposed convolution, which is the gradient of a convolution with respect to its inputs.

    Parameters
    ----------
    inputs : Value
        [images, channels, ...].
    filters : Value
        [channels, filters / groups, ...].
    strides, padding, dilation : int, or one for each spatial axis
    groups : int

    Returns
    -------
    Value
        [images, filters, ...], each spatial dim (size - 1) strides - 2 padding + dilation (filter - 1) + 1.
    """
    return _convolution("deconvolution", "_transpose", inputs, filters, strides, padding, dilation, groups)


def _convolution(
    what: str, suffix: str, inputs: Like, filters: Like, strides: Size, padding: Size, dilation: Size, groups: int
) -> Value:
    x, w = pair(inputs, filters)
    n = _spatial(what, x)
    attrs = {
        "strides": _sizes("strides", strides, n),
        "paddings": _sizes("padding", padding, n),
        "dilations": _sizes("dilation", dilation, n),
        "groups": groups,
    }
    return emit(f"conv{n}d{suffix}", {"Input": x, "Filter": w}, attrs, slot="Output")


def pooling(inputs: Like, size: Size, op: str = "max", strides: Size | None = None, padding: Size = 0) -> Value:
    """Return the maximum ("max") or the mean ("avg") of windows of each channel.

    Parameters
    ----------
    inputs : Value
        [images, channels, height, width] or [volumes, channels, depth, height, width].
    size : int, or one for each spatial axis
    op : {"max", "avg"}
    strides : int, or one for each spatial axis, optional
        Default: ``size``.
    padding : int, or one for each spatial axis
        Padding is excluded from means.
    """
    x = value_like(inputs)
    n = _spatial("pooling", x)
    attrs = {
        "pooling_type": op,
        "ksize": _sizes("size", size, n),
        "paddings": _sizes("padding", padding, n),
        "strides": _sizes("strides", size if strides is None else strides, n),
    }
    return emit(f"pool{n}d", {"X": x}, attrs)


def lookup_table(lut: Like, idx: Like) -> Value:
    """Return rows of a table by integer indices.

    Parameters
    ----------
    lut : Value
        [rows, width].
    idx : Value
        int64 or int32 of any dims; indices outside 0 to rows - 1 raise at run time.

    Returns
    -------
    Value
        [..., width].
    """
    table = value_like(lut)
    return emit("lookup_table_v2", {"W": table, "Ids": value_like(idx, "int64", table)})


def softmax(x: Like, axis: int = -1) -> Value:
    """Return exp(x) divided by its sum along an axis."""
    return emit("softmax", {"X": value_like(x)}, {"axis": axis})


def _producer(value: Variable, type: str) -> Operator | None:
    """Return the operator that computes a value, if it has the type and its input X is unchanged since then.

    None for a value that is passed as an argument.
    """
    written: set[str] = set()
    for op in reversed(value.block.ops) if not getattr(value, "is_input", False) else ():
        if value.name in op.output_arg_names:
            return op if op.type == type and written.isdisjoint(op.inputs["X"]) else None
        written.update(op.output_arg_names, [op.attrs["state"]] if op.type == WRITE.type else [])
    return None


_MIN_LOG = -50.0
"""Minimum of the logarithm of a probability in a cross entropy, as in :func:`safelog`."""


def _clamped_log(log: Value) -> Value:
    """Return a logarithm clamped to at least ``_MIN_LOG``; the derivative is that of the unclamped logarithm."""
    return emit("straight_through_max", {"X": log}, {"value": _MIN_LOG})


def cross_entropy_multi(y: Like, t: Like, axis: int = -1) -> Value:
    """Return the sum of -t log(y) along the axis of classes; logarithms are clamped to at least -50.

    If y is a :func:`softmax` along the same axis, it is computed from the logits x, which is accurate: the derivative
    with respect to x is softmax(x) sum(t) - t, also for clamped logarithms.

    Parameters
    ----------
    y : Value
        Probabilities, of any dims that have the axis.
    t : Value
        One-hot or soft targets, of the dims of y. They need not sum to 1, and are differentiable.
    axis : int

    Returns
    -------
    Value
        Has the dims of y without that axis.

    Raises
    ------
    ValueError
        If the dims differ.
    """
    probabilities, targets = pair(y, t)
    _same_dims("cross_entropy_multi", probabilities, targets)
    rank = len(probabilities.shape)
    producer = _producer(probabilities, "softmax")
    if producer is not None and rank and producer.attrs["axis"] % rank == axis % rank:
        log = _clamped_log(emit("log_softmax", {"X": _logits(probabilities, producer)}, {"axis": axis}))
    else:
        log = safelog(probabilities)
    return negative(reduction.sum(multiply(targets, log), axis))


def cross_entropy_binary(y: Like, t: Like) -> Value:
    """Return -t log(y) - (1 - t) log(1 - y), elementwise; logarithms are clamped to at least -50.

    If y is a :func:`sigmoid`, it is computed from the logits x, which is accurate: the derivative with respect to x is
    sigmoid(x) - t, also for clamped logarithms.

    Parameters
    ----------
    y : Value
        Probabilities.
    t : Value
        Targets in 0 to 1, of the dims of y; they are differentiable.

    Raises
    ------
    ValueError
        If the dims differ.
    """
    probabilities, targets = pair(y, t)
    _same_dims("cross_entropy_binary", probabilities, targets)
    producer = _producer(probabilities, "sigmoid")
    if producer is not None:
        x = _logits(probabilities, producer)
        log_y, log_not_y = (_clamped_log(emit("logsigmoid", {"X": each})) for each in (x, negative(x)))
    else:
        log_y, log_not_y = safelog(probabilities), safelog(1 - probabilities)
    return negative(multiply(targets, log_y) + (1 - targets) * log_not_y)


def _logits(probabilities: Value, producer: Operator) -> Value:
    """Return the input of the operator that computes probabilities."""
    return as_value(probabilities.block.var(producer.inputs["X"][0]))


def _same_dims(what: str, y: Value, t: Value) -> None:
    if not all_dims_compatible(y.shape, t.shape):
        raise ShapeError(f"{what}: y has dims {list(y.shape)}, t has {list(t.shape)}; they must be equal")


def uniform(shape: Any, low: float = 0.0, high: float = 1.0, dtype: str = "float32") -> Value:
    """Return uniform random numbers from ``low`` to ``high``, different at each call.

    Parameters
    ----------
    shape : dims, or a Value with the dims
    low, high : float
    dtype : str
        Dtype of the result; that of ``shape``, if it is a Value.
    """
    return _random_values("uniform_random", shape, dtype, min=float(low), max=float(high))


def normal(shape: Any, loc: float = 0.0, scale: float = 1.0, dtype: str = "float32") -> Value:
    """Return normal random numbers with mean ``loc`` and standard deviation ``scale``, different at each call.

    Parameters
    ----------
    shape : dims, or a Value with the dims
    loc, scale : float
    dtype : str
        Dtype of the result; that of ``shape``, if it is a Value.
    """
    return _random_values("gaussian_random", shape, dtype, mean=float(loc), std=float(scale))


def _random_values(type: str, shape: Any, dtype: str, **attrs: float) -> Value:
    """Return random numbers of some dims, or of the dims and dtype of a Value."""
    if not isinstance(shape, Variable):
        return emit(type, {}, {"shape": ints_of("shape", shape, 0), "dtype": dtype, **attrs}, fixed=True)
    if any(d < 0 for d in shape.shape):
        raise ShapeError(f"{shape.name!r} has dims {list(shape.shape)}; random values need known dims")
    return emit(type, {}, {"shape": list(shape.shape), "dtype": shape.dtype, **attrs}, fixed=True, beside=shape)
