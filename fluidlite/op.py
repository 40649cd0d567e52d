"""``op.Operator``: runs one operator on a scope's tensors, without a program, as Fluid's operator tests do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fluidlite.base.arguments import check_list
from fluidlite.base.errors import ProgramError
from fluidlite.platform.place import PlaceLike
from fluidlite.program.program import Program
from fluidlite.program.registry import ops
from fluidlite.program.scope import Scope

__all__ = ["Operator"]


def _names(value: Any) -> list[str]:
    return check_list("the variables of a slot", value, "a name, or a list of names", one=str)


class Operator:
    """An operator on variables of a scope.

    Parameters
    ----------
    type : str
        An operator's type; ``fluid.op_proto(type)`` shows its slots and attributes.
    **given
        By slot, a variable's name or a list of names; by attribute, its value.

    Examples
    --------
    >>> scope = fluid.Scope()
    >>> scope.var("x").get_tensor().set(np.float32([1, -2]), fluid.CPUPlace())
    >>> fluid.op.Operator("abs", X="x", Out="y").run(scope, fluid.CPUPlace())
    """

    def __init__(self, type: str, **values: Any) -> None:
        definition = ops.get(type)
        self.type = type
        self.inputs = self._of(definition.inputs, values)
        self.outputs = self._of(definition.outputs, values)
        slots = {*self.inputs, *self.outputs}
        self.attrs = {name: value for name, value in values.items() if name not in slots}

    @staticmethod
    def _of(slots: Iterable[Any], values: Mapping[str, Any]) -> dict[str, list[str]]:
        return {slot.name: _names(values[slot.name]) for slot in slots if slot.name in values}

    def run(self, scope: Scope, place: PlaceLike) -> None:
        """Run it on a place; outputs are written into the scope.

        Raises
        ------
        FluidError
            If the scope has no tensor for an input, or the operator refuses it.
        """
        from fluidlite.executor import Executor

        if not isinstance(scope, Scope):
            raise ProgramError(f"operator {self.type}: scope is {type(scope).__name__}; expected a Scope")
        program = Program()
        block = program.global_block()
        for name in dict.fromkeys(name for names in self.inputs.values() for name in names):
            holder = scope.find_var(name)
            if holder is None:
                raise ProgramError(
                    f"operator {self.type}: the scope has no tensor {name!r}"
                    f"\n  Do: scope.var({name!r}).get_tensor().set(array, place)"
                )
            tensor = holder.get_tensor()
            block.create_var(name, tuple(tensor.dims), tensor.dtype, persistable=True)
        for name in dict.fromkeys(name for names in self.outputs.values() for name in names):
            if not block.has_var(name):
                block.create_var(name, persistable=True)
        block.append_op(self.type, self.inputs, self.outputs, self.attrs)
        Executor(place).run(program, scope=scope)

    def __str__(self) -> str:
        return f"{self.type}: inputs {self.inputs}, outputs {self.outputs}, attributes {self.attrs}"
