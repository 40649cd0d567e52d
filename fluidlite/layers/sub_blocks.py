"""Contexts in which layers fill a block that an operator will run, or an enclosing block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fluidlite.control_flow.sub_program import has_value, outer_reads, outer_writes
from fluidlite.program.block import Block
from fluidlite.program.operator import Operator
from fluidlite.program.program import Program
from fluidlite.program.undo import undone_on_error


def _sub_block(program: Program, done: Callable[[Block, Block], None]) -> Iterator[Block]:  # no name for errors
    """A context in which layers append to a new block; the block is removed if an error is raised.

    ``done``: ``done(outer, block)`` is called at the end, when the outer block is current again.
    """
    outer = program.current_block()
    with undone_on_error(outer):
        block = program.create_block()
        try:
            yield block
        finally:
            program.current_block_idx = outer.idx
            program.touch()
        done(outer, block)


sub_block = contextmanager(_sub_block)


@contextmanager
def in_outer_block(block: Block | None) -> Iterator[None]:
    """Let layers append to an enclosing block, before the operator that will run the current one."""
    assert block is not None
    program = block.program
    inner_index, program.current_block_idx = program.current_block_idx, block.idx
    try:
        yield
    finally:
        program.current_block_idx = inner_index


def control_flow(
    outer: Block, type: str, blocks: Sequence[Block], slot: str, inputs: dict[str, Any], attrs: dict[str, Any]
) -> Operator:
    """Append the operator that runs blocks, with all outer variables that these use."""
    written = list(dict.fromkeys(name for block in blocks for name in outer_writes(block)))
    read = [name for block in blocks for name in _first_read(block)]
    inside = [name for name in dict.fromkeys((*read, *written)) if name in read or has_value(outer, name)]
    names = {"inside": inside, "written": written, "sub_block": blocks[0].idx}
    if len(blocks) > 1:
        names["else_block"] = blocks[1].idx
    return outer.append_op(type, {slot: inside, **inputs}, {"Out": written}, {**names, **attrs})


def _first_read(block: Block) -> list[str]:
    """Names of outer variables that a block reads before it writes them."""
    written: set[str] = set()
    reads: list[str] = []
    outer = set(outer_reads(block))
    for op in block.ops:
        reads += [name for name in op.input_arg_names if name in outer and name not in written]
        written.update(op.output_arg_names)
    return list(dict.fromkeys(reads))
