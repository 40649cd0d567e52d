"""``fluid.debugger``: programs as readable code, and their blocks as graphs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable

from fluidlite.base.errors import ProgramError
from fluidlite.graphviz import Graph, Node
from fluidlite.program.block import Block
from fluidlite.program.operator import EMPTY, Operator
from fluidlite.program.program import Program
from fluidlite.program.text import operator_text
from fluidlite.program.variable import Parameter, Variable

__all__ = ["draw_block_graphviz", "pprint_block_codes", "pprint_program_codes", "repr_op", "repr_var"]

_COLOURS = {"forward": "#d5e8d4", "backward": "#ffe6cc", "optimize": "#dae8fc", "lr_sched": "#e1d5e7"}
"""Colours of operators, by role."""
_HIGHLIGHT = "#ffb3b3"


def _block(block: Block) -> Block:
    if not isinstance(block, Block):
        raise ProgramError(f"debugger: {type(block).__name__} was given; expected a Block of a Program")
    return block


def repr_var(variable: Variable) -> str:
    """A variable on one line, as a declaration."""
    kind = "param" if isinstance(variable, Parameter) else "persist" if variable.persistable else "var"
    if variable.spec is None:
        return f"{kind} {variable.name} : {variable.type}"
    level = f", lod_level={variable.lod_level}" if variable.lod_level else ""
    return f"{kind} {variable.name} : {variable.dtype}{list(variable.shape)}{level}"


def repr_op(op: Operator) -> str:
    """An operator on one line: outputs = type(inputs, attributes)."""
    return operator_text(op)


def block_code(block: Block, show_backward: bool = False) -> str:
    """A block as readable code; see :func:`pprint_block_codes`."""
    ops = [op for op in _block(block).ops if show_backward or op.role == "forward"]
    used = {name for op in ops for name in (*op.input_arg_names, *op.output_arg_names)}
    lines = [f"# block-{block.idx}" + (f" parent-{block.parent_idx}" if block.parent_idx >= 0 else ""), "# variables"]
    lines += [repr_var(variable) for name, variable in block.vars.items() if show_backward or name in used]
    return "\n".join([*lines, "", "# operators", *map(repr_op, ops), ""])


def pprint_block_codes(block: Block, show_backward: bool = False) -> None:
    """Print a block as readable code: its variables, then its operators.

    Parameters
    ----------
    block : Block
    show_backward : bool
        Also show the operators of backward and optimisers.
    """
    sys.stdout.write(block_code(block, show_backward))


def pprint_program_codes(program: Program, show_backward: bool = False) -> None:
    """Print all blocks of a program; see :func:`pprint_block_codes`.

    Parameters
    ----------
    program : Program
    show_backward : bool
    """
    if not isinstance(program, Program):
        raise ProgramError(f"debugger: {type(program).__name__} was given; expected a Program")
    for block in program.blocks:
        pprint_block_codes(block, show_backward)


def draw_block_graphviz(
    block: Block, highlights: Iterable[str] | None = None, path: str | os.PathLike[str] = "./temp.dot"
) -> str:
    """Write a block as a graph of operators and variables, in Graphviz's DOT language.

    Parameters
    ----------
    block : Block
    highlights : list of str, optional
        Regular expressions of variables to show in red.
    path : path

    Returns
    -------
    str
        The path; ``dot -Tpng`` makes a picture of the file.

    Raises
    ------
    ProgramError
        A highlight is no regular expression, or the file cannot be written.
    """
    try:
        patterns = [re.compile(text) for text in highlights or ()]
    except (re.error, TypeError) as exc:
        raise ProgramError(f"draw_block_graphviz: highlights is {highlights!r:.80}: {exc}") from None
    return block_graph(block, lambda name: any(pattern.fullmatch(name) for pattern in patterns)).save(path)


def block_graph(block: Block, highlighted: Callable[[str], bool] = lambda name: False) -> Graph:
    """The graph of a block; see :func:`draw_block_graphviz`."""
    graph = Graph(f"block {_block(block).idx}", rankdir="TB")
    nodes: dict[str, Node] = {}

    def variable(name: str) -> Node:
        if name not in nodes:
            variable_ = block.find_var(name)
            label = repr_var(variable_) if variable_ is not None else name
            shape = "box" if variable_ is not None and variable_.persistable else "ellipse"
            is_highlighted = highlighted(name)
            attrs = {"style": "filled", "fillcolor": _HIGHLIGHT} if is_highlighted else {}
            nodes[name] = graph.node(label.replace(" : ", "\n"), "var", shape=shape, **attrs)
        return nodes[name]

    for op in block.ops:
        colour = _COLOURS.get(op.role, "#ffffff")
        op_node = graph.node(op.type, "op", repr_op(op), shape="octagon", style="filled", fillcolor=colour)
        for slot, names in op.inputs.items():
            for name in names:
                if name != EMPTY:
                    graph.edge(variable(name), op_node, label=slot)
        for slot, names in op.outputs.items():
            for name in names:
                if name != EMPTY:
                    graph.edge(op_node, variable(name), label=slot)
    return graph
