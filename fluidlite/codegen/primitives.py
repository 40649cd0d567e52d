"""The table of scalar primitives: semantics, accuracy, and the text of each for every emitter.

Floats follow IEEE 754 without traps, with subnormal numbers. Integers wrap; division by zero yields 0 and never traps,
since a trap in a CPU's OpenCL driver would end the process. A comparison with NaN is false, ``not_equal`` true.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fluidlite.base.dtypes import HALVES

EXACT = (0.0, 0.0)
_erf = np.vectorize(math.erf, otypes=[np.float64])
_normcdf = np.vectorize(lambda x: 0.5 * math.erfc(-x * math.sqrt(0.5)), otypes=[np.float64])


@dataclass(frozen=True)
class Primitive:
    """One primitive.

    ``kind``: its typing rule: ``"arithmetic"`` (operands promoted; bool counts as int32), ``"float"`` (integers
    become float32), ``"whole"`` (dtype stays; identity on integers), ``"compare"`` (operands promoted, bool result),
    ``"logical"`` (operands cast to bool, bool result), ``"test"`` (float in, bool result), ``"where"``, ``"cast"``.
    ``rule``: the semantics of NaN, integers, overflow and rounding, in words.
    ``xp``: the namespace's function for floats (``@name``: ours in :mod:`fluidlite.codegen.functions`).
    ``xp_int``: the same for integers; empty: as for floats.
    ``c``: KernelLanguage text for floats: ``{a} {b} {c}`` operands, ``{T}`` their type, ``@name(`` a math function.
    ``c_int``: the same for integers, ``{U}`` an unsigned type in which they wrap; empty: as for floats.
    ``reference``: the definition, on float64 or integer NumPy arrays.
    ``ulp``: for float32 and for float64 the maximum error of a result, on any place, in units in the last place of the
    exact result (in the subnormal range: of the smallest normal number): 0.5 is correctly rounded, 0 is exact. NaN,
    infinite and zero results, and the sign of zero, are the same everywhere.
    ``absolute``: an additional absolute error of a float32 result: nonzero only where it is far below the results of
    usual arguments; a result that should be 0 may then be up to this, with the same sign.
    """

    name: str
    arity: int
    kind: str
    rule: str
    xp: str
    c: str
    reference: Callable[..., Any]
    xp_int: str = ""
    c_int: str = ""
    ulp: tuple[float, float] = (0.5, 0.5)
    absolute: float = 0.0

    def bound(self, dtype: str) -> float:
        """The maximum error of a result in a storage dtype, in its ulp; half types are rounded float32."""
        if dtype in HALVES:
            bits = 13 if dtype == "float16" else 16
            return 0.5 + self.ulp[0] / 2**bits if self.ulp[0] else 0.0
        return self.ulp[dtype == "float64"]


def _wrap(operator: str) -> str:
    return f"({{T}})(({{U}}){{a}} {operator} ({{U}}){{b}})"


def _trunc_div(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        return a / b
    safe = np.where((b == 0) | (b == -1 if b.dtype.kind == "i" else False), 1, b).astype(b.dtype)
    quotient = np.sign(a) * np.sign(safe) * (np.abs(a.astype(object)) // np.abs(safe.astype(object)))
    quotient = np.asarray(quotient, dtype=object)
    wide = np.where(b == 0, 0, np.where(b.astype(object) == -1, -a.astype(object), quotient))
    return _wrapped(wide, a.dtype)


def _wrapped(wide: Any, dtype: Any) -> Any:
    bits, wide = 8 * dtype.itemsize, np.asarray(wide, dtype=object)  # NumPy converts a single number to its own integer
    if dtype.kind == "u":
        return np.asarray(wide % 2**bits, dtype=object).astype(dtype)
    half = 2 ** (bits - 1)
    return np.asarray((wide + half) % 2**bits - half, dtype=object).astype(dtype)


def _floor_div(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        return np.floor(a / b)
    safe = np.where(b == 0, 1, b).astype(object)
    return _wrapped(np.where(b == 0, 0, a.astype(object) // safe), a.dtype)


def _mod(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        return np.remainder(a, b)
    safe = np.where(b == 0, 1, b).astype(object)
    return _wrapped(np.where(b == 0, 0, a.astype(object) % safe), a.dtype)


def _rem(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        return np.remainder(a, b)
    return np.where(b == 0, 0, _wrapped(a.astype(object) - b.astype(object) * _trunc_div(a, b), a.dtype))


def _pow(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        return np.power(a, b)

    def one(x: int, y: int) -> int:
        if y < 0:
            return (1 if x == 1 else (-1 if y % 2 else 1)) if abs(x) == 1 else 0
        return pow(x, y, 2**64)

    wide = np.frompyfunc(one, 2, 1)(a.astype(object), b.astype(object))
    return _wrapped(np.asarray(wide, dtype=object), a.dtype)


def _round(a: Any) -> Any:
    if a.dtype.kind != "f":
        return a
    whole = np.trunc(a)
    return np.where(np.abs(a - whole) >= 0.5, whole + np.sign(a), whole)


def _named(
    name: str,
    rule: str,
    reference: Callable[..., Any],
    ulp: tuple[float, float] = EXACT,
    xp: str = "",
    kind: str = "float",
    absolute: float = 0.0,
) -> Primitive:
    """A function with the same name in kernel languages and, unless ``xp`` differs, in array namespaces."""
    return Primitive(name, 1, kind, rule, xp or name, f"@{name}({{a}})", reference, ulp=ulp, absolute=absolute)


def _truth(name: str, kind: str, rule: str, c: str) -> Primitive:
    """A comparison, a test or a logical operator; NumPy has all of them under the same name."""
    arity = 2 if "{b}" in c else 1
    return Primitive(name, arity, kind, rule, name, f"({c})", getattr(np, name), ulp=EXACT)


_ALL = [
    Primitive("add", 2, "arithmetic", "integers wrap", "add", "{a} + {b}", np.add, c_int=_wrap("+")),
    Primitive("sub", 2, "arithmetic", "integers wrap", "subtract", "{a} - {b}", np.subtract, c_int=_wrap("-")),
    Primitive("mul", 2, "arithmetic", "integers wrap", "multiply", "{a} * {b}", np.multiply, c_int=_wrap("*")),
    Primitive(
        "div",
        2,
        "arithmetic",
        "integers truncate toward zero; x / 0 is 0, the lowest / -1 wraps",
        "divide",
        "{a} / {b}",
        _trunc_div,
        "@int_div",
        "@int_div({a}, {b})",
    ),
    Primitive(
        "floordiv",
        2,
        "arithmetic",
        "floor of the rounded quotient; integers: x // 0 is 0",
        "@floor_div",
        "@floor({a} / {b})",
        _floor_div,
        "@int_floor_div",
        "@int_floor_div({a}, {b})",
    ),
    Primitive(
        "mod",
        2,
        "arithmetic",
        "the divisor's sign, also of 0; float x mod 0 is NaN, integer x mod 0 is 0",
        "remainder",
        "@mod({a}, {b})",
        _mod,
        "@int_mod",
        "@int_mod({a}, {b})",
    ),
    Primitive(
        "rem",
        2,
        "arithmetic",
        "integers: the dividend's sign, as in C, x rem 0 is 0; floats: as mod",
        "remainder",
        "@mod({a}, {b})",
        _rem,
        "@int_rem",
        "@int_rem({a}, {b})",
    ),
    Primitive(
        "pow",
        2,
        "arithmetic",
        "C's pow: NaN of a negative number to a fraction, but x^0 and 1^x are 1 of NaN, too; integers wrap, a negative "
        "exponent gives 0 except of 1 and -1",
        "@pow",
        "@pow({a}, {b})",
        _pow,
        "@int_pow",
        "@int_pow({a}, {b})",
        ulp=(2, 2),
    ),
    Primitive(
        "neg", 1, "arithmetic", "integers wrap", "negative", "-{a}", np.negative, c_int="({T})(0 - ({U}){a})", ulp=EXACT
    ),
    Primitive(
        "abs",
        1,
        "arithmetic",
        "the lowest integer stays",
        "abs",
        "@abs({a})",
        np.abs,
        c_int="({T})({a} < 0 ? 0 - ({U}){a} : ({U}){a})",
        ulp=EXACT,
    ),
    Primitive(
        "sign",
        1,
        "arithmetic",
        "NaN of NaN, 0 of -0",
        "sign",
        "({a} > 0 ? ({T})1 : ({a} < 0 ? ({T})-1 : ({a} == 0 ? ({T})0 : {a})))",
        np.sign,
        c_int="({T})(({a} > 0) - ({a} < 0))",
        ulp=EXACT,
    ),
    *(
        Primitive(
            name,
            2,
            "arithmetic",
            "NaN if either is NaN; the second of two zeros",
            name,
            f"({{a}} {sign} {{b}} || {{a}} != {{a}} ? {{a}} : {{b}})",
            getattr(np, name),
            c_int=f"({{a}} {sign} {{b}} ? {{a}} : {{b}})",
            ulp=EXACT,
        )
        for name, sign in (("maximum", ">"), ("minimum", "<"))
    ),
    _named("exp", "overflows to infinity, underflows gradually to 0", np.exp, (3, 2)),
    _named("expm1", "overflows to infinity; the sign of 0 stays", np.expm1, (3, 3)),
    _named("log", "-infinity of 0, NaN below", np.log, (4, 2)),
    _named("log1p", "-infinity of -1, NaN below; the sign of 0 stays", np.log1p, (2, 2)),
    _named("sqrt", "NaN below 0, -0 of -0", np.sqrt, (1, 1)),
    _named("tanh", "1 of infinity; the sign of 0 stays", np.tanh, (3, 3)),
    _named("sin", "of any argument; NaN of infinity; the sign of 0 stays", np.sin, (3, 3)),
    _named("cos", "of any argument; NaN of infinity", np.cos, (3, 3)),
    _named("asin", "NaN outside [-1, 1]; the sign of 0 stays", np.arcsin, (3, 3)),
    _named("acos", "NaN outside [-1, 1]", np.arccos, (2, 2)),
    _named("atan", "pi / 2 of infinity; the sign of 0 stays", np.arctan, (3, 3)),
    _named("sinh", "overflows to infinity; the sign of 0 stays", np.sinh, (4, 4)),
    _named("cosh", "overflows to infinity", np.cosh, (3, 4)),
    _named("erf", "1 of infinity; the sign of 0 stays", _erf, (5, 5), "@erf"),
    _named(
        "normcdf",
        "the normal distribution function: 1 of infinity; underflows gradually to 0",
        _normcdf,
        (7, 10),
        "@normcdf",
    ),
    _named(
        "gelu",
        "x times the normal distribution function; -0 of -infinity; float32: and 1e-11 more",
        lambda x: np.maximum(x, -100) * _normcdf(x),
        (32, 12),
        "@gelu",
        absolute=1e-11,
    ),
    _named(
        "normpdf",
        "exp(-x * x / 2) / sqrt(2 pi); 0 of infinity; underflows gradually to 0",
        lambda x: np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
        (4, 3),
        "@normpdf",
    ),
    _named("floor", "the sign of 0 stays", np.floor, kind="whole"),
    _named("ceil", "the sign of 0 stays; -0 above -1", np.ceil, kind="whole"),
    _named("round", "halves go away from zero; the sign stays, also of 0", _round, xp="@round", kind="whole"),
    _truth("less", "compare", "false with NaN", "{a} < {b}"),
    _truth("less_equal", "compare", "false with NaN", "{a} <= {b}"),
    _truth("greater", "compare", "false with NaN", "{a} > {b}"),
    _truth("greater_equal", "compare", "false with NaN", "{a} >= {b}"),
    _truth("equal", "compare", "false with NaN", "{a} == {b}"),
    _truth("not_equal", "compare", "true with NaN", "{a} != {b}"),
    _truth("logical_and", "logical", "NaN is true", "{a} && {b}"),
    _truth("logical_or", "logical", "NaN is true", "{a} || {b}"),
    _truth("logical_xor", "logical", "NaN is true", "{a} != {b}"),
    _truth("logical_not", "logical", "NaN is true", "!{a}"),
    _truth("isnan", "test", "", "{a} != {a}"),
    _truth("isinf", "test", "", "{a} == {a} && {a} - {a} != {a} - {a}"),
    _truth("isfinite", "test", "", "{a} - {a} == {a} - {a}"),
    Primitive(
        "where", 3, "where", "the other operand is not looked at", "where", "({a} ? {b} : {c})", np.where, ulp=EXACT
    ),
]

PRIMITIVES: dict[str, Primitive] = {primitive.name: primitive for primitive in _ALL}
"""By name; the emitters handle ``cast`` and the leaves themselves."""
