"""Numbers as a table of plain values, which a file can hold: each stands behind those that it is computed of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite.expr.number import FUNCTIONS, Condition, Number, Values

_LEAVES = frozenset({"size", "attr", "value", "offsets"})
_COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})

Row = list[Any]
"""The name of a function, the places of its operands, the value of a constant or the name of a leaf, whether whole."""


class NumberTable:
    """Numbers in an order in which each can be made of those before."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._places: dict[str, int] = {}

    def place(self, n: Number) -> int:
        """Where a number stands; it is put there, if it is new."""
        found = self._places.get(n.key)
        if found is None:
            self.rows.append([n.op, [self.place(arg) for arg in n.args], n.value, n.whole])
            found = self._places[n.key] = len(self.rows) - 1
        return found

    def condition(self, c: Condition) -> list[Any]:
        """A condition as plain values."""
        return [c.op, self.place(c.a), self.place(c.b)]


def numbers_of(rows: Sequence[Row], values: Values) -> list[Number]:
    """The numbers of a table, of the leaves in ``values``.

    Raises ValueError or TypeError if a row is no number of these.
    """
    found: list[Number] = []
    for op, places, value, whole in rows:
        args = tuple([found[k] for k in places])
        if args:
            known = op in FUNCTIONS and (op == "longest" or all(arg.op != "offsets" for arg in args))
            if known:
                FUNCTIONS[op](*[1] * len(args))  # it takes so many
        elif op == "const":
            known = isinstance(value, (int, float))
        else:
            known = op in _LEAVES and value in values and (op == "offsets") == isinstance(values[value], tuple)
        if not known:
            raise ValueError(f"{op!r:.40} is no number")
        found.append(Number(op, args, None if args else value, whole is True))
    return found


def condition_of(found: Sequence[Number], op: str, a: int, b: int) -> Condition:
    """A condition on numbers of a table; raises ValueError if there is no such comparison."""
    if op not in _COMPARISONS or "offsets" in (found[a].op, found[b].op):
        raise ValueError(f"{op!r:.40} compares nothing")
    return Condition(op, found[a], found[b])
