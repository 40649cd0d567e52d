"""Every kernel in CUDA C, generated or written in a kernel language, compiles with NVRTC. No GPU is needed.

A device of host bytes has CUDA's language: launching packs the arguments and computes nothing, and what is read is
zeros. The samples of all operators, and their gradients, are run on it; what they give is not looked at.

A text costs NVRTC 40 ms alone, and 4 ms as one of many without optimisation, which neither reads nor refuses a text:
those that a test asks for are compiled together when it ends, each in a namespace of its own.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from operator_checks import PAIRWISE, QUARTERS, first_of_each, shared

import fluidlite as fluid
from fluidlite.codegen.language_kernel import KernelLanguageGenerator
from fluidlite.conformance.check import operators_with_samples
from fluidlite.conformance.reference import Oracle
from fluidlite.conformance.samples import reference_of, samples_of
from fluidlite.devices.cuda import language as language_module
from fluidlite.devices.cuda.language import CUDALanguage, _scalar, nvrtc_compile
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_registry import devices
from fluidlite.platform.guarded_queue import GuardedQueue
from fluidlite.plugin import AllocatorBase, CompileError, ContextBase, DeviceBase, DeviceInfo, Span, numpy_dtype
from fluidlite.program.kernel_registry import Kernel, kernels
from fluidlite.program.op_call import Call
from fluidlite.program.registry import ops
from fluidlite.program.rules import GradRule
from fluidlite.testing import Check, ConformanceError, checks

ARCHITECTURE = "compute_80"
PLACE = fluid.Place("nvrtc")
C_NAME = 'extern "C" '


class Allocator(AllocatorBase):
    def allocate(self, nbytes: int) -> Any:
        return np.zeros(nbytes, np.uint8)

    def release(self, handle: Any) -> None:
        return None


class Context(ContextBase):
    blank = False
    """Whether zeros are read, whatever was written."""

    def copy_in(self, dst: Span, src: memoryview) -> None:
        dst.handle[dst.offset : dst.offset + dst.nbytes] = np.frombuffer(src, np.uint8)

    def copy_out(self, dst: memoryview, src: Span) -> None:
        host = np.frombuffer(dst, np.uint8)
        # no kernel runs: what is there may be no number, and no size
        host[:] = 0 if self.blank else src.handle[src.offset : src.offset + src.nbytes]

    def wait(self) -> None:
        return None


Text = tuple[str, str, int]
"""A source, the kernel that is launched, and how many arguments it is given."""


def compile_text(text: Text) -> None:
    """Compile one as it is, as a GPU's context does."""
    source, entry, _ = text
    _check_parameters(nvrtc_compile(source, ARCHITECTURE).decode(), re.escape(entry), text)


def compile_texts(texts: Sequence[Text]) -> None:
    """Compile all at once and, if they are refused, each alone, so that the error is that of the one that is wrong.

    No text sees another: each has a namespace, and what it defines for the preprocessor ends with it.
    """
    joined = []
    for i, (source, _, _) in enumerate(texts):
        undone = "".join(f"#undef {name}\n" for name in re.findall(r"^\s*#\s*define (\w+)", source, re.M))
        joined.append(f"namespace t{i} {{\n{source.replace(C_NAME, '')}\n}}\n{undone}")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(language_module, "OPTIONS", (*language_module.OPTIONS, "--device-debug"))
            ptx = language_module._nvrtc("".join(joined), ARCHITECTURE).decode()
        for i, text in enumerate(texts):
            space, entry = f"t{i}", text[1]
            _check_parameters(ptx, rf"_ZN{len(space)}{space}{len(entry)}{entry}E\w*", text)
    except CompileError:
        for text in texts:
            compile_text(text)


def _check_parameters(ptx: str, name: str, text: Text) -> None:
    """Hold the parameters of the entry of this name, a pattern, against the arguments."""
    source, entry, expected = text
    found = re.search(rf"\.visible \.entry {name}\((.*?)\)", ptx, re.S)
    count = found[1].count(".param") if found else 0
    if count != expected:
        raise CompileError(f"{entry} has {count} parameters; expected {expected}", source)


