"""Atomic appends to blocks: a builder appends all of its operators and variables, or none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fluidlite.program.block import Block


@contextmanager
def undone_on_error(*blocks: Block) -> Iterator[None]:
    """Remove the operators and variables appended, and the blocks opened, inside the ``with`` block if it raises."""
    old_contents = [(block, list(block.ops), len(block.vars), len(block.program.blocks)) for block in blocks]
    try:
        yield
    except BaseException:  # an interruption too
        for block, operators, count, block_count in old_contents:
            if len(block.program.blocks) > block_count:
                del block.program.blocks[block_count:]
                block.program.touch()
            names = list(block.vars)[count:]  # a dict is in the order of insertion
            if names or len(block.ops) != len(operators):
                block.ops[:] = operators
                for name in names:
                    del block.vars[name]
        raise
