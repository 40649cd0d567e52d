"""A graph of values written once, made from a program; passes change it, and it becomes a program again.

State is read and written by operators of their own: ``read_state`` gives the value that a variable holds at that point,
``write_state`` stores one. What an operator that updates state itself (``sgd``) gives is the new value, with its
``state``.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Any, Union

import numpy as np

from fluidlite import unique_name
from fluidlite.base.dtypes import NUMPY, integer_limits
from fluidlite.base.errors import ProgramError
from fluidlite.framework.call import Call
from fluidlite.framework.operator import EMPTY, Operator, check_attrs
from fluidlite.framework.policy import Policy, policy
from fluidlite.framework.program import Block, Program
from fluidlite.framework.program_edit import sub_blocks
from fluidlite.framework.registry import ops as registry
from fluidlite.framework.spec import Spec
from fluidlite.framework.variable import Variable
from fluidlite.platform.devices import devices
from fluidlite.platform.place import Place
from fluidlite.transformers.node import Node
from fluidlite.transformers.verify import Verifier, check_operator

READ, WRITE = "read_state", "write_state"


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
        What it comes from, for its line, role and hints.
    """

    __slots__ = ("attrs", "inputs", "operator", "outputs", "type")

    def __init__(
        self, type: str, inputs: dict[str, list[GraphValue]], attrs: dict[str, Any], operator: Operator | None
    ) -> None:
        self.type = type
        self.inputs = inputs
        self.outputs: dict[str, list[GraphValue | None]] = {}
        self.attrs = attrs
        self.operator = operator

    @property
    def args(self) -> list[GraphValue]:
        """The values that it reads, slot by slot."""
        return [value for values in self.inputs.values() for value in values]

    @property
    def results(self) -> list[GraphValue]:
        """The values that it makes."""
        return [value for values in self.outputs.values() for value in values if value is not None]

    @property
    def value(self) -> GraphValue:
        """The only value that it makes.

        Raises
        ------
        ProgramError
            If it makes several, or none.
        """
        if len(self.results) != 1:
            raise ProgramError(f"{self!r} makes {len(self.results)} values; name one of its outputs")
        return self.results[0]

    @property
    def has_effect(self) -> bool:
        """Whether it does more than make its values."""
        if self.type == READ:
            return False
        if self.type == WRITE or any(v is not None and v.state is not None for vs in self.outputs.values() for v in vs):
            return True
        if self.operator is None:
            return False
        definition = self.operator.definition
        return definition.run is not None or definition.effect

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
        What is fetched, in order.
    program : Program
        Where it comes from; it stays as it is.
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
        self.ops: list[GraphOp] = []
        self._now: dict[str, GraphValue] = {}
        self._users: dict[int, list[GraphOp]] = {}
        self._used: tuple[int, int] | None = None
        for op in self.block.ops:
            self._add(op)
        self.results = [self._value(name) for name in fetches]
        self._verifier = Verifier(self)

    @staticmethod
    def supports(program: Program) -> bool:
        """Whether a program can become a graph: one without sub-blocks."""
        return not any(sub_blocks(op) for op in program.global_block().ops)

    def _value(self, name: str) -> GraphValue:
        """The value that a name has now; the first use of state reads it."""
        found = self._now.get(name)
        if found is None:
            variable = self.block.var(name)
            found = self._now[name] = GraphValue(name, variable.spec, None, variable)
            if variable.persistable:
                read = GraphOp(READ, {}, {}, None)
                read.outputs["Out"] = [found]
                found.op, found.state = read, name
                self.ops.append(read)
        return found

    def _add(self, op: Operator) -> None:
        inputs = {slot: [self._value(name) for name in names] for slot, names in op.inputs.items()}
        stores = op.type == "assign" and self.block.var(op.outputs["Out"][0]).persistable
        made = GraphOp(WRITE if stores else op.type, inputs, dict(op.attrs), op)
        for slot, names in op.outputs.items():
            made.outputs[slot] = []
            for name in names:
                if name == EMPTY:
                    made.outputs[slot].append(None)
                    continue
                variable = self.block.var(name)
                value = GraphValue(name, variable.spec, made, variable)
                value.state = name if variable.persistable else None
                self._now[name] = value
                made.outputs[slot].append(value)
        self.ops.append(made)

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
        wanted = {id(value) for value in self.results}
        kept: list[GraphOp] = []
        for op in reversed(self.ops):
            if op.has_effect or any(id(value) in wanted for value in op.results):
                kept.append(op)
                wanted.update(id(value) for value in op.args)
        gone = len(self.ops) - len(kept)
        if gone:
            self.ops = kept[::-1]
            self.touch()
        return gone

    def verify(self) -> None:
        """Raise ProgramError if a pass broke the graph.

        A value is read too early, made twice or by nobody; state is read or written in another order, or not any more;
        an operator is gone that does more than make values; or dims and dtypes are not what inference says.
        """
        self._verifier.check(self)

    # Back to a program

    def to_program(self) -> tuple[Program, list[str]]:
        """Return a program that computes the graph, and the names of the results."""
        return _Writer(self).write()

    def __iter__(self) -> Iterator[GraphOp]:
        return iter(self.ops)

    def __str__(self) -> str:
        return "\n".join(map(repr, self.ops))


