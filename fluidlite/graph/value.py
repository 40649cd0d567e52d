"""Value: a variable of a program with the operators of the functional front; and how functions append operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from fluidlite.base.dtypes import NUMPY, is_float
from fluidlite.base.errors import AttributeValueError, DtypeError, ProgramError
from fluidlite.compiler.arguments import holds
from fluidlite.compiler.ir.node import Action, Node
from fluidlite.program.block import Block
from fluidlite.program.program import default_main_program
from fluidlite.program.registry import ops
from fluidlite.program.source_location import source_location
from fluidlite.program.variable import Variable, operator_of
from fluidlite.tensor.tensor_spec import Spec
from fluidlite.tensor.var_type import dtype_of

Like = Any
"""A value, a number, or an array_like: what functions of values take."""

N = TypeVar("N", bound=Node)
F = TypeVar("F")


class Value(Node):
    """A value of the graph: known once a computation runs.

    ``+ - * / // % ** @``, comparisons (not ``==``: values are keys of sets and dicts; see :func:`equal`), ``-x``,
    ``abs(x)`` and indexing append operators to its program. Operands are broadcast as NumPy does; a number takes the
    dtype of the value beside it.
    """

    def _arithmetic(self, function: str, *operands: Any) -> Any:
        return binary(operator_of(function), *operands)

    def __matmul__(self, other: Any) -> Value:
        return matmul(self, other)

    def __rmatmul__(self, other: Any) -> Value:
        return matmul(other, self)

    def __floordiv__(self, other: Any) -> Value:
        return floordivide(self, other)

    def __rfloordiv__(self, other: Any) -> Value:
        return floordivide(other, self)

    def __rmod__(self, other: Any) -> Value:
        return binary("elementwise_mod", other, self)

    def __neg__(self) -> Value:
        return emit("scale", {"X": self}, {"scale": -1.0})

    def __abs__(self) -> Value:
        return emit("abs", {"X": self})

    def __getitem__(self, key: Any) -> Value:
        """The part that ints, slices, ``...`` and None name; all-int keys give a scalar of shape ()."""
        part = as_value(super().__getitem__(key))
        keys = key if isinstance(key, tuple) else (key,)
        ints = sum(isinstance(k, (int, Variable)) for k in keys)
        if ints == len(self.shape) and None not in [k for k in keys if not isinstance(k, Variable)]:
            return emit("reshape2", {"X": part}, {"shape": []})  # an index of ints alone gives [1], as in Fluid
        return part


class Effect(Action):
    """An assignment, or a sequence that ends with one: it has no value and gives None."""


def create(kind: type[N], prefix: str, block: Block | None = None, spec: Spec | None = None) -> N:
    """Declare a variable of a class in a block; by default, the current one of the main program."""
    block = block if block is not None else default_main_program().current_block()
    made = kind(block, block.new_name(prefix), spec)
    if spec is not None:  # no operator makes it
        made.line = source_location()
    block.vars[made.name] = made
    block.program.touch()
    return made


def _block(beside: Variable | None) -> Block:
    """The block that functions of a value append to."""
    program = beside.block.program if beside is not None else default_main_program()
    return program.current_block()


def one_program(items: Sequence[Variable], what: str) -> Variable | None:
    """Return the first of some values, or None of none; raise ProgramError if they belong to different programs."""
    for item in items[1:]:
        if item.block.program is not items[0].block.program:
            raise ProgramError(
                f"{what} of {items[0].name_and_line()} and {item.name_and_line()}, which belong to different programs"
                "\n  Do: make both in one program: under one fluid.program_guard, or under none"
            )
    return items[0] if items else None


def emit(
    type: str,
    inputs: Mapping[str, Any],
    attrs: Mapping[str, Any] | None = None,
    slot: str = "Out",
    fixed: bool = False,
    beside: Variable | None = None,
) -> Value:
    """Append an operator to the program of its inputs, or that of ``beside``, and return its output of a slot.

    ``fixed``: no gradient flows through it.
    """
    given = [v for vs in inputs.values() for v in (vs if isinstance(vs, (list, tuple)) else (vs,))]
    block = _block(one_program([v for v in (*given, beside) if isinstance(v, Variable)], type))
    definition = ops.get(type)
    out = create(Value, type, block)
    outputs: dict[str, Variable] = {slot: out}
    for other in definition.outputs:
        if other.name != slot and (other.intermediate or not other.dispensable):
            outputs[other.name] = block.create_temporary(stop_gradient=True)
    try:
        block.append_op(type, inputs, outputs, attrs)
    except Exception:
        for variable in outputs.values():
            block.vars.pop(variable.name, None)
        raise
    out.stop_gradient = fixed
    return out


def called(function: F, name: str, doc: str) -> F:
    """A function that is made for an operator, under a name of its own, by which lines of operators call it too."""
    made: Any = function
    made.__name__ = made.__qualname__ = name
    made.__code__ = made.__code__.replace(co_name=name)
    made.__doc__ = doc
    return function


def as_value(variable: Variable) -> Value:
    """The variable with the operators of the front: itself, or another handle of the same name."""
    if isinstance(variable, Value):
        return variable
    if isinstance(variable, Action):
        raise ProgramError(f"{variable.name!r} is an action; it has no value")
    if not isinstance(variable, Variable):
        raise ProgramError(f"{variable!r} is no value of a graph")
    duplicate = Value(
        variable.block,
        variable.name,
        variable.spec,
        variable.persistable,
        variable.stop_gradient,
        variable.is_data,
        variable.type,
    )
    if isinstance(variable, Node):  # of a program that was read from a file
        duplicate.is_input, duplicate.is_cell, duplicate.initial = variable.is_input, variable.is_cell, variable.initial
    else:
        duplicate.is_input = variable.is_data or variable.persistable
    duplicate.identity, duplicate.line = variable.identity, variable.line
    return duplicate


def need_held(item: Any, dtype: str) -> None:
    """Raise DtypeError unless a dtype has a number, or the numbers of a list; floats are rounded."""
    try:
        given = np.asarray(item, np.float64 if is_float(dtype) else None)
        held = is_float(dtype) or holds(dtype, given)
    except OverflowError:
        held = False
    if not held:
        raise DtypeError(
            f"{item!r:.60} beside values of dtype {dtype}: no {dtype} is {item!r:.60}\n"
            f"  Do: give numbers of {dtype}, or cast the values with cast"
        )


def stored(array: np.ndarray[Any, Any], beside: Variable | None = None) -> Value:
    """An array as a value that transformers keep beside the state; nothing changes it."""
    made = create(Value, "constant", _block(beside), Spec.of(array.shape, dtype_of(array.dtype)))
    made.persistable = True
    made.stop_gradient = True
    made.initial = np.array(array)
    made.is_input = False
    return made


def filled(number: float, dims: Sequence[int], dtype: str, beside: Variable | None = None) -> Value:
    """Return a number repeated to dims; DtypeError if the dtype does not have it."""
    need_held(number, dtype)
    attrs = {"shape": list(dims), "value": float(number), "dtype": dtype}
    if not is_float(dtype) and abs(number) > 2**53:  # a float is none of these
        attrs["str_value"] = str(int(number))
    return emit("fill_constant", {}, attrs, fixed=True, beside=beside)


def value_like(item: Like, dtype: str = "float32", beside: Variable | None = None) -> Value:
    """Return what a function was given as a value; numbers and lists take ``dtype``, arrays keep their own."""
    if isinstance(item, Variable):
        return as_value(item)
    if isinstance(item, (bool, int, float, np.generic)) or (isinstance(item, np.ndarray) and item.ndim == 0):
        number = item.item() if isinstance(item, (np.generic, np.ndarray)) else item
        if not isinstance(number, (bool, int, float)):
            raise ProgramError(f"{item!r} is no number of a graph")
        return filled(number, (), dtype, beside)
    array = as_array(item)
    if array.dtype == object or array.dtype.kind in "USMmc":
        raise ProgramError(f"{type(item).__name__} {item!r} is no value; expected a value, a number or an array")
    if isinstance(item, np.ndarray):
        return stored(array, beside)
    need_held(item, dtype)
    return stored(array.astype(NUMPY[dtype]), beside)


def as_array(item: Any) -> np.ndarray[Any, Any]:
    """Return ``numpy.asarray``'s answer, or ProgramError."""
    try:
        return np.asarray(item)
    except ValueError as exc:
        raise ProgramError(f"{item!r:.60} is no value: {exc}") from None


