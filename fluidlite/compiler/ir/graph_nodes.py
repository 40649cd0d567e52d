"""The nodes of the graph: values, each written once, and the operators that write and read them."""

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
from fluidlite.program.edit import has_effects
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import OpDef, Slot
from fluidlite.program.operator import EMPTY, Operator
from fluidlite.program.source_location import SourceLine
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor_spec import Spec

READ, WRITE = "read_state", "write_state"
READ_DEFINITION = OpDef(READ, (), (Slot("Out"),))
"""The definition of a read of state, which is neither an operator of the program nor a step of the plan."""


class GraphValue:
    """A value: the output of one operator, or an argument.

    Attributes
    ----------
    name : str
        The name of its variable in the program.
    spec : Spec or None
    op : GraphOp or None
        The operator that writes it; None for an argument.
    state : str or None
        The state variable in which it is stored; None if it is in none.
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
        """Whether its rank is 0."""
        return self.spec is not None and self.spec.dims == ()

    @property
    def is_constant(self) -> bool:
        """Whether it is filled with one number, the same in every run."""
        return self.op is not None and self.op.type == "fill_constant" and not any(self.op.inputs.values())

    @property
    def const(self) -> Any:
        """The number of a constant, rounded to its dtype; None if it is no constant."""
        if self.op is None or not self.is_constant or self.spec is None:
            return None
        number = self.op.attrs.get("str_value") or self.op.attrs["value"]  # the text is exact
        kind = NUMPY[self.spec.dtype]
        if kind.kind not in "iu":
            return np.asarray(float(number)).astype(kind).item()
        is_integer = isinstance(number, str) and number.strip().lstrip("+-").isdigit()
        exact = int(number) if is_integer else float(number)
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
    inputs, outputs : dict of slot to list of GraphValue (None: an unused output)
    attrs : dict
    operator : Operator
        The operator of the program, for line, role and hints.
    definition : OpDef
    planned : (metadata, Call) or None
        The planner's cached call, valid for this metadata.
    index_check : (metadata, attributes, bool) or None
        Whether its kernel checks indices, cached for these metadata and attributes.
    """

    __slots__ = ("attrs", "definition", "index_check", "inputs", "operator", "outputs", "planned", "type")

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
        self.index_check: tuple[Any, Any, bool] | None = None

    @classmethod
    def derived_from(
        cls, source: Operator, definition: OpDef, inputs: dict[str, list[GraphValue]], attrs: Any, hints: Any
    ) -> GraphOp:
        """A new operator with the role, the line and the name scope of ``source``, which it replaces or accompanies."""
        operator = source._near(source.block, definition, Slots(), Slots(), attrs, hints)
        return cls(definition.type, inputs, dict(attrs), operator)

    hints: dict[str, Any] = forwarded("operator.hints", "Hint attributes.")
    role: str = forwarded("operator.role", '``"forward"``, ``"backward"``, ``"optimize"`` or ``"lr_sched"``.')
    line: SourceLine = forwarded("operator.line", "The user's line.")
    namescope: str = forwarded("operator.namescope", "Fluid's ``name_scope``.")

    @property
    def input_arg_names(self) -> list[str]:
        """The names of the variables that it reads."""
        return [value.name for value in self.args]

    @property
    def output_arg_names(self) -> list[str]:
        """The names of the variables that it writes."""
        return [EMPTY if value is None else value.name for values in self.outputs.values() for value in values]

    @property
    def args(self) -> list[GraphValue]:
        """The values that it reads, slot by slot."""
        args: list[GraphValue] = []
        for values in self.inputs.values():
            args += values
        return args

    @property
    def results(self) -> list[GraphValue]:
        """The values that it writes."""
        results: list[GraphValue] = []
        for values in self.outputs.values():
            for value in values:
                if value is not None:
                    results.append(value)
        return results

    def output(self, slot: str) -> GraphValue | None:
        """The first value that it writes in a slot; None if it is unused, or the program omits the slot."""
        return next(iter(self.outputs.get(slot, ())), None)

    @property
    def value(self) -> GraphValue:
        """The only value that it writes.

        Raises
        ------
        ProgramError
            If it writes several values, or none.
        """
        results = self.results
        if len(results) != 1:
            raise ProgramError(f"{self!r} makes {len(results)} values; name one of its outputs")
        return results[0]

    @property
    def has_effect(self) -> bool:
        """Whether it writes state or has another side effect."""
        if self.type == READ:
            return False
        for values in self.outputs.values():
            for value in values:
                if value is not None and value.state is not None:
                    return True
        return self.definition.may_act and has_effects(self.operator)

    def call(self, place: Place | None = None) -> Call:
        """Its call on a place, with the declared specs of its values."""
        return Call(self.definition, declared_specs(self.inputs), declared_specs(self.outputs), self.attrs, place)

    def set_hint(self, hint: str, value: object) -> None:
        """Set a hint on a copy of the program's operator."""
        self.operator = copy.copy(self.operator)
        self.operator._hints = Attributes({**self.hints, hint: value})

    def __str__(self) -> str:
        return str(self.operator) if self.type != READ else repr(self)

    def __repr__(self) -> str:
        call = f"{self.type}({', '.join(v.name for v in self.args)})"
        return f"{', '.join(v.name for v in self.results)} = {call}" if self.results else call


def declared_specs(slots: Mapping[str, Sequence[GraphValue | None]]) -> dict[str, tuple[Spec, ...]]:
    """The declared specs of values by slot, with -1 for unknown dims; slots without specs are left out."""
    specs_by_slot = {}
    for slot, values in slots.items():
        specs = tuple([value.spec for value in values if value and value.spec])
        if specs:
            specs_by_slot[slot] = specs
    return specs_by_slot


Replaceable = Union[GraphOp, GraphValue]
