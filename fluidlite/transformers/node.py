"""What a functional graph holds beyond operators of the registry: its values, and actions on state."""

from __future__ import annotations

from typing import Any

from fluidlite.framework.opdef import Attr, OpDef, Slot
from fluidlite.framework.operator import Operator
from fluidlite.framework.program import Block
from fluidlite.framework.variable import Variable
from fluidlite.framework.whereabouts import users_line


def _sequential_grad(maker: Any) -> None:
    """The value is the last part's, and so is the gradient."""
    last = maker.count("X") - 1
    given = maker.output_grad("Out")
    wanted = maker.input_grad("X", last)
    if wanted is not None:
        maker.op("assign", {"X": given}, {"Out": wanted})


WRITE = OpDef(
    "write_state", (Slot("X"),), (Slot("Out", doc="Stands for the action; it has no value."),), (Attr("state", "str"),),
    doc="state = X",
)  # fmt: skip
"""An assignment. It names what it writes in an attribute, so that every variable of the program is written once."""

SEQUENTIAL = OpDef(
    "sequential", (Slot("X", duplicable=True),), (Slot("Out"),), grad=_sequential_grad,
    doc="Out is the last X; what each X needs runs after what the ones before need",
)  # fmt: skip

DERIVES = "derives"
"""The hint of a gradient operator that holds the id of the one whose derivative it computes."""

# Neither of the two operators is in the registry: a computation turns them into an order and plain operators before
# anything is planned.


class Node(Variable):
    """A value of a functional graph.

    Attributes
    ----------
    is_input : bool
        It may be an argument of a computation: given, instead of computed.
    initial : number, array, callable, Variable or None
        What a persistent one holds at first; a callable is given the dims.
    """

    is_input: bool = False
    initial: Any = None


class Action(Node):
    """What a computation does to state; it has no value, and its result is None."""


def may_be_given(variable: Variable) -> bool:
    """Whether a variable may be an argument of a computation."""
    return bool(getattr(variable, "is_input", variable.is_data or variable.persistable))


def append(block: Block, definition: OpDef, inputs: list[str], out: Variable, attrs: dict[str, Any]) -> Operator:
    """Append one of the two operators above."""
    program = block.program
    op = Operator(
        block, definition, {"X": inputs}, {"Out": [out.name]}, attrs, {}, program.next_id(), program.role, users_line()
    )
    block.ops.append(op)
    program.touch()
    return op
