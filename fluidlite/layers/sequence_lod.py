"""Layers on sequences: LoD tensors, whose rows belong to sequences of different lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite.base.errors import AttributeValueError
from fluidlite.layer_helper import check_int, check_ints, check_variable, refuse
from fluidlite.layers.common import layers_getattr
from fluidlite.layers.declare import AddedBias, Unused, Weight, also, layer
from fluidlite.layers.reduce import reduce_max
from fluidlite.program.opdef import Attr
from fluidlite.program.variable import Variable

_POOL_TYPES = ("average", "sum", "sqrt", "last", "first", "max")
_POOL_TYPE_ATTR = Attr(
    "pool_type", "str", doc="average, sum, sqrt (the sum divided by the square root of the length), last, first or max"
)
_FILTERS_ATTR = Attr("num_filters", "int", minimum=1)


@layer("sequence_pool", {"pool_type": _POOL_TYPE_ATTR})
def sequence_pool(input: Variable, pool_type: str, is_test: bool = False, pad_value: float = 0.0) -> Variable:
    """Return a row for each sequence of the last level: the reduction ``pool_type`` of its rows.

    Returns: [sequences, ...], with the levels of LoD above the last

    >>> sequence_pool(data("input", [-1, 4], lod_level=1), "max").shape
    (-1, 4)
    """
    if pool_type.lower() not in _POOL_TYPES:
        refuse("pool_type", pool_type, f"one of {', '.join(_POOL_TYPES)}", error=AttributeValueError)
    return also(pooltype=pool_type.upper())


def sequence_first_step(input: Variable) -> Variable:
    """Return the first row of each sequence; 0 of an empty one.

    input: Floating, with LoD
    Returns: [sequences, ...]
    """
    return sequence_pool(input, "first")


def sequence_last_step(input: Variable) -> Variable:
    """Return the last row of each sequence; 0 of an empty one.

    input: Floating, with LoD
    Returns: [sequences, ...]
    """
    return sequence_pool(input, "last")


@layer("sequence_softmax")
def sequence_softmax(input: Variable, use_cudnn: bool = False, name: str | None = None) -> Variable:
    """Return numbers that sum to 1 in each sequence.

    Returns: As ``input``

    >>> sequence_softmax(data("input", [-1, 1], lod_level=1)).shape
    (-1, 1)
    """


@layer("sequence_expand")
def sequence_expand(x: Variable, y: Variable, ref_level: int = -1, name: str | None = None) -> Variable:
    """Repeat each sequence of ``x`` by the length of the corresponding sequence of ``y``.

    Returns: With one level of LoD if ``x`` has it

    >>> sequence_expand(data("x", [-1, 4], lod_level=1), data("y", [-1, 1], "int64", lod_level=1)).shape
    (-1, 4)
    """


@layer("sequence_expand_as")
def sequence_expand_as(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Repeat each row of ``x`` by the length of the corresponding sequence of ``y``, with the LoD of ``y``.

    >>> sequence_expand_as(data("x", [2, 4]), data("y", [-1, 1], "int64", lod_level=1)).shape
    (-1, 4)
    """


@layer("sequence_reverse")
def sequence_reverse(x: Variable, name: str | None = None) -> Variable:
    """Return the rows of each sequence in reverse order.

    Returns: As ``x``

    >>> sequence_reverse(data("x", [-1, 4], lod_level=1)).shape
    (-1, 4)
    """


@layer("sequence_pad", {"maxlen": "padded_length"}, stop_gradient=("Length",))
def sequence_pad(
    x: Variable, pad_value: Variable, maxlen: int | None = None, name: str | None = None
) -> tuple[Variable, Variable]:
    """Return sequences as rows of equal length, and their lengths.

    Returns: [sequences, maxlen, ...], and int64 [sequences]

    >>> [each.shape for each in sequence_pad(data("x", [-1, 4], lod_level=1), data("pad_value", [4]))]
    [(-1, -1, 4), (-1,)]
    """


@layer("sequence_unpad")
def sequence_unpad(x: Variable, length: Variable, name: str | None = None) -> Variable:
    """Return the first ``length`` steps of each row as sequences.

    length: int32 or int64, [sequences]; from 0 to the steps of ``x``
    Returns: With one level of LoD

    >>> sequence_unpad(data("x", [2, 3, 4]), data("length", [2], "int64")).shape
    (-1, 4)
    """


@layer("sequence_mask", {"dtype": "out_dtype"}, stop_gradient=True)
def sequence_mask(x: Variable, maxlen: Any = None, dtype: Any = "int64", name: str | None = None) -> Variable:
    """Return 1 for each step before a length, and 0 from there on.

    maxlen: The number of steps; None: the maximum length
    Returns: [*dims of x, maxlen]

    >>> sequence_mask(data("x", [2], "int64")).shape
    (2, -1)
    """
    if maxlen is None:
        return also(MaxLenTensor=reduce_max(x))
    if not isinstance(maxlen, Variable):
        check_int("maxlen", maxlen, 0)
    return also()


@layer("sequence_reshape")
def sequence_reshape(input: Variable, new_dim: int) -> Variable:
    """Return the numbers of each sequence in rows of another width.

    new_dim: A divisor of the numbers of each sequence
    Returns: [rows * width / new_dim, new_dim]

    >>> sequence_reshape(data("input", [-1, 4], lod_level=1), 2).shape
    (-1, 2)
    """


