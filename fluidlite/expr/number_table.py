"""Numbers as a table of plain values in topological order: each is computed once in a call, and can be serialized."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fluidlite.expr.number import COMPARISONS, FUNCTIONS, Condition, Number, Values, number

_LEAVES = frozenset({"size", "attr", "value", "offsets"})

Row = list[Any]
"""The op, the row indices of the operands, the value of a constant or the name of a leaf, and whether it is whole."""
Comparison = tuple[str, int, int, bool]
"""The op of a comparison, the row indices of its operands, and its expected truth."""
_ZERO = number(0)
"""Stands for both sides of a comparison of an integer with itself."""


class NumberTable:
    """A table of numbers, each computed from earlier rows. It is either built by ``place`` or read from ``rows``."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows = [*rows]
        self._places: dict[str, int] = {}
        self._numbers: dict[int, Number] = {}

    def place(self, n: Number) -> int:
        """The row index of a number; a new number is appended."""
        index = self._places.get(n.key)
        if index is None:
            self.rows.append([n.op, list(map(self.place, n.args)), n.value, n.whole])
            index = self._places[n.key] = len(self.rows) - 1
        return index

    def comparison(self, c: Condition, answer: bool) -> Comparison:
        """A condition with its expected truth, as a comparison of rows."""
        a, b = (_ZERO, _ZERO) if c.a.key == c.b.key and c.a.whole else (c.a, c.b)
        return c.op, self.place(a), self.place(b), answer

    def number(self, place: int) -> Number:
        """The number of a row."""
        n = self._numbers.get(place)
        if n is None:
            op, indices, value, whole = self.rows[place]
            args = tuple([self.number(k) for k in indices])
            n = self._numbers[place] = Number(op, args, None if args else value, whole is True)
        return n

    def evaluate(self, values: Values) -> list[Any]:
        """The values of all rows in a call; None where a leaf is unknown."""
        results: list[Any] = []
        for op, indices, value, _ in self.rows:
            if indices:
                args = list(map(results.__getitem__, indices))
                results.append(None if None in args else FUNCTIONS[op](*args))
            else:
                results.append(value if op == "const" else values[value])
        return results

    def check(self, values: Values) -> None:
        """Raise ValueError or TypeError if a row that was read is not a number computed from the leaves ``values``."""
        functions = set()
        for at, (op, indices, value, _) in enumerate(self.rows):
            if indices:
                is_valid = op in FUNCTIONS and all(type(k) is int and 0 <= k < at for k in indices)
                is_valid = is_valid and (op == "longest" or all(self.rows[k][0] != "offsets" for k in indices))
                functions.add((op, len(indices)))
            elif op == "const":
                is_valid = isinstance(value, (int, float))
            else:
                is_valid = op in _LEAVES and value in values and (op == "offsets") == isinstance(values[value], tuple)
            if not is_valid:
                raise ValueError(f"{op!r:.40} is no number")
        for op, count in functions:
            FUNCTIONS[op](*[1] * count)  # raises if the function takes another number of operands

    def check_comparisons(self, comparisons: Iterable[Comparison]) -> None:
        """Raise ValueError or TypeError if a comparison that was read has no rows of the table as operands."""
        numbers = {k for k, row in enumerate(self.rows) if row[0] != "offsets"}
        for op, a, b, _ in comparisons:
            if op not in COMPARISONS or a not in numbers or b not in numbers:
                raise ValueError(f"{op!r:.40} compares nothing")


def first_mismatch(comparisons: Iterable[Comparison], results: Sequence[Any], unknown: Callable[[int], bool]) -> int:
    """The number of the first comparison that has another truth for the values of a table's rows, or -1.

    ``unknown``: called for a comparison of unknown numbers; whether it counts as one with another truth.
    """
    for k, (op, a, b, answer) in enumerate(comparisons):
        x, y = results[a], results[b]
        if unknown(k) if x is None or y is None else bool(FUNCTIONS[op](x, y)) is not answer:
            return k
    return -1


class ConditionList:
    """Conditions with their expected truth.

    The first call evaluates them one by one: building their table takes as long as several evaluations.
    """

    def __init__(self, conditions: Sequence[tuple[Condition, bool]]) -> None:
        self._conditions = conditions
        self._evaluated_once = False
        self._compiled: tuple[NumberTable, list[Comparison]] | None = None
        """The table and its comparisons: one assignment, since other threads may read it."""

    def first_mismatch(self, values: Values, unknown: Callable[[int], bool]) -> int:
        """The number of the first condition with another truth in a call, or -1.

        ``unknown``: called for a condition of unknown numbers; whether it counts as one with another truth.
        """
        if not self._evaluated_once:
            self._evaluated_once = True
            for k, (condition, answer) in enumerate(self._conditions):
                truth = condition.evaluate(values)
                if unknown(k) if truth is None else truth is not answer:
                    return k
            return -1
        if self._compiled is None:
            table = NumberTable()
            self._compiled = table, [table.comparison(*each) for each in self._conditions]
        table, comparisons = self._compiled
        return first_mismatch(comparisons, table.evaluate(values), unknown)
