"""NumberArgument: a layer's numbers that are ints, Variables, or a list of both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from fluidlite.layer_helper import check_int
from fluidlite.layers.tensor import fill_constant
from fluidlite.program.variable import Variable


class NumberArgument(NamedTuple):
    """The attribute and inputs of an operator for such numbers.

    ``attr``: the numbers, -1 for those of Variables; empty if one Variable has all.
    ``inputs``: the Variables by slot: empty if all numbers are ints.
    ``unknown``: for each of ``attr`` whether it is that of a Variable.
    """

    attr: list[int]
    inputs: dict[str, Any]
    unknown: list[bool]


def numbers(argument: str, value: Any, slot: str, list_slot: str, minimum: int | None = None) -> NumberArgument:
    """Convert a layer's argument.

    ``argument``: its name.
    ``slot``: the slot for a Variable that has all numbers.
    ``list_slot``: the slot for a list of Variables of one number each; ints among them become constants.
    Raises ProgramError if it is no number, or less than ``minimum``.
    """
    if isinstance(value, Variable):
        return NumberArgument([], {slot: value}, [])
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        value = [value]
    items: Sequence[Any] = list(value)
    values = [-1 if isinstance(item, Variable) else check_int(argument, item, minimum) for item in items]
    unknown = [isinstance(item, Variable) for item in items]
    if not any(unknown):
        return NumberArgument(values, {}, unknown)
    tensors = [
        item if isinstance(item, Variable) else fill_constant([1], "int32", n)
        for item, n in zip(items, values, strict=True)
    ]
    return NumberArgument(values, {list_slot: tensors}, unknown)
