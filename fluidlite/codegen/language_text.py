"""C text of literals, polynomials and bit operations of a floating-point type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fluidlite.base.dtypes import ALL_INTS


def literal(value: object, dtype: str) -> str:
    """The C literal of a number in a compute dtype."""
    if dtype == "bool":
        return "1" if value else "0"
    if dtype in ALL_INTS:
        number = int(value)  # type: ignore[call-overload]
        if dtype == "int64":
            return f"({number + 1}L - 1)" if number == -(2**63) else f"({number}L)" if number < 0 else f"{number}L"
        return f"({number + 1} - 1)" if number == -(2**31) else f"({number})" if number < 0 else str(number)
    real = float(value)  # type: ignore[arg-type]
    if real != real:
        return f"fl_bits_{dtype}({'0x7fc00000u' if dtype == 'float32' else '0x7ff8000000000000UL'})"
    if math.isinf(real) or (dtype == "float32" and abs(real) > 3.4028235677973366e38):
        sign = "-" if real < 0 else ""
        return f"({sign}fl_bits_{dtype}({'0x7f800000u' if dtype == 'float32' else '0x7ff0000000000000UL'}))"
    text = format(real, ".9g" if dtype == "float32" else ".17g")
    text += "" if "." in text or "e" in text else ".0"
    text += "f" if dtype == "float32" else ""
    return f"({text})" if text.startswith("-") else text


@dataclass(frozen=True)
class Text:
    """Writes C text for one floating-point type.

    ``dtype``: float32 or float64.
    ``fused``: whether the kernel language has ``fma``.
    """

    dtype: str
    fused: bool

    @property
    def single(self) -> bool:
        """Whether the type is float32."""
        return self.dtype == "float32"

    @property
    def bias(self) -> int:
        """The exponent bias."""
        return 127 if self.single else 1023

    @property
    def shift(self) -> int:
        """The number of mantissa bits."""
        return 23 if self.single else 52

    def lit(self, value: float) -> str:
        """The literal of a number."""
        return literal(value, self.dtype)

    def word(self, value: int) -> str:
        """The literal of an unsigned integer of the type's size."""
        return f"{value:#x}u" if self.single else f"{value:#x}UL"

    def fma(self, a: str, b: str, c: str, dtype: str = "") -> str:
        """The text of a * b + c."""
        return f"fl_fma_{dtype or self.dtype}({a}, {b}, {c})" if self.fused else f"({a} * {b} + {c})"

    def product(self, name: str, a: str, b: str) -> str:
        """Declare ``name``, a * b, and ``name_low``, its rounding error; exact unless they over- or underflow.

        Without ``fma``, factors are split in halves, whose products are exact (Dekker, 1971).
        """
        if self.fused:
            low = f"{name}_low = fl_fma_{self.dtype}({a}, {b}, -{name}); "
            return f"const $T {name} = {a} * {b}, {low}"
        factor = self.lit(2.0**12 + 1 if self.single else 2.0**27 + 1)
        halves = "".join(
            f"{name}_{which}1 = {factor_} * {factor} - ({factor_} * {factor} - {factor_}), "
            f"{name}_{which}2 = {factor_} - {name}_{which}1, "
            for which, factor_ in (("a", a), ("b", b))
        )
        return (
            f"const $T {name} = {a} * {b}, {halves}{name}_low = (({name}_a1 * {name}_b1 - {name}) "
            f"+ {name}_a1 * {name}_b2 + {name}_a2 * {name}_b1) + {name}_a2 * {name}_b2; "
        )

    def polynomial(self, coefficients: Sequence[float], x: str, dtype: str = "") -> str:
        """A polynomial by Horner's rule; ``coefficients``: the lowest power first."""
        kind = dtype or self.dtype
        text = literal(coefficients[-1], kind)
        for coefficient in reversed(coefficients[:-1]):
            text = self.fma(text, x, literal(coefficient, kind), kind)
        return text

    def halves(self, coefficients: Sequence[float], x: str, square: str) -> str:
        """A polynomial split in even and odd powers: half as long a dependency chain, for one more operation."""
        even, odd = (self.polynomial(coefficients[first::2], square) for first in (0, 1))
        return self.fma(odd, x, even)

    def power_of_two(self, k: str) -> str:
        """2 ** k for an unsigned k, which may have wrapped; the result must be normal."""
        return self.power(f"{k} + {self.bias}u")

    def power(self, biased: str) -> str:
        """2 ** k for ``biased``, which is k plus the bias."""
        return f"fl_bits_{self.dtype}(({biased}) << {self.shift})"

    def with_sign(self, name: str) -> str:
        """Return ``name``, which is not negative, with the sign of x."""
        sign = self.word(1 << (31 if self.single else 63))
        union = f"union fl_union_{self.dtype}"
        return f"{union} given, result; given.f = x; result.f = {name}; result.u |= given.u & {sign}; return result.f;"
