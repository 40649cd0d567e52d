"""Index arithmetic: axes of loops and computed indices are leaves of numbers, as sizes are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fluidlite.expr.number import Condition, Number, number

Index = tuple[Number, ...]
Conditions = tuple[Condition, ...]


def axis_leaf(name: str) -> Number:
    """The index along an axis of a loop, an integer in [0, size of the axis)."""
    return Number("axis", (), name)


def element_leaf(name: str) -> Number:
    """A computed index: the integer value of an element."""
    return Number("element", (), name)


def leaves_of(n: Number) -> list[Number]:
    """The axes and elements that a number depends on; cached in the number."""
    if n.leaves is not None:
        return n.leaves
    leaves: dict[str, Number] = {}
    pending = [n]
    while pending:
        current = pending.pop()
        if current.op in ("axis", "element"):
            leaves[current.key] = current
        pending.extend(current.args)
    n.leaves = list(leaves.values())
    return n.leaves


def computed_indices(numbers: Iterable[Number]) -> tuple[str, ...]:
    """The names of the computed indices that numbers depend on."""
    return tuple([leaf.value for n in numbers for leaf in leaves_of(n) if leaf.op == "element"])


def linear(index: Sequence[Number], dims: Sequence[Number]) -> Number:
    """The row-major linear index."""
    total = index[0] if index else number(0)
    for i, d in zip(index[1:], dims[1:], strict=True):
        total = total * d + i
    return total
