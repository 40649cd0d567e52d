"""The verifier: sees that a pass left a graph that computes what it did before, as far as metadata can tell.

It is asked after each pass. What a pass did not touch is not inferred again, so it costs one look at each operator.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any

from fluidlite.base.errors import ProgramError
from fluidlite.base.reached import reached
from fluidlite.compiler.ir.graph_nodes import WRITE
from fluidlite.program.inference import check_inputs
from fluidlite.program.op_call import PLACEHOLDER, Call, located
from fluidlite.program.source_location import NOWHERE
from fluidlite.tensor.tensor_spec import TENSOR_ARRAY, Spec, all_agree, specs_of

if TYPE_CHECKING:
    from fluidlite.compiler.ir.graph import Graph
    from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue


def inferred(op: GraphOp) -> dict[str, tuple[Spec, ...]] | None:
    """What the definition of an operator says that it makes of its inputs; None where that is not known.

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


def agree(one: Spec, other: Spec) -> bool:
    """Whether two specs have one dtype, kind and rank, and no dim that is known in both differs.

    Of tensor arrays dims are those of what has been written so far: they have no say.
    """
    if one.kind == other.kind == TENSOR_ARRAY:
        return one.dtype == other.dtype
    dims = one.dims == other.dims or all_agree(one.dims, other.dims)
    return dims and one.dtype == other.dtype and one.kind == other.kind


def place_of(op: GraphOp) -> str:
    """An operator, and the user's line that it comes from, for an error."""
    return f"{op!r} ({op.line})" if op.line is not NOWHERE else repr(op)


def check_operator(op: GraphOp) -> None:
    """See that the type of an operator is its own, and that slots and attributes are as its definition declares.

    Raises ProgramError that names the operator, and the user's line.
    """
    definition = op.definition
    if op.type != definition.type and op.type != WRITE:
        raise ProgramError(
            f"{place_of(op)} is of type {definition.type!r}, which cannot be changed"
            "\n  Do: graph.insert(op, type, inputs, attrs), and replace_op"
        )
    for side, slots, declared in (("input", op.inputs, definition.inputs), ("output", op.outputs, definition.outputs)):
        known = {slot.name for slot in declared}
        for name in slots:
            if name not in known:
                raise ProgramError(
                    f"{place_of(op)} has no {side} {name!r}; it has {', '.join(sorted(known)) or 'none'}"
                )
        for slot in declared:
            if side == "input" and not slot.dispensable and not slots.get(slot.name):
                raise ProgramError(f"{place_of(op)}: its input {slot.name} is gone")
            if len(slots.get(slot.name, ())) > 1 and not slot.duplicable:
                raise ProgramError(f"{place_of(op)}: {slot.name} takes one value, not {len(slots[slot.name])}")
    for name in op.attrs:
        if definition.attr(name) is None:
            has = ", ".join(attr.name for attr in definition.attrs) or "none"
            raise ProgramError(f"{place_of(op)} has no attribute {name!r}; it has {has}")
    for attr in definition.attrs:
        value = op.attrs.get(attr.name)
        if value is None and (attr.required or attr.default is not None):
            raise ProgramError(f"{place_of(op)}: its attribute {attr.name!r} is gone; expected {attr.type}")
        if value is not None:
            try:
                attr.check(value)
            except ProgramError as exc:
                raise located(exc, place_of(op)) from None


