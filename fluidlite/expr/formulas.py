"""Numbers and conditions of calls, evaluated as a flat list: common subexpressions are computed once.

The results are those of ``Number.evaluate`` and ``Condition.evaluate``, which compute the first call: building the list
pays from the second call on. Generating and compiling a Python function takes as long as fifty evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, Union

from fluidlite.expr.number import FUNCTIONS, Condition, Number, Values, number

_ZERO = number(0)
"""Stands for both sides of a comparison of an integer with itself."""
_Getter = Callable[[list[Any]], Sequence[Any]]
"""Gets a function's arguments from the list of values."""


def _getter(places: Sequence[int]) -> _Getter:
    return itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))


class _EvaluationList:
    """The subexpressions of numbers in order of evaluation: leaves, constants, then functions of earlier entries."""

    def __init__(self, numbers: Iterable[Number]) -> None:
        by_key: dict[str, Number] = {}
        pending = [*numbers]
        pending.reverse()
        while pending:
            one, before = pending[-1], len(pending)
            if one.key not in by_key:
                for arg in one.args:
                    if arg.key not in by_key:
                        pending.append(arg)
            if len(pending) == before:
                by_key.setdefault(one.key, one)
                pending.pop()
        leaves: list[Number] = []
        constants: list[Number] = []
        functions: list[Number] = []
        for n in by_key.values():
            (functions if n.args else constants if n.op == "const" else leaves).append(n)
        self.input_count = len(leaves) + len(constants)
        self.positions: dict[str, int] = {}
        """The index of each number in the list, by key."""
        self.steps: list[tuple[Callable[..., Any], _Getter]] = []
        for n in (*leaves, *constants, *functions):
            self.positions[n.key] = len(self.positions)
            if n.args:
                self.steps.append((FUNCTIONS[n.op], _getter(self.places(n.args))))
        self._leaves = list(map(attrgetter("value"), leaves))
        self._constants = list(map(attrgetter("value"), constants))

    def places(self, numbers: Sequence[Number]) -> list[int]:
        """The indices of numbers in the list."""
        return list(map(self.positions.__getitem__, map(attrgetter("key"), numbers)))

    def begin(self, values: Values) -> list[Any] | None:
        """The values of leaves and constants in a call; None if a leaf is unknown."""
        leaves = list(map(values.__getitem__, self._leaves))
        return None if None in leaves else leaves + self._constants


class Formulas:
    """Numbers that are evaluated together in each call."""

    def __init__(self, numbers: Sequence[Number]) -> None:
        self._numbers = numbers
        self._evaluated_once = False
        self._compiled: tuple[_EvaluationList, list[int]] | None = None
        """The list, and the indices of the numbers in it: one assignment, since other threads may read it."""

    def __call__(self, values: Values) -> list[Any]:
        """The values in a call; None where a leaf is unknown."""
        compiled = self._compiled
        if compiled is None and self._evaluated_once:
            entries = _EvaluationList(self._numbers)
            compiled = self._compiled = entries, entries.places(self._numbers)
        self._evaluated_once = True
        results = compiled[0].begin(values) if compiled is not None else None
        if compiled is None or results is None:
            return [n.evaluate(values) for n in self._numbers]
        for function, getter in compiled[0].steps:
            results.append(function(*getter(results)))
        return list(map(results.__getitem__, compiled[1]))


_Instruction = tuple[Callable[..., Any], _Getter, Union[bool, None]]
"""A function or a comparison, the getter of its arguments, and the expected truth of a comparison, else None."""


class ConditionList:
    """Conditions with their expected truth."""

    def __init__(self, conditions: Sequence[tuple[Condition, bool]]) -> None:
        self._conditions = conditions
        self._evaluated_once = False
        self._compiled: tuple[_EvaluationList, list[_Instruction]] | None = None
        """The list, and its instructions in order: one assignment, since other threads may read it."""

    def first_mismatch(self, values: Values, unknown: Callable[[int], bool]) -> int:
        """The number of the first condition with another truth in a call, or -1.

        ``unknown``: called for a condition of unknown numbers; whether it counts as one with another truth.
        """
        compiled = self._compiled
        if compiled is None and self._evaluated_once:
            compiled = self._compiled = self._list()
        self._evaluated_once = True
        results = compiled[0].begin(values) if compiled is not None else None
        if compiled is None or results is None:
            for k, (condition, answer) in enumerate(self._conditions):
                truth = condition.evaluate(values)
                if unknown(k) if truth is None else truth is not answer:
                    return k
            return -1
        k = 0
        for function, getter, expected in compiled[1]:
            if expected is None:
                results.append(function(*getter(results)))
            elif bool(function(*getter(results))) is expected:
                k += 1
            else:
                return k
        return -1

    def _list(self) -> tuple[_EvaluationList, list[_Instruction]]:
        pairs: list[tuple[Number, Number]] = []
        for condition, _ in self._conditions:
            a, b = condition.a, condition.b
            pairs.append((_ZERO, _ZERO) if a.key == b.key and a.whole else (a, b))
        entries = _EvaluationList(chain.from_iterable(pairs))
        steps: list[_Instruction] = []
        done = 0
        for (condition, answer), pair in zip(self._conditions, pairs, strict=True):
            places = entries.places(pair)
            needed = max(done, max(places) + 1 - entries.input_count)
            for function, getter in entries.steps[done:needed]:
                steps.append((function, getter, None))
            done = needed
            steps.append((FUNCTIONS[condition.op], _getter(places), answer))
        return entries, steps
