"""Traces of a loop over a loader: the work of loader threads and of the loop over time, as an SVG picture."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import NamedTuple

WIDTH, LEFT, TOP, ROW, GAP = 960, 110, 40, 34, 10
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1")


class Span(NamedTuple):
    """One piece of work for a batch, with its begin and end by ``time.perf_counter``.

    Attributes
    ----------
    what : str
        Workers record "source" (reading and assembling) and "copy" (to the place); the loop may add others.
    number : int
        The number of the batch.
    begin, end : float
    """

    what: str
    number: int
    begin: float
    end: float


def picture(spans: Iterable[Span], title: str = "") -> str:
    """Return the text of an SVG file: a row for each kind of work, a rectangle for each batch.

    Parameters
    ----------
    spans : iterable of Span
    title : str
    """
    ordered = sorted(spans, key=lambda span: span.begin)
    kinds = list(dict.fromkeys(span.what for span in ordered))
    begin = ordered[0].begin if ordered else 0.0
    length = max((span.end for span in ordered), default=begin) - begin or 1.0
    height = TOP + len(kinds) * (ROW + GAP) + 36
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {height}" font-family="sans-serif" '
        f'font-size="12">',
        f'<rect width="{LEFT + WIDTH + 20}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="24">{escape(title)}</text>',
    ]
    for row, kind in enumerate(kinds):
        y = TOP + row * (ROW + GAP)
        lines.append(f'<text x="{LEFT - 10}" y="{y + ROW / 2 + 4:.0f}" text-anchor="end">{escape(kind)}</text>')
        lines.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{ROW}" fill="#f4f4f4"/>')
        for span in ordered:
            if span.what == kind:
                x, wide = LEFT + (span.begin - begin) / length * WIDTH, (span.end - span.begin) / length * WIDTH
                lines.append(_rectangle(span, x, y, max(wide, 0.8), _COLOURS[row % len(_COLOURS)]))
    lines += _axis(height - 30, length)
    return "\n".join([*lines, "</svg>", ""])


def _rectangle(span: Span, x: float, y: float, wide: float, colour: str) -> str:
    tooltip = f"{span.what} of batch {span.number}: {(span.end - span.begin) * 1e3:.2f} ms"
    rectangle = (
        f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{ROW}" fill="{colour}" stroke="white" '
        f'stroke-width="0.5"><title>{escape(tooltip)}</title></rect>'
    )
    if wide < 16:
        return rectangle
    middle = f'x="{x + wide / 2:.1f}" y="{y + ROW / 2 + 4:.0f}"'
    return rectangle + f'<text {middle} fill="white" text-anchor="middle">{span.number}</text>'


def _axis(y: int, length: float) -> list[str]:
    lines = []
    for part in range(6):
        x = LEFT + WIDTH * part / 5
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 4}" stroke="#999"/>')
        lines.append(f'<text x="{x:.1f}" y="{y + 18}" text-anchor="middle">{length * part / 5 * 1e3:.0f} ms</text>')
    return lines
