"""Methods of Fluid's Program and Block that Fluid's own layers and transpilers call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fluidlite.base.arguments import check_int
from fluidlite.base.errors import ProgramError
from fluidlite.program.roles import ROLES, role_number

if TYPE_CHECKING:
    from fluidlite.program.block import Block
    from fluidlite.program.operator import Operator
    from fluidlite.program.program import Program
    from fluidlite.program.variable import Variable


def _nothing_to_sync(self: Any) -> None:
    """Do nothing: no second description exists that could differ."""


class FluidProgram:
    """Methods of ``Program`` under Fluid's names."""

    @property
    def op_role(self: Any) -> int:
        """Fluid's number of the role that appended operators get."""
        return role_number(self.role)

    @op_role.setter
    def op_role(self: Any, role: int) -> None:
        number = check_int("op_role", role) & ~256  # the bit of a loss
        if number not in ROLES:
            raise ProgramError(f"op_role is {role!r}; expected one of OpRole's {', '.join(map(str, ROLES))}")
        self.role = ROLES[number]

    _op_role = op_role

    def set_op_role(self, role: int) -> None:
        """Set the role of the operators that are appended next."""
        self.op_role = role

    @contextmanager
    def _optimized_guard(self: Any, param_and_grads: Sequence[Any] = ()) -> Iterator[None]:
        """Operators appended inside belong to the optimiser."""
        with self.roles("optimize"):
            yield

    @contextmanager
    def _lr_schedule_guard(self: Any, is_with_opt: bool = False) -> Iterator[None]:
        """Operators appended inside compute the learning rate."""
        with self.roles("lr_sched"):
            yield

    @contextmanager
    def _backward_role_guard(self: Any) -> Iterator[None]:
        """Operators appended inside belong to backward."""
        with self.roles("backward"):
            yield

    optimized_guard, lr_schedule_guard = _optimized_guard, _lr_schedule_guard

    def _inference_optimize(self: Any, prune_read_op: bool = True) -> Program:
        """Return a copy for inference: without backward, optimiser and schedule, with ``is_test`` set."""
        program: Program = self.clone(for_test=True)
        if prune_read_op:
            program.readers = []
        return program

    inference_optimize = _inference_optimize

    _sync_with_cpp = sync_with_cpp = _nothing_to_sync


class FluidBlock:
    """Methods of ``Block`` under Fluid's names."""

    _sync_with_cpp = sync_with_cpp = _nothing_to_sync

    def _rename_var(self: Any, name: str | bytes, new_name: str | bytes) -> Variable:
        """Rename a variable of this block, in all operators of the program that use it."""
        old = name.decode() if isinstance(name, bytes) else name
        new = new_name.decode() if isinstance(new_name, bytes) else new_name
        variable: Variable = self.var(old)
        if old not in self.vars or self.find_var(new) is not None:
            why = f"{new!r} is taken" if old in self.vars else f"{old!r} is a variable of an outer block"
            raise ProgramError(f"block {self.idx}: {old!r} cannot be renamed: {why}")
        for block in _blocks_that_see(self, old):
            for op in block.ops:
                if any(old in value for value in op.attrs.values() if isinstance(value, tuple)):
                    raise ProgramError(f"block {self.idx}: {old!r} cannot be renamed: {op} names it in an attribute")
        self.vars = {new if key == old else key: other for key, other in self.vars.items()}
        variable.name = new
        for block in _blocks_that_see(self, old):
            for op in block.ops:
                op.rename_input(old, new)
                op.rename_output(old, new)
        self.program.touch()
        return variable

    rename_var = _rename_var

    def _remove_var(self: Any, name: str) -> None:
        self.var(name)
        for block in _blocks_that_see(self, name):
            for op in block.ops:
                if name in op.input_arg_names or name in op.output_arg_names:
                    raise ProgramError(f"block {self.idx}: {op} names {name!r}\n  Do: remove the operator first")
        self.vars.pop(name, None)
        self.program.touch()

    def _clone_variable(self: Any, var: Variable, force_persistable: bool = True) -> Variable:
        """Declare a copy of another program's variable."""
        spec = var.spec
        variable: Variable = self.create_var(
            var.name,
            shape=None if spec is None else spec.dims,
            dtype=None if spec is None else spec.dtype,
            lod_level=var.lod_level,
            persistable=force_persistable or var.persistable,
            is_data=var.is_data,
            type=var.type,
        )
        return variable

    clone_variable = _clone_variable

    def _slice_ops(self: Any, start: int, end: int) -> list[Operator]:
        operators: list[Operator] = self.ops[start:end]
        return operators

    slice_ops = _slice_ops


def _blocks_that_see(owner: Block, name: str) -> list[Block]:
    """Return the blocks in which a name refers to the variable of ``owner``."""
    blocks = []
    for block in owner.program.blocks:
        scope: Block | None = block
        while scope is not None and scope is not owner and name not in scope.vars:
            scope = scope.parent
        if scope is owner:
            blocks.append(block)
    return blocks
