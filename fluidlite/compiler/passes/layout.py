"""Layouts of the values between operators, so that as few bytes as possible are rearranged."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from fluidlite.base.errors import KernelNotFoundError, ProgramError
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.passes.base import GraphPass
from fluidlite.compiler.planning.least_moves import nbytes, slots_in
from fluidlite.compiler.planning.min_cut import End, TransferredValue, minimum_transfers
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.choice import Choice
from fluidlite.compiler.selection.kernel_selection import choose, tied
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.program.kernel_registry import kernels
from fluidlite.program.layout_rewrite import LAYOUT, relaid_call
from fluidlite.program.op_call import PLACEHOLDER, Call
from fluidlite.tensor.layout import PLAIN, Layout, layout_named
from fluidlite.tensor.tensor_spec import specs_of


class AssignLayouts(GraphPass):
    """Operators between kernels that name a layout compute in it too, where that saves rearrangements.

    Each operator is said on plain memory or, if its definition knows how and a kernel takes it, on memory in the
    layout. A value is rearranged where its maker and a reader differ, once for all readers. Which operators compute
    where is the least cut of that graph, so no other assignment rearranges fewer bytes. Results and state are plain.
    Dims that are not known yet count as 1: those of one program mostly share them. What a kernel that ``prefers`` a
    layout does to plain memory itself counts half.

    ``rearranged``: bytes that the last graph would have rearranged without the pass, and with it.
    """

    phase = "layout"

    def __init__(self) -> None:
        self.rearranged = (0, 0)

    def do_pass(self, graph: Graph) -> None:
        """Give operators their layout, as a hint that the planner heeds."""
        self.rearranged = (0, 0)
        found_kernels = chain.from_iterable(map(kernels.of, {op.type for op in graph.ops}))
        named = {name for k in found_kernels for name in (*k.layouts.values(), *k.prefers.values())}
        for name in sorted(named - {"any", PLAIN.name}):
            found = _Assignment(graph, layout_named(name))
            if not found.wanted:
                continue
            labels = found.least()
            before, after = found.cost(found.default()), found.cost(labels)
            if after < before:
                found.apply(labels)
            self.rearranged = (self.rearranged[0] + before, self.rearranged[1] + min(before, after))


class _Way(NamedTuple):
    """How an operator may compute: ``free`` to be said in the layout, on ``slots``; else those lie in it always.

    ``own`` is what its kernel does to lay out plain memory itself, in bytes; ``tied``: it has kernels of equal rank for
    the layout and for another.
    """

    op: GraphOp
    free: bool
    slots: frozenset[str]
    own: int = 0
    tied: bool = False


Labels = dict[int, bool]
"""By operator that is free: whether it computes in the layout."""


class _Assignment:
    def __init__(self, graph: Graph, layout: Layout) -> None:
        self.graph = graph
        self.layout = layout
        self.ways = {id(op): self._way(op) for op in graph.ops}
        self.wanted = any(way.own or (not way.free and way.slots) for way in self.ways.values())
        self.results = {id(value) for value in graph.results}

    def _way(self, op: GraphOp) -> _Way:
        plain = _Way(op, False, frozenset())
        if op.definition.run is not None or op.definition.infer is None:
            return plain
        call = _call(op)
        choice = self._choice(op, call) if call is not None else None
        if call is None or choice is None:
            return plain
        several = tied(call, choice, self._preferences(op, choice.place))
        lying = [slots_in(each, self.layout) for each in several]
        if any(lying):
            return _Way(op, not all(lying), next(filter(None, lying)), tied=True)
        if choice.layouts:
            return plain._replace(slots=slots_in(choice, self.layout))
        found = relaid_call(call, self.layout)
        if found is None or any(value.state is not None for value in op.results if self._in(op, value, found[1])):
            return plain
        again = self._choice(op, found[0])
        if again is None or again.parts or again.place != choice.place:
            return plain
        prefers = choice.kernel.prefers if choice.kernel is not None else {}
        specs = [spec for slot, name in prefers.items() if name == self.layout.name for spec in call.specs(slot)]
        own = sum(map(nbytes, specs)) // 2  # a kernel does it where it reads and writes anyway
        return _Way(op, not again.layouts, found[1], own)

    @staticmethod
    def _in(op: GraphOp, value: GraphValue, slots: frozenset[str]) -> bool:
        return any(value is made for slot in slots for made in op.outputs.get(slot, ()))

    def _preferences(self, op: GraphOp, place: Place) -> Policy:
        return self.graph.policy.with_first(place.kind, op.hints.get("op_library"))

    def _choice(self, op: GraphOp, call: Call) -> Choice | None:
        place = devices.unit(op.hints.get("op_device") or self.graph.place).place
        try:
            return choose(call.at(place), place, self._preferences(op, place))
        except KernelNotFoundError:
            return None

    # Costs

    def _links(self) -> Iterator[tuple[int, tuple[int, bool], list[tuple[int, bool]]]]:
        """Yield bytes, maker and readers of each value of the layout's rank, as (operator, whether it lies there)."""
        rank = len(self.layout.permutation or ())
        makers: dict[int, tuple[GraphValue, int, bool]] = {}
        readers: dict[int, list[tuple[int, bool]]] = {}
        for op in self.graph.ops:
            way = self.ways[id(op)]
            for slot, values in op.inputs.items():
                declared = op.definition.input(slot)
                for value in values if declared is None or not declared.unread else ():
                    if value.spec is not None and value.spec.rank == rank:
                        makers.setdefault(id(value), (value, 0, False))
                        readers.setdefault(id(value), []).append((id(op), slot in way.slots))
            for slot, made in op.outputs.items():
                for one in made:
                    if one is not None and one.spec is not None and one.spec.rank == rank:
                        makers[id(one)] = (one, id(op), slot in way.slots)
        for key, (it, maker, lies) in makers.items():
            assert it.spec is not None
            ends = [(0, False)] if key in self.results else []
            yield nbytes(it.spec), (maker, lies), [*readers.get(key, ()), *ends]

    def _lies(self, end: tuple[int, bool], labels: Labels) -> bool:
        """Whether a value lies in the layout at one of its ends."""
        return end[1] and labels.get(end[0], True)

    def cost(self, labels: Labels) -> int:
        """The bytes that are rearranged, half of those that kernels lay out themselves among them."""
        moved = sum(
            size
            for size, maker, readers in self._links()
            if len({self._lies(end, labels) for end in (maker, *readers)}) > 1
        )
        return moved + sum(way.own for key, way in self.ways.items() if way.free and not labels[key])

    def default(self) -> Labels:
        """What the planner does by itself: elementwise operators go on as their inputs lie, all others are plain."""
        labels: Labels = {}
        where: dict[int, bool] = {}
        for op in self.graph.ops:
            way = self.ways[id(op)]
            lies = not way.free
            if way.free:
                given = [where.get(id(v), False) for slot in op.inputs if slot in way.slots for v in op.inputs[slot]]
                lies = (way.tied or op.definition.scalar is not None) and bool(given) and all(given)
                labels[id(op)] = lies
            where.update((id(v), lies and slot in way.slots) for slot, made in op.outputs.items() for v in made if v)
        return labels

    def least(self) -> Labels:
        """The labels that cost least; where several do, those by which fewest operators compute in the layout."""
        free = [key for key, way in self.ways.items() if way.free]
        nodes = {key: node for node, key in enumerate(free)}

        def of(end: tuple[int, bool]) -> End:
            return End(nodes.get(end[0]), True) if end[1] else End(None, False)

        values = [
            TransferredValue(float(size), of(maker), list(map(of, readers))) for size, maker, readers in self._links()
        ]
        others = minimum_transfers([float(self.ways[key].own) for key in free], [0.0] * len(free), values)
        return {key: node in others for key, node in nodes.items()}

    def apply(self, labels: Labels) -> None:
        """Note the layouts on copies of the operators: the user's program stays as it is."""
        default = self.default()
        for op in self.graph.ops:
            if labels.get(id(op)) or default.get(id(op)):
                op.set_hint(LAYOUT, self.layout.name if labels[id(op)] else PLAIN.name)


def _call(op: GraphOp) -> Call | None:
    """An operator as the planner will see it, as far as dims are known; None if something is not."""
    definition = op.definition
    if any(value.spec is None for value in op.args):
        return None
    ins = {slot: tuple(value.spec or PLACEHOLDER for value in values) for slot, values in op.inputs.items()}
    outs = {
        slot: tuple(value.spec if value is not None and value.spec is not None else PLACEHOLDER for value in values)
        for slot, values in op.outputs.items()
        if any(value is not None for value in values)
    }
    call = Call(definition, ins, outs, op.attrs, None, op.operator.role != "forward")
    if any(value is None or value.spec is None for values in op.outputs.values() for value in values):
        try:
            found = definition.infer(call) if definition.infer is not None else {}
        except ProgramError:
            return None
        specs = {slot: specs_of(made) for slot, made in found.items()}
        call = call.with_outs({slot: specs.get(slot, given) for slot, given in outs.items()})
    return call
