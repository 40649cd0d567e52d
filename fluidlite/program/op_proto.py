"""op_proto: an operator's definition in the form of Fluid's OpProto."""

from __future__ import annotations

from dataclasses import dataclass

from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.registry import ops


@dataclass(frozen=True)
class OpProto:
    """Slots and attributes of an operator type: ``.inputs``, ``.outputs``, ``.attrs``."""

    type: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    attrs: tuple[Attr, ...]
    comment: str


class OpProtoHolder:
    """Fluid's access to all operators' definitions, by ``OpProtoHolder.instance()``."""

    @classmethod
    def instance(cls) -> OpProtoHolder:
        """The holder."""
        return cls()

    def get_op_proto(self, type: str) -> OpProto:
        """See :func:`op_proto`."""
        return op_proto(type)

    def has_op_proto(self, type: str) -> bool:
        """Whether there is an operator of that type."""
        return ops.find(type) is not None

    @staticmethod
    def generated_op_attr_names() -> set[str]:
        """Attributes that every operator has."""
        return {"op_role", "op_role_var", "op_namescope", "op_callstack", "op_device"}


def op_proto(type: str) -> OpProto:
    """Slots (``.name``, ``.duplicable``, ``.dispensable``, ``.intermediate``) and attributes of an operator.

    Raises
    ------
    OperatorNotFoundError
        With the closest names.
    """
    op = ops.get(type)
    return OpProto(op.type, op.inputs, op.outputs, op.attrs, op.doc)
