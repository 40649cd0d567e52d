"""The kernel languages of the built-in devices: kernels compiled and launched, and CUDA C compiled without a GPU."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fluidlite.devices.cuda.language import CompiledKernel, CUDALanguage, best_architecture, nvrtc_compile
from fluidlite.plugin import CompileError

AFFINE = """
{prologue}
{kernel} affine(
    {buffer} const {real} *{restrict} x, {buffer} {real} *{restrict} y, {long} items, {long} start, {real} a)
{{
    {each} {{ y[start + gid] = x[start + gid] * a + 1; }}
}}
"""
AFFINE_PARAMETERS = ("buffer", "buffer", "int64", "int64")


def affine(language: Any, dtype: str = "float32") -> str:
    words = {**language.keywords, "real": language.types[dtype], "long": language.types["int64"]}
    return AFFINE.format(**words)


# --- kernel language --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("items", [1, 255, 256, 257, 100_003])
@pytest.mark.parametrize("group", [None, 64])
def test_a_kernel_touches_its_items_only(with_language: Any, items: int, group: int | None) -> None:
    bench, language = with_language, with_language.language
    kernel = language.compile(bench.context, affine(language), "affine", (*AFFINE_PARAMETERS, "float32"))
    data = np.arange(items + 20, dtype="float32")
    x, y = bench.span(data), bench.span(np.zeros_like(data))
    language.launch(bench.context, kernel, items, (x.handle, y.handle, items, 5, 2.5), group)
    expected = np.zeros_like(data)
    expected[5 : 5 + items] = data[5 : 5 + items] * np.float32(2.5) + 1
    assert (bench.read(y, "float32") == expected).all()


def test_no_items_launch_nothing(with_language: Any) -> None:
    bench, language = with_language, with_language.language
    kernel = language.compile(bench.context, affine(language), "affine", (*AFFINE_PARAMETERS, "float32"))
    x = bench.span(64)
    language.launch(bench.context, kernel, 0, (x.handle, x.handle, 0, 0, 1.0))
    bench.context.wait()


@pytest.mark.parametrize("dtype", sorted(CUDALanguage.types))
def test_every_type_is_a_buffer_and_a_number(with_language: Any, dtype: str) -> None:
    bench, language = with_language, with_language.language
    if dtype not in language.types:
        pytest.skip(f"{bench.info.name} has no {dtype}")
    kernel = language.compile(bench.context, affine(language, dtype), "affine", (*AFFINE_PARAMETERS, dtype))
    host = "uint8" if dtype == "bool" else dtype
    data = np.arange(30, dtype=host)
    y = bench.span(np.zeros_like(data))
    language.launch(bench.context, kernel, 30, (bench.span(data).handle, y.handle, 30, 0, 3))
    assert (bench.read(y, host) == data * data.dtype.type(3) + 1).all()


def test_multiply_and_add_are_not_contracted(with_language: Any) -> None:
    """X * a + 1 where only a fused multiply-add would keep the product's low bits."""
    bench, language = with_language, with_language.language
    data = np.random.default_rng(5).uniform(-2, 2, 4096).astype("float32")
    factor = np.float32(1.2345678)
    fused = (data.astype("float64") * factor + 1).astype("float32")
    expected = data * factor + np.float32(1)
    assert (fused != expected).any()
    kernel = language.compile(bench.context, affine(language), "affine", (*AFFINE_PARAMETERS, "float32"))
    y = bench.span(np.zeros_like(data))
    language.launch(bench.context, kernel, 4096, (bench.span(data).handle, y.handle, 4096, 0, float(factor)))
    assert (bench.read(y, "float32") == expected).all()