class _Writer:
    """Gives values their names again. A value that is read after its name is written anew is kept under another."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.program = Program()
        self.program._random_seed = graph.program.random_seed
        self.out = self.program.global_block()
        made: dict[str, list[tuple[int, GraphValue]]] = defaultdict(list)
        last: dict[int, float] = {}
        self.given = {value.name: value for op in graph.ops for value in op.args if value.op is None}
        for name, value in self.given.items():
            made[name].append((-1, value))
        for index, op in enumerate(graph.ops):
            last.update((id(value), index) for value in op.args)
            for value in op.results:
                made[value.name].append((index, value))
        last.update((id(value), inf) for value in graph.results)
        self.until: dict[int, int] = {}  # by value: the index of the operator that writes its name anew
        for values in made.values():
            for (_, value), (index, _) in pairwise(values):
                if last.get(id(value), -1) > index:
                    self.until[id(value)] = index

    def write(self) -> tuple[Program, list[str]]:
        """Emit every operator."""
        for value in self.given.values():
            self._keep(value, None)
        for index, op in enumerate(self.graph.ops):
            if op.operator is not None:
                inputs = {slot: [self._name(v, index) for v in values] for slot, values in op.inputs.items()}
                outputs = {
                    slot: [EMPTY if v is None else self._declare(v.name, v) for v in values]
                    for slot, values in op.outputs.items()
                }
                self._operator(op.operator, op.operator.definition, inputs, outputs, op.attrs)
            for value in op.results:
                self._keep(value, op.operator)
        names = [self._name(value, inf) for value in self.graph.results]
        return self.program, names

    def _operator(
        self, source: Operator, definition: Any, inputs: dict[str, list[str]], outputs: dict[str, list[str]], attrs: Any
    ) -> None:
        self.out.ops.append(
            Operator(self.out, definition, inputs, outputs, dict(attrs), dict(source.hints), source.id, source.role,
                     source.line, source.namescope)
        )  # fmt: skip

    def _name(self, value: GraphValue, index: float) -> str:
        until = self.until.get(id(value))
        if until is None or index <= until:
            return self._declare(value.name, value)
        return f"{value.name}@{until}"

    def _keep(self, value: GraphValue, source: Operator | None) -> None:
        """Copy a value that is read after its name is written anew."""
        if id(value) not in self.until:
            return
        name = self._name(value, inf)
        self.out.vars[name] = Variable(self.out, name, value.spec, stop_gradient=True)
        near = source or next(op.operator for op in self.graph.ops if op.operator is not None)
        self._operator(near, registry.get("assign"), {"X": [self._declare(value.name, value)]}, {"Out": [name]}, {})

    def _declare(self, name: str, value: GraphValue) -> str:
        if name not in self.out.vars:
            if value.variable is not None:
                twin = copy.copy(value.variable)
                twin.block = self.out
            else:
                twin = Node(self.out, name, value.spec)
            self.out.vars[name] = twin
        return name
