"""The operator that a group of a graph's operators becomes, whatever they are."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fluidlite.base.dtypes import is_float
from fluidlite.codegen.fused_code import NUMBER, OUTSIDE, Number, Source
from fluidlite.compiler.ir.fused import RUNTIME, FusedPart, FusedStructure, fused_op, runtime_attrs
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.passes.fuse_dims import GenericDims
from fluidlite.compiler.passes.groups import Groups
from fluidlite.compiler.planning.placement import DRAWS, own_seed
from fluidlite.program.layout_rewrite import LAYOUT
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import OpDef
from fluidlite.program.operator import CHECKS, EMPTY, MADE_OF, NOT_FUSED, Operator
from fluidlite.program.source_location import Line


@dataclass(eq=False)
class Member:
    """An operator that can be one of a group.

    ``definition``: its own, or one that says it element by element.
    ``call``: with generic dims.
    ``device``: where the user put it.
    """

    op: GraphOp
    definition: OpDef
    call: Call
    device: str | None

    @cached_property
    def inputs(self) -> dict[str, GraphValue]:
        """Its inputs by slot, once groups are made; those of a slot that takes several are ``X[0]``, ``X[1]``, ..."""
        return inputs_by_slot(self.op, self.definition)

    @cached_property
    def outputs(self) -> dict[str, GraphValue]:
        """Its outputs that somebody wants, by slot, once groups are made."""
        return {slot: values[0] for slot, values in self.op.outputs.items() if values[0] is not None}

    def placed_at(self, slot: str) -> Hashable:
        """Where what it reads lies: a value that lies at several places is given several times; None: it reads none."""
        return None if slot.partition("[")[0] in self.definition.unread else ()


def inputs_by_slot(op: GraphOp, definition: OpDef) -> dict[str, GraphValue]:
    """What an operator is given, by slot of a definition, which may have one for each of several values."""
    found: dict[str, GraphValue] = {}
    for slot, values in op.inputs.items():
        declared = definition.input(slot)
        if declared is None or declared.duplicable:
            found.update({f"{slot}[{k}]": value for k, value in enumerate(values)})
        elif values:
            found[slot] = values[0]
    return found


def may_join(op: GraphOp) -> bool:
    """Whether an operator only computes tensors of tensors, with whichever kernel: others are never part of one."""
    if "op_library" in op.operator.hints:
        return False
    own = op.definition
    if own.host_only or own.dynamic or own.may_act:
        return False
    names = {*op.inputs, *op.outputs}
    if not names <= own.slots or not names.isdisjoint(own.off_device):
        return False
    return max(map(len, op.outputs.values()), default=1) == 1 == min(map(len, op.outputs.values()), default=1)


def is_number(value: GraphValue) -> bool:
    """Whether a value is one number, known now, however many elements it has."""
    return (
        value.is_constant
        and value.spec is not None
        and value.spec.known
        and value.op is not None
        and (not value.op.attrs["str_value"])
    )


class Joined:
    """What a group becomes.

    ``members``: in the order in which they run.
    ``inputs``, ``stored``: ``X0``, ``X1``, ... and ``Out0``, ``Out1``, ...
    ``possible``: whether it updates nothing that it computes itself.
    """

    def __init__(self, groups: Groups, members: Sequence[Member], dims: GenericDims) -> None:
        self.groups, self.members, self.dims = groups, members, dims
        self.indices = frozenset([groups.at[id(member.op)] for member in members])
        self.inputs: list[GraphValue] = []
        self.reads: list[bool] = []
        self.slots: dict[tuple[int, Hashable], int] = {}
        self.numbers: list[Number] = []
        self.number_slots: dict[int, int] = {}
        self.attrs: dict[str, Any] = {}
        self.makers: dict[int, Source] = {}
        for member in members:
            for slot, value in member.inputs.items():
                placed = member.placed_at(slot)
                if placed is not None and not is_number(value) and not self._inside(value):
                    self._input(value, placed)
        parts = tuple(map(self._part, range(len(members)), members))
        stored = [
            (Source(i, slot), value)
            for i, member in enumerate(members)
            for slot, value in member.outputs.items()
            if groups.leaves(value, self.indices)
        ]
        self.stored = [value for _, value in stored]
        updated = self._updated(stored)
        self.possible = all(value is not None for value in updated.values())
        must = {out: f"X{self.inputs.index(value)}" for out, value in updated.items() if value is not None}
        self.structure = FusedStructure(
            parts,
            tuple(self.reads),
            tuple(self.numbers),
            tuple([source for source, _ in stored]),
            tuple(must.items()),
            tuple(self._may_share(must).items()),
        )

    def call(self, place: Any) -> Call:
        """Its call, with generic dims."""
        definition = fused_op(self.structure)
        ins, outs = (
            {f"{stem}{k}": (spec,) for k, value in enumerate(values) if (spec := self.dims.spec(value)) is not None}
            for stem, values in (("X", self.inputs), ("Out", self.stored))
        )
        return Call(definition, ins, outs, {attr.name: self.attrs[attr.name] for attr in definition.attrs}, place)

    def operator(self, checks: Operator | None = None) -> GraphOp:
        """The operator, in place of those that it is made of; ``checks`` is the one of them that checks indices."""
        sources = [member.op.operator for member in self.members]
        last = sources[-1]
        definition = fused_op(self.structure)
        hints = {name: value for name, value in last.hints.items() if name in ("op_device", LAYOUT)}
        hints[MADE_OF] = made_of(sources)
        apart = tuple(text for source in sources for text in source.hints.get(NOT_FUSED, ()))
        if apart:
            hints[NOT_FUSED] = apart
        if checks is not None:
            hints[CHECKS] = checks.hints.get(CHECKS, str(checks))
        for source in sources:
            if DRAWS in source.hints:
                hints[DRAWS] = source.hints[DRAWS]
            elif source.definition.draws(source.attrs):
                name = next((n for n in source.output_arg_names if n != EMPTY), source.type)
                hints[DRAWS] = own_seed(source.attrs), name
        attrs = {attr.name: self.attrs[attr.name] for attr in definition.attrs}
        inputs = {f"X{k}": [value] for k, value in enumerate(self.inputs)}
        made = GraphOp.derived_from(last, definition, inputs, attrs, hints)
        made.operator.line = lines_of(sources)
        made.outputs = {f"Out{k}": [value] for k, value in enumerate(self.stored)}
        for value in self.stored:
            value.op = made
        return made

    # What parts are given

    def _inside(self, value: GraphValue) -> bool:
        return value.op is not None and self.groups.at.get(id(value.op)) in self.indices

    def _input(self, value: GraphValue, placed: Hashable) -> int:
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
        return Source(OUTSIDE, f"X{self._input(value, member.placed_at(slot))}")

    def _number(self, value: GraphValue) -> int:
        if id(value) not in self.number_slots:
            at = self.number_slots[id(value)] = len(self.numbers)
            assert value.spec is not None
            number, dtype = value.const, value.spec.dtype
            if is_float(dtype):
                self.attrs[f"number.{at}"] = float(number)
            self.numbers.append(Number(dtype, None if is_float(dtype) else number, value.spec.dims))
        return self.number_slots[id(value)]

    def _part(self, index: int, member: Member) -> FusedPart:
        op = member.op
        runtime = runtime_attrs(member.definition, op.attrs)
        self.attrs.update({f"{index}.{name}": value for name, value in runtime.items()})
        attrs = tuple(
            [(attr.name, RUNTIME if attr.name in runtime else op.attrs[attr.name]) for attr in member.definition.attrs]
        )
        sources = tuple([(slot, self._source(member, slot, value)) for slot, value in member.inputs.items()])
        outputs = member.outputs
        self.makers.update({id(value): Source(index, slot) for slot, value in outputs.items()})
        dtypes = tuple([value.spec.dtype for value in outputs.values() if value.spec is not None])
        return FusedPart(member.definition, attrs, sources, tuple(outputs), dtypes)

    # Memory that may be shared

    def _updated(self, stored: Sequence[tuple[Source, GraphValue]]) -> dict[str, GraphValue | None]:
        """Which outputs are the variables of inputs, updated in place; None: of what the group computes itself."""
        found: dict[str, GraphValue | None] = {}
        for k, (source, stores) in enumerate(stored):
            member = self.members[source.part]
            pair = member.definition.must_alias.get(source.slot)
            if pair is not None and pair in member.op.inputs:
                (value,) = member.op.inputs[pair]
                if value.name == stores.name:  # else the program keeps both
                    found[f"Out{k}"] = value if value in self.inputs else None
        return found

    def _may_share(self, must: Mapping[str, str]) -> dict[str, str]:
        """Pair outputs with inputs of equal dims and dtype; those that end here first."""
        found: dict[str, str] = {}
        taken = set(must.values())
        for k, value in enumerate(self.stored):
            if f"Out{k}" in must:
                continue
            fits = [
                (not self._ends(given, value), at)
                for at, given in enumerate(self.inputs)
                if self.reads[at]
                and f"X{at}" not in taken
                and self.inputs.count(given) == 1
                and given.spec is not None
                and value.spec is not None
                and given.spec.dtype == value.spec.dtype
                and self.dims.dims(given) == self.dims.dims(value)
            ]
            if fits:
                found[f"Out{k}"] = f"X{min(fits)[1]}"
                taken.add(found[f"Out{k}"])
        return found

    def _ends(self, source: GraphValue, value: GraphValue) -> bool:
        """Whether an input's memory is free once the group has run: its last reader, or the variable itself."""
        if source.state is not None or id(source) in self.groups.results:
            return source.state is not None and source.state == value.state
        return source.op is not None and all(index in self.indices for index in self.groups.readers[id(source)])


def made_of(sources: Sequence[Operator]) -> tuple[str, ...]:
    """The operators that some are made of, with the user's lines: themselves, if they are not fused."""
    return tuple([text for each in sources for text in each.hints.get(MADE_OF, ()) or (f"{each.type} ({each.line})",)])


def lines_of(sources: Sequence[Operator]) -> Line:
    """The users' lines of several operators as one: the first, and where the others are."""
    first, *others = dict.fromkeys([source.line for source in sources])
    shown = [str(line) for line in others[:3]] + ([f"{len(others) - 3} more"] if len(others) > 3 else [])
    return first._replace(api=" + ".join([first.api or "?", *shown]) if shown else first.api)
