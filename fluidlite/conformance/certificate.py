"""The certificate: what was checked on which device, with which kernels, and what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

PASSED, FAILED, KNOWN = "passed", "failed", "known failure"
FALLBACK = "fallback"

Use = tuple[str, str, str]
"""How an operator got its kernel in a check: operator type, how, library."""


@dataclass(frozen=True)
class Outcome:
    """What became of one check.

    Attributes
    ----------
    id : str
        ``device[events]``, ``relu[rank4:float64]`` or ``relu.grad[rank4:float64]``.
    state : {"passed", "failed", "known failure"}
    seconds : float
    error : str
        Of a failure: the exception's type and text; of a known one: its reason.
    traceback : str
    uses : tuple of (operator type, how, library)
        How the operators of the check got their kernels, interpreted.
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
class Row:
    """One operator of a certificate.

    Attributes
    ----------
    operator : str
    kernel, gradient : Counter of (how, library)
        In how many checks the operator, and the operators of its gradient, got their kernels in which way.
    outcomes : list of Outcome
    """

    operator: str
    kernel: Counter[tuple[str, str]] = field(default_factory=Counter)
    gradient: Counter[tuple[str, str]] = field(default_factory=Counter)
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def failures(self) -> list[Outcome]:
        """The checks that failed."""
        return [outcome for outcome in self.outcomes if outcome.state == FAILED]

    def count(self, state: str) -> int:
        """How many checks ended in a state."""
        return sum(outcome.state == state for outcome in self.outcomes)


def usual(uses: Counter[tuple[str, str]]) -> str:
    """How most checks got their kernel: "native", "generated", ...; "" if no operator ran."""
    return uses.most_common(1)[0][0][0] if uses else ""


def in_words(uses: Counter[tuple[str, str]]) -> str:
    """The ways with their libraries, such as ``native fpgann (fallback: 2 of 9)``."""
    if not uses:
        return ""
    named = [(" ".join(filter(None, use)), count) for use, count in uses.most_common()]
    others = ", ".join(f"{name}: {count} of {uses.total()}" for name, count in named[1:])
    return named[0][0] + (f" ({others})" if others else "")


@dataclass
class Certificate:
    """What a run of the conformance checks found on one place.

    Attributes
    ----------
    place : str
    device : dict
        What the device says of itself: name, memory, alignment, queues, capabilities, dtypes.
    plugin : dict
        Name, version and origin of the plugin that brings the device.
    versions : dict of name to version
    date : str
        When it began, in UTC.
    seconds : float
    jobs : int
        Processes that shared the work.
    scope : str
        "" if every check was run, else what was asked for: then it certifies no more than that.
    tolerances : dict of kind to dict of dtype to (framework's, used)
        Relative tolerances of "values" and "gradients".
    outcomes : list of Outcome
    plugins : tuple of str
        Modules that were loaded by name, as a reproduction needs them.
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
    outcomes: list[Outcome]
    plugins: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    @property
    def verdict(self) -> str:
        """PASSED, or FAILED; of a part of the checks it says so."""
        word = "PASSED" if self.ok else "FAILED"
        return f"{word} (only {self.scope})" if self.scope else word

    @property
    def failures(self) -> list[Outcome]:
        """The checks that failed, by name."""
        return sorted((o for o in self.outcomes if o.state == FAILED), key=lambda outcome: outcome.id)

    def count(self, state: str) -> int:
        """How many checks ended in a state."""
        return sum(outcome.state == state for outcome in self.outcomes)

    def rows(self) -> list[Row]:
        """One row an operator, by name; the device's own checks first."""
        found: dict[str, Row] = {}
        for outcome in self.outcomes:
            row = found.setdefault(outcome.operator, Row(outcome.operator))
            row.outcomes.append(outcome)
            for type, how, library in outcome.uses:
                library = "" if how == FALLBACK else library  # the fallback place's own affair
                if not outcome.of_gradient and type == outcome.operator:
                    row.kernel[how, library] += 1
                elif outcome.of_gradient and type != outcome.operator:
                    row.gradient[how, library] += 1
        return sorted(found.values(), key=lambda row: (row.operator not in ("device", "random"), row.operator))

    def hows(self) -> dict[str, tuple[int, int]]:
        """By how operators got their kernel: the number of operators, and of gradients, of which most checks did."""
        rows = self.rows()
        forward = Counter(usual(row.kernel) for row in rows)
        gradient = Counter(usual(row.gradient) for row in rows)
        order = [how for how, _ in (forward + gradient).most_common() if how]
        return {how: (forward[how], gradient[how]) for how in order}

    def loosened(self) -> dict[str, dict[str, tuple[float, float]]]:
        """The tolerances that the device has loosened: by kind and dtype, (framework's, used)."""
        changed = {
            kind: {dtype: pair for dtype, pair in table.items() if pair[0] != pair[1]}
            for kind, table in self.tolerances.items()
        }
        return {kind: table for kind, table in changed.items() if table}

    def reproduction(self, outcome: Outcome) -> str:
        """The command that runs one check alone."""
        loaded = "".join(f" --plugin {module}" for module in self.plugins)
        return f"fluidlite certify {self.place}{loaded} --check '{outcome.id}'"

    def summary(self) -> list[str]:
        """Lines that one can publish: the verdict, the device, counts, versions, tolerances."""
        device = self.device
        by_how = ", ".join(f"{forward} {how}" for how, (forward, _) in self.hows().items() if forward)
        operators = sum(row.operator not in ("device", "random") for row in self.rows())
        known = f", {self.count(KNOWN)} known failures" if self.count(KNOWN) else ""
        lines = [
            f"{self.place}: {device['name']}: {self.verdict}",
            f"{len(self.outcomes)} checks of {operators} operators: {self.count(PASSED)} passed, "
            f"{self.count(FAILED)} failed{known}; {self.seconds:.0f} s in {self.jobs} processes, {self.date}",
            f"operators by kernel: {by_how or 'none ran'}",
            "device: " + ", ".join(f"{name} {value}" for name, value in _facts(device)),
            f"plugin: {self.plugin['name']} {self.plugin['version']} ({self.plugin['origin']})",
            "versions: " + ", ".join(f"{name} {version}" for name, version in self.versions.items()),
        ]
        for kind, table in self.loosened().items():
            pairs = ", ".join(f"{dtype} {own:g} to {used:g}" for dtype, (own, used) in table.items())
            lines.append(f"tolerance of {kind} loosened by the device: {pairs}")
        if not self.loosened():
            lines.append("tolerances: the framework's")
        return lines

    def data(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
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
            "hows": {how: {"operators": a, "gradients": b} for how, (a, b) in self.hows().items()},
            "tolerances": {kind: {d: used for d, (_, used) in t.items()} for kind, t in self.tolerances.items()},
            "loosened": self.loosened(),
            "operators": [
                {
                    "operator": row.operator,
                    "kernel": in_words(row.kernel),
                    "gradient": in_words(row.gradient),
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