def test_nan_infinity_and_denormals_stay(with_language: Any) -> None:
    bench, words, real = with_language, with_language.language.keywords, with_language.language.types["float32"]
    source = f"""{words["prologue"]}
    {words["kernel"]} special({words["buffer"]} {real} *y, {real} tiny) {{
        const int items = 1;
        {words["each"]} {{
            y[0] = NAN; y[1] = INFINITY; y[2] = -INFINITY; y[3] = tiny * 0.5f; y[4] = y[0] == y[0]; y[5] = 1.0f / 3.0f;
        }}
    }}"""
    kernel = bench.language.compile(bench.context, source, "special", ("buffer", "float32"))
    y, tiny = bench.span(24), np.float32(1e-40)
    bench.language.launch(bench.context, kernel, 1, (y.handle, float(tiny)))
    one_third = np.float32(1) / np.float32(3)
    expected = np.array([np.nan, np.inf, -np.inf, tiny * np.float32(0.5), 0, one_third], "float32")
    np.testing.assert_array_equal(bench.read(y, "float32"), expected)


def test_kernels_of_two_contexts_run_in_two_threads(with_language: Any) -> None:
    """The arguments of one launch never reach another."""
    bench, language = with_language, with_language.language
    kernel = language.compile(bench.context, affine(language), "affine", (*AFFINE_PARAMETERS, "float32"))
    x = bench.span(np.ones(2000, "float32"))
    targets = [bench.span(np.zeros(2000, "float32")) for _ in range(4)]
    bench.context.wait()

    def work(number: int, context: Any) -> None:
        for slot in range(2000):
            args = (x.handle, targets[number].handle, 1, slot, float(slot + 10_000 * number))
            language.launch(context, kernel, 1, args)
        context.wait()

    threads = [threading.Thread(target=work, args=(number, bench.new_context())) for number in range(4)]
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns between setting arguments and enqueueing
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(usual)
    for number, target in enumerate(targets):
        assert (bench.read(target, "float32") == np.arange(2000) + 10_000 * number + 1).all()


def test_a_compile_error_has_the_log_and_the_source(with_language: Any) -> None:
    bench, language = with_language, with_language.language
    source = affine(language).replace("* a + 1", "* no_such_name")
    with pytest.raises(CompileError, match="no_such_name") as caught:
        language.compile(bench.context, source, "affine", (*AFFINE_PARAMETERS, "float32"))
    assert caught.value.source == source


def test_an_unknown_entry_is_a_compile_error(with_language: Any) -> None:
    bench, language = with_language, with_language.language
    with pytest.raises(CompileError, match="no_entry"):
        language.compile(bench.context, affine(language), "no_entry", (*AFFINE_PARAMETERS, "float32"))


def test_opencl_counts_the_parameters(bench: Any) -> None:
    if bench.device.kind != "opencl":
        pytest.skip("CUDA's driver cannot tell")
    with pytest.raises(CompileError, match="do not agree"):
        bench.language.compile(bench.context, affine(bench.language), "affine", AFFINE_PARAMETERS)


def math_source(language: Any, name: str, call: str, real: str) -> str:
    arguments = {"pow": 2, "fmod": 2, "atan2": 2, "fmin": 2, "fmax": 2, "copysign": 2, "fma": 3}.get(name, 1)
    given = ", ".join(["x[gid]", "y[gid]", "x[gid]"][:arguments])
    words = {**language.keywords, "real": real, "call": f"{call}({given})"}
    return """{prologue}
    {kernel} apply({buffer} const {real} *x, {buffer} {real} *y, int items) {{ {each} {{ y[gid] = {call}; }} }}
    """.format(**words)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_math_table_names_real_functions(with_language: Any, dtype: str) -> None:
    language, bench = with_language.language, with_language
    if dtype not in language.types:
        pytest.skip(f"{bench.info.name} has no {dtype}")
    # one source with a kernel each would be quicker to build, but would not tell which name is wrong
    for name in ("abs", "exp", "log", "pow", "fmod", "tanh", "fma", "isnan", "copysign"):
        if language.math.get(name) is None:  # the framework's own is emitted instead
            continue
        source = math_source(language, name, language.math[name], language.types[dtype])
        language.compile(bench.context, source, "apply", ("buffer", "buffer", "int32"))


