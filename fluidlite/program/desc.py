"""Fluid's descriptions of programs, blocks, operators and variables: views whose facts are methods."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fluidlite.program.block import Block
    from fluidlite.program.operator import Operator
    from fluidlite.program.program import Program
    from fluidlite.program.variable_metadata import VariableMetadata


def _fact(attribute: str) -> Callable[[Any], Any]:
    value = attrgetter(attribute)
    return lambda self: value(self._of)


def _method(name: str) -> Callable[..., Any]:
    return lambda self, *arguments: getattr(self._of, name)(*arguments)


class VariableDesc:
    """What ``Variable.desc`` is."""

    def __init__(self, variable: VariableMetadata) -> None:
        self._of = variable

    name = _fact("name")
    dtype = _fact("dtype")
    lod_level = _fact("lod_level")
    type = _fact("type")
    persistable = _fact("persistable")

    def shape(self) -> list[int]:
        return list(self._of.shape)

    def set_persistable(self, on: bool) -> None:
        """Say whether it lives in the scope from run to run."""
        self._of.persistable = on


class OpDesc:
    """What ``Operator.desc`` is."""

    def __init__(self, op: Operator) -> None:
        self._of = op

    type = _fact("type")
    input_names = _fact("input_names")
    output_names = _fact("output_names")
    input_arg_names = _fact("input_arg_names")
    output_arg_names = _fact("output_arg_names")
    attr_names = _fact("attr_names")
    input = _method("input")
    output = _method("output")
    attr = _method("attr")
    has_attr = _method("has_attr")
    block_attr_id = _method("block_attr")
    _set_attr = _method("set_attr")


class BlockDesc:
    """What ``Block.desc`` is."""

    def __init__(self, block: Block) -> None:
        self._of = block

    id = property(_fact("idx"))
    parent = property(_fact("parent_idx"))

    def op_size(self) -> int:
        return len(self._of.ops)

    def op(self, index: int) -> OpDesc:
        return OpDesc(self._of.ops[index])

    def all_vars(self) -> list[VariableDesc]:
        return [VariableDesc(variable) for variable in self._of.vars.values()]

    def has_var(self, name: str | bytes) -> bool:
        return self._of.has_var(_text(name))

    def find_var(self, name: str | bytes) -> VariableDesc | None:
        found = self._of.vars.get(_text(name))
        return None if found is None else VariableDesc(found)

    var = find_var


class ProgramDesc:
    """What ``Program.desc`` is."""

    def __init__(self, program: Program) -> None:
        self._of = program

    num_blocks = _fact("num_blocks")

    def block(self, index: int) -> BlockDesc:
        return BlockDesc(self._of.block(index))

    def serialize_to_string(self) -> bytes:
        """The program as ``Program.parse_from_string`` reads it: versioned JSON, where Fluid has a protobuf."""
        return self._of.to_json().encode()


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
