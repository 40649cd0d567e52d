"""``fluidlite fuzz``: random programs on a place, with progress, a summary, and findings as Python."""

from __future__ import annotations

from rich.console import Console
from rich.progress import Progress

from fluidlite.conformance.plugin_modules import load_plugin_modules
from fluidlite.platform.place import Place
from fluidlite.testing.fuzz.campaign import Summary, describe, fuzz


def run_fuzz(
    out: Console, place: str, seed: int, first: int, count: int, shrinking: float, plugin: list[str], operators: bool
) -> int:
    """Run a campaign and print its findings; return 1 if there are findings, else 0."""
    load_plugin_modules(plugin)
    where = Place.parse(place)
    printed_count = 0
    with Progress(console=out, transient=True) as progress:
        task = progress.add_task(f"{where}, seed {seed}", total=count)

        def tell(number: int, summary: Summary) -> None:
            nonlocal printed_count
            progress.update(task, advance=1, description=f"{where}, seed {seed}: {len(summary.findings)} findings")
            for finding in summary.findings[printed_count:]:
                out.print(describe(*finding, where), soft_wrap=True)
            printed_count = len(summary.findings)

        summary = fuzz(where, seed, first, count, shrinking, tell)
    out.print(f"{where}, seed {seed}, programs {first} to {first + count - 1}: {summary.text()}", soft_wrap=True)
    if operators:
        for type, uses in sorted(summary.operators.items()):
            out.print(f"  {type}: {uses}")
    for number, _ in summary.findings:
        out.print(f"again: fluidlite fuzz --place {where} --seed {seed} --first {number} --count 1")
    return 1 if summary.findings else 0
