"""The kernel matrix: the origin of the kernel of each operator and gradient operator on each place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from fluidlite.base.dtypes import dtype_name
from fluidlite.base.errors import FluidError
from fluidlite.compiler.policy import KERNEL_KINDS, Policy
from fluidlite.compiler.selection.kernel_selection import select_kernel
from fluidlite.conformance.cases import Case
from fluidlite.conformance.op_harness import OperatorProgram, build, feed_output_gradients
from fluidlite.conformance.reference import Oracle
from fluidlite.conformance.samples import Sample, reference_of, samples_of
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.program.backward import gradients
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import OpDef
from fluidlite.program.registry import ops
from fluidlite.program.rules import GradRule
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec, specs_of

CONTROL = "control"
"""An operator with a ``run(frame, op)`` of its own, or a marker of feeds and fetches."""
UNKNOWN = "?"
"""An operator without samples."""
WAYS = (*KERNEL_KINDS, CONTROL, "none", UNKNOWN)
"""All origins of kernels."""
_START = ".start"


@dataclass
class Cell:
    """One operator on one place, over all of its sample calls.

    ``hows``: number of sample calls by origin of their kernel.
    ``libraries``: the kernels' libraries, by origin.
    ``refused``: by candidate, the reasons why it was refused in calls that fell back or have no kernel.
    """

    hows: Counter[str] = field(default_factory=Counter)
    libraries: dict[str, set[str]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def how(self) -> str:
        """The origin of most calls' kernels."""
        return self.hows.most_common(1)[0][0] if self.hows else UNKNOWN

    @property
    def text(self) -> str:
        """The origins with their libraries, such as ``native blas`` or ``generic plain (fallback: 2 of 9)``."""
        if not self.hows:
            return UNKNOWN
        minor = [f"{self.named(how)}: {n} of {self.hows.total()}" for how, n in self.hows.most_common()[1:]]
        return self.named(self.how) + (f" ({', '.join(minor)})" if minor else "")

    def named(self, how: str) -> str:
        return " ".join((how, *sorted(self.libraries.get(how, set()) - {""})))


@dataclass
class Row:
    """One operator type; ``cells`` by place."""

    op: str
    cells: dict[Place, Cell]


def sample_calls(op: OpDef) -> dict[str, list[Call]]:
    """Calls of an operator and of its gradient operator, by type: one for each sample."""
    calls: dict[str, list[Call]] = {}
    for harness in _programs(op):
        for type, call in program_calls(harness):
            if type in _types(op):
                calls.setdefault(type, []).append(call)
    return calls


def _types(op: OpDef) -> tuple[str, str]:
    """The types of an operator and of its gradient operator."""
    return op.type, op.grad.type if isinstance(op.grad, GradRule) else f"{op.type}_grad"


def gradient_types(op: OpDef) -> list[str]:
    """The types of the operators of an operator's gradient, in the order in which they occur in its samples."""
    if op.grad is None:
        return []
    if isinstance(op.grad, GradRule):
        return [op.grad.type]
    types = dict.fromkeys(item.type for harness in _programs(op) for item in harness.program.global_block().ops[1:])
    return [type for type in types if type != "assign_like"]  # it belongs to the start of backward in samples


def _programs(op: OpDef) -> Iterator[OperatorProgram]:
    """Yield for each sample a program with the operator and its gradient."""
    for sample in samples_of(op.type) or _plain_sample(op):
        try:
            yield sample_program(Case(op, sample, sample.name, sample.dtypes[0]))
        except FluidError:
            continue


def sample_program(case: Case) -> OperatorProgram:
    """Build the program of a case's operator and the operators of its gradient."""
    harness = build(case, _counts(case))
    graded = {slot: harness.outputs[slot] for slot in case.graded_outputs() if slot in harness.outputs}
    sources = [variable for slot in case.sample.grads for variable in harness.inputs[slot]]
    if any(graded.values()) and sources:
        zeros = {slot: [np.zeros([max(d, 1) for d in v.shape]) for v in some] for slot, some in graded.items()}
        targets, starts = feed_output_gradients(harness, zeros)
        for target, start in zip(targets, starts, strict=True):
            start.declare(target._spec())
        gradients(targets, sources, starts)
    return harness


