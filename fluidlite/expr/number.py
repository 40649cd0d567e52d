"""Symbolic numbers of a trace: sizes of dims, float attributes, and arithmetic on them.

A size is an integer of 0 or more; an expression takes it wherever it takes a Python integer or float. A comparison of
numbers is evaluated for the sizes of the current call; its truth becomes a guard of the trace, which is valid for all
calls in which all guards have the same truth.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, Union

import numpy as np

from fluidlite.base.errors import ProgramError
from fluidlite.base.overloads import Overloads
from fluidlite.expr.tracing import current

Values = Mapping[str, Any]
"""The values of leaves in one call, by name; None where unknown."""


def _quotient(a: Any, b: Any) -> Any:
    if b == 0:
        return 0 if isinstance(a, int) and isinstance(b, int) else _fraction(a, b)
    return a // b


def _remainder(a: Any, b: Any) -> Any:
    if b == 0:
        return 0 if isinstance(a, int) and isinstance(b, int) else math.nan
    return a % b


def _fraction(a: Any, b: Any) -> Any:
    if b == 0:  # IEEE 754, not Python's error
        return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


def _power(a: Any, b: Any) -> Any:
    try:
        power = a**b
        return math.nan if isinstance(power, complex) else power
    except ZeroDivisionError:
        return math.inf
    except OverflowError:
        return math.inf if a > 0 or b % 2 == 0 else -math.inf


def _safe(function: Callable[[Any], Any], domain: float = math.nan) -> Callable[[Any], Any]:
    def apply(a: Any) -> Any:
        try:
            return function(a)
        except ValueError:
            return domain
        except OverflowError:
            return math.inf

    return apply


def _single(a: Any) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(a))


def _longest(offsets: Any) -> int:
    """The length of the longest sequence; unknown offsets are replaced by a size, which is returned."""
    if isinstance(offsets, int):
        return offsets
    return max((b - a for a, b in pairwise(offsets)), default=0)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _fraction,
    "floordiv": _quotient,
    "mod": _remainder,
    "pow": _power,
    "neg": operator.neg,
    "abs": abs,
    "minimum": min,
    "maximum": max,
    "floor": _safe(math.floor),
    "ceil": _safe(math.ceil),
    "exp": _safe(math.exp),
    "sqrt": _safe(math.sqrt),
    "log": _safe(lambda a: -math.inf if a == 0 else math.log(a)),
    "tanh": math.tanh,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "where": lambda condition, a, b: a if condition else b,
    "single": _single,
    "whole": _safe(math.trunc, 0),
    "longest": _longest,
}
COMPARISONS = {"equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">="}
"""The functions that compare numbers, with their signs."""
_INTEGER_FUNCTIONS = frozenset({"add", "sub", "mul", "floordiv", "mod", "neg", "abs", "minimum", "maximum"})
"""Functions that return an integer for integers."""


class Number(Overloads["Number", "Numeric", "Condition"]):
    """A number whose value depends on the call.

    Attributes
    ----------
    op : str
        ``"size"`` or ``"attr"`` (a leaf, named ``value``), ``"const"``, or a function of ``args``.
    whole : bool
        Whether it is an integer.
    key : str
        Equal keys are equal numbers.
    leaves : list of Number or None
        Its leaves, cached by ``render.loops.indices.leaves_of``.
    """

    __slots__ = ("args", "key", "leaves", "op", "value", "whole")
    args: tuple[Number, ...]
    key: str
    leaves: list[Number] | None
    op: str
    value: Any
    whole: bool

    def __init__(self, op: str, args: tuple[Number, ...] = (), value: Any = None, whole: bool = True) -> None:
        self.op, self.args, self.value, self.whole, self.leaves = op, args, value, whole, None
        if args:
            self.key = f"{op}({','.join([arg.key for arg in args])})"
        else:
            self.key = repr(value) if op == "const" else f"{op}:{value}"

    def evaluate(self, values: Values) -> Any:
        """The value in a call; None if a leaf is unknown."""
        if self.op == "const":
            return self.value
        if not self.args:
            return values[self.value]
        args = [arg.evaluate(values) for arg in self.args]
        return None if None in args else FUNCTIONS[self.op](*args)

    def __repr__(self) -> str:
        return self.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __index__(self) -> int:
        if self.op == "const" and self.whole:
            return int(self.value)
        raise TypeError(f"{self.key} is not known while an operator is traced; do not use it as Python's integer")

    def arithmetic(self, function: str, *operands: Numeric) -> Number:
        """The number that a function returns; NotImplemented for a tensor operand, which has its own overloads."""
        of_tensor = any([not isinstance(x, _PLAIN) and hasattr(x, "dims") for x in operands])
        return NotImplemented if of_tensor else _make(function, *operands)

    def compare(self, function: str, *operands: Numeric) -> Condition:
        """The condition of a comparison."""
        return NotImplemented if hasattr(operands[1], "dims") else Condition(function, self, number(operands[1]))

    _arithmetic, _compare = arithmetic, compare

    def __bool__(self) -> bool:
        return bool(self != 0)


Numeric = Union[Number, int, float]
_PLAIN = (Number, int, float)


class Condition:
    """A comparison of two numbers; converting it to bool adds a guard to the trace."""

    __slots__ = ("a", "b", "op")

    def __init__(self, op: str, a: Number, b: Number) -> None:
        self.op, self.a, self.b = op, a, b

    @property
    def key(self) -> str:
        """Equal keys are equal conditions."""
        return f"{self.op}({self.a.key},{self.b.key})"

    def evaluate(self, values: Values) -> bool | None:
        """The truth in a call; None if a leaf is unknown."""
        if self.a.key == self.b.key and self.a.whole:
            return self.op in ("equal", "less_equal", "greater_equal")
        a, b = self.a.evaluate(values), self.b.evaluate(values)
        return None if a is None or b is None else bool(FUNCTIONS[self.op](a, b))

    def __bool__(self) -> bool:
        return current().decide(self)

    def __repr__(self) -> str:
        return self.key


def number(value: Any) -> Number:
    """Convert a Python or NumPy number to a ``Number``.

    Raises
    ------
    ProgramError
        If the value is no number.
    """
    if isinstance(value, Number):
        return value
    if type(value) is int and value in _CACHED_INTEGERS:
        return _CACHED_INTEGERS[value]
    if hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        raise ProgramError(f"{value!r:.80} is no number")
    return Number("const", (), value, not isinstance(value, float))


_CACHED_INTEGERS = {value: Number("const", (), value) for value in range(-16, 1025)}
"""One shared object for each integer that is used often."""


def size(name: str) -> Number:
    """The leaf of a size, an integer of 0 or more."""
    return Number("size", (), name)


def value_leaf(name: str, whole: bool) -> Number:
    """The leaf of an element of an input, of any sign."""
    return Number("value", (), name, whole)


def offsets_leaf(slot: str, i: int, level: int) -> Number:
    """The leaf of all offsets of a level of an operand's LoD: its value is a tuple of integers, not a number."""
    return Number("offsets", (), f"{slot}.{i}.lod{level}.offsets")


