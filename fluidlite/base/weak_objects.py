"""A collection that does not keep its objects alive, and that may be listed while other threads add to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar
from weakref import ref

Item = TypeVar("Item")


class WeakObjects(Generic[Item]):
    """Objects by identity, for as long as somebody else holds them.

    A ``WeakSet`` raises "Set changed size during iteration" when another thread adds to it; this one is listed in one
    step that no thread interrupts.
    """

    __slots__ = ("__weakref__", "_refs")

    def __init__(self) -> None:
        self._refs: dict[int, ref[Item]] = {}

    def add(self, item: Item) -> None:
        """Add an object; one that is there already is added once."""
        key, refs = id(item), self._refs

        def gone(dead: ref[Item]) -> None:
            if refs.get(key) is dead:  # not one that has taken the place in memory since
                del refs[key]

        known = refs.get(key)
        if known is None or known() is not item:
            refs[key] = ref(item, gone)

    def discard(self, item: Item) -> None:
        self._refs.pop(id(item), None)

    def __iter__(self) -> Iterator[Item]:
        found = [each() for each in list(self._refs.values())]
        return iter([item for item in found if item is not None])

    def __len__(self) -> int:
        return len(self._refs)
