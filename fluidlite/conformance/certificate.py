"""The certificate: what was checked on which device, with which kernels, and what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

PASSED, FAILED, KNOWN = "passed", "failed", "known failure"
_FALLBACK = "fallback"

Use = tuple[str, str, str]
"""How a kernel was selected in a check: operator type, kind of selection ("native", ...), library."""


@dataclass(frozen=True)
class CheckOutcome:
    """The result of one check.

    Attributes
    ----------
    id : str
        ``device[events]``, ``relu[rank4:float64]`` or ``relu.grad[rank4:float64]``.
    state : {"passed", "failed", "known failure"}
    seconds : float
    error : str
        For a failure: the exception's type and text; for a known failure: its reason.
    traceback : str
    uses : tuple of (operator type, how, library)
        How the operators' kernels were selected in the interpreted run.
    """

    id: str
    state: str
    seconds: float
    error: str = ""
    traceback: str = ""
    uses: tuple[Use, ...] = ()

    @property
    def operator(self) -> str:
        """The operator, or ``device`` or ``random``."""
        return self.id.partition("[")[0].removesuffix(".grad")

    @property
    def of_gradient(self) -> bool:
        """Whether the check is of the operator's gradient."""
        return self.id.partition("[")[0].endswith(".grad")


@dataclass
class OperatorRow:
    """The results of one operator in a certificate.

    Attributes
    ----------
    operator : str
    kernel, gradient : Counter of (how, library)
        Number of checks by kind of kernel selection, for the operator and for the operators of its gradient.
    outcomes : list of Outcome
    """

    operator: str
    kernel: Counter[tuple[str, str]] = field(default_factory=Counter)
    gradient: Counter[tuple[str, str]] = field(default_factory=Counter)
    outcomes: list[CheckOutcome] = field(default_factory=list)

    @property
    def failures(self) -> list[CheckOutcome]:
        """The checks that failed."""
        return [outcome for outcome in self.outcomes if outcome.state == FAILED]

    def count(self, state: str) -> int:
        """How many checks ended in a state."""
        return sum(outcome.state == state for outcome in self.outcomes)


def most_frequent(uses: Counter[tuple[str, str]]) -> str:
    """The most frequent kind of kernel selection: "native", "generated", ...; "" if no operator ran."""
    return uses.most_common(1)[0][0][0] if uses else ""


def describe_selection(uses: Counter[tuple[str, str]]) -> str:
    """The kinds of kernel selection with their libraries, such as ``native fpgann (fallback: 2 of 9)``."""
    if not uses:
        return ""
    counts = [(" ".join(filter(None, use)), count) for use, count in uses.most_common()]
    rest = ", ".join(f"{name}: {count} of {uses.total()}" for name, count in counts[1:])
    return counts[0][0] + (f" ({rest})" if rest else "")


