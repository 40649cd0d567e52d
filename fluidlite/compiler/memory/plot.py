"""Plots a memory plan as SVG: one rectangle for each buffer, from its first to its last step, at its offset."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from fluidlite.compiler.memory.memory_plan import MemoryPlan, PlannedBuffer
    from fluidlite.platform.place import Place

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 960, 360, 90, 40, 30
"""Size of a panel and its margins, in pixels."""
_HUES = {"value": (200, 215), "feed": (40, 50), "state": (340, 350), "workspace": (120, 130)}
"""Ranges of hues in degrees, by kind of buffer."""


def memory_plan_svg(plan: MemoryPlan) -> str:
    """Return the text of an SVG file: one panel for each arena."""
    panels = []
    height = TOP + HEIGHT + BOTTOM
    for number, (place, nbytes) in enumerate(plan.arenas.items()):
        buffers = [buffer for buffer in plan.buffers if buffer.place == place]
        panels.append(f'<g transform="translate(0 {number * height})">{_panel(plan, place, nbytes, buffers)}</g>')
    total = max(len(panels), 1) * height
    width = LEFT + WIDTH + 20
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" font-family="sans-serif" '
        f'font-size="12">\n<rect width="{width}" height="{total}" fill="white"/>\n' + "\n".join(panels) + "\n</svg>\n"
    )


def _panel(plan: MemoryPlan, place: Place, nbytes: int, buffers: list[PlannedBuffer]) -> str:
    steps = len(plan.steps) + 2  # one before the first, one after the last
    step_width, byte_height = WIDTH / steps, HEIGHT / max(nbytes, 1)
    lines = [f'<text x="{LEFT}" y="24">{place}: {nbytes:,} bytes, {len(plan.steps)} steps</text>']
    lines.append(f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="#f4f4f4" stroke="#999"/>')
    for part in range(5):
        y = TOP + HEIGHT - HEIGHT * part / 4
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_bytes_text(nbytes * part / 4)}</text>')
        lines.append(f'<line x1="{LEFT - 4}" x2="{LEFT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#999"/>')
    for buffer in buffers:
        if not buffer.nbytes:
            continue
        x, w = LEFT + (buffer.start + 1) * step_width, (buffer.end - buffer.start + 1) * step_width
        h = buffer.nbytes * byte_height
        y = TOP + HEIGHT - buffer.offset * byte_height - h
        tooltip = f"{buffer.name}: {buffer.nbytes:,} bytes at {buffer.offset:,}, steps {buffer.start} to {buffer.end}"
        lines.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{max(h, 0.5):.1f}" fill="{_colour(buffer)}" '
            f'stroke="white" stroke-width="0.5"><title>{escape(tooltip)}</title></rect>'
        )
        if h >= 13 and w >= 7 * min(len(buffer.names[0]) if buffer.names else 9, 12):
            name = buffer.names[0] if buffer.names else "workspace"
            label = name if len(name) * 7 <= w else name[: max(int(w / 7) - 1, 1)] + "…"
            lines.append(
                f'<text x="{x + 3:.1f}" y="{y + h / 2 + 4:.1f}" font-size="11" fill="#222" pointer-events="none">'
                f"{escape(label)}</text>"
            )
    lines.append(f'<text x="{LEFT + WIDTH}" y="{TOP + HEIGHT + 18}" text-anchor="end">steps →</text>')
    return "\n".join(lines)


def _colour(buffer: PlannedBuffer) -> str:
    low, high = _HUES[buffer.kind]
    digest = crc32(buffer.name.encode())
    return f"hsl({low + digest % (high - low)}, {45 + digest // 16 % 25}%, {62 + digest // 512 % 18}%)"


def _bytes_text(nbytes: float) -> str:
    for unit in ("B", "KB", "MB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if nbytes >= 10 or unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} GB"
