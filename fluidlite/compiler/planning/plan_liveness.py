"""When values end: what is freed after which step, which tensors serve again, and which memory is shared."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

from fluidlite.compiler.planning.plan import Control, Launch, Move, Output, Plan

WORTH_SHARING = 16384
"""Bytes from which updating in place gains more than the short path of recycled tensors."""
worth_sharing: ContextVar[int] = ContextVar("worth_sharing", default=WORTH_SHARING)
"""That of the plans that are made now: the certificate tries small samples in place, too."""


def finish_lifetimes(plan: Plan, last_use: Mapping[str, int], inplace: bool) -> None:
    """Note with each step what ends there.

    ``plan``: all its steps are there.
    ``last_use``: by key the step that reads it last; a step beyond the last one: it lives on after the plan.
    ``inplace``: whether outputs may take the memory of inputs that end.
    """
    plan.last_use = dict(last_use)
    _place_frees(plan, last_use)
    _place_recycling(plan)
    if inplace:
        _share_dying_inputs(plan)


def _place_frees(plan: Plan, last_use: Mapping[str, int]) -> None:
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


def _share_dying_inputs(plan: Plan) -> None:
    """Let an output take the memory of an input that ends at its operator, where definition and kernel allow.

    Proven, not assumed: the input's tensor was made by an operator of this run on the same place, nothing
    reads it later (it would be recycled here), and the two have equal dims and dtype.
    """
    least = worth_sharing.get()
    for step in plan.steps:
        if not isinstance(step, Launch) or step.skip or step.blind or not step.choice.inplace:
            continue
        ends = {key for key, where in step.recycle if where == step.where}
        if not ends:
            continue
        for out, given in _alias_pairs(step):
            position = step.call.index[given]
            key = step.ins[position]
            if out.spec.nbytes < least or key not in ends or out.shares >= 0 or out.state or key is None:
                continue
            if step.ins.count(key) == 1 and step.in_specs[position].with_(lod=()) == out.spec.with_(lod=()):
                out.shares = position
                ends.discard(key)
                step.recycle = [item for item in step.recycle if item[0] != key]
                step.free.append(key)
                step.simple = False


def _place_recycling(plan: Plan) -> None:
    """Of the values that end at a step, those that operators made serve again as they are."""
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    held = {key for step in plan.steps if isinstance(step, Control) for keys in step.ins.values() for key in keys}
    makers = {o.key: s.where for s in launches for o in s.outs if o.shares < 0 and not o.state and o.spec.known}
    makers = {key: where for key, where in makers.items() if key not in held}  # what it makes may be the same tensor
    for step in plan.steps:
        if isinstance(step, Launch):
            step.makes = [(o.spec, o.key) for o in step.outs]
            if not makers.keys().isdisjoint(step.free):
                step.recycle = [(key, makers[key]) for key in step.free if key in makers]
                step.free = [key for key in step.free if key not in makers]


def _alias_pairs(step: Launch) -> list[tuple[Output, str]]:
    """Outputs of a step that may share memory, each with the input slot whose memory that is."""
    allowed = step.choice.may_share(step.call)
    if not allowed:
        return []
    slots = [slot for slot, specs in step.call.outs.items() for _ in specs]
    return [
        (out, allowed[slot])
        for out, slot in zip(step.outs, slots, strict=True)
        if slot in allowed and step.call.has(allowed[slot])
    ]
