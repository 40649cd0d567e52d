"""Benchmark all kernels that can run an operator on a place."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, NUMPY, dtype_name
from fluidlite.base.errors import FluidError
from fluidlite.cli.kernel_matrix import program_calls, sample_program
from fluidlite.cli.model_runs import check_fits
from fluidlite.cli.op_docs import forward_of
from fluidlite.compiler.kernel_runs import prepare_kernel, run_kernel
from fluidlite.compiler.policy import policy as user_policy
from fluidlite.compiler.selection.choice import Choice
from fluidlite.compiler.selection.kernel_candidates import Candidate, candidates
from fluidlite.conformance.cases import Case
from fluidlite.conformance.op_harness import OperatorProgram, run
from fluidlite.conformance.samples import Sample, samples_of
from fluidlite.geometry import convolutions_of, gemms_of
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.program.decompose import value_key
from fluidlite.program.kernel_io import IO
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import OpDef
from fluidlite.program.operator import Operator
from fluidlite.program.registry import ops
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec

RANDOM_STATE = (1, 2, 3, 4)
"""Seed and offset words of kernels that draw random numbers."""
MAX_RUNS = 1000
"""Maximum number of timed runs of a kernel."""


@dataclass(frozen=True)
class Timing:
    """The timing of a kernel.

    ``seconds``: the time of each run.
    ``nbytes``: bytes of the inputs that it reads and the outputs that it writes.
    ``flops``: multiplications and additions of a matmul or a convolution; 0 if unknown.
    """

    seconds: tuple[float, ...]
    nbytes: int
    flops: int

    @property
    def minimum(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass
class Result:
    """A candidate and its timing.

    ``timing``: None if it cannot run the call, or failed.
    ``error``: the error of its run.
    """

    candidate: Candidate
    timing: Timing | None = None
    error: str = ""


@dataclass
class Bench:
    """The candidates for one call of an operator on a place."""

    place: Place
    call: Call
    sample: str
    results: list[Result] = field(default_factory=list)


def bench(
    op: str,
    place: PlaceLike = "cpu",
    samples: Sequence[str] = (),
    dims: Mapping[str, Sequence[int]] | None = None,
    dtype: str | None = None,
    attrs: Mapping[str, Any] | None = None,
    seconds: float = 0.3,
    progress: Callable[[str], None] | None = None,
) -> list[Bench]:
    """Time all kernels of an operator, or of a gradient operator, on a place.

    ``op``: an operator's type.
    ``samples``: names of the operator's samples; all if empty, or the first one if there are ``dims``.
    ``dims``: by slot, replacements of a sample's dims: its values are repeated, so that indices stay valid.
    ``dtype``: the dtype of floating inputs; default: the first one of the sample.
    ``attrs``: attributes instead of the sample's.
    ``seconds``: time limit for each kernel.
    ``progress``: called with a text before each kernel.
    Raises FluidError if the operator has no such sample, there is no such dtype, the place cannot be used, or dims do
    not fit.
    """
    unit = devices.unit(place)
    dtype = dtype_name(dtype) if dtype is not None else None
    definition = ops.get(op)
    forward = forward_of(definition) or definition
    selected = _samples(forward, samples, dims or {})
    benches: list[Bench] = []
    for sample in selected:
        changed = _changed(forward, sample, dims or {}, attrs or {})
        harness = sample_program(Case(forward, changed, sample.name, dtype or sample.dtypes[0]))
        inferred = [each for each in harness.program.global_block().ops if each.definition.infer is not None]
        for operator, (type, call) in zip(inferred, program_calls(harness), strict=True):
            if type != op:
                continue
            result = Bench(unit.place, call.at(unit.place), sample.name or "sample")
            values = _values(harness, operator)
            for candidate in candidates(call, unit.place, user_policy()):
                if progress is not None:
                    progress(f"{result.sample}: {candidate.how} {candidate.name}")
                result.results.append(_timed(candidate, result.call, values, unit.place, seconds))
            benches.append(result)
            break
    if not benches:
        raise FluidError(f"no sample of operator {forward.type!r} makes {op!r}")
    return benches


def _samples(op: OpDef, names: Sequence[str], dims: Mapping[str, Sequence[int]]) -> list[Sample]:
    available = [sample for sample in samples_of(op.type) if all(np.size(a) for a in _arrays(sample))]
    if not available:
        raise FluidError(f"operator {op.type!r} has no samples to time")
    for name in names:
        if name not in [sample.name for sample in available]:
            names_text = ", ".join(dict.fromkeys(sample.name or "sample" for sample in available))
            raise FluidError(f"operator {op.type!r} has no sample {name!r}; it has {names_text}")
    selected = [sample for sample in available if not names or sample.name in names]
    return selected[:1] if dims and not names else selected


def _arrays(sample: Sample) -> list[Any]:
    return [a for value in sample.inputs.values() for a in (value if isinstance(value, (list, tuple)) else [value])]


def _changed(op: OpDef, sample: Sample, dims: Mapping[str, Sequence[int]], attrs: Mapping[str, Any]) -> Sample:
    for slot in dims:
        if slot not in sample.inputs:
            raise FluidError(
                f"operator {op.type!r}: the sample has no input {slot!r}; it has {', '.join(sample.inputs)}"
            )
    inputs = {slot: _resized(slot, value, dims.get(slot)) for slot, value in sample.inputs.items()}
    return replace(sample, inputs=inputs, attrs={**sample.attrs, **attrs}, lod={} if dims else sample.lod)


def _resized(slot: str, value: Any, dims: Sequence[int] | None) -> Any:
    if dims is None:
        return value
    if isinstance(value, (list, tuple)):
        return [_resized(slot, array, dims) for array in value]
    array = np.asarray(value)
    check_fits(f"input {slot!r}", dims, array.dtype)
    return np.resize(array, tuple(dims))


def _values(one: OperatorProgram, op: Operator) -> dict[str, list[Any]]:
    """The values of an operator's inputs in a program, by slot: fed, or computed on the host."""
    block = one.program.global_block()
    computed = {
        name for names in op.inputs.values() for name in names if name not in one.feed and name not in one.state
    }
    fetched = [block.var(name) for name in sorted(computed)]
    results = run(one, devices.host(), fetched, "interpreted") if fetched else []
    values = {**one.feed, **one.state, **{v.name: r for v, r in zip(fetched, results, strict=True)}}
    return {slot: [values[name] for name in names] for slot, names in op.inputs.items()}


