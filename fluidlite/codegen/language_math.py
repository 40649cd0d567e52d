"""A C library for kernel languages: mathematical functions, integer division, half types, Philox.

Functions are named ``fl_<name>_<dtype>``; :func:`library` returns the text of the functions that a text calls, with
their callees. Bits are read through unions, which C, OpenCL C and CUDA C all have.

Error bounds are in docs/kernels.md; ``tests/unit/test_codegen_accuracy.py`` checks them. Infinite, NaN and zero
results, and the sign of zero, are exact.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Template

from fluidlite.codegen import philox
from fluidlite.codegen.language_functions import body
from fluidlite.codegen.language_text import literal

SMALL_ARGUMENT_VARIANTS = {f"fl_{name}_float64": f"fl_{name}near_float64" for name in ("sin", "cos")}
"""Functions that branch by the size of the argument, and their variants for arguments below CODY_WAITE_LIMIT."""

_CALL = re.compile(r"\bfl_(\w+?)_(float32|float64|float16|bfloat16|u?int\d+|any)(?:_(float32|float64))?\b")


_BINARY = ("fmod", "mod", "pow", "powexp")
_LANGUAGE_NAMES = {"expnear": "exp"}
"""Our functions for a limited range of arguments, and the functions of a kernel language that replace them."""
_ALWAYS_OURS = ("bits", "mod", "powexp", "gaussian")  # never replaced by the kernel language's

SHARED_MATH: Mapping[str, str | None] = {
    **{name: name for name in ("exp", "log", "sqrt", "pow", "fmod", "sin", "cos", "tanh", "fma")},
    **{name: name for name in ("floor", "ceil", "trunc", "round")},
    "abs": "fabs",
}
"""Functions of floats that both OpenCL C and CUDA C have, for all floating-point types."""

_INTEGER = {
    "int_div": "if (b == 0) return 0; if (b == -1) return ($T)(0 - ($U)a); return ($T)(a / b);",
    "int_floor_div": "if (b == 0) return 0; if (b == -1) return ($T)(0 - ($U)a); "
    "const $T q = ($T)(a / b); return ($T)(a % b != 0 && ((a < 0) != (b < 0)) ? q - 1 : q);",
    "int_mod": "if (b == 0 || b == -1) return 0; const $T r = ($T)(a % b); "
    "return ($T)(r != 0 && ((r < 0) != (b < 0)) ? r + b : r);",
    "int_rem": "return b == 0 || b == -1 ? 0 : ($T)(a % b);",
    "int_pow": "if (b < 0) return ($T)(a == 1 ? 1 : (a == -1 ? (b & 1 ? -1 : 1) : 0)); "
    "$U r = 1, s = ($U)a; while (b > 0) { if (b & 1) r *= s; s *= s; b = ($T)(b >> 1); } return ($T)r;",
}

_UNSIGNED = {
    "int_div": "return b == 0 ? 0 : ($T)(a / b);",
    "int_floor_div": "return b == 0 ? 0 : ($T)(a / b);",
    "int_mod": "return b == 0 ? 0 : ($T)(a % b);",
    "int_rem": "return b == 0 ? 0 : ($T)(a % b);",
    "int_pow": "$U r = 1, s = a; while (b > 0) { if (b & 1) r *= s; s *= s; b = ($T)(b >> 1); } return ($T)r;",
}  # compilers warn of comparisons of unsigned with negative numbers

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

_WORDS = """
$function void fl_words_any(const $L element, const int blocks, const $U32 k0, const $U32 k1, const $U32 run,
                            const $U32 stream, $U32* w) {
  for (int q = 0; q < blocks; ++q) fl_philox_any(($U64)((element >> 2) + q), k0, k1, run, stream, w + 4 * q);
}
"""
"""The random words of adjacent elements: of whole Philox blocks, from the block of ``element``, which may be before
the first of these elements.
"""


def math_call(name: str, dtype: str, math_names: Mapping[str, str | None]) -> str:
    """The function that computes a primitive: the language's, else ours. ``name.dtype`` in the table has precedence."""
    if name in _INTEGER:
        return f"fl_{name}_{dtype}"
    if name not in _ALWAYS_OURS:
        language_name = _LANGUAGE_NAMES.get(name, name)
        keys = (f"{language_name}.{dtype}", language_name, *(("fabs",) if name == "abs" else ()))
        for key in keys:
            function = math_names.get(key)
            if function is not None:
                return function
    return f"fl_{name}_{dtype}"


