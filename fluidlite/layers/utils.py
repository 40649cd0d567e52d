"""Functions on nested structures of variables: lists, tuples and dicts; under Fluid's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fluidlite.base.errors import ProgramError
from fluidlite.layer_helper import check_function

__all__ = ["assert_same_structure", "flatten", "is_sequence", "map_structure", "pack_sequence_as"]


def is_sequence(seq: Any) -> bool:
    """Whether it is a list, a tuple or a dict."""
    return isinstance(seq, (list, tuple, dict))


def flatten(nest: Any) -> list[Any]:
    """The leaves of a structure, in order; of a dict, in the order of its keys."""
    if not is_sequence(nest):
        return [nest]
    return [leaf for item in (nest.values() if isinstance(nest, dict) else nest) for leaf in flatten(item)]


def pack_sequence_as(structure: Any, flat_sequence: Sequence[Any]) -> Any:
    """A structure of the form of another, with new leaves."""
    count = len(flatten(structure))
    if count != len(flat_sequence):
        raise ProgramError(f"the structure has {count} leaves, flat_sequence {len(flat_sequence)}; expected as many")
    return _pack(structure, iter(flat_sequence))


def _pack(structure: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(_pack(item, leaves) for item in structure))
    if isinstance(structure, (list, tuple)):
        return type(structure)(_pack(item, leaves) for item in structure)
    if isinstance(structure, dict):
        return {key: _pack(item, leaves) for key, item in structure.items()}
    return next(leaves)


def map_structure(func: Callable[..., Any], *structure: Any) -> Any:
    """Apply a function to the leaves of one structure, or of several of the same form."""
    check_function("func", func)
    if not structure:
        raise ProgramError("map_structure got no structure; expected one or more after the function")
    first, *more = structure
    for other in more:
        assert_same_structure(first, other)
    leaves = zip(*map(flatten, structure), strict=True)
    return pack_sequence_as(first, [func(*each) for each in leaves])


def same_structure(a: Any, b: Any) -> bool:
    """Whether two structures differ in their leaves only."""
    if isinstance(a, (list, tuple)):
        alike = isinstance(b, (list, tuple)) and len(a) == len(b)
        return alike and all(map(same_structure, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same_structure(a[key], b[key]) for key in a)
    return not is_sequence(b)


def assert_same_structure(nest1: Any, nest2: Any, check_types: bool = True) -> None:
    """Raise ProgramError unless two structures differ in their leaves only.

    ``check_types`` is a hint of Fluid's: lists and tuples are alike.
    """
    if not same_structure(nest1, nest2):
        raise ProgramError(f"the structures differ: {nest1!r:.200} and {nest2!r:.200}")
