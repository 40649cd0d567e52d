"""Terminal output of the demonstration: progress, the table of places, and one plan."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from fluidlite.cli import demo
from fluidlite.cli.reports import in_bytes
from fluidlite.cli.terminal import table
from fluidlite.compiler.policy import KERNEL_KINDS
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place


def show(console: Console, places: Sequence[str] | None, epochs: int, hidden: int, batch: int) -> int:
    """Run the demonstration and print it; return the exit code: 0, or 1 if places do not agree."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("step {task.completed}"), TimeElapsedColumn())
    tasks: dict[Place, TaskID] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:

        def progress(place: Place, done: int, total: int) -> None:
            if place not in tasks:
                tasks[place] = bars.add_task(f"training on {place}", total=total)
            bars.update(tasks[place], completed=done)

        comparison = demo.run(places, epochs, hidden, batch, progress)
    console.print(f"One program, {epochs} epoch(s) of digits, hidden layers of {hidden}:\n")
    console.print(summary_table(comparison))
    console.print(
        f"\nFirst {demo.COMPARED_STEPS} losses: at most {comparison.difference:.2e} apart, relatively "
        f"(allowed: {demo.MAX_LOSS_DIFFERENCE:g}). "
        f"Accuracies: {comparison.apart:.2%} apart (allowed: {demo.MAX_ACCURACY_DIFFERENCE:.0%})."
    )
    other = [result for result in comparison.results if not devices.unit(result.place).info.host]
    explained = (other or comparison.results)[-1]
    console.print("\nOne training step, as explain shows it:\n")
    console.print(explained.report.text(), soft_wrap=True)
    for problem in comparison.problems:
        console.print(f"\nProblem: {problem}")
    return 0 if comparison.ok else 1


def summary_table(demo_result: demo.DemoResult) -> Table:
    numbers = ("transfers a step", "moved a step", "last loss", "accuracy", "an epoch", "peak memory")
    result_table = table("place", "libraries", "operators", *numbers, right=numbers)
    for result in demo_result.results:
        summary = result.report.summary
        hows = ", ".join(f"{summary[how]} {how}" for how in KERNEL_KINDS if summary[how])
        moves = summary["feeds"] + summary["transfers"]
        result_table.add_row(
            str(result.place),
            ", ".join(summary["libraries"]),
            hows,
            str(moves),
            in_bytes(summary["bytes"]),
            f"{result.losses[-1]:.4f}",
            f"{result.accuracy:.2%}",
            f"{result.seconds:.2f} s",
            in_bytes(result.peak),
        )
    return result_table
