"""The commands: places, plugins, ops, op, explain, passes, sources, certify, bench, profile, run-book, fuzz, ..."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import typer

from fluidlite.base.text_file import write_text
from fluidlite.cli.kernel_matrix import WAYS, kernel_matrix, totals
from fluidlite.cli.op_docs import as_data, family_of, forward_of, gradient_of
from fluidlite.cli.reports import in_bytes, places_report, plugins_report
from fluidlite.cli.terminal import console, named_dims, print_json, table
from fluidlite.executor.explain import explain as explain_program
from fluidlite.io.inference_model import read_program
from fluidlite.program.registry import ops as registry

app = typer.Typer(
    help="fluidlite: deep-learning programs on any device, with any computing library.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _loaded(modules: list[str] | None) -> list[str]:
    """Load plugins that are not installed, before the command runs."""
    if modules:
        from fluidlite.conformance import load_plugin_modules

        load_plugin_modules(modules)
    return modules or []


PluginModules = Annotated[
    list[str] | None,
    typer.Option("--plugin", callback=_loaded, help="A plugin that is not installed: its module, or a file module.py."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def _file(path: Path | None) -> Path | None:
    """Check that a file can be written, before the command runs."""
    if path is not None and path.is_dir():
        raise typer.BadParameter(f"{path} is a folder")
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}")
    return path


def _feeds(texts: list[str] | None) -> dict[str, tuple[int, ...]]:
    return dict(named_dims("--feed", "name=dims; write it like image=64x784", text) for text in texts or ())


def _folder(path: Path) -> Path:
    """Check that a path is a folder or does not exist."""
    if path.exists() and not path.is_dir():
        raise typer.BadParameter(f"{path} is a file")
    return path


@app.command()
def places(plugin: PluginModules = None, as_json: AsJson = False) -> None:
    """List every place, and why a kind of device cannot be used."""
    rows = places_report()
    if as_json:
        print_json(rows)
        return
    out = console()
    listing = table("place", "device", "memory", "capabilities", "lacks")
    for row in rows:
        if row["usable"]:
            lacks = ", ".join(row["lacks"])
            listing.add_row(row["place"], row["name"], in_bytes(row["memory"]), ", ".join(row["capabilities"]), lacks)
    out.print(listing)
    for row in rows:
        if not row["usable"]:
            out.print(f"{row['place']} cannot be used: {row['reason']}")
        elif row["notes"]:
            out.print(f"{row['place']}: {'; '.join(row['notes'])}")


@app.command()
def plugins(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Names, origins and tracebacks.")] = False,
    plugin: PluginModules = None,
    as_json: AsJson = False,
) -> None:
    """List every plugin, what it brought, and why one was left out."""
    rows = plugins_report()
    if as_json:
        print_json(rows)
        return
    out = console()
    listing = table("plugin", "version", "state", "brought")
    for row in rows:
        brought = ", ".join(f"{len(names)} {kind}" for kind, names in row["brought"].items())
        name = row["name"] + (" (built in)" if row["built_in"] else "")
        listing.add_row(name, row["version"], row["state"], row["error"] or brought or "nothing")
    out.print(listing)
    if not verbose:
        return
    for row in rows:
        out.print(f"\n{row['name']}: {row['origin']}, plugin API {row['api']}")
        for kind, names in row["brought"].items():
            counted = (f"{name} ({n} of them)" if n > 1 else name for name, n in Counter(names).items())
            out.print(f"  {kind}: {', '.join(counted)}")
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
    plugin: PluginModules = None,
    as_json: AsJson = False,
) -> None:
    """Show the kernel matrix: how each operator gets its kernel on each place."""
    for word in set(how or ()) - set(WAYS):
        raise typer.BadParameter(f"--how {word}: expected one of {', '.join(WAYS)}")
    families = {family_of(each) for each in registry}
    for name in set(family or ()) - families:
        raise typer.BadParameter(
            f"--family {name}: there is no such operator; families are {', '.join(sorted(families))}"
        )
    if patterns and not any(fnmatchcase(each.type, pattern) for each in registry for pattern in patterns):
        raise typer.BadParameter(f"no operator is called {', '.join(patterns)}")
    rows = [
        row
        for row in kernel_matrix(place or None, patterns or ())
        if (not family or family_of(registry.get(row.op)) in family)
        and (not how or any(way in how for cell in row.cells.values() for way in cell.hows))
        and (gradients or forward_of(registry.get(row.op)) is None)
    ]
    if as_json:
        print_json(
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
    out = console()
    if not rows:
        filters = [*(f"--family {name}" for name in family or ()), *(f"--how {word}" for word in how or ())]
        out.print(f"no operator is of {' '.join([*filters, *([] if gradients else ['--no-gradients'])])}")
        return
    columns = list(rows[0].cells)
    listing = table("operator", *map(str, columns))
    for row in rows:
        listing.add_row(row.op, *(row.cells[p].text for p in columns))
    out.print(listing)
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
    plugin: PluginModules = None,
    as_json: AsJson = False,
) -> None:
    """Show what one operator means: slots, attributes, gradient, and its kernels."""
    definition = registry.get(type)
    facts = as_data(definition)
    gradient = gradient_of(definition)
    rows = kernel_matrix(place or None, [type] if gradient is None else [type, gradient.type])
    if as_json:
        kernels = {row.op: {str(p): cell.text for p, cell in row.cells.items()} for row in rows}
        print_json(facts | {"kernels": kernels})
        return
    out = console()
    out.print(f"{type}: {facts['doc']}", soft_wrap=True)
    for line in (*facts["traits"], f"Family: {facts['family']}", f"Gradient: {facts['gradient']}"):
        out.print(f"  {line}", soft_wrap=True)
    slots = table("", "slot", "takes", "what it holds")
    for side, slots_of_side in (("input", definition.inputs), ("output", definition.outputs)):
        for slot in slots_of_side:
            slots.add_row(side, slot.name, facts[f"{side}s"][slot.name], slot.doc or slot.content)
    attrs = table("attribute", "type", "default", "allowed", "meaning")
    for name, attr in facts["attrs"].items():
        attrs.add_row(name, *attr.values())
    ways = table("kernel", *map(str, rows[0].cells))
    for row in rows:
        ways.add_row(row.op, *(cell.text for cell in row.cells.values()))
    for section in (slots, attrs, ways):
        if section.row_count:
            out.print()
            out.print(section)


@app.command()
def explain(
    model: Annotated[Path, typer.Argument(help="A directory of save_inference_model, or a program's JSON file.")],
    place: Annotated[str, typer.Option("--place", "-p")] = "cpu",
    feed: Annotated[list[str] | None, typer.Option("--feed", "-f", help="name=64x784, once for each fed name.")] = None,
    refused: Annotated[bool, typer.Option(help="Show the candidates that were left out, and why.")] = False,
    html: Annotated[Path | None, typer.Option(callback=_file, help="Write the report to an HTML file too.")] = None,
    plugin: PluginModules = None,
    as_json: AsJson = False,
) -> None:
    """Show, without running it, which kernel would run each operator of a saved model, and what would move."""
    program = read_program(model)
    feeds = _feeds(feed)
    report = explain_program(program, place, feed=feeds, fetch_list=program.fetch_names or None)
    if html is not None:
        page = f'<!doctype html><meta charset="utf-8"><title>{model.name}</title>{report.html()}'
        write_text(html, page, "the report")
    if as_json:
        print_json({"summary": report.summary, "operators": report.data()})
        return
    console().print(report.text(refused=refused), soft_wrap=True)


@app.command()
def passes(
    model: Annotated[Path, typer.Argument(help="A directory of save_inference_model, or a program's JSON file.")],
    place: Annotated[str, typer.Option("--place", "-p", help="Whose transformer: a kind of places.")] = "cpu",
    fetch: Annotated[list[str] | None, typer.Option(help="What is fetched; else what the program names.")] = None,
    only: Annotated[list[str] | None, typer.Option("--pass", help="Show this pass alone; those before it run.")] = None,
    plugin: PluginModules = None,
    as_json: AsJson = False,
) -> None:
    """Show a program before and after each pass of a transformer, without running it."""
    from fluidlite.cli.passes_report import passes_report

    program = read_program(model)
    report = passes_report(program, place, fetch or ())
    names = {step.name for step in report.steps}
    for name in only or ():
        if name not in names:
            raise typer.BadParameter(f"--pass {name}: expected one of {', '.join(sorted(names))}")
    if as_json:
        print_json(report.data())
        return
    console().print(report.text(only or ()), soft_wrap=True)


@app.command()
def sources(
    model: Annotated[Path, typer.Argument(help="A directory of save_inference_model, or a program's JSON file.")],
    to: Annotated[Path, typer.Option(callback=_folder, help="The folder for the files.")],
    place: Annotated[str, typer.Option("--place", "-p")] = "cpu",
    codegen: Annotated[str | None, typer.Option(help="Whose kernels; the place's best if left out.")] = None,
    feed: Annotated[list[str] | None, typer.Option("--feed", "-f", help="name=64x784, for open dims.")] = None,
    fetch: Annotated[list[str] | None, typer.Option(help="What is fetched; else what the program names.")] = None,
    plugin: PluginModules = None,
    as_json: AsJson = False,
) -> None:
    """Write the sources of all that a saved model runs to files: it runs once, on zeros."""
    from fluidlite.cli.model_runs import write_sources

    program = read_program(model)
    written = write_sources(program, place, codegen, _feeds(feed), fetch or (), to)
    if as_json:
        print_json([str(path) for path in written])
        return
    for path in written:
        console().print(f"{path}  {in_bytes(path.stat().st_size)}", soft_wrap=True)


@app.command()
def certify(
    place: Annotated[str, typer.Argument(help="The place, such as cpu or acme:0.")],
    op: Annotated[list[str] | None, typer.Option(help="Only this operator; * and ? match.")] = None,
    check: Annotated[list[str] | None, typer.Option(help="Only this check: relu[rank4:float64].")] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Processes; one a core, at most 4.")] = None,
    plugin: PluginModules = None,
    known_failures: Annotated[Path | None, typer.Option(help="A file of lines `op[sample]: reason`.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that a check may take.")] = 300.0,
    html: Annotated[
        Path | None, typer.Option(callback=_file, help="Write the certificate to an HTML file too.")
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="No table of operators.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check a place: its copies, events and launches, then every operator's samples against float64 references."""
    from fluidlite.cli.certify_view import show

    raise typer.Exit(
        show(console(), place, op or (), check or (), jobs, plugin or (), known_failures, timeout, html, as_json, brief)
    )


