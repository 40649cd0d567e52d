"""What a gradient function of an operator's definition appends with."""

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
    """What a gradient function of an operator's definition appends with: ``grad(maker)``."""

    def __init__(self, backward: Backward, op: Operator) -> None:
        self._backward = backward
        self.operator = op
        self.asked: set[str] = set()
        """Slots whose gradients the function has asked for."""
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
        """Name of what holds a forward input."""
        return self._backward.held(self.operator, slot, self.operator.input(slot)[i])

    def output(self, slot: str, i: int = 0) -> str:
        """Name of what holds a forward output."""
        return self._backward.held(self.operator, slot, self.operator.output(slot)[i])

    def output_grad(self, slot: str, i: int = 0) -> str:
        """Name of the gradient of a forward output; zeros are appended if nothing gave one."""
        self.asked.add(slot)
        name = self.operator.output(slot)[i]
        finished = self._finished[name]
        return finished if finished != EMPTY else self._backward.incoming(name, needed=True)

    def output_grads(self, slot: str) -> list[str]:
        """Names of the gradients of all variables of a forward output slot."""
        return [self.output_grad(slot, i) for i in range(self.count(slot))]

    def finished(self, slot: str, i: int = 0) -> str | None:
        """Name of the gradient of a forward output, or None if nothing gives one."""
        self.asked.add(slot)
        found = self._finished[self.operator.output(slot)[i]]
        return None if found == EMPTY else found

    def wants(self, slot: str, i: int = 0) -> bool:
        """Whether the gradient of a forward input is wanted."""
        return self.operator.input(slot)[i] in self.origins(slot)

    def origins(self, slot: str) -> Origins:
        """The inputs of a slot that depend on what the gradient is wanted of, and on what each does."""
        return self._backward.paths.into(self.operator).get(slot, {})

    def input_grad(self, slot: str, i: int = 0) -> str | None:
        """A name to write (a part of) the gradient of a forward input to, or None if it is not wanted."""
        self.asked.add(slot)
        name = self._backward.outgoing(self.operator, slot, self.operator.input(slot)[i])
        return None if name == EMPTY else name

    def temporary(self) -> str:
        """Name of a new variable, for what one operator that is appended hands to another."""
        return self._backward.block.create_temporary().name

    def op(
        self, type: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None
    ) -> None:
        """Append a gradient operator, unless none of its outputs is wanted (None)."""
        named = {
            slot: [EMPTY if name is None else name for name in listed_names(names)] for slot, names in outputs.items()
        }
        self._backward.append(self.operator, type, inputs, named, attrs)


def name_outputs(op: Operator, rule: GradRule) -> None:
    """Give a forward operator variables for outputs that it was built without, and that its gradient reads.

    Of a list of variables, such as the gradients that an operator gives, all are named if one is: what reads their
    gradients tells these apart by their order.
    """
    definition = ops.get(rule.type)
    known = {slot.name: slot for slot in op.definition.outputs}
    missing = []
    for name in rule.reads:
        slot, read = known.get(rule.output_of(name) or name), definition.input(name)
        if slot is None:
            continue
        needed = read is not None and not read.dispensable and not op.input(name)
        names = set(op.output(slot.name))
        if (needed and not slot.duplicable and not names) or (EMPTY in names and names != {EMPTY}):
            missing.append(slot.name)
    for slot_name in missing:
        named = [
            op.block.create_temporary(prefix=f"{op.type}.{slot_name}", stop_gradient=True).name
            if each == EMPTY
            else each
            for each in op.output(slot_name) or [EMPTY]
        ]
        op._outputs = slots({**op.outputs, slot_name: named})
    if missing:
        op.infer()
        op.block.program.touch()
