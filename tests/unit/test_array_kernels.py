"""Every array kernel, and the CPU's plain ones, on their operators' samples over four namespaces.

They are NumPy, NumPy as a GPU's library behaves (nothing may be read early), NumPy without ``out=``,
and array-api-strict, which has the standard's functions only.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import array_api_strict
import numpy as np
import pytest
from grouped import grouped

from fluidlite.base.dtypes import ALL_FLOATS, HALVES, NUMPY, dtype_name
from fluidlite.base.errors import KernelNotFoundError, OutOfRangeError, RegistryError
from fluidlite.conformance.samples import Sample, becomes_exact, inputs_in, reference_of, samples_of
from fluidlite.devices.cpu import CPUContext, CPUDevice, NumPyArrays
from fluidlite.expr.calls import has_steps
from fluidlite.kernels import opaque
from fluidlite.operators.math import Functor
from fluidlite.platform.array_namespace import ArrayBase
from fluidlite.platform.context import Context
from fluidlite.platform.device import DeviceInfo
from fluidlite.platform.device_memory import Span
from fluidlite.platform.place import Place
from fluidlite.program.codegen_registry import generators
from fluidlite.program.kernel_registry import Kernel, kernels_of
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD, OpDef
from fluidlite.program.registry import ops
from fluidlite.program.rules import GradRule
from fluidlite.tensor.tensor_spec import Spec, specs_of

Array = np.ndarray[Any, Any]
FORWARD = (
    "accuracy", "concat", "crf_decoding", "crop", "crop_tensor", "cross_entropy", "expand", "expand_as",
    "fill_constant", "fill_constant_batch_size_like", "flip", "gather", "linear_chain_crf", "lookup_table", "matmul",
    "maxout", "mean", "mul", "multiplex", "one_hot", "pad", "pad2d", "pad_constant_like", "reduce_max", "reduce_mean",
    "reduce_min", "reduce_sum", "reverse", "roll", "slice", "softmax", "softmax_with_cross_entropy", "split", "stack",
    "strided_slice", "sum", "top_k", "transpose", "transpose2", "tril_triu", "unbind", "unstack",
)  # fmt: skip
TOLERANCE = {"float64": 1e-10, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def _kernels() -> dict[str, Kernel]:
    found: dict[str, Kernel] = {}
    opaque.register_kernels(lambda module: found.update({kernel.op: kernel for kernel in kernels_of(module)}))
    return found


KERNELS = _kernels()


class Late(NumPyArrays):
    """NumPy as a device's library: values are not read on the way."""

    eager = False


class Bare(Late):
    """Without ``out=`` and without functions beyond the standard."""

    out = False

    def extra(self, name: str) -> Any:
        return None


class Strict(ArrayBase):
    """array-api-strict over host memory."""

    xp = array_api_strict

    def wrap(self, span: Span, dims: tuple[int, ...], dtype: str, strides: Any) -> Any:
        return array_api_strict.asarray(NumPyArrays().wrap(span, dims, dtype, strides), copy=False)


NAMESPACES = {"numpy": NumPyArrays, "late": Late, "bare": Bare, "strict": Strict}


def make_context(namespace: str) -> Context:
    place, device = Place("cpu", 0), CPUDevice()
    unit: Any = SimpleNamespace(
        place=place, device=device, info=DeviceInfo("test", host=True), array=NAMESPACES[namespace](), language=None,
        lost=None, raise_if_lost=lambda: None,
    )  # fmt: skip
    return Context(unit, CPUContext(place))


