"""Fusion: elementwise operators that follow each other become one, which reads and writes memory once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fluidlite.base.dtypes import is_float
from fluidlite.codegen.fused import RUNTIME, Part, Structure, fused_op, runtime_attrs
from fluidlite.codegen.fused_code import NUMBER, OUTSIDE, Number, Source
from fluidlite.framework.opdef import GRAD
from fluidlite.framework.operator import EMPTY, MADE_OF, Operator
from fluidlite.framework.relayout import LAYOUT
from fluidlite.framework.spec import Dims
from fluidlite.framework.values import DRAWS, own_seed
from fluidlite.framework.whereabouts import Line
from fluidlite.platform.devices import devices
from fluidlite.transformers.passes.base import GraphPass
from fluidlite.transformers.passes.fuse_dims import GenericDims
from fluidlite.transformers.passes.fuse_regions import Member, Regions, is_number, member_of, scheduled
from fluidlite.transformers.values import Graph, GraphOp, GraphValue


class FuseElementwise(GraphPass):
    """Elementwise operators on the same elements become one operator, with one kernel.

    What a group of operators has to itself is never stored. Nothing is computed twice: a value that others read too is
    stored once. Groups do not cross places, ``op_library``, or a kernel that a library brings for the place.
    """

    phase = "fuse"

    def do_pass(self, graph: Graph) -> None:
        """Fuse all that can be fused."""
        dims = GenericDims(graph)
        members = self._members(graph, dims)
        if _forward_same_values(graph, members, dims) + _read_dims_elsewhere(graph, dims):
            graph.prune()
        _split_sums(graph, members)
        regions = Regions(graph, {key: member for key, member in members.items() if member.op.results})
        for group in regions.grow():
            made = _Fusion(graph, regions, group, dims).made
            graph.ops[regions.at[id(group[-1].op)]] = made
        order = scheduled(regions.after, regions.group)
        graph.ops = [graph.ops[max(group)] for group in order]
        graph.prune()

    def _members(self, graph: Graph, dims: GenericDims) -> dict[int, Member]:
        found = {}
        for op in graph.ops:
            device = op.operator.hints.get("op_device") if op.operator is not None else None
            member = member_of(op, dims, devices.unit(device or graph.place), graph.policy)
            if member is not None:
                found[id(op)] = member
        return found


def _forward_same_values(graph: Graph, members: dict[int, Member], dims: GenericDims) -> int:
    """Where an output is an input as it is (the gradient of a sum), let its readers read that; return how many."""
    same: dict[int, GraphValue] = {}
    for op in graph.ops:
        updated = op.operator.definition.must_alias.values() if op.operator is not None else ()
        for given, values in op.inputs.items():
            if given not in updated:
                values[:] = [same.get(id(value), value) for value in values]
        member = members.get(id(op))
        if member is None or member.definition.type == "assign" or not set(op.inputs) >= set(member.code.inputs):
            continue
        for slot, dtype, index in member.code.outputs:
            instr = member.code.instrs[index]
            (old,) = op.outputs[slot]
            if instr.op != "input" or old is None or old.state is not None:
                continue
            (new,) = op.inputs[instr.value]
            alike = dtype == member.code.inputs[instr.value] and old.spec == new.spec and new.state is None
            mine, others = dims.dims(old), dims.dims(new)
            if alike and mine is not None and mine == others and dims.certain(mine):
                same[id(old)] = new
    if same:
        graph.results = [same.get(id(value), value) for value in graph.results]
    return len(same)


def _read_dims_elsewhere(graph: Graph, dims: GenericDims) -> int:
    """Where a gradient operator takes a value for its dims alone, and reads another of equal dims: let it take those.

    Else a value would be stored for its dims. Return how many were changed. Other operators may be there to compare the
    two: their dims are equal because they say so.
    """
    changed = 0
    for op in graph.ops:
        definition = op.operator.definition if op.operator is not None else None
        if definition is not None and not any(GRAD in slot.name for slot in definition.outputs):
            continue
        for slot, values in op.inputs.items() if definition is not None else ():
            declared = definition.input(slot) if definition is not None else None
            if declared is None or not declared.metadata_only or len(values) != 1:
                continue
            (value,) = values
            mine = dims.dims(value)
            if value.op is None or mine is None or not dims.certain(mine) or value.spec is None or value.spec.lod_level:
                continue
            for other_slot, others in op.inputs.items():
                read = definition.input(other_slot) if definition is not None else None
                if read is None or read.unread or len(others) != 1:
                    continue
                if others[0].spec == value.spec and dims.dims(others[0]) == mine:
                    values[0] = others[0]
                    changed += 1
                    break
    return changed


def _split_sums(graph: Graph, members: dict[int, Member]) -> None:
    """Make two operators of one that adds up elements for some of its outputs; the other one can be fused.

    The outputs of an elementwise operator are independent, and each is a kernel of its own where it is a sum.
    """
    read = {id(value) for op in graph.ops for value in op.args} | {id(value) for value in graph.results}
    ops: list[GraphOp] = []
    for op in graph.ops:
        member = members.get(id(op))
        ops.append(op)
        if member is None or member.definition.random:
            continue
        _want(op, member, [slot for slot, (v,) in op.outputs.items() if not _unwanted(member, slot, v, read)])
        full = [slot for slot in op.outputs if slot not in member.summed]
        if not member.summed or not full or any(value.state is not None for value in op.results):
            continue
        other = GraphOp(
            op.type, {slot: list(values) for slot, values in op.inputs.items()}, dict(op.attrs), op.operator
        )
        other.outputs = {slot: values for slot, values in op.outputs.items() if slot in full}
        for value in other.results:
            value.op = other
        apart = replace(member, op=other)
        _want(op, member, list(member.summed))
        _want(other, apart, full)
        members[id(other)] = apart
        ops.append(other)
    graph.ops = ops


def _unwanted(member: Member, slot: str, value: GraphValue | None, read: set[int]) -> bool:
    declared = member.definition.output(slot)
    may_go = declared is not None and declared.dispensable
    return value is None or (may_go and value.state is None and id(value) not in read)


def _want(op: GraphOp, member: Member, slots: Sequence[str]) -> None:
    """Ask an operator for some of its outputs only."""
    if list(op.outputs) == list(slots) or not slots:
        return
    op.outputs = {slot: values for slot, values in op.outputs.items() if slot in slots}
    member.wants(slots)


class _Fusion:
    """Makes one operator of a group."""

    def __init__(self, graph: Graph, regions: Regions, group: Sequence[Member], dims: GenericDims) -> None:
        self.graph, self.regions, self.group, self.dims = graph, regions, group, dims
        self.indices = regions.group[regions.at[id(group[0].op)]]
        self.inputs: list[GraphValue] = []
        self.reads: list[bool] = []
        self.slots: dict[tuple[int, Dims | None], int] = {}
        self.numbers: list[Number] = []
        self.number_slots: dict[int, int] = {}
        self.attrs: dict[str, float] = {}
        self.makers: dict[int, Source] = {}
        self.must: dict[str, str] = {}
        for member in group:
            for slot, value in member.reads():
                self._note_read(member, slot, value)
        parts = tuple(self._part(index, member) for index, member in enumerate(group))
        stored = [(Source(i, slot), value) for i, member in enumerate(group) for slot, value in
                  member.outputs.items() if regions.leaves(value, self.indices)]  # fmt: skip
        self._aliases(stored)
        structure = Structure(
            parts, tuple(self.reads), tuple(self.numbers), tuple(source for source, _ in stored),
            tuple(self.must.items()), tuple(self._may_share(stored).items()),
        )  # fmt: skip
        self.made = self._operator(structure, [value for _, value in stored])

    def _note_read(self, member: Member, slot: str, value: GraphValue) -> None:
        inside = value.op is not None and self.regions.at.get(id(value.op)) in self.indices
        if not inside and not is_number(value):
            self._input(value, member.placed[slot])

    def _input(self, value: GraphValue, placed: Dims | None) -> int:
        """The position of an input: what is read at several placements comes in several times; dims come in once."""
        found = self.slots.get((id(value), placed))
        if found is None and placed is None:
            found = next((at for (key, _), at in self.slots.items() if key == id(value)), None)
        if found is None:
            found = len(self.inputs)
            self.inputs.append(value)
            self.reads.append(placed is not None)
        self.slots[id(value), placed] = found
        return found

    def _source(self, member: Member, slot: str, value: GraphValue) -> Source:
        if id(value) in self.makers:
            return self.makers[id(value)]
        if is_number(value):
            return Source(NUMBER, str(self._number(value)))
        return Source(
            OUTSIDE, f"X{self._input(value, member.placed.get(slot) if slot in member.code.inputs else None)}"
        )

    def _number(self, value: GraphValue) -> int:
        if id(value) not in self.number_slots:
            at = self.number_slots[id(value)] = len(self.numbers)
            assert value.spec is not None
            number, dtype = value.const, value.spec.dtype
            if is_float(dtype):
                self.attrs[f"number.{at}"] = float(number)
            self.numbers.append(Number(dtype, None if is_float(dtype) else number, value.spec.dims))
        return self.number_slots[id(value)]

    def _part(self, index: int, member: Member) -> Part:
        op = member.op
        runtime = runtime_attrs(member.definition, op.attrs)
        self.attrs.update({f"{index}.{name}": value for name, value in runtime.items()})
        attrs = tuple((attr.name, RUNTIME if attr.name in runtime else op.attrs[attr.name]) for attr in
                      member.definition.attrs)  # fmt: skip
        sources = tuple((slot, self._source(member, slot, value)) for slot, value in member.inputs.items())
        for slot, value in member.outputs.items():
            self.makers[id(value)] = Source(index, slot)
        return Part(member.definition, attrs, sources, tuple(member.outputs))

    # Memory that may be shared

    def _aliases(self, stored: Sequence[tuple[Source, GraphValue]]) -> None:
        """Note which outputs are the variables of inputs, updated in place."""
        for k, (source, stores) in enumerate(stored):
            member = self.group[source.part]
            pair = member.definition.must_alias.get(source.slot)
            if pair is not None and pair in member.op.inputs:
                (value,) = member.op.inputs[pair]
                if value.name != stores.name:
                    continue  # the program keeps both
                self.must[f"Out{k}"] = f"X{self._input(value, member.placed[pair])}"

    def _may_share(self, stored: Sequence[tuple[Source, GraphValue]]) -> dict[str, str]:
        """Pair outputs with inputs of equal dims and dtype; those that end here first."""
        found: dict[str, str] = {}
        taken = set(self.must.values())
        for k, (_, value) in enumerate(stored):
            if f"Out{k}" in self.must:
                continue
            fits = [
                (not self._ends(given, value), at) for at, given in enumerate(self.inputs)
                if self.reads[at] and f"X{at}" not in taken and self.inputs.count(given) == 1
                and given.spec is not None and value.spec is not None and given.spec.dtype == value.spec.dtype
                and self.dims.dims(given) == self.dims.dims(value)
            ]  # fmt: skip
            if fits:
                found[f"Out{k}"] = f"X{min(fits)[1]}"
                taken.add(found[f"Out{k}"])
        return found

    def _ends(self, given: GraphValue, value: GraphValue) -> bool:
        """Whether an input's memory is free once the group has run: its last reader, or the variable itself."""
        if given.state is not None or id(given) in self.regions.results:
            return given.state is not None and given.state == value.state
        return given.op is not None and all(index in self.indices for index in self.regions.readers[id(given)])

    # The operator

    def _operator(self, structure: Structure, stored: Sequence[GraphValue]) -> GraphOp:
        sources = [member.op.operator for member in self.group if member.op.operator is not None]
        last = sources[-1]
        definition = fused_op(structure)
        hints = {name: value for name, value in last.hints.items() if name in ("op_device", LAYOUT)}
        hints[MADE_OF] = tuple(f"{source.type} ({source.line})" for source in sources)
        for source in sources:
            if source.definition.random:
                name = next((n for n in source.output_arg_names if n != EMPTY), source.type)
                hints[DRAWS] = own_seed(source.attrs), name
        attrs = {attr.name: self.attrs[attr.name] for attr in definition.attrs}
        operator = Operator(
            last.block, definition, {}, {}, attrs, hints, last.id, last.role, lines_of(sources), last.namescope
        )
        inputs = {f"X{k}": [value] for k, value in enumerate(self.inputs)}
        made = GraphOp(definition.type, inputs, attrs, operator)
        made.outputs = {f"Out{k}": [value] for k, value in enumerate(stored)}
        for value in stored:
            value.op = made
        return made


def lines_of(sources: Sequence[Operator]) -> Line:
    """The users' lines of several operators as one: the first, and where the others are."""
    first, *others = dict.fromkeys(source.line for source in sources)
    shown = [str(line) for line in others[:3]] + ([f"{len(others) - 3} more"] if len(others) > 3 else [])
    return first._replace(api=" + ".join([first.api or "?", *shown]) if shown else first.api)
