"""Time every kernel that can run an operator on a place, side by side."""

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
from fluidlite.cli.op_docs import forward_of
from fluidlite.compiler.kernel_runs import prepared, run_kernel
from fluidlite.compiler.policy import policy as user_policy
from fluidlite.compiler.selection.choice import Choice
from fluidlite.compiler.selection.kernel_candidates import Candidate, candidates
from fluidlite.conformance.cases import Case
from fluidlite.conformance.op_harness import OneOperator, run
from fluidlite.conformance.samples import Sample, samples_of
from fluidlite.geometry import convolutions_of, gemms_of
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.program.decompose import key_of
from fluidlite.program.kernel_io import IO
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import OpDef
from fluidlite.program.operator import Operator
from fluidlite.program.registry import ops
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec

RANDOM = (1, 2, 3, 4)
MAX_RUNS = 1000


@dataclass(frozen=True)
class Timing:
    """How long a kernel takes.

    ``seconds``: of each run.
    ``nbytes``: inputs that it reads and outputs that it writes.
    ``flops``: multiplications and additions of a product or a convolution; 0 where they are not known.
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
    """A candidate, and how long it took.

    ``timing``: None if it cannot run the call, or failed.
    ``error``: what came up when it ran.
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
    """Time every kernel of an operator, or of a gradient operator, on a place.

    ``op``: an operator's type.
    ``samples``: which of the operator's samples; all of them if empty, the first one where ``dims`` are given.
    ``dims``: by slot; dims instead of a sample's: its numbers are repeated, so that indices stay valid.
    ``dtype``: what floating inputs are cast to; else the first one that the sample names.
    ``attrs``: attributes instead of the sample's.
    ``seconds``: how long to time each kernel.
    ``progress``: called with a text before each kernel.
    Raises FluidError: the operator has no samples, or none of that name; the place cannot be used; dims do not fit.
    """
    unit = devices.unit(place)
    definition = ops.get(op)
    forward = forward_of(definition) or definition
    chosen = _samples(forward, samples, dims or {})
    found: list[Bench] = []
    for sample in chosen:
        changed = _changed(forward, sample, dims or {}, attrs or {})
        one = sample_program(Case(forward, changed, sample.name, dtype or sample.dtypes[0]))
        inferred = [each for each in one.program.global_block().ops if each.definition.infer is not None]
        for operator, (type, call) in zip(inferred, program_calls(one), strict=True):
            if type != op:
                continue
            made = Bench(unit.place, call.at(unit.place), sample.name or "sample")
            values = _values(one, operator)
            for candidate in candidates(call, unit.place, user_policy()):
                if progress is not None:
                    progress(f"{made.sample}: {candidate.how} {candidate.name}")
                made.results.append(_timed(candidate, made.call, values, unit.place, seconds))
            found.append(made)
            break
    if not found:
        raise FluidError(f"no sample of operator {forward.type!r} makes {op!r}")
    return found


def _samples(op: OpDef, names: Sequence[str], dims: Mapping[str, Sequence[int]]) -> list[Sample]:
    every = [sample for sample in samples_of(op.type) if all(np.size(a) for a in _arrays(sample))]
    if not every:
        raise FluidError(f"operator {op.type!r} has no samples to time")
    for name in names:
        if name not in [sample.name for sample in every]:
            known = ", ".join(dict.fromkeys(sample.name or "sample" for sample in every))
            raise FluidError(f"operator {op.type!r} has no sample {name!r}; it has {known}")
    chosen = [sample for sample in every if not names or sample.name in names]
    return chosen[:1] if dims and not names else chosen


def _arrays(sample: Sample) -> list[Any]:
    return [a for value in sample.inputs.values() for a in (value if isinstance(value, (list, tuple)) else [value])]


def _changed(op: OpDef, sample: Sample, dims: Mapping[str, Sequence[int]], attrs: Mapping[str, Any]) -> Sample:
    for slot in dims:
        if slot not in sample.inputs:
            raise FluidError(
                f"operator {op.type!r}: the sample has no input {slot!r}; it has {', '.join(sample.inputs)}"
            )
    inputs = {slot: _resized(value, dims.get(slot)) for slot, value in sample.inputs.items()}
    return replace(sample, inputs=inputs, attrs={**sample.attrs, **attrs}, lod={} if dims else sample.lod)