class Buffers:
    """The io of one run: inputs as given, outputs of any content."""

    def __init__(self, call: Call, context: Context, inputs: Mapping[str, list[Array]]) -> None:
        self.call, self.op_id, self.workspace, self.random = call, 4, None, (0, 0, 0, 0)
        self._arrays: dict[tuple[str, int], Any] = {}
        self.host: dict[tuple[str, int], Array] = {}
        for slot, specs in (*call.ins.items(), *call.outs.items()):
            for i, spec in enumerate(specs):
                flat = np.full(spec.nbytes, 0xA5, np.uint8)
                view = np.ndarray(spec.dims, NUMPY[spec.dtype], flat)
                if slot in inputs:
                    view[...] = inputs[slot][i]
                self.host[slot, i] = view
                self._arrays[slot, i] = context.array.wrap(Span(flat, 0, spec.nbytes), spec.dims, spec.dtype, None)

    def has(self, slot: str) -> bool:
        return self.call.has(slot)

    def array(self, slot: str, i: int = 0) -> Any:
        declared = self.call.op.input(slot)
        assert declared is None or not declared.unread, f"{slot} is metadata only: its bytes are not there"
        if declared is not None and declared.on_host:
            return self.host[slot, i]
        return self._arrays[slot, i]

    def arrays(self, slot: str) -> list[Any]:
        return [self.array(slot, i) for i in range(self.call.count(slot))]


def numbers(op: OpDef, slot: str, array: Array) -> tuple[float, ...] | None:
    """What a call knows of a tensor that is taken as metadata."""
    declared = op.input(slot)
    return tuple(array.reshape(-1).tolist()) if declared is not None and declared.value else None


def make_call(
    type: str, inputs: Mapping[str, list[Array]], attrs: Mapping[str, Any], want: Any = None, lod: Any = None
) -> Call:
    op = ops.get(type)
    lods = lod or {}

    def spec(slot: str, a: Array) -> Spec:
        return Spec.of(a.shape, dtype_name(a.dtype), lod=lods.get(slot, ()), value=numbers(op, slot, a))

    ins = {slot: tuple(spec(slot, a) for a in arrays) for slot, arrays in inputs.items()}
    clean = {attr.name: attr.check(attrs.get(attr.name, attr.default)) for attr in op.attrs}
    wanted = {slot.name: () for slot in op.outputs if want is None or slot.name in want}
    call = Call(op, ins, wanted, clean, Place("cpu"))
    assert op.infer is not None
    inferred = op.infer(call)
    outs = {slot: specs_of(specs) for slot, specs in inferred.items() if want is None or slot in want}
    return call.with_outs(outs)


def execute(call: Call, context: Context, inputs: Mapping[str, list[Array]]) -> dict[str, list[Array]]:
    io: Any = Buffers(call, context, inputs)
    if all(spec.size == 0 for specs in call.outs.values() for spec in specs):
        return {slot: [io.host[slot, i] for i in range(len(specs))] for slot, specs in call.outs.items()}
    prepare = KERNELS[call.op.type].prepare if call.op.expression is None else generators["array"].prepare
    run = prepare(call, context)
    with np.errstate(all="ignore"):
        assert run(context, io) is None
    failed = context.end_status(context.begin_status())
    if failed is not None:
        raise OutOfRangeError(f"operator {failed[0]}: index {failed[1]} of {failed[2]}")
    return {slot: [io.host[slot, i] for i in range(len(specs))] for slot, specs in call.outs.items()}


def lists(values: Mapping[str, Any]) -> dict[str, list[Array]]:
    return {slot: [np.asarray(a) for a in (v if isinstance(v, list) else [v])] for slot, v in values.items()}


def wide(inputs: Mapping[str, list[Array]], sample: Sample) -> dict[str, Any]:
    exact = {
        slot: [a.astype(np.float64) if dtype_name(a.dtype) in ALL_FLOATS else a for a in arrays]
        for slot, arrays in inputs.items()
    }
    return {slot: arrays if isinstance(sample.inputs[slot], list) else arrays[0] for slot, arrays in exact.items()}


def reference(call: Call, inputs: Mapping[str, Any]) -> dict[str, list[Array]]:
    function = reference_of(call.op.type)
    assert function is not None
    if "lod" in inspect.signature(function).parameters:
        return lists(function(inputs, dict(call.attrs), {slot: call.lod(slot) for slot in call.ins}))
    return lists(function(inputs, dict(call.attrs)))


