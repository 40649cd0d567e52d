"""Bodies in C of functions of floats that are exact or rounded once: rounding to integers, square roots, remainders."""

from __future__ import annotations

import math

from fluidlite.codegen.language_text import Text


class ExactBodies(Text):
    """Writes the bodies for one type."""

    def abs(self) -> str:
        """The absolute value; 0 for -0."""
        return "return x < 0 ? -x : (x == 0 ? ($T)0 : x);"

    def trunc(self) -> str:
        """Numbers without a fraction are returned; the sign stays, also that of 0."""
        whole = self.lit(2.0**self.shift)
        return (
            f"const $T a = fl_abs_{self.dtype}(x), c = a < {whole} ? a : 0, t = a < {whole} ? ($T)($L)c : a; "
            f"{self.with_sign('t')}"
        )

    def floor(self) -> str:
        """Truncated, minus 1 for negative fractions."""
        return f"const $T t = fl_trunc_{self.dtype}(x); return t > x ? t - 1 : t;"

    def ceil(self) -> str:
        """Truncated, plus 1 for positive fractions."""
        return f"const $T t = fl_trunc_{self.dtype}(x); return t < x ? t + 1 : t;"

    def round(self) -> str:
        """Halves are rounded away from 0."""
        return (
            f"const $T t = fl_trunc_{self.dtype}(x), d = x - t; "
            f"return d >= {self.lit(0.5)} ? t + 1 : (d <= {self.lit(-0.5)} ? t - 1 : t);"
        )

    def sqrt(self) -> str:
        """Newton's method from an estimate by integer arithmetic on the bits."""
        up, down = (2.0**24, 2.0**-12) if self.single else (2.0**54, 2.0**-27)
        start = "(v.u >> 1) + 0x1fbd1df5u" if self.single else "(v.u >> 1) + 0x1ff7a3bea91d9b1bUL"
        steps = "r = (r + y / r) * " + self.lit(0.5) + "; "
        tiny = self.lit(2.0**-100 if self.single else 2.0**-900)
        return (
            f"if (!(x > 0) || x == {self.lit(math.inf)}) return x >= 0 || x != x ? x : {self.lit(math.nan)}; "
            f"const int tiny = x < {tiny}; const $T y = tiny ? x * {self.lit(up)} : x; "
            f"union fl_union_{self.dtype} v; v.f = y; v.u = {start}; $T r = v.f; {steps * (4 if self.single else 5)}"
            f"return tiny ? r * {self.lit(down)} : r;"
        )

    def fmod(self) -> str:
        """Exact: subtracts the divisor times powers of two, the largest first."""
        return self._remainder("")

    def fmod_fused(self) -> str:
        """``fmod`` with ``fma``: one step if the type represents the quotient, which is corrected if 1 too large."""
        whole, inf = self.lit(2.0 ** (self.shift - 1)), self.lit(math.inf)
        fast_path = (
            f"const $T q = r / d; if (q >= 0 && q < {whole} && d < {inf}) {{ "
            f"r = fl_fma_{self.dtype}(-($T)({'int' if self.single else '$L'})q, d, r); r = r < 0 ? r + d : r; "
            "return x < 0 ? -r : r; } "
        )
        return self._remainder(fast_path)

    def _remainder(self, fast_path: str) -> str:
        inf, half = self.lit(math.inf), self.lit(0.5)
        return (
            f"$T r = x < 0 ? -x : x; const $T d = y < 0 ? -y : y; {fast_path}"
            f"if (x != x || y != y || d == 0 || r == {inf}) return {self.lit(math.nan)}; if (d == {inf}) return x; "
            f"$T t = d; while (t <= r * {half}) t *= 2; while (r >= d) {{ if (r >= t) r -= t; t *= {half}; }} "
            "return x < 0 ? -r : r;"
        )

    def mod(self) -> str:
        """The remainder with the sign of the divisor, also for 0."""
        return (
            f"const $T r = fl_fmod_{self.dtype}(x, y); "
            "return r != 0 ? ((r < 0) != (y < 0) ? r + y : r) : (y < 0 ? -($T)0 : ($T)0);"
        )
