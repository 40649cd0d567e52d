"""Functions on nested structures of variables, under Fluid's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fluidlite.base.errors import ProgramError
from fluidlite.layer_helper import check_function
from fluidlite.layers.structure import flatten_structure, pack, same_structure

__all__ = ["assert_same_structure", "flatten", "is_sequence", "map_structure", "pack_sequence_as"]


def is_sequence(seq: Any) -> bool:
    """Whether it is a list, a tuple or a dict."""
    return isinstance(seq, (list, tuple, dict))


def flatten(nest: Any) -> list[Any]:
    """The leaves of a structure, in order."""
    return flatten_structure(nest)


def pack_sequence_as(structure: Any, flat_sequence: Sequence[Any]) -> Any:
    """A structure of the form of another, with new leaves."""
    count = len(flatten_structure(structure))
    if count != len(flat_sequence):
        raise ProgramError(f"the structure has {count} leaves, flat_sequence {len(flat_sequence)}; expected as many")
    return pack(structure, list(flat_sequence))


def map_structure(func: Callable[..., Any], *structure: Any) -> Any:
    """Apply a function to the leaves of one structure, or of several of the same form."""
    check_function("func", func)
    if not structure:
        raise ProgramError("map_structure got no structure; expected one or more after the function")
    first, *more = structure
    for other in more:
        assert_same_structure(first, other)
    leaves = zip(*map(flatten_structure, structure), strict=True)
    return pack(first, [func(*each) for each in leaves])


def assert_same_structure(nest1: Any, nest2: Any, check_types: bool = True) -> None:
    """Raise ProgramError unless two structures differ in their leaves only.

    ``check_types`` is a hint of Fluid's: lists and tuples are alike.
    """
    if not same_structure(nest1, nest2):
        raise ProgramError(f"the structures differ: {nest1!r:.200} and {nest2!r:.200}")
