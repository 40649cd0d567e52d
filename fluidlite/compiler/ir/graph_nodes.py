"""The nodes of a graph: values, which are written once, and the operators that make and read them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Union

import numpy as np

from fluidlite.base.dtypes import NUMPY, integer_limits
from fluidlite.base.errors import ProgramError
from fluidlite.base.forwarded import forwarded
from fluidlite.platform.place import Place
from fluidlite.program.contents import Attributes, Slots
from fluidlite.program.edit import acts
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import OpDef, Slot
from fluidlite.program.operator import EMPTY, Operator
from fluidlite.program.source_location import Line
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor_spec import Spec

READ, WRITE = "read_state", "write_state"
READING = OpDef(READ, (), (Slot("Out"),))
"""A read of state: it is no operator of a program, and no step of a plan."""


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
        return self.op is not None and self.op.type == "fill_constant" and not any(self.op.inputs.values())

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
    operator : Operator
        What it comes from, for its line, role and hints.
    definition : OpDef
        What it means.
    planned : (metadata, Call) or None
        What it was last planned as.
    looks : (metadata, attributes, bool) or None
        Whether it was last found to check indices.
    """

    __slots__ = ("attrs", "definition", "inputs", "looks", "operator", "outputs", "planned", "type")

    def __init__(
        self, type: str, inputs: dict[str, list[GraphValue]], attrs: dict[str, Any], operator: Operator
    ) -> None:
        self.type = type
        self.inputs = inputs
        self.outputs: dict[str, list[GraphValue | None]] = {}
        self.attrs = attrs
        self.operator = operator
        self.definition = operator.definition
        self.planned: tuple[Any, Call] | None = None
        self.looks: tuple[Any, Any, bool] | None = None

    @classmethod
    def near(
        cls, source: Operator, definition: OpDef, inputs: dict[str, list[GraphValue]], attrs: Any, hints: Any
    ) -> GraphOp:
        """An operator that the graph gets in the place of another, or beside it: of its role, line and name scope."""
        operator = source._near(source.block, definition, Slots(), Slots(), attrs, hints)
        return cls(definition.type, inputs, dict(attrs), operator)

    hints: dict[str, Any] = forwarded("operator.hints", "Hint attributes.")
    role: str = forwarded("operator.role", '``"forward"``, ``"backward"``, ``"optimize"`` or ``"lr_sched"``.')
    line: Line = forwarded("operator.line", "Where the user made it.")
    namescope: str = forwarded("operator.namescope", "Where the user made it, as Fluid's ``name_scope`` says.")

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
        if self.type == READ:
            return False
        for values in self.outputs.values():
            for value in values:
                if value is not None and value.state is not None:
                    return True
        return self.definition.may_act and acts(self.operator)

    def call(self, place: Place | None = None) -> Call:
        """Its call, on a place, with the dims that its values were declared with."""
        return Call(self.definition, declared(self.inputs), declared(self.outputs), self.attrs, place)

    def note(self, hint: str, value: object) -> None:
        """Give it a hint; the user's own operator is not touched."""
        self.operator = copy.copy(self.operator)
        self.operator._hints = Attributes({**self.hints, hint: value})

    def __str__(self) -> str:
        return str(self.operator) if self.type != READ else repr(self)

    def __repr__(self) -> str:
        call = f"{self.type}({', '.join(v.name for v in self.args)})"
        return f"{', '.join(v.name for v in self.results)} = {call}" if self.results else call


def declared(slots: Mapping[str, Sequence[GraphValue | None]]) -> dict[str, tuple[Spec, ...]]:
    """The specs that values were declared with, -1 for what is not known; of slots that are given or wanted."""
    found = {}
    for slot, values in slots.items():
        specs = tuple([value.spec for value in values if value and value.spec])
        if specs:
            found[slot] = specs
    return found


Replaceable = Union[GraphOp, GraphValue]
