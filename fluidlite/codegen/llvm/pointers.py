"""Provenance of pointers in a function, for the access groups of its loads and stores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

OUTSIDE, OWN = ", !llvm.access.group !6", ", !llvm.access.group !10"
"""Access groups of accesses through a kernel's arguments, and of accesses to its local arrays."""


class Access(str):
    """The text of a load or store, with its pointer."""

    __slots__ = ("pointer",)
    pointer: str

    def __new__(cls, line: str, pointer: str) -> Access:
        """Make an access from its text and its pointer."""
        access = super().__new__(cls, line)
        access.pointer = pointer
        return access


class Pointers:
    """The sources of each pointer; the content ``*x`` of a variable is a node, since loops may change it."""

    def __init__(self) -> None:
        self._sources: dict[str, set[str]] = {}

    def add_sources(self, pointer: str, *sources: str) -> None:
        """Record that a pointer is derived from sources."""
        self._sources.setdefault(pointer, set()).update(sources)

    def add_store(self, pointer: str, variable: str) -> None:
        """Record that a pointer is stored in a variable."""
        self.add_sources(f"*{variable}", pointer)

    def add_load(self, pointer: str, variable: str) -> None:
        """Record that a pointer is loaded from a variable."""
        self.add_sources(pointer, f"*{variable}")

    def derived_only_from(self, roots: Iterable[str]) -> set[str]:
        """Return the pointers that are derived only from ``roots``: the greatest fixed point."""
        candidates = set(roots) | self._sources.keys()
        before = -1
        while len(candidates) != before:
            before = len(candidates)
            candidates = {p for p in candidates if p not in self._sources or self._sources[p] <= candidates}
        return candidates


def with_access_groups(lines: Sequence[str], outside: set[str], own: set[str]) -> list[str]:
    """Return the lines, with the access group on loads and stores outside the function or in its own arrays."""

    def mark(line: str) -> str:
        pointer = line.pointer if isinstance(line, Access) else ""
        return OUTSIDE if pointer in outside else OWN if pointer in own else ""

    return [line + mark(line) for line in lines]
