"""Numbers as a table of plain values, which a file can hold: each stands behind those that it is computed of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fluidlite.expr.number import FUNCTIONS, Condition, Number, Values

_LEAVES = frozenset({"size", "attr", "value", "offsets"})
_COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})

Row = list[Any]
"""The name of a function, the places of its operands, the value of a constant or the name of a leaf, whether whole."""


class NumberTable:
    """Numbers in an order in which each can be made of those before. Either numbers are placed in it, or it is read."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows = [*rows]
        self._places: dict[str, int] = {}
        self._numbers: dict[int, Number] = {}

    def place(self, n: Number) -> int:
        """Where a number stands; it is put there, if it is new."""
        found = self._places.get(n.key)
        if found is None:
            self.rows.append([n.op, [self.place(arg) for arg in n.args], n.value, n.whole])
            found = self._places[n.key] = len(self.rows) - 1
        return found

    def comparison(self, c: Condition) -> tuple[str, int, int]:
        """What compares, and the places of what is compared."""
        return c.op, self.place(c.a), self.place(c.b)

    def number(self, place: int) -> Number:
        """The number at a place."""
        found = self._numbers.get(place)
        if found is None:
            op, places, value, whole = self.rows[place]
            args = tuple([self.number(k) for k in places])
            found = self._numbers[place] = Number(op, args, None if args else value, whole is True)
        return found

    def evaluate(self, values: Values) -> list[Any]:
        """All numbers in a call; None where a leaf is not known."""
        found: list[Any] = []
        for op, places, value, _ in self.rows:
            if places:
                given = [found[k] for k in places]
                found.append(None if None in given else FUNCTIONS[op](*given))
            else:
                found.append(value if op == "const" else values[value])
        return found

    def check(self, values: Values) -> None:
        """Raise ValueError or TypeError if a row that was read is no number of the leaves in ``values``."""
        functions = set()
        for at, (op, places, value, _) in enumerate(self.rows):
            if places:
                known = op in FUNCTIONS and all(type(k) is int and 0 <= k < at for k in places)
                known = known and (op == "longest" or all(self.rows[k][0] != "offsets" for k in places))
                functions.add((op, len(places)))
            elif op == "const":
                known = isinstance(value, (int, float))
            else:
                known = op in _LEAVES and value in values and (op == "offsets") == isinstance(values[value], tuple)
            if not known:
                raise ValueError(f"{op!r:.40} is no number")
        for op, count in functions:
            FUNCTIONS[op](*[1] * count)  # it takes so many

    def check_comparisons(self, asked: Iterable[tuple[str, int, int, bool]]) -> None:
        """Raise ValueError or TypeError if what was read compares no numbers of the table."""
        numbers = {k for k, row in enumerate(self.rows) if row[0] != "offsets"}
        for op, a, b, _ in asked:
            if op not in _COMPARISONS or a not in numbers or b not in numbers:
                raise ValueError(f"{op!r:.40} compares nothing")