def _source(name: str, dtype: str, second: str, types: Mapping[str, str], names: Mapping[str, str | None]) -> str:
    """The text of one function; ``second``: the second dtype in its name, if any."""
    if name in ("load", "store"):
        native = names.get(f"{name}.{dtype}")
        if native is None:
            return _HALF[f"{name}_{dtype}"]
        result, parameter = ("float", "$H") if name == "load" else ("$H", "float")
        return f"$function {result} fl_{name}_{dtype}(const {parameter} x) {{ return {native}(x); }}\n"
    if name in ("philox", "words"):
        return _PHILOX if name == "philox" else _WORDS
    if name == "to" and second:  # fl_to_int32_float32: truncates, saturates, NaN becomes 0
        bits = int(dtype.removeprefix("u").removeprefix("int"))
        low, high = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return (
            f"$function {types[dtype]} fl_to_{dtype}_{second}(const {types[second]} x) {{ if (x != x) return 0; "
            f"if (x >= {literal(float(high + 1), second)}) return {literal(high, dtype)}; "
            f"if (x <= {literal(float(low), second)}) return {literal(low, dtype)}; return ({types[dtype]})x; }}\n"
        )
    local = {"T": types[dtype], "U": types["uint64" if dtype in ("int64", "float64") else "uint32"]}
    if name in _INTEGER:
        table = _UNSIGNED if dtype.startswith("u") else _INTEGER
        function = f"$function $T fl_{name}_{dtype}($T a, $T b) {{ {table[name]} }}\n"
    elif name == "bits":
        function = (
            f"$function $T fl_bits_{dtype}(const $U word) {{ union fl_union_{dtype} v; v.u = word; return v.f; }}\n"
        )
    else:
        variant, fused = name, names.get("fma") is not None
        if name == "powexp" and dtype == "float32" and "float64" in types:
            variant = "powexp_wide"
        elif name == "fmod" and fused:
            variant = "fmod_fused"
        parameters = "const $T x, const $T y" if name in _BINARY else "$T x"
        parameters = "const $U32 word" if name == "gaussian" else parameters
        text = body(variant, dtype, fused)
        text = re.sub(r"\bfl_([a-z0-9]+)_(float32|float64)(?=\()", lambda m: math_call(m[1], m[2], names), text)
        function = f"$function $T fl_{name}_{dtype}({parameters}) {{ {text} }}\n"
    return Template(function).safe_substitute(local)


def library(text: str, keywords: Mapping[str, str], types: Mapping[str, str], names: Mapping[str, str | None]) -> str:
    """Return the text of all our functions that ``text`` calls, each before its first use."""
    done: dict[str, str] = {}
    unions: set[str] = set()

    def visit(source: str) -> None:
        for match in _CALL.finditer(source):
            name = match.group(0)
            if name in done or match[1] == "union":
                continue
            function = _source(match[1], match[2], match[3] or "", types, names)
            done[name] = ""  # visited: no function is recursive
            visit(function)
            unions.update(re.findall(r"union fl_union_(float32|float64)", function))
            done.pop(name)
            done[name] = function

    visit(text)
    shared = {
        "function": keywords["function"],
        "L": types["int64"],
        "U32": types["uint32"],
        "U64": types["uint64"],
        "H": "unsigned short",
    }
    head = [
        f"union fl_union_{dtype} {{ {types['uint32' if dtype == 'float32' else 'uint64']} u; {types[dtype]} f; }};\n"
        for dtype in sorted(unions)
    ]
    return "".join(head) + "".join(Template(function).safe_substitute(shared) for function in done.values())
