"""Bodies in C of mathematical functions of floats, for kernel languages without them.

They are branch-free where possible, so that compilers vectorize them: arguments are clamped instead of returned early,
both sides of a choice are computed, and exponents are built from bits. NaN propagates through comparisons that are
false for it. ``$T`` is the type, ``$U`` the unsigned type of its size, ``$L`` a signed 64-bit type. Polynomials use
``fma`` where the kernel language has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fluidlite.codegen import philox, polynomials as p
from fluidlite.codegen.language_exact import ExactBodies
from fluidlite.codegen.language_text import literal

LOG2E = 1 / math.log(2)
LN2 = {"float32": (0.693359375, -2.12194440e-4), "float64": (6.93147180369123816490e-01, 1.90821492927058770002e-10)}
"""log(2) in two parts: a multiple of the first is exact."""
HALF_PI = {"float32": (1.57079637, -4.37113883e-8), "float64": (1.5707963267948966, 6.123233995736766e-17)}
"""pi / 2 and its rounding error."""
ROUNDER = {"float32": (12582912.0, 0x4B400000), "float64": (6755399441055744.0, 0x4338000000000000)}
"""1.5 * 2 ** mantissa bits, and its bits: adding a number rounds it to an integer, which is in the last bits."""
TWO_OVER_PI = int(
    "A2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7246E3A424DD2E006492EEA09D1921C"
    "FE1DEB1CB129A73EE88235F52EBB4484E99C7026B45F7E413991D639835339F49C845F8BBDF9283B1FF897FFDE05980F"
    "EF2F118B5A0A6D1F6D367ECF27CB09B74F463F669E5FEA2D7527BAC7EBE5F17B3D0739F78A5292EA6BFB5FB11F8D5D08"
    "56033046FC7B6BAB",
    16,
)
TWO_OVER_PI_BITS = 1216
"""The first bits of 2 / pi after the point, and their number: enough for all float64 arguments."""
EXP_LIMIT = 80.0
"""For arguments up to this, exp(x) and exp(-x) are normal numbers of both types."""
NORMAL_UP = {"float32": 64, "float64": 128}
"""Binary exponents by which exp(-x * x / 2) is scaled, so that it stays normal until its last multiplication."""
CODY_WAITE_LIMIT = 2.0**20
"""Float64 arguments below this are reduced by pi / 2 in four parts (Cody and Waite): the products are exact."""


class Bodies(ExactBodies):
    """Writes the bodies for one type."""

    # Exponential functions: the argument is n log(2) + r, with an integer n

    def _reduce(self, x: str, addend: int) -> str:
        """Declare n, r, and k, the bits of n + ``addend``: the addition is free here."""
        high, low = LN2[self.dtype]
        number, bits = ROUNDER[self.dtype]
        rounder = self.lit(number + addend)
        rest = self.fma("n", self.lit(-low), self.fma("n", self.lit(-high), x))
        return (
            f"union fl_union_{self.dtype} near; near.f = {self.fma(x, self.lit(LOG2E), rounder)}; "
            f"const $T n = near.f - {rounder}, r = {rest}; const $U k = near.u - {self.word(bits)}; "
        )

    def _scale(self, x: str) -> str:
        """Return ``x`` times 2 ** n; k is n plus two biases.

        It is multiplied by two factors: 2 ** n may be out of the normal range though the result is not.
        """
        return f"const $U h = k >> 1; return {x} * {self.power('h')} * {self.power('k - h')};"

    def _clamp(self, low: float, high: float) -> str:
        """Declare c, x clamped to limits; NaN stays."""
        first, last = self.lit(low), self.lit(high)
        return f"const $T c = x > {last} ? {last} : (x < {first} ? {first} : x); "

    def exp(self) -> str:
        """1 + r + r r (...), times 2 ** n."""
        top, bottom = (88.8, -104.0) if self.single else (709.8, -745.2)
        rest = self.fma("r * r", self.polynomial(p.EXP[self.dtype], "r"), "r")
        reduced = f"{self._clamp(bottom, top)}{self._reduce('c', 2 * self.bias)}"
        return f"{reduced}const $T e = {rest} + 1; {self._scale('e')}"

    def expnear(self) -> str:
        """For an argument between -EXP_LIMIT and EXP_LIMIT, or NaN: 2 ** n is a normal number."""
        rest = self.fma("r * r", self.polynomial(p.EXP[self.dtype], "r"), "r")
        return f"{self._reduce('x', self.bias)}return ({rest} + 1) * {self.power('k')};"

    def expm1(self) -> str:
        """Half of the result is computed, then doubled: 2 ** n may overflow though the result does not."""
        top, bottom, tiny = (88.8, -18.0, 2.0**-26) if self.single else (709.8, -40.0, 2.0**-55)
        rest = self.fma("r * r", self.polynomial(p.EXPM1[self.dtype], "r"), "r")
        return (
            f"{self._clamp(bottom, top)}{self._reduce('c', self.bias - 1)}const $T h = {self.power('k')}, "
            f"e = {self.fma(rest, 'h', f'(h - {self.lit(0.5)})')}; "
            f"return x < {self.lit(tiny)} && x > {self.lit(-tiny)} ? x : e + e;"
        )

    def tanh(self) -> str:
        """With e = exp(2 |x|) - 1: e / (e + 2)."""
        end = self.lit(20.0 if self.single else 40.0)
        rest = self.fma("r * r", self.polynomial(p.EXPM1[self.dtype], "r"), "r")
        return (
            f"const $T a = fl_abs_{self.dtype}(x), b = a + a, c = b > {end} ? {end} : b; "
            f"{self._reduce('c', self.bias)}const $T h = {self.power('k')}, e = {self.fma(rest, 'h', '(h - 1)')}; "
            f"{self.with_sign('e / (e + 2)')}"
        )

    def _hyperbolic(self) -> str:
        return (
            f"const $T a = x < 0 ? -x : x, h = fl_exp_{self.dtype}(a * {self.lit(0.5)}), "
            f"high = {self.lit(0.5)} * h * h, low = {self.lit(0.25)} / high; "
        )

    def cosh(self) -> str:
        """(exp(x) + exp(-x)) / 2."""
        return f"{self._hyperbolic()}return high + low;"

    def sinh(self) -> str:
        """(exp(x) - exp(-x)) / 2; a series below 1."""
        series = [1 / math.factorial(2 * k + 1) for k in range(6 if self.single else 10)]
        return (
            f"{self._hyperbolic()}const $T z = x * x, far = x < 0 ? low - high : high - low; "
            f"return a < 1 ? x * {self.polynomial(series, 'z')} : far;"
        )

    # Logarithms: the argument is 2 ** e (1 + g)

    def _split(self, x: str) -> str:
        """Declare e and v; v.f is 1 + g, between sqrt(1/2) and sqrt(2)."""
        root = self.word(0x3F3504F3 if self.single else 0x3FE6A09E667F3BCD)
        signed = f"(int)(v.u - {root})" if self.single else f"($L)(v.u - {root})"
        return (
            f"union fl_union_{self.dtype} v; v.f = {x}; const int e = (int)({signed} >> {self.shift}); "
            f"v.u -= ($U)e << {self.shift}; "
        )

    def _logarithm(self) -> str:
        """Declare r, the logarithm, from n = e and g."""
        high, low = LN2[self.dtype]
        tail = f"s * {self.fma('2 * z', self.polynomial(p.ATANH[self.dtype], 'z'), 'q')}"
        rest = f"(g - (q - {self.fma('n', self.lit(low), tail)}))"
        return (
            f"const $T s = g / (g + 2), z = s * s, q = g * g * {self.lit(0.5)}, "
            f"r = {self.fma('n', self.lit(high), rest)}; "
        )

    def log(self) -> str:
        """Subnormal numbers are scaled first."""
        smallest, scale, power = (2.0**-126, 2.0**25, 25) if self.single else (2.0**-1022, 2.0**54, 54)
        inf, nan = self.lit(math.inf), self.lit(math.nan)
        return (
            f"const int tiny = x < {self.lit(smallest)}; {self._split(f'tiny ? x * {self.lit(scale)} : x')}"
            f"const $T g = v.f - 1, n = ($T)(e - (tiny ? {power} : 0)); {self._logarithm()}"
            f"return x > 0 ? (x < {inf} ? r : x) : (x == 0 ? -{inf} : {nan});"
        )

    def log1p(self) -> str:
        """Computes g from x, not from the rounded 1 + x; for e >= 64 from v.f, since 2 ** -e may underflow."""
        inf, nan, tiny = self.lit(math.inf), self.lit(math.nan), self.lit(2.0 ** (-26 if self.single else -55))
        return (
            f"{self._split('x + 1')}const $T n = ($T)e, h = {self.power_of_two('($U)(e < 64 ? -e : 0)')}, "
            f"g = e < 64 ? {self.fma('x', 'h', '(h - 1)')} : v.f - 1; {self._logarithm()}"
            f"return x > -1 ? (x < {inf} ? (x < {tiny} && x > -{tiny} ? x : r) : x) : (x == -1 ? -{inf} : {nan});"
        )

    # Circular functions: quarter turns q, and the remainder r

    def _circular(self, choice: str) -> str:
        sine = self.fma("r * z", self.polynomial(p.SINE[self.dtype], "z"), "r")
        cosine = self.fma("z * z", self.polynomial(p.COSINE[self.dtype], "z"), f"(1 - {self.lit(0.5)} * z)")
        return (
            f"const $T z = r * r, sine = {sine}, cosine = {cosine}; "
            f"union fl_union_{self.dtype} w; w.f = (q & 1) ? {choice}; "
        )

    def sin(self) -> str:
        """In odd quarters a cosine; in the second half turn negated."""
        if self.single:
            circular = self._circular("cosine : sine")
            return f"{quarter_turns()}{circular}w.u ^= (x32.u ^ (($U)q << 30)) & 0x80000000u; return w.f;"
        return self._by_size("sin")

    def cos(self) -> str:
        """In odd quarters a sine; in the second and third quarter negated."""
        if self.single:
            circular = self._circular("sine : cosine")
            return f"{quarter_turns()}{circular}w.u ^= (($U)(q + 1) << 30) & 0x80000000u; return w.f;"
        return self._by_size("cos")

    def _by_size(self, name: str) -> str:
        """A float64 sine or cosine: with a branch, since the reduction of large arguments is several times slower."""
        near, far = (f"fl_{name}{which}_{self.dtype}(x)" for which in ("near", "far"))
        return f"if (fl_abs_{self.dtype}(x) < {self.lit(CODY_WAITE_LIMIT)}) return {near}; return {far};"

    def _sine(self) -> str:
        return f"{self._circular('cosine : sine')}w.u ^= ($U)(q & 2) << 62; return x == 0 ? x : w.f;"

    def _cosine(self) -> str:
        return f"{self._circular('sine : cosine')}w.u ^= ($U)((q + 1) & 2) << 62; return w.f;"

    def sinnear(self) -> str:
        """For a float64 below ``CODY_WAITE_LIMIT``."""
        return self._turns() + self._sine()

    def cosnear(self) -> str:
        """For a float64 below ``CODY_WAITE_LIMIT``."""
        return self._turns() + self._cosine()

    def sinfar(self) -> str:
        """For a float64 of ``CODY_WAITE_LIMIT`` or more."""
        return large_quarter_turns() + self._sine()

    def cosfar(self) -> str:
        """For a float64 of ``CODY_WAITE_LIMIT`` or more."""
        return large_quarter_turns() + self._cosine()

    def _turns(self) -> str:
        """Declare q and r: multiples of pi / 2 are subtracted in four parts, the first three of 33 bits."""
        parts = (
            1.57079632673412561417e00,
            6.07710050630396597660e-11,
            2.02226624871116645580e-21,
            8.47842766036889956997e-32,
        )
        number = self.lit(ROUNDER[self.dtype][0])
        rest = "x"
        for part in parts:
            rest = self.fma("n", self.lit(-part), rest)
        return (
            f"union fl_union_{self.dtype} v; v.f = {self.fma('x', self.lit(2 / math.pi), number)}; "
            f"const $T n = v.f - {number}, r = {rest}; const int q = (int)v.u; "
        )

    def atan(self) -> str:
        """Above tan(pi / 8), the angle is reduced by pi / 4 or pi / 2, with the same division."""
        near, far = math.sqrt(2) - 1, math.sqrt(2) + 1
        high, low = HALF_PI[self.dtype]
        half = self.lit(0.5)
        return (
            f"const $T a = fl_abs_{self.dtype}(x); const int far = a > {self.lit(far)}, middle = a > {self.lit(near)}; "
            f"const $T t = (far ? -1 : (middle ? a - 1 : a)) / (far ? a : (middle ? a + 1 : 1)), z = t * t, "
            f"turn = far ? 1 : (middle ? {half} : 0), "
            f"s = {self.fma('t * z', self.polynomial(p.ATAN[self.dtype], 'z'), 't')}, "
            f"r = turn * {self.lit(high)} + (turn * {self.lit(low)} + s); {self.with_sign('r')}"
        )

    def _arc(self) -> str:
        """Declare r, the arc sine of |x| or, for |x| > 1/2, half its arc cosine."""
        half = self.lit(0.5)
        return (
            f"const $T a = fl_abs_{self.dtype}(x); const int large = a > {half}; "
            f"const $T z = large ? (1 - a) * {half} : a * a, s = large ? fl_sqrt_{self.dtype}(z) : a, "
            f"r = {self.fma('s * z', self.polynomial(p.ASIN[self.dtype], 'z'), 's')}; "
        )

    def asin(self) -> str:
        """For |x| > 1/2, pi / 2 minus the arc cosine."""
        high, low = HALF_PI[self.dtype]
        return (
            f"{self._arc()}const $T y = large ? {self.lit(high)} - (r + r - {self.lit(low)}) : r; {self.with_sign('y')}"
        )

    def acos(self) -> str:
        """For |x| <= 1/2, pi / 2 minus the arc sine; for x < -1/2, pi minus the arc cosine of -x."""
        high, low = HALF_PI[self.dtype]
        return (
            f"{self._arc()}const $T t = x < 0 ? -r : r, y = large ? r + r : {self.lit(high)} - (t - {self.lit(low)}); "
            f"return large && x < 0 ? 2 * {self.lit(high)} - (y - 2 * {self.lit(low)}) : y;"
        )

    # Others

    def erf(self) -> str:
        """A rational function for float32 and for small float64; else 1 minus twice a normal distribution function."""
        if self.single:
            end = self.lit(p.ERF_CLIP)
            return (
                f"const $T a = fl_abs_{self.dtype}(x), c = a > {end} ? {end} : a, z = c * c, "
                f"r = c * ({self.polynomial(p.ERF_P, 'z')} / {self.polynomial(p.ERF_Q, 'z')}), y = r > 1 ? 1 : r; "
                f"{self.with_sign('y')}"
            )
        fraction = f"{self.polynomial(p.ERF64_P, 'z')} / {self.polynomial(p.ERF64_Q, 'z')}"
        return (
            f"const $T a = fl_abs_{self.dtype}(x), z = a * a, near = a * ({fraction}), "
            f"far = 1 - 2 * fl_normcdf_{self.dtype}(a * {self.lit(-math.sqrt(2))}), "
            f"y = a < {self.lit(p.ERF64_LIMIT)} ? near : far; {self.with_sign('y')}"
        )

    def _normal(self) -> str:
        """Declare y, the clamped |x|, and e, exp(-y * y / 2) times 2 ** ``NORMAL_UP``.

        The rounding error of the square is compensated, and n is added to the exponent: a product with e may be
        subnormal, and is rounded only once.
        """
        end, half = self.lit(p.NORMAL_END[self.dtype]), self.lit(-0.5)
        rest = self.fma("g * g", self.polynomial(p.EXP[self.dtype], "g"), "g")
        return (
            f"const $T a = fl_abs_{self.dtype}(x), y = a > {end} ? {end} : a, h = {half} * y; "
            f"{self.product('c', 'h', 'y')}{self._reduce('c', NORMAL_UP[self.dtype])}const $T g = r + c_low; "
            f"union fl_union_{self.dtype} e; e.f = {rest} + 1; e.u += k << {self.shift}; "
        )

    def normcdf(self) -> str:
        """For -|x| a rational function times the exponential; above 0, 1 minus that."""
        above, below = p.NORMAL_TAIL[self.dtype]
        upper = self.polynomial([c * 2.0 ** -NORMAL_UP[self.dtype] for c in above], "y")
        lower = self.polynomial(below, "y")
        return f"{self._normal()}const $T t = e.f * ({upper} / {lower}); return x > 0 ? 1 - t : t;"

    def gelu(self) -> str:
        """For float32, max(x, 0) minus |x| times the normal distribution function of -|x|, computed as a power of two.

        The exponent is y times a polynomial; its integer part is subtracted before rounding (by fma). This needs
        neither a division nor a second polynomial of y, and the tail extends to 1e-36.
        """
        if not self.single:
            end = self.lit(-p.NORMAL_END[self.dtype])
            return f"return (x < {end} ? {end} : x) * fl_normcdf_{self.dtype}(x);"
        end = self.lit(p.GELU_END)
        rounder = self.lit(ROUNDER[self.dtype][0] - 1)  # minus 1: the polynomial is that of twice the function
        return (
            f"const $T a = fl_abs_{self.dtype}(x), y = a > {end} ? {end} : a, z = y * y, "
            f"s = {self.halves(p.NORMAL_POWER, 'y', 'z')}; union fl_union_{self.dtype} near, e; "
            f"near.f = {self.fma('s', 'y', rounder)}; const $T n = {rounder} - near.f, r = {self.fma('s', 'y', 'n')}; "
            f"e.f = {self.polynomial(p.EXP2_SINGLE, 'r')}; e.u += near.u << {self.shift}; "
            f"return {self.fma('-e.f', 'y', '(x < 0 ? 0 : x)')};"
        )

    def normpdf(self) -> str:
        """The exponential times a constant; compilers share the exponential with ``normcdf``."""
        factor = self.lit(2.0 ** -NORMAL_UP[self.dtype] / math.sqrt(2 * math.pi))
        return f"{self._normal()}return x == x ? e.f * {factor} : x;"

    def pow(self) -> str:
        """C's special cases around a power of positive finite numbers."""
        inf, nan = self.lit(math.inf), self.lit(math.nan)
        return (
            f"const $T a = x < 0 ? -x : (x == 0 ? ($T)0 : x), b = y < 0 ? -y : y; union fl_union_{self.dtype} v; "
            f"v.f = x; const $T c = b < {self.lit(2.0 ** (self.shift + 1))} ? b : 0; "
            f"const {'int' if self.single else '$L'} k = c; "
            f"const int whole = ($T)k == c, odd = whole && (k & 1), minus = v.u >> {31 if self.single else 63}; "
            f"const $T limit = (a > 1) == (y > 0) ? {inf} : 0; $T r = fl_powexp_{self.dtype}(a, y); "
            f"r = x < 0 && !whole ? {nan} : r; r = a == 0 || a == {inf} || b == {inf} ? limit : r; "
            "r = minus && odd ? -r : r; r = x != x || y != y ? x + y : r; "
            f"return y == 0 || x == 1 || (a == 1 && b == {inf}) ? 1 : r;"
        )

    def powexp(self) -> str:
        """For positive finite numbers: exp(y log x), with the logarithm and the product in double-word arithmetic.

        log x is e log(2) + 2 atanh(s), s = (m - 1) / (m + 1), and atanh(s) = s + s z (1/3 + z (...)), z = s * s.
        """
        smallest, scale, power = (2.0**-126, 2.0**25, 25) if self.single else (2.0**-1022, 2.0**54, 54)
        high, low = LN2[self.dtype]
        third, third_low = p.THIRD[self.dtype]
        top, bottom = (88.8, -104.0) if self.single else (709.8, -745.2)
        rest = self.fma("g * g", self.polynomial(p.EXP[self.dtype], "g"), "g")
        far = self.lit(2.0**40 if self.single else 2.0**70)  # times the smallest nonzero logarithm, it exceeds ``top``
        return (
            f"const int tiny = x < {self.lit(smallest)}; {self._split(f'tiny ? x * {self.lit(scale)} : x')}"
            f"const $T number = ($T)(e - (tiny ? {power} : 0)), m = v.f, up = m - 1, down = m + 1, "
            f"turned = 1 / down, s = up * turned; {self.product('w', 's', 'down')}"
            "const $T s_low = (((up - w) - w_low) - s * (m - (down - 1))) * turned; "
            f"{self.product('z', 's', 's')}const $T q = z * {self.polynomial(p.ATANH_REST[self.dtype], 'z')}, "
            f"a = {self.lit(third)} + q, a_low = ({self.lit(third)} - a) + q + {self.lit(third_low)}; "
            f"{self.product('b', 'z', 'a')}{self.product('c', 's', 'b')}"
            "const $T b_more = b_low + (z * a_low + (z_low + 2 * s * s_low) * a), "
            "c_more = c_low + (s * b_more + s_low * b), sum = s + c, sum_low = ((s - sum) + c) + (c_more + s_low), "
            f"whole = number * {self.lit(high)}, logs = whole + 2 * sum, "
            f"logs_low = ((whole - logs) + 2 * sum) + (2 * sum_low + number * {self.lit(low)}), "
            f"d = y > {far} ? {far} : (y < -{far} ? -{far} : y); {self.product('f', 'd', 'logs')}"
            f"const $T t = f > {self.lit(top)} ? {self.lit(top)} : (f < {self.lit(bottom)} ? {self.lit(bottom)} : f), "
            f"t_low = t == f ? f_low + d * logs_low : 0; {self._reduce('t', 2 * self.bias)}"
            f"const $T g = r + t_low, result = {rest} + 1; "
            f"{self._scale('result')}"
        )

    def powexp_wide(self) -> str:
        """For positive finite float32, in float64: 2 ** (y log2 x), with error 2 ** -27."""
        log2, exp2 = self.polynomial(p.LOG2, "z", "float64"), self.polynomial(p.EXP2, "r", "float64")
        return (
            f"const int tiny = x < 1.17549435e-38f; {self._split('tiny ? x * 33554432.0f : x')}"
            f"const double m = v.f, s = (m - 1) / (m + 1), z = s * s, w = y * ((e - (tiny ? 25 : 0)) + s * {log2}), "
            "t = w > 130 ? 130 : (w > -160 ? w : -160); const int k = (int)(t + (t < 0 ? -0.5 : 0.5)); "
            f"const double r = t - k; union fl_union_float64 p; p.u = ($U64)(k + 1023) << 52; "
            f"return (float)({exp2} * p.f);"
        )

    def gaussian(self) -> str:
        """Both of Giles' polynomials are computed, so that the lanes of a vector do not diverge."""
        return (
            f"const $T x = ($T)((int)(2u * (word >> 8)) + (1 - (1 << 24))) * {self.lit(2.0**-24)}; "
            f"const $T w = -fl_log_{self.dtype}((1 - x) * (1 + x)), u = w - {self.lit(2.5)}, "
            f"v = fl_sqrt_{self.dtype}(w) - 3; const $T central = {self.polynomial(philox.CENTRAL, 'u')}; "
            f"const $T tail = {self.polynomial(philox.TAIL, 'v')}; "
            f"return x * {self.lit(philox.SQRT2)} * (w < 5 ? central : tail);"
        )


