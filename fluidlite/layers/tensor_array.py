"""Tensor arrays: lists of tensors that loops write and read by index."""

from __future__ import annotations

from typing import Any

from fluidlite.control_flow.sub_program import has_value
from fluidlite.layer_helper import LayerHelper, check_variable, refuse
from fluidlite.layers.declare import also, layer
from fluidlite.program.variable import Variable

__all__ = ["array_length", "array_read", "array_write", "create_array", "tensor_array_to_tensor"]


def check_array(argument: str, value: Any) -> Variable:
    variable = check_variable(argument, value)
    if not variable.is_array:
        refuse(argument, variable, "a tensor array, as layers.create_array makes it")
    return variable


def check_index(argument: str, value: Any) -> Variable:
    variable = check_variable(argument, value)
    spec = variable.spec
    if spec is not None and (spec.dtype not in ("int64", "int32") or (spec.is_static and spec.size != 1)):
        refuse(argument, variable, "an int64 or int32 of one element", 'layers.fill_constant([1], "int64", 0)')
    return variable


@layer("create_tensor_array", called="array")
def create_array(dtype: Any) -> Variable:
    """Return an array without elements.

    Returns: A tensor array: ``array_write`` writes into it, ``array_read`` reads from it. Its ``shape`` is that of an
        element.

    >>> create_array("float32").is_array
    True
    """


def array_write(x: Variable, i: Variable, array: Variable | None = None) -> Variable:
    """Write a copy of ``x`` into an array, and return the array.

    x: Of one dim or more, of the dtype and rank of the other elements; the sizes of its dims may differ from theirs
    i: int64 [1]: the index, from 0 on. The length of an array is its highest index plus 1.
    array: Default: a new one
    Returns: The array, which is changed in place
    Raises: ProgramError, DtypeError, ShapeError, OutOfRangeError: If an argument is of another kind, if ``x`` has
        another dtype or rank than the array's elements; at a run, if the index is negative
    """
    check_variable("x", x)
    check_index("i", i)
    array = check_array("array", array) if array is not None else create_array(x.dtype)
    helper = LayerHelper("array_write")
    if not has_value(helper.block, array.name):  # of block.create_var(type=LOD_TENSOR_ARRAY)
        array.block.append_op("create_tensor_array", {}, {"Out": array}, {"dtype": array.dtype})
    helper.append_op("write_to_array", {"X": x, "I": i, "Array": array}, {"Out": array})
    return array


@layer("read_from_array", {"array": "X"})
def array_read(array: Variable, i: Variable) -> Variable:
    """Return an element of an array.

    i: int64 [1]: the index
    Raises: If an argument is of another kind, or no earlier operator writes into the array. At a run, if the index
        is negative, beyond the array's length, or of an element that was never written.

    >>> array = array_write(data("x", [2, 4]), data("step", [1], "int64"))
    >>> array_read(array, data("i", [1], "int64")).shape
    (2, 4)
    """
    check_array("array", array)
    check_index("i", i)
    return also()


@layer("lod_array_length", {"array": "X"}, stop_gradient=True)
def array_length(array: Variable) -> Variable:
    """Return the number of elements of an array, int64 [1].

    Raises: If ``array`` is no tensor array

    >>> array = array_write(data("x", [2, 4]), data("step", [1], "int64"))
    >>> array_length(array).shape
    (1,)
    """
    check_array("array", array)
    return also()


@layer("tensor_array_to_tensor", returns=("Out", "OutIndex"), stop_gradient=("OutIndex",))
def tensor_array_to_tensor(
    input: Variable, axis: int = 1, name: str | None = None, use_stack: bool = False
) -> tuple[Variable, Variable]:
    """Return all elements of an array as one tensor, and the size of each along the axis.

    Returns: The tensor; and the sizes, int32 [number of elements]
    Raises: If ``input`` is no tensor array. At a run, if the array is empty, or the dims of its elements do not match.

    >>> array = array_write(data("x", [2, 4]), data("step", [1], "int64"))
    >>> [each.shape for each in tensor_array_to_tensor(array)]
    [(2, -1), (-1,)]
    """
    check_array("input", input)
    return also()
