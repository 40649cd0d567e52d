"""Hand-written kernels in three kernel languages: OpenCL C, OpenCL C without vectors, and plain C with no functions.

Operators that have none written by hand run their loops.
"""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import itertools
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from grouped import grouped

from fluidlite.base.dtypes import ALL_FLOATS, NUMPY, dtype_name
from fluidlite.base.errors import DeviceUnavailable, OutOfRangeError
from fluidlite.codegen import philox
from fluidlite.conformance.samples import Sample, inputs_in, reference_of, samples_of
from fluidlite.devices.opencl import OpenCLDevice
from fluidlite.kernels import language as plugin
from fluidlite.platform.context import Context
from fluidlite.platform.device import DeviceInfo
from fluidlite.platform.device_context import ContextBase
from fluidlite.platform.device_memory import Span
from fluidlite.platform.kernel_language import KernelLanguageBase
from fluidlite.platform.place import Place
from fluidlite.program.kernel_registry import Kernel, kernels_of
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD, OpDef
from fluidlite.program.registry import ops
from fluidlite.program.rules import GradRule
from fluidlite.render.loops.kernels import prepare
from fluidlite.tensor.tensor_spec import Spec, specs_of

Array = np.ndarray[Any, Any]
TOLERANCE = {"float64": 1e-10, "float32": 3e-5, "float16": 4e-3, "bfloat16": 3e-2}
SEVERAL = pytest.mark.timeout(900)
"""For cases of several samples: a driver builds a hundred kernels in the longest."""
SLACK = 64
"""Bytes before and after every buffer that no kernel may write."""


def _kernels(vectors: bool) -> dict[str, Kernel]:
    """Those that need vector registers, or all others."""
    found: list[Kernel] = []
    plugin.register_kernels(lambda module: found.extend(kernels_of(module)))
    return {kernel.op: kernel for kernel in found if (kernel.written_for == "registers") == vectors}


KERNELS, IN_VECTORS = _kernels(False), _kernels(True)
FORWARD = sorted(op for op in KERNELS if not op.endswith("_grad"))


# Machines: a context, and raw memory


