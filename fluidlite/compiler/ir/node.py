"""What a functional graph holds beyond operators of the registry: its values, and actions on state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import NUMPY, is_float
from fluidlite.base.errors import SavedModelError
from fluidlite.compiler.arguments import holds
from fluidlite.program.block import Block
from fluidlite.program.json_form import KINDS
from fluidlite.program.opdef import Attr, OpDef, Slot
from fluidlite.program.operator import Operator
from fluidlite.program.registry import ops
from fluidlite.program.source_location import source_location
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor_spec import Spec


def _sequential_grad(maker: Any) -> None:
    """The value is the last part's, and so is the gradient."""
    last = maker.count("X") - 1
    given = maker.output_grad("Out")
    wanted = maker.input_grad("X", last)
    if wanted is not None:
        maker.op("assign", {"X": given}, {"Out": wanted})


WRITE = OpDef(
    "write_state",
    (Slot("X"),),
    (Slot("Out", doc="Stands for the action; it has no value."),),
    (Attr("state", "str"),),
    doc="state = X",
)
"""An assignment. It names what it writes in an attribute, so that every variable of the program is written once."""

SEQUENTIAL = OpDef(
    "sequential",
    (Slot("X", duplicable=True),),
    (Slot("Out"),),
    grad=_sequential_grad,
    doc="Out is the last X; what each X needs runs after what the ones before need",
)

DERIVES = "derives"
"""The hint of a gradient operator that holds the id of the one whose derivative it computes."""

# A computation turns the two operators into an order and plain operators before anything is planned; so the registry
# knows them, for programs that are read again, and does not list them among those that places run.
for _definition in (WRITE, SEQUENTIAL):
    ops.note(_definition)


class Node(Variable):
    """A value of a functional graph.

    Attributes
    ----------
    is_input : bool
        It may be an argument of a computation: given, instead of computed.
    is_cell : bool
        It is a temporary: storage that a computation assigns.
    initial : number, array, callable, Variable or None
        What a persistent one holds at first; a callable is given the dims.
    fixed : bool
        In the program of a computation: it holds its initial value for ever.
    """

    is_input: bool = False
    is_cell: bool = False
    initial: Any = None
    fixed: bool = False

    def saved(self) -> dict[str, Any]:
        """What a saved program says of it. Of a callable initial value it can say nothing."""
        facts: dict[str, Any] = {name: True for name in ("is_input", "is_cell") if getattr(self, name)}
        if isinstance(self, Action):
            facts["action"] = True
        if isinstance(self.initial, Variable):
            facts["initial_of"] = self.initial.name
        elif isinstance(self.initial, np.ndarray):
            one = self.initial.size and not any(self.initial.strides)  # a number, everywhere
            held = self.initial[(0,) * self.initial.ndim] if one else self.initial
            wide = held.astype("float64") if is_float(str(held.dtype)) else held
            facts["initial"] = wide.tolist()
        elif self.initial is not None and not callable(self.initial):
            facts["initial"] = self.initial
        return {"node": facts}


class Action(Node):
    """What a computation does to state; it has no value, and its result is None."""


def _read(block: Block, name: str, spec: Spec | None, flags: Mapping[str, bool], facts: Mapping[str, Any]) -> Node:
    """Make a node of what a saved program says of it; SavedModelError or ValueError if that is nonsense."""
    kind = Action if facts.get("action") else Node
    made = kind(block, name, spec, flags["persistable"], flags["stop_gradient"], flags["is_data"])
    made.is_input, made.is_cell = facts.get("is_input") is True, facts.get("is_cell") is True
    if "initial_of" in facts:
        other = facts["initial_of"]
        made.initial = block.vars.get(other)
        if made.initial is None:
            raise SavedModelError(f"not a program: {name!r} begins with {other!r:.60}, which is not there")
    elif "initial" in facts:
        if spec is None or not spec.known:
            raise SavedModelError(f"not a program: {name!r} has an initial value and no dims")
        array = np.asarray(facts["initial"])
        if array.ndim and array.shape != spec.dims:
            raise SavedModelError(
                f"not a valid program: {name!r} has dims {spec.dims}, its initial value {array.shape}"
            )
        if array.dtype.kind not in "biuf" or not holds(spec.dtype, array):
            raise SavedModelError(
                f"not a valid program: the initial value of {name!r} holds numbers that are no {spec.dtype}"
            )
        made.initial = np.broadcast_to(array.astype(NUMPY[spec.dtype]), spec.dims)  # a number takes no memory by it
    return made


KINDS["node"] = _read


def may_be_argument(variable: Variable) -> bool:
    """Whether a variable may be an argument of a computation."""
    return bool(getattr(variable, "is_input", variable.is_data or variable.persistable))


def append(block: Block, definition: OpDef, inputs: list[str], out: Variable, attrs: dict[str, Any]) -> Operator:
    """Append one of the two operators above."""
    program = block.program
    op = Operator(
        block,
        definition,
        {"X": inputs},
        {"Out": [out.name]},
        attrs,
        {},
        program.next_id(),
        program.role,
        source_location(),
    )
    block.ops.append(op)
    return op
