"""Layout selection for one operator: the layouts that its kernel declares, or those of its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fluidlite.base.errors import KernelNotFoundError
from fluidlite.compiler.ir.graph_nodes import GraphOp
from fluidlite.compiler.planning.move_minimization import nbytes
from fluidlite.compiler.planning.placement import ValuePlacer
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.choice import Choice
from fluidlite.compiler.selection.kernel_selection import has_layout_kernels, select_kernel, tied_choices
from fluidlite.platform.place import Place
from fluidlite.program.layout_rewrite import LAYOUT, call_in_layout
from fluidlite.program.op_call import Call
from fluidlite.tensor.layout import PLAIN, Layout, layout_named
from fluidlite.tensor.tensor_spec import Spec


class RelaidCall(NamedTuple):
    """A call on tensors in a layout, its kernel, and the layout of each slot that has one."""

    call: Call
    choice: Choice
    layouts: dict[str, Layout | None]


def declared_layouts(call: Call, choice: Choice) -> dict[str, Layout | None]:
    """The layouts that a kernel declares, by slot; None: the layout of the input."""
    names = choice.layouts
    if not names:
        return {}
    return {slot: None if name == "any" else layout_named(name) for slot, name in names.items() if call.has(slot)}


class LayoutChoice(ValuePlacer):
    """Chooses the layouts of operators by those of their inputs and by the hints of passes."""

    tied_choices: dict[int, tuple[Choice, ...]]

    def _operator_policy(self, op: GraphOp, target: Place) -> Policy:
        """The policy, with the library that the operator's hint ``op_library`` names preferred over all others."""
        library = op.operator.hints.get("op_library")
        return self.policy if library is None else self.policy.with_first(target.kind, library)

    def _plain_choice(self, op: GraphOp, call: Call, target: Place) -> Choice:
        """The kernel for plain dims: of kernels of equal rank for several layouts, the one for which the fewest input
        bytes are rearranged.
        """
        policy = self._operator_policy(op, target)
        choice = select_kernel(call, target, policy)
        options = tied_choices(call, choice, policy) if choice.kernel is not None else ()
        if not options:
            return choice
        hint = op.operator.hints.get(LAYOUT)
        if hint is None:
            self.tied_choices[id(op)] = options
        return min(options, key=lambda each: self._mismatched_bytes(op, call, each, hint))

    def _mismatched_bytes(self, op: GraphOp, call: Call, choice: Choice, hint: str | None) -> int:
        """The bytes of inputs in other layouts than a kernel takes; 0 or 1 where a pass requests a layout by a hint."""
        if hint is not None:
            names = choice.layouts.values()
            return 0 if hint in names or (hint == PLAIN.name and not names) else 1
        layouts = declared_layouts(call, choice)
        return sum(
            nbytes(placement.spec)
            for slot, values in op.inputs.items()
            if slot not in call.op.unread
            for placement in map(self._placement, values)
            if (layout := layouts.get(slot, PLAIN)) is not None and placement.spec.layout != layout
        )

    def _call_in_layout(self, op: GraphOp, call: Call, target: Place) -> RelaidCall | None:
        """The call on tensors in a layout, with its kernel; None: it computes on plain tensors.

        An elementwise operator computes in the one layout that its inputs have; another operator in the layout that a
        pass requests (the hint ``op_layout``). Nothing is changed for a kernel that declares layouts itself.
        """
        hint = op.operator.hints.get(LAYOUT)
        if hint == PLAIN.name or (hint is None and call.op.scalar is None):
            return None
        layouts = {value: self._placement(value).spec.layout for value in op.args}
        input_layouts = {layout for layout in layouts.values() if layout is not PLAIN} - {PLAIN}
        if hint is None and len(input_layouts) != 1:
            return None
        if has_layout_kernels(call) and self._plain_choice(op, call, target).layouts:
            return None
        layout = input_layouts.pop() if hint is None else layout_named(hint)
        rewrite = call_in_layout(call, layout)
        if rewrite is None:
            return None
        layout_call, slots = rewrite
        read = (value for slot in slots if slot not in call.op.unread for value in op.inputs.get(slot, ()))
        if hint is None and any(layouts[value] != layout for value in read):
            return None
        outputs = [value for slot in slots for value in op.outputs.get(slot, ())]
        if any(value is not None and value.state is not None for value in outputs):
            return None
        try:
            layout_choice = select_kernel(layout_call, target, self._operator_policy(op, target))
        except KernelNotFoundError:
            return None
        if layout_choice.parts or layout_choice.layouts:
            return None
        if layout_choice.place != target and layout_choice.place != self._plain_choice(op, call, target).place:
            return None
        return RelaidCall(layout_call, layout_choice, dict.fromkeys(slots, layout))

    def _call_with_layouts(self, op: GraphOp, call: Call, layouts: Mapping[str, Layout | None]) -> Call:
        """The call with the layouts of the tensors that its kernel gets."""
        if not layouts:
            return call

        def with_layout(slot: str, i: int, spec: Spec) -> Spec:
            layout = layouts.get(slot, PLAIN)
            return spec.with_(layout=self._placement(op.inputs[slot][i]).spec.layout if layout is None else layout)

        ins = {slot: tuple(with_layout(slot, i, s) for i, s in enumerate(specs)) for slot, specs in call.ins.items()}
        outs = {s: tuple(x.with_(layout=layouts.get(s) or PLAIN) for x in specs) for s, specs in call.outs.items()}
        return Call(call.op, ins, outs, call.attrs, call.place, call.training)
