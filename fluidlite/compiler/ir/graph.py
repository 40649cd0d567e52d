"""The graph of a program in SSA form: each value is written once. Passes rewrite it; the planner makes plans from it.

State is explicit: the operator ``read_state`` gives the value of a state variable at its point, ``write_state`` stores
one. The output of an operator that updates state itself (``sgd``) is a new value with ``state`` set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from math import inf
from typing import Any

from fluidlite import unique_name
from fluidlite.base.errors import ProgramError
from fluidlite.compiler.ir.graph_nodes import READ, READ_DEFINITION, WRITE, GraphOp, GraphValue
from fluidlite.compiler.ir.verify import Verifier, check_operator, inferred_specs
from fluidlite.compiler.policy import Policy, policy
from fluidlite.platform.device_registry import Unit, devices
from fluidlite.platform.place import Place
from fluidlite.program.block import Block
from fluidlite.program.contents import Slots
from fluidlite.program.edit import has_declared_io, sub_blocks
from fluidlite.program.operator import EMPTY, Operator
from fluidlite.program.operator_arguments import check_attrs
from fluidlite.program.program import Program
from fluidlite.program.registry import ops as registry
from fluidlite.program.source_location import NOWHERE

Fingerprint = list[Any]


class Graph:
    """Operators in the order in which they run, over values that are written once.

    Attributes
    ----------
    ops : list of GraphOp
    results : list of GraphValue
        The fetched values, in order; ``fetches`` are their names.
    program : Program
        The source, which passes do not change; sub-blocks of operators belong to it.
    written : tuple of Operator
        The operators of the program on which a result or an effect depends.
    pruned : int
        The number of the other operators.
    writes : bool
        Whether the program writes state; passes write no other state.
    place : Place
        The default place of its operators.
    policy : Policy
        The caller's preferences, with which passes select kernels.
    """

    def __init__(
        self, program: Program, fetches: Sequence[str], place: Place | None = None, preferences: Policy | None = None
    ) -> None:
        self.program = program
        self.policy = preferences if preferences is not None else policy()
        self.place = place if place is not None else devices.host()
        self.block: Block = program.global_block()
        self.fetches = list(fetches)
        self.ops: list[GraphOp] = []
        self.writes = False
        self._current_values: dict[str, GraphValue] = {}
        self._users: dict[int, list[GraphOp]] = {}
        self._users_version: tuple[int, int] | None = None
        for op in self.block.ops:
            self._add(op)
        self.results = [self._value(name) for name in fetches]
        needed = self._needed_operators()
        self.written = tuple([op.operator for op in needed if op.type != READ])
        self.pruned = len(self.operators) - len(self.written)
        self._verifier = Verifier(self)
        self.generic_dims: Any = None  # fuse_dims.GenericDims, shared by passes

    def finished(self) -> Graph:
        """Remove dead operators after the last pass, and return the graph."""
        self.prune()
        self.generic_dims = None
        return self

    @property
    def closed(self) -> bool:
        """Whether operators list all that their sub-blocks read and write: passes may rewrite the graph."""
        control = [op.operator for op in self.ops if op.definition.run is not None]
        return not any(sub_blocks(op) and not has_declared_io(op) for op in control)

    @property
    def operators(self) -> list[GraphOp]:
        """The operators that run, in order: all but reads of state."""
        return [op for op in self.ops if op.type != READ]

    @cached_property
    def state(self) -> dict[str, bool]:
        """The state variables that it reads or writes, and whether it writes them; cached, so read it after passes."""
        written: dict[str, bool] = {}
        for op in self.ops:
            for value in chain.from_iterable(op.outputs.values()):
                if value is not None and value.state is not None:
                    written[value.state] = written.get(value.state, False) or op.type != READ
        return written

    @cached_property
    def updates(self) -> bool:
        """Whether an operator updates state that it reads, as in a training step."""
        for op in self.operators if any(self.state.values()) else ():
            written = {value.state for value in op.results} - {None}
            if written and not written.isdisjoint([arg.name for arg in op.args]):
                return True
        return False

    @cached_property
    def last_reads(self) -> dict[GraphValue, float]:
        """By value the index in :attr:`operators` of its last reader; infinite for results."""
        indices: dict[GraphValue, float] = {
            arg: at for at, op in enumerate(self.operators) for args in op.inputs.values() for arg in args
        }
        indices.update(dict.fromkeys(self.results, inf))
        return indices

    def _value(self, name: str) -> GraphValue:
        """The current value of a name; the first use of a state variable adds a read of state."""
        value = self._current_values.get(name)
        if value is None:
            variable = self.block.find_var(name)
            spec = variable.spec if variable is not None else None
            value = self._current_values[name] = GraphValue(name, spec, None, variable)
            if variable is not None and variable.persistable:
                source = Operator(self.block, READ_DEFINITION, Slots(), Slots(), {}, {}, -1, "forward", NOWHERE)
                read = GraphOp(READ, {}, {}, source)
                read.outputs["Out"] = [value]
                value.op, value.state = read, name
                self.ops.append(read)
        return value

    def _add(self, op: Operator) -> None:
        inputs = {slot: [self._value(name) for name in names] for slot, names in op.inputs.items()}
        stores = op.type == "assign" and any(map(self._is_state, op.output_arg_names))
        graph_op = GraphOp(WRITE if stores else op.type, inputs, dict(op.attrs), op)
        for slot, names in op.outputs.items():
            graph_op.outputs[slot] = []
            for name in names:
                if name == EMPTY:
                    graph_op.outputs[slot].append(None)
                    continue
                variable = self.block.find_var(name)
                value = GraphValue(name, variable.spec if variable is not None else None, graph_op, variable)
                if variable is not None and variable.persistable:
                    value.state, self.writes = name, True
                self._current_values[name] = value
                graph_op.outputs[slot].append(value)
        self.ops.append(graph_op)

    def _is_state(self, name: str) -> bool:
        variable = self.block.find_var(name)
        return variable is not None and variable.persistable

    # Queries and rewrites of passes

    def readers(self, value: GraphValue) -> list[GraphOp]:
        """The operators that read a value."""
        return [op for op in self._current_users().get(id(value), ()) if value in op.args]

    def touch(self) -> None:
        """Invalidate the cached readers; call it after changing operators' inputs without these methods."""
        self._users_version = None

    def _current_users(self) -> dict[int, list[GraphOp]]:
        """Readers by value (``id``): computed once, then updated as long as only methods here change the graph."""
        if self._users_version != (id(self.ops), len(self.ops)):
            self._users = {}
            for op in self.ops:
                for arg in chain.from_iterable(op.inputs.values()):
                    users = self._users.setdefault(id(arg), [])
                    if not users or users[-1] is not op:
                        users.append(op)
            self._users_version = id(self.ops), len(self.ops)
        return self._users

    def is_result(self, value: GraphValue) -> bool:
        """Whether a value is fetched."""
        return value in self.results

    def insert(self, before: GraphOp, type: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> GraphValue:
        """Insert a new operator before another one, and return the value of its first output slot.

        Raises
        ------
        ProgramError
            If there is no such operator, or its slots, attributes, dims or dtypes do not fit.
        """
        definition = registry.get(type)
        source = before.operator
        if before.type == READ:
            raise ProgramError(f"{before!r} is no operator of the program; insert in front of one that is")
        values = {slot: list(vs) if isinstance(vs, (list, tuple)) else [vs] for slot, vs in inputs.items()}
        foreign = [v for vs in values.values() for v in vs if not isinstance(v, GraphValue)]
        if foreign:
            raise ProgramError(f"a new {type!r} cannot read {foreign[0]!r}; expected values of the graph")
        checked_attrs, _ = check_attrs(definition, attrs, source.line)
        op = GraphOp.derived_from(source, definition, values, checked_attrs, source.hints)
        check_operator(op)
        slot = definition.outputs[0].name
        op.outputs[slot] = [None]
        specs = inferred_specs(op)
        value = GraphValue(unique_name.generate(f"{type}.inserted"), specs[slot][0] if specs else None, op, None)
        op.outputs[slot] = [value]
        users = self._current_users()
        self.ops.insert(self.ops.index(before), op)
        for arg in {id(arg) for arg in op.args}:
            users.setdefault(arg, []).append(op)
        self._users_version = id(self.ops), len(self.ops)
        return value

    def replace(self, old: GraphValue, new: GraphValue) -> None:
        """Let all readers of a value read another value of equal dims and dtype.

        Raises
        ------
        ProgramError
            If dims or dtypes differ, or ``old`` is stored in state.
        """
        if old.state is not None:
            raise ProgramError(f"{old.name!r} is state; what is stored in it cannot be replaced")
        if old.spec != new.spec:
            raise ProgramError(f"{old!r} cannot be replaced by {new!r}: dims, dtype or LoD differ")
        users = self._current_users()
        readers = users.pop(id(old), [])
        for op in readers:
            for values in op.inputs.values():
                values[:] = [new if value is old else value for value in values]
        new_users = users.setdefault(id(new), [])
        new_user_ids = set(map(id, new_users))
        new_users += [op for op in readers if id(op) not in new_user_ids]
        self.results = [new if value is old else value for value in self.results]

    def exchange(self, old: Sequence[GraphOp], new: Sequence[GraphOp]) -> None:
        """Replace operators by others that make the same values, at the position of the last of ``old``."""
        users = self._current_users()
        for op in old:
            for arg in {id(arg) for arg in op.args}:
                users[arg].remove(op)
        for op in new:
            for arg in {id(arg) for arg in op.args}:
                users.setdefault(arg, []).append(op)
            for value in op.results:
                value.op = op
        position = self.ops.index(old[-1])
        self.ops[position : position + 1] = new
        for op in old[:-1]:
            self.ops.remove(op)
        self._users_version = id(self.ops), len(self.ops)

    def prune(self) -> int:
        """Remove dead operators, on which no result and no effect depends; return their number."""
        needed = self._needed_operators()
        removed = len(self.ops) - len(needed)
        if removed:
            self.ops = needed
            self.touch()
        return removed

    def _needed_operators(self) -> list[GraphOp]:
        live_values = {id(value) for value in self.results}
        block_names: set[str] = set()  # read by sub-blocks, and not listed by their operator
        live_ops: list[GraphOp] = []
        for op in reversed(self.ops):
            needed = not live_values.isdisjoint(map(id, chain.from_iterable(op.outputs.values())))
            if needed or op.has_effect or (block_names and not block_names.isdisjoint(op.output_arg_names)):
                live_ops.append(op)
                live_values.update(map(id, chain.from_iterable(op.inputs.values())))
                if op.definition.run is not None:
                    block_names.update(_read_inside(op.operator))
        return live_ops[::-1]

    def verify(self) -> None:
        """Raise ProgramError if a pass broke the graph.

        Errors: a value is read before it is made, made twice, or never made; accesses to state are reordered or
        missing; an operator with an effect is missing; or dims and dtypes contradict inference.
        """
        self._verifier.check(self)

    def __iter__(self) -> Iterator[GraphOp]:
        return iter(self.ops)

    def __str__(self) -> str:
        return "\n".join(map(repr, self.ops))


def unit_of(graph: Graph, op: GraphOp) -> Unit:
    """The device on which an operator runs: that of its ``device_guard``, by default the graph's."""
    return devices.unit(op.operator.hints.get("op_device") or graph.place)


def fingerprint(graph: Graph) -> Fingerprint:
    """The operators and values of a graph as a flat list: equal before and after a pass without effect."""
    items: Fingerprint = []  # one flat list: many small ones trigger garbage collections
    for op in graph.ops:
        items.append(op)
        for slot, args in op.inputs.items():
            items.append(slot)
            items += args
        for slot, outs in op.outputs.items():
            items.append(slot)
            items += outs
    return [*items, READ, *graph.results]


def _read_inside(source: Operator) -> set[str]:
    """Names of the outer block that the sub-blocks of an operator read, unless the operator lists them."""
    if has_declared_io(source):
        return set()
    blocks = [source.block.program.blocks[index] for index in sub_blocks(source)]
    return {name for block in blocks for inner in block.ops for name in inner.input_arg_names if name not in block.vars}
