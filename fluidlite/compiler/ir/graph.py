"""A graph of values written once, made from a program: passes change it, and plans are made of it.

State is read and written by operators of their own: ``read_state`` gives the value that a variable holds at that point,
``write_state`` stores one. What an operator that updates state itself (``sgd``) gives is the new value, with its
``state``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import inf
from typing import Any, Union

import numpy as np

from fluidlite import unique_name
from fluidlite.base.dtypes import NUMPY, integer_limits
from fluidlite.base.errors import ProgramError
from fluidlite.compiler.ir.verify import Verifier, check_operator
from fluidlite.compiler.selection.policy import Policy, policy
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.program.block import Block
from fluidlite.program.edit import acts, closed, sub_blocks
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import OpDef
from fluidlite.program.operator import EMPTY, Operator, check_attrs
from fluidlite.program.program import Program
from fluidlite.program.registry import ops as registry
from fluidlite.program.source_location import Line
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor_spec import Spec

READ, WRITE = "read_state", "write_state"
Fingerprint = list[Any]


class GraphValue:
    """A value: written by one operator, or given as an argument.

    Attributes
    ----------
    name : str
        Of the variable that holds it in the program.
    spec : Spec or None
    op : GraphOp or None
        What makes it; None for an argument.
    state : str or None
        The state variable that holds it from here on.
    """

    __slots__ = ("name", "op", "spec", "state", "variable")

    def __init__(self, name: str, spec: Spec | None, op: GraphOp | None, variable: Variable | None) -> None:
        self.name = name
        self.spec = spec
        self.op = op
        self.variable = variable
        self.state: str | None = None

    @property
    def is_scalar(self) -> bool:
        """Whether it has no dims."""
        return self.spec is not None and self.spec.dims == ()

    @property
    def is_constant(self) -> bool:
        """Whether it is the same number at every run."""
        return self.op is not None and self.op.type == "fill_constant" and not self.op.args

    @property
    def const(self) -> Any:
        """The number of a constant, as its dtype holds it; None for others."""
        if self.op is None or not self.is_constant or self.spec is None:
            return None
        number = self.op.attrs.get("str_value") or self.op.attrs["value"]  # the text is for what a float cannot hold
        kind = NUMPY[self.spec.dtype]
        if kind.kind not in "iu":
            return np.asarray(float(number)).astype(kind).item()
        whole = isinstance(number, str) and number.strip().lstrip("+-").isdigit()
        exact = int(number) if whole else float(number)
        low, high = integer_limits(self.spec.dtype)
        return 0 if exact != exact else int(min(max(exact, low), high))

    def __repr__(self) -> str:
        return f"{self.name}: {self.spec!r}"


class GraphOp:
    """An operator of a graph.

    Attributes
    ----------
    type : str
        ``"read_state"``, ``"write_state"``, or a type of the registry.
    inputs, outputs : dict of slot to list of GraphValue (None: an output that nobody wants)
    attrs : dict
    operator : Operator or None
        What it comes from, for its definition, line, role and hints; None for a read of state.
    planned : (metadata, Call) or None
        What it was last planned as.
    looks : (metadata, attributes, bool) or None
        Whether it was last found to check indices.
    """

    __slots__ = ("attrs", "inputs", "looks", "operator", "outputs", "planned", "type")

    def __init__(
        self, type: str, inputs: dict[str, list[GraphValue]], attrs: dict[str, Any], operator: Operator | None
    ) -> None:
        self.type = type
        self.inputs = inputs
        self.outputs: dict[str, list[GraphValue | None]] = {}
        self.attrs = attrs
        self.operator = operator
        self.planned: tuple[Any, Call] | None = None
        self.looks: tuple[Any, Any, bool] | None = None

    @property
    def source(self) -> Operator:
        """The operator of a program that it comes from; a read of state has none."""
        assert self.operator is not None, self.type
        return self.operator

    @property
    def definition(self) -> OpDef:
        """What it means."""
        assert self.operator is not None, self.type
        return self.operator.definition

    @property
    def hints(self) -> dict[str, Any]:
        """Hint attributes."""
        return self.source.hints

    @property
    def role(self) -> str:
        """``"forward"``, ``"backward"``, ``"optimize"`` or ``"lr_sched"``."""
        return self.source.role

    @property
    def line(self) -> Line:
        """Where the user made it."""
        return self.source.line

    @property
    def namescope(self) -> str:
        """Where the user made it, as Fluid's ``name_scope`` says."""
        return self.source.namescope

    @property
    def input_arg_names(self) -> list[str]:
        """The variables that it reads."""
        return [value.name for value in self.args]

    @property
    def output_arg_names(self) -> list[str]:
        """The variables that it writes."""
        return [EMPTY if value is None else value.name for values in self.outputs.values() for value in values]

    @property
    def args(self) -> list[GraphValue]:
        """The values that it reads, slot by slot."""
        found: list[GraphValue] = []
        for values in self.inputs.values():
            found += values
        return found

    @property
    def results(self) -> list[GraphValue]:
        """The values that it makes."""
        found: list[GraphValue] = []
        for values in self.outputs.values():
            for value in values:
                if value is not None:
                    found.append(value)
        return found

    def output(self, slot: str) -> GraphValue | None:
        """The first value that it makes in a slot; None if nobody wants it, or the program leaves the slot out."""
        return next(iter(self.outputs.get(slot, ())), None)

    @property
    def value(self) -> GraphValue:
        """The only value that it makes.

        Raises
        ------
        ProgramError
            If it makes several, or none.
        """
        made = self.results
        if len(made) != 1:
            raise ProgramError(f"{self!r} makes {len(made)} values; name one of its outputs")
        return made[0]

    @property
    def has_effect(self) -> bool:
        """Whether it does more than make its values."""
        if self.type == READ or self.operator is None:
            return False
        for value in self.results:
            if value.state is not None:
                return True
        definition = self.operator.definition
        return (definition.effect or definition.run is not None) and acts(self.operator)

    def __str__(self) -> str:
        return str(self.operator) if self.operator is not None else repr(self)

    def __repr__(self) -> str:
        call = f"{self.type}({', '.join(v.name for v in self.args)})"
        return f"{', '.join(v.name for v in self.results)} = {call}" if self.results else call


