"""Nested structures of variables: lists, tuples and dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def flat(structure: Any) -> list[Any]:
    """The leaves of a structure, in order; of a dict, in the order of its keys."""
    if isinstance(structure, (list, tuple)):
        return [leaf for item in structure for leaf in flat(item)]
    if isinstance(structure, dict):
        return [leaf for item in structure.values() for leaf in flat(item)]
    return [structure]


def packed(structure: Any, leaves: list[Any]) -> Any:
    """A structure of the form of another, with new leaves."""
    return _pack(structure, iter(leaves))


def _pack(structure: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(_pack(item, leaves) for item in structure))
    if isinstance(structure, (list, tuple)):
        return type(structure)(_pack(item, leaves) for item in structure)
    if isinstance(structure, dict):
        return {key: _pack(item, leaves) for key, item in structure.items()}
    return next(leaves)


def same(one: Any, other: Any) -> bool:
    """Whether two structures differ in their leaves only."""
    if isinstance(one, (list, tuple)):
        alike = isinstance(other, (list, tuple)) and len(one) == len(other)
        return alike and all(map(same, one, other))
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return not isinstance(other, (list, tuple, dict))


def over(function: Callable[[Any], Any], structure: Any) -> Any:
    """The structure with a function applied to each leaf."""
    return packed(structure, [function(leaf) for leaf in flat(structure)])