class KernelLanguage(CUDALanguage):
    """CUDA's, which compiles for a model that need not be there."""

    chain = None  # type: ignore[assignment]  # a graph is captured from a stream, and there is none

    def __init__(self) -> None:
        self.texts: dict[Text, bool] = {}
        """All that was asked for, and whether it is compiled."""
        self.launches = 0
        self.prepared: set[str] = set()
        """Operators whose sources were compiled."""

    def compile(self, context: Any, source: str, entry: str, parameters: tuple[str, ...]) -> Any:
        self.texts.setdefault((source, entry, len(parameters)), False)
        return tuple(_scalar(name) for name in parameters)

    def compile_asked(self) -> None:
        """Compile what was asked for since this was called."""
        new = [text for text, done in self.texts.items() if not done]
        self.texts.update(dict.fromkeys(new, True))
        if new:
            compile_texts(new)

    def launch(self, context: Any, kernel: Any, items: int, args: Sequence[Any], group: int | None = None) -> None:
        for kind, value in zip(kernel, args, strict=True):
            if kind is not None:
                kind(value)
        self.launches += 1


class Device(DeviceBase):
    kind = "nvrtc"

    def __init__(self) -> None:
        self._language = KernelLanguage()

    def probe(self) -> int:
        return 1

    def info(self, index: int) -> DeviceInfo:
        return DeviceInfo(name="CUDA C without a GPU")

    def allocator(self, index: int) -> Allocator:
        return Allocator()

    def context(self, index: int, queue: int) -> Context:
        return Context(self.place(index))

    def language(self, index: int) -> KernelLanguage:
        return self._language


@pytest.fixture
def language(nvrtc: KernelLanguage) -> Iterator[KernelLanguage]:
    """The language, whose texts that a test asked for are compiled when it ends."""
    yield nvrtc
    nvrtc.compile_asked()


@pytest.fixture(scope="module")
def nvrtc() -> Iterator[KernelLanguage]:
    reason = "CUDA C is compiled by CuPy and nvidia-cuda-nvrtc (the extra cuda-check), which are not installed"
    library = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason=reason)
    try:
        library.getVersion()
    except (RuntimeError, OSError, ImportError) as exc:  # CuPy is there without NVRTC's library
        pytest.skip(f"NVRTC cannot be loaded: {exc}")
    fluid.places()
    device = Device()
    devices.add(device, __file__)
    before = fluid.get_fallback()
    fluid.set_fallback("error")
    get_context(PLACE)  # which looks whether the device keeps what is written
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Context, "blank", True)
        patch.setattr("fluidlite.conformance.check.compare", lambda *args: None)  # nothing was computed
        patch.setattr("fluidlite.compiler.kernel_checks._checked_margins", lambda *args: contextlib.nullcontext())
        patch.setattr(Oracle, "gradients", zeros)
        compile_each_text(patch)
        note_what_is_prepared(patch, device._language.prepared)
        yield device._language
    fluid.set_fallback(before)
    devices.remove(device)


def zeros(oracle: Oracle) -> dict[str, list[np.ndarray[Any, Any]]]:
    """Gradients by their dims alone."""
    return {slot: [np.zeros(array.shape) for array in oracle.inputs[slot]] for slot in oracle.case.sample.grads}


def compile_each_text(patch: pytest.MonkeyPatch) -> None:
    """Compile those of equal forms, too: an operator's text is seen, whichever operator was first."""
    compiled = GuardedQueue.compile

    def compile(self: GuardedQueue, source: str, entry: str, parameters: tuple[str, ...], form: object = None) -> Any:
        return compiled(self, source, entry, parameters)

    patch.setattr(GuardedQueue, "compile", compile)


def note_what_is_prepared(patch: pytest.MonkeyPatch, prepared: set[str]) -> None:
    """Note each call for which a kernel in C, written or generated, is prepared."""
    written, generated = Kernel.prepare, KernelLanguageGenerator.prepare

    def prepare(self: Kernel, call: Call, context: Any) -> Any:
        if "language" in self.places:
            prepared.add(call.op.type)
        return written(self, call, context)

    def generate(self: KernelLanguageGenerator, call: Call, context: Any) -> Any:
        prepared.add(call.op.type)
        return generated(self, call, context)

    patch.setattr(Kernel, "prepare", prepare)
    patch.setattr(KernelLanguageGenerator, "prepare", generate)


