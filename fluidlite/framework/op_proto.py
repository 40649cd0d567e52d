"""op_proto: an operator's definition as Fluid's OpProto shows it."""

from __future__ import annotations

from dataclasses import dataclass

from fluidlite.framework.opdef import Attr, Slot
from fluidlite.framework.registry import ops


@dataclass(frozen=True)
class OpProto:
    """Slots and attributes of an operator type: ``.inputs``, ``.outputs``, ``.attrs``."""

    type: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    attrs: tuple[Attr, ...]
    comment: str


def op_proto(type: str) -> OpProto:
    """Slots (``.name``, ``.duplicable``, ``.dispensable``, ``.intermediate``) and attributes of an operator.

    Raises
    ------
    OperatorNotFoundError
        With the closest names.
    """
    op = ops.get(type)
    return OpProto(op.type, op.inputs, op.outputs, op.attrs, op.doc)
