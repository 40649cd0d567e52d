"""Value, a variable of a program with overloaded operators; and helpers that append operators."""

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
"""An operand: a value, a number, or an array_like."""

N = TypeVar("N", bound=Node)
F = TypeVar("F")


class Value(Node):
    """A value of the graph, which a computation computes.

    ``+ - * / // % ** @``, comparisons (not ``==``: values are keys of sets and dicts; see :func:`equal`), ``-x``,
    ``abs(x)`` and indexing append operators to its program. Operands broadcast as in NumPy; a number takes the dtype
    of the other operand.
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
        """Return a part by ints, slices, ``...`` and None; keys of ints only return a scalar of shape ()."""
        part = as_value(super().__getitem__(key))
        keys = key if isinstance(key, tuple) else (key,)
        ints = sum(isinstance(k, (int, Variable)) for k in keys)
        if ints == len(self.shape) and None not in [k for k in keys if not isinstance(k, Variable)]:
            return emit("reshape2", {"X": part}, {"shape": []})  # Fluid's operator returns [1] for keys of ints only
        return part


class Effect(Action):
    """An assignment, or a sequence that ends with one; its result is None."""


def create(kind: type[N], prefix: str, block: Block | None = None, spec: Spec | None = None) -> N:
    """Declare a variable of class ``kind`` in a block; default: the current block of the main program."""
    block = block if block is not None else default_main_program().current_block()
    variable = kind(block, block.new_name(prefix), spec)
    if spec is not None:  # no operator computes it
        variable.line = source_location()
    block.vars[variable.name] = variable
    block.program.touch()
    return variable


def _block(beside: Variable | None) -> Block:
    """Return the block that functions of a value append to."""
    program = beside.block.program if beside is not None else default_main_program()
    return program.current_block()


def one_program(items: Sequence[Variable], what: str) -> Variable | None:
    """Return the first value, or None without values; raise ProgramError if they belong to different programs."""
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
    """Append an operator to the program of its inputs, or that of ``beside``, and return its output ``slot``.

    ``fixed``: no gradient flows through it.
    """
    operands = [v for vs in inputs.values() for v in (vs if isinstance(vs, (list, tuple)) else (vs,))]
    block = _block(one_program([v for v in (*operands, beside) if isinstance(v, Variable)], type))
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


def named_function(function: F, name: str, doc: str) -> F:
    """Return a generated function with its public name, which also appears in the source lines of operators."""
    renamed: Any = function
    renamed.__name__ = renamed.__qualname__ = name
    renamed.__code__ = renamed.__code__.replace(co_name=name)
    renamed.__doc__ = doc
    return function


def as_value(variable: Variable) -> Value:
    """Return a variable as a Value: itself, or another handle of the same name."""
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
    if isinstance(variable, Node):  # from a program that was loaded from a file
        duplicate.is_input, duplicate.is_cell, duplicate.initial = variable.is_input, variable.is_cell, variable.initial
    else:
        duplicate.is_input = variable.is_data or variable.persistable
    duplicate.identity, duplicate.line = variable.identity, variable.line
    return duplicate


def check_representable(item: Any, dtype: str) -> None:
    """Raise DtypeError unless a dtype can represent a number, or all numbers of a list; floats are rounded."""
    try:
        values = np.asarray(item, np.float64 if is_float(dtype) else None)
        is_exact = is_float(dtype) or holds(dtype, values)
    except OverflowError:
        is_exact = False
    if not is_exact:
        raise DtypeError(
            f"{item!r:.60} beside values of dtype {dtype}: no {dtype} is {item!r:.60}\n"
            f"  Do: give numbers of {dtype}, or cast the values with cast"
        )


def constant_value(array: np.ndarray[Any, Any], beside: Variable | None = None) -> Value:
    """Return an array as a constant value, which transformers store like state."""
    value = create(Value, "constant", _block(beside), Spec.of(array.shape, dtype_of(array.dtype)))
    value.persistable = True
    value.stop_gradient = True
    value.initial = np.array(array)
    value.is_input = False
    return value


def full(number: float, dims: Sequence[int], dtype: str, beside: Variable | None = None) -> Value:
    """Return a value of some dims filled with a number; DtypeError if the dtype cannot represent it."""
    check_representable(number, dtype)
    attrs = {"shape": list(dims), "value": float(number), "dtype": dtype}
    if not is_float(dtype) and abs(number) > 2**53:  # not representable as a float attribute
        attrs["str_value"] = str(int(number))
    return emit("fill_constant", {}, attrs, fixed=True, beside=beside)


def value_like(item: Like, dtype: str = "float32", beside: Variable | None = None) -> Value:
    """Return an operand as a Value; numbers and lists take ``dtype``, arrays keep their own."""
    if isinstance(item, Variable):
        return as_value(item)
    if isinstance(item, (bool, int, float, np.generic)) or (isinstance(item, np.ndarray) and item.ndim == 0):
        number = item.item() if isinstance(item, (np.generic, np.ndarray)) else item
        if not isinstance(number, (bool, int, float)):
            raise ProgramError(f"{item!r} is no number of a graph")
        return full(number, (), dtype, beside)
    array = as_array(item)
    if array.dtype == object or array.dtype.kind in "USMmc":
        raise ProgramError(f"{type(item).__name__} {item!r} is no value; expected a value, a number or an array")
    if isinstance(item, np.ndarray):
        return constant_value(array, beside)
    check_representable(item, dtype)
    return constant_value(array.astype(NUMPY[dtype]), beside)


def as_array(item: Any) -> np.ndarray[Any, Any]:
    """Return ``numpy.asarray(item)``; raise ProgramError if it fails."""
    try:
        return np.asarray(item)
    except ValueError as exc:
        raise ProgramError(f"{item!r:.60} is no value: {exc}") from None


def pair(x: Like, y: Like) -> tuple[Value, Value]:
    """Return two operands as values; a number, or a list of numbers, takes the dtype of the other."""
    if isinstance(x, Variable):
        left = as_value(x)
        return left, value_like(y, left.dtype, left)
    right = value_like(y)
    return value_like(x, right.dtype, right), right


_NUMPY_ATTRS = {"elementwise_mod": {"floor": True}, "elementwise_floordiv": {"floor": True}}
"""Attributes that select NumPy's semantics for operators whose Fluid default differs."""


