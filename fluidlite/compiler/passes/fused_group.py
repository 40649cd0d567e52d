"""Builds the fused operator of a group: its structure, inputs, outputs, attributes and hints."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fluidlite.base.dtypes import is_float
from fluidlite.codegen.fused_code import NUMBER, OUTSIDE, FusedConstant, PartSource
from fluidlite.compiler.ir.fused import RUNTIME, FusedPart, FusedStructure, fused_op, runtime_attrs
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.passes.fuse_dims import GenericDims
from fluidlite.compiler.passes.groups import Groups
from fluidlite.compiler.planning.placement import RANDOM_HINT, own_seed
from fluidlite.program.layout_rewrite import LAYOUT
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import OpDef
from fluidlite.program.operator import EMPTY, FUSED_OPERATORS, INDEX_CHECKER, NOT_FUSED, Operator
from fluidlite.program.source_location import SourceLine


@dataclass(eq=False)
class Member:
    """An operator that may be fused.

    ``definition``: its own definition, or that of its elementwise form.
    ``call``: with generic dims.
    ``device``: the user's ``device_guard``, or None.
    """

    op: GraphOp
    definition: OpDef
    call: Call
    device: str | None

    @cached_property
    def inputs(self) -> dict[str, GraphValue]:
        """Its inputs by slot, cached; those of a slot with several values are ``X[0]``, ``X[1]``, ..."""
        return inputs_by_slot(self.op, self.definition)

    @cached_property
    def outputs(self) -> dict[str, GraphValue]:
        """Its used outputs by slot, cached."""
        return {slot: values[0] for slot, values in self.op.outputs.items() if values[0] is not None}

    def placed_at(self, slot: str) -> Hashable:
        """The position of an operand in the index domain; () by default, None if its elements are not read."""
        return None if slot.partition("[")[0] in self.definition.unread else ()


def inputs_by_slot(op: GraphOp, definition: OpDef) -> dict[str, GraphValue]:
    """The inputs of an operator, by slot of a definition that may have one slot for each of several values."""
    inputs: dict[str, GraphValue] = {}
    for slot, values in op.inputs.items():
        declared = definition.input(slot)
        if declared is None or declared.duplicable:
            inputs.update({f"{slot}[{k}]": value for k, value in enumerate(values)})
        elif values:
            inputs[slot] = values[0]
    return inputs


def can_be_fused(op: GraphOp) -> bool:
    """Whether an operator only computes tensors from tensors, and its library is not chosen by the user."""
    if "op_library" in op.operator.hints:
        return False
    own = op.definition
    if own.host_only or own.dynamic or own.may_act:
        return False
    names = {*op.inputs, *op.outputs}
    if not names <= own.slots or not names.isdisjoint(own.off_device):
        return False
    return max(map(len, op.outputs.values()), default=1) == 1 == min(map(len, op.outputs.values()), default=1)


def is_uniform_constant(value: GraphValue) -> bool:
    """Whether a value is filled with one number that is known at compile time."""
    return (
        value.is_constant
        and value.spec is not None
        and value.spec.is_static
        and value.op is not None
        and (not value.op.attrs["str_value"])
    )


class FusedGroup:
    """The fused operator of a group of members, given in the order in which they run.

    ``inputs``, ``stored``: the values of ``X0``, ``X1``, ... and ``Out0``, ``Out1``, ...
    ``possible``: whether all in-place updates overwrite inputs of the group, not values that it computes.
    """

    def __init__(self, groups: Groups, members: Sequence[Member], dims: GenericDims) -> None:
        self.groups, self.members, self.dims = groups, members, dims
        self.indices = frozenset([groups.at[id(member.op)] for member in members])
        self.inputs: list[GraphValue] = []
        self.reads: list[bool] = []
        self.slots: dict[tuple[int, Hashable], int] = {}
        self.numbers: list[FusedConstant] = []
        self.number_slots: dict[int, int] = {}
        self.attrs: dict[str, Any] = {}
        self.makers: dict[int, PartSource] = {}
        for member in members:
            for slot, value in member.inputs.items():
                placed = member.placed_at(slot)
                if placed is not None and not is_uniform_constant(value) and not self._is_internal(value):
                    self._input_index(value, placed)
        parts = tuple(map(self._part, range(len(members)), members))
        stored = [
            (PartSource(i, slot), value)
            for i, member in enumerate(members)
            for slot, value in member.outputs.items()
            if groups.is_live_out(value, self.indices)
        ]
        self.stored = [value for _, value in stored]
        updated = self._updated_inputs(stored)
        self.possible = all(value is not None for value in updated.values())
        must = {out: f"X{self.inputs.index(value)}" for out, value in updated.items() if value is not None}
        self.structure = FusedStructure(
            parts,
            tuple(self.reads),
            tuple(self.numbers),
            tuple([source for source, _ in stored]),
            tuple(must.items()),
            tuple(self._alias_pairs(must).items()),
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
        """The graph operator that replaces the members; ``checks``: the operator of them that checks indices."""
        sources = [member.op.operator for member in self.members]
        last = sources[-1]
        definition = fused_op(self.structure)
        hints = {name: value for name, value in last.hints.items() if name in ("op_device", LAYOUT)}
        hints[FUSED_OPERATORS] = original_operators(sources)
        reasons = tuple(text for source in sources for text in source.hints.get(NOT_FUSED, ()))
        if reasons:
            hints[NOT_FUSED] = reasons
        if checks is not None:
            hints[INDEX_CHECKER] = checks.hints.get(INDEX_CHECKER, str(checks))
        for source in sources:
            if RANDOM_HINT in source.hints:
                hints[RANDOM_HINT] = source.hints[RANDOM_HINT]
            elif source.definition.draws(source.attrs):
                name = next((n for n in source.output_arg_names if n != EMPTY), source.type)
                hints[RANDOM_HINT] = own_seed(source.attrs), name
        attrs = {attr.name: self.attrs[attr.name] for attr in definition.attrs}
        inputs = {f"X{k}": [value] for k, value in enumerate(self.inputs)}
        fused = GraphOp.derived_from(last, definition, inputs, attrs, hints)
        fused.operator.line = lines_of(sources)
        fused.outputs = {f"Out{k}": [value] for k, value in enumerate(self.stored)}
        for value in self.stored:
            value.op = fused
        return fused

    # Sources of parts

    def _is_internal(self, value: GraphValue) -> bool:
        return value.op is not None and self.groups.at.get(id(value.op)) in self.indices

    def _input_index(self, value: GraphValue, placed: Hashable) -> int:
        """The index of an input: a value is one input for each of its placements; one if only its dims are read."""
        index = self.slots.get((id(value), placed))
        if index is None and placed is None:
            index = next((at for (key, _), at in self.slots.items() if key == id(value)), None)
        if index is None:
            index = len(self.inputs)
            self.inputs.append(value)
            self.reads.append(placed is not None)
        self.slots[id(value), placed] = index
        return index

    def _source(self, member: Member, slot: str, value: GraphValue) -> PartSource:
        if id(value) in self.makers:
            return self.makers[id(value)]
        if is_uniform_constant(value):
            return PartSource(NUMBER, str(self._number_index(value)))
        return PartSource(OUTSIDE, f"X{self._input_index(value, member.placed_at(slot))}")

    def _number_index(self, value: GraphValue) -> int:
        if id(value) not in self.number_slots:
            at = self.number_slots[id(value)] = len(self.numbers)
            assert value.spec is not None
            number, dtype = value.const, value.spec.dtype
            if is_float(dtype):
                self.attrs[f"number.{at}"] = float(number)
            self.numbers.append(FusedConstant(dtype, None if is_float(dtype) else number, value.spec.dims))
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
        self.makers.update({id(value): PartSource(index, slot) for slot, value in outputs.items()})
        dtypes = tuple([value.spec.dtype for value in outputs.values() if value.spec is not None])
        return FusedPart(member.definition, attrs, sources, tuple(outputs), dtypes)

    # Aliases

    def _updated_inputs(self, stored: Sequence[tuple[PartSource, GraphValue]]) -> dict[str, GraphValue | None]:
        """By output, the input that it updates in place; None if the group computes the updated value itself."""
        updated_inputs: dict[str, GraphValue | None] = {}
        for k, (source, stores) in enumerate(stored):
            member = self.members[source.part]
            slot = member.definition.must_alias.get(source.slot)
            if slot is not None and slot in member.op.inputs:
                (value,) = member.op.inputs[slot]
                if value.name == stores.name:  # otherwise the program keeps both
                    updated_inputs[f"Out{k}"] = value if value in self.inputs else None
        return updated_inputs

    def _alias_pairs(self, must: Mapping[str, str]) -> dict[str, str]:
        """Pairs of outputs and inputs that the group may overwrite."""
        outputs = {f"Out{k}": value for k, value in enumerate(self.stored) if f"Out{k}" not in must}
        inputs = {f"X{at}": value for at, value in enumerate(self.inputs) if self.reads[at]}
        once = {slot: value for slot, value in inputs.items() if self.inputs.count(value) == 1}
        return alias_pairs(outputs, once, must.values(), self.dims, self._ends)

    def _ends(self, source: GraphValue, value: GraphValue) -> bool:
        """Whether an input ends at the group: it is its last reader, or overwrites the same state variable."""
        if source.state is not None or id(source) in self.groups.results:
            return source.state is not None and source.state == value.state
        return source.op is not None and all(index in self.indices for index in self.groups.readers[id(source)])


def alias_pairs(
    outputs: Mapping[str, GraphValue],
    inputs: Mapping[str, GraphValue],
    used: Iterable[str],
    dims: GenericDims,
    ends: Callable[[GraphValue, GraphValue], bool],
) -> dict[str, str]:
    """Pairs of outputs and inputs of equal dims and dtype; inputs that end first.

    ``used``: inputs that other outputs overwrite; ``ends``: whether an input ends where an output is written.
    """
    pairs: dict[str, str] = {}
    used_inputs = set(used)
    for out, value in outputs.items():
        candidates = [
            (not ends(source, value), at, slot)
            for at, (slot, source) in enumerate(inputs.items())
            if slot not in used_inputs
            and source.spec is not None
            and value.spec is not None
            and source.spec.dtype == value.spec.dtype
            and dims.dims(source) == dims.dims(value)
        ]
        if candidates:
            pairs[out] = min(candidates)[2]
            used_inputs.add(pairs[out])
    return pairs


def original_operators(sources: Sequence[Operator]) -> tuple[str, ...]:
    """The original operators of some operators, with the user's lines."""
    return tuple(
        [text for each in sources for text in each.hints.get(FUSED_OPERATORS, ()) or (f"{each.type} ({each.line})",)]
    )


def lines_of(sources: Sequence[Operator]) -> SourceLine:
    """The user's lines of several operators as one: the first, with the others in its text."""
    first, *rest = dict.fromkeys([source.line for source in sources])
    texts = [str(line) for line in rest[:3]] + ([f"{len(rest) - 3} more"] if len(rest) > 3 else [])
    return first._replace(api=" + ".join([first.api or "?", *texts]) if texts else first.api)
