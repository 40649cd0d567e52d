"""A collection of weak references that may be iterated while other threads add to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar
from weakref import ref

Item = TypeVar("Item")


class WeakObjects(Generic[Item]):
    """A set of weakly referenced objects, compared by identity.

    A ``WeakSet`` raises "Set changed size during iteration" when another thread adds to it. This class copies its
    references in one atomic step before it iterates.
    """

    __slots__ = ("__weakref__", "_refs")

    def __init__(self) -> None:
        self._refs: dict[int, ref[Item]] = {}

    def add(self, item: Item) -> None:
        """Add an object, unless it is in the set already."""
        key, refs = id(item), self._refs

        def remove(dead: ref[Item]) -> None:
            if refs.get(key) is dead:  # not an entry of a later object at the same address
                del refs[key]

        existing = refs.get(key)
        if existing is None or existing() is not item:
            refs[key] = ref(item, remove)

    def discard(self, item: Item) -> None:
        self._refs.pop(id(item), None)

    def __iter__(self) -> Iterator[Item]:
        items = [reference() for reference in list(self._refs.values())]
        return iter([item for item in items if item is not None])

    def __len__(self) -> int:
        return len(self._refs)