@layer("sequence_concat")
def sequence_concat(input: Sequence[Variable], name: str | None = None) -> Variable:
    """Concatenate the i-th sequences of all inputs, for each i.

    >>> sequence_concat(data("input", [-1, 4], lod_level=1)).shape
    (-1, 4)
    """


@layer("sequence_slice")
def sequence_slice(input: Variable, offset: Variable, length: Variable, name: str | None = None) -> Variable:
    """Return ``length`` rows of each sequence, from its row ``offset`` on.

    >>> input = data("input", [-1, 4], lod_level=1)
    >>> offset = data("offset", [2, 1], "int64")
    >>> length = data("length", [2, 1], "int64")
    >>> sequence_slice(input, offset, length).shape
    (-1, 4)
    """


@layer("sequence_scatter", {"index": "Ids"})
def sequence_scatter(input: Variable, index: Variable, updates: Variable, name: str | None = None) -> Variable:
    """Return ``input`` with the numbers of each sequence added to its row at ``index``.

    Returns: As ``input``

    >>> input = data("input", [2, 4])
    >>> index = data("index", [-1, 1], "int64", lod_level=1)
    >>> updates = data("updates", [-1, 1], lod_level=1)
    >>> sequence_scatter(input, index, updates).shape
    (2, 4)
    """


@layer("sequence_enumerate", stop_gradient=True)
def sequence_enumerate(input: Variable, win_size: int, pad_value: int = 0, name: str | None = None) -> Variable:
    """Return, for each step, the numbers of the window that begins there.

    Returns: [rows, win_size]

    >>> sequence_enumerate(data("input", [-1, 1], "int64", lod_level=1), 2).shape
    (-1, 2)
    """


@layer(
    "sequence_conv",
    {
        "num_filters": _FILTERS_ATTR,
        "filter_size": "contextLength",
        "filter_stride": "contextStride",
        "padding": Unused("there are zeros beyond sequences"),
        "padding_start": "contextStart",
    },
)
def sequence_conv(
    input: Variable,
    num_filters: int,
    filter_size: int = 3,
    filter_stride: int = 1,
    padding: bool = True,
    padding_start: int | None = None,
    bias_attr: Any = None,
    param_attr: Any = None,
    act: Any = None,
    name: str | None = None,
) -> Variable:
    """Return act(windows of steps times a filter + bias), with zeros beyond the ends of a sequence.

    padding_start: Where a window begins, from its step on; None: ``-(filter_size // 2)``
    bias_attr, param_attr: Of the bias, [num_filters], and of the filter, [filter_size * width, num_filters]
    Returns: [rows, num_filters]

    >>> sequence_conv(data("input", [-1, 4], lod_level=1), 2).shape
    (-1, 2)
    """
    if len(input.shape) != 2 or input.shape[1] < 1:
        refuse("input", input, "[rows, width], of known width")
    start = -(filter_size // 2) if padding_start is None else padding_start
    return also(Filter=Weight([filter_size * input.shape[1], num_filters]), contextStart=start, Out=AddedBias())


@layer("sequence_topk_avg_pooling", {"col": "COLUMN"})
def sequence_topk_avg_pooling(
    input: Variable, row: Variable, col: Variable, topks: Sequence[int], channel_num: int
) -> Variable:
    """Return averages of the largest numbers of each row of matrices.

    >>> input = data("input", [-1, 1], lod_level=1)
    >>> row = data("row", [-1, 4], lod_level=1)
    >>> col = data("col", [-1, 4], lod_level=1)
    >>> sequence_topk_avg_pooling(input, row, col, [1, 2], 1).shape
    (-1, 2)
    """


def _lod_source(argument: str, y: Any, listed: str, offsets: Any) -> dict[str, Any]:
    """The input or attribute of a LoD: a variable with LoD, a variable of offsets, or offsets."""
    if y is not None:
        return {"Y" if check_variable(argument, y).lod_level else "TargetLod": y}
    if offsets is None:
        refuse(argument, y, "a Variable, or offsets as a list")
    return {"target_lod": check_ints(listed, offsets)}


@layer("lod_reset", {"y": "", "target_lod": ""}, attrs={"append": False})
def lod_reset(x: Variable, y: Variable | None = None, target_lod: Sequence[int] | None = None) -> Variable:
    """Return ``x`` with other sequences.

    y: A Variable whose LoD is used; without LoD, the offsets of one level, int32 or int64
    target_lod: Offsets of one level, if ``y`` is None

    >>> lod_reset(data("x", [6, 4]), target_lod=[0, 2, 6]).shape
    (6, 4)
    """
    return also(**_lod_source("y", y, "target_lod", target_lod))


@layer("lod_reset", {"level": ""}, attrs={"append": True})
def lod_append(x: Variable, level: Any) -> Variable:
    """Return ``x`` with one more LoD level, or the levels of a Variable, below its own.

    level: Offsets, as ``target_lod`` and ``y`` of :func:`lod_reset`

    >>> lod_append(data("x", [-1, 4], lod_level=1), data("level", [-1, 4], lod_level=1)).shape
    (-1, 4)
    """
    variable = isinstance(level, Variable)
    return also(**_lod_source("level", level if variable else None, "level", None if variable else level))


__getattr__ = layers_getattr(__name__)  # Fluid's path of layers that other modules declare