def with_a_source() -> set[str]:
    """The operators, gradient operators too, that have a kernel in C or an expression."""
    written = {kernel.op for kernel in kernels if "language" in kernel.places and not kernel.written_for}
    return {op.type for op in ops if op.type in written or op.scalar is not None}


RANDOM = sorted(type for type in with_a_source() if ops.get(type).random and reference_of(type) is None)


def with_a_check(operator: str) -> set[str]:
    """The operators that an operator's checks run: itself, and its gradient operator."""
    rule = ops.get(operator).grad
    if not any(sample.grads for sample in samples_of(operator)):
        return {operator}
    return {operator, rule.type if isinstance(rule, GradRule) else f"{operator}_grad"}


MINE: dict[str, list[Check]] = {}
"""By operator: what OpenCL and LLVM compute by the same texts in a quarter of the samples, and in every dtype."""
for each in dict.fromkeys((*first_of_each(PAIRWISE, dtypes=True), *shared(PAIRWISE, QUARTERS["nvrtc"]))):
    MINE.setdefault(each.operator, []).append(each)


@pytest.mark.slow
@pytest.mark.parametrize("operator", operators_with_samples())
def test_every_operator_compiles(language: KernelLanguage, operator: str) -> None:
    """In samples of it and all of their dtypes, its gradient operators too."""
    launches, refused = language.launches, {}
    for check in MINE[operator]:
        try:
            check(PLACE)
        except ConformanceError:
            pass  # dims that depend on values
        except fluid.FluidError as exc:
            refused[check.id] = f"{type(exc).__name__}: {exc}"
    assert refused == {}
    mine = with_a_source() & with_a_check(operator)
    assert mine <= language.prepared
    assert language.launches > launches or not mine


@pytest.mark.parametrize("operator", RANDOM)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "int64"])
def test_random_numbers_compile(language: KernelLanguage, operator: str, dtype: str) -> None:
    """They have no reference, and so no samples."""
    op = ops.get(operator)
    if dtype.startswith("int") != (operator == "randint"):
        pytest.skip("integers are drawn by randint alone")
    program = fluid.Program()
    block = program.global_block()
    given = {}
    if op.input("Input") is not None:
        given["Input"] = block.create_var("like", (2, 3), "float32", is_data=True)
    attrs = {"shape": [2, 3], "dtype": dtype, "seed": 7, "low": 0, "high": 9}
    known = {name: value for name, value in attrs.items() if op.attr(name) is not None}
    out = block.create_var("out")
    block.append_op(operator, given, {"Out": out}, known)
    feed = {"like": np.zeros((2, 3), "float32")} if given else {}
    fluid.Executor(PLACE).run(program, feed, [out])
    assert operator in language.prepared


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_products_with_epilogues_compile(language: KernelLanguage, dtype: str) -> None:
    """A bias and an activation, a term for each batch, and an update with momentum."""
    layers = fluid.layers
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        x, mask = layers.data("x", [4, 9, 6], dtype=dtype), layers.data("mask", [9, 9], False, dtype)
        hidden = layers.fc(x, 33, num_flatten_dims=3, act="tanh")
        scores = layers.elementwise_add(layers.matmul(hidden, hidden, transpose_y=True), mask)
        loss = layers.mean(layers.relu(scores))
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    executor, scope = fluid.Executor(PLACE, mode="compiled"), fluid.Scope()
    executor.run(startup, scope=scope)
    feed = {"x": np.zeros((2, 4, 9, 6), numpy_dtype(dtype)), "mask": np.zeros((9, 9), numpy_dtype(dtype))}
    executor.run(main, feed, [loss], scope=scope)
    ran = {line.op.type for line in executor.explain_last().plan.lines}
    assert {"fused.mul_add_tanh", "fused.matmul_momentum"} <= ran and any("matmul_add_relu" in each for each in ran)
    made = "".join(source for source, _, _ in language.texts)
    loops = {each for each in ran if f"loops_{each.replace('.', '_')}_" in made}
    assert ran & (language.prepared | loops) >= {each for each in ran if each.startswith("fused.")}


