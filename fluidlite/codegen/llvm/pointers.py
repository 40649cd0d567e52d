"""Where the pointers of a function come from, and so which instructions read and write its arguments' memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

OUTSIDE, OWN = ", !llvm.access.group !6", ", !llvm.access.group !10"
"""Marks on what goes through a kernel's arguments, and on what goes to arrays of its own."""


class Access(str):
    """An instruction that reads or writes memory."""

    __slots__ = ("pointer",)
    pointer: str

    def __new__(cls, line: str, pointer: str) -> Access:
        """Make one of its text and the pointer that it goes through."""
        made = super().__new__(cls, line)
        made.pointer = pointer
        return made


class Pointers:
    """What each pointer was made from; a variable's content is one too, since loops may change it before it is read."""

    def __init__(self) -> None:
        self._sources: dict[str, set[str]] = {}

    def made(self, pointer: str, *sources: str) -> None:
        """Note that a pointer is one of others, or next to one."""
        self._sources.setdefault(pointer, set()).update(sources)

    def kept(self, pointer: str, where: str) -> None:
        """Note that a variable holds a pointer."""
        self.made(f"*{where}", pointer)

    def read(self, pointer: str, where: str) -> None:
        """Note that a pointer was read from a variable."""
        self.made(pointer, f"*{where}")

    def from_only(self, roots: Iterable[str]) -> set[str]:
        """Return the pointers that were made from ``roots`` and from nothing else."""
        found = set(roots) | self._sources.keys()
        before = -1
        while len(found) != before:
            before = len(found)
            found = {p for p in found if p not in self._sources or self._sources[p] <= found}
        return found


def marked(lines: Sequence[str], outside: set[str], own: set[str]) -> list[str]:
    """Return lines with a mark on those that read or write outside the function, or in its own arrays."""

    def mark(line: str) -> str:
        pointer = line.pointer if isinstance(line, Access) else ""
        return OUTSIDE if pointer in outside else OWN if pointer in own else ""

    return [line + mark(line) for line in lines]
