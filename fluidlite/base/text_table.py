"""Format rows of texts as a table."""

from __future__ import annotations

from collections.abc import Container, Sequence


def table(rows: Sequence[Sequence[str]], right: Container[int]) -> list[str]:
    """Return one line a row; columns are two blanks apart, and those whose index is in ``right`` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, strict=True)
        return "  ".join(c.rjust(w) if k in right else c.ljust(w) for k, (c, w) in enumerate(cells)).rstrip()

    return list(map(line, rows))