@app.command()
def fuzz(
    place: Annotated[str, typer.Option("--place", "-p")] = "cpu",
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other programs.")] = 0,
    first: Annotated[int, typer.Option(min=0, help="Number of the first program of the seed.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="How many programs.")] = 100,
    shrinking: Annotated[float, typer.Option(min=0, help="Seconds spent on cutting down each finding.")] = 30.0,
    plugin: PluginModules = None,
    operators: Annotated[bool, typer.Option(help="List how often each operator type ran.")] = False,
) -> None:
    """Run random programs compiled, interpreted and by float64 references, and compare; exits with 1 on a finding."""
    from fluidlite.cli.fuzz_command import run_fuzz

    raise typer.Exit(run_fuzz(console(), place, seed, first, count, shrinking, plugin or [], operators))


@app.command()
def bench(
    op: Annotated[str, typer.Argument(help="An operator type; a gradient operator's too.")],
    place: Annotated[str, typer.Option("--place", "-p")] = "cpu",
    sample: Annotated[list[str] | None, typer.Option(help="Only this sample of the operator.")] = None,
    dims: Annotated[list[str] | None, typer.Option(help="Other dims of an input: X=64x128.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of floating inputs.")] = None,
    attr: Annotated[list[str] | None, typer.Option(help="Another attribute: axis=1.")] = None,
    seconds: Annotated[float, typer.Option(min=0.001, help="How long to time each kernel.")] = 0.1,
    plugin: PluginModules = None,
    as_json: AsJson = False,
) -> None:
    """Time every kernel of an operator on a place side by side, and say which one is taken and why."""
    from fluidlite.cli.bench_view import read_attr, show

    sizes = dict(named_dims("--dims", "slot=dims; write it like X=64x128", text) for text in dims or ())
    show(console(), op, place, sample or (), sizes, dtype, dict(map(read_attr, attr or ())), seconds, as_json)


@app.command()
def profile(
    target: Annotated[Path, typer.Argument(help="A script; or a folder of save_inference_model, or a program's JSON.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Of the script, behind --.")] = None,
    place: Annotated[str | None, typer.Option("--place", "-p", help="Of a model, or of a script's host runs.")] = None,
    sort: Annotated[str, typer.Option(help="calls, total, max, min, ave, or default: the order of calls.")] = "total",
    trace: Annotated[Path | None, typer.Option(callback=_file, help="Write a Chrome trace (JSON) there.")] = None,
    feed: Annotated[
        list[str] | None, typer.Option("--feed", "-f", help="name=64x784, for a model's open dims.")
    ] = None,
    fetch: Annotated[list[str] | None, typer.Option(help="What is fetched of a model; else what it names.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Of a model, after three that are not profiled.")] = 10,
    mode: Annotated[str, typer.Option(help="Of a model: compiled or interpreted.")] = "compiled",
    state: Annotated[str, typer.Option(help="All: time on the places; CPU: time of the host's calls.")] = "All",
    plugin: PluginModules = None,
    as_json: AsJson = False,
) -> None:
    """Run a script, or a saved model on zeros, and show what each operator and kernel cost on its place."""
    from fluidlite.cli.profile_runs import ModelRuns, show

    script = target.suffix == ".py"
    if arguments and not script:
        raise typer.BadParameter(f"{target} is no script (.py) that takes arguments: {' '.join(arguments)}")
    model = ModelRuns(target, place or "cpu", _feeds(feed), fetch or (), runs, mode)
    raise typer.Exit(show(console(), model, script, arguments or (), place, sort, trace, state, as_json))


@app.command("new-plugin")
def new_plugin(
    name: Annotated[str, typer.Argument(help="Lower-case words, such as acme: the package is fluidlite-acme.")],
    kind: Annotated[str, typer.Option(help="What it brings: device, library or operator.")],
    to: Annotated[Path, typer.Option(callback=_folder, help="Where the package's folder is made.")] = Path(),
) -> None:
    """Write a plugin's package, with tests that pass: a device, a library of kernels, or an operator."""
    from fluidlite.conformance.scaffold import new_plugin as write

    written = write(name, kind, to)
    out = console()
    for path in written:
        out.print(str(path), soft_wrap=True)
    folder = written[0].parent
    out.print(f"\nNext:\n  pip install -e '{folder}[test]'\n  pytest {folder}", soft_wrap=True)


@app.command("run-book")
def run_book(
    name: Annotated[
        str, typer.Argument(help="A book: fit_a_line; word2vec:sparse for one of its programs; or a file.")
    ],
    place: Annotated[str, typer.Option("--place", "-p")] = "cpu",
    steps: Annotated[int | None, typer.Option(min=1, help="Batches; as many as the goal takes if left out.")] = None,
) -> None:
    """Train a chapter of the book on a place, save its model, load and measure it; exits with 1 if a goal is missed."""
    from fluidlite.cli.books_view import show

    raise typer.Exit(show(console(), name, place, steps))


@app.command()
def demo(
    place: Annotated[list[str] | None, typer.Option("--place", "-p", help="Where; everywhere if left out.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="How often to go through the data.")] = 5,
    hidden: Annotated[int, typer.Option(min=1, help="Units of each hidden layer.")] = 64,
    batch: Annotated[int, typer.Option(min=1, help="Samples a step.")] = 64,
) -> None:
    """Train one program on every place, and compare."""
    from fluidlite.cli.demo_table import show

    raise typer.Exit(show(console(), place or None, epochs, hidden, batch))
