"""Layers on dims: reshape, squeeze, flatten, transpose, stack, split, shape, rank, size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.layer_helper import check_int, check_variable, refuse
from fluidlite.layers.declare import Unused, VariableList, also, layer
from fluidlite.layers.int_or_variable import numbers
from fluidlite.layers.tensor import assign
from fluidlite.program.variable import Variable

# Reshape -------------------------------------------------------------------------------------------------------------


@layer(
    "reshape2",
    {
        "actual_shape": "",
        "inplace": Unused("bytes are shared wherever that is safe"),
    },
    extra=("XShape",),
    called="reshape2",
)
def reshape(
    x: Variable,
    shape: Any,
    actual_shape: Variable | None = None,
    act: Any = None,
    inplace: bool = False,
    name: str | None = None,
) -> Variable:
    """Return ``x`` in other dims.

    shape: One may be -1: the remaining size; 0: the dim of ``x``. A Variable in the list is an integer [1]; one
        instead of the list has all dims.
    actual_shape: Integers, [rank]: the dims at run time. ``shape`` then has the dims known before.
    Raises: If ``x`` has not as many elements as the dims say

    >>> reshape(data("x", [2, 6]), [0, 3, -1]).shape
    (2, 3, 2)
    """
    if actual_shape is None:
        return also()
    return also(ShapeTensor=(), Shape=check_variable("actual_shape", actual_shape))


@layer("squeeze2", extra=("XShape",))
def squeeze(input: Variable, axes: int | Sequence[int], name: str | None = None) -> Variable:
    """Return ``input`` without its dims of 1 in ``axes``; if ``axes`` is empty, without all known dims of 1.

    >>> squeeze(data("input", [2, 1], "int64"), 1).shape
    (2,)
    """


@layer("unsqueeze2", extra=("XShape",), called="unsqueeze2")
def unsqueeze(input: Variable, axes: Any, name: str | None = None) -> Variable:
    """Insert dims of 1.

    >>> unsqueeze(data("input", [2, 4]), 1).shape
    (2, 1, 4)
    """
    return also(axes=[]) if axes.inputs else also()


@layer("flatten2", extra=("XShape",))
def flatten(x: Variable, axis: int = 1, name: str | None = None) -> Variable:
    """Return ``x`` as a matrix: its first ``axis`` dims are the rows, the others the columns.

    Returns: Of rank 2

    >>> flatten(data("x", [2, 4])).shape
    (2, 4)
    """


@layer("transpose2", {"perm": "axis"}, extra=("XShape",))
def transpose(x: Variable, perm: Sequence[int], name: str | None = None) -> Variable:
    """Return ``x`` with dim ``perm[i]`` as its ``i``-th.

    >>> transpose(data("x", [2, 3]), [1, 0]).shape
    (3, 2)
    """


# Stack and split -----------------------------------------------------------------------------------------------------


@layer("stack")
def stack(x: Variable | Sequence[Variable], axis: int = 0, name: str | None = None) -> Variable:
    """Return the tensors ``x``, of equal dims, stacked along a new axis.

    axis: Of the result; negative ones count from its end

    >>> stack(data("x", [4, 4])).shape
    (1, 4, 4)
    """


def _results_along(argument: str, x: Variable, axis: int, slot: str, count: int | None) -> dict[str, Any]:
    """The results of a layer that splits a variable along an axis; default of ``count``: the dim."""
    if not -len(x.shape) <= axis < len(x.shape):
        refuse("axis", axis, f"an axis in [{-len(x.shape)}, {len(x.shape)}) of {x}")
    if count is None and x.shape[axis] < 0:
        refuse(argument, x, f"a known dim {axis}: it is the number of results")
    return {slot: VariableList("num", x.shape[axis] if count is None else count)}


@layer("unstack", {"num": ""})
def unstack(x: Variable, axis: int = 0, num: int | None = None) -> list[Variable]:
    """Split ``x`` along ``axis``, which the parts lack.

    num: The number of parts; default: the dim, which must then be known

    >>> [each.shape for each in unstack(data("x", [2], "int64"))]
    [(), ()]
    """
    count = None if num is None else check_int("num", num, minimum=1)
    return also(**_results_along("x", x, axis, "Y", count), num=count or x.shape[axis])


@layer("unbind")
def unbind(input: Variable, axis: int = 0) -> list[Variable]:
    """Return the parts of ``input`` along ``axis``, a known dim, which the parts lack.

    >>> [each.shape for each in unbind(data("input", [2, 4]))]
    [(4,), (4,)]
    """
    return also(**_results_along("input", input, axis, "Out", None))


@layer("split", {"num_or_sections": "", "dim": "axis"})
def split(input: Variable, num_or_sections: Any, dim: Any = -1, name: str | None = None) -> list[Variable]:
    """Divide ``input`` along a dim.

    num_or_sections: The number of equal parts, or the size of each; one may be -1: the remaining size

    >>> [each.shape for each in split(data("input", [2, 4, 8, 8]), 4)]
    [(2, 4, 8, 2), (2, 4, 8, 2), (2, 4, 8, 2), (2, 4, 8, 2)]
    """
    if not isinstance(num_or_sections, (list, tuple)):
        count = check_int("num_or_sections", num_or_sections, minimum=1)
        return also(Out=VariableList("num_or_sections", count), num=count)
    sections = numbers("num_or_sections", num_or_sections, "", "SectionsTensorList")
    if not sections.attr:
        refuse("num_or_sections", num_or_sections, "one section or more")
    return also(Out=VariableList("num_or_sections", len(sections.attr)), sections=sections.attr, **sections.inputs)


# Shape and size ------------------------------------------------------------------------------------------------------


@layer("shape", stop_gradient=True)
def shape(input: Variable) -> Variable:
    """Return the dims of ``input`` at run time, int32 [rank].

    >>> shape(data("input", [2, 4], "bool")).shape
    (2,)
    """


def rank(input: Variable) -> Variable:
    """Return the number of dims of ``input``, an int32 of rank 0."""
    return assign(np.asarray(len(check_variable("input", input).shape), "int32"))


@layer("size", stop_gradient=True)
def size(input: Variable) -> Variable:
    """Return the number of elements of ``input`` at run time, int64 [1].

    >>> size(data("input", [2, 4, 8, 8])).shape
    (1,)
    """


@layer("is_empty", {"cond": "Out"}, stop_gradient=True)
def is_empty(x: Variable, cond: Variable | None = None) -> Variable:
    """Return whether ``x`` has no elements at run time, bool [1] (written into ``cond``, if given).

    >>> is_empty(data("x", [2, 4, 4, 8, 8])).shape
    (1,)
    """
