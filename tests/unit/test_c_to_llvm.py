"""The kernel language's C, translated to LLVM IR: what a C compiler computes, and clear errors for what is not in it."""

# ruff: noqa: E501  # a line of C a case

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.codegen.llvm import c_to_llvm

pytest.importorskip("pycparser")
llvmlite = pytest.importorskip("llvmlite")

from fluidlite.base.disk_cache import DiskCache  # noqa: E402
from fluidlite.devices.cpu.language import LLVMLanguage  # noqa: E402

GIDS = "for (long gid = fl_begin; gid < fl_end; ++gid)"
COUNT = 64


class Context:
    threads = None


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> LLVMLanguage:
    return LLVMLanguage(DiskCache(tmp_path_factory.mktemp("kernels")))


def kernel(body: str, functions: str = "") -> str:
    """A kernel over six inputs and three outputs, as the framework writes them."""
    return f"""union fl_union_float32 {{ unsigned int u; float f; }};
typedef long index_t;
{functions}
void k(const int* restrict i, const unsigned int* restrict u, const long* restrict l, const float* restrict f,
       const double* restrict d, const unsigned char* restrict b, long* restrict o, double* restrict r,
       const long items) {{
{GIDS} {{
{body}
}}
}}
"""


PARAMETERS = ("buffer",) * 8 + ("int64",)


def inputs() -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(3)
    edge = np.array([0, 1, -1, 2, -2, 7, -7, 2**31 - 1, -(2**31), 255, 65536], "int64")
    i = np.concatenate([edge, rng.integers(-1000, 1000, COUNT - edge.size)]).astype("int32")
    u = i.astype("uint32")
    big = np.concatenate([edge * 2**31 + edge, rng.integers(-(2**62), 2**62, COUNT - edge.size)]).astype("int64")
    f = np.concatenate([[0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 0.5, -2.5], rng.normal(0, 9, COUNT - 8)])
    return [i, u, big, f.astype("float32"), f * 3, rng.integers(0, 256, COUNT).astype("uint8")]


