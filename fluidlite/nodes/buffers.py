"""The buffers of a graph's values, as text and as SVG: the values in each buffer, and their live ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from zlib import crc32

from fluidlite.nodes.inplace import shared_input
from fluidlite.nodes.node import Node
from fluidlite.nodes.operator_node import OperatorNode

STEP_PIXELS, ROW_PIXELS, LEFT_PIXELS, TOP_PIXELS = 110, 34, 96, 44  # width of a step, height of a buffer, margins


@dataclass
class ValueBuffer:
    """Memory of one or several values of a graph.

    ``values``: in order, the forward step that writes each value, and the name of its node.
    """

    nbytes: int
    values: list[tuple[int, str]] = field(default_factory=list)


def buffers_of(nodes: Sequence[Node]) -> list[ValueBuffer]:
    """The buffers of the values of a graph's nodes, without leaves, in order of their first value."""
    buffer_of_node: dict[int, ValueBuffer] = {}
    buffers: list[ValueBuffer] = []
    step = 0
    for node in nodes:
        if node.leaf:
            continue
        over = node._inputs[node._inplace] if isinstance(node, OperatorNode) and node._inplace >= 0 else None
        holder = over if over is not None else shared_input(node)
        spec = node._spec()
        buffer = buffer_of_node.get(id(holder)) if holder is not None else None
        if buffer is None and holder is None:
            buffer = ValueBuffer(spec.nbytes if spec is not None else 0)
            buffers.append(buffer)
        if buffer is not None:  # else the value is stored in a leaf
            buffer_of_node[id(node)] = buffer
            buffer.values.append((step, node.name()))
        step += 1
    return buffers


def text_of(nodes: Sequence[Node]) -> str:
    """One line for each buffer, one column for each forward step: the value that it writes, ``=`` while it is live."""
    names = [node.name() for node in nodes if not node.leaf]
    widths = [max(len(name), 3) for name in names]
    lines = ["buffer       bytes  " + "  ".join(name.ljust(width) for name, width in zip(names, widths, strict=True))]
    for number, buffer in enumerate(buffers_of(nodes)):
        cells = []
        for step, width in enumerate(widths):
            written_names = [name for at, name in buffer.values if at == step]
            is_live = any(at < step for at, _ in buffer.values)
            cells.append(written_names[0].ljust(width) if written_names else ("=" if is_live else " ") * width)
        lines.append(f"{number:<6} {buffer.nbytes:11,}  " + "  ".join(cells))
    return "\n".join(line.rstrip() for line in lines)


def svg_of(panels: Sequence[tuple[str, Sequence[Node]]]) -> str:
    """The text of an SVG file: a panel for each graph, a row for each buffer, a rectangle for each value.

    ``panels``: titles and nodes.
    """
    panel_texts, y = [], 0
    width = LEFT_PIXELS + STEP_PIXELS * max(sum(not node.leaf for node in nodes) for _, nodes in panels) + 20
    for title, nodes in panels:
        buffers = buffers_of(nodes)
        panel_texts.append(_panel_svg(title, buffers, sum(not node.leaf for node in nodes), y))
        y += TOP_PIXELS + ROW_PIXELS * len(buffers) + 20
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{y}" fill="white"/>\n' + "\n".join(panel_texts) + "\n</svg>\n"
    )


def _panel_svg(title: str, buffers: Sequence[ValueBuffer], steps: int, top: int) -> str:
    total = sum(buffer.nbytes for buffer in buffers)
    lines = [f'<text x="10" y="{top + 20}" font-weight="bold">{escape(title)}: {total:,} bytes</text>']
    for number, buffer in enumerate(buffers):
        y = top + TOP_PIXELS + number * ROW_PIXELS - 12
        lines.append(f'<text x="{LEFT_PIXELS - 8}" y="{y + 18}" text-anchor="end">{buffer.nbytes:,} B</text>')
        for at, (step, name) in enumerate(buffer.values):
            end = buffer.values[at + 1][0] if at + 1 < len(buffer.values) else steps
            x, width = LEFT_PIXELS + step * STEP_PIXELS, (end - step) * STEP_PIXELS - 2
            colour = f"hsl({crc32(name.encode()) % 360}, 55%, 78%)"
            lines.append(f'<rect x="{x}" y="{y}" width="{width}" height="{ROW_PIXELS - 8}" rx="3" fill="{colour}"/>')
            lines.append(f'<text x="{x + 6}" y="{y + 18}">{escape(name)}</text>')
    return "\n".join(lines)
