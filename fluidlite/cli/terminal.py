"""What commands print with: a console, tables, JSON in their place; and options that name dims."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from fluidlite.base.errors import FeedError

_WIDE = 200


def console() -> Console:
    """A console that takes texts as they are, and does not fold tables in a pipe."""
    made = Console(markup=False, highlight=False, emoji=False)
    return made if made.is_terminal else Console(markup=False, highlight=False, emoji=False, width=_WIDE)


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """An empty table; the columns in ``right`` are numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def print_json(data: Any) -> None:
    """Print data where a table would be."""
    typer.echo(json.dumps(data, indent=1, default=str))


def named_dims(option: str, form: str, text: str) -> tuple[str, tuple[int, ...]]:
    """``X=64x128`` as a name and dims; ``form`` says of an option how it is written."""
    name, equals, dims = text.rpartition("=")
    parts = [part for part in dims.split("x") if part]
    if not equals or not name or not all(part.isdecimal() for part in parts):
        raise FeedError(f"{option} {text!r} is not {form}")
    return name, tuple(map(int, parts))
