"""Parts of networks: convolution, pooling, look-up, softmax, cross entropies, random values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from fluidlite.base.errors import AttributeValueError, ShapeError
from fluidlite.graph import reduction
from fluidlite.graph.arithmetic import multiply, negative, safelog
from fluidlite.graph.value import Like, Value, as_value, emit, ints_of, pair, value_like
from fluidlite.program.operator import Operator
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor_spec import all_agree

Size = Union[int, Sequence[int]]


def _sizes(name: str, size: Size, count: int) -> list[int]:
    found = ints_of(name, size)
    found = found * count if isinstance(size, (int, np.integer)) else found
    if len(found) != count:
        raise AttributeValueError(f"{name} is {size!r}; expected an int, or {count} of them")
    return found


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
    """Return each filter's sums of products with the windows of images or volumes.

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
    return _convolved("convolution", "", inputs, filters, strides, padding, dilation, groups)


def deconvolution(
    inputs: Like, filters: Like, strides: Size = 1, padding: Size = 0, dilation: Size = 1, groups: int = 1
) -> Value:
    """Return the transpose of a convolution: what it would pass back to its inputs.

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
    return _convolved("deconvolution", "_transpose", inputs, filters, strides, padding, dilation, groups)


def _convolved(
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
    """Return the greatest element ("max") or the mean ("avg") of windows of each channel.

    Parameters
    ----------
    inputs : Value
        [images, channels, height, width] or [volumes, channels, depth, height, width].
    size : int, or one for each spatial axis
    op : {"max", "avg"}
    strides : int, or one for each spatial axis, optional
        Default: ``size``.
    padding : int, or one for each spatial axis
        Outside is no part of a mean.
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
        int64 or int32 of any dims; outside 0 to rows - 1 it raises when it runs.

    Returns
    -------
    Value
        [..., width].
    """
    table = value_like(lut)
    return emit("lookup_table_v2", {"W": table, "Ids": value_like(idx, "int64", table)})


def softmax(x: Like, axis: int = -1) -> Value:
    """Return exp(x) over its sum along an axis."""
    return emit("softmax", {"X": value_like(x)}, {"axis": axis})


def _producer(value: Variable, type: str) -> Operator | None:
    """The operator that makes a value, if it has that type."""
    for op in reversed(value.block.ops):
        if value.name in op.output_arg_names:
            return op if op.type == type else None
    return None


_LEAST_LOG = -50.0
"""The least logarithm of a probability in a cross entropy, as in :func:`safelog`."""


def _limited(log: Value) -> Value:
    """A logarithm from the limit on; its derivative is that of the unlimited one."""
    return emit("straight_through_max", {"X": log}, {"value": _LEAST_LOG})


def cross_entropy_multi(y: Like, t: Like, axis: int = -1) -> Value:
    """Return the sum of -t log(y) along the axis of classes; a logarithm counts as -50 at least.

    Of a :func:`softmax` along the same axis it is computed from the logits x, which loses no digits: its derivative
    with respect to x is softmax(x) sum(t) - t, beyond the limit too.

    Parameters
    ----------
    y : Value
        Probabilities, of any dims that have the axis.
    t : Value
        One-hot or soft targets, of the dims of y. They need not sum to 1, and have a derivative as y has.
    axis : int

    Returns
    -------
    Value
        Without that axis.

    Raises
    ------
    ValueError
        If the dims differ.
    """
    probabilities, targets = pair(y, t)
    _same_dims("cross_entropy_multi", probabilities, targets)
    rank = len(probabilities.shape)
    made = _producer(probabilities, "softmax")
    if made is not None and rank and made.attrs["axis"] % rank == axis % rank:
        log = _limited(emit("log_softmax", {"X": _logits(probabilities, made)}, {"axis": axis}))
    else:
        log = safelog(probabilities)
    return negative(reduction.sum(multiply(targets, log), axis))


def cross_entropy_binary(y: Like, t: Like) -> Value:
    """Return -t log(y) - (1 - t) log(1 - y), element by element; a logarithm counts as -50 at least.

    Of a :func:`sigmoid` it is computed from the logits x, which loses no digits: its derivative with respect to x is
    sigmoid(x) - t, beyond the limit too.

    Parameters
    ----------
    y : Value
        Probabilities.
    t : Value
        Targets in 0 to 1, of the dims of y; they have a derivative as y has.

    Raises
    ------
    ValueError
        If the dims differ.
    """
    probabilities, targets = pair(y, t)
    _same_dims("cross_entropy_binary", probabilities, targets)
    made = _producer(probabilities, "sigmoid")
    if made is not None:
        x = _logits(probabilities, made)
        yes, no = (_limited(emit("logsigmoid", {"X": each})) for each in (x, negative(x)))
    else:
        yes, no = safelog(probabilities), safelog(1 - probabilities)
    return negative(multiply(targets, yes) + (1 - targets) * no)


def _logits(probabilities: Value, producer: Operator) -> Value:
    """What the operator that made probabilities took."""
    return as_value(probabilities.block.var(producer.inputs["X"][0]))


def _same_dims(what: str, y: Value, t: Value) -> None:
    if not all_agree(y.shape, t.shape):
        raise ShapeError(f"{what}: y has dims {list(y.shape)}, t has {list(t.shape)}; they must be equal")


def uniform(shape: Any, low: float = 0.0, high: float = 1.0, dtype: str = "float32") -> Value:
    """Return random numbers from ``low`` to ``high``, drawn anew at each call.

    Parameters
    ----------
    shape : dims, or a Value that has them
    low, high : float
    dtype : str
        Of the result; that of ``shape``, if that is a Value.
    """
    return _drawn("uniform_random", shape, dtype, min=float(low), max=float(high))


def normal(shape: Any, loc: float = 0.0, scale: float = 1.0, dtype: str = "float32") -> Value:
    """Return random numbers of the normal distribution with mean ``loc`` and deviation ``scale``, anew at each call.

    Parameters
    ----------
    shape : dims, or a Value that has them
    loc, scale : float
    dtype : str
        Of the result; that of ``shape``, if that is a Value.
    """
    return _drawn("gaussian_random", shape, dtype, mean=float(loc), std=float(scale))


def _drawn(type: str, shape: Any, dtype: str, **attrs: float) -> Value:
    """Random numbers of dims, or of the dims and the dtype of a Value."""
    if not isinstance(shape, Variable):
        return emit(type, {}, {"shape": ints_of("shape", shape, 0), "dtype": dtype, **attrs}, fixed=True)
    if any(d < 0 for d in shape.shape):
        raise ShapeError(f"{shape.name!r} has dims {list(shape.shape)}; random values need known dims")
    return emit(type, {}, {"shape": list(shape.shape), "dtype": shape.dtype, **attrs}, fixed=True, beside=shape)