Replaceable = Union[GraphOp, GraphValue]


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
        self.written = tuple([op.source for op in kept if op.type != READ])
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
        control = [op.operator for op in self.ops if op.operator is not None and op.operator.definition.run is not None]
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
            for value in op.results:
                if value.state is not None:
                    found[value.state] = found.get(value.state, False) or op.type != READ
        return found

    @cached_property
    def updates(self) -> bool:
        """Whether an operator writes state over what it was, as in programs that run again and again."""
        for op in self.operators:
            written = {value.state for value in op.results} - {None}
            if written and not written.isdisjoint([arg.name for arg in op.args]):
                return True
        return False

    @cached_property
    def last_reads(self) -> dict[GraphValue, float]:
        """The index in :attr:`operators` that reads a value last; infinite for results."""
        found: dict[GraphValue, float] = {arg: at for at, op in enumerate(self.operators) for arg in op.args}
        found.update(dict.fromkeys(self.results, inf))
        return found

    def _value(self, name: str) -> GraphValue:
        """The value that a name has now; the first use of state reads it."""
        found = self._now.get(name)
        if found is None:
            variable = self.block.find_var(name)
            found = self._now[name] = GraphValue(name, variable.spec if variable is not None else None, None, variable)
            if variable is not None and variable.persistable:
                read = GraphOp(READ, {}, {}, None)
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
                value.state = name if variable is not None and variable.persistable else None
                self._now[name] = value
                made.outputs[slot].append(value)
        self.ops.append(made)

    def _is_state(self, name: str) -> bool:
        variable = self.block.find_var(name)
        return variable is not None and variable.persistable

    # What passes ask and do

    def readers(self, value: GraphValue) -> list[GraphOp]:
        """The operators that read a value."""
        return [op for op in self._uses().get(id(value), ()) if any(arg is value for arg in op.args)]

    def touch(self) -> None:
        """Say that the inputs of operators were changed by hand; :meth:`replace` and the like know it themselves."""
        self._used = None

    def _uses(self) -> dict[int, list[GraphOp]]:
        """Readers by value: found once, and kept up to date while only the methods here change the graph."""
        if self._used != (id(self.ops), len(self.ops)):
            self._users = {}
            for op in self.ops:
                for arg in op.args:
                    known = self._users.setdefault(id(arg), [])
                    if not known or known[-1] is not op:
                        known.append(op)
            self._used = id(self.ops), len(self.ops)
        return self._users

    def is_result(self, value: GraphValue) -> bool:
        """Whether a value is fetched."""
        return any(result is value for result in self.results)

    def insert(self, before: GraphOp, type: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> GraphValue:
        """Put a new operator in front of another, and return the value of its first output slot.

        Raises
        ------
        ProgramError
            If there is no such operator, or its slots, attributes, dims or dtypes do not fit.
        """
        definition = registry.get(type)
        near = before.operator
        if near is None:
            raise ProgramError(f"{before!r} is no operator of the program; insert in front of one that is")
        given = {slot: list(vs) if isinstance(vs, (list, tuple)) else [vs] for slot, vs in inputs.items()}
        strange = [v for vs in given.values() for v in vs if not isinstance(v, GraphValue)]
        if strange:
            raise ProgramError(f"a new {type!r} cannot read {strange[0]!r}; expected values of the graph")
        clean, _ = check_attrs(definition, attrs, near.line)
        operator = Operator(
            self.block, definition, {}, {}, clean, dict(near.hints), near.id, near.role, near.line, near.namescope
        )
        made = GraphOp(type, given, clean, operator)
        check_operator(made)
        slot = definition.outputs[0].name
        specs = {name: tuple(v.spec for v in vs if v.spec is not None) for name, vs in given.items()}
        call = Call(definition, specs, {slot: (Spec.of((), "float32"),)}, clean)
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
            made = op.results
            needed = not wanted.isdisjoint(map(id, made)) or (
                names and not names.isdisjoint([value.name for value in made])
            )
            if needed or op.has_effect:
                kept.append(op)
                wanted.update(map(id, op.args))
                if op.operator is not None and op.operator.definition.run is not None:
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
