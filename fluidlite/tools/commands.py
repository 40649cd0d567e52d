"""The commands: places, plugins, ops, op, explain, passes, sources, demo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fluidlite.base.errors import FeedError
from fluidlite.executor.explain import explain as explain_program
from fluidlite.framework.program import Program
from fluidlite.framework.registry import ops as registry
from fluidlite.io.files import read_bytes
from fluidlite.io.inference_model import MODEL_FILE
from fluidlite.tools.matrix import WAYS, kernel_matrix, totals
from fluidlite.tools.operator_facts import as_data, family_of, forward_of, gradient_of
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
    family: Annotated[list[str] | None, typer.Option("--family", "-f", help="Only those of a family: reduce.")] = None,
    how: Annotated[list[str] | None, typer.Option(help="Only those with such a kernel somewhere: fallback.")] = None,
    gradients: Annotated[bool, typer.Option(help="Gradient operators too.")] = True,
    refused: Annotated[bool, typer.Option(help="Say why operators fall back.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the kernel matrix: how each operator gets its kernel on each place."""
    for word in set(how or ()) - set(WAYS):
        raise typer.BadParameter(f"--how {word}: expected one of {', '.join(WAYS)}")
    rows = [
        row
        for row in kernel_matrix(place or None, patterns or ())
        if (not family or family_of(registry.get(row.op)) in family)
        and (not how or any(way in how for cell in row.cells.values() for way in cell.hows))
        and (gradients or forward_of(registry.get(row.op)) is None)
    ]
    if as_json:
        _print_json(
            [
                {
                    "op": row.op,
                    "places": {
                        str(p): {
                            "hows": dict(c.hows),
                            "libraries": sorted(set().union(*c.libraries.values())),
                            "refused": c.refused,
                        }
                        for p, c in row.cells.items()
                    },
                }
                for row in rows
            ]
        )
        return
    if not rows:
        wanted = f"no operator is called {', '.join(patterns)}" if patterns else "there is no such operator"
        asked = family or how or not gradients
        raise typer.BadParameter(wanted + (", with what the options ask" if patterns and asked else ""))
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
def op(
    type: Annotated[str, typer.Argument(help="An operator type.")],
    place: Annotated[list[str] | None, typer.Option("--place", "-p", help="A place; all if left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what one operator means: slots, attributes, gradient, and its kernels."""
    definition = registry.get(type)
    facts = as_data(definition)
    gradient = gradient_of(definition)
    rows = kernel_matrix(place or None, [type] if gradient is None else [type, gradient.type])
    if as_json:
        kernels = {row.op: {str(p): cell.text for p, cell in row.cells.items()} for row in rows}
        _print_json(facts | {"kernels": kernels})
        return
    out = console()
    out.print(f"{type}: {facts['doc']}", soft_wrap=True)
    for line in (*facts["traits"], f"Family: {facts['family']}", f"Gradient: {facts['gradient']}"):
        out.print(f"  {line}", soft_wrap=True)
    slots = table("", "slot", "takes", "what it holds")
    for side, given in (("input", definition.inputs), ("output", definition.outputs)):
        for slot in given:
            slots.add_row(side, slot.name, facts[f"{side}s"][slot.name], slot.doc or slot.content)
    attrs = table("attribute", "type", "default", "allowed", "meaning")
    for name, attr in facts["attrs"].items():
        attrs.add_row(name, *attr.values())
    ways = table("kernel", *map(str, rows[0].cells))
    for row in rows:
        ways.add_row(row.op, *(cell.text for cell in row.cells.values()))
    for shown in (slots, attrs, ways):
        if shown.row_count:
            out.print()
            out.print(shown)


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


@app.command()
def passes(
    model: Annotated[Path, typer.Argument(help="A directory of save_inference_model, or a program's JSON file.")],
    place: Annotated[str, typer.Option("--place", "-p", help="Whose transformer: a kind of places.")] = "cpu",
    fetch: Annotated[list[str] | None, typer.Option(help="What is fetched; else what the program names.")] = None,
    only: Annotated[list[str] | None, typer.Option("--pass", help="Show this pass alone; those before it run.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a program before and after each pass of a transformer, without running it."""
    from fluidlite.tools.passes_report import passes_report

    program = Program.from_json(read_bytes(model / MODEL_FILE if model.is_dir() else model))
    report = passes_report(program, place, fetch or ())
    known = {step.name for step in report.steps}
    for name in only or ():
        if name not in known:
            raise typer.BadParameter(f"--pass {name}: expected one of {', '.join(sorted(known))}")
    if as_json:
        _print_json(report.data())
        return
    console().print(report.text(only or ()), soft_wrap=True)


@app.command()
def sources(
    model: Annotated[Path, typer.Argument(help="A directory of save_inference_model, or a program's JSON file.")],
    to: Annotated[Path, typer.Option(help="The folder for the files.")],
    place: Annotated[str, typer.Option("--place", "-p")] = "cpu",
    codegen: Annotated[str | None, typer.Option(help="Whose kernels; the place's best if left out.")] = None,
    feed: Annotated[list[str] | None, typer.Option("--feed", "-f", help="name=64x784, for open dims.")] = None,
    fetch: Annotated[list[str] | None, typer.Option(help="What is fetched; else what the program names.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the sources of all that a saved model runs to files: it runs once, on zeros."""
    from fluidlite.tools.sources_report import write_sources

    program = Program.from_json(read_bytes(model / MODEL_FILE if model.is_dir() else model))
    written = write_sources(program, place, codegen, dict(_feed(item) for item in feed or ()), fetch or (), to)
    if as_json:
        _print_json([str(path) for path in written])
        return
    for path in written:
        console().print(f"{path}  {in_bytes(path.stat().st_size)}", soft_wrap=True)


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
