"""Other dims for the same elements, and what dims tell: reshape, squeeze, stack, split, shape and their kin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.framework.variable import Variable
from fluidlite.layer_helper import LayerHelper, check_int, check_ints, check_variable, check_variables, refuse
from fluidlite.layers.common import append
from fluidlite.layers.numbers import numbers
from fluidlite.layers.tensor import assign

__all__ = [
    "flatten", "is_empty", "rank", "reshape", "shape", "size", "split", "squeeze", "stack", "transpose", "unbind",
    "unsqueeze", "unstack",
]  # fmt: skip

# The same bytes ----------------------------------------------------------------------------------------------------


def reshape(
    x: Variable,
    shape: Any,
    actual_shape: Variable | None = None,
    act: Any = None,
    inplace: bool = False,
    name: str | None = None,
) -> Variable:
    """Return ``x`` in other dims.

    Parameters
    ----------
    x : Variable
    shape : Variable, or sequence of int or Variable
        One may be -1: what remains; 0 means as in ``x``. A Variable in the list is an integer [1]; one instead of
        the list holds all dims.
    actual_shape : Variable, optional
        Integers, [rank]: the dims at run time. ``shape`` is then what is known before.
    act : str, optional
        An activation of the result.
    inplace : bool
        Taken for Fluid's sake: the bytes are shared wherever that is safe.
    name : str, optional

    Returns
    -------
    Variable

    Raises
    ------
    AttributeValueError, ShapeError
        If ``x`` has not as many elements as the dims say.
    """
    given = numbers("shape", shape, "Shape", "ShapeTensor")
    inputs = {"X": check_variable("x", x), **given.inputs}
    if actual_shape is not None:
        inputs.pop("ShapeTensor", None)
        inputs["Shape"] = check_variable("actual_shape", actual_shape)
    attrs = {"shape": given.attr}
    return append("reshape2", "reshape2", inputs, attrs, extra=("XShape",), name=name, act=act)


def squeeze(input: Variable, axes: int | Sequence[int], name: str | None = None) -> Variable:
    """Return ``input`` without its dims of 1 in ``axes``; without all that are known to be 1, if there are none.

    Parameters
    ----------
    input : Variable
    axes : list of int
    name : str, optional

    Returns
    -------
    Variable
    """
    attrs = {"axes": check_ints("axes", axes)}
    return append("squeeze", "squeeze2", {"X": check_variable("input", input)}, attrs, extra=("XShape",), name=name)


def unsqueeze(input: Variable, axes: Any, name: str | None = None) -> Variable:
    """Put dims of 1 in.

    Parameters
    ----------
    input : Variable
    axes : int, Variable, or sequence of int or Variable
        Where they are in the result, one after the other; negative ones count from the end.
    name : str, optional

    Returns
    -------
    Variable
    """
    given = numbers("axes", axes, "AxesTensor", "AxesTensorList")
    inputs = {"X": check_variable("input", input), **given.inputs}
    attrs = {"axes": [] if given.inputs else given.attr}
    return append("unsqueeze2", "unsqueeze2", inputs, attrs, extra=("XShape",), name=name)


def flatten(x: Variable, axis: int = 1, name: str | None = None) -> Variable:
    """Return ``x`` as a matrix: its first ``axis`` dims are the rows, the others the columns.

    Parameters
    ----------
    x : Variable
    axis : int
        From 0 to the rank.
    name : str, optional

    Returns
    -------
    Variable
        Of rank 2.
    """
    attrs = {"axis": check_int("axis", axis, minimum=0)}
    return append("flatten", "flatten2", {"X": check_variable("x", x)}, attrs, extra=("XShape",), name=name)


def transpose(x: Variable, perm: Sequence[int], name: str | None = None) -> Variable:
    """Return ``x`` with dim ``perm[i]`` as its ``i``-th.

    Parameters
    ----------
    x : Variable
    perm : list of int
        Each dim once.
    name : str, optional

    Returns
    -------
    Variable
    """
    attrs = {"axis": check_ints("perm", perm)}
    return append("transpose", "transpose2", {"X": check_variable("x", x)}, attrs, extra=("XShape",), name=name)


# Several tensors ---------------------------------------------------------------------------------------------------


def stack(x: Variable | Sequence[Variable], axis: int = 0, name: str | None = None) -> Variable:
    """Return the tensors ``x``, of equal dims, side by side along a new axis.

    Parameters
    ----------
    x : Variable or list of Variable
    axis : int
        Of the result; negative ones count from its end.
    name : str, optional

    Returns
    -------
    Variable
    """
    inputs = {"X": check_variables("x", x)}
    return append("stack", "stack", inputs, {"axis": check_int("axis", axis)}, slot="Y", name=name)


def _parts(type: str, x: Variable, slot: str, axis: int, attrs: dict[str, Any], num: int | None) -> list[Variable]:
    axis = check_int("axis", axis)
    if not -len(x.shape) <= axis < len(x.shape):
        refuse("axis", axis, f"an axis in [{-len(x.shape)}, {len(x.shape)}) of {x}")
    if num is None:
        num = x.shape[axis]
        if num < 0:
            refuse("input" if type == "unbind" else "x", x, f"a known dim {axis}: it is the number of results")
    helper = LayerHelper(type)
    outs = helper.create_variables("num", num)
    helper.append_op(type, {"X": x}, {slot: outs}, {"axis": axis, **({"num": num} if "num" in attrs else {})})
    return outs


def unstack(x: Variable, axis: int = 0, num: int | None = None) -> list[Variable]:
    """Take ``x`` apart along ``axis``, which the parts lack.

    Parameters
    ----------
    x : Variable
    axis : int
    num : int, optional
        How many parts there are; default: the dim, which must be known then.

    Returns
    -------
    list of Variable
    """
    count = None if num is None else check_int("num", num, minimum=1)
    return _parts("unstack", check_variable("x", x), "Y", axis, {"num": count}, count)


def unbind(input: Variable, axis: int = 0) -> list[Variable]:
    """Return the parts of ``input`` along ``axis``, a known dim, which the parts lack.

    Parameters
    ----------
    input : Variable
    axis : int

    Returns
    -------
    list of Variable
    """
    return _parts("unbind", check_variable("input", input), "Out", axis, {}, None)


def split(input: Variable, num_or_sections: Any, dim: Any = -1, name: str | None = None) -> list[Variable]:
    """Divide ``input`` along a dim.

    Parameters
    ----------
    input : Variable
    num_or_sections : int, or sequence of int or Variable
        How many equal parts, or the size of each; one may be -1: what remains.
    dim : int or Variable
    name : str, optional

    Returns
    -------
    list of Variable
    """
    inputs: dict[str, Any] = {"X": check_variable("input", input)}
    attrs: dict[str, Any] = {}
    if isinstance(dim, Variable):
        inputs["AxisTensor"] = dim
    else:
        attrs["axis"] = check_int("dim", dim)
    if isinstance(num_or_sections, (list, tuple)):
        given = numbers("num_or_sections", num_or_sections, "", "SectionsTensorList")
        attrs["sections"] = given.attr
        inputs.update(given.inputs)
        count = len(given.attr)
    else:
        count = attrs["num"] = check_int("num_or_sections", num_or_sections, minimum=1)
    if not count:
        refuse("num_or_sections", num_or_sections, "one section or more")
    helper = LayerHelper("split", name=name)
    outs = helper.create_variables("num_or_sections", count)
    helper.append_op("split", inputs, {"Out": outs}, attrs)
    return outs


# What dims tell ----------------------------------------------------------------------------------------------------


def shape(input: Variable) -> Variable:
    """Return the dims of ``input`` at run time, int32 [rank].

    Parameters
    ----------
    input : Variable

    Returns
    -------
    Variable
    """
    return append("shape", "shape", {"Input": check_variable("input", input)}, stop_gradient=True)


def rank(input: Variable) -> Variable:
    """Return the number of dims of ``input``, an int32 of rank 0.

    Parameters
    ----------
    input : Variable

    Returns
    -------
    Variable
    """
    return assign(np.asarray(len(check_variable("input", input).shape), "int32"))


def size(input: Variable) -> Variable:
    """Return the number of elements of ``input`` at run time, int64 [1].

    Parameters
    ----------
    input : Variable

    Returns
    -------
    Variable
    """
    return append("size", "size", {"Input": check_variable("input", input)}, stop_gradient=True)


def is_empty(x: Variable, cond: Variable | None = None) -> Variable:
    """Return whether ``x`` has no elements at run time, bool [1] (written into ``cond``, if given).

    Parameters
    ----------
    x : Variable
    cond : Variable, optional

    Returns
    -------
    Variable
    """
    return append("is_empty", "is_empty", {"X": check_variable("x", x)}, out=cond, stop_gradient=True)
