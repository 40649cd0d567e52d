"""Index arithmetic: the axes of loops are numbers, as sizes are, and where an element lies is computed of both."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.expr.number import Condition, Number, number

Index = tuple[Number, ...]
Conditions = tuple[Condition, ...]


def axis_leaf(name: str) -> Number:
    """The number that an axis of a loop is: an integer of 0 or more, and less than the size of the axis."""
    return Number("axis", (), name)


def element_leaf(name: str) -> Number:
    """An integer that an element of a tensor holds: an index that was computed."""
    return Number("element", (), name)


def leaves_of(n: Number) -> list[Number]:
    """The axes and elements that a number is computed of; found once for each number."""
    if n.leaves is not None:
        return n.leaves
    found: dict[str, Number] = {}
    pending = [n]
    while pending:
        one = pending.pop()
        if one.op in ("axis", "element"):
            found[one.key] = one
        pending.extend(one.args)
    n.leaves = list(found.values())
    return n.leaves


def linear(index: Sequence[Number], dims: Sequence[Number]) -> Number:
    """Where an element lies among all, the last axis first."""
    total = number(0)
    for i, d in zip(index, dims, strict=True):
        total = total * d + i
    return total