class CLanguage(KernelLanguageBase):
    """The defaults of a kernel language: C, with the functions of the framework. Work items go round in one loop."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def compile(self, context: Any, source: str, entry: str, parameters: tuple[str, ...]) -> Any:
        name = self.folder / hashlib.sha256(source.encode()).hexdigest()[:24]
        code, library = name.with_suffix(".c"), name.with_suffix(".so")
        code.write_text(source)
        flags = ["-std=c11", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-Wall", "-Werror", "-Wno-unused"]
        subprocess.run(["cc", *flags, "-o", library, code], check=True)
        function = getattr(ctypes.CDLL(str(library)), entry)
        kinds = {"float32": ctypes.c_float, "float64": ctypes.c_double, "int64": ctypes.c_int64}
        kinds["uint32"] = ctypes.c_uint32
        function.argtypes = [ctypes.c_void_p if name == "buffer" else kinds[name] for name in parameters]
        function.restype = None
        return function

    def launch(self, context: Any, kernel: Any, items: int, args: Sequence[Any], group: int | None = None) -> None:
        kernel(*(arg.ctypes.data if isinstance(arg, np.ndarray) else arg for arg in args))


class HostContext(ContextBase):
    """Memory of the host; a handle is an array of bytes."""

    def copy_in(self, dst: Span, src: memoryview) -> None:
        dst.handle[dst.offset : dst.offset + dst.nbytes] = np.frombuffer(src, np.uint8)

    def copy_out(self, dst: memoryview, src: Span) -> None:
        np.frombuffer(dst, np.uint8)[:] = src.handle[src.offset : src.offset + src.nbytes]

    def wait(self) -> None:
        """Everything has happened already."""


class Machine:
    """A context and the memory of its device; of samples after the first those that have its ``turn``, or all."""

    def __init__(self, device: Any, raw: Any, language: Any, turn: int | None = None) -> None:
        self.turn = turn
        allocator = device.allocator(0)
        self.allocate: Callable[[int], Any] = allocator.allocate
        unit: Any = SimpleNamespace(
            place=raw.place, device=device, info=DeviceInfo("test"), array=None, language=language, lost=None,
            raise_if_lost=lambda: None,
        )  # fmt: skip
        self.context = Context(unit, raw)

    def put(self, array: Array) -> Span:
        """Copy an array to the middle of a new allocation, whose borders hold a pattern."""
        room = -(-(array.nbytes + 2 * SLACK) // 64) * 64
        host = np.full(room, 0xA5, np.uint8)
        host[SLACK : SLACK + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        handle = self.allocate(room)
        self.context.raw.copy_in(Span(handle, 0, room), host.data)
        return Span(handle, SLACK, array.nbytes)

    def get(self, span: Span, dims: Sequence[int], dtype: str) -> Array:
        """Read a span, and look at its borders."""
        room = -(-(span.nbytes + 2 * SLACK) // 64) * 64
        host = np.zeros(room, np.uint8)
        self.context.raw.copy_out(host.data, Span(span.handle, 0, room))
        self.context.raw.wait()
        assert (host[:SLACK] == 0xA5).all(), "bytes before the buffer were written"
        assert (host[SLACK + span.nbytes :] == 0xA5).all(), "bytes behind the buffer were written"
        return np.ndarray(tuple(dims), NUMPY[dtype], host.data, SLACK).copy()


@pytest.fixture(scope="module")
def opencl() -> OpenCLDevice:
    device = OpenCLDevice()
    try:
        device.probe()
    except DeviceUnavailable as exc:
        pytest.skip(str(exc))
    return device


@pytest.fixture(scope="module", params=["opencl", "opencl-arrays", "c"])
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    if request.param == "c":
        if shutil.which("cc") is None:
            pytest.skip("no C compiler is installed")
        host: Any = SimpleNamespace(allocator=lambda i: SimpleNamespace(allocate=lambda n: np.zeros(n, np.uint8)))
        return Machine(host, HostContext(Place("host")), CLanguage(tmp_path_factory.mktemp("c")), 0)
    device = request.getfixturevalue("opencl")
    language = device.language(0)
    if request.param == "opencl-arrays":
        language = type(language)(device._cl, device._devices[0])
        language.vector = language.registers = None
    return Machine(device, device.context(0, 0), language, 1 if request.param == "opencl-arrays" else None)


# Running one kernel


class Buffers:
    """The io of one run."""

    def __init__(self, call: Call, machine: Machine, inputs: Mapping[str, list[Array]], workspace: int) -> None:
        self.call, self.op_id, self.random = call, 4, (0, 0, 0, 0)
        self.spans: dict[tuple[str, int], Span] = {}
        self.host, self.machine = inputs, machine
        self.dims: dict[tuple[str, int], Sequence[int]] = {}
        for slot, specs in (*call.ins.items(), *call.outs.items()):
            for i, spec in enumerate(specs):
                if slot in inputs:
                    self.spans[slot, i] = machine.put(inputs[slot][i])
                elif spec.is_static:
                    self.resize(slot, spec.dims, i)
        scratch = machine.put(np.full(workspace, 0x5A, np.uint8)) if workspace else None
        self.workspace = SimpleNamespace(span=lambda: scratch) if workspace else None

    def resize(self, slot: str, dims: Sequence[int], i: int = 0) -> None:
        self.dims[slot, i] = tuple(dims)
        self.spans[slot, i] = self.machine.put(np.full(dims, 85, NUMPY[self.call.dtype(slot, i)]))

    def has(self, slot: str) -> bool:
        return self.call.has(slot)

    def packed(self, slot: str) -> None:
        """No form is kept of an input."""

    def span(self, slot: str, i: int = 0) -> Span:
        declared = self.call.op.input(slot)
        assert declared is None or not declared.unread, f"{slot} is metadata only: its bytes are not there"
        assert declared is None or not declared.on_host, f"{slot} is on the host"
        return self.spans[slot, i]

    def tensor(self, slot: str, i: int = 0) -> Any:
        return SimpleNamespace(numpy=lambda: self.host[slot][i])


def numbers(op: OpDef, slot: str, array: Array) -> tuple[float, ...] | None:
    """What a call knows of a tensor that is taken as metadata."""
    declared = op.input(slot)
    return tuple(array.reshape(-1).tolist()) if declared is not None and declared.value else None


def make_call(type: str, inputs: Mapping[str, list[Array]], attrs: Mapping[str, Any], want: Any, lod: Any) -> Call:
    op = ops.get(type)
    ins = {
        slot: tuple(Spec.of(a.shape, dtype_name(a.dtype), lod=lod.get(slot, ()), value=numbers(op, slot, a)) for a in v)
        for slot, v in inputs.items()
    }
    clean = {attr.name: attr.check(attrs.get(attr.name, attr.default)) for attr in op.attrs}
    call = Call(op, ins, {slot.name: () for slot in op.outputs}, clean, Place("opencl"))
    assert op.infer is not None
    inferred = op.infer(call).items()
    outs = {slot: specs_of(specs) for slot, specs in inferred}
    return call.with_outs({slot: specs for slot, specs in outs.items() if want is None or slot in want})


def _prepared(call: Call, machine: Machine) -> Any:
    """What the device would run for a call: the kernel in vectors before the other, its loops if it has neither."""
    if call.op.type not in KERNELS:
        return prepare(call, machine.context)
    both = [IN_VECTORS.get(call.op.type)] if machine.context.language.registers is not None else []
    both.append(KERNELS[call.op.type])
    refused = None
    for kernel in both:
        if kernel is not None and (kernel.dtypes is None or call.key_dtype in kernel.dtypes):
            refused = kernel.supports(call) if kernel.supports is not None else None
            if refused is None:
                return kernel.prepare(call, machine.context)
    pytest.skip(str(refused))


def execute(
    machine: Machine, type: str, inputs: Mapping[str, Any], attrs: Any = None, want: Any = None, lod: Any = None
) -> dict[str, list[Array]]:
    """Run one operator's kernel and return its outputs."""
    arrays = {slot: [np.asarray(a) for a in (v if isinstance(v, list) else [v])] for slot, v in inputs.items()}
    call = make_call(type, arrays, attrs or {}, want, lod or {})
    context: Any = machine.context
    io: Any
    if all(spec.size == 0 for specs in call.outs.values() for spec in specs):  # the framework skips it
        io = Buffers(call, machine, arrays, 0)
    else:
        run = _prepared(call, machine)
        io = Buffers(call, machine, arrays, run.workspace)
        run(context, io)
    results = {
        slot: [machine.get(io.spans[slot, i], io.dims[slot, i], spec.dtype) for i, spec in enumerate(specs)]
        for slot, specs in call.outs.items()
    }
    host = context.begin_status()
    context.wait()
    failed = context.end_status(host)
    if failed is not None:
        assert type not in KERNELS or KERNELS[type].indexes
        raise OutOfRangeError(f"operator {failed[0]}: index {failed[1]} of {failed[2]}")
    return results


