"""GradMaker, with which the gradient function of an operator's definition appends gradient operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fluidlite.program.contents import slots
from fluidlite.program.gradient_parts import listed_names
from fluidlite.program.gradient_paths import Origins
from fluidlite.program.operator import EMPTY, Operator
from fluidlite.program.registry import ops
from fluidlite.program.rules import GradRule
from fluidlite.tensor.tensor_spec import Spec

if TYPE_CHECKING:
    from fluidlite.program.backward import Backward


class GradMaker:
    """The argument of a gradient function, ``grad(maker)``: reads forward variables, appends gradient operators."""

    def __init__(self, backward: Backward, op: Operator) -> None:
        self._backward = backward
        self.operator = op
        self.differentiated_slots: set[str] = set()
        """Slots whose gradients the function has read or named."""
        self._finished = {name: backward.incoming(name) for name in op.output_arg_names}
        backward.begin(op)

    def count(self, slot: str) -> int:
        """Number of variables in a slot of the forward operator."""
        return len(self.operator.input(slot) or self.operator.output(slot))

    def spec(self, slot: str, i: int = 0) -> Spec:
        """Declared metadata of a forward variable."""
        names = self.operator.input(slot) or self.operator.output(slot)
        return self._backward.block.var(names[i])._spec()

    def attr(self, name: str) -> Any:
        """An attribute of the forward operator."""
        return self.operator.attrs[name]

    def input(self, slot: str, i: int = 0) -> str:
        """Name of the variable that holds a forward input."""
        return self._backward.forward_value(self.operator, slot, self.operator.input(slot)[i])

    def output(self, slot: str, i: int = 0) -> str:
        """Name of the variable that holds a forward output."""
        return self._backward.forward_value(self.operator, slot, self.operator.output(slot)[i])

    def output_grad(self, slot: str, i: int = 0) -> str:
        """Name of the gradient of a forward output; zeros are appended if it has none."""
        self.differentiated_slots.add(slot)
        name = self.operator.output(slot)[i]
        finished = self._finished[name]
        return finished if finished != EMPTY else self._backward.incoming(name, needed=True)

    def output_grads(self, slot: str) -> list[str]:
        """Names of the gradients of all variables of a forward output slot."""
        return [self.output_grad(slot, i) for i in range(self.count(slot))]

    def finished(self, slot: str, i: int = 0) -> str | None:
        """Name of the gradient of a forward output, or None if it has none."""
        self.differentiated_slots.add(slot)
        gradient = self._finished[self.operator.output(slot)[i]]
        return None if gradient == EMPTY else gradient

    def output_count(self, slot: str, i: int = 0) -> bool:
        """Whether the gradient of a forward input is needed."""
        return self.operator.input(slot)[i] in self.origins(slot)

    def origins(self, slot: str) -> Origins:
        """The inputs of a slot that depend on a differentiated variable, each with the name of that variable."""
        return self._backward.paths.into(self.operator).get(slot, {})

    def input_grad(self, slot: str, i: int = 0) -> str | None:
        """Name of a variable for (a part of) the gradient of a forward input, or None if it is not needed."""
        self.differentiated_slots.add(slot)
        name = self._backward.outgoing(self.operator, slot, self.operator.input(slot)[i])
        return None if name == EMPTY else name

    def temporary(self) -> str:
        """Name of a new variable for a value between appended operators."""
        return self._backward.block.create_temporary().name

    def op(
        self, type: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None
    ) -> None:
        """Append a gradient operator, unless all of its outputs are None (not needed)."""
        names_by_slot = {
            slot: [EMPTY if name is None else name for name in listed_names(names)] for slot, names in outputs.items()
        }
        self._backward.append(type, inputs, names_by_slot, attrs, self.operator)


def name_outputs(op: Operator, rule: GradRule) -> None:
    """Add variables to a forward operator for absent outputs that its gradient reads.

    If one variable of a list is named, such as one of several gradients, all are named: gradient operators
    distinguish their gradients by position.
    """
    definition = ops.get(rule.type)
    output_slots = {slot.name: slot for slot in op.definition.outputs}
    missing = []
    for name in rule.reads:
        slot, read = output_slots.get(rule.output_of(name) or name), definition.input(name)
        if slot is None:
            continue
        is_needed = read is not None and not read.dispensable and not op.input(name)
        names = set(op.output(slot.name))
        if (is_needed and not slot.duplicable and not names) or (EMPTY in names and names != {EMPTY}):
            missing.append(slot.name)
    for slot_name in missing:
        variables = [
            op.block.create_temporary(prefix=f"{op.type}.{slot_name}", stop_gradient=True).name
            if each == EMPTY
            else each
            for each in op.output(slot_name) or [EMPTY]
        ]
        op._outputs = slots({**op.outputs, slot_name: variables})
    if missing:
        op.infer()
        op.block.program.touch()
