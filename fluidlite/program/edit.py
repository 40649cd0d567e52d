"""Copies of programs: clone and prune."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

from fluidlite.base.arguments import check_list
from fluidlite.base.reached import reached
from fluidlite.program.block import Block
from fluidlite.program.operator import Operator
from fluidlite.program.program import TRAINING_ROLES, Program
from fluidlite.program.variable import Parameter, Variable

INSIDE = "inside"
"""The attribute with the names that an operator's inputs have in its sub-blocks."""


def copy_into(op: Operator, block: Block) -> Operator:
    return op._near(block, op.definition, op.inputs, op.outputs, op.attrs, op.hints)


def copy_variable(variable: Variable, block: Block) -> Variable:
    new = copy.copy(variable)
    new.block = block
    if isinstance(new, Parameter):
        new.optimize_attr = dict(new.optimize_attr)
    return new


def copy_program(program: Program, for_test: bool = False) -> Program:
    """Copy a program; see :meth:`Program.clone`."""
    new = Program()
    new.blocks = []
    new._random_seed = program._random_seed
    new._next_id = program._next_id
    new.feed_names, new.fetch_names = list(program.feed_names), list(program.fetch_names)
    new.readers = list(program.readers)
    for block in program.blocks:
        duplicate = Block(new, block.idx, block.parent_idx)
        duplicate.forward_block_idx = block.forward_block_idx
        duplicate.vars = {name: copy_variable(variable, duplicate) for name, variable in block.vars.items()}
        for op in block.ops:
            if for_test and _trains(op):
                continue
            attrs = {**op.attrs, "is_test": True} if for_test and "is_test" in op.attrs else op.attrs
            duplicate.ops.append(op._near(duplicate, op.definition, op.inputs, op.outputs, attrs, op.hints))
        new.blocks.append(duplicate)
    new.current_block_idx = program.current_block_idx if not for_test else 0
    if for_test:
        used = _used_names(new)
        for block in new.blocks:
            block.vars = {n: v for n, v in block.vars.items() if n in used or v.persistable or v.is_data}
    return new


def sub_blocks(op: Operator) -> list[int]:
    """Return the indices of the blocks that an operator runs."""
    return [op.attrs[a.name] for a in op.definition.attrs if a.type == "block" and op.attrs[a.name] is not None]


def _trains(op: Operator) -> bool:
    """Whether an operator has a training role, or runs only operators that have."""
    inner_ops = [inner for index in sub_blocks(op) for inner in op.block.program.blocks[index].ops]
    return op.role in TRAINING_ROLES or (bool(inner_ops) and all(map(_trains, inner_ops)))


def has_declared_io(op: Operator) -> bool:
    """Whether an operator declares all values that its sub-blocks read and write, with their names there."""
    return op.definition.attr(INSIDE) is not None


def has_effects(op: Operator) -> bool:
    """Whether an operator has effects besides its outputs: callbacks, prints, communication."""
    definition = op.definition
    if not has_declared_io(op):
        return definition.effect or (definition.run is not None and not definition.pure)
    blocks = op.block.program.blocks
    return definition.effect or any(has_effects(inner) for index in sub_blocks(op) for inner in blocks[index].ops)


def copy_sub_blocks(source: Program, target: Program) -> None:
    """Copy the sub-blocks that a program's operators run, under their indices; other blocks stay empty."""
    needed = _needed_blocks(source, target.global_block().ops)
    if not needed:
        return
    del target.blocks[1:]
    for block in source.blocks[1:]:
        parent = block.parent_idx if block.parent_idx in needed else 0
        duplicate = Block(target, block.idx, parent)
        if block.idx in needed:
            duplicate.vars = {name: copy_variable(variable, duplicate) for name, variable in block.vars.items()}
            duplicate.ops.extend(copy_into(op, duplicate) for op in block.ops)
        target.blocks.append(duplicate)
    global_block = target.global_block()
    for index in needed:  # metadata of outer variables, which may have other names outside now
        for name in {n for op in target.blocks[index].ops for n in (*op.input_arg_names, *op.output_arg_names)}:
            variable = source.blocks[index].find_var(name)
            if variable is not None and target.blocks[index].find_var(name) is None:
                global_block.vars[name] = copy_variable(variable, global_block)


def _needed_blocks(program: Program, operators: Sequence[Operator]) -> set[int]:
    def inside(ops: Iterable[Operator]) -> list[int]:
        return [index for op in ops for index in sub_blocks(op)]

    return reached(inside(operators), lambda index: inside(program.blocks[index].ops))


def _used_names(program: Program) -> set[str]:
    """Return the names of all variables that operators read or write."""
    return {n for block in program.blocks for op in block.ops for n in (*op.input_arg_names, *op.output_arg_names)}


def prune(program: Program, targets: Sequence[Variable | str], feeds: Sequence[Variable | str] = ()) -> Program:
    """Copy a program with only the operators that the targets need; see :meth:`Program.prune`."""
    block, argument = program.global_block(), "targets of Program.prune"
    target_list = check_list(argument, targets, "variables or names", one=(str, Variable))
    names = [block.own(target, argument).name for target in target_list]
    feed_names = {f if isinstance(f, str) else f.name for f in feeds}
    new = copy_program(program)
    steps, unread = [], set(feed_names)
    for op in new.global_block().ops:  # a write of a feed before any read of it is replaced by the feed
        reads = set(op.input_arg_names)
        for index in sub_blocks(op):
            inside = new.blocks[index]
            reads |= {n for o in inside.ops for n in o.input_arg_names if n not in inside.vars}
        unread -= reads
        steps.append((op, reads, set(op.output_arg_names) - unread))
    needed = set(names)
    needed_ops: list[Operator] = []
    for op, reads, writes in reversed(steps):
        if not needed.isdisjoint(writes):
            needed_ops.append(op)
            needed -= writes - reads
            needed |= reads
    new.global_block().ops[:] = needed_ops[::-1]
    used_names = _used_names(new).union(names, feed_names)
    for block in new.blocks:
        block.vars = {n: v for n, v in block.vars.items() if n in used_names}
    new.readers = [reader for reader in program.readers if feed_names.isdisjoint(reader.feed_names)]
    return new