NAMES = frozenset(name for kind in (ExactBodies, Bodies) for name in vars(kind) if not name.startswith("_"))


def body(name: str, dtype: str, fused: bool) -> str:
    """Return the body of a function; raises KeyError for an unknown name."""
    if name not in NAMES:
        raise KeyError(name)
    write: Callable[[], str] = getattr(Bodies(dtype, fused), name)
    return write()


def quarter_turns() -> str:
    """Range reduction of a float32 ``x``: declares the quarter turns ``q`` and the remainder ``r``; NaN for infinity.

    For small arguments multiples of pi / 2 are subtracted in three parts. For others the integer mantissa is multiplied
    by those bits of 2 / pi that yield neither whole turns nor bits below its precision (Payne and Hanek, 1983). Both
    are computed without a branch, so that compilers vectorize them.
    """
    parts = [literal(part, "float32") for part in (1.5703125, 4.8375129699707031e-4, 7.5497899487686481e-8)]
    words = two_over_pi(8)

    def word(offset: int) -> str:
        text = f"{words[offset + 4]:#x}u"
        for at in range(3, -1, -1):
            text = f"(at <= {at} ? {words[offset + at]:#x}u : {text})"
        return text

    return (
        "union fl_union_float32 x32, a32; x32.f = x; a32.u = x32.u & 0x7fffffffu; "
        "const $T a = a32.f, b = a < 64 ? a : 0; "
        f"const int k = (int)(b * {literal(2 / math.pi, 'float32')} + 0.5f); const $T n = ($T)k; "
        "const int s = (int)(a32.u >> 23) - 120, at = s >> 5, up = s & 31; "
        f"const $U m = (a32.u & 0x7fffffu) | 0x800000u, t0 = {word(0)}, t1 = {word(1)}, t2 = {word(2)}, "
        f"t3 = {word(3)}, w0 = (t0 << up) | ((t1 >> 1) >> (31 - up)), w1 = (t1 << up) | ((t2 >> 1) >> (31 - up)), "
        "w2 = (t2 << up) | ((t3 >> 1) >> (31 - up)); "
        "const $U64 p = ((($U64)(m * w0)) << 32) + ($U64)m * w1 + ((($U64)m * w2) >> 32); "
        "const $U high = ($U)(p >> 30), low = ($U)(p << 2); "
        "const $T rest = (($T)(int)high * 2.32830644e-10f + ($T)(int)(low >> 1) * 1.08420217e-19f) * 1.57079633f; "
        "const int q = a < 64 ? k : (int)((($U)(p >> 32) + 0x20000000u) >> 30); "
        f"const $T r = (a < 64 ? ((b - n * {parts[0]}) - n * {parts[1]}) - n * {parts[2]} : rest) + (x - x); "
    )


