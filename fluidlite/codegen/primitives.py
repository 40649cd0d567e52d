"""The one table of primitives: what each means, and how every emitter writes it.

Floats follow IEEE 754 without traps. Integers wrap; division by zero gives 0 and never traps, for a
CPU's OpenCL driver would take the process with it. A comparison with NaN is false, ``not_equal`` true.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True)
class Primitive:
    """One primitive.

    Attributes
    ----------
    name : str
    arity : int
    kind : str
        How its type follows: ``"arithmetic"`` (operands promoted; bool counts as int32), ``"float"`` (integers
        become float32), ``"whole"`` (as it is: identity on integers), ``"compare"`` (operands promoted, bool out),
        ``"logical"`` (operands made bool, bool out), ``"test"`` (float in, bool out), ``"where"``, ``"cast"``.
    rule : str
        NaN, integer, overflow and rounding, in words.
    xp : str
        The namespace's function for floats (``@name``: ours in :mod:`fluidlite.codegen.functions`).
    xp_int : str
        The same for integers; empty: as for floats.
    c : str
        Dialect text for floats: ``{a} {b} {c}`` operands, ``{T}`` their type, ``@name(`` a math function.
    c_int : str
        The same for integers, ``{U}`` an unsigned type in which they wrap; empty: as for floats.
    reference : callable
        The meaning, on float64 or integer NumPy arrays.
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
    bits = 8 * dtype.itemsize
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


_ALL = [
    Primitive("add", 2, "arithmetic", "integers wrap", "add", "{a} + {b}", np.add, c_int=_wrap("+")),
    Primitive("sub", 2, "arithmetic", "integers wrap", "subtract", "{a} - {b}", np.subtract, c_int=_wrap("-")),
    Primitive("mul", 2, "arithmetic", "integers wrap", "multiply", "{a} * {b}", np.multiply, c_int=_wrap("*")),
    Primitive(
        "div", 2, "arithmetic", "integers truncate toward zero; x / 0 is 0, the lowest / -1 wraps", "divide",
        "{a} / {b}", _trunc_div, "@int_div", "@int_div({a}, {b})",
    ),
    Primitive(
        "floordiv", 2, "arithmetic", "floor of the rounded quotient; integers: x // 0 is 0", "@floor_div",
        "@floor({a} / {b})", _floor_div, "@int_floor_div", "@int_floor_div({a}, {b})",
    ),
    Primitive(
        "mod", 2, "arithmetic", "the divisor's sign; float x mod 0 is NaN, integer x mod 0 is 0", "remainder",
        "@mod({a}, {b})", _mod, "@int_mod", "@int_mod({a}, {b})",
    ),
    Primitive(
        "pow", 2, "arithmetic", "C's pow; integers wrap, a negative exponent gives 0 except of 1 and -1", "pow",
        "@pow({a}, {b})", _pow, "@int_pow", "@int_pow({a}, {b})",
    ),
    Primitive("neg", 1, "arithmetic", "integers wrap", "negative", "-{a}", np.negative, c_int="({T})(0 - ({U}){a})"),
    Primitive("abs", 1, "arithmetic", "the lowest integer stays", "abs", "@abs({a})", np.abs,
              c_int="({T})({a} < 0 ? 0 - ({U}){a} : ({U}){a})"),
    Primitive("sign", 1, "arithmetic", "NaN of NaN, 0 of -0", "sign",
              "({a} > 0 ? ({T})1 : ({a} < 0 ? ({T})-1 : ({a} == 0 ? ({T})0 : {a})))", np.sign,
              c_int="({T})(({a} > 0) - ({a} < 0))"),
    Primitive("maximum", 2, "arithmetic", "NaN if either is NaN", "maximum", "({a} > {b} || {a} != {a} ? {a} : {b})",
              np.maximum, c_int="({a} > {b} ? {a} : {b})"),
    Primitive("minimum", 2, "arithmetic", "NaN if either is NaN", "minimum", "({a} < {b} || {a} != {a} ? {a} : {b})",
              np.minimum, c_int="({a} < {b} ? {a} : {b})"),
    Primitive("exp", 1, "float", "overflows to infinity", "exp", "@exp({a})", np.exp),
    Primitive("expm1", 1, "float", "overflows to infinity", "expm1", "@expm1({a})", np.expm1),
    Primitive("log", 1, "float", "-infinity of 0, NaN below", "log", "@log({a})", np.log),
    Primitive("log1p", 1, "float", "-infinity of -1, NaN below", "log1p", "@log1p({a})", np.log1p),
    Primitive("sqrt", 1, "float", "NaN below 0", "sqrt", "@sqrt({a})", np.sqrt),
    Primitive("tanh", 1, "float", "", "tanh", "@tanh({a})", np.tanh),
    Primitive("sin", 1, "float", "NaN of infinity", "sin", "@sin({a})", np.sin),
    Primitive("cos", 1, "float", "NaN of infinity", "cos", "@cos({a})", np.cos),
    Primitive("asin", 1, "float", "NaN outside [-1, 1]", "asin", "@asin({a})", np.arcsin),
    Primitive("acos", 1, "float", "NaN outside [-1, 1]", "acos", "@acos({a})", np.arccos),
    Primitive("atan", 1, "float", "", "atan", "@atan({a})", np.arctan),
    Primitive("sinh", 1, "float", "overflows to infinity", "sinh", "@sinh({a})", np.sinh),
    Primitive("cosh", 1, "float", "overflows to infinity", "cosh", "@cosh({a})", np.cosh),
    Primitive("erf", 1, "float", "", "@erf", "@erf({a})", _erf),
    Primitive("floor", 1, "whole", "", "floor", "@floor({a})", np.floor),
    Primitive("ceil", 1, "whole", "", "ceil", "@ceil({a})", np.ceil),
    Primitive("round", 1, "whole", "halves go away from zero", "@round", "@round({a})", _round),
    Primitive("less", 2, "compare", "false with NaN", "less", "({a} < {b})", np.less),
    Primitive("less_equal", 2, "compare", "false with NaN", "less_equal", "({a} <= {b})", np.less_equal),
    Primitive("greater", 2, "compare", "false with NaN", "greater", "({a} > {b})", np.greater),
    Primitive("greater_equal", 2, "compare", "false with NaN", "greater_equal", "({a} >= {b})", np.greater_equal),
    Primitive("equal", 2, "compare", "false with NaN", "equal", "({a} == {b})", np.equal),
    Primitive("not_equal", 2, "compare", "true with NaN", "not_equal", "({a} != {b})", np.not_equal),
    Primitive("logical_and", 2, "logical", "", "logical_and", "({a} && {b})", np.logical_and),
    Primitive("logical_or", 2, "logical", "", "logical_or", "({a} || {b})", np.logical_or),
    Primitive("logical_xor", 2, "logical", "", "logical_xor", "({a} != {b})", np.logical_xor),
    Primitive("logical_not", 1, "logical", "", "logical_not", "(!{a})", np.logical_not),
    Primitive("isnan", 1, "test", "", "isnan", "({a} != {a})", np.isnan),
    Primitive("isinf", 1, "test", "", "isinf", "({a} == {a} && {a} - {a} != {a} - {a})", np.isinf),
    Primitive("isfinite", 1, "test", "", "isfinite", "({a} - {a} == {a} - {a})", np.isfinite),
    Primitive("where", 3, "where", "", "where", "({a} ? {b} : {c})", np.where),
]  # fmt: skip

PRIMITIVES: dict[str, Primitive] = {primitive.name: primitive for primitive in _ALL}
"""By name; ``cast`` and the leaves are written by the emitters themselves."""
