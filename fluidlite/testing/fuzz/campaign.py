"""Fuzzing campaigns: run many programs, and summarize findings, discarded comparisons and their reasons."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from fluidlite.base.dtypes import ALL
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.testing.fuzz.generate import generate
from fluidlite.testing.fuzz.outcome import Finding
from fluidlite.testing.fuzz.printing import python
from fluidlite.testing.fuzz.run import check
from fluidlite.testing.fuzz.shrink import shrink


@dataclass
class Summary:
    """Statistics and findings of a campaign.

    ``operators``: number of runs of each operator type.
    ``compared``: number of values compared with the reference, and of gradients compared between modes.
    ``differences``: number of gradients compared with central differences.
    ``refused``: number of operators and values that generation dropped, by reason.
    ``discarded``: number of values and gradients that were not compared, by reason.
    ``findings``: pairs of a program's number and a finding.
    """

    programs: int = 0
    operators: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    differences: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    discarded: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[int, Finding]] = field(default_factory=list)
    seconds: float = 0.0

    def text(self) -> str:
        steps = sum(self.operators.values())
        lines = [
            f"{self.programs} programs of {steps} operators ({len(self.operators)} types) in {self.seconds:.1f} s; "
            f"{self.compared} values compared, {self.differences} gradients held against differences; "
            f"{len(self.findings)} findings",
        ]
        for title, counts in (("left out", self.refused), ("not compared", self.discarded)):
            for reason, count in counts.most_common():
                lines.append(f"  {title}: {count} x {reason}")
        return "\n".join(lines)


def fuzz(
    place: PlaceLike,
    seed: int,
    first: int = 0,
    count: int = 100,
    shrinking: float = 30.0,
    tell: Callable[[int, Summary], None] | None = None,
) -> Summary:
    """Run programs ``first`` to ``first + count`` of a seed on a place.

    Parameters
    ----------
    place : Place or str
    seed : int
    first, count : int
        Program ``i`` depends on ``(seed, i)`` and the place's dtypes alone: ranges may run in separate processes.
    shrinking : float
        Seconds spent on shrinking each finding; 0: none.
    tell : callable, optional
        Called with a program's number and the summary so far, after each program.
    """
    where = Place.parse(place)
    unit = devices.unit(where)
    dtypes = unit.info.dtypes or ALL
    summary = Summary()
    start = time.monotonic()
    for number in range(first, first + count):
        generated = generate(seed, number, dtypes)
        outcome = check(generated.recipe, where)
        summary.programs += 1
        summary.operators.update(step.type for step in generated.recipe.steps)
        summary.compared += outcome.compared
        summary.differences += outcome.differences
        summary.refused += generated.refused
        summary.discarded += outcome.discarded
        for finding in outcome.findings:
            summary.findings.append((number, shrink(finding, where, shrinking) if shrinking else finding))
        summary.seconds = time.monotonic() - start
        if tell is not None:
            tell(number, summary)
    return summary


def describe(number: int, finding: Finding, place: Place) -> str:
    """A finding as text: the error, and a program that reproduces it."""
    return f"program {number}: {finding.kind}: {finding.what}\n\n{python(finding.recipe, str(place))}\n"