def cases() -> list[Any]:
    """A case for each operator and namespace, of its samples in their dtypes."""
    found: dict[tuple[str, str], list[tuple[Sample, str]]] = {}
    for type in FORWARD:
        if type not in ops:
            continue
        for sample in samples_of(type):
            for dtype in sample.dtypes:
                kernel = KERNELS.get(type)  # none where the operator is an expression
                for namespace in NAMESPACES if kernel is None or "cpu" not in kernel.places else ("numpy",):
                    if namespace == "strict" and {dtype, sample.attrs.get("dtype")} & set(HALVES):
                        continue  # the standard has no half types
                    found.setdefault((type, namespace), []).append((sample, dtype))
    return [pytest.param(*key, samples, id="-".join(key)) for key, samples in found.items()]


def check(got: Mapping[str, list[Array]], want: Mapping[str, list[Array]], dtype: str, scale: float = 1.0) -> None:
    for slot, arrays in got.items():
        if slot not in want:
            continue
        assert len(arrays) == len(want[slot]), slot
        for a, b in zip(arrays, want[slot], strict=True):
            assert a.shape == b.shape, slot
            if dtype_name(a.dtype) in ALL_FLOATS:
                tolerance = TOLERANCE[dtype if dtype in TOLERANCE else "float32"] * scale
                np.testing.assert_allclose(a.astype(np.float64), b, rtol=tolerance, atol=tolerance, err_msg=slot)
            else:
                np.testing.assert_array_equal(a, b, err_msg=slot)


@pytest.mark.parametrize(("type", "namespace", "samples"), cases())
def test_samples(type: str, namespace: str, samples: list[tuple[Sample, str]]) -> None:
    for sample, dtype in samples:
        try:
            check_sample(type, sample, dtype, namespace)
        except Exception as error:
            error.add_note(f"in sample {sample.name!r}, in {dtype}")
            raise


def check_sample(type: str, sample: Sample, dtype: str, namespace: str) -> None:
    inputs = inputs_in(sample, dtype)
    call = make_call(type, inputs, sample.attrs, sample.outputs or None, sample.lod)
    context = make_context(namespace)
    check(execute(call, context, inputs), reference(call, wide(inputs, sample)), dtype)
    if sample.grads and not becomes_exact(sample, dtype):
        check_gradients(call, context, sample, inputs, dtype)


def expressions() -> Iterator[Any]:
    for op in sorted(ops, key=lambda op: op.type):
        type, of_scalars = op.type, op.scalar is not None and op.scalar.supports is None
        if op.expression is None or of_scalars or type.endswith("_grad") or reference_of(type) is None:
            continue
        yield (type,)


def _in_array_calls(type: str, sample: Sample) -> bool:
    """Whether array calls of an expression compute a sample: no function of scalars, and not step by step."""
    call = make_call(type, lists(sample.inputs), sample.attrs, sample.outputs or None, sample.lod)
    return call.of_tensors and not has_steps(call)


@grouped(("type",), expressions(), by=("type",), inner=("sample", samples_of))
def test_sample_of_an_expression(type: str, sample: Sample) -> None:
    """Array calls of expressions; ``tests/places/test_without_llvm.py`` has those of gradients."""
    if not _in_array_calls(type, sample):
        pytest.skip("a function of scalars, or steps, compute it")
    check_sample(type, replace(sample, grads=()), "float32", "numpy")


class Gradients(NamedTuple):
    """What a gradient kernel gives, and what it was given for the outputs."""

    found: dict[str, list[Array]]
    weights: dict[str, list[Array]]


def gradients(call: Call, context: Context, sample: Sample, inputs: dict[str, list[Array]]) -> Gradients | None:
    """Run the gradient kernel of a call with random gradients of the outputs; None if there is none."""
    rule = call.op.grad
    if not isinstance(rule, GradRule) or (rule.type not in KERNELS and ops.get(rule.type).expression is None):
        return None
    grad_op = ops.get(rule.type)
    slots = [slot for slot in sample.grads if slot + GRAD not in grad_op.decomposed]  # kernels do not know the others
    random, outputs = np.random.default_rng(5), execute(call, context, inputs)
    given: dict[str, list[Array]] = {}
    weights: dict[str, list[Array]] = {}
    for name in rule.read_for(slots):
        if name in grad_op.decomposed:
            continue
        if name.endswith(GRAD):
            slot = name.removesuffix(GRAD)
            weights[slot] = [np.asarray(random.uniform(0.5, 1.5, a.shape), a.dtype) for a in outputs[slot]]
            given[name] = weights[slot]
        elif name in inputs or name in outputs:
            given[name] = inputs[name] if name in inputs else outputs[name]
    attrs = {attr.name: call.attrs[attr.name] for attr in grad_op.attrs}
    made = make_call(rule.type, given, attrs, {slot + GRAD for slot in slots}, sample.lod)
    found = execute(made, context, given)
    return Gradients({slot: found[slot + GRAD] for slot in slots}, weights)


