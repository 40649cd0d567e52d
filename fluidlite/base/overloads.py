"""Operator overloads of symbolic values: each becomes a named function, such as ``add(a, b)`` for ``a + b``."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

Result = TypeVar("Result")
Other = TypeVar("Other")
Compared = TypeVar("Compared")


class BinaryOverloads(Generic[Result, Other, Compared]):
    """Binary arithmetic and comparisons of a symbolic value.

    A subclass builds the result of a named function of operands; NotImplemented defers to the other operand's class.
    """

    __slots__ = ()
    __hash__ = object.__hash__

    def _arithmetic(self, function: str, *operands: Any) -> Result:
        """Return the symbolic result of an arithmetic function of one or two operands, such as ``"add"``."""
        raise NotImplementedError

    def _compare(self, function: str, *operands: Any) -> Compared:
        """Return the symbolic result of a comparison of two operands, such as ``"less"``."""
        raise NotImplementedError

    def __add__(self, other: Other) -> Result:
        return self._arithmetic("add", self, other)

    def __radd__(self, other: Other) -> Result:
        return self._arithmetic("add", other, self)

    def __sub__(self, other: Other) -> Result:
        return self._arithmetic("sub", self, other)

    def __rsub__(self, other: Other) -> Result:
        return self._arithmetic("sub", other, self)

    def __mul__(self, other: Other) -> Result:
        return self._arithmetic("mul", self, other)

    def __rmul__(self, other: Other) -> Result:
        return self._arithmetic("mul", other, self)

    def __truediv__(self, other: Other) -> Result:
        return self._arithmetic("div", self, other)

    def __rtruediv__(self, other: Other) -> Result:
        return self._arithmetic("div", other, self)

    def __floordiv__(self, other: Other) -> Result:
        return self._arithmetic("floordiv", self, other)

    def __mod__(self, other: Other) -> Result:
        return self._arithmetic("mod", self, other)

    def __pow__(self, other: Other) -> Result:
        return self._arithmetic("pow", self, other)

    def __rpow__(self, other: Other) -> Result:
        return self._arithmetic("pow", other, self)

    def __lt__(self, other: Other) -> Compared:
        return self._compare("less", self, other)

    def __le__(self, other: Other) -> Compared:
        return self._compare("less_equal", self, other)

    def __gt__(self, other: Other) -> Compared:
        return self._compare("greater", self, other)

    def __ge__(self, other: Other) -> Compared:
        return self._compare("greater_equal", self, other)

    def __eq__(self, other: object) -> Compared:  # type: ignore[override]
        return self._compare("equal", self, other)

    def __ne__(self, other: object) -> Compared:  # type: ignore[override]
        return self._compare("not_equal", self, other)


class Overloads(BinaryOverloads[Result, Other, Compared]):
    """All operator overloads of a symbolic value, unary ones included."""

    __slots__ = ()

    def __rfloordiv__(self, other: Other) -> Result:
        return self._arithmetic("floordiv", other, self)

    def __rmod__(self, other: Other) -> Result:
        return self._arithmetic("mod", other, self)

    def __pow__(self, other: Other) -> Result:
        exponent = getattr(other, "value", other) if getattr(other, "op", "") == "const" else other
        if (
            not isinstance(exponent, bool) and isinstance(exponent, (int, float)) and exponent in (1, 2)
        ):  # exact, unlike pow
            return self._arithmetic("mul", self, self) if exponent == 2 else +self
        return self._arithmetic("pow", self, other)

    def __pos__(self) -> Result:
        return self  # type: ignore[return-value]  # the result of a symbol is one of its class

    def __neg__(self) -> Result:
        return self._arithmetic("neg", self)

    def __abs__(self) -> Result:
        return self._arithmetic("abs", self)
