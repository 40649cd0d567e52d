"""The layouts in which an operator reads and writes: those that its kernel names, or in which its inputs lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fluidlite.base.errors import KernelNotFoundError
from fluidlite.compiler.ir.graph_nodes import GraphOp
from fluidlite.compiler.planning.least_moves import nbytes
from fluidlite.compiler.planning.placement import Values
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.choice import Choice
from fluidlite.compiler.selection.kernel_selection import choose, tied
from fluidlite.platform.place import Place
from fluidlite.program.layout_rewrite import LAYOUT, relaid_call
from fluidlite.program.op_call import Call
from fluidlite.tensor.layout import PLAIN, Layout, layout_named
from fluidlite.tensor.tensor_spec import Spec


class RelaidCall(NamedTuple):
    """A call on memory that is not plain, its kernel, and the slots that lie in a layout."""

    call: Call
    choice: Choice
    layouts: dict[str, Layout | None]


def named_layouts(call: Call, choice: Choice) -> dict[str, Layout | None]:
    """The layouts, by slot, that a kernel names; None: as the input lies."""
    names = choice.layouts
    if not names:
        return {}
    return {slot: None if name == "any" else layout_named(name) for slot, name in names.items() if call.has(slot)}


class LayoutChoice(Values):
    """Chooses layouts for operators, by where their inputs lie and by what passes ask for."""

    options: dict[int, tuple[Choice, ...]]

    def _policy(self, op: GraphOp, target: Place) -> Policy:
        """The policy, with the operator's own choice of library (the hint ``op_library``) before all others."""
        library = op.operator.hints.get("op_library")
        return self.policy if library is None else self.policy.with_first(target.kind, library)

    def _of_tied(self, op: GraphOp, call: Call, choice: Choice, preferences: Policy) -> Choice:
        """Of kernels in other layouts that rank equally with a chosen one, the one that takes inputs as they lie."""
        options = tied(call, choice, preferences)
        if not options:
            return choice
        hint = op.operator.hints.get(LAYOUT)
        if hint is None:
            self.options[id(op)] = options
        return min(options, key=lambda each: self._mismatch(op, call, each, hint))

    def _mismatch(self, op: GraphOp, call: Call, choice: Choice, hint: str | None) -> int:
        """The bytes of inputs that lie otherwise than a kernel takes them; a layout that a pass asks for goes first."""
        if hint is not None:
            names = choice.layouts.values()
            return 0 if hint in names or (hint == PLAIN.name and not names) else 1
        wanted = named_layouts(call, choice)
        return sum(
            nbytes(found.spec)
            for slot, values in op.inputs.items()
            if slot not in call.op.unread
            for found in map(self._find, values)
            if (layout := wanted.get(slot, PLAIN)) is not None and found.spec.layout != layout
        )

    def _relaid(self, op: GraphOp, call: Call, choice: Choice, target: Place) -> RelaidCall | None:
        """The call on memory that is not plain, with its kernel; None: it computes on plain memory.

        An operator that works element by element does so where its inputs lie in one layout; others where a pass says
        it (the hint ``op_layout``). A kernel that names layouts itself is left alone.
        """
        hint = op.operator.hints.get(LAYOUT)
        if hint == PLAIN.name or (hint is None and call.op.scalar is None):
            return None
        lie = {value: self._find(value).spec.layout for value in op.args}
        known = {layout for layout in lie.values() if layout is not PLAIN} - {PLAIN}
        if (hint is None and len(known) != 1) or choice.layouts:
            return None
        layout = known.pop() if hint is None else layout_named(hint)
        found = relaid_call(call, layout)
        if found is None:
            return None
        laid, slots = found
        read = [(slot, values) for slot, values in op.inputs.items() if slot not in call.op.unread]
        if hint is None and any(lie[value] != layout for slot, values in read if slot in slots for value in values):
            return None
        outputs = [value for slot in slots for value in op.outputs.get(slot, ())]
        if any(value is not None and value.state is not None for value in outputs):
            return None
        try:
            again = choose(laid, target, self._policy(op, target))
        except KernelNotFoundError:
            return None
        if again.parts or again.place != choice.place or again.layouts:
            return None
        return RelaidCall(laid, again, dict.fromkeys(slots, layout))

    def _laid(self, op: GraphOp, call: Call, wanted: Mapping[str, Layout | None]) -> Call:
        """The call with the layouts that its kernel sees."""

        def laid(slot: str, i: int, spec: Spec) -> Spec:
            layout = wanted.get(slot, PLAIN)
            return spec.with_(layout=self._find(op.inputs[slot][i]).spec.layout if layout is None else layout)

        ins = {slot: tuple(laid(slot, i, s) for i, s in enumerate(specs)) for slot, specs in call.ins.items()}
        outs = {s: tuple(x.with_(layout=wanted.get(s) or PLAIN) for x in specs) for s, specs in call.outs.items()}
        return Call(call.op, ins, outs, call.attrs, call.place, call.training)
