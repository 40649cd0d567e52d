"""Liveness of the values of a plan: what each step frees or recycles, and which outputs overwrite an input in place."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

from fluidlite.compiler.planning.plan import Control, Launch, Move, Output, Plan

MIN_INPLACE_BYTES = 16384
"""Bytes of an output from which in-place update saves more time than the fast path of recycled tensors."""
min_inplace_bytes: ContextVar[int] = ContextVar("min_inplace_bytes", default=MIN_INPLACE_BYTES)
"""The bound for plans made in this context: the certificate lowers it to test in-place kernels on small samples."""


def record_liveness(plan: Plan, last_use: Mapping[str, int], inplace: bool) -> None:
    """Set ``free``, ``recycle`` and ``shares`` of each step of a complete plan.

    ``last_use``: by key the index of the last step that reads it; at least the number of steps if it is live after
    the plan.
    ``inplace``: whether outputs may overwrite inputs that end.
    """
    plan.last_use = dict(last_use)
    _assign_frees(plan, last_use)
    _assign_recycling(plan)
    if inplace:
        _overwrite_ending_inputs(plan)


def _assign_frees(plan: Plan, last_use: Mapping[str, int]) -> None:
    """Free each value at the last step that uses it; after a move, at the next step that is no move."""
    for key, index in last_use.items():
        if key in plan.state or index >= len(plan.steps):
            continue
        step = plan.steps[index]
        if isinstance(step, Move):
            index += 1
            while index < len(plan.steps) and isinstance(plan.steps[index], Move):
                index += 1
            if index >= len(plan.steps):
                continue
            step = plan.steps[index]
        assert isinstance(step, (Launch, Control))
        step.free.append(key)


def _overwrite_ending_inputs(plan: Plan) -> None:
    """Let outputs overwrite inputs that end at their operator, where definition and kernel allow it.

    Conditions: an operator of this run made the input's tensor on the same place, nothing reads it later (it would be
    recycled here), and both have equal dims and dtype.
    """
    min_bytes = min_inplace_bytes.get()
    for step in plan.steps:
        if not isinstance(step, Launch) or step.skip or step.layout_agnostic or not step.choice.inplace:
            continue
        ending = {key for key, where in step.recycle if where == step.where}
        if not ending:
            continue
        for out, slot in _alias_pairs(step):
            position = step.call.index[slot]
            key = step.ins[position]
            if out.spec.nbytes < min_bytes or key not in ending or out.shares >= 0 or out.state or key is None:
                continue
            if step.ins.count(key) == 1 and step.in_specs[position].with_(lod=()) == out.spec.with_(lod=()):
                out.shares = position
                ending.discard(key)
                step.recycle = [item for item in step.recycle if item[0] != key]
                step.free.append(key)
                step.simple = False


def _assign_recycling(plan: Plan) -> None:
    """Return the tensors of values that end at a step, and that launches made, to the tensor cache."""
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    controls = [step for step in plan.steps if isinstance(step, Control)]
    control_inputs = {key for step in controls for keys in step.ins.values() for key in keys}
    makers = {o.key: s.where for s in launches for o in s.outs if o.shares < 0 and not o.state and o.spec.is_static}
    for key in control_inputs:  # an output of a Control step may be the same tensor
        makers.pop(key, None)
    for step in plan.steps:
        if isinstance(step, Launch):
            step.makes = [(o.spec, o.key) for o in step.outs]
            if not makers.keys().isdisjoint(step.free):
                ended, step.free = step.free, []
                for key in ended:
                    if key in makers:
                        step.recycle.append((key, makers[key]))
                    else:
                        step.free.append(key)


def _alias_pairs(step: Launch) -> list[tuple[Output, str]]:
    """Outputs of a step that may overwrite an input, each with the slot of that input."""
    allowed = step.choice.inplace_slots(step.call)
    if not allowed:
        return []
    slots = [slot for slot, specs in step.call.outs.items() for _ in specs]
    return [
        (out, allowed[slot])
        for out, slot in zip(step.outs, slots, strict=True)
        if slot in allowed and step.call.has(allowed[slot])
    ]