class Verifier:
    """Knows how a graph was made, and compares."""

    def __init__(self, graph: Graph) -> None:
        self.arguments = {id(value): value for value in graph.results if value.op is None}
        self.results = [value.spec for value in graph.results]
        self.states: dict[str, list[GraphValue]] = defaultdict(list)
        self.effects: list[GraphOp] = []
        self._seen: dict[int, tuple[GraphOp, Any]] = {}
        for op in graph.ops:
            self._seen[id(op)] = op, _facts(op)
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
        """Compare; ProgramError that names the operator that is wrong, and the user's line."""
        results = [op.results for op in graph.ops]
        there = {id(value) for values in results for value in values}
        self._dropped(graph, there)
        self._order(graph, results)
        for op in graph.ops:
            facts = _facts(op)
            known = self._seen.get(id(op))
            if known is None or known[1] != facts:
                self._metadata(op)
                self._seen[id(op)] = op, facts
        self._states(results)
        self._effects(graph)
        self._results(graph, there)

    def _dropped(self, graph: Graph, there: set[int]) -> None:
        """See that what stores state, or does more than make values, is there."""
        for name, values in self.states.items():
            for value in values:
                if value.state != name:
                    raise ProgramError(
                        f"{value.name!r} is {value.state!r} in the graph; the program says state {name!r}"
                    )
                if id(value) not in there and value.op is not None and value.op.has_effect:
                    raise ProgramError(f"state {name!r} is not written any more: {place_of(value.op)} is gone")
        sources = {id(op.operator) for op in graph.ops}
        for op in self.effects:
            if id(op.operator) not in sources:
                raise ProgramError(f"{place_of(op)} is gone, which does more than make values")

    def _order(self, graph: Graph, results: list[list[GraphValue]]) -> None:
        """See that values are made once, and before they are read."""
        made: set[int] = set()
        listed = {id(op) for op in graph.ops}
        for op, values in zip(graph.ops, results, strict=True):
            for arg in chain.from_iterable(op.inputs.values()):
                if id(arg) in made:
                    continue
                if arg.op is None:
                    if id(arg) not in self.arguments:
                        raise ProgramError(
                            f"{place_of(op)} reads {arg.name!r}, which is no argument and which nothing makes"
                        )
                elif id(arg.op) not in listed or all(arg is not value for value in arg.op.results):
                    raise ProgramError(f"{place_of(op)} reads {arg.name!r}, which no operator makes")
                else:
                    circle = op in reached([arg.op], lambda one: [each.op for each in one.args if each.op is not None])
                    raise ProgramError(
                        f"{place_of(op)} reads {arg.name!r} before {arg.op!r} makes it"
                        + ("; each needs the other: a cycle" if circle else "")
                    )
            for value in values:
                if id(value) in made or value.op is not op:
                    raise ProgramError(f"{value.name!r} is made twice, or by another operator than it says")
                made.add(id(value))

    def _states(self, results: list[list[GraphValue]]) -> None:
        touched: dict[str, list[int]] = defaultdict(list)
        for values in results:
            for value in values:
                if value.state is not None:
                    touched[value.state].append(id(value))
        for name, now in touched.items():
            kept = set(now)
            before = [id(value) for value in self.states.get(name, ())]
            if not before:
                raise ProgramError(f"state {name!r} is read or written, which the program does not do")
            if now != [value for value in before if value in kept]:
                raise ProgramError(f"state {name!r} is read and written in another order than the program says")

    def _effects(self, graph: Graph) -> None:
        place = {id(op.operator): index for index, op in enumerate(graph.ops)}
        last = -1
        for op in self.effects:
            index = place[id(op.operator)]
            if index < last:
                raise ProgramError(f"{place_of(op)} runs in another order than the program says")
            last = index

    def _results(self, graph: Graph, there: set[int]) -> None:
        if len(graph.results) != len(self.results):
            raise ProgramError(f"{len(self.results)} results were asked for; {len(graph.results)} are left")
        for value, spec in zip(graph.results, self.results, strict=True):
            if value.op is not None and id(value) not in there:
                raise ProgramError(f"the result {value.name!r} is made by no operator")
            if value.op is None and id(value) not in self.arguments:
                raise ProgramError(f"the result {value.name!r} is no argument, and nothing makes it")
            if spec is not None and value.spec is not None and not agree(spec, value.spec):
                raise ProgramError(f"the result {value!r} was {spec!r}")

    def _metadata(self, op: GraphOp) -> None:
        """See that dims and dtypes are what the definition makes of the inputs, and what is updated is one variable."""
        check_operator(op)
        try:
            found = inferred(op)
        except ProgramError as exc:
            raise located(exc, place_of(op)) from exc
        except Exception as exc:
            raise ProgramError(f"{place_of(op)}: its inference failed: {type(exc).__name__}: {exc}") from exc
        for slot, specs in (found or {}).items():
            values = op.outputs.get(slot, ())
            if values and len(values) != len(specs):
                raise ProgramError(f"{place_of(op)}: {slot} has {len(values)} values; its inference says {len(specs)}")
            for value, spec in zip(values, specs, strict=False):
                if value is not None and value.spec is not None and not agree(value.spec, spec):
                    raise ProgramError(f"{place_of(op)}: {slot} is {value.spec!r}; its inference says {spec!r}")
        for out, given in op.definition.must_alias.items():
            pairs = zip(op.outputs.get(out, ()), op.inputs.get(given, ()), strict=False)
            if any(made is not None and made.name != value.name for made, value in pairs):
                raise ProgramError(f"{place_of(op)} updates {given} in place; {out} must be the same variable")


def _facts(op: GraphOp) -> Any:
    """What inference depends on, and what it says: to see whether a pass changed it."""
    found: list[Any] = [op.type, len(op.inputs), len(op.attrs), *op.attrs, *op.attrs.values()]
    for slots in (op.inputs, op.outputs):
        for slot, values in slots.items():
            found.append(slot)
            for value in values:
                found.append(value and value.spec)
    if op.definition.must_alias:
        found += [value.name for value in op.args]
    return found
