"""Sizes that note what is asked of them: what was made for some serves all of which the answers are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fluidlite.expr.formulas import Answers
from fluidlite.expr.generic_sizes import generic
from fluidlite.expr.number import FUNCTIONS, Condition, Number, Values, apply as number_of, number


@dataclass
class Guards:
    """What was asked of sizes, and what the answers were.

    Attributes
    ----------
    asked : dict of (function, key, key) to (Condition, bool)
        Comparisons, and their answers.
    """

    asked: dict[tuple[str, str, str], tuple[Condition, bool]] = field(default_factory=dict)
    _answers: tuple[int, Answers] | None = None

    def note(self, function: str, a: Number, b: Number, answer: bool) -> bool:
        """Keep an answer, and return it."""
        key = function, a.key, b.key
        if key not in self.asked and (a.op != "const" or b.op != "const"):
            self.asked[key] = Condition(function, a, b), answer
        return answer

    def hold(self, values: Values) -> bool:
        """Whether the answers are the same of other sizes."""
        answers = self._answers
        if answers is None or answers[0] != len(self.asked):
            answers = self._answers = len(self.asked), Answers(list(self.asked.values()))
        return answers[1].first_other(values, lambda k: True) < 0


def _arithmetic(function: str, turned: bool = False) -> Callable[[Size, Any], Any]:
    apply = FUNCTIONS[function]

    def made(self: Size, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        a, b = (other, self) if turned else (self, other)
        plain = apply(_plain(a), _plain(b))
        return Size.of(plain, number_of(function, _as_number(a), _as_number(b)), self.guards)

    return made


def _comparison(function: str) -> Callable[[Size, Any], Any]:
    apply = FUNCTIONS[function]

    def compared(self: Size, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        known = other.n if isinstance(other, Size) else number(other)
        return self.guards.note(function, self.n, known, bool(apply(_plain(self), _plain(other))))

    return compared


class Size(int):
    """An integer that is computed of sizes.

    Comparing it notes the answer; to take it as Python's integer, or as text, notes all of it.
    """

    n: Number
    guards: Guards

    @classmethod
    def of(cls, value: int, n: Number, guards: Guards) -> Size | int:
        """A size of that value, which is ``n``; one that is always the same is a plain integer."""
        if n.op == "const":
            return value
        made = cls(value)
        made.n, made.guards = n, guards
        return made

    def exactly(self) -> int:
        """The integer, on which all that follows depends."""
        plain = _plain(self)
        self.guards.note("equal", self.n, number(plain), True)
        return plain

    __add__, __radd__ = _arithmetic("add"), _arithmetic("add", True)
    __sub__, __rsub__ = _arithmetic("sub"), _arithmetic("sub", True)
    __mul__, __rmul__ = _arithmetic("mul"), _arithmetic("mul", True)
    __floordiv__, __rfloordiv__ = _arithmetic("floordiv"), _arithmetic("floordiv", True)
    __mod__, __rmod__ = _arithmetic("mod"), _arithmetic("mod", True)
    __eq__, __ne__ = _comparison("equal"), _comparison("not_equal")
    __lt__, __le__ = _comparison("less"), _comparison("less_equal")
    __gt__, __ge__ = _comparison("greater"), _comparison("greater_equal")

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
class Noted:
    """The sizes of a call, of which it is noted what is asked.

    Attributes
    ----------
    values : mapping
        What the leaves of numbers are.
    known : dict of str to int
        By key, what numbers were found to be.
    generic : dict of str to int
        Sizes that are equal only where all calls have equal ones.
    short : list of Number
        Sizes of which the text knows how long they are.
    """

    values: Values
    guards: Guards
    known: dict[str, int] = field(default_factory=dict)
    generic: dict[str, int] = field(default_factory=dict)
    short: list[Number] = field(default_factory=list)
    _generic: dict[str, int | None] = field(default_factory=dict)

    def at_generic(self, n: Number) -> int | None:
        """A number at sizes that are equal only where all calls have equal ones; None if that is not known."""
        if n.key not in self._generic:
            self._generic[n.key] = generic(n, self.generic)
        return self._generic[n.key]


Sizes = Values | Noted


def size_of(n: Number, sizes: Sizes) -> int:
    """A size in the call at hand; where it is to be noted what is asked, one that notes it."""
    if not isinstance(sizes, Noted):
        found: int = n.evaluate(sizes)
        return found
    value = sizes.known.get(n.key)
    if value is None:
        value = sizes.known[n.key] = int(n.evaluate(sizes.values))
    return Size.of(value, n, sizes.guards)


def alike(a: Number, b: Number, sizes: Sizes) -> bool:
    """Whether two sizes are equal in the call at hand, and not by chance: then what is made is the same without."""
    if a.key == b.key:
        return True
    if isinstance(sizes, Noted):
        one, other = sizes.at_generic(a), sizes.at_generic(b)
        if one is not None and other is not None and one != other:
            return False
    return size_of(a, sizes) == size_of(b, sizes)


def holds(c: Condition, sizes: Sizes) -> bool:
    """Whether a condition holds in the call at hand."""
    if not isinstance(sizes, Noted):
        return bool(c.evaluate(sizes))
    return sizes.guards.note(c.op, c.a, c.b, bool(c.evaluate(sizes.values)))
