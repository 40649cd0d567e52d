"""``fluid.net_drawer``: the main block of a program as a graph."""

from __future__ import annotations

from typing import Any

from fluidlite.base.errors import ProgramError
from fluidlite.debugger import block_graph
from fluidlite.graphviz import Graph
from fluidlite.program.program import Program

__all__ = ["draw_graph"]


def draw_graph(
    startup_program: Program,
    main_program: Program,
    filename: str | None = None,
    graph_attr: Any = None,
    node_attr: Any = None,
    op_attr: Any = None,
    **kwargs: Any,
) -> Graph:
    """Return a program's graph, and write it in Graphviz's DOT language.

    Parameters
    ----------
    startup_program : Program
        Not drawn.
    main_program : Program
        Its main block is drawn.
    filename : str, optional
        A file to write.
    graph_attr : mapping, optional
        Attributes of the graph in DOT.
    node_attr, op_attr, **kwargs
        Not used.
    """
    for name, program in (("startup_program", startup_program), ("main_program", main_program)):
        if not isinstance(program, Program):
            raise ProgramError(f"draw_graph: {name} is {type(program).__name__}; expected a Program")
    graph = block_graph(main_program.global_block())
    graph.attrs.update(graph_attr or {})
    if filename is not None:
        graph.save(filename)
    return graph
