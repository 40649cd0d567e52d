"""``fluid.graphviz``: graphs in Graphviz's DOT language, for ``dot -Tpng``. Nothing is executed."""

from __future__ import annotations

import os
from typing import Any

from fluidlite.base.text_file import write_text

__all__ = ["Edge", "Graph", "Node"]


def quoted(value: Any) -> str:
    """A value as DOT's quoted text."""
    text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'


def _attributes(attrs: dict[str, Any]) -> str:
    return "[" + ",".join(f"{name}={quoted(value)}" for name, value in attrs.items()) + "]" if attrs else ""


class Node:
    """A node of a graph: label, unique name, and DOT attributes."""

    def __init__(self, label: str, name: str, attrs: dict[str, Any]) -> None:
        self.label, self.name, self.attrs = label, name, attrs

    def __str__(self) -> str:
        return f"{self.name} {_attributes({'label': self.label, **self.attrs})}"


class Edge:
    """A directed edge."""

    def __init__(self, source: Node, target: Node, attrs: dict[str, Any]) -> None:
        self.source, self.target, self.attrs = source, target, attrs

    def __str__(self) -> str:
        return f"{self.source.name} -> {self.target.name}{_attributes(self.attrs)}"


class Graph:
    """A directed graph.

    Parameters
    ----------
    title : str
    **attrs
        Attributes of DOT.
    """

    def __init__(self, title: str, **attrs: Any) -> None:
        self.title, self.attrs = title, attrs
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []

    def node(self, label: str, prefix: str = "node", description: str = "", **attrs: Any) -> Node:
        """Add a node."""
        node = Node(
            label, f"{prefix}_{len(self.nodes)}", {**({"tooltip": description} if description else {}), **attrs}
        )
        self.nodes.append(node)
        return node

    add_node = node

    def edge(self, source: Node, target: Node, **attrs: Any) -> Edge:
        """Add an edge."""
        edge = Edge(source, target, attrs)
        self.edges.append(edge)
        return edge

    add_edge = edge

    def code(self) -> str:
        """The graph in DOT."""
        lines = [f"{name}={quoted(value)};" for name, value in self.attrs.items()]
        lines += [f"{each};" for each in (*self.nodes, *self.edges)]
        return "\n".join([f"digraph {quoted(self.title)} {{", *(f"  {line}" for line in lines), "}", ""])

    __str__ = code

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the graph into a file; return its path.

        Raises
        ------
        ProgramError
            The file cannot be written.
        """
        return str(write_text(path, self.code(), "the graph"))
