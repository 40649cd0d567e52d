"""Every kernel in CUDA C, generated or written in dialect words, compiles with NVRTC. No GPU is needed.

A device of host bytes has CUDA's dialect: compiling is NVRTC's, launching packs the arguments and computes nothing,
and what is read is zeros. All samples of all operators, and their gradients, are run on it; what they give is not
looked at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.codegen.dialect_kernel import DialectGenerator
from fluidlite.conformance.check import operators_with_samples
from fluidlite.conformance.samples import reference_of, samples_of
from fluidlite.framework.call import Call
from fluidlite.framework.kernels import Kernel, kernels
from fluidlite.framework.opdef import GradRule
from fluidlite.framework.registry import ops
from fluidlite.platform.cuda.dialect import CUDADialect, _scalar, nvrtc_compile
from fluidlite.platform.devices import devices
from fluidlite.platform.pool import get_context
from fluidlite.plugin import AllocatorBase, CompileError, ContextBase, DeviceBase, DeviceInfo, Span, numpy_dtype
from fluidlite.testing import ConformanceError, checks

ARCHITECTURE = "compute_80"
PLACE = fluid.Place("nvrtc")


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


class Dialect(CUDADialect):
    """CUDA's, which compiles for a model that need not be there."""

    chain = None  # type: ignore[assignment]  # a graph is captured from a stream, and there is none

    def __init__(self) -> None:
        self.sources: set[str] = set()
        self.launches = 0
        self.prepared: set[str] = set()
        """Operators whose sources were compiled."""

    def compile(self, context: Any, source: str, entry: str, parameters: tuple[str, ...]) -> Any:
        ptx = nvrtc_compile(source, ARCHITECTURE).decode()
        head = ptx.partition(f".visible .entry {entry}(")[2].partition(")")[0]
        if head.count(".param") != len(parameters):
            raise CompileError(f"{entry} has {head.count('.param')} parameters; expected {len(parameters)}", source)
        self.sources.add(source)
        return tuple(_scalar(name) for name in parameters)

    def launch(self, context: Any, kernel: Any, items: int, args: Sequence[Any], group: int | None = None) -> None:
        for kind, value in zip(kernel, args, strict=True):
            if kind is not None:
                kind(value)
        self.launches += 1


class Device(DeviceBase):
    kind = "nvrtc"

    def __init__(self) -> None:
        self._dialect = Dialect()

    def probe(self) -> int:
        return 1

    def info(self, index: int) -> DeviceInfo:
        return DeviceInfo(name="CUDA C without a GPU")

    def allocator(self, index: int) -> Allocator:
        return Allocator()

    def context(self, index: int, queue: int) -> Context:
        return Context(self.place(index))

    def dialect(self, index: int) -> Dialect:
        return self._dialect


@pytest.fixture(scope="module")
def dialect() -> Iterator[Dialect]:
    reason = "CUDA C is compiled by CuPy and nvidia-cuda-nvrtc (the extra cuda-check), which are not installed"
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason=reason)
    try:
        nvrtc.getVersion()
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
        note_what_is_prepared(patch, device._dialect.prepared)
        yield device._dialect
    fluid.set_fallback(before)
    devices.remove(device)


def note_what_is_prepared(patch: pytest.MonkeyPatch, prepared: set[str]) -> None:
    """Note each call for which a dialect kernel, written or generated, is prepared."""
    written, generated = Kernel.prepare, DialectGenerator.prepare

    def prepare(self: Kernel, call: Call, context: Any) -> Any:
        if "dialect" in self.places:
            prepared.add(call.op.type)
        return written(self, call, context)

    def generate(self: DialectGenerator, call: Call, context: Any) -> Any:
        prepared.add(call.op.type)
        return generated(self, call, context)

    patch.setattr(Kernel, "prepare", prepare)
    patch.setattr(DialectGenerator, "prepare", generate)


def with_a_source() -> set[str]:
    """The operators, gradient operators too, that have a dialect kernel or an expression."""
    written = {kernel.op for kernel in kernels if "dialect" in kernel.places}
    return {op.type for op in ops if op.type in written or op.scalar is not None}


RANDOM = sorted(type for type in with_a_source() if ops.get(type).random and reference_of(type) is None)


def with_a_check(operator: str) -> set[str]:
    """The operators that an operator's checks run: itself, and its gradient operator."""
    rule = ops.get(operator).grad
    if not any(sample.grads for sample in samples_of(operator)):
        return {operator}
    return {operator, rule.type if isinstance(rule, GradRule) else f"{operator}_grad"}


@pytest.mark.slow
@pytest.mark.parametrize("operator", operators_with_samples())
def test_every_operator_compiles(dialect: Dialect, operator: str) -> None:
    """In the dtypes of all samples, its gradient operators too."""
    launches, refused = dialect.launches, {}
    for check in checks([operator]):
        try:
            check(PLACE)
        except ConformanceError:
            pass  # dims that depend on values
        except fluid.FluidError as exc:
            refused[check.id] = f"{type(exc).__name__}: {exc}"
    assert refused == {}
    mine = with_a_source() & with_a_check(operator)
    assert mine <= dialect.prepared
    assert dialect.launches > launches or not mine


@pytest.mark.parametrize("operator", RANDOM)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "int64"])
def test_random_numbers_compile(dialect: Dialect, operator: str, dtype: str) -> None:
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
    assert operator in dialect.prepared


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_products_with_epilogues_compile(dialect: Dialect, dtype: str) -> None:
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
    assert ran & dialect.prepared >= {each for each in ran if each.startswith("fused.")}


def test_no_operator_is_left_out() -> None:
    """Each operator with a source has samples, is the gradient of one, or draws random numbers."""
    covered = {type for operator in operators_with_samples() for type in with_a_check(operator)}
    covered |= set(RANDOM)
    assert with_a_source() <= covered


def test_a_source_that_is_wrong_is_refused(dialect: Dialect) -> None:
    words = {**dialect.words, "real": dialect.types["float32"]}
    source = "{prologue}\n{kernel} f({buffer} {real} *x, int items) {{ {each} {{ x[gid] = 1; }} }}".format(**words)
    assert dialect.compile(None, source, "f", ("buffer", "int32")) == (None, np.int32)
    with pytest.raises(CompileError, match="2 parameters; expected 1"):
        dialect.compile(None, source, "f", ("buffer",))
    with pytest.raises(CompileError, match="no_such_name"):
        dialect.compile(None, source.replace("= 1", "= no_such_name"), "f", ("buffer", "int32"))


def test_written_sources_compile(dialect: Dialect, tmp_path: Path) -> None:
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


@pytest.fixture(scope="module")
def loops(dialect: Dialect, load_plugin: Callable[[str, str], None]) -> Dialect:
    """The device with the nests of loops as kernels."""
    load_plugin("loops", "loop_kernels")
    return dialect


@pytest.mark.slow
@pytest.mark.parametrize("operator", EXPRESSIONS)
def test_the_loops_of_every_expression_compile(loops: Dialect, operator: str) -> None:
    """Its first sample, and the gradients of the first that has them."""
    before = set(loops.sources)
    mine = [check for check in checks([operator]) if check.id.endswith(":float32]")] or checks([operator])
    for gradient in (False, True):
        check = next((check for check in mine if (".grad[" in check.id) is gradient), None)
        if check is not None:
            with contextlib.suppress(ConformanceError):  # dims that depend on values
                check(PLACE)
    made = "".join(loops.sources - before)
    assert f"loops_{operator}_" in made or ops.get(operator).must_alias
