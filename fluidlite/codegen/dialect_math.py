"""C text of what a dialect lacks: mathematical functions, integer division, half types, Philox.

Every function is named ``fl_<name>_<dtype>``; :func:`library` returns the text of those that are asked for, and
of those they call. Bits are read through unions, which C, OpenCL C and CUDA C all have.

Accuracy of our own functions: 2 to 4 ulp; ``sin`` and ``cos`` of float32 for every argument, of float64 up to 1e6;
``pow`` loses as many bits as ``y log x`` has before its point, but float32 in a dialect with doubles loses none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from string import Template

from fluidlite.base.dtypes import ALL_INTS
from fluidlite.codegen import functions as f
from fluidlite.codegen import philox

_CALL = re.compile(r"\bfl_(\w+?)_(float32|float64|float16|bfloat16|u?int\d+|any)(?:_(float32|float64))?\b")


def literal(value: object, dtype: str) -> str:
    """A number as C text of a compute dtype."""
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


def _horner(coefficients: Sequence[float], x: str, dtype: str) -> str:
    """Nested multiplications, the lowest coefficient first."""
    text = literal(coefficients[-1], dtype)
    for coefficient in reversed(coefficients[:-1]):
        text = f"({text} * {x} + {literal(coefficient, dtype)})"
    return text


def _quarters() -> str:
    """Text that makes of a float32 ``x`` the quarter turns ``q`` in it and the rest ``r``; of infinity NaN.

    Small arguments lose multiples of pi / 2 in three parts. Of others, mantissa times 2 ** e, those bits of 2 / pi
    are multiplied, in integers, that give neither whole turns nor less than the result holds (Payne and Hanek, 1983).
    Both are done without a branch, so that compilers make vectors of them.
    """
    parts = [literal(part, "float32") for part in (1.5703125, 4.8375129699707031e-4, 7.5497899487686481e-8)]
    words = [0, *((_TWO_OVER_PI >> shift) & 0xFFFFFFFF for shift in range(192, -1, -32))]

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


_TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163AB
"""The first 224 bits of 2 / pi after the point."""

_QUARTERS = _quarters()


def _real(name: str, dtype: str) -> str:
    """Body of a mathematical function on floats; ``$T`` its type, ``$U`` the unsigned type of its size."""
    single = dtype == "float32"

    def lit(value: float) -> str:
        return literal(value, dtype)

    def odd(terms: int) -> str:  # atanh's series over z = s * s
        return _horner([1 / (2 * k + 1) for k in range(terms)], "z", dtype)

    inf, nan = lit(math.inf), lit(math.nan)
    bias, shift = (127, 23) if single else (1023, 52)
    whole = lit(2.0**shift)
    this = f"_{dtype}"
    if name == "bits":
        return ""
    if name == "pow2":  # 2 ** k of a normal result
        return f"return fl_bits{this}(($U)(k + {bias}) << {shift});"
    if name == "abs":
        return "return x < 0 ? -x : (x == 0 ? ($T)0 : x);"
    if name == "trunc":
        return f"return (x < {whole} && x > -{whole}) ? ($T)($L)x : x;"
    if name == "floor":
        return f"const $T t = fl_trunc{this}(x); return t > x ? t - 1 : t;"
    if name == "ceil":
        return f"const $T t = fl_trunc{this}(x); return t < x ? t + 1 : t;"
    if name == "round":
        return (
            f"const $T t = fl_trunc{this}(x), d = x - t; "
            f"return d >= {lit(0.5)} ? t + 1 : (d <= {lit(-0.5)} ? t - 1 : t);"
        )
    if name == "sqrt":
        up, down = (2.0**24, 2.0**-12) if single else (2.0**54, 2.0**-27)
        start = "(v.u >> 1) + 0x1fbd1df5u" if single else "(v.u >> 1) + 0x1ff7a3bea91d9b1bUL"
        steps = "r = (r + y / r) * " + lit(0.5) + "; "
        return (
            f"if (!(x > 0) || x == {inf}) return x >= 0 || x != x ? x : {nan}; "
            f"const int tiny = x < {lit(2.0**-100 if single else 2.0**-900)}; const $T y = tiny ? x * {lit(up)} : x; "
            f"union fl_union{this} v; v.f = y; v.u = {start}; $T r = v.f; {steps * (4 if single else 5)}"
            f"return tiny ? r * {lit(down)} : r;"
        )
    if name == "exp":
        top, bottom = (88.8, -104.0) if single else (709.8, -745.2)
        hi, lo = (0.693359375, -2.12194440e-4) if single else (6.93147180369123816490e-01, 1.90821492927058770002e-10)
        series = _horner([1 / math.factorial(k) for k in range(8 if single else 14)], "r", dtype)
        return (
            f"if (x != x) return x; if (x > {lit(top)}) return {inf}; if (x < {lit(bottom)}) return 0; "
            f"const int k = (int)(x * {lit(1 / math.log(2))} + (x < 0 ? {lit(-0.5)} : {lit(0.5)})); "
            f"const $T r = (x - ($T)k * {lit(hi)}) - ($T)k * {lit(lo)}; const int half = k / 2; "
            f"return {series} * fl_pow2{this}(half) * fl_pow2{this}(k - half);"
        )
    if name == "expm1":
        series = _horner([1 / math.factorial(k) for k in range(1, 11 if single else 18)], "x", dtype)
        return f"if (x < {lit(0.5)} && x > {lit(-0.5)}) return x * {series}; return fl_exp{this}(x) - 1;"
    if name == "log":
        hi, lo = (0.693359375, -2.12194440e-4) if single else (6.93147180369123816490e-01, 1.90821492927058770002e-10)
        scale, power = (2.0**25, 25) if single else (2.0**54, 54)
        series = _horner([1 / (2 * k + 3) for k in range(5 if single else 11)], "z", dtype)
        return (
            f"if (!(x > 0)) return x == 0 ? -{inf} : {nan}; if (x == {inf}) return x; int e = 0; "
            f"if (x < {lit(2.0 ** (1 - bias))}) {{ x *= {lit(scale)}; e = -{power}; }} "
            f"union fl_union{this} v; v.f = x; e += (int)(v.u >> {shift}) - {bias}; "
            f"v.u = (v.u & ((($U)1 << {shift}) - 1)) | (($U){bias} << {shift}); $T m = v.f; "
            f"if (m > {lit(math.sqrt(2))}) {{ m *= {lit(0.5)}; e += 1; }} "
            f"const $T g = m - 1, s = g / (g + 2), z = s * s, q = g * g * {lit(0.5)}; "
            f"const $T tail = s * (q + 2 * z * {series}); "
            f"return ($T)e * {lit(hi)} + (g - (q - (tail + ($T)e * {lit(lo)})));"
        )
    if name == "log1p":
        return (
            f"if (x < {lit(0.25)} && x > {lit(-0.25)}) {{ const $T s = x / (2 + x), z = s * s; "
            f"return 2 * s * {odd(6 if single else 12)}; }} return fl_log{this}(1 + x);"
        )
    if name == "tanh":
        return (
            f"if (x != x) return x; const $T a = x < 0 ? -x : x; $T t = 1; "
            f"if (a < {lit(20.0)}) {{ t = fl_expm1{this}(2 * a); t = t / (t + 2); }} return x < 0 ? -t : t;"
        )
    if name in ("sin", "cos") and single:
        turned = "cosine : sine" if name == "sin" else "sine : cosine"
        return (
            f"{_QUARTERS}const $T z = r * r, sine = r * {_horner(f.SINE, 'z', dtype)}, "
            f"cosine = {_horner(f.COSINE, 'z', dtype)}; union fl_union_float32 v; v.f = (q & 1) ? {turned}; "
            f"v.u ^= ({'x32.u ^ (($U)q << 30)' if name == 'sin' else '($U)(q + 1) << 30'}) & 0x80000000u; return v.f;"
        )
    if name in ("sin", "cos"):
        parts = (1.57079632673412561417e00, 6.07710050650619224932e-11, 2.02226624879595063154e-21)
        sine = _horner([(-1) ** k / math.factorial(2 * k + 1) for k in range(11)], "z", dtype)
        cosine = _horner([(-1) ** k / math.factorial(2 * k) for k in range(11)], "z", dtype)
        return (
            f"if (x != x || x - x != x - x) return {nan}; "
            f"const $L k = ($L)(x * {lit(2 / math.pi)} + (x < 0 ? {lit(-0.5)} : {lit(0.5)})); const $T n = ($T)k; "
            f"const $T r = ((x - n * {lit(parts[0])}) - n * {lit(parts[1])}) - n * {lit(parts[2])}, z = r * r; "
            f"const int q = (int)((k + {1 if name == 'cos' else 0}) & 3); "
            f"const $T v = (q & 1) ? {cosine} : r * {sine}; return (q & 2) ? -v : v;"
        )
    if name == "atan":
        turn = math.sqrt(2) - 1  # tan(pi / 8): beyond, the argument is turned by pi / 4
        series = _horner([(-1) ** k / (2 * k + 1) for k in range(10 if single else 22)], "z", dtype)
        return (
            f"const $T a = x < 0 ? -x : x; const int over = a > 1; const $T b = over ? 1 / a : a; "
            f"const int turned = b > {lit(turn)}; const $T t = turned ? (b - 1) / (b + 1) : b, z = t * t; "
            f"$T r = t * {series}; if (turned) r += {lit(math.pi / 4)}; if (over) r = {lit(math.pi / 2)} - r; "
            "return x < 0 ? -r : r;"
        )
    if name == "asin":
        return f"return fl_atan{this}(x / fl_sqrt{this}((1 - x) * (1 + x)));"
    if name == "acos":
        return f"return 2 * fl_atan{this}(fl_sqrt{this}((1 - x) / (1 + x)));"
    if name in ("sinh", "cosh"):
        half = f"const $T h = fl_exp{this}(a * {lit(0.5)}), high = {lit(0.5)} * h * h, low = {lit(0.25)} / high; "
        if name == "cosh":
            return f"const $T a = x < 0 ? -x : x; {half}return high + low;"
        series = _horner([1 / math.factorial(2 * k + 1) for k in range(6 if single else 10)], "z", dtype)
        return (
            f"const $T a = x < 0 ? -x : x, z = x * x; {half}const $T far = x < 0 ? low - high : high - low; "
            f"return a < 1 ? x * {series} : far;"
        )
    if name == "erf" and single:
        return (
            f"const $T a = x < 0 ? -x : x; if (a >= {lit(f.ERF_END)}) return x < 0 ? -1 : 1; const $T z = x * x; "
            f"return x * ({_horner(f.ERF_P, 'z', dtype)} / {_horner(f.ERF_Q, 'z', dtype)});"
        )
    if name == "erf":

        def cody(first: float, coefficients: Sequence[float], v: str) -> str:
            text = f"{lit(first)} * {v}" if first != 1 else v
            for coefficient in coefficients[:-1]:
                text = f"({text} + {lit(coefficient)}) * {v}"
            return f"({text} + {lit(coefficients[-1])})"

        return (
            f"const $T y = x < 0 ? -x : x, z = y * y; if (x != x) return x; if (y >= 6) return x < 0 ? -1 : 1; "
            f"if (y <= {lit(0.46875)}) return x * {cody(f.CODY_A[4], f.CODY_A[:4], 'z')} / {cody(1, f.CODY_B, 'z')}; "
            f"$T r; if (y <= 4) r = {cody(f.CODY_C[8], f.CODY_C[:8], 'y')} / {cody(1, f.CODY_D, 'y')}; "
            f"else {{ const $T w = 1 / z; r = ({lit(f.INV_SQRT_PI)} - w * {cody(f.CODY_P[5], f.CODY_P[:5], 'w')} / "
            f"{cody(1, f.CODY_Q, 'w')}) / y; }} r = 1 - fl_exp{this}(-z) * r; return x < 0 ? -r : r;"
        )
    if name in ("fmod", "fmod_fused"):  # exact: subtract the divisor times powers of two, the largest first
        fast = (  # a whole quotient that the type holds: the remainder is exact, and one too many is taken back
            f"const $T q = r / d; if (q >= 0 && q < {lit(2.0 ** (shift - 1))} && d < {inf}) {{ "
            f"r = fl_fma{this}(-($T)({'int' if single else '$L'})q, d, r); r = r < 0 ? r + d : r; "
            "return x < 0 ? -r : r; } "
        )
        return (
            f"$T r = x < 0 ? -x : x; const $T d = y < 0 ? -y : y; {fast if name == 'fmod_fused' else ''}"
            f"if (x != x || y != y || d == 0 || r == {inf}) return {nan}; if (d == {inf}) return x; "
            f"$T t = d; while (t <= r * {lit(0.5)}) t *= 2; while (r >= d) {{ if (r >= t) r -= t; t *= {lit(0.5)}; }} "
            "return x < 0 ? -r : r;"
        )
    if name == "mod":
        return f"const $T r = fl_fmod{this}(x, y); return r != 0 && ((r < 0) != (y < 0)) ? r + y : r;"
    if name == "pow":  # choices, no early ends: compilers make vectors of it
        return (
            f"const $T a = x < 0 ? -x : (x == 0 ? ($T)0 : x), b = y < 0 ? -y : y; union fl_union{this} v; v.f = x; "
            f"const $T c = b < {lit(2.0 ** (shift + 1))} ? b : 0; const {'int' if single else '$L'} k = c; "
            f"const int whole = ($T)k == c, odd = whole && (k & 1), minus = v.u >> {31 if single else 63}; "
            f"const $T limit = (a > 1) == (y > 0) ? {inf} : 0; $T r = fl_powexp{this}(a, y); "
            f"r = x < 0 && !whole ? {nan} : r; r = a == 0 || a == {inf} || b == {inf} ? limit : r; "
            "r = minus && odd ? -r : r; r = x != x || y != y ? x + y : r; "
            f"return y == 0 || x == 1 || (a == 1 && b == {inf}) ? 1 : r;"
        )
    if name == "powexp":
        return f"return fl_exp{this}(y * fl_log{this}(x));"
    if name == "powexp_wide":  # of positive finite numbers, in doubles: 2 ** (y log2 x), right to 2 ** -27
        log2, exp2 = _horner(f.LOG2, "z", "float64"), _horner(f.EXP2, "r", "float64")
        return (
            "const int tiny = x < 1.17549435e-38f; union fl_union_float32 v; v.f = tiny ? x * 33554432.0f : x; "
            "const int e = (int)(v.u - 0x3f3504f3u) >> 23; v.u -= ($U)e << 23; "  # now in sqrt(1/2) .. sqrt(2)
            f"const double m = v.f, s = (m - 1) / (m + 1), z = s * s, w = y * ((e - (tiny ? 25 : 0)) + s * {log2}), "
            "t = w > 130 ? 130 : (w > -160 ? w : -160); const int k = (int)(t + (t < 0 ? -0.5 : 0.5)); "
            f"const double r = t - k; union fl_union_float64 p; p.u = ($U64)(k + 1023) << 52; "
            f"return (float)({exp2} * p.f);"
        )
    if name == "gaussian":  # both polynomials, so that lanes of a vector do not part
        return (
            f"const $T x = ($T)((int)(2u * (word >> 8)) + (1 - (1 << 24))) * {lit(2.0**-24)}; "
            f"const $T w = -fl_log{this}((1 - x) * (1 + x)), u = w - {lit(2.5)}, v = fl_sqrt{this}(w) - 3; "
            f"const $T central = {_horner(philox.CENTRAL[::-1], 'u', dtype)}; "
            f"const $T tail = {_horner(philox.TAIL[::-1], 'v', dtype)}; "
            f"return x * {lit(philox.SQRT2)} * (w < 5 ? central : tail);"
        )
    raise KeyError(name)


_TWO = ("fmod", "mod", "pow", "powexp")
_OWN = ("bits", "mod", "pow2", "powexp", "gaussian")  # never the dialect's

_INTEGER = {
    "int_div": "if (b == 0) return 0; if (b == -1) return ($T)(0 - ($U)a); return ($T)(a / b);",
    "int_floor_div": "if (b == 0) return 0; if (b == -1) return ($T)(0 - ($U)a); "
    "const $T q = ($T)(a / b); return ($T)(a % b != 0 && ((a < 0) != (b < 0)) ? q - 1 : q);",
    "int_mod": "if (b == 0 || b == -1) return 0; const $T r = ($T)(a % b); "
    "return ($T)(r != 0 && ((r < 0) != (b < 0)) ? r + b : r);",
    "int_pow": "if (b < 0) return ($T)(a == 1 ? 1 : (a == -1 ? (b & 1 ? -1 : 1) : 0)); "
    "$U r = 1, s = ($U)a; while (b > 0) { if (b & 1) r *= s; s *= s; b = ($T)(b >> 1); } return ($T)r;",
}

_UNSIGNED = {
    "int_div": "return b == 0 ? 0 : ($T)(a / b);",
    "int_floor_div": "return b == 0 ? 0 : ($T)(a / b);",
    "int_mod": "return b == 0 ? 0 : ($T)(a % b);",
    "int_pow": "$U r = 1, s = a; while (b > 0) { if (b & 1) r *= s; s *= s; b = ($T)(b >> 1); } return ($T)r;",
}  # compilers warn of comparisons with negative numbers

_HALF = {
    "load_float16": """$function float fl_load_float16(const $H word) {
  const $U32 h = ($U32)word & 0xffffu, e = (h >> 10) & 31u, m = h & 1023u, sign = (h & 0x8000u) << 16;
  union fl_union_float32 v;
  v.f = (float)m * 5.9604644775390625e-8f; /* below the least normal number */
  v.u = sign | (e == 31u ? 0x7f800000u | (m << 13) : e != 0u ? ((e + 112u) << 23) | (m << 13) : v.u);
  return v.f;
}
""",
    "store_float16": """$function $H fl_store_float16(const float value) {
  union fl_union_float32 v;
  v.f = value;
  const $U32 sign = (v.u >> 16) & 0x8000u;
  const $U32 a = v.u & 0x7fffffffu, normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
  v.u = a;
  v.f += 0.5f; /* the sum rounds to a multiple of 2^-24 */
  const $U32 small = v.u - 0x3f000000u, large = a > 0x7f800000u ? 0x7e00u : 0x7c00u;
  return ($H)(sign | (a < 0x38800000u ? small : a >= 0x47800000u ? large : normal));
}
""",
    "load_bfloat16": """$function float fl_load_bfloat16(const $H word) {
  union fl_union_float32 v;
  v.u = (($U32)word & 0xffffu) << 16;
  return v.f;
}
""",
    "store_bfloat16": """$function $H fl_store_bfloat16(const float value) {
  union fl_union_float32 v;
  v.f = value;
  if ((v.u & 0x7fffffffu) > 0x7f800000u) v.u = (v.u >> 16) | 0x40u;
  else v.u = (v.u + 0x7fffu + ((v.u >> 16) & 1u)) >> 16;
  return ($H)v.u;
}
""",
}

_PHILOX = f"""
$function void fl_philox_any(const $U64 block, $U32 k0, $U32 k1, const $U32 run, const $U32 stream, $U32* w) {{
  $U32 c0 = ($U32)block, c1 = ($U32)(block >> 32), c2 = run, c3 = stream;
  for (int round = 0; round < {philox.ROUNDS}; ++round) {{
    const $U64 p0 = ($U64){philox.M0:#x}u * c0, p1 = ($U64){philox.M1:#x}u * c2;
    c0 = ($U32)(p1 >> 32) ^ c1 ^ k0; c1 = ($U32)p1;
    c2 = ($U32)(p0 >> 32) ^ c3 ^ k1; c3 = ($U32)p0;
    k0 += {philox.W0:#x}u; k1 += {philox.W1:#x}u;
  }}
  w[0] = c0; w[1] = c1; w[2] = c2; w[3] = c3;
}}
"""


def math_call(name: str, dtype: str, math_names: Mapping[str, str | None]) -> str:
    """The function to call for a primitive: the dialect's, else ours. ``name.dtype`` in the table goes first."""
    if name in _INTEGER:
        return f"fl_{name}_{dtype}"
    if name not in _OWN:
        keys = (f"{name}.{dtype}", name, *(("fabs",) if name == "abs" else ()))
        for key in keys:
            found = math_names.get(key)
            if found is not None:
                return found
    return f"fl_{name}_{dtype}"


def _one(name: str, dtype: str, given: str, types: Mapping[str, str], names: Mapping[str, str | None]) -> str:
    """Text of one function; ``given`` is the second dtype of its name, if any."""
    if name in ("load", "store"):
        given_name = names.get(f"{name}.{dtype}")
        if given_name is None:
            return _HALF[f"{name}_{dtype}"]
        result, parameter = ("float", "$H") if name == "load" else ("$H", "float")
        return f"$function {result} fl_{name}_{dtype}(const {parameter} x) {{ return {given_name}(x); }}\n"
    if name == "philox":
        return _PHILOX
    if name == "to" and given:  # fl_to_int32_float32: truncate, saturate, NaN is 0
        bits = int(dtype.removeprefix("u").removeprefix("int"))
        low, high = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return (
            f"$function {types[dtype]} fl_to_{dtype}_{given}(const {types[given]} x) {{ if (x != x) return 0; "
            f"if (x >= {literal(float(high + 1), given)}) return {literal(high, dtype)}; "
            f"if (x <= {literal(float(low), given)}) return {literal(low, dtype)}; return ({types[dtype]})x; }}\n"
        )
    local = {"T": types[dtype], "U": types["uint64" if dtype in ("int64", "float64") else "uint32"]}
    if name in _INTEGER:
        table = _UNSIGNED if dtype.startswith("u") else _INTEGER
        body = f"$function $T fl_{name}_{dtype}($T a, $T b) {{ {table[name]} }}\n"
    elif name == "bits":
        body = f"$function $T fl_bits_{dtype}(const $U word) {{ union fl_union_{dtype} v; v.u = word; return v.f; }}\n"
    else:
        variant = name
        if name == "powexp" and dtype == "float32" and "float64" in types:
            variant = "powexp_wide"
        elif name == "fmod" and names.get("fma") is not None:
            variant = "fmod_fused"
        given_args = {"pow2": "const int k", "gaussian": "const $U32 word"}.get(
            name, "const $T x, const $T y" if name in _TWO else "$T x"
        )
        text = _real(variant, dtype)
        text = re.sub(r"\bfl_([a-z0-9]+)_(float32|float64)(?=\()", lambda m: math_call(m[1], m[2], names), text)
        body = f"$function $T fl_{name}_{dtype}({given_args}) {{ {text} }}\n"
    return Template(body).safe_substitute(local)


def library(text: str, words: Mapping[str, str], types: Mapping[str, str], names: Mapping[str, str | None]) -> str:
    """Return the text of every function of ours that ``text`` calls, each before its first use."""
    done: dict[str, str] = {}
    unions: set[str] = set()

    def visit(source: str) -> None:
        for match in _CALL.finditer(source):
            name = match.group(0)
            if name in done or match[1] == "union":
                continue
            function = _one(match[1], match[2], match[3] or "", types, names)
            done[name] = ""  # reserved: functions do not call themselves
            visit(function)
            unions.update(re.findall(r"union fl_union_(float32|float64)", function))
            done.pop(name)
            done[name] = function

    visit(text)
    shared = {
        "function": words["function"], "L": types["int64"], "U32": types["uint32"], "U64": types["uint64"],
        "H": "unsigned short",
    }  # fmt: skip
    head = [
        f"union fl_union_{dtype} {{ {types['uint32' if dtype == 'float32' else 'uint64']} u; {types[dtype]} f; }};\n"
        for dtype in sorted(unions)
    ]
    return "".join(head) + "".join(Template(function).safe_substitute(shared) for function in done.values())
