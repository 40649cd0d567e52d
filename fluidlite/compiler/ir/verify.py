"""The graph verifier: checks after each pass that the graph is valid and, as far as metadata tells, equivalent.

Operators that a pass did not change are not inferred again: the verifier compares their metadata alone.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any

from fluidlite.base.errors import ProgramError
from fluidlite.base.reached import reached
from fluidlite.compiler.ir.graph_nodes import WRITE
from fluidlite.program.inference import check_inputs
from fluidlite.program.op_call import PLACEHOLDER, Call, with_location
from fluidlite.program.source_location import NOWHERE
from fluidlite.tensor.tensor_spec import TENSOR_ARRAY, Spec, all_dims_compatible, specs_of

if TYPE_CHECKING:
    from fluidlite.compiler.ir.graph import Graph
    from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue


def inferred_specs(op: GraphOp) -> dict[str, tuple[Spec, ...]] | None:
    """The output specs that inference gives for the operator's inputs, by slot; None if input specs are missing.

    Raises ProgramError if the definition refuses the inputs.
    """
    definition = op.definition
    if definition.infer is None:
        return None
    ins: dict[str, tuple[Spec, ...]] = {}
    for slot, values in op.inputs.items():
        specs = tuple(value.spec for value in values if value.spec is not None)
        if len(specs) != len(values):
            return None
        ins[slot] = specs
    outs = {slot: (PLACEHOLDER,) * len(values) for slot, values in op.outputs.items()}
    call = Call(definition, ins, outs, op.attrs)
    check_inputs(call)
    return {slot: specs_of(specs) for slot, specs in definition.infer(call).items()}


def is_compatible(first: Spec, second: Spec) -> bool:
    """Whether two specs have one dtype, kind and rank, and no dim that is known in both differs.

    The dims of tensor arrays are not compared: they are those of the tensors written so far.
    """
    if first.kind == second.kind == TENSOR_ARRAY:
        return first.dtype == second.dtype
    dims = first.dims == second.dims or all_dims_compatible(first.dims, second.dims)
    return dims and first.dtype == second.dtype and first.kind == second.kind


def located_text(op: GraphOp) -> str:
    """An operator and the user's line, for an error message."""
    return f"{op!r} ({op.line})" if op.line is not NOWHERE else repr(op)


def check_operator(op: GraphOp) -> None:
    """Check the type, the slots and the attributes of an operator against its definition.

    Raises ProgramError with the operator and the user's line.
    """
    definition = op.definition
    if op.type != definition.type and op.type != WRITE:
        raise ProgramError(
            f"{located_text(op)} is of type {definition.type!r}, which cannot be changed"
            "\n  Do: graph.insert(op, type, inputs, attrs), and replace_op"
        )
    for side, slots, declared in (("input", op.inputs, definition.inputs), ("output", op.outputs, definition.outputs)):
        slot_names = {slot.name for slot in declared}
        for name in slots:
            if name not in slot_names:
                raise ProgramError(
                    f"{located_text(op)} has no {side} {name!r}; it has {', '.join(sorted(slot_names)) or 'none'}"
                )
        for slot in declared:
            if side == "input" and not slot.dispensable and not slots.get(slot.name):
                raise ProgramError(f"{located_text(op)}: its input {slot.name} is gone")
            if len(slots.get(slot.name, ())) > 1 and not slot.duplicable:
                raise ProgramError(f"{located_text(op)}: {slot.name} takes one value, not {len(slots[slot.name])}")
    for name in op.attrs:
        if definition.attr(name) is None:
            attr_names = ", ".join(attr.name for attr in definition.attrs) or "none"
            raise ProgramError(f"{located_text(op)} has no attribute {name!r}; it has {attr_names}")
    for attr in definition.attrs:
        value = op.attrs.get(attr.name)
        if value is None and (attr.required or attr.default is not None):
            raise ProgramError(f"{located_text(op)}: its attribute {attr.name!r} is gone; expected {attr.type}")
        if value is not None:
            try:
                attr.check(value)
            except ProgramError as exc:
                raise with_location(exc, located_text(op)) from None