def widened(value: Any) -> Any:
    if isinstance(value, list):
        return [widened(a) for a in value]
    array = np.asarray(value)
    return array.astype("float64") if dtype_name(array.dtype) in ALL_FLOATS else array


def inputs_of(sample: Sample, dtype: str) -> dict[str, Any]:
    arrays = inputs_in(sample, dtype)
    return {slot: arrays[slot] if isinstance(value, list) else arrays[slot][0] for slot, value in sample.inputs.items()}


def close(got: Array, want: Any, dtype: str, scale: float = 1.0) -> None:
    expected = np.asarray(want)
    assert got.shape == expected.shape
    if dtype_name(got.dtype) not in ALL_FLOATS:
        np.testing.assert_array_equal(got, expected)
        return
    tolerance = max(TOLERANCE[dtype_name(got.dtype)], TOLERANCE.get(dtype, 0.0)) * scale
    size = float(np.max(np.abs(expected), initial=1.0, where=np.isfinite(expected)))
    np.testing.assert_allclose(widened(got), expected, rtol=tolerance, atol=tolerance * size)


# Samples


DIFFERENTIABLE = [
    op.type for op in ops if isinstance(op.grad, GradRule) and op.grad.type in KERNELS and reference_of(op.type)
]


def reference_with_lod(op: OpDef, lod: Any) -> Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]:
    """The reference of inputs and attributes; one that takes LoD has the sample's."""
    function = reference_of(op.type)
    assert function is not None
    if "lod" not in inspect.signature(function).parameters:
        return function
    return lambda inputs, attrs: function(inputs, attrs, {slot: lod.get(slot, ()) for slot in inputs})


