"""Numbers that a layer takes as ints, as Variables, or as both in one list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from fluidlite.layer_helper import check_int
from fluidlite.layers.tensor import fill_constant
from fluidlite.program.variable import Variable


class Numbers(NamedTuple):
    """What an operator gets.

    ``attr``: the numbers, -1 where a Variable says one; none of a Variable that holds all.
    ``inputs``: the slots of the Variables: empty if all numbers are ints.
    ``unknown``: which of ``attr`` a Variable says.
    """

    attr: list[int]
    inputs: dict[str, Any]
    unknown: list[bool]


def numbers(argument: str, value: Any, whole: str, each: str) -> Numbers:
    """Sort a layer's argument out.

    ``argument``: its name.
    ``whole``: the slot for a Variable that holds all numbers.
    ``each``: the slot for a list of Variables of one number each; ints beside Variables become constants.
    Raises ProgramError if it is something else.
    """
    if isinstance(value, Variable):
        return Numbers([], {whole: value}, [])
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        value = [value]
    items: Sequence[Any] = list(value)
    known = [-1 if isinstance(item, Variable) else check_int(argument, item) for item in items]
    unknown = [isinstance(item, Variable) for item in items]
    if not any(unknown):
        return Numbers(known, {}, unknown)
    tensors = [
        item if isinstance(item, Variable) else fill_constant([1], "int32", n)
        for item, n in zip(items, known, strict=True)
    ]
    return Numbers(known, {each: tensors}, unknown)
