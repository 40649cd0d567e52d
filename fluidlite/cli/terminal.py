"""Output of the commands (console, tables, JSON), and the parsing of options with dims."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from fluidlite.base.errors import FeedError

_PIPE_COLUMNS = 200


def console() -> Console:
    """A console without markup, which does not fold tables in a pipe."""
    terminal = Console(markup=False, highlight=False, emoji=False)
    return (
        terminal if terminal.is_terminal else Console(markup=False, highlight=False, emoji=False, width=_PIPE_COLUMNS)
    )


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """An empty table; the columns in ``right`` are numbers."""
    result = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        result.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return result


def print_json(data: Any) -> None:
    """Print data as JSON, instead of a table."""
    typer.echo(json.dumps(data, indent=1, default=str))


def named_dims(option: str, form: str, text: str) -> tuple[str, tuple[int, ...]]:
    """Parse ``X=64x128`` to a name and dims; ``form`` describes the syntax in errors."""
    name, equals, dims = text.rpartition("=")
    parts = [part for part in dims.split("x") if part]
    if not equals or not name or not all(part.isdecimal() for part in parts):
        raise FeedError(f"{option} {text!r} is not {form}")
    return name, tuple(map(int, parts))