@dataclass(frozen=True)
class Numbered:
    """A sample, and the how manieth of an operator it is."""

    number: int
    sample: Sample

    @property
    def name(self) -> str:
        return self.sample.name or str(self.number)

    def on(self, machine: Machine) -> Sample:
        """The sample: the first runs in all languages, others in the one with vectors and in one more in turn."""
        if self.number > 0 and machine.turn not in (None, self.number % 2):
            pytest.skip("another language has its turn")
        return self.sample


def samples_in_dtypes(type: str) -> Iterator[Numbered]:
    """Each sample in float32, or its first dtype, and each other dtype in the first sample that has it."""
    seen = set[str]()
    for number, sample in enumerate(samples_of(type)):
        base = "float32" if "float32" in sample.dtypes else sample.dtypes[0]
        dtypes = tuple(dtype for dtype in sample.dtypes if dtype == base or dtype not in seen)
        yield Numbered(number, replace(sample, dtypes=dtypes))
        seen.update(sample.dtypes)


@SEVERAL
@grouped(("type",), ((type,) for type in FORWARD), by=("type",), inner=("numbered", samples_in_dtypes))
def test_values_are_the_references(machine: Machine, type: str, numbered: Numbered) -> None:
    sample = numbered.on(machine)
    attrs = {attr.name: attr.default for attr in ops.get(type).attrs}
    reference = reference_with_lod(ops.get(type), sample.lod)
    for dtype in sample.dtypes:
        inputs = inputs_of(sample, dtype)
        want = reference({slot: widened(value) for slot, value in inputs.items()}, {**attrs, **sample.attrs})
        for slot, arrays in execute(machine, type, inputs, sample.attrs, lod=sample.lod).items():
            if slot in want:
                expected = want[slot] if isinstance(want[slot], list) else [want[slot]]
                for a, b in zip(arrays, expected, strict=True):
                    close(a, b, dtype)


@SEVERAL
@grouped(
    ("type",),
    ((type,) for type in DIFFERENTIABLE),
    by=("type",),
    inner=("numbered", lambda type: [Numbered(i, x) for i, x in enumerate(x for x in samples_of(type) if x.grads)]),
)
def test_gradients_are_the_references_slopes(machine: Machine, type: str, numbered: Numbered) -> None:
    """The slope along one random direction, of the outputs weighted with random numbers."""
    op, sample = ops.get(type), numbered.on(machine)
    rule = op.grad
    assert isinstance(rule, GradRule)
    reference = reference_with_lod(op, sample.lod)
    full = {**{attr.name: attr.default for attr in op.attrs}, **sample.attrs}
    rng = np.random.default_rng(3)
    inputs = inputs_of(sample, "float64")
    outputs = execute(machine, type, inputs, sample.attrs, lod=sample.lod)
    left_out = ops.get(rule.type).decomposed  # kernels do not know these slots
    slots = [slot for slot in sample.grads if slot + GRAD not in left_out]
    reads = [name for name in rule.read_for(slots) if name not in left_out]
    weights = {
        name: [rng.standard_normal(a.shape) for a in outputs[name.removesuffix(GRAD)]]
        for name in reads
        if name.endswith(GRAD)
    }
    values = {**inputs, **outputs, **weights}
    given = {name: values[name] for name in reads if name in values}
    known = {name: value for name, value in sample.attrs.items() if ops.get(rule.type).attr(name)}
    grads = execute(machine, rule.type, given, known, [slot + GRAD for slot in slots], lod=sample.lod)

    def total(moved: Mapping[str, Any]) -> float:
        out, found = reference(moved, full), 0.0
        for name, parts in weights.items():
            value = out[name.removesuffix(GRAD)]
            values = value if isinstance(value, list) else [value]
            found += sum(float(np.sum(a * b)) for a, b in zip(values, parts, strict=True))
        return found

    for slot in slots:
        arrays = inputs[slot] if isinstance(inputs[slot], list) else [inputs[slot]]
        for i, array in enumerate(arrays):
            direction = rng.standard_normal(array.shape)

            def at(step: float, i: int = i, slot: str = slot, arrays: Any = arrays, way: Array = direction) -> float:
                moved = [a + step * way if j == i else a for j, a in enumerate(arrays)]
                return total({**inputs, slot: moved if isinstance(inputs[slot], list) else moved[0]})

            slope = (at(1e-6) - at(-1e-6)) / 2e-6
            got = float(np.sum(grads[slot + GRAD][i] * direction))
            assert abs(got - slope) <= 1e-6 * max(1.0, abs(slope))


