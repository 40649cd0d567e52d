"""Fluid's ``desc`` objects of programs, blocks, operators and variables: views whose properties are methods."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fluidlite.program.block import Block
    from fluidlite.program.operator import Operator
    from fluidlite.program.program import Program
    from fluidlite.program.variable_metadata import VariableMetadata


def _attribute_method(attribute: str) -> Callable[[Any], Any]:
    value = attrgetter(attribute)
    return lambda self: value(self._of)


def _method(name: str) -> Callable[..., Any]:
    return lambda self, *arguments: getattr(self._of, name)(*arguments)


class VariableDesc:
    """The view that ``Variable.desc`` returns."""

    def __init__(self, variable: VariableMetadata) -> None:
        self._of = variable

    name = _attribute_method("name")
    dtype = _attribute_method("dtype")
    lod_level = _attribute_method("lod_level")
    type = _attribute_method("type")
    persistable = _attribute_method("persistable")

    def shape(self) -> list[int]:
        return list(self._of.shape)

    def set_persistable(self, on: bool) -> None:
        """Set whether the variable persists in the scope between runs."""
        self._of.persistable = on


class OpDesc:
    """The view that ``Operator.desc`` returns."""

    def __init__(self, op: Operator) -> None:
        self._of = op

    type = _attribute_method("type")
    input_names = _attribute_method("input_names")
    output_names = _attribute_method("output_names")
    input_arg_names = _attribute_method("input_arg_names")
    output_arg_names = _attribute_method("output_arg_names")
    attr_names = _attribute_method("attr_names")
    input = _method("input")
    output = _method("output")
    attr = _method("attr")
    has_attr = _method("has_attr")
    block_attr_id = _method("block_attr")
    _set_attr = _method("set_attr")


class BlockDesc:
    """The view that ``Block.desc`` returns."""

    def __init__(self, block: Block) -> None:
        self._of = block

    id = property(_attribute_method("idx"))
    parent = property(_attribute_method("parent_idx"))

    def op_size(self) -> int:
        return len(self._of.ops)

    def op(self, index: int) -> OpDesc:
        return OpDesc(self._of.ops[index])

    def all_vars(self) -> list[VariableDesc]:
        return [VariableDesc(variable) for variable in self._of.vars.values()]

    def has_var(self, name: str | bytes) -> bool:
        return self._of.has_var(_text(name))

    def find_var(self, name: str | bytes) -> VariableDesc | None:
        variable = self._of.vars.get(_text(name))
        return None if variable is None else VariableDesc(variable)

    var = find_var


class ProgramDesc:
    """The view that ``Program.desc`` returns."""

    def __init__(self, program: Program) -> None:
        self._of = program

    num_blocks = _attribute_method("num_blocks")

    def block(self, index: int) -> BlockDesc:
        return BlockDesc(self._of.block(index))

    def serialize_to_string(self) -> bytes:
        """The program as ``Program.parse_from_string`` reads it: versioned JSON, where Fluid has a protobuf."""
        return self._of.to_json().encode()


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