def check_gradients(call: Call, context: Context, sample: Sample, inputs: dict[str, list[Array]], dtype: str) -> None:
    """Hold the gradient kernel against central differences of the reference, along one random direction a slot."""
    made = gradients(call, context, sample, inputs)
    if made is None:
        return
    exact, random = wide(inputs, sample), np.random.default_rng(6)

    def objective(changed: dict[str, Any]) -> float:
        found = reference(call, changed)
        return sum(float(np.sum(a * w)) for s, ws in made.weights.items() for a, w in zip(found[s], ws, strict=True))

    for slot, several in made.found.items():
        for i, got in enumerate(several):
            direction = random.uniform(-1, 1, got.shape)
            ends = []
            for step in (1e-6, -1e-6):
                moved = [a.copy() for a in (exact[slot] if isinstance(exact[slot], list) else [exact[slot]])]
                moved[i] = moved[i] + step * direction
                ends.append(objective({**exact, slot: moved if isinstance(exact[slot], list) else moved[0]}))
            slope = (ends[0] - ends[1]) / 2e-6
            size = float(np.abs(got.astype(np.float64) * direction).sum()) + 1e-3
            error = abs(float(np.sum(got.astype(np.float64) * direction)) - slope)
            assert error <= max(TOLERANCE[dtype], 1e-7) * 4 * size, (slot, i)


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_index_out_of_range(namespace: str) -> None:
    context = make_context(namespace)
    inputs = lists({"X": np.zeros((3, 2), "float32"), "Index": np.array([0, 5, 1], "int64")})
    call = make_call("gather", inputs, {})
    with pytest.raises(OutOfRangeError, match="5"):
        execute(call, context, inputs)
    labels = lists({"Logits": np.zeros((2, 3), "float32"), "Label": np.array([[1], [-1]], "int64")})
    with pytest.raises(OutOfRangeError, match="-1"):
        execute(make_call("softmax_with_cross_entropy", labels, {}), context, labels)
    good = lists({"X": np.ones((3, 2), "float32"), "Index": np.array([2], "int64")})
    assert execute(make_call("gather", good, {}), context, good)["Out"][0].tolist() == [[1, 1]]


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8"])
@pytest.mark.parametrize("k", [1, 2, 3, 40])
def test_top_k_ties_take_the_lower_index(namespace: str, dtype: str, k: int) -> None:
    if "top_k" not in ops:
        pytest.skip("no definition")
    x = np.random.default_rng(k).integers(0, 4, (9, 40)).astype(dtype)
    if dtype == "int32":
        x[0, 3] = np.iinfo(dtype).min
    call = make_call("top_k", {"X": [x]}, {"k": k})
    got = execute(call, make_context(namespace), {"X": [x]})
    for row, values, indices in zip(x.tolist(), got["Out"][0].tolist(), got["Indices"][0].tolist(), strict=True):
        order = sorted(range(40), key=lambda i: (-row[i], i))[:k]
        assert indices == order
        assert values == [row[i] for i in order]


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("k", [1, 2, 12])
def test_top_k_ranks_nan_last(namespace: str, k: int) -> None:
    x = np.arange(64, dtype="float32").reshape(2, 32)
    x[0, 31] = x[1, 0] = np.nan
    got = execute(make_call("top_k", {"X": [x]}, {"k": k}), make_context(namespace), {"X": [x]})["Indices"][0]
    assert got.tolist() == [list(range(30, 30 - k, -1)), list(range(31, 31 - k, -1))]


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_argsort_of_a_long_line(namespace: str) -> None:
    """A value and its index are sorted as one word: the index of a long line leaves the fewest bits to the value."""
    x = np.random.default_rng(8).normal(size=(1, 70_000)).astype("float32")
    x[0, :5_000] = np.round(x[0, :5_000])
    call = make_call("argsort", {"X": [x]}, {})
    got = execute(call, make_context(namespace), {"X": [x]})
    order = np.argsort(x, axis=1, kind="stable")
    np.testing.assert_array_equal(got["Indices"][0], order)
    np.testing.assert_array_equal(got["Out"][0], np.take_along_axis(x, order, 1))


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("ignored", [-100, 2])
def test_ignored_rows_cost_nothing(namespace: str, ignored: int) -> None:
    context, attrs = make_context(namespace), {"ignore_index": ignored}
    logits = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    inputs = lists({"Logits": logits, "Label": np.array([[1], [ignored], [0], [ignored], [1]])})
    got = execute(make_call("softmax_with_cross_entropy", inputs, attrs), context, inputs)
    assert [bool(v) for v in got["Loss"][0][:, 0]] == [True, False, True, False, True]
    given = {"Softmax": got["Softmax"], "Label": inputs["Label"], "Loss@GRAD": [np.ones((5, 1), "float32")]}
    grad = execute(make_call("softmax_with_cross_entropy_grad", given, attrs), context, given)["Logits@GRAD"][0]
    assert [bool(row.any()) for row in grad] == [True, False, True, False, True]