# --- CUDA C without a GPU --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nvrtc() -> Any:
    reason = "CUDA C is compiled by CuPy and nvidia-cuda-nvrtc, which are not installed"
    module = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason=reason)
    try:
        module.getVersion()
    except (RuntimeError, OSError, ImportError) as exc:  # CuPy is there without NVRTC's library
        pytest.skip(f"NVRTC cannot be loaded: {exc}")
    return module


def test_cuda_source_compiles_to_ptx_and_machine_code(nvrtc: Any) -> None:
    ptx = nvrtc_compile(affine(CUDALanguage()), "compute_80").decode()
    assert ".visible .entry affine(" in ptx
    assert "mul.rn.f32" in ptx
    assert "fma" not in ptx
    assert ".ftz" not in ptx
    assert nvrtc_compile(affine(CUDALanguage()), "sm_80")[:4] == b"\x7fELF"


@pytest.mark.parametrize("name", sorted(CUDALanguage.math))
def test_cuda_math_has_an_overload_for_float(nvrtc: Any, name: str) -> None:
    language = CUDALanguage()
    ptx = nvrtc_compile(math_source(language, name, str(language.math[name]), "float"), "compute_80").decode()
    # sin, cos and tan keep a slow path for huge arguments that reduces them in double
    assert name in ("sin", "cos", "tan") or ".f64" not in ptx
    assert (
        ".f64" in nvrtc_compile(math_source(language, name, str(language.math[name]), "double"), "compute_80").decode()
    )


def test_cuda_compile_error_has_the_log(nvrtc: Any) -> None:
    source = affine(CUDALanguage()).replace("* a + 1", "* no_such_name")
    with pytest.raises(CompileError, match="no_such_name") as caught:
        nvrtc_compile(source, "compute_80")
    assert caught.value.source == source


def test_cuda_chooses_an_architecture(nvrtc: Any) -> None:
    known = nvrtc.getSupportedArchs()
    assert best_architecture(known[0]) == f"sm_{known[0]}"
    assert best_architecture(9999) == f"compute_{max(known)}"
    with pytest.raises(CompileError, match="capability"):
        best_architecture(10)


def test_cuda_launch_packs_numbers_by_their_types(fake_cuda: Any) -> None:
    launches: list[Any] = []

    def function(grid: Any, block: Any, args: Any, stream: Any) -> None:
        assert stream is fake_cuda.context.stream
        launches.append((grid, block, [type(value).__name__ for value in args]))

    language, handle = CUDALanguage(), fake_cuda.span(64).handle
    kernel = CompiledKernel(function, (None, np.int64, np.float32, np.uint8))
    language.launch(fake_cuda.context, kernel, 1000, (handle, 3, 2, True))
    language.launch(fake_cuda.context, kernel, 1000, (handle, 3, 2.5, True), group=1)
    language.launch(fake_cuda.context, kernel, 0, (handle, 3, 2.5, True))
    types = ["MemoryPointer", "int64", "float32", "uint8"]
    assert launches == [((4,), (256,), types), ((32,), (32,), types)]
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        language.launch(fake_cuda.context, kernel, 1000, (handle, 3))


def test_cuda_compile_loads_the_entry(fake_cuda: Any, nvrtc: Any) -> None:
    class DriverError(Exception):
        pass

    def get_function(name: str) -> str:
        if name != "affine":
            raise DriverError("CUDA_ERROR_NOT_FOUND")
        return name

    loaded: list[bytes] = []
    cuda = fake_cuda.context.cupy.cuda
    cuda.driver = SimpleNamespace(CUDADriverError=DriverError)
    cuda.function = SimpleNamespace(Module=lambda: SimpleNamespace(load=loaded.append, get_function=get_function))
    language, parameters = CUDALanguage(), ("buffer", "buffer", "int64", "int64", "float32")
    kernel = language.compile(fake_cuda.context, affine(language), "affine", parameters)
    assert kernel == ("affine", (None, None, np.int64, np.int64, np.float32))
    assert loaded[0][:4] == b"\x7fELF"
    with pytest.raises(CompileError, match="no_entry"):
        language.compile(fake_cuda.context, affine(language), "no_entry", parameters)
