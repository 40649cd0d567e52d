"""Fluid's descriptions of programs, blocks, operators and variables: views whose facts are methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fluidlite.program.block import Block
    from fluidlite.program.operator import Operator
    from fluidlite.program.program import Program
    from fluidlite.program.variable_metadata import VariableMetadata

__all__ = ["BlockDesc", "OpDesc", "ProgramDesc", "VariableDesc"]


class VariableDesc:
    """What ``Variable.desc`` is."""

    def __init__(self, variable: VariableMetadata) -> None:
        self._variable = variable

    def name(self) -> str:
        """Its name."""
        return self._variable.name

    def shape(self) -> list[int]:
        """Its declared dims."""
        return list(self._variable.shape)

    def dtype(self) -> str:
        """Its declared dtype."""
        return self._variable.dtype

    def lod_level(self) -> int:
        """Number of LoD levels."""
        return self._variable.lod_level

    def type(self) -> str:
        """Its kind."""
        return self._variable.type

    def persistable(self) -> bool:
        """Whether it lives in the scope from run to run."""
        return self._variable.persistable

    def set_persistable(self, on: bool) -> None:
        """Say so, or not."""
        self._variable.persistable = on


class OpDesc:
    """What ``Operator.desc`` is."""

    def __init__(self, op: Operator) -> None:
        self._op = op

    def type(self) -> str:
        """The operator's type."""
        return self._op.type

    def input(self, slot: str) -> list[str]:
        """Names in an input slot."""
        return self._op.input(slot)

    def output(self, slot: str) -> list[str]:
        """Names in an output slot."""
        return self._op.output(slot)

    def input_names(self) -> list[str]:
        """The input slots that are given."""
        return self._op.input_names

    def output_names(self) -> list[str]:
        """The output slots that are given."""
        return self._op.output_names

    def input_arg_names(self) -> list[str]:
        """All variables that it reads."""
        return self._op.input_arg_names

    def output_arg_names(self) -> list[str]:
        """All variables that it writes."""
        return self._op.output_arg_names

    def attr(self, name: str) -> Any:
        """Value of an attribute."""
        return self._op.attr(name)

    def attr_names(self) -> list[str]:
        """Names of the attributes."""
        return self._op.attr_names

    def has_attr(self, name: str) -> bool:
        """Whether it has an attribute of that name."""
        return self._op.has_attr(name)

    def block_attr_id(self, name: str) -> int:
        """Index of the block that an attribute names."""
        return self._op.block_attr(name)

    def _set_attr(self, name: str, value: Any) -> None:
        self._op.set_attr(name, value)


class BlockDesc:
    """What ``Block.desc`` is."""

    def __init__(self, block: Block) -> None:
        self._block = block

    @property
    def id(self) -> int:
        """Its index."""
        return self._block.idx

    @property
    def parent(self) -> int:
        """The index of the block that it is nested in, or -1."""
        return self._block.parent_idx

    def op_size(self) -> int:
        """Number of operators."""
        return len(self._block.ops)

    def op(self, index: int) -> OpDesc:
        """The operator of that index."""
        return OpDesc(self._block.ops[index])

    def all_vars(self) -> list[VariableDesc]:
        """The block's variables."""
        return [VariableDesc(variable) for variable in self._block.vars.values()]

    def has_var(self, name: str | bytes) -> bool:
        """Whether the block has a variable of that name."""
        return self._block.has_var(_text(name))

    def find_var(self, name: str | bytes) -> VariableDesc | None:
        """The block's variable of that name, or None."""
        found = self._block.vars.get(_text(name))
        return None if found is None else VariableDesc(found)

    var = find_var


class ProgramDesc:
    """What ``Program.desc`` is."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def num_blocks(self) -> int:
        """Number of blocks."""
        return self._program.num_blocks

    def block(self, index: int) -> BlockDesc:
        """The block of that index."""
        return BlockDesc(self._program.block(index))

    def serialize_to_string(self) -> bytes:
        """The program as ``Program.parse_from_string`` reads it: versioned JSON, where Fluid has a protobuf."""
        return self._program.to_json().encode()


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