def test_large_logits_stay_finite() -> None:
    inputs = lists({"Logits": np.array([[1e4, 0, -1e4]], "float32"), "Label": np.array([[1]])})
    got = execute(make_call("softmax_with_cross_entropy", inputs, {}), make_context("numpy"), inputs)
    assert got["Loss"][0].item() == 1e4


def test_crf_takes_forbidden_transitions() -> None:
    """Scores that no float32 exponential holds: tag 0 may not follow tag 1."""
    transition = np.zeros((4, 2), "float32")
    transition[3, 0] = -1e4
    emission = np.array([[0, 200], [0, -200], [300, 0]], "float32")
    lod = dict.fromkeys(("Emission", "Label"), ((0, 3),))
    inputs = lists({"Emission": emission, "Transition": transition, "Label": np.zeros((3, 1), "int64")})
    context = make_context("numpy")
    cost = execute(make_call("linear_chain_crf", inputs, {}, None, lod), context, inputs)
    assert cost["LogLikelihood"][0].item() == pytest.approx(0, abs=1e-6)
    given = {**inputs, **{slot: cost[slot] for slot in ("Alpha", "EmissionExps", "TransitionExps")}}
    given["LogLikelihood@GRAD"] = [np.ones((1, 1), "float32")]
    grads = execute(make_call("linear_chain_crf_grad", given, {}, None, lod), context, given)
    assert all(np.isfinite(grad).all() for arrays in grads.values() for grad in arrays)
    del inputs["Label"]
    path = execute(make_call("crf_decoding", inputs, {}, None, lod), context, inputs)["ViterbiPath"][0]
    assert path.ravel().tolist() == [0, 0, 0]


def test_functor_chooses_place_then_capability_and_names_what_there_is() -> None:
    functor = Functor("norm", "norm(context) -> str")
    functor.implement("array")(lambda context: "array")
    functor.implement("language")(lambda context: "language")
    context: Any = SimpleNamespace(place=Place("cpu"), array=None, language=object())
    assert functor.on(context)(context) == "language"
    context.array = object()
    assert functor.on(context)(context) == "array"
    assert functor.on(context, "language")(context) == "language"
    functor.implement("cpu")(lambda context: "cpu")
    assert functor.on(context)(context) == "cpu"
    context.place, context.array, context.language = Place("acme"), None, None
    with pytest.raises(KernelNotFoundError, match=r"acme:0.*array, cpu, language"):
        functor.on(context)

    def other(context: Any) -> str:
        return "other"

    with pytest.raises(RegistryError, match="two implementations for 'cpu'"):
        functor.implement("cpu")(other)