class Verifier:
    """Records a graph when it is made, and compares later states of it."""

    def __init__(self, graph: Graph) -> None:
        self.arguments = {id(value): value for value in graph.results if value.op is None}
        self.results = [value.spec for value in graph.results]
        self.states: dict[str, list[GraphValue]] = defaultdict(list)
        self.effects: list[GraphOp] = []
        self._checked_facts: dict[int, tuple[GraphOp, Any]] = {}
        for op in graph.ops:
            self._checked_facts[id(op)] = op, _facts(op)
            for arg in chain.from_iterable(op.inputs.values()):
                if arg.op is None:
                    self.arguments[id(arg)] = arg
            stores = False
            for value in chain.from_iterable(op.outputs.values()):
                if value is not None and value.state is not None:
                    self.states[value.state].append(value)
                    stores = True
            if not stores and op.definition.may_act and op.has_effect:
                self.effects.append(op)

    def check(self, graph: Graph) -> None:
        """Raise ProgramError, with the operator and the user's line, if the graph is not valid."""
        results = [op.results for op in graph.ops]
        present = {id(value) for values in results for value in values}
        self._check_effects_present(graph, present)
        self._check_value_order(graph, results)
        for op in graph.ops:
            facts = _facts(op)
            checked = self._checked_facts.get(id(op))
            if checked is None or checked[1] != facts:
                self._check_metadata(op)
                self._checked_facts[id(op)] = op, facts
        self._check_state_order(results)
        self._check_effect_order(graph)
        self._check_results(graph, present)

    def _check_effects_present(self, graph: Graph, present: set[int]) -> None:
        """Check that all operators with effects are present."""
        for name, values in self.states.items():
            for value in values:
                if value.state != name:
                    raise ProgramError(
                        f"{value.name!r} is {value.state!r} in the graph; the program says state {name!r}"
                    )
                if id(value) not in present and value.op is not None and value.op.has_effect:
                    raise ProgramError(f"state {name!r} is not written any more: {located_text(value.op)} is gone")
        sources = {id(op.operator) for op in graph.ops}
        for op in self.effects:
            if id(op.operator) not in sources:
                raise ProgramError(f"{located_text(op)} is gone, which does more than make values")

    def _check_value_order(self, graph: Graph, results: list[list[GraphValue]]) -> None:
        """Check that each value is written once, before it is read."""
        written: set[int] = set()
        listed = {id(op) for op in graph.ops}
        for op, values in zip(graph.ops, results, strict=True):
            for arg in chain.from_iterable(op.inputs.values()):
                if id(arg) in written:
                    continue
                if arg.op is None:
                    if id(arg) not in self.arguments:
                        raise ProgramError(
                            f"{located_text(op)} reads {arg.name!r}, which is no argument and which nothing makes"
                        )
                elif id(arg.op) not in listed or all(arg is not value for value in arg.op.results):
                    raise ProgramError(f"{located_text(op)} reads {arg.name!r}, which no operator makes")
                else:
                    earlier = reached([arg.op], lambda one: [each.op for each in one.args if each.op is not None])
                    raise ProgramError(
                        f"{located_text(op)} reads {arg.name!r} before {arg.op!r} makes it"
                        + ("; each needs the other: a cycle" if op in earlier else "")
                    )
            for value in values:
                if id(value) in written or value.op is not op:
                    raise ProgramError(f"{value.name!r} is made twice, or by another operator than its op")
                written.add(id(value))

    def _check_state_order(self, results: list[list[GraphValue]]) -> None:
        accesses: dict[str, list[int]] = defaultdict(list)
        for values in results:
            for value in values:
                if value.state is not None:
                    accesses[value.state].append(id(value))
        for name, current in accesses.items():
            remaining = set(current)
            recorded = [id(value) for value in self.states.get(name, ())]
            if not recorded:
                raise ProgramError(f"state {name!r} is read or written, which the program does not do")
            if current != [value for value in recorded if value in remaining]:
                raise ProgramError(f"state {name!r} is read and written in another order than the program says")

    def _check_effect_order(self, graph: Graph) -> None:
        positions = {id(op.operator): index for index, op in enumerate(graph.ops)}
        last = -1
        for op in self.effects:
            index = positions[id(op.operator)]
            if index < last:
                raise ProgramError(f"{located_text(op)} runs in another order than the program says")
            last = index

    def _check_results(self, graph: Graph, present: set[int]) -> None:
        if len(graph.results) != len(self.results):
            raise ProgramError(f"{len(self.results)} results were asked for; {len(graph.results)} are left")
        for value, spec in zip(graph.results, self.results, strict=True):
            if value.op is not None and id(value) not in present:
                raise ProgramError(f"the result {value.name!r} is made by no operator")
            if value.op is None and id(value) not in self.arguments:
                raise ProgramError(f"the result {value.name!r} is no argument, and nothing makes it")
            if spec is not None and value.spec is not None and not is_compatible(spec, value.spec):
                raise ProgramError(f"the result {value!r} was {spec!r}")

    def _check_metadata(self, op: GraphOp) -> None:
        """Check dims and dtypes against inference, and that in-place updates write the variable that they read."""
        check_operator(op)
        try:
            specs_by_slot = inferred_specs(op)
        except ProgramError as exc:
            raise with_location(exc, located_text(op)) from exc
        except Exception as exc:
            raise ProgramError(f"{located_text(op)}: its inference failed: {type(exc).__name__}: {exc}") from exc
        for slot, specs in (specs_by_slot or {}).items():
            values = op.outputs.get(slot, ())
            if values and len(values) != len(specs):
                raise ProgramError(
                    f"{located_text(op)}: {slot} has {len(values)} values; its inference says {len(specs)}"
                )
            for value, spec in zip(values, specs, strict=False):
                if value is not None and value.spec is not None and not is_compatible(value.spec, spec):
                    raise ProgramError(f"{located_text(op)}: {slot} is {value.spec!r}; its inference says {spec!r}")
        for out, input_slot in op.definition.must_alias.items():
            pairs = zip(op.outputs.get(out, ()), op.inputs.get(input_slot, ()), strict=False)
            if any(output is not None and output.name != value.name for output, value in pairs):
                raise ProgramError(f"{located_text(op)} updates {input_slot} in place; {out} must be the same variable")


def _facts(op: GraphOp) -> Any:
    """The metadata on which inference depends, and its results: compared to detect changes by a pass."""
    facts: list[Any] = [op.type, len(op.inputs), len(op.attrs), *op.attrs, *op.attrs.values()]
    for slots in (op.inputs, op.outputs):
        for slot, values in slots.items():
            facts.append(slot)
            for value in values:
                facts.append(value and value.spec)
    if op.definition.must_alias:
        facts += [value.name for value in op.args]
    return facts
