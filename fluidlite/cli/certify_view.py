"""Terminal output of the certificate: progress, a table by operator, failures, and the summary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fluidlite.base.text_file import write_text
from fluidlite.cli.terminal import print_json, table
from fluidlite.conformance import Certificate, CheckOutcome, certify, page
from fluidlite.conformance.certificate import FAILED, KNOWN, describe_selection
from fluidlite.conformance.checks import read_known_failures


def show(
    console: Console,
    place: str,
    operators: Sequence[str] = (),
    only: Sequence[str] = (),
    jobs: int | None = None,
    plugins: Sequence[str] = (),
    known_failures: Path | None = None,
    timeout: float = 300.0,
    html: Path | None = None,
    as_json: bool = False,
    brief: bool = False,
) -> int:
    """Certify a place and print the certificate; return the exit code: 0, or 1 if a check failed."""
    reasons = read_known_failures(known_failures.read_text(encoding="utf-8")) if known_failures is not None else {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=as_json or not console.is_terminal, transient=True) as bars:
        task = bars.add_task(f"checking {place}", total=None)
        failed = 0

        def progress(outcome: CheckOutcome, done: int, total: int) -> None:
            nonlocal failed
            if outcome.state == FAILED:
                failed += 1
                if not as_json:
                    console.print(f"failed: {outcome.id}", soft_wrap=True)
            marks = f", {failed} failed" if failed else ""
            bars.update(task, completed=done, total=total, description=f"checking {place}{marks}")

        certificate = certify(place, operators, only, jobs, plugins, reasons, timeout, progress)
    if html is not None:
        write_text(html, page(certificate), "the report")
    if as_json:
        print_json(certificate.data())
        return 0 if certificate.ok else 1
    if not brief:
        console.print(operator_table(certificate))
    for outcome in certificate.failures:
        console.print(f"\n{outcome.id}\n  {outcome.error}", soft_wrap=True)
        console.print(f"  Reproduce: {certificate.reproduction(outcome)}", soft_wrap=True)
    console.print()
    for line in certificate.summary():
        console.print(line, soft_wrap=True)
    return 0 if certificate.ok else 1


def operator_table(certificate: Certificate) -> Table:
    numbers = ("checks", "failed", "known")
    result = table("operator", "kernel", "gradient", *numbers, right=numbers)
    for row in certificate.rows():
        failed_count, known_count = len(row.failures), row.count(KNOWN)
        result.add_row(
            row.operator,
            describe_selection(row.kernel),
            describe_selection(row.gradient),
            str(len(row.outcomes)),
            str(failed_count or ""),
            str(known_count or ""),
        )
    return result