# Products


def normal(*dims: int, dtype: str = "float32", seed: int = 0) -> Array:
    return np.random.default_rng([seed, *dims]).standard_normal(dims).astype(NUMPY[dtype])


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_products_at_every_edge_of_a_tile(machine: Machine, dtype: str) -> None:
    sizes = itertools.product((1, 7, 9), (1, 8, 16, 17, 31, 33, 70), (1, 2, 19))
    for m, n, k in sizes:
        x, y = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype)
        close(execute(machine, "mul", {"X": x, "Y": y})["Out"][0], widened(x) @ widened(y), dtype, k**0.5)


@pytest.mark.parametrize(
    ("batch", "tx", "ty"),
    [
        ((2, 3), False, False),
        ((2, 3), True, True),
        ((1, 4), False, True),
        ((1, 4), True, False),
        ((), False, False),
        ((), True, True),
    ],
)
def test_products_of_batches(machine: Machine, batch: tuple[int, ...], tx: bool, ty: bool) -> None:
    """Without a batch of its own, Y meets every matrix of X, and its gradient is summed over them."""
    x, y = normal(2, 3, 9, 5) if not batch else normal(*batch, 9, 5), normal(*batch, 5, 18)
    given = {"X": np.swapaxes(x, -1, -2) if tx else x, "Y": np.swapaxes(y, -1, -2) if ty else y}
    attrs = {"transpose_X": tx, "transpose_Y": ty, "alpha": 0.5}
    out = np.matmul(x, y) * 0.5
    close(execute(machine, "matmul", given, attrs)["Out"][0], out, "float32", 4)
    dout = normal(*out.shape)
    grads = execute(machine, "matmul_grad", {**given, "Out@GRAD": dout}, attrs)
    dx = 0.5 * np.matmul(dout, np.swapaxes(y, -1, -2))
    dy = 0.5 * np.matmul(np.swapaxes(x, -1, -2), dout)
    dy = dy if batch else dy.sum((0, 1))
    close(grads["X@GRAD"][0], np.swapaxes(dx, -1, -2) if tx else dx, "float32", 20)
    close(grads["Y@GRAD"][0], np.swapaxes(dy, -1, -2) if ty else dy, "float32", 20)


def test_another_size_compiles_nothing(machine: Machine) -> None:
    def run(rows: int) -> None:
        x, y, label = normal(rows, 40), normal(40, 36), np.zeros((rows, 1), "int64")
        execute(machine, "mul", {"X": x, "Y": y})
        execute(machine, "mul_grad", {"X": x, "Y": y, "Out@GRAD": normal(rows, 36)})
        execute(machine, "softmax_with_cross_entropy", {"Logits": x, "Label": label})
        execute(machine, "transpose2", {"X": x}, {"axis": [1, 0]})
        execute(machine, "reduce_sum", {"X": x}, {"dim": [1]})
        execute(machine, "mean", {"X": x})

    run(24)
    run(48)  # sums of more than 1,024 elements have parts
    known = len(machine.context._compiled)
    run(50)
    run(9)
    assert len(machine.context._compiled) == known