@dataclass
class Certificate:
    """The results of a run of the conformance checks on one place.

    Attributes
    ----------
    place : str
    device : dict
        The device's information: name, memory, alignment, queues, capabilities, dtypes.
    plugin : dict
        Name, version and origin of the plugin that brings the device.
    versions : dict of name to version
    date : str
        Start of the run, in UTC.
    seconds : float
    jobs : int
        Number of worker processes.
    scope : str
        "" if all checks were run, else the selection: then the certificate covers only that.
    tolerances : dict of kind to dict of dtype to (framework's, used)
        Relative tolerances of "values" and "gradients".
    outcomes : list of Outcome
    plugins : tuple of str
        Modules that were loaded by name; a reproduction has to load them.
    """

    place: str
    device: dict[str, Any]
    plugin: dict[str, str]
    versions: dict[str, str]
    date: str
    seconds: float
    jobs: int
    scope: str
    tolerances: dict[str, dict[str, tuple[float, float]]]
    outcomes: list[CheckOutcome]
    plugins: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    @property
    def verdict(self) -> str:
        """PASSED or FAILED, with the scope if only some checks were run."""
        word = "PASSED" if self.ok else "FAILED"
        return f"{word} (only {self.scope})" if self.scope else word

    @property
    def failures(self) -> list[CheckOutcome]:
        """The checks that failed, by name."""
        return sorted((o for o in self.outcomes if o.state == FAILED), key=lambda outcome: outcome.id)

    def count(self, state: str) -> int:
        """How many checks ended in a state."""
        return sum(outcome.state == state for outcome in self.outcomes)

    def rows(self) -> list[OperatorRow]:
        """One row for each operator, by name, after the checks of the device."""
        by_operator: dict[str, OperatorRow] = {}
        for outcome in self.outcomes:
            row = by_operator.setdefault(outcome.operator, OperatorRow(outcome.operator))
            row.outcomes.append(outcome)
            for type, how, library in outcome.uses:
                library = "" if how == _FALLBACK else library  # a library of the fallback place, not of this one
                if not outcome.of_gradient and type == outcome.operator:
                    row.kernel[how, library] += 1
                elif outcome.of_gradient and type != outcome.operator:
                    row.gradient[how, library] += 1
        return sorted(by_operator.values(), key=lambda row: (row.operator not in ("device", "random"), row.operator))

    def selection_counts(self) -> dict[str, tuple[int, int]]:
        """By kind of kernel selection, the number of operators and of gradients for which it is most frequent."""
        rows = self.rows()
        forward = Counter(most_frequent(row.kernel) for row in rows)
        gradient = Counter(most_frequent(row.gradient) for row in rows)
        order = [how for how, _ in (forward + gradient).most_common() if how]
        return {how: (forward[how], gradient[how]) for how in order}

    def raised_tolerances(self) -> dict[str, dict[str, tuple[float, float]]]:
        """The tolerances that the device has raised: by kind and dtype, (framework's, used)."""
        changed = {
            kind: {dtype: pair for dtype, pair in table.items() if pair[0] != pair[1]}
            for kind, table in self.tolerances.items()
        }
        return {kind: table for kind, table in changed.items() if table}

    def reproduction(self, outcome: CheckOutcome) -> str:
        """The command that runs only this check."""
        options = "".join(f" --plugin {module}" for module in self.plugins)
        return f"fluidlite certify {self.place}{options} --check '{outcome.id}'"

    def summary(self) -> list[str]:
        """Lines of a report: the verdict, the device, counts, versions, tolerances."""
        device = self.device
        by_how = ", ".join(f"{forward} {how}" for how, (forward, _) in self.selection_counts().items() if forward)
        operators = sum(row.operator not in ("device", "random") for row in self.rows())
        known_failures = f", {self.count(KNOWN)} known failures" if self.count(KNOWN) else ""
        lines = [
            f"{self.place}: {device['name']}: {self.verdict}",
            f"{len(self.outcomes)} checks of {operators} operators: {self.count(PASSED)} passed, "
            f"{self.count(FAILED)} failed{known_failures}; {self.seconds:.0f} s in {self.jobs} processes, {self.date}",
            f"operators by kernel: {by_how or 'none ran'}",
            "device: " + ", ".join(f"{name} {value}" for name, value in _facts(device)),
            f"plugin: {self.plugin['name']} {self.plugin['version']} ({self.plugin['origin']})",
            "versions: " + ", ".join(f"{name} {version}" for name, version in self.versions.items()),
        ]
        for kind, table in self.raised_tolerances().items():
            pairs = ", ".join(f"{dtype} {own:g} to {used:g}" for dtype, (own, used) in table.items())
            lines.append(f"tolerance of {kind} loosened by the device: {pairs}")
        if not self.raised_tolerances():
            lines.append("tolerances: the framework's")
        return lines

    def data(self) -> dict[str, Any]:
        """The certificate as JSON data."""
        return {
            "place": self.place,
            "verdict": self.verdict,
            "ok": self.ok,
            "scope": self.scope,
            "date": self.date,
            "seconds": round(self.seconds, 2),
            "jobs": self.jobs,
            "device": self.device,
            "plugin": self.plugin,
            "versions": self.versions,
            "checks": {state: self.count(state) for state in (PASSED, FAILED, KNOWN)},
            "hows": {how: {"operators": a, "gradients": b} for how, (a, b) in self.selection_counts().items()},
            "tolerances": {kind: {d: used for d, (_, used) in t.items()} for kind, t in self.tolerances.items()},
            "loosened": self.raised_tolerances(),
            "operators": [
                {
                    "operator": row.operator,
                    "kernel": describe_selection(row.kernel),
                    "gradient": describe_selection(row.gradient),
                    "checks": len(row.outcomes),
                    "failed": len(row.failures),
                    "known": row.count(KNOWN),
                }
                for row in self.rows()
            ],
            "failures": [
                {"check": o.id, "error": o.error, "reproduce": self.reproduction(o), "traceback": o.traceback}
                for o in self.failures
            ],
            "known_failures": [{"check": o.id, "reason": o.error} for o in self.outcomes if o.state == KNOWN],
        }


def _facts(device: dict[str, Any]) -> Iterable[tuple[str, str]]:
    if device["memory"] is not None:
        yield "memory", f"{device['memory'] / 2**20:,.0f} MiB"
    yield "capabilities", " and ".join(device["capabilities"])
    yield "queues", str(device["queues"])
    yield "alignment", str(device["alignment"])
    yield "lacks", " and ".join(device["lacks"]) or "no dtype"
