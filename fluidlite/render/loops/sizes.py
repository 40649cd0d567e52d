"""Guarded sizes: integers that record every comparison as a guard.

Code that was specialized for some sizes serves all sizes for which the guards hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fluidlite.expr.generic_sizes import generic_value
from fluidlite.expr.number import FUNCTIONS, Condition, Number, Values, apply as number_of, number
from fluidlite.expr.number_table import ConditionList


@dataclass
class Guards:
    """Recorded comparisons of sizes.

    Attributes
    ----------
    comparisons : dict of (function, key, key) to (Condition, bool)
        Comparisons with their results.
    """

    comparisons: dict[tuple[str, str, str], tuple[Condition, bool]] = field(default_factory=dict)
    _answers: tuple[int, ConditionList] | None = None

    def record(self, function: str, a: Number, b: Number, answer: bool) -> bool:
        """Record the result of a comparison, and return it."""
        key = function, a.key, b.key
        if key not in self.comparisons and (a.op != "const" or b.op != "const"):
            self.comparisons[key] = Condition(function, a, b), answer
        return answer

    def hold(self, values: Values) -> bool:
        """Whether all comparisons have the same results for other sizes."""
        results = self._answers
        if results is None or results[0] != len(self.comparisons):
            results = self._answers = len(self.comparisons), ConditionList(list(self.comparisons.values()))
        return results[1].first_mismatch(values, lambda k: True) < 0


def _arithmetic_method(function: str, swapped: bool = False) -> Callable[[Size, Any], Any]:
    apply = FUNCTIONS[function]

    def operate(self: Size, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        a, b = (other, self) if swapped else (self, other)
        plain = apply(_plain(a), _plain(b))
        return Size.of(plain, number_of(function, _as_number(a), _as_number(b)), self.guards)

    return operate


def _comparison_method(function: str) -> Callable[[Size, Any], Any]:
    apply = FUNCTIONS[function]

    def compare(self: Size, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        other_number = other.n if isinstance(other, Size) else number(other)
        return self.guards.record(function, self.n, other_number, bool(apply(_plain(self), _plain(other))))

    return compare


class Size(int):
    """An integer computed of sizes.

    A comparison records its result; a conversion to a Python integer, or to text, records the value.
    """

    n: Number
    guards: Guards

    @classmethod
    def of(cls, value: int, n: Number, guards: Guards) -> Size | int:
        """A size with a value and its formula ``n``; a constant is a plain integer."""
        if n.op == "const":
            return value
        size = cls(value)
        size.n, size.guards = n, guards
        return size

    def exactly(self) -> int:
        """The Python integer; its value is recorded."""
        plain = _plain(self)
        self.guards.record("equal", self.n, number(plain), True)
        return plain

    __add__, __radd__ = _arithmetic_method("add"), _arithmetic_method("add", True)
    __sub__, __rsub__ = _arithmetic_method("sub"), _arithmetic_method("sub", True)
    __mul__, __rmul__ = _arithmetic_method("mul"), _arithmetic_method("mul", True)
    __floordiv__, __rfloordiv__ = _arithmetic_method("floordiv"), _arithmetic_method("floordiv", True)
    __mod__, __rmod__ = _arithmetic_method("mod"), _arithmetic_method("mod", True)
    __eq__, __ne__ = _comparison_method("equal"), _comparison_method("not_equal")
    __lt__, __le__ = _comparison_method("less"), _comparison_method("less_equal")
    __gt__, __ge__ = _comparison_method("greater"), _comparison_method("greater_equal")

    def __neg__(self) -> Any:
        return 0 - self

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __hash__(self) -> int:
        return hash(self.exactly())

    def __int__(self) -> int:
        return self.exactly()

    def __index__(self) -> int:
        return self.exactly()

    def __repr__(self) -> str:
        return repr(self.exactly())

    def __format__(self, spec: str) -> str:
        return format(self.exactly(), spec)


def _plain(value: int) -> int:
    return int.__index__(value) if type(value) is not Size else int.__add__(value, 0)


def _as_number(value: int) -> Number:
    return value.n if isinstance(value, Size) else number(int(value))


@dataclass(frozen=True)
class GuardedSizes:
    """The sizes of a call, with guards that record how they are used.

    Attributes
    ----------
    values : mapping
        The values of the leaves of numbers.
    cache : dict of str to int
        The values of numbers, by key.
    generic : dict of str to int
        Sizes that are equal only if they are equal in all calls.
    constant_dims : list of Number
        Short dims that are constants of the text.
    """

    values: Values
    guards: Guards
    cache: dict[str, int] = field(default_factory=dict)
    generic: dict[str, int] = field(default_factory=dict)
    constant_dims: list[Number] = field(default_factory=list)
    _generic_values: dict[str, int | None] = field(default_factory=dict)

    def generic_value(self, n: Number) -> int | None:
        """The value of a number at the generic sizes; None if these do not determine it."""
        if n.key not in self._generic_values:
            self._generic_values[n.key] = generic_value(n, self.generic)
        return self._generic_values[n.key]


Sizes = Values | GuardedSizes


def size_of(n: Number, sizes: Sizes) -> int:
    """The value of a number in the call: a :class:`Size` if the sizes are guarded."""
    if not isinstance(sizes, GuardedSizes):
        result: int = n.evaluate(sizes)
        return result
    value = sizes.cache.get(n.key)
    if value is None:
        value = sizes.cache[n.key] = int(n.evaluate(sizes.values))
    return Size.of(value, n, sizes.guards)


def is_equal_size(a: Number, b: Number, sizes: Sizes) -> bool:
    """Whether two sizes are equal in the call, and not only by coincidence, as far as the generic sizes show."""
    if a.key == b.key:
        return True
    if isinstance(sizes, GuardedSizes):
        one, other = sizes.generic_value(a), sizes.generic_value(b)
        if one is not None and other is not None and one != other:
            return False
    return size_of(a, sizes) == size_of(b, sizes)


def holds(c: Condition, sizes: Sizes) -> bool:
    """Whether a condition holds in the call."""
    if not isinstance(sizes, GuardedSizes):
        return bool(c.evaluate(sizes))
    return sizes.guards.record(c.op, c.a, c.b, bool(c.evaluate(sizes.values)))
