"""Python's operators of a symbol, each as a named function: ``a + b`` is ``add`` of ``a`` and ``b``."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

Result = TypeVar("Result")
Other = TypeVar("Other")
Compared = TypeVar("Compared")


class BinaryOverloads(Generic[Result, Other, Compared]):
    """Arithmetic and comparisons, with another operand, of what stands for a value that is not known yet.

    A subclass says what a named function of operands is, of which it is one. NotImplemented leaves it to the other.
    """

    __slots__ = ()
    __hash__ = object.__hash__

    def _arithmetic(self, function: str, *operands: Any) -> Result:
        """What a function of one or two operands is, such as ``"add"``."""
        raise NotImplementedError

    def _compare(self, function: str, *operands: Any) -> Compared:
        """What a comparison of two operands is, such as ``"less"``."""
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
    """All operators of Python that a symbol has: of itself alone, too."""

    __slots__ = ()

    def __rfloordiv__(self, other: Other) -> Result:
        return self._arithmetic("floordiv", other, self)

    def __rmod__(self, other: Other) -> Result:
        return self._arithmetic("mod", other, self)

    def __pow__(self, other: Other) -> Result:
        known = getattr(other, "value", other) if getattr(other, "op", "") == "const" else other
        if not isinstance(known, bool) and isinstance(known, (int, float)) and known in (1, 2):  # exact, as pow is not
            return self._arithmetic("mul", self, self) if known == 2 else +self
        return self._arithmetic("pow", self, other)

    def __pos__(self) -> Result:
        return self  # type: ignore[return-value]  # the result of a symbol is one of its class

    def __neg__(self) -> Result:
        return self._arithmetic("neg", self)

    def __abs__(self) -> Result:
        return self._arithmetic("abs", self)