def binary(type: str, x: Like, y: Like) -> Value:
    """Append an operator of two operands, which broadcast as in NumPy."""
    left, right = pair(x, y)
    return emit(type, {"X": left, "Y": right}, {"axis": -1, **_NUMPY_ATTRS.get(type, {})})


def floordivide(x: Like, y: Like) -> Value:
    """Return the largest integer that is not greater than x / y."""
    left, right = pair(x, y)
    if not is_float(left.dtype):
        return binary("elementwise_floordiv", left, right)
    return emit("floor", {"X": binary("elementwise_div", left, right)})


def matmul(x: Like, y: Like) -> Value:
    """Return the matrix products over the last two dims, as ``numpy.matmul``; for two vectors, a scalar of shape ()."""
    left, right = pair(x, y)
    product = emit("matmul", {"X": left, "Y": right})
    if len(left.shape) == len(right.shape) == 1:
        return emit("reshape2", {"X": product}, {"shape": []})
    return product


def ints_of(name: str, items: Any, minimum: int | None = None) -> list[int]:
    """Return an int, or a sequence of ints, as a list; raise AttributeValueError for anything else."""
    is_sequence = isinstance(items, (list, tuple, np.ndarray))
    ints = list(items) if is_sequence else [items]
    for item in ints:
        is_int = isinstance(item, (int, np.integer)) and not isinstance(item, bool)
        if not is_int or (minimum is not None and item < minimum):
            what = "ints" if minimum is None else f"ints of {minimum} or more"
            raise AttributeValueError(f"{name} is {items!r}; expected {what}")
    return [int(item) for item in ints]
