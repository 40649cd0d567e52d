"""Builders append all of what they are for, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fluidlite.program.block import Block


@contextmanager
def undone_on_error(*blocks: Block) -> Iterator[None]:
    """What is appended to the blocks inside is taken out again if something raises."""
    before = [(block, list(block.ops), len(block.vars)) for block in blocks]
    try:
        yield
    except BaseException:  # an interruption too
        for block, operators, count in before:
            names = list(block.vars)[count:]  # a dict has the newest last
            if names or len(block.ops) != len(operators):
                block.ops[:] = operators
                for name in names:
                    del block.vars[name]
        raise
