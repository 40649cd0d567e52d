"""Vectors in the kernel language's C: what they compute, and clear errors for what is not there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fluidlite.base.errors import CompileError
from fluidlite.codegen.llvm import c_to_llvm

pytest.importorskip("pycparser")
pytest.importorskip("llvmlite")

from fluidlite.base.disk_cache import DiskCache
from fluidlite.devices.cpu.language import LLVMLanguage


class Context:
    threads = 1


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> LLVMLanguage:
    return LLVMLanguage(DiskCache(tmp_path_factory.mktemp("kernels")))


def kernel(body: str, kind: str = "float") -> str:
    return f"""void k(const {kind}* restrict x, const {kind}* restrict y, {kind}* restrict out, const long items) {{
for (long gid = fl_begin; gid < fl_end; ++gid) {{
{body}
}}
}}
"""


CASES: dict[str, tuple[str, Any]] = {
    "add": ("vstore{n}(vload{n}(gid, x) + vload{n}(gid, y), gid, out);", lambda x, y: x + y),
    "subtract": ("vstore{n}(vload{n}(gid, x) - vload{n}(gid, y), gid, out);", lambda x, y: x - y),
    "multiply": ("{v} a = vload{n}(gid, x); a *= vload{n}(gid, y); vstore{n}(a, gid, out);", lambda x, y: x * y),
    "divide": ("vstore{n}(vload{n}(gid, x) / vload{n}(gid, y), gid, out);", lambda x, y: x / y),
    "negative": ("const {v} a = -vload{n}(gid, x); vstore{n}(a, gid, out);", lambda x, y: -x),
    "a number in each lane": ("vstore{n}(({v})(y[0]) * vload{n}(gid, x) + 2, gid, out);", lambda x, y: y[0] * x + 2),
    "chosen": ("{v} a = vload{n}(gid, x); a = gid ? a : vload{n}(gid, y); vstore{n}(a, gid, out);",
               lambda x, y: np.where(np.arange(x.size) < x.size // 4, y, x)),
    "numbers": ("{v} a = ({v})({numbers}); vstore{n}(a, gid, out);", lambda x, y: x[::-1]),
    "anywhere": ("const {t}* p = x + 1; vstore{n}(vload{n}(gid, p), gid, out);", lambda x, y: np.append(x[1:], 7)),
}  # fmt: skip


@pytest.mark.parametrize("width", [2, 4, 8, 16])
@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("name", CASES)
def test_values(language: LLVMLanguage, name: str, kind: str, width: int) -> None:
    text, reference = CASES[name]
    numbers = ", ".join(f"x[{4 * width - 1} - gid * {width} - {i}]" for i in range(width))
    body = text.format(n=width, v=f"{kind}{width}", t=kind, numbers=numbers)
    dtype = np.dtype("float32" if kind == "float" else "float64")
    rng = np.random.default_rng(1)
    whole = np.append(rng.uniform(1, 2, 4 * width), 7).astype(dtype)
    x, y, out = whole[:-1], rng.uniform(1, 2, 4 * width).astype(dtype), np.zeros(4 * width, dtype)
    made = language.compile(None, kernel(body, kind), "k", ("buffer",) * 3 + ("int64",))
    language.launch(Context(), made, 4, (*(a.view("uint8") for a in (whole, y, out)), 4))
    np.testing.assert_array_equal(out, reference(x, y))


def test_a_multiply_add_rounds_once(language: LLVMLanguage) -> None:
    if "fma" not in language.math:
        pytest.skip("the processor has none")
    body = "vstore16(llvm_fma(vload16(gid, x), vload16(gid, y), (float16)(-1)), gid, out);"
    x = np.full(16, 1 + 2.0**-12, "float32")
    out = np.zeros(16, "float32")
    made = language.compile(None, kernel(body), "k", ("buffer",) * 3 + ("int64",))
    language.launch(Context(), made, 1, (*(a.view("uint8") for a in (x, x, out)), 1))
    np.testing.assert_array_equal(out, np.float32(2.0**-11 + 2.0**-24))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("out[0] = vload16(0, x);", "line 3: no conversion from <16 x float> to float"),
        ("float16 a = vload8(0, x);", "line 3: no conversion from <8 x float> to <16 x float>"),
        ("float8 a = vload8(0, x) % vload8(0, x);", "line 3: operator % on <8 x float>"),
        ("float8 a = vload8(0, x) < vload8(0, x);", "line 3: operator < on <8 x float>"),
        ("if (vload8(0, x)) out[0] = 1;", "line 3: no conversion from <8 x float> to bool"),
        ("float8 a = vload8(0);", "line 3: vload8 takes 2 arguments, not 1"),
        ("float2 a = vload3(0, x);", "line 3: vload3 takes a pointer to float or double, and 2, 4, 8 or 16 of them"),
        ("const long* p = 0; vload4(0, p);", "line 3: vload4 takes a pointer to float or double"),
        ("vstore4(x[0], 0, out);", "line 3: vstore4 stores <4 x float>, not float"),
        ("float4 a = (float4)(1, 2, 3);", "line 3: <4 x float> is made of 4 numbers, not 3"),
        ("float4 a = vload4(0, x); out[0] = a[1];", "line 3: an index of what is no pointer"),
    ],
)
def test_what_is_not_there_is_refused_with_its_line(body: str, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        c_to_llvm(kernel(body), "k")
    assert message in str(caught.value)


def test_a_tile_of_sums_stays_in_vectors() -> None:
    body = """float16 a = (float16)(0), b = (float16)(0);
    for (long k = 0; k < items; ++k) {
      const float16 w = vload16(k, y);
      a = llvm_fma((float16)(x[k]), w, a);
      b = llvm_fma((float16)(x[k + items]), w, b);
    }
    vstore16(a, 0, out); vstore16(b, 1, out);"""
    text, _ = c_to_llvm(kernel(body), "k")
    assert text.count("call <16 x float> @llvm.fma.v16f32") == 2
    assert "declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)" in text


def test_the_processor_says_its_registers(language: LLVMLanguage) -> None:
    wide = language.compiler.features.get("avx512f", False)
    assert language.registers in ([(32, 64)] if wide else [(16, 32), (16, 16)])
