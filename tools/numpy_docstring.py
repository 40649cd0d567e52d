"""Reads NumPy-style docstrings: the text, and the entries of Parameters, Returns and Raises."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

NAMED = ("Parameters", "Attributes")
"""Sections whose entries have names, with or without a kind."""
_UNDERLINE = re.compile(r"-{3,}\s*$")


@dataclass
class Entry:
    """One parameter, result or error: ``names : kind``, and what is said of it."""

    names: tuple[str, ...]
    kind: str
    text: str


@dataclass
class Docstring:
    """What a docstring says."""

    summary: str = ""
    text: str = ""
    sections: dict[str, list[Entry]] = field(default_factory=dict)
    examples: str = ""

    def names(self, section: str) -> list[str]:
        """The names in a section, without the stars of ``*args``."""
        return [name.lstrip("*") for entry in self.sections.get(section, ()) for name in entry.names]


def read(documented: Any) -> Docstring:
    lines = (inspect.getdoc(documented) or "").splitlines()
    heads = [i for i in range(len(lines) - 1) if lines[i].strip() and _UNDERLINE.match(lines[i + 1])]
    found = Docstring()
    first = heads[0] if heads else len(lines)
    found.summary, _, rest = "\n".join(lines[:first]).strip().partition("\n\n")
    found.text = rest.strip()
    for start, end in pairwise([*heads, len(lines)]):
        if lines[start].strip() == "Examples":
            found.examples = "\n".join(lines[start + 2 : end]).strip()
            continue
        found.sections[lines[start].strip()] = _entries(lines[start + 2 : end], named=lines[start].strip() in NAMED)
    return found


def _entries(lines: list[str], named: bool) -> list[Entry]:
    entries: list[Entry] = []
    for line in lines:
        if line[:1].strip():
            names, colon, kind = line.partition(" : ")
            parts = tuple(part.strip() for part in names.split(","))
            entries.append(Entry(parts, kind.strip(), "") if named or colon else Entry((), line.strip(), ""))
        elif entries and line.strip():
            entries[-1].text += ("\n" if entries[-1].text else "") + line.strip()
    return entries


def problems(function: Callable[..., Any]) -> list[str]:
    """What the docstring of a function lacks."""
    doc = read(function)
    names = list(inspect.signature(function).parameters)
    told = doc.names("Parameters")
    found = [f"parameter {name!r} is not described" for name in names if name not in told]
    found += [f"there is no parameter {name!r}" for name in told if name not in names]
    returns = inspect.isclass(function) or bool(doc.sections.get("Returns"))  # a class is what it returns
    return found + ["it has no summary"] * (not doc.summary) + ["it has no Returns"] * (not returns)
