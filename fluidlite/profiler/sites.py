"""Sites: the identity of a launch in a profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fluidlite.compiler.executable.linker import ErrorGuard, StateStore
from fluidlite.compiler.executable.packed_state import PackedState
from fluidlite.compiler.frame import Frame
from fluidlite.compiler.ir.graph_nodes import GraphOp
from fluidlite.compiler.planning.plan import Launch, Move, Step
from fluidlite.platform.context import Context
from fluidlite.program.operator import EMPTY, FUSED_OPERATORS

OPERATOR, CONTROL, TRANSFER, CHECK = "operator", "control flow", "transfer", "error check"
STORE, PACKING = "store", "packing"
"""Kinds of sites."""


@dataclass(frozen=True, eq=False)
class Site:
    """The origin of a launch in a plan.

    ``kind``: "operator", "control flow" (it runs sub-blocks or calls the host), "transfer" (a copy between places),
    "error check" (for deferred errors before a write of state), "store" (a copy of a result into state) or "packing"
    (of state that was written since the last run, for kernels that read packed copies of it).
    ``name``: the operator's type, or source and target of a copy.
    ``kernel``: the kind and the owner of the kernel.
    ``context``: the queue.
    ``nbytes``: bytes of all operands and results; 0 if their dims are unknown before the run.
    ``made_of``: operators that passes fused into this one.
    ``output``: the first variable that it writes.
    """

    kind: str
    name: str
    kernel: str
    place: str
    context: Context
    nbytes: int
    line: str = ""
    made_of: tuple[str, ...] = ()
    output: str = ""


def site_of(owner: Step, item: Any, frame: Frame) -> Site:
    """Return the site of an action of an executable, or of a step of a plan (which is its own owner)."""
    if isinstance(item, PackedState):  # of the whole plan: its owner is the step beside it
        context = frame.contexts[frame.plan.place]
        return Site(PACKING, "packed state", "", str(context.place), context, 0)
    if isinstance(owner, Move):
        return _move(owner, frame)
    line, output = _line(owner.op), next((name for name in owner.op.output_arg_names if name != EMPTY), "")
    if not isinstance(owner, Launch):
        context = frame.contexts[frame.plan.place]
        return Site(CONTROL, owner.op.type, "runs on the host", str(context.place), context, 0, line, (), output)
    context = frame.contexts[owner.choice.place]
    place = str(context.place)
    if isinstance(item, ErrorGuard):
        return Site(CHECK, "error check", "", place, context, 0, line)
    if isinstance(item, StateStore):
        nbytes = sum(max(out.spec.nbytes, 0) for out in owner.outs if out.state)
        return Site(STORE, "store of state", "", place, context, nbytes, line)
    specs = [*owner.in_specs, *(out.spec for out in owner.outs)]
    nbytes = sum(max(spec.nbytes, 0) for spec in specs)
    made_of = tuple(owner.op.hints.get(FUSED_OPERATORS, ()))
    kernel = "a view" if owner.skip else f"{owner.choice.how}: {owner.choice.text}"
    return Site(OPERATOR, owner.call.op.type, kernel, place, context, nbytes, line, made_of, output)


def _move(step: Move, frame: Frame) -> Site:
    target, source = frame.contexts[step.target], frame.contexts.get(step.source)
    waits = target.array is not None and target.array.eager
    context = source if waits and source is not None else target  # a copy to the host goes through the device's queue
    name, nbytes = f"{step.why} {step.source} to {step.target}", max(step.spec.nbytes, 0)
    return Site(TRANSFER, name, "", str(context.place), context, nbytes, output=step.name)


def _line(op: GraphOp) -> str:
    return str(op.line) if op.line is not None else ""