# Large ones, which take other paths than samples


@pytest.mark.parametrize(
    ("dims", "axes"),
    [((40, 1000), (0, 1)), ((40_000, 3), (0,)), ((5, 9000), (1,)), ((300, 7, 20), (0, 2)), ((2, 3, 4000, 5), (0, 2))],
)
def test_large_reductions(machine: Machine, dims: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = normal(*dims)
    exact = x.astype("float64")
    results = {
        "reduce_sum": exact.sum(axes), "reduce_mean": exact.mean(axes), "reduce_max": exact.max(axes),
        "reduce_min": exact.min(axes),
    }  # fmt: skip
    for type, want in results.items():
        got = execute(machine, type, {"X": x}, {"dim": list(axes)})["Out"][0]
        close(got, want if want.ndim else want.reshape(1), "float32", 10)
    dout = normal(*np.atleast_1d(results["reduce_max"]).shape)
    given = {"X": x, "Out": np.atleast_1d(results["reduce_max"]).astype("float32"), "Out@GRAD": dout}
    kept = [1 if axis in axes else size for axis, size in enumerate(dims)]
    chosen = x == given["Out"].reshape(kept)
    got = execute(machine, "reduce_max_grad", given, {"dim": list(axes)})["X@GRAD"][0]
    close(got, np.where(chosen, dout.reshape(kept), 0.0), "float32")


@pytest.mark.parametrize(
    ("n", "dtype"),
    [(8, "float64"), (8, "float32"), (16, "float32"), (41, "float64"), (41, "float32"), (41, "bfloat16")],
)
def test_softmax_of_rows_longer_than_a_vector(machine: Machine, n: int, dtype: str) -> None:
    x, label = normal(6, n, dtype=dtype), np.arange(6).reshape(6, 1)
    x[1, n - 1] = 60  # the greatest is in the last, shorter part
    e = np.exp(widened(x) - widened(x).max(1, keepdims=True))
    want = e / e.sum(1, keepdims=True)
    out = execute(machine, "softmax", {"X": x})["Out"][0]
    close(out, want, dtype)
    dout = normal(6, n, dtype=dtype, seed=1)
    dx = widened(out) * (widened(dout) - np.sum(widened(out) * widened(dout), 1, keepdims=True))
    close(execute(machine, "softmax_grad", {"Out": out, "Out@GRAD": dout})["X@GRAD"][0], dx, dtype)
    for slots in (("Softmax", "Loss"), ("Loss",)):
        both = execute(machine, "softmax_with_cross_entropy", {"Logits": x, "Label": label}, want=slots)
        close(both["Loss"][0], -np.log(np.take_along_axis(want, label, 1)), dtype)
        close(both.get("Softmax", [out])[0], want, dtype)


@pytest.mark.parametrize("how", ["reduce_max", "reduce_min"])
def test_nan_is_found_wherever_it_is(machine: Machine, how: str) -> None:
    for place in (0, 5, 17, 19_999):
        x = normal(1, 20_000)
        x[0, place] = np.nan
        assert np.isnan(execute(machine, how, {"X": x}, {"dim": [1]})["Out"][0]).all()
        assert np.isnan(execute(machine, how, {"X": x.reshape(-1, 4)}, {"dim": [0]})["Out"][0]).sum() == 1


@pytest.mark.parametrize(
    ("axis", "dtype"),
    [
        *((axis, "float32") for axis in itertools.permutations(range(3))),
        *(((0, 2, 1), dtype) for dtype in ("uint8", "bfloat16", "int64")),
    ],
)
def test_transposes_around_tiles(machine: Machine, axis: tuple[int, ...], dtype: str) -> None:
    for dims in ((3, 16, 32), (17, 33, 2), (40, 1, 18)):
        x = np.arange(prod(dims)).reshape(dims).astype(NUMPY[dtype])
        got = execute(machine, "transpose2", {"X": x}, {"axis": list(axis)}, ("Out",))["Out"][0]
        np.testing.assert_array_equal(got.view(np.uint8), np.ascontiguousarray(x.transpose(axis)).view(np.uint8))


def test_long_rows_are_copied_in_parts(machine: Machine) -> None:
    x = normal(6, 5000)
    index = np.array([4, 0, 5], "int64")
    np.testing.assert_array_equal(execute(machine, "gather", {"X": x, "Index": index})["Out"][0], x[index])
    whole = execute(machine, "concat", {"X": [x, x]}, {"axis": 1})["Out"][0]
    np.testing.assert_array_equal(whole, np.concatenate([x, x], 1))


def test_many_tensors_are_added_and_rounded_once(machine: Machine) -> None:
    for dtype in ("float32", "bfloat16"):
        xs = [normal(50, dtype=dtype, seed=i) for i in range(60)]
        want = np.sum([widened(x) for x in xs], 0)
        close(execute(machine, "sum", {"X": xs})["Out"][0], want, dtype, 0.3)


def test_repeated_ids_add_up_in_their_order(machine: Machine) -> None:
    ids = np.random.default_rng(0).integers(0, 30, (400, 1))
    dout = normal(400, 21)
    want = np.zeros((30, 21), "float32")
    for i, row in enumerate(ids[:, 0]):
        want[row] += dout[i]
    got = execute(machine, "lookup_table_grad", {"W": normal(30, 21), "Ids": ids, "Out@GRAD": dout})["W@GRAD"][0]
    np.testing.assert_array_equal(got, want)


def test_top_k_puts_nan_last(machine: Machine) -> None:
    x = np.array([[1, np.nan, 3, np.nan, 3, -np.inf]], "float32")
    out = execute(machine, "top_k", {"X": x}, {"k": 6})
    assert out["Indices"][0].tolist() == [[2, 4, 0, 5, 1, 3]]
    alone = execute(machine, "top_k", {"X": x}, {"k": 2}, ("Out",))
    assert alone["Out"][0].tolist() == [[3, 3]]


# Indices


@pytest.mark.parametrize("bad", [-1, 3, 2**40])
def test_an_index_out_of_range_is_recorded(machine: Machine, bad: int) -> None:
    rows = np.array([[0], [bad], [2]], "int64")
    uses: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("gather", {"X": normal(3, 4), "Index": rows}, {}),
        ("lookup_table", {"W": normal(3, 4), "Ids": rows}, {}),
        ("one_hot", {"X": rows}, {"depth": 3}),
        ("cross_entropy", {"X": abs(normal(3, 3)), "Label": rows}, {}),
        ("softmax_with_cross_entropy", {"Logits": normal(3, 3), "Label": rows}, {}),
    ]
    for type, inputs, attrs in uses:
        with pytest.raises(OutOfRangeError, match=f"operator 4: index {bad} of 3"):
            execute(machine, type, inputs, attrs)
        rows[1] = 1
        execute(machine, type, inputs, attrs)
        rows[1] = bad


def test_loss_without_softmax(machine: Machine) -> None:
    given = {"Logits": normal(5, 4), "Label": np.array([[0], [3], [1], [-100], [2]])}
    both = execute(machine, "softmax_with_cross_entropy", given)
    alone = execute(machine, "softmax_with_cross_entropy", given, want=("Loss",))
    assert set(alone) == {"Loss"}
    np.testing.assert_array_equal(alone["Loss"][0], both["Loss"][0])


def test_sampling_id_draws_the_numbers_of_the_definition(machine: Machine) -> None:
    """Of eight classes that are equally probable, the one is drawn that three bits name."""
    rows = 37
    (out,) = execute(machine, "sampling_id", {"X": np.full((rows, 8), 0.125, np.float32)}, {"min": 0.0, "max": 1.0})[
        "Out"
    ]
    words = [word for block in range(-(-rows // 4)) for word in philox.block((block, 0, 0, 0), (0, 0))]
    np.testing.assert_array_equal(np.asarray(out).reshape(-1), [word >> 29 for word in words[:rows]])