def test_no_operator_is_left_out() -> None:
    """Each operator with a source has samples, is the gradient of one, or draws random numbers."""
    covered = {type for operator in operators_with_samples() for type in with_a_check(operator)}
    covered |= set(RANDOM)
    assert with_a_source() <= covered


def test_a_source_that_is_wrong_is_refused(language: KernelLanguage) -> None:
    words = {**language.keywords, "real": language.types["float32"]}
    source = "{prologue}\n{kernel} f({buffer} {real} *x, int items) {{ {each} {{ x[gid] = NAN; }} }}".format(**words)
    assert language.compile(None, source, "f", ("buffer", "int32")) == (None, np.int32)
    good = (source, "f", 2)
    compile_texts([good, (source.replace("= NAN", "= INFINITY"), "f", 2)])
    with pytest.raises(CompileError, match="2 parameters; expected 1"):
        compile_texts([good, (source, "f", 1)])
    with pytest.raises(CompileError, match="g has 0 parameters; expected 2"):
        compile_texts([good, (source, "g", 2)])
    for wrong in (source.replace("= NAN", "= no_such_name"), source.replace(language.keywords["prologue"], "")):
        with pytest.raises(CompileError, match=r"(?s)NVRTC refuses .*(no_such_name|NAN)") as refused:
            compile_texts([good, (wrong, "f", 2), good])
        assert refused.value.source == wrong
    alone = source.replace("= NAN", "= two()")
    helper = f"{language.keywords['function']} int two() {{ return 2; }}\n{alone}"
    compile_texts([(helper, "f", 2)])
    with pytest.raises(CompileError, match="two"):
        compile_texts([(helper, "f", 2), (alone, "f", 2)])


def test_written_sources_compile(language: KernelLanguage, tmp_path: Path) -> None:
    """What ``Executor.write_sources`` writes, heads included, is CUDA C."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.layers.data("x", [8])
        loss = fluid.layers.mean(fluid.layers.gelu(fluid.layers.fc(x, 4)))
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    exe, scope = fluid.Executor(PLACE, mode="compiled", codegen="cuda"), fluid.Scope()
    exe.run(startup, scope=scope)
    exe.run(main, {"x": np.zeros((3, 8), "float32")}, [loss], scope=scope)
    written = [path for path in exe.write_sources(tmp_path) if path.suffix == ".cu"]
    assert any("gelu" in path.name for path in written)
    for path in written:
        text = path.read_text(encoding="utf-8")
        assert text.startswith("// kernel ") and "test_cuda_sources.py:" in text
        assert f".visible .entry {path.stem[4:]}(" in nvrtc_compile(text, ARCHITECTURE).decode()


EXPRESSIONS = [
    op.type for op in map(ops.get, operators_with_samples()) if op.expression is not None and op.scalar is None
]


CHECKED_STATE = ("auc",)
"""They check an index, and their outputs are state: loops refuse to write over operands before the check is known."""


STEPPED = ("cudnn_lstm", "gru", "lstm", "lstmp")
"""Their loops are those of a step, an operator without a name."""


@pytest.fixture(scope="module")
def loop_kernels(nvrtc: KernelLanguage, load_plugin: Callable[[str, str], None]) -> None:
    """The device has the nests of loops as kernels."""
    load_plugin("loops", "loop_kernels")


@pytest.fixture
def loops(loop_kernels: None, language: KernelLanguage) -> KernelLanguage:
    return language


@pytest.mark.slow
@pytest.mark.parametrize("operator", EXPRESSIONS)
def test_the_loops_of_every_expression_compile(loops: KernelLanguage, operator: str) -> None:
    """Its first sample, and the gradients of the first that has them."""
    before = len(loops.texts)
    mine = [check for check in checks([operator]) if check.id.endswith(":float32]")] or checks([operator])
    for gradient in (False, True):
        check = next((check for check in mine if (".grad[" in check.id) is gradient), None)
        if check is not None:
            with contextlib.suppress(ConformanceError):  # dims that depend on values
                check(PLACE)
    made = "".join(source for source, _, _ in loops.texts)  # by what it is a part of, perhaps
    if operator in STEPPED:
        assert len(loops.texts) > before
    else:
        assert f"loops_{operator}_" in made or ops.get(operator).must_alias or operator in CHECKED_STATE
