"""The buffers of a graph's values, as text and as a picture: which value lies where, and from when to when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from zlib import crc32

from fluidlite.nodes.inplace import shared_input
from fluidlite.nodes.node import Node
from fluidlite.nodes.operator_node import OperatorNode

STEP, ROW, LEFT, TOP = 110, 34, 96, 44


@dataclass
class Buffer:
    """Memory of one or several values of a graph.

    ``values``: what lies in it, in order: the step of forward that writes it, and the node.
    """

    nbytes: int
    values: list[tuple[int, str]] = field(default_factory=list)


def buffers_of(nodes: Sequence[Node]) -> list[Buffer]:
    """The buffers of the values of a graph's nodes, leaves aside, in order of their first value."""
    found: dict[int, Buffer] = {}
    made: list[Buffer] = []
    step = 0
    for node in nodes:
        if node.leaf:
            continue
        over = node._inputs[node._inplace] if isinstance(node, OperatorNode) and node._inplace >= 0 else None
        holder = over if over is not None else shared_input(node)
        spec = node._spec()
        buffer = found.get(id(holder)) if holder is not None else None
        if buffer is None and holder is None:
            buffer = Buffer(spec.nbytes if spec is not None else 0)
            made.append(buffer)
        if buffer is not None:  # else it lies in a leaf
            found[id(node)] = buffer
            buffer.values.append((step, node.name()))
        step += 1
    return made


def text_of(nodes: Sequence[Node]) -> str:
    """A line a buffer, a column a step of forward: what lies there, and ``=`` while it stays."""
    names = [node.name() for node in nodes if not node.leaf]
    widths = [max(len(name), 3) for name in names]
    lines = ["buffer       bytes  " + "  ".join(name.ljust(width) for name, width in zip(names, widths, strict=True))]
    for number, buffer in enumerate(buffers_of(nodes)):
        cells = []
        for step, width in enumerate(widths):
            there = [name for at, name in buffer.values if at == step]
            begun = any(at < step for at, _ in buffer.values)
            cells.append(there[0].ljust(width) if there else ("=" if begun else " ") * width)
        lines.append(f"{number:<6} {buffer.nbytes:11,}  " + "  ".join(cells))
    return "\n".join(line.rstrip() for line in lines)


def svg_of(panels: Sequence[tuple[str, Sequence[Node]]]) -> str:
    """The text of an SVG file: a panel for each graph, a row a buffer, a rectangle a value.

    ``panels``: titles and nodes.
    """
    drawn, y = [], 0
    wide = LEFT + STEP * max(sum(not node.leaf for node in nodes) for _, nodes in panels) + 20
    for title, nodes in panels:
        buffers = buffers_of(nodes)
        drawn.append(_panel(title, buffers, sum(not node.leaf for node in nodes), y))
        y += TOP + ROW * len(buffers) + 20
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {y}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{wide}" height="{y}" fill="white"/>\n' + "\n".join(drawn) + "\n</svg>\n"
    )


def _panel(title: str, buffers: Sequence[Buffer], steps: int, top: int) -> str:
    total = sum(buffer.nbytes for buffer in buffers)
    lines = [f'<text x="10" y="{top + 20}" font-weight="bold">{escape(title)}: {total:,} bytes</text>']
    for number, buffer in enumerate(buffers):
        y = top + TOP + number * ROW - 12
        lines.append(f'<text x="{LEFT - 8}" y="{y + 18}" text-anchor="end">{buffer.nbytes:,} B</text>')
        for at, (step, name) in enumerate(buffer.values):
            end = buffer.values[at + 1][0] if at + 1 < len(buffer.values) else steps
            x, width = LEFT + step * STEP, (end - step) * STEP - 2
            colour = f"hsl({crc32(name.encode()) % 360}, 55%, 78%)"
            lines.append(f'<rect x="{x}" y="{y}" width="{width}" height="{ROW - 8}" rx="3" fill="{colour}"/>')
            lines.append(f'<text x="{x + 6}" y="{y + 18}">{escape(name)}</text>')
    return "\n".join(lines)
