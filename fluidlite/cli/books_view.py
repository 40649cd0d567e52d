"""Terminal output of ``fluidlite run-book``: progress, then loss, metric, kernels and transfers."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fluidlite.cli.books import BookResult, StepCopies, book_programs, run_program
from fluidlite.cli.reports import in_bytes
from fluidlite.compiler.policy import KERNEL_KINDS

_PROGRESS_LINES = 10
"""Number of progress lines if the output is no terminal."""


def show(console: Console, name: str, place: str, steps: int | None) -> int:
    """Run the programs of a book on a place and print the results; return 1 if a goal is missed, else 0."""
    problems = 0
    for program in book_programs(name):
        total = program.steps if steps is None else steps
        console.print(f"{program.name} on {place}: {total} steps on {program.data}", soft_wrap=True)
        columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
            task: TaskID = bars.add_task("compiling", total=total)

            def progress(
                name: str, done: int, total: int, loss: float, bars: Progress = bars, task: TaskID = task
            ) -> None:
                if console.is_terminal:
                    bars.update(task, completed=done, description=f"step {done}, loss {loss:.4f}")
                elif (
                    done == 1
                    or done == total
                    or done * _PROGRESS_LINES // total != (done - 1) * _PROGRESS_LINES // total
                ):
                    console.print(f"  step {done} of {total}: loss {loss:.4f}", soft_wrap=True)

            result = run_program(program, place, steps, progress)
        for line in lines(result):
            console.print(line, soft_wrap=True)
        problems += len(result.problems)
    return 1 if problems else 0


def lines(result: BookResult) -> list[str]:
    """Loss, metric, kernels by tier, transfers, and problems."""
    summary, program = result.report.summary, result.program
    tail = result.losses[-20:]
    hows = ", ".join(f"{summary[how]} {how}" for how in (*KERNEL_KINDS, "control") if summary[how])
    relation = "at least" if program.higher else "at most"
    short = "" if len(result.losses) >= program.steps else f" after {program.steps} steps"
    return [
        f"loss: {result.losses[0]:.4f} at first, {sum(tail) / len(tail):.4f} over the last {len(tail)}",
        f"{program.metric}: {result.value:.4f} (goal: {relation} {program.goal:g}{short}), by the saved model",
        f"kernels of a training step: {summary['operators']} operators: {hows}",
        f"transfers of a training step: {_copies(result.copies)}",
        f"seconds: {result.seconds:.1f}, {result.processor_seconds:.1f} of them computed on the host",
        *(f"Problem: {problem}" for problem in result.problems),
    ]


def _copies(copies: StepCopies | None) -> str:
    if copies is None:
        return "not counted in a single step"
    if not copies.copies_in + copies.copies_out:
        return "none"
    into, out = (in_bytes(round(count)) for count in (copies.bytes_in, copies.bytes_out))
    return f"{copies.copies_in:.1f} into the place ({into}), {copies.copies_out:.1f} out of it ({out})"