def _plain_sample(op: OpDef) -> list[Sample]:
    """A sample for an operator without samples that needs no input, such as one that draws random numbers."""
    if any(not slot.dispensable for slot in op.inputs) or op.run is not None:
        return []
    required = {attr.name: [2, 3] for attr in op.attrs if attr.required and attr.type == "ints"}
    return [Sample({}, required)]


def _counts(case: Case) -> dict[str, int]:
    if not any(slot.duplicable for slot in case.op.outputs) or reference_of(case.op.type) is None:
        return dict.fromkeys(case.requested_outputs(), 1)
    return Oracle(case).counts()


def program_calls(harness: OperatorProgram) -> Iterator[tuple[str, Call]]:
    """The calls of a program with the exact dims and the values of metadata slots, as in a run."""
    values_by_name = {**harness.feed, **harness.state}
    specs = {name: _spec(value) for name, value in values_by_name.items() if not name.endswith(_START)}
    for op in harness.program.global_block().ops:
        infer = op.definition.infer
        if infer is None:
            continue
        ins = {
            slot: tuple(specs.get(n.removesuffix(_START)) or op.block.var(n)._spec() for n in names)
            for slot, names in op.inputs.items()
        }
        for declared_slot in op.definition.inputs:
            name = declared_slot.name
            if declared_slot.value and name in ins:
                values = [tuple(np.asarray(harness.feed[n]).reshape(-1).tolist()) for n in op.inputs[name]]
                ins[name] = tuple(s.with_(value=v) for s, v in zip(ins[name], values, strict=True))
        declared = {slot: tuple(op.block.var(n)._spec() for n in names) for slot, names in op.outputs.items()}
        results = infer(Call(op.definition, ins, declared, op.attrs))
        outs = {slot: specs_of(results[slot]) for slot in declared}
        for slot, names in op.outputs.items():
            specs.update(zip(names, outs[slot], strict=True))
        yield op.type, Call(op.definition, ins, outs, op.attrs, None, op.type.endswith("_grad"))


def _spec(value: Any) -> Spec:
    if isinstance(value, Tensor) and value.spec is not None:
        return value.spec
    array = np.asarray(value)
    return Spec.of(array.shape, dtype_name(array.dtype))


def kernel_matrix(places: Sequence[PlaceLike] | None = None, patterns: Iterable[str] = ()) -> list[Row]:
    """Compute the kernel matrix.

    ``places``: the columns; default: every usable place.
    ``patterns``: operator types to show, with ``*`` and ``?``; all if empty.
    """
    columns = [devices.unit(p).place for p in (places if places is not None else devices.places())]
    selected = tuple(patterns)

    def is_shown(type: str) -> bool:
        return not selected or any(fnmatchcase(type, pattern) for pattern in selected)

    calls: dict[str, list[Call]] = {}
    for op in ops:
        calls.setdefault(op.type, [])
        if any(map(is_shown, _types(op))):
            for type, type_calls in sample_calls(op).items():
                calls.setdefault(type, []).extend(type_calls)
    return [Row(type, {p: _cell(type, calls[type], p) for p in columns}) for type in sorted(calls) if is_shown(type)]


def _cell(type: str, calls: list[Call], place: Place) -> Cell:
    cell = Cell()
    if ops.get(type).run is not None or ops.get(type).marker:
        cell.hows[CONTROL] += 1
        return cell
    for call in calls:
        try:
            choice = select_kernel(call, place, Policy("allow"))
        except FluidError as exc:
            cell.hows["none"] += 1
            cell.refused["all"] = str(exc)
            continue
        cell.hows[choice.how] += 1
        libraries = {part.library for part in choice.part_choices} or {choice.library}
        cell.libraries.setdefault(choice.how, set()).update(libraries)
        if choice.how == "fallback":
            cell.refused.update(choice.refused)
    return cell


def totals(rows: Sequence[Row], place: Place) -> dict[str, int]:
    """The number of operators by origin of their kernel on a place (that of most calls)."""
    counts = Counter(row.cells[place].how for row in rows)
    return {how: counts[how] for how in WAYS if counts[how]}
