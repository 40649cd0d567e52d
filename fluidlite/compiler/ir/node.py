"""Values and state actions of functional graphs, and the operators ``write_state`` and ``sequential``."""

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
    """The value is that of the last part, and so is the gradient."""
    last = maker.count("X") - 1
    out_grad = maker.output_grad("Out")
    last_grad = maker.input_grad("X", last)
    if last_grad is not None:
        maker.op("assign", {"X": out_grad}, {"Out": last_grad})


WRITE = OpDef(
    "write_state",
    (Slot("X"),),
    (Slot("Out", doc="Stands for the action; it has no value."),),
    (Attr("state", "str"),),
    doc="state = X",
)
"""An assignment to state. Its target is an attribute, so that each variable of the program is written once."""

SEQUENTIAL = OpDef(
    "sequential",
    (Slot("X", duplicable=True),),
    (Slot("Out"),),
    grad=_sequential_grad,
    doc="Out is the last X; what each X needs runs after what the ones before need",
)

DERIVES = "derives"
"""Hint of a gradient operator: the id of its forward operator."""

# Lowering replaces both operators before planning. So they are registered, for saved programs, but not listed among the
# operators that places run.
for _definition in (WRITE, SEQUENTIAL):
    ops.note(_definition)


class Node(Variable):
    """A value of a functional graph.

    Attributes
    ----------
    is_input : bool
        It may be an argument of a computation.
    is_cell : bool
        It is a temporary that a computation assigns.
    initial : number, array, callable, Variable or None
        The initial value of a persistent node; a callable gets the dims.
    fixed : bool
        In the program of a computation: it is constant.
    """

    is_input: bool = False
    is_cell: bool = False
    initial: Any = None
    fixed: bool = False

    def saved(self) -> dict[str, Any]:
        """Its fields in a saved program; a callable initial value is not saved."""
        facts: dict[str, Any] = {name: True for name in ("is_input", "is_cell") if getattr(self, name)}
        if isinstance(self, Action):
            facts["action"] = True
        if isinstance(self.initial, Variable):
            facts["initial_of"] = self.initial.name
        elif isinstance(self.initial, np.ndarray):
            is_uniform = self.initial.size and not any(self.initial.strides)  # one number, broadcast
            array = self.initial[(0,) * self.initial.ndim] if is_uniform else self.initial
            widened = array.astype("float64") if is_float(str(array.dtype)) else array
            facts["initial"] = widened.tolist()
        elif self.initial is not None and not callable(self.initial):
            facts["initial"] = self.initial
        return {"node": facts}


class Action(Node):
    """A write of state by a computation; it has no value, and its result is None."""


def _read(block: Block, name: str, spec: Spec | None, flags: Mapping[str, bool], facts: Mapping[str, Any]) -> Node:
    """Make a node from its fields in a saved program; SavedModelError or ValueError if they are invalid."""
    kind = Action if facts.get("action") else Node
    node = kind(block, name, spec, flags["persistable"], flags["stop_gradient"], flags["is_data"])
    node.is_input, node.is_cell = facts.get("is_input") is True, facts.get("is_cell") is True
    if "initial_of" in facts:
        other = facts["initial_of"]
        node.initial = block.vars.get(other)
        if node.initial is None:
            raise SavedModelError(f"not a program: {name!r} begins with {other!r:.60}, which is not there")
    elif "initial" in facts:
        if spec is None or not spec.is_static:
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
        node.initial = np.broadcast_to(array.astype(NUMPY[spec.dtype]), spec.dims)  # one number takes no memory
    return node


KINDS["node"] = _read


def may_be_argument(variable: Variable) -> bool:
    """Whether a variable may be an argument of a computation."""
    return bool(getattr(variable, "is_input", variable.is_data or variable.persistable))


def append_operator(
    block: Block, definition: OpDef, inputs: list[str], out: Variable, attrs: dict[str, Any]
) -> Operator:
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
