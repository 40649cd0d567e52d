"""Rewrites an operator for tensors in another layout: the same computation on permuted dims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from fluidlite.program.op_call import Call
from fluidlite.tensor.layout import Layout
from fluidlite.tensor.tensor_spec import Spec

if TYPE_CHECKING:
    from fluidlite.program.opdef import OpDef

LAYOUT = "op_layout"
"""Hint of an operator: the name of the layout in which it shall compute, if it can."""


class LayoutRewrite(NamedTuple):
    """An operator and its attributes for tensors in a layout.

    ``slots``: inputs and outputs that have the layout; others are plain.
    """

    op: OpDef
    attrs: Mapping[str, Any]
    slots: frozenset[str]


Rule = Callable[[Call, Layout], "LayoutRewrite | None"]


def call_in_layout(call: Call, layout: Layout) -> tuple[Call, frozenset[str]] | None:
    """Return a call on tensors in a layout, and the slots that have it; None if the definition has no such form.

    The dims of those slots are permuted to memory order, so a kernel sees plain tensors.
    """
    order = layout.permutation
    rule: Rule | None = call.op.in_layout or (_elementwise if call.op.scalar is not None else None)
    if order is None or rule is None:
        return None
    rewritten = rule(call, layout)
    if rewritten is None or any(spec.rank != len(order) for slot in rewritten.slots for spec in call.specs(slot)):
        return None

    def permuted(slot: str, specs: tuple[Spec, ...]) -> tuple[Spec, ...]:
        if slot not in rewritten.slots:
            return specs
        return tuple(spec.with_(dims=tuple(spec.dims[axis] for axis in order)) for spec in specs)

    ins = {slot: permuted(slot, specs) for slot, specs in call.ins.items()}
    outs = {slot: permuted(slot, specs) for slot, specs in call.outs.items()}
    return Call(rewritten.op, ins, outs, rewritten.attrs, call.place, call.training), rewritten.slots


def _elementwise(call: Call, layout: Layout) -> LayoutRewrite | None:
    """Rewrite an elementwise operator: on equal dims, or with scalars and vectors along one axis.

    Operators with random numbers are left alone: these are numbered by element, in plain order.
    """
    order, op = layout.permutation, call.op
    assert order is not None and op.scalar is not None
    if op.random:
        return None
    slots: set[str] = set()
    vectors = False
    for slot, specs in (*call.ins.items(), *call.outs.items()):
        for spec in specs:
            if spec.rank == len(order):
                slots.add(slot)
            elif spec.rank == 1 and spec.dims != (1,):
                vectors = True
            elif prod(spec.dims) != 1:
                return None
    dims = {spec.dims for slot in slots for spec in call.specs(slot)}
    if op.scalar.placed is not None and (vectors or len(dims) != 1):
        return None
    attrs = dict(call.attrs)
    if vectors:
        axis = attrs.get("axis", -1)
        attrs["axis"] = order.index(len(order) - 1 if axis == -1 else axis)
    return LayoutRewrite(op, attrs, frozenset(slots)) if slots else None
