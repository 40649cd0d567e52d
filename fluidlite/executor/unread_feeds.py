"""Feeds that nothing would read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fluidlite.base.errors import FeedError
from fluidlite.framework.planner import needed_operators
from fluidlite.framework.program import Program
from fluidlite.framework.program_edit import sub_blocks
from fluidlite.framework.values import is_state


def check_read(program: Program, feeds: Iterable[str], fetches: Sequence[str]) -> None:
    """See that nothing is fed which the run would write over before anything reads it.

    State may be: the scope keeps what is written.

    Raises
    ------
    FeedError
        With the variable, and the operator that computes it.
    """
    block = program.global_block()
    unread = {name for name in feeds if not is_state(block, name)}
    for op in needed_operators(block, fetches) if unread else ():
        if op.definition.marker:
            continue
        unread.difference_update(op.input_arg_names)
        for index in sub_blocks(op):
            unread.difference_update(name for each in program.blocks[index].ops for name in each.input_arg_names)
        for name in op.output_arg_names:
            if name in unread:
                raise FeedError(
                    f"variable {name!r} is fed, and {op} computes it before anything reads what was fed"
                    f"\n  Do: leave {name!r} out of the feed, or use a program without that operator, "
                    f"whose {name!r} is made by layers.data"
                )