def pair(x: Like, y: Like) -> tuple[Value, Value]:
    """Return two operands as values: a number, or a list of them, takes the other's dtype."""
    if isinstance(x, Variable):
        left = as_value(x)
        return left, value_like(y, left.dtype, left)
    right = value_like(y)
    return value_like(x, right.dtype, right), right


_AS_NUMPY = {"elementwise_mod": {"floor": True}, "elementwise_floordiv": {"floor": True}}
"""Attributes of operators that do what NumPy does, where Fluid does something else."""


def binary(type: str, x: Like, y: Like) -> Value:
    """Append an operator of two operands, which NumPy's rule broadcasts."""
    left, right = pair(x, y)
    return emit(type, {"X": left, "Y": right}, {"axis": -1, **_AS_NUMPY.get(type, {})})


def floordivide(x: Like, y: Like) -> Value:
    """Return the largest whole number that is no more than x / y."""
    left, right = pair(x, y)
    if not is_float(left.dtype):
        return binary("elementwise_floordiv", left, right)
    return emit("floor", {"X": binary("elementwise_div", left, right)})


def matmul(x: Like, y: Like) -> Value:
    """Matrix products over the last two dims, as ``numpy.matmul``; of two vectors, a scalar of shape ()."""
    left, right = pair(x, y)
    product = emit("matmul", {"X": left, "Y": right})
    if len(left.shape) == len(right.shape) == 1:
        return emit("reshape2", {"X": product}, {"shape": []})
    return product


def ints_of(name: str, items: Any, minimum: int | None = None) -> list[int]:
    """Return one int, or a sequence of them, as a list, or raise AttributeValueError."""
    several = isinstance(items, (list, tuple, np.ndarray))
    found = list(items) if several else [items]
    for item in found:
        whole = isinstance(item, (int, np.integer)) and not isinstance(item, bool)
        if not whole or (minimum is not None and item < minimum):
            what = "ints" if minimum is None else f"ints of {minimum} or more"
            raise AttributeValueError(f"{name} is {items!r}; expected {what}")
    return [int(item) for item in found]
