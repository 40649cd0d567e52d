"""Reachability in a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def reached(start: Iterable[T], following: Callable[[T], Iterable[T]]) -> set[T]:
    """Return the nodes that can be reached from ``start``, itself included, along the edges of ``following``."""
    reachable: set[T] = set()
    pending = list(start)
    while pending:
        node = pending.pop()
        if node not in reachable:
            reachable.add(node)
            pending += following(node)
    return reachable
