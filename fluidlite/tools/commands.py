"""The commands: places, plugins, ops, explain, demo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fluidlite.base.errors import FeedError
from fluidlite.framework.explain import explain as explain_program
from fluidlite.framework.program import Program
from fluidlite.io.files import read_bytes
from fluidlite.io.inference_model import MODEL_FILE
from fluidlite.tools.matrix import kernel_matrix, totals
from fluidlite.tools.reports import in_bytes, places_report, plugins_report

app = typer.Typer(
    help="fluidlite: deep-learning programs on any device, with any computing library.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
)  # fmt: skip

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
_WIDE = 200


def console() -> Console:
    """A console that takes texts as they are, and does not fold tables in a pipe."""
    made = Console(markup=False, highlight=False, emoji=False)
    return made if made.is_terminal else Console(markup=False, highlight=False, emoji=False, width=_WIDE)


def table(*columns: str) -> Table:
    """An empty table."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def _print_json(data: Any) -> None:
    typer.echo(json.dumps(data, indent=1, default=str))


@app.command()
def places(as_json: AsJson = False) -> None:
    """List every place, and why a kind of device cannot be used."""
    rows = places_report()
    if as_json:
        _print_json(rows)
        return
    out = console()
    made = table("place", "device", "memory", "capabilities", "lacks")
    for row in rows:
        if row["usable"]:
            lacks = ", ".join(row["lacks"])
            made.add_row(row["place"], row["name"], in_bytes(row["memory"]), ", ".join(row["capabilities"]), lacks)
    out.print(made)
    for row in rows:
        if not row["usable"]:
            out.print(f"{row['place']} cannot be used: {row['reason']}")
        elif row["notes"]:
            out.print(f"{row['place']}: {'; '.join(row['notes'])}")


@app.command()
def plugins(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Names, origins and tracebacks.")] = False,
    as_json: AsJson = False,
) -> None:
    """List every plugin, what it brought, and why one was left out."""
    rows = plugins_report()
    if as_json:
        _print_json(rows)
        return
    out = console()
    made = table("plugin", "version", "state", "brought")
    for row in rows:
        brought = ", ".join(f"{len(names)} {kind}" for kind, names in row["brought"].items())
        name = row["name"] + (" (built in)" if row["built_in"] else "")
        made.add_row(name, row["version"], row["state"], row["error"] or brought or "nothing")
    out.print(made)
    if not verbose:
        return
    for row in rows:
        out.print(f"\n{row['name']}: {row['origin']}, plugin API {row['api']}")
        for kind, names in row["brought"].items():
            out.print(f"  {kind}: {', '.join(names)}")
        for note in row["notes"]:
            out.print(f"  note: {note}")
        if row["traceback"]:
            out.print(row["traceback"].rstrip())


@app.command()
def ops(
    patterns: Annotated[list[str] | None, typer.Argument(help="Operator types, with * and ?; all if left out.")] = None,
    place: Annotated[list[str] | None, typer.Option("--place", "-p", help="A column; all places if left out.")] = None,
    refused: Annotated[bool, typer.Option(help="Say why operators fall back.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the kernel matrix: how each operator gets its kernel on each place."""
    rows = kernel_matrix(place or None, patterns or ())
    if as_json:
        _print_json(
            [
                {
                    "op": row.op,
                    "places": {
                        str(p): {"hows": dict(c.hows), "libraries": sorted(c.libraries), "refused": c.refused}
                        for p, c in row.cells.items()
                    },
                }
                for row in rows
            ]
        )
        return
    if not rows:
        raise typer.BadParameter(f"no operator is called {', '.join(patterns or ())}")
    out = console()
    columns = list(rows[0].cells)
    made = table("operator", *map(str, columns))
    for row in rows:
        made.add_row(row.op, *(row.cells[p].text for p in columns))
    out.print(made)
    if refused:
        for row in rows:
            for column, cell in row.cells.items():
                if cell.refused:
                    reasons = "; ".join(f"{candidate}: {reason}" for candidate, reason in cell.refused.items())
                    out.print(f"{row.op} on {column}: {reasons}", soft_wrap=True)
    for column in columns:
        counts = ", ".join(f"{n} {how}" for how, n in totals(rows, column).items())
        out.print(f"{column}: {len(rows)} operators: {counts}")


@app.command()
def explain(
    model: Annotated[Path, typer.Argument(help="A directory of save_inference_model, or a program's JSON file.")],
    place: Annotated[str, typer.Option("--place", "-p")] = "cpu",
    feed: Annotated[list[str] | None, typer.Option("--feed", "-f", help="name=64x784, once for each fed name.")] = None,
    refused: Annotated[bool, typer.Option(help="Show the candidates that were left out, and why.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write the report to an HTML file too.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show, without running it, which kernel would run each operator of a saved model, and what would move."""
    program = Program.from_json(read_bytes(model / MODEL_FILE if model.is_dir() else model))
    feeds = dict(_feed(item) for item in feed or ())
    report = explain_program(program, place, feed=feeds, fetch_list=program.fetch_names or None)
    if html is not None:
        html.write_text(report.html(), encoding="utf-8")
    if as_json:
        _print_json({"summary": report.summary, "operators": report.data()})
        return
    console().print(report.text(refused=refused), soft_wrap=True)


def _feed(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, dims = text.rpartition("=")
    parts = [part for part in dims.split("x") if part]
    if not equals or not name or not all(part.isdecimal() for part in parts):
        raise FeedError(f"--feed {text!r} is not name=dims; write it like image=64x784")
    return name, tuple(map(int, parts))


@app.command()
def demo(
    place: Annotated[list[str] | None, typer.Option("--place", "-p", help="Where; everywhere if left out.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="How often to go through the data.")] = 5,
    hidden: Annotated[int, typer.Option(min=1, help="Units of each hidden layer.")] = 64,
    batch: Annotated[int, typer.Option(min=1, help="Samples a step.")] = 64,
) -> None:
    """Train one program on every place, and compare."""
    from fluidlite.tools.demo_view import show

    raise typer.Exit(show(console(), place or None, epochs, hidden, batch))