def offset_count(slot: str, i: int, level: int) -> Number:
    """The leaf of the number of offsets of a level of an operand's LoD."""
    return size(f"{slot}.{i}.lod{level}")


def table_leaf(slot: str, i: int) -> Number:
    """The leaf of all elements of an input that is read as a table: its value is a tuple of integers, not a number."""
    return Number("offsets", (), f"{slot}.{i}.table")


def table_count(slot: str, i: int) -> Number:
    """The leaf of the number of elements of an input that is read as a table."""
    return size(f"{slot}.{i}.table.size")


def longest_of(slot: str, i: int, level: int) -> Number:
    """The length of the longest sequence of a level of an operand's LoD."""
    return Number("longest", (offsets_leaf(slot, i, level),))


def attribute(name: str) -> Number:
    """The leaf of a float attribute."""
    return Number("attr", (), name, whole=False)


def _make(op: str, *operands: Numeric) -> Number:
    args = tuple([arg if isinstance(arg, Number) else number(arg) for arg in operands])
    a, b = args[0], args[-1]
    if a.op == b.op == "const" and (len(args) < 3 or args[1].op == "const"):
        return number(FUNCTIONS[op](*[arg.value for arg in args]))
    whole = op == "whole" or (op in _INTEGER_FUNCTIONS and a.whole and b.whole)
    if whole:  # these identities hold for integers; for floats they lose -0.0 and NaN
        if op in ("add", "sub") and b.key == "0":
            return a
        if op == "add" and a.key == "0":
            return b
        if op == "sub" and a.key == b.key:
            return number(0)
        if op == "add":  # (a - b) + b is a
            for one, other in ((a, b), (b, a)):
                if one.op == "sub" and one.args[1].key == other.key:
                    return one.args[0]
        if op in ("mul", "floordiv") and b.key == "1":
            return a
        if op == "mul" and a.key == "1":
            return b
        if op == "mul" and "0" in (a.key, b.key):
            return number(0)
        if op in ("minimum", "maximum") and a.key == b.key:
            return a
        if op in ("add", "mul") and b.key < a.key:
            args = b, a  # canonical order of commutative operands
    return Number(op, args, None, whole)


def apply(op: str, *args: Numeric) -> Number:
    """Apply a function of numbers by the name of its primitive."""
    if op not in FUNCTIONS:
        raise ProgramError(f"{op} takes tensors, not numbers; cast a number first, or make the attribute static")
    return _make(op, *args)


class Numbers(tuple[Number, ...]):
    """The elements of an input that is read as values, in order, with its dims."""

    dims: tuple[int, ...]

    @classmethod
    def of(cls, values: Iterable[Number], dims: tuple[int, ...]) -> Numbers:
        """Return the numbers with dims."""
        numbers = cls(values)
        numbers.dims = dims
        return numbers


def lowest(a: Numeric, b: Numeric) -> Number:
    """The smaller of two numbers."""
    return _make("minimum", a, b)


def highest(a: Numeric, b: Numeric) -> Number:
    """The larger of two numbers."""
    return _make("maximum", a, b)


def single(a: Numeric) -> Number:
    """The number rounded to float32."""
    return _make("single", a)


def whole(a: Numeric) -> Number:
    """The number without its fraction, as an integer."""
    return _make("whole", a)


def product(values: Any) -> Number:
    """The product of numbers; 1 of none."""
    total = number(1)
    for value in values:
        first = total.key == "1" and isinstance(value, Number) and value.whole
        total = value if first else total * value
    return total