def _placed(values: Mapping[str, list[Any]], call: Call, place: Place) -> list[Tensor]:
    """Tensors of the inputs on the place, in the call's order."""
    tensors = []
    for slot, specs in call.ins.items():
        for spec, value in zip(specs, values[slot], strict=True):
            array = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
            if dtype_name(array.dtype) in ALL_FLOATS and dtype_name(array.dtype) != spec.dtype:
                array = array.astype(NUMPY[spec.dtype])
            declared = call.op.input(slot)
            where = devices.host() if declared is not None and declared.on_host else place
            tensors.append(Tensor().set(array, where, [list(level) for level in spec.lod] or None))
    return tensors


def _timed(candidate: Candidate, call: Call, values: Mapping[str, list[Any]], place: Place, seconds: float) -> Result:
    if candidate.choice is None:
        return Result(candidate)
    context = get_context(place)
    try:
        with context.activate():
            inputs = _placed(values, call, place)
            step = _stepper(candidate.choice, call, inputs, context)
            return Result(candidate, Timing(_times(step, context, seconds), _traffic(call), flops_of(call)))
    except Exception as exc:
        return Result(candidate, error=f"{type(exc).__name__}: {exc}")


def _times(step: Callable[[], None], context: Context, seconds: float) -> tuple[float, ...]:
    for _ in range(2):  # compile, and warm the caches
        step()
    context.wait()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or (time.perf_counter() < end and len(times) < MAX_RUNS):
        start = time.perf_counter()
        step()
        context.wait()
        times.append(time.perf_counter() - start)
    return tuple(times)


def _stepper(choice: Choice, call: Call, inputs: list[Tensor], context: Context) -> Callable[[], None]:
    """Return a function that runs a choice once, on the same memory at each call."""
    outputs = [Tensor.of(spec, context.place) for specs in call.outs.values() for spec in specs]
    if not choice.parts:
        return _launcher(choice, call, [*inputs, *outputs], outputs, context)
    slots: dict[tuple[str, str, int], Tensor] = {}
    for role, named, tensors in (("in", call.ins, inputs), ("out", call.outs, outputs)):
        keys = [(role, slot, i) for slot, specs in named.items() for i in range(len(specs))]
        slots.update(zip(keys, tensors, strict=True))
    launches = []
    for part, part_choice in zip(choice.parts, choice.part_choices, strict=True):
        for value, spec in zip(part.outs, _specs(part.call), strict=True):
            slots.setdefault(value_key(value), Tensor.of(spec, context.place))
        tensors = [slots[value_key(v)] for v in (*part.ins, *part.outs)]
        outputs_of_part = tensors[len(part.ins) :]
        launches.append(_launcher(part_choice, part.call.at(context.place), tensors, outputs_of_part, context))

    def step() -> None:
        for launch in launches:
            launch()

    return step


def _specs(call: Call) -> list[Spec]:
    return [spec for specs in call.outs.values() for spec in specs]


def _launcher(
    choice: Choice, call: Call, tensors: list[Tensor], outputs: list[Tensor], context: Context
) -> Callable[[], None]:
    kernel_run = prepare_kernel(choice, call, context)
    nbytes = kernel_run.workspace
    workspace = Tensor.of(Spec.of((nbytes,), "uint8"), context.place) if nbytes else None
    if workspace is not None:
        workspace.allocate(context)

    def launch() -> None:
        run_kernel(kernel_run, context, IO(call, tensors, context, 0, RANDOM_STATE, workspace), outputs)

    return launch


def _traffic(call: Call) -> int:
    """Bytes of the inputs that the operator reads, and of its outputs."""
    read = sum(
        spec.nbytes
        for slot, specs in call.ins.items()
        if (declared := call.op.input(slot)) is None or not declared.unread
        for spec in specs
    )
    return read + sum(spec.nbytes for spec in _specs(call) if spec.nbytes > 0)


def flops_of(call: Call) -> int:
    """Multiplications and additions of a matmul or a convolution; 0 for other operators."""
    type = call.op.type.removesuffix("_grad")
    if type in ("matmul", "mul"):
        return sum(2 * gemm.m * gemm.n * gemm.k * prod(gemm.batch) for gemm in gemms_of(call))
    if type in ("conv2d", "conv3d", "depthwise_conv2d", "conv2d_transpose", "conv3d_transpose"):
        return sum(
            2 * c.images * c.groups * c.channels * c.filters * c.taps * prod(c.counts) for c in convolutions_of(call)
        )
    return 0
