"""Nested structures of variables: lists, tuples and dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def flatten_structure(structure: Any) -> list[Any]:
    """The leaves of a structure, in order; of a dict, in the order of its keys."""
    if isinstance(structure, (list, tuple)):
        return [leaf for item in structure for leaf in flatten_structure(item)]
    if isinstance(structure, dict):
        return [leaf for item in structure.values() for leaf in flatten_structure(item)]
    return [structure]


def pack(structure: Any, leaves: list[Any]) -> Any:
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


def same_structure(a: Any, b: Any) -> bool:
    """Whether two structures differ in their leaves only."""
    if isinstance(a, (list, tuple)):
        alike = isinstance(b, (list, tuple)) and len(a) == len(b)
        return alike and all(map(same_structure, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same_structure(a[key], b[key]) for key in a)
    return not isinstance(b, (list, tuple, dict))


def map_leaves(function: Callable[[Any], Any], structure: Any) -> Any:
    """The structure with a function applied to each leaf."""
    return pack(structure, [function(leaf) for leaf in flatten_structure(structure)])