def run_llvm(language: LLVMLanguage, source: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    given, o, r = inputs(), np.zeros(COUNT, "int64"), np.zeros(COUNT, "float64")
    made = language.compile(None, source, "k", PARAMETERS)
    language.launch(Context(), made, COUNT, (*given, o, r, COUNT))
    return o, r


def run_cc(folder: Path, source: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    given, o, r = inputs(), np.zeros(COUNT, "int64"), np.zeros(COUNT, "float64")
    (folder / "k.c").write_text(source.replace("fl_begin", "0").replace("fl_end", "items"))
    flags = ["-O0", "-ffp-contract=off", "-fwrapv", "-w", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, "-o", folder / "k.so", folder / "k.c"], check=True)
    function = ctypes.CDLL(str(folder / "k.so")).k
    function(*(ctypes.c_void_p(array.ctypes.data) for array in (*given, o, r)), ctypes.c_long(COUNT))
    return o, r


EXPRESSIONS = {
    "signed and unsigned": "o[gid] = i[gid] < u[gid]; r[gid] = i[gid] + u[gid];",
    "unsigned wraps": "o[gid] = u[gid] * 2654435761u + 0xffffffffu;",
    "long and unsigned": "o[gid] = l[gid] + u[gid] - i[gid];",
    "small types grow": "o[gid] = b[gid] + b[gid] * 300 - (b[gid] << 4);",
    "narrowing": "o[gid] = (unsigned char)(i[gid] + 200) + (short)l[gid] + (signed char)b[gid];",
    "shifts": "o[gid] = (i[gid] >> 3) + (u[gid] >> 3) + (l[gid] << 2) + ((unsigned long)l[gid] >> 60);",
    "bits": "o[gid] = (i[gid] & 0xff) | (l[gid] ^ ~i[gid]) | (u[gid] & 010);",
    "division truncates": "o[gid] = l[gid] / 7 + l[gid] % 7 + i[gid] / -3 + i[gid] % -3 + u[gid] / 3;",
    "comparisons are ints": "o[gid] = (f[gid] > 0) + (d[gid] == d[gid]) * 2 + (i[gid] != 1) * 4 + !b[gid] * 8;",
    "a bit of a bit": "o[gid] = -(f[gid] > 0) + ((i[gid] < 0) ^ (l[gid] < 0)) + ~(i[gid] > 0);",
    "NaN compares false": "o[gid] = (f[gid] < 1) + 2 * (f[gid] >= 1) + 4 * (f[gid] != f[gid]) + 8 * !(f[gid] <= 1);",
    "float in float": "r[gid] = f[gid] * 1.1f + 3; o[gid] = 0;",
    "float in double": "r[gid] = f[gid] * 1.1 + 3 - d[gid] / 7;",
    "one of two types": "r[gid] = f[gid] > 0 ? i[gid] : d[gid]; o[gid] = b[gid] > 9 ? u[gid] : i[gid];",
    "one of two loads": "r[gid] = f[gid] > 0 ? d[gid] : f[gid] / 2; o[gid] = i[gid] > 0 ? l[gid] % i[gid] : 5;",
    "choices in choices": "o[gid] = i[gid] > 0 ? (b[gid] > 99 ? 1 : l[gid] / 2) : f[gid] > 0 ? 3 : (i[gid] < -5 ? 4 : 5);",
    "second part does not run": "o[gid] = i[gid] != 0 && l[gid] / i[gid] > 3; r[gid] = i[gid] == 0 || 9 % i[gid] == 0;",
    "joined conditions": "o[gid] = (i[gid] > 0 && f[gid] > 0) || (b[gid] > 5 && !(d[gid] > 1));",
    "assigning": "long a = l[gid]; int c = 3; c += b[gid]; c *= 2; c -= 1; a |= 5; a ^= c; c /= 3; c %= 5; o[gid] = a + c;",
    "counting": "int c = 4; int e = c++ + ++c; e += c-- - --c; o[gid] = e * 100 + c;",
    "assigning narrows": "unsigned char c = 250; c += i[gid]; short s = b[gid]; s <<= 9; o[gid] = c + s;",
    "chained": "int p, q; p = q = b[gid] + 1; o[gid] = p * 2 + q;",
    "for": "long s = 0; for (int k = 0, m = 9; k < m; ++k, m -= 1) s += k * m + b[gid]; o[gid] = s;",
    "while": "int n = b[gid], s = 0; while (n > 0) { s += n & 1; n >>= 1; } o[gid] = s;",
    "do": "int n = b[gid], s = 0; do { s += 1; n /= 2; } while (n); o[gid] = s;",
    "break and continue": "int s = 0; for (int k = 0; ; ++k) { if (k % 3 == 0) continue; if (k > b[gid]) break; s += k; } o[gid] = s;",
    "break of the inner": "int s = 0; for (int k = 0; k < 5; ++k) { for (int m = 0; m < 9; ++m) { if (m > k) break; s += m; } } o[gid] = s;",
    "if": "if (i[gid] > 3) o[gid] = 1; else if (i[gid] < -3) { o[gid] = 2; } else o[gid] = 3;",
    "inner names": "int v = 1; { int v = 2; v += 5; o[gid] = v; } for (int v = 0; v < 2; ++v) o[gid] += v; o[gid] += v;",
    "arrays": "long t[4]; for (int k = 0; k < 4; ++k) t[k] = l[gid] >> k; o[gid] = t[0] ^ t[1] ^ t[2] ^ t[3];",
    "arrays begin": "const int t[4] = {3, 1, -2}; o[gid] = t[b[gid] & 3] * 10 + t[3];",
    "pointers": "const int* p = i + gid; const int* q = p - gid; o[gid] = *p + q[0] + *(1 + q);",
    "an address": "long v = 3; long* p = &v; *p += l[gid]; p[0] += 1; o[gid] = v;",
    "union": "union fl_union_float32 v; v.f = f[gid]; v.u ^= 0x80000000u; o[gid] = v.u; r[gid] = v.f;",
    "constants": "o[gid] = 0x7fffffff + 1L + 0xffffffff + 4000000000 + 1u - 2u; r[gid] = 1e-3f + 2.5e3 + .5f + 3.f;",
    "constants with names": "const int c = b[gid] * 2; const float x = c; const double y = x / 3; r[gid] = y; o[gid] = c;",
    "typedef": "index_t t = gid * 2; o[gid] = t;",
    "to numbers": "o[gid] = (int)(b[gid] * 1.7f) + (long)(b[gid] / -3.0); r[gid] = (float)l[gid] + (double)u[gid] + (float)u[gid];",
    "truth": "o[gid] = (f[gid] ? 1 : 0) + (i[gid] ? 2 : 0) + (!f[gid] ? 4 : 0) + (l[gid] && 1 ? 8 : 0);",
    "an empty statement": "; { } o[gid] = 3;",
}  # fmt: skip

FUNCTIONS = {
    "early ends": ("static inline int side(int x) { if (x > 0) return 1; if (x < 0) return -1; return 0; }",
                   "o[gid] = side(i[gid]);"),
    "arguments convert": ("static inline float half_of(const float x) { return x * 0.5f; }",
                          "r[gid] = half_of(l[gid] & 1023);"),
    "arguments change": ("static inline long gcd(long a, long b) { while (b) { long t = a % b; a = b; b = t; } return a; }",
                         "o[gid] = gcd(b[gid], 12);"),
    "through a pointer": ("static inline void both(const int x, int* w) { w[0] = x; w[1] = -x; }",
                          "int w[2]; both(b[gid], w); o[gid] = w[0] * 3 + w[1];"),
    "all paths return": ("static inline int pick(int x) { if (x > 9) { return 1; } else { return 2; } }",
                         "o[gid] = pick(b[gid]);"),
    "return in a loop": ("static inline int first(int x) { for (int k = 0; k < 32; ++k) { if (x & (1 << k)) return k; } return -1; }",
                         "o[gid] = first(i[gid]);"),
}  # fmt: skip


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler to compare with")
@pytest.mark.parametrize("name", [*EXPRESSIONS, *FUNCTIONS])
def test_it_computes_what_a_c_compiler_does(language: LLVMLanguage, name: str, tmp_path: Path) -> None:
    functions, body = ("", EXPRESSIONS[name]) if name in EXPRESSIONS else FUNCTIONS[name]
    source = kernel(body, functions)
    for got, expected in zip(run_llvm(language, source), run_cc(tmp_path, source), strict=True):
        np.testing.assert_array_equal(got, expected)


WRONG = {
    "unknown name 'nobody'": "o[gid] = nobody;",
    "unknown function 'missing'": "o[gid] = missing(1);",
    "unknown type 'size_t'|before: t": "size_t t = 0; o[gid] = t;",
    "'c' cannot be changed": "const int c = 1; c = 2;",
    "'c' is declared twice": "const int c = 1; const int c = 2;",
    "an index of what is no pointer": "o[gid] = gid[0];",
    "no member 'g'": "union fl_union_float32 v; v.f = 1; o[gid] = v.g;",
    "Goto is not for kernels": "goto end; end: o[gid] = 1;",
    "Switch is not for kernels": "switch (i[gid]) { case 1: o[gid] = 1; }",
    "the length of an array is no constant": "int t[gid]; o[gid] = t[0];",
    "operator % on double": "r[gid] = d[gid] % 2;",
    "operator & on float": "o[gid] = f[gid] & 1;",
    "takes 1 arguments, not 2": "o[gid] = one(1, 2);",
    "llvm_stream takes a pointer to copy to": "llvm_stream(o, 1);",
    "has type void": "void v; o[gid] = 1;",
    "the only pragma is": '_Pragma("unroll") for (int j = 0; j < 3; ++j) o[gid] += j;',
    "no loop behind a pragma": '_Pragma("independent") o[gid] = 1;',
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_not_in_the_subset_is_refused_with_its_line(language: LLVMLanguage, message: str) -> None:
    source = kernel("o[gid] = 0;\n" + WRONG[message], "static inline int one(int x) { return x; }")
    with pytest.raises(fluid.errors.CompileError, match=message) as caught:
        language.compile(None, source, "k", PARAMETERS)
    assert caught.value.source == source
    line = source.splitlines().index(WRONG[message]) + 1
    assert str(line) in str(caught.value)


def test_an_entry_that_is_not_there_and_parameters_that_do_not_agree(language: LLVMLanguage) -> None:
    source = kernel("o[gid] = 1;")
    with pytest.raises(fluid.errors.CompileError, match="no kernel 'other'"):
        c_to_llvm(source, "other")
    with pytest.raises(fluid.errors.CompileError, match="9 parameters, not 1"):
        language.compile(None, source, "k", ("buffer",))


def test_break_belongs_to_a_loop() -> None:
    with pytest.raises(fluid.errors.CompileError, match="line 4: break outside a loop"):
        c_to_llvm(kernel("o[gid] = 1;", "static inline int one(int x) {\nbreak;\nreturn x; }"), "k")


def test_what_is_restricted_is_told_to_llvm() -> None:
    text, parameters = c_to_llvm(kernel("o[gid] = i[gid];"), "k")
    assert text.count("noalias") == 8
    assert parameters == ("ptr",) * 8 + ("i64",)
    aliased, _ = c_to_llvm(kernel("o[gid] = i[gid];").replace("restrict", ""), "k")
    assert "noalias" not in aliased


def test_loops_over_lanes_stay_for_the_vectoriser() -> None:
    """Unrolled first, they would leave the loop around them, whose steps lie sixteen elements apart."""
    body = (
        "float t[16]; for (int v = 0; v < 16; ++v) t[v] = 0; for (long j = 0; j < l[gid]; ++j) {{ {} }} r[gid] = t[0];"
    )
    lanes, _ = c_to_llvm(kernel(body.format("for (int v = 0; v < 16; ++v) t[v] += f[j * 16 + v];")), "k")
    assert lanes.count("!2, !3}") == 2  # the loops over lanes
    assert (lanes.count("!4}"), lanes.count("!4, !2}")) == (1, 1)  # the loop over j, and that over items
    others, _ = c_to_llvm(kernel("for (int i = 0; i < 10; ++i) o[gid] += i;"), "k")
    assert "!2, !3}" not in others
    left, _ = c_to_llvm(kernel("for (int i = 0; i < 16; ++i) if (f[i] > 0) break;"), "k")
    assert "!2, !3}" not in left


@pytest.mark.parametrize(
    ("lanes", "loops"),
    [("for (int v = 0; v < 16; ++v)", 1), ('_Pragma("independent") for (int v = 0; v < i[0]; ++v)', 2)],
)
def test_loops_around_lanes_that_are_not_written_out(lanes: str, loops: int) -> None:
    """LLVM would write out counted steps with all lanes in each: 16 took a second, and a thousand instructions; and
    steps of what is around a loop that is not counted, which gains nothing.
    """
    around = "float t[16]; for (long j = 0; j < {}; ++j) {{ {} t[v] += f[j * i[1] + v * 7]; }} r[gid] = t[0];"
    counted, _ = c_to_llvm(kernel(around.format("4L", lanes)), "k")
    other, _ = c_to_llvm(kernel(around.format("l[gid]", lanes)), "k")
    plain, _ = c_to_llvm(kernel("for (long j = 0; j < 4L; ++j) o[gid] += j;"), "k")

    def rolled(text: str) -> int:
        return len([line for line in text.splitlines() if "distinct" in line and line.endswith("!2}")])

    assert (rolled(counted), rolled(other), rolled(plain)) == (loops, loops, 0)


def test_items_are_independent_but_for_their_own_variables() -> None:
    text, _ = c_to_llvm(kernel("float t[4]; float* p = t; p[1] = f[gid]; t[2] = 1; r[gid] = p[1] + t[2];"), "k")
    marked = [line for line in text.splitlines() if "!llvm.access.group !6" in line]
    assert len(marked) == 2  # the load from f, the store to r
    assert '!"llvm.loop.parallel_accesses"' in text


def test_a_loop_with_independent_steps() -> None:
    loop = "for (int j = 0; j < i[0]; ++j) {} r[gid + j] = f[gid + j];"
    for before, inside, marks in (
        ("", "", 1),  # items alone
        ('_Pragma("independent") ', "", 2),
        ('_Pragma("independent") ', "for (int s = 0; s < i[1]; ++s)", 2),  # that around, not that within
    ):
        text, _ = c_to_llvm(kernel(before + loop.format(inside)), "k")
        assert sum(text.count(f", {mark}{end}") for mark in ("!5", "!9") for end in ("}", ", !2}")) == marks


def test_a_pointer_that_may_come_to_a_variable_of_the_item_is_not_marked() -> None:
    """The loop reads through it before the text shows where else it will point."""
    body = "float t[4]; t[0] = 1; const float* p = f; for (int j = 0; j < 3; ++j) {{ r[gid] += p[0]; {} }}"
    for change, marks in (
        ("p = t;", 2),
        ("p = gid > j ? p + 1 : t;", 2),
        ("p = gid > j ? p + 1 : f;", 3),
        ("p += 1;", 3),
    ):
        text, _ = c_to_llvm(kernel(body.format(change)), "k")
        assert text.count("!llvm.access.group !6") == marks  # r is read and written, and f is read


def test_an_output_on_an_input_is_computed_in_vectors(language: LLVMLanguage) -> None:
    source = f"""void k(const float* x, float* y, const long items) {{
{GIDS} {{ y[gid] = x[gid] * 2 + 1; }}
}}
"""
    made = language.compile(Context(), source, "k", ("buffer", "buffer", "int64"))
    values = np.arange(1000, dtype="float32")
    expected = values * 2 + 1
    language.launch(Context(), made, values.size, [values, values, values.size])
    np.testing.assert_array_equal(values, expected)


def test_a_row_written_over_what_it_reads_is_computed_in_vectors(language: LLVMLanguage) -> None:
    """The row's own loop is marked: with items alone, LLVM looks whether the memory is the same, and goes one by one."""
    source = f"""void k(const float* x, const float* w, float* y, const long n, const long items) {{
{GIDS} {{ _Pragma("independent") for (long j = 0; j < n; ++j) {{ y[gid * n + j] = x[gid * n + j] * w[j] + 1; }} }}
}}
"""
    made = language.compile(Context(), source, "k", ("buffer", "buffer", "buffer", "int64", "int64"))
    values, row = np.arange(35, dtype="float32").reshape(5, 7), np.arange(7, dtype="float32")
    expected = values * row + 1
    language.launch(Context(), made, 5, [values, row, values, 7, 5])
    np.testing.assert_array_equal(values, expected)
    text, _ = c_to_llvm(source, "k")
    unmarked, _ = c_to_llvm(source.replace('_Pragma("independent") ', ""), "k")
    assert "vector.memcheck" in optimised(unmarked) and "vector.memcheck" not in optimised(text)


KEPT = f"""void k(const float* x, const float* w, float* y, const long n, const long items) {{
{GIDS} {{
float t[64]; for (int v = 0; v < 64; ++v) {{ t[v] = w[v]; }}
_Pragma("independent") for (int v = 0; v < 64; ++v) {{ y[gid * n + v] = x[gid * n + v] * w[v] + t[v]; }}
}} }}
"""


def test_independent_lanes_read_an_array_of_the_item(language: LLVMLanguage) -> None:
    """What was computed for all rows is kept in it: without a mark on it, lanes that the text counts go one by one."""
    made = language.compile(Context(), KEPT, "k", ("buffer", "buffer", "buffer", "int64", "int64"))
    values, row = np.arange(320, dtype="float32").reshape(5, 64), np.arange(64, dtype="float32")
    expected = values * row + row
    language.launch(Context(), made, 5, [values, row, values, 64, 5])
    np.testing.assert_array_equal(values, expected)
    text, unmarked = (c_to_llvm(each, "k")[0] for each in (KEPT, KEPT.replace('_Pragma("independent") ', "")))
    assert text.count("!llvm.access.group !10") == 2
    assert "fmul float" in optimised(unmarked) and "fmul float" not in optimised(text)


def test_an_array_within_independent_steps_is_the_same_memory_at_each() -> None:
    assert ", !9}" in c_to_llvm(KEPT, "k")[0]
    within = KEPT.replace("64; ++v) { y", "64; ++v) { float s[2]; s[0] = 1; y")
    text, _ = c_to_llvm(within, "k")
    assert within != KEPT and ", !9}" not in text


def optimised(text: str) -> str:
    """What LLVM makes of a module, as text."""
    import llvmlite.binding as llvm

    machine = llvm.Target.from_default_triple().create_target_machine(opt=3)
    module = llvm.parse_assembly(text)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return str(module)
