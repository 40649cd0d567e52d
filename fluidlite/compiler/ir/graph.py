"""A graph of values written once, made from a program: passes change it, and plans are made of it.

State is read and written by operators of their own: ``read_state`` gives the value that a variable holds at that point,
``write_state`` stores one. What an operator that updates state itself (``sgd``) gives is the new value, with its
``state``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from math import inf
from typing import Any

from fluidlite import unique_name
from fluidlite.base.errors import ProgramError
from fluidlite.compiler.ir.graph_nodes import READ, READING, WRITE, GraphOp, GraphValue
from fluidlite.compiler.ir.verify import Verifier, check_operator
from fluidlite.compiler.policy import Policy, policy
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.program.block import Block
from fluidlite.program.contents import Slots
from fluidlite.program.edit import closed, sub_blocks
from fluidlite.program.op_call import PLACEHOLDER, Call
from fluidlite.program.operator import EMPTY, Operator
from fluidlite.program.operator_arguments import check_attrs
from fluidlite.program.program import Program
from fluidlite.program.registry import ops as registry
from fluidlite.program.source_location import NOWHERE
from fluidlite.tensor.tensor_spec import Spec

Fingerprint = list[Any]


class Graph:
    """Operators in the order in which they run, over values that are written once.

    Attributes
    ----------
    ops : list of GraphOp
    results : list of GraphValue
        What is fetched, in order; ``fetches`` are the names under which it was asked for.
    program : Program
        Where it comes from; it stays as it is. Sub-blocks are its.
    written : tuple of Operator
        The operators of the program that something needs.
    pruned : int
        How many nothing needs.
    writes : bool
        Whether the program writes state; passes write no other.
    place : Place
        Where it is to run, but for what the user put elsewhere.
    policy : Policy
        The preferences of who runs it: passes ask with these which kernels it will run.
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
        self._now: dict[str, GraphValue] = {}
        self._users: dict[int, list[GraphOp]] = {}
        self._used: tuple[int, int] | None = None
        for op in self.block.ops:
            self._add(op)
        self.results = [self._value(name) for name in fetches]
        self._whole: Fingerprint | None = None
        kept = self._needed()
        if len(kept) == len(self.ops):
            self._whole = fingerprint(self)
        self.written = tuple([op.operator for op in kept if op.type != READ])
        self.pruned = len(self.operators) - len(self.written)
        self._verifier = Verifier(self)
        self.generic_dims: Any = None  # what passes found, for those behind them

    def finished(self) -> Graph:
        """Take out what nothing needs, and return the graph: plans are made of it from now on, and passes are over."""
        self.prune()
        self.generic_dims = self._whole = None
        return self

    @property
    def closed(self) -> bool:
        """Whether operators say all that their sub-blocks read and write, so that passes may change the graph."""
        control = [op.operator for op in self.ops if op.definition.run is not None]
        return not any(sub_blocks(op) and not closed(op) for op in control)

    @property
    def operators(self) -> list[GraphOp]:
        """What runs, in order: all operators but reads of state."""
        return [op for op in self.ops if op.type != READ]

    @cached_property
    def state(self) -> dict[str, bool]:
        """The state variables that it reads or writes, and whether it writes them; of a graph that passes have left."""
        found: dict[str, bool] = {}
        for op in self.ops:
            for value in chain.from_iterable(op.outputs.values()):
                if value is not None and value.state is not None:
                    found[value.state] = found.get(value.state, False) or op.type != READ
        return found

    @cached_property
    def updates(self) -> bool:
        """Whether an operator writes state over what it was, as in programs that run again and again."""
        for op in self.operators if any(self.state.values()) else ():
            written = {value.state for value in op.results} - {None}
            if written and not written.isdisjoint([arg.name for arg in op.args]):
                return True
        return False

    @cached_property
    def last_reads(self) -> dict[GraphValue, float]:
        """The index in :attr:`operators` that reads a value last; infinite for results."""
        found: dict[GraphValue, float] = {
            arg: at for at, op in enumerate(self.operators) for args in op.inputs.values() for arg in args
        }
        found.update(dict.fromkeys(self.results, inf))
        return found

    def _value(self, name: str) -> GraphValue:
        """The value that a name has now; the first use of state reads it."""
        found = self._now.get(name)
        if found is None:
            variable = self.block.find_var(name)
            found = self._now[name] = GraphValue(name, variable.spec if variable is not None else None, None, variable)
            if variable is not None and variable.persistable:
                reading = Operator(self.block, READING, Slots(), Slots(), {}, {}, -1, "forward", NOWHERE)
                read = GraphOp(READ, {}, {}, reading)
                read.outputs["Out"] = [found]
                found.op, found.state = read, name
                self.ops.append(read)
        return found

    def _add(self, op: Operator) -> None:
        inputs = {slot: [self._value(name) for name in names] for slot, names in op.inputs.items()}
        stores = op.type == "assign" and any(map(self._is_state, op.output_arg_names))
        made = GraphOp(WRITE if stores else op.type, inputs, dict(op.attrs), op)
        for slot, names in op.outputs.items():
            made.outputs[slot] = []
            for name in names:
                if name == EMPTY:
                    made.outputs[slot].append(None)
                    continue
                variable = self.block.find_var(name)
                value = GraphValue(name, variable.spec if variable is not None else None, made, variable)
                if variable is not None and variable.persistable:
                    value.state, self.writes = name, True
                self._now[name] = value
                made.outputs[slot].append(value)
        self.ops.append(made)

    def _is_state(self, name: str) -> bool:
        variable = self.block.find_var(name)
        return variable is not None and variable.persistable

    # What passes ask and do

    def readers(self, value: GraphValue) -> list[GraphOp]:
        """The operators that read a value."""
        return [op for op in self._uses().get(id(value), ()) if value in op.args]

    def touch(self) -> None:
        """Say that the inputs of operators were changed by hand; :meth:`replace` and the like know it themselves."""
        self._used = None

    def _uses(self) -> dict[int, list[GraphOp]]:
        """Readers by value: found once, and kept up to date while only the methods here change the graph."""
        if self._used != (id(self.ops), len(self.ops)):
            self._users = {}
            for op in self.ops:
                for arg in chain.from_iterable(op.inputs.values()):
                    known = self._users.setdefault(id(arg), [])
                    if not known or known[-1] is not op:
                        known.append(op)
            self._used = id(self.ops), len(self.ops)
        return self._users

    def is_result(self, value: GraphValue) -> bool:
        """Whether a value is fetched."""
        return value in self.results

    def insert(self, before: GraphOp, type: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> GraphValue:
        """Put a new operator in front of another, and return the value of its first output slot.

        Raises
        ------
        ProgramError
            If there is no such operator, or its slots, attributes, dims or dtypes do not fit.
        """
        definition = registry.get(type)
        near = before.operator
        if before.type == READ:
            raise ProgramError(f"{before!r} is no operator of the program; insert in front of one that is")
        given = {slot: list(vs) if isinstance(vs, (list, tuple)) else [vs] for slot, vs in inputs.items()}
        strange = [v for vs in given.values() for v in vs if not isinstance(v, GraphValue)]
        if strange:
            raise ProgramError(f"a new {type!r} cannot read {strange[0]!r}; expected values of the graph")
        clean, _ = check_attrs(definition, attrs, near.line)
        made = GraphOp.near(near, definition, given, clean, near.hints)
        check_operator(made)
        slot = definition.outputs[0].name
        specs = {name: tuple(v.spec for v in vs if v.spec is not None) for name, vs in given.items()}
        call = Call(definition, specs, {slot: (PLACEHOLDER,)}, clean)
        found = definition.infer(call)[slot] if definition.infer is not None else None
        spec = found if isinstance(found, Spec) or found is None else found[0]
        value = GraphValue(unique_name.generate(f"{type}.inserted"), spec, made, None)
        made.outputs[slot] = [value]
        users = self._uses()
        self.ops.insert(self.ops.index(before), made)
        for arg in {id(arg) for arg in made.args}:
            users.setdefault(arg, []).append(made)
        self._used = id(self.ops), len(self.ops)
        return value

    def replace(self, old: GraphValue, new: GraphValue) -> None:
        """Let all that reads a value read another; their dims and dtypes are the same.

        Raises
        ------
        ProgramError
            If they are not, or ``old`` is what state holds.
        """
        if old.state is not None:
            raise ProgramError(f"{old.name!r} is state; what is stored in it cannot be replaced")
        if old.spec != new.spec:
            raise ProgramError(f"{old!r} cannot be replaced by {new!r}: dims, dtype or LoD are others")
        users = self._uses()
        readers = users.pop(id(old), [])
        for op in readers:
            for values in op.inputs.values():
                values[:] = [new if value is old else value for value in values]
        known = users.setdefault(id(new), [])
        there = set(map(id, known))
        known += [op for op in readers if id(op) not in there]
        self.results = [new if value is old else value for value in self.results]

    def exchange(self, old: Sequence[GraphOp], new: Sequence[GraphOp]) -> None:
        """Put operators in the place of others, where the last of these is; they make the same values."""
        users = self._uses()
        for op in old:
            for arg in {id(arg) for arg in op.args}:
                users[arg].remove(op)
        for op in new:
            for arg in {id(arg) for arg in op.args}:
                users.setdefault(arg, []).append(op)
            for value in op.results:
                value.op = op
        at = self.ops.index(old[-1])
        self.ops[at : at + 1] = new
        for op in old[:-1]:
            self.ops.remove(op)
        self._used = id(self.ops), len(self.ops)

    def prune(self) -> int:
        """Take out operators that no result and no effect needs; return how many."""
        now = fingerprint(self)
        if now == self._whole:
            return 0
        kept = self._needed()
        gone = len(self.ops) - len(kept)
        if gone:
            self.ops = kept
            self.touch()
        self._whole = fingerprint(self) if gone else now
        return gone

    def _needed(self) -> list[GraphOp]:
        wanted = {id(value) for value in self.results}
        names: set[str] = set()  # that sub-blocks read without their operator's saying so
        kept: list[GraphOp] = []
        for op in reversed(self.ops):
            needed = not wanted.isdisjoint(map(id, chain.from_iterable(op.outputs.values())))
            if needed or op.has_effect or (names and not names.isdisjoint(op.output_arg_names)):
                kept.append(op)
                wanted.update(map(id, chain.from_iterable(op.inputs.values())))
                if op.definition.run is not None:
                    names.update(_read_inside(op.operator))
        return kept[::-1]

    def verify(self) -> None:
        """Raise ProgramError if a pass broke the graph.

        A value is read too early, made twice or by nobody; state is read or written in another order, or not any more;
        an operator is gone that does more than make values; or dims and dtypes are not what inference says.
        """
        self._verifier.check(self)

    def __iter__(self) -> Iterator[GraphOp]:
        return iter(self.ops)

    def __str__(self) -> str:
        return "\n".join(map(repr, self.ops))


def fingerprint(graph: Graph) -> Fingerprint:
    """What a graph is made of; the same before and after a pass that found nothing."""
    found: Fingerprint = []  # one list: many small ones are many rounds of garbage collection
    for op in graph.ops:
        found.append(op)
        for slot, given in op.inputs.items():
            found.append(slot)
            found += given
        for slot, made in op.outputs.items():
            found.append(slot)
            found += made
    return [*found, READ, *graph.results]


def _read_inside(source: Operator) -> set[str]:
    """Names that the sub-blocks of an operator read of the block around, where it does not list them itself."""
    if closed(source):
        return set()
    blocks = [source.block.program.blocks[index] for index in sub_blocks(source)]
    return {name for block in blocks for inner in block.ops for name in inner.input_arg_names if name not in block.vars}