def _resized(value: Any, dims: Sequence[int] | None) -> Any:
    if dims is None:
        return value
    if isinstance(value, (list, tuple)):
        return [np.resize(np.asarray(array), tuple(dims)) for array in value]
    return np.resize(np.asarray(value), tuple(dims))


def _values(one: OneOperator, op: Operator) -> dict[str, list[Any]]:
    """What the inputs of an operator of a program hold, by slot: what is fed, or computed on the host before it."""
    block = one.program.global_block()
    computed = {
        name for names in op.inputs.values() for name in names if name not in one.feed and name not in one.state
    }
    fetched = [block.var(name) for name in sorted(computed)]
    results = run(one, devices.host(), fetched, "interpreted") if fetched else []
    known = {**one.feed, **one.state, **{v.name: r for v, r in zip(fetched, results, strict=True)}}
    return {slot: [known[name] for name in names] for slot, names in op.inputs.items()}


def _placed(values: Mapping[str, list[Any]], call: Call, place: Place) -> list[Tensor]:
    """Tensors of the inputs on the place, in the call's order."""
    found = []
    for slot, specs in call.ins.items():
        for spec, value in zip(specs, values[slot], strict=True):
            array = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
            if dtype_name(array.dtype) in ALL_FLOATS and dtype_name(array.dtype) != spec.dtype:
                array = array.astype(NUMPY[spec.dtype])
            declared = call.op.input(slot)
            where = devices.host() if declared is not None and declared.on_host else place
            found.append(Tensor().set(array, where, [list(level) for level in spec.lod] or None))
    return found


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
    for _ in range(2):  # compiles, and fills caches
        step()
    context.wait()
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < 3 or (time.perf_counter() < end and len(found) < MAX_RUNS):
        start = time.perf_counter()
        step()
        context.wait()
        found.append(time.perf_counter() - start)
    return tuple(found)


def _stepper(choice: Choice, call: Call, inputs: list[Tensor], context: Context) -> Callable[[], None]:
    """What runs a choice once, on memory that stays."""
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
            slots.setdefault(key_of(value), Tensor.of(spec, context.place))
        tensors = [slots[key_of(v)] for v in (*part.ins, *part.outs)]
        made = tensors[len(part.ins) :]
        launches.append(_launcher(part_choice, part.call.at(context.place), tensors, made, context))

    def step() -> None:
        for launch in launches:
            launch()

    return step


def _specs(call: Call) -> list[Spec]:
    return [spec for specs in call.outs.values() for spec in specs]


def _launcher(
    choice: Choice, call: Call, tensors: list[Tensor], outputs: list[Tensor], context: Context
) -> Callable[[], None]:
    kernel_run = prepared(choice, call, context)
    nbytes = kernel_run.workspace
    workspace = Tensor.of(Spec.of((nbytes,), "uint8"), context.place) if nbytes else None
    if workspace is not None:
        workspace.allocate(context)

    def launch() -> None:
        run_kernel(kernel_run, context, IO(call, tensors, context, 0, RANDOM, workspace), outputs)

    return launch


def _traffic(call: Call) -> int:
    """Bytes of the inputs that are read and of the outputs."""
    read = sum(
        spec.nbytes
        for slot, specs in call.ins.items()
        if (declared := call.op.input(slot)) is None or not declared.unread
        for spec in specs
    )
    return read + sum(spec.nbytes for spec in _specs(call) if spec.nbytes > 0)


def flops_of(call: Call) -> int:
    """Multiplications and additions of a product or a convolution; 0 for other operators."""
    type = call.op.type.removesuffix("_grad")
    if type in ("matmul", "mul"):
        return sum(2 * gemm.m * gemm.n * gemm.k * prod(gemm.batch) for gemm in gemms_of(call))
    if type in ("conv2d", "conv3d", "depthwise_conv2d", "conv2d_transpose", "conv3d_transpose"):
        return sum(
            2 * c.images * c.groups * c.channels * c.filters * c.taps * prod(c.counts) for c in convolutions_of(call)
        )
    return 0