def two_over_pi(count: int) -> list[int]:
    """Return ``count`` words of 32 bits of 2 / pi; the first is 0."""
    shifts = range(TWO_OVER_PI_BITS - 32, TWO_OVER_PI_BITS - 32 * count, -32)
    return [0, *((TWO_OVER_PI >> shift) & 0xFFFFFFFF for shift in shifts)]


def large_quarter_turns() -> str:
    """Range reduction of a large float64 ``x``: declares quarter turns ``q`` and the remainder ``r``; NaN for infinity.

    The argument is m 2 ** e with an integer m. 192 bits of 2 / pi are used: those before yield whole turns, those after
    are below the result's precision (Payne and Hanek, 1983), even for 2 ** -62, the smallest remainder of a float64.
    They are multiplied in digits of 32 bits, the lowest first.
    """
    words = [0, *two_over_pi(TWO_OVER_PI_BITS // 32 + 1)]
    table = ", ".join(f"{word:#x}u" for word in words)
    return (
        "union fl_union_float64 a; a.f = x; a.u &= 0x7fffffffffffffffUL; "
        f"const $U32 bits[{len(words)}] = {{{table}}}; "
        "const int at = a.u < 0x7ff0000000000000UL ? (int)(a.u >> 52) - 1013 : 0, first = at >> 5, up = at & 31; "
        "const $U64 m = (a.u & 0xfffffffffffffUL) | 0x10000000000000UL, low = m & 0xffffffffUL, high = m >> 32; "
        "$U64 carry = 0, before = 0, digits[6]; "
        "for (int k = 5; k >= 0; --k) { "
        "const $U64 w = (((($U64)bits[first + k] << 32) | bits[first + k + 1]) >> (32 - up)) & 0xffffffffUL, "
        "p = low * w + carry, s = (p & 0xffffffffUL) + high * before; "
        "digits[k] = s & 0xffffffffUL; carry = (p >> 32) + (s >> 32); before = w; } "
        "const $U64 top = (digits[0] << 32) | digits[1], rest = (digits[2] << 32) | digits[3], "
        "turn = (top << 2) | (rest >> 62), minus = 0 - (turn >> 63), "
        "f = turn ^ minus, g = ((rest << 2) | (digits[4] >> 30)) ^ minus; "
        "const $T size = ($T)($L)f * 5.42101086242752217e-20 + ($T)($L)(g >> 1) * 5.87747175411143754e-39, "
        "angle = size * 1.5707963267948966, r = ((minus != 0) == (x < 0) ? angle : -angle) + (x - x); "
        "const int number = (int)((top >> 62) + (turn >> 63)), q = x < 0 ? -number : number; "
    )
