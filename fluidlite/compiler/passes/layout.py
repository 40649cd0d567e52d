"""Layout assignment: chooses the layouts of values between operators by a minimum cut of the bytes rearranged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from fluidlite.base.errors import KernelNotFoundError, ProgramError
from fluidlite.compiler.ir.graph import Graph, unit_of
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue, declared_specs
from fluidlite.compiler.ir.verify import inferred_specs
from fluidlite.compiler.passes.base import GraphPass
from fluidlite.compiler.planning.min_cut import End, TransferredValue, minimum_transfers
from fluidlite.compiler.planning.move_minimization import nbytes, slots_in_layout, transferred_values
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.choice import Choice
from fluidlite.compiler.selection.kernel_selection import select_kernel, tied_choices
from fluidlite.platform.place import Place
from fluidlite.program.kernel_registry import kernels
from fluidlite.program.layout_rewrite import LAYOUT, call_in_layout
from fluidlite.program.op_call import Call
from fluidlite.tensor.layout import PLAIN, Layout, layout_named
from fluidlite.tensor.tensor_spec import Spec


class AssignLayouts(GraphPass):
    """Operators between kernels that declare a layout compute in it too, where this saves rearrangements.

    Each operator computes on plain tensors or, if it has a form in the layout and a kernel for it, in the layout. A
    value is rearranged once for all readers in another layout than its maker's. The assignment is a minimum cut, so no
    other one rearranges fewer bytes. Results and state are plain. Unknown dims count as 1: values of one program mostly
    share them. Bytes that a kernel with ``prefers`` rearranges itself, from plain memory, count half.

    ``rearranged``: the bytes that the last graph rearranges without the pass, and with it.
    """

    phase = "layout"

    def __init__(self) -> None:
        self.rearranged = (0, 0)

    def do_pass(self, graph: Graph) -> None:
        """Set the layouts of operators, as hints for the planner."""
        self.rearranged = (0, 0)
        candidates = chain.from_iterable(map(kernels.of, {op.type for op in graph.ops}))
        layout_names = {name for k in candidates for name in (*k.layouts.values(), *k.prefers.values())}
        for name in sorted(layout_names - {"any", PLAIN.name}):
            assignment = _Assignment(graph, layout_named(name))
            if not assignment.is_needed:
                continue
            labels = assignment.minimum()
            before, after = assignment.cost(assignment.default()), assignment.cost(labels)
            if after < before:
                assignment.apply(labels)
            self.rearranged = (self.rearranged[0] + before, self.rearranged[1] + min(before, after))


class _Form(NamedTuple):
    """The layouts in which an operator can compute.

    ``free``: it can compute on plain tensors, or with ``slots`` in the layout; otherwise ``slots`` are always in it.
    ``own_bytes``: half of the bytes that its kernel rearranges itself, on plain tensors.
    ``tied``: it has kernels of equal rank for the layout and for another one.
    """

    op: GraphOp
    free: bool
    slots: frozenset[str]
    own_bytes: int = 0
    tied: bool = False


Labels = set[int]
"""The numbers of the free operators that compute in the layout."""


class _Assignment:
    """The forms of all operators for one layout, and the assignment of minimum cost."""

    def __init__(self, graph: Graph, layout: Layout) -> None:
        self.graph = graph
        self.layout = layout
        self.forms = [self._form(op) for op in graph.ops]
        self.is_needed = any(form.own_bytes or (not form.free and form.slots) for form in self.forms)
        self.free = [form for form in self.forms if form.free]
        self.numbers = {id(form.op): number for number, form in enumerate(self.free)}

    def _form(self, op: GraphOp) -> _Form:
        """The slots of an operator that can be in the layout."""
        plain = _Form(op, False, frozenset())
        if op.definition.run is not None or op.definition.infer is None:
            return plain
        call = _call(op)
        choice = self._choice(op, call) if call is not None else None
        if call is None or choice is None:
            return plain
        choices = tied_choices(call, choice, self._preferences(op, choice.place))
        layout_slots = [slots_in_layout(each, self.layout) for each in choices]
        if any(layout_slots):
            return _Form(op, not all(layout_slots), next(filter(None, layout_slots)), tied=True)
        if choice.layouts:
            return plain._replace(slots=slots_in_layout(choice, self.layout))
        rewrite = call_in_layout(call, self.layout)
        if rewrite is None or any(v.state is not None for v in op.results if self._is_output_in(op, v, rewrite[1])):
            return plain
        layout_choice = self._choice(op, rewrite[0])
        if layout_choice is None or layout_choice.parts or layout_choice.place != choice.place:
            return plain
        prefers = choice.kernel.prefers if choice.kernel is not None else {}
        specs = [spec for slot, name in prefers.items() if name == self.layout.name for spec in call.specs(slot)]
        own_bytes = sum(map(nbytes, specs)) // 2  # half: the kernel does it in its own reads and writes
        return _Form(op, not layout_choice.layouts, rewrite[1], own_bytes)

    @staticmethod
    def _is_output_in(op: GraphOp, value: GraphValue, slots: frozenset[str]) -> bool:
        return any(value is out for slot in slots for out in op.outputs.get(slot, ()))

    def _preferences(self, op: GraphOp, place: Place) -> Policy:
        return self.graph.policy.with_first(place.kind, op.hints.get("op_library"))

    def _choice(self, op: GraphOp, call: Call) -> Choice | None:
        place = unit_of(self.graph, op).place
        try:
            return select_kernel(call.at(place), place, self._preferences(op, place))
        except KernelNotFoundError:
            return None

    # Costs

    @cached_property
    def _values(self) -> list[TransferredValue]:
        """The values of the layout's rank, with their makers and readers."""
        rank = len(self.layout.permutation or ())

        def end(at: int, slot: str) -> End:
            form = self.forms[at]
            return End(self.numbers.get(id(form.op)), slot in form.slots)

        operands = [(op, _specs(op.inputs), _specs(op.outputs)) for op in self.graph.ops]
        return transferred_values(operands, self.graph.results, end, lambda spec: spec.rank == rank)

    def cost(self, labels: Labels) -> int:
        """The bytes rearranged, plus half of those that kernels rearrange themselves."""

        def is_in_layout(end: End) -> bool:
            return end.side and (end.node is None or end.node in labels)

        moved = sum(
            value.cost
            for value in self._values
            if len({is_in_layout(end) for end in (value.maker, *value.readers)}) > 1
        )
        return int(moved) + sum(form.own_bytes for number, form in enumerate(self.free) if number not in labels)

    def default(self) -> Labels:
        """The planner's choice without hints: elementwise operators use their inputs' layout, others are plain."""
        labels: Labels = set()
        in_layout: dict[int, bool] = {}
        for op, form in zip(self.graph.ops, self.forms, strict=True):
            moves = not form.free
            if form.free:
                slots = [slot for slot in op.inputs if slot in form.slots]
                inputs = [in_layout.get(id(value), False) for slot in slots for value in op.inputs[slot]]
                moves = (form.tied or op.definition.scalar is not None) and bool(inputs) and all(inputs)
                if moves:
                    labels.add(self.numbers[id(op)])
            in_layout.update(
                (id(v), moves and slot in form.slots) for slot, out in op.outputs.items() for v in out if v
            )
        return labels

    def minimum(self) -> Labels:
        """The labels of minimum cost; of several, those with the fewest operators in the layout."""
        return minimum_transfers([float(form.own_bytes) for form in self.free], [0.0] * len(self.free), self._values)

    def apply(self, labels: Labels) -> None:
        """Set the layouts as hints on copies of the operators: the user's program is not changed."""
        for number in labels | self.default():
            self.free[number].op.set_hint(LAYOUT, self.layout.name if number in labels else PLAIN.name)


def _specs(slots: Mapping[str, Sequence[GraphValue | None]]) -> dict[str, list[Spec | None]]:
    return {slot: [value.spec if value is not None else None for value in values] for slot, values in slots.items()}


def _call(op: GraphOp) -> Call | None:
    """The call that the planner will infer, as far as dims are known; None if specs are missing."""
    definition = op.definition
    if any(value.spec is None for value in op.args):
        return None
    call = Call(
        definition, declared_specs(op.inputs), declared_specs(op.outputs), op.attrs, None, op.operator.role != "forward"
    )
    if any(value is None or value.spec is None for values in op.outputs.values() for value in values):
        try:
            specs = inferred_specs(op) or {}
        except ProgramError:
            return None
        call = call.with_outs(
            {slot: specs.get(slot, call.specs(slot)) for slot, each in op.outputs.items() if any(each)}
        )
    return call
