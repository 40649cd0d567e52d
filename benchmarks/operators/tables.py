"""Figures as tables, and which operators are beyond the limits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.operators.causes import CAUSES

BEGIN, END = "<!-- operators: begin -->", "<!-- operators: end -->"
HEADS = ("operator", "dims", "NumPy, us", "cpu, us", "torch, us", "cpu/torch", "opencl, us", "opencl/cpu",
         "memory/outputs")  # fmt: skip
LIMIT_TORCH, LIMIT_CONVOLUTION, LIMIT_OPENCL, LIMIT_MEMORY = 2.0, 3.0, 4.0, 2.0
UNKNOWN = "not looked into"
VIEW = "view"
"""Instead of a ratio: PyTorch copies nothing there, and hands out the same memory."""
NOTHING = 2 << 20
"""Bytes beside which no ratio counts: scratch blocks, and what a first run prepares."""

Figure = Mapping[str, Any]


def value(figure: Figure, name: str, median: bool = False) -> float | None:
    """Microseconds of a contender."""
    pair = figure["us"].get(name)
    return None if pair is None else float(pair[0 if median else 1])


def ratio(figure: Figure, one: str, two: str, median: bool = False) -> float | None:
    """How many times as long one contender takes as another, in one run."""
    a, b = value(figure, one, median), value(figure, two, median)
    beside = figure.get("beside", {}).get(one)
    if beside is not None and two == "cpu":
        b = float(beside[0 if median else 1])
    return None if a is None or not b else a / b


def memory_ratio(figure: Figure, kind: str = "cpu") -> float | None:
    """What was allocated in a run, to what its results take."""
    pair = figure["memory"].get(kind)
    return None if pair is None or not pair[1] else pair[0] / pair[1]


def row(figure: Figure, median: bool = False) -> list[str]:
    """One line of the table."""

    def number(found: float | None, digits: int | None = None) -> str:
        if found is None:
            return ""
        return f"{found:.{digits}f}" if digits is not None else f"{found:,.{0 if found >= 100 else 1}f}"

    cells = [figure["operator"], "x".join(map(str, figure["dims"]))]
    cells += [number(value(figure, name, median)) for name in ("numpy", "cpu", "torch")]
    cells.append(VIEW if figure["notes"] == VIEW else number(ratio(figure, "cpu", "torch", median), 2))
    cells.append(number(value(figure, "opencl", median)))
    cells.append(number(ratio(figure, "opencl", "cpu", median), 2))
    cells.append(number(memory_ratio(figure) if figure["size"] == "large" else None, 2))
    return cells


def beyond(figure: Figure, median: bool = False) -> list[str]:
    """The limits that an operator passes at the large size."""
    found: list[str] = []
    if figure["size"] != "large":
        return found
    limit = LIMIT_CONVOLUTION if "conv2d" in figure["operator"] or "conv3d" in figure["operator"] else LIMIT_TORCH
    to_torch, to_cpu = ratio(figure, "cpu", "torch", median), ratio(figure, "opencl", "cpu", median)
    if to_torch is not None and to_torch > limit and figure["notes"] != VIEW:
        found.append(f"cpu {to_torch:.1f} times torch")
    if to_cpu is not None and to_cpu > LIMIT_OPENCL:
        found.append(f"opencl {to_cpu:.1f} times cpu")
    for kind in figure["memory"]:
        held, results = figure["memory"][kind]
        if held > LIMIT_MEMORY * results + NOTHING:
            found.append(f"{kind} allocates {held / 1e6:.0f} MB for results of {results / 1e6:.0f} MB")
    return found


def cause_of(figure: Figure, limits: Sequence[str]) -> str:
    """Why it is beyond its limits: what is known of its time, and what its definition says of its memory."""
    from fluidlite.program.registry import ops

    found = [next((CAUSES[name] for name in (figure["operator"], *figure["types"]) if name in CAUSES), UNKNOWN)]
    slow = any("times" in limit for limit in limits)
    if any("allocates" in limit for limit in limits):
        notes = [ops.get(name).memory for name in figure["types"] if ops.get(name).memory]
        found = [*(found if slow or not notes else []), *(f"allocates {note}" for note in notes)]
    return "; ".join(found)


def tables(figures: Mapping[str, Figure], median: bool = False) -> list[tuple[str, tuple[str, ...], list[list[str]]]]:
    """A table for each size, and one of what is beyond the limits."""
    found: list[tuple[str, tuple[str, ...], list[list[str]]]] = []
    for size in ("small", "middle", "large"):
        rows = [row(figure, median) for figure in figures.values() if figure["size"] == size]
        if rows:
            found.append((f"At {size} size", HEADS, rows))
    passed = ((figure, beyond(figure, median)) for figure in figures.values())
    over = [[figure["operator"], "; ".join(limits), cause_of(figure, limits)] for figure, limits in passed if limits]
    if over:
        found.append(("Beyond the limits", ("operator", "limit", "cause"), over))
    return found


def joined(files: Sequence[Path]) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Read figures of several runs; what an earlier file lacks of a case, a later one adds."""
    figures: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    for file in files:
        data = json.loads(file.read_text(encoding="utf-8"))
        facts = data["machine"] | facts
        for name, figure in data["figures"]["cases"].items():
            old = figures.setdefault(name, figure)
            for contender in figure["us"].keys() - old["us"].keys():
                old.setdefault("beside", {})[contender] = figure["us"]["cpu"]
            old["us"] = figure["us"] | old["us"]
            old["memory"] = figure["memory"] | old["memory"]
            old["notes"] = old["notes"] or figure["notes"]
    return figures, facts


def write(path: Path, figures: Mapping[str, Figure], facts: Mapping[str, Any], median: bool = False) -> None:
    """Put the tables between the markers of a Markdown file."""
    lines = [", ".join(f"{name} {fact}" for name, fact in facts.items()) + "."]
    for title, heads, rows in tables(figures, median):
        lines += ["", f"## {title}", "", "| " + " | ".join(heads) + " |"]
        lines.append("|---|---|" + ("---:|" if heads is HEADS else "---|") * (len(heads) - 2))
        lines += ["| " + " | ".join(cells) + " |" for cells in rows]
    text = path.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path} has no lines {BEGIN} and {END}")
    path.write_text(head + begin + "\n" + "\n".join(lines) + "\n" + end + tail, encoding="utf-8")
