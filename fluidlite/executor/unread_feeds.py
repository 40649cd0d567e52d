"""Feeds that nothing would read."""

from __future__ import annotations

from collections.abc import Iterable

from fluidlite.base.errors import FeedError
from fluidlite.compiler.ir.graph import Graph
from fluidlite.program.edit import sub_blocks


def check_read(graph: Graph, feeds: Iterable[str]) -> None:
    """See that nothing is fed which the run of a graph's program would write over before anything reads it.

    State may be: the scope keeps what is written.

    Raises FeedError with the variable, and the operator that computes it.
    """
    known = {name: graph.block.find_var(name) for name in feeds}
    unread = {name for name, variable in known.items() if variable is None or not variable.persistable}
    for op in graph.written:
        if not unread:
            return
        if op.definition.marker:
            continue
        unread.difference_update(op.input_arg_names)
        for index in sub_blocks(op):
            unread.difference_update(name for each in graph.program.blocks[index].ops for name in each.input_arg_names)
        for name in op.output_arg_names if unread else ():
            if name in unread:
                raise FeedError(
                    f"variable {name!r} is fed, and {op} computes it before anything reads what was fed"
                    f"\n  Do: leave {name!r} out of the feed, or use a program without that operator, "
                    f"whose {name!r} is made by layers.data"
                )
