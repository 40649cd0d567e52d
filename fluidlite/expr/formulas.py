"""Numbers and conditions of calls, evaluated as a list: a number that several have in common is computed once.

They say what ``Number.evaluate`` and ``Condition.evaluate`` say, which is asked the first time: a list pays from the
second on. Writing and compiling a function of Python for each would take as long as fifty evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, Union

from fluidlite.expr.number import FUNCTIONS, Condition, Number, Values, number

_ZERO = number(0)
"""It is to itself what any whole number is to itself."""
_Given = Callable[[list[Any]], Sequence[Any]]
"""Takes a function's arguments from a list."""


def _given(places: Sequence[int]) -> _Given:
    return itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))


class _Listed:
    """What numbers are computed of: leaves, constants, then functions of what lies before."""

    def __init__(self, numbers: Iterable[Number]) -> None:
        every: dict[str, Number] = {}
        pending = [*numbers]
        pending.reverse()
        while pending:
            one, before = pending[-1], len(pending)
            if one.key not in every:
                for arg in one.args:
                    if arg.key not in every:
                        pending.append(arg)
            if len(pending) == before:
                every.setdefault(one.key, one)
                pending.pop()
        leaves: list[Number] = []
        constants: list[Number] = []
        functions: list[Number] = []
        for n in every.values():
            (functions if n.args else constants if n.op == "const" else leaves).append(n)
        self.given = len(leaves) + len(constants)
        self.at: dict[str, int] = {}
        """Where each number stands, by key."""
        self.steps: list[tuple[Callable[..., Any], _Given]] = []
        for n in (*leaves, *constants, *functions):
            self.at[n.key] = len(self.at)
            if n.args:
                self.steps.append((FUNCTIONS[n.op], _given(self.places(n.args))))
        self._leaves = list(map(attrgetter("value"), leaves))
        self._constants = list(map(attrgetter("value"), constants))

    def places(self, numbers: Sequence[Number]) -> list[int]:
        """Where numbers stand."""
        return list(map(self.at.__getitem__, map(attrgetter("key"), numbers)))

    def begin(self, values: Values) -> list[Any] | None:
        """Leaves and constants in a call; None if a leaf is not known."""
        found = list(map(values.__getitem__, self._leaves))
        return None if None in found else found + self._constants


class Formulas:
    """Numbers, all of which a call gives."""

    def __init__(self, numbers: Sequence[Number]) -> None:
        self._numbers = numbers
        self._asked = False
        self._ready: tuple[_Listed, list[int]] | None = None
        """The list, and where the numbers stand in it: set as one, as other threads may ask meanwhile."""

    def __call__(self, values: Values) -> list[Any]:
        """What they are in a call; None where a leaf is not known."""
        ready = self._ready
        if ready is None and self._asked:
            listed = _Listed(self._numbers)
            ready = self._ready = listed, listed.places(self._numbers)
        self._asked = True
        found = ready[0].begin(values) if ready is not None else None
        if ready is None or found is None:
            return [n.evaluate(values) for n in self._numbers]
        for function, given in ready[0].steps:
            found.append(function(*given(found)))
        return list(map(found.__getitem__, ready[1]))


_Step = tuple[Callable[..., Any], _Given, Union[bool, None]]
"""A function or a comparison, what it is of, and the answer that is expected of it."""


class Answers:
    """Conditions with the answers that are expected of them."""

    def __init__(self, asked: Sequence[tuple[Condition, bool]]) -> None:
        self._conditions = asked
        self._asked = False
        self._ready: tuple[_Listed, list[_Step]] | None = None
        """The list, and what is computed and asked in turn: set as one, as other threads may ask meanwhile."""

    def first_other(self, values: Values, unknown: Callable[[int], bool]) -> int:
        """The number of the first condition with another answer in a call, or -1.

        ``unknown``: says of a condition whose numbers are not known whether its answer is another.
        """
        ready = self._ready
        if ready is None and self._asked:
            ready = self._ready = self._list()
        self._asked = True
        found = ready[0].begin(values) if ready is not None else None
        if ready is None or found is None:
            for k, (condition, answer) in enumerate(self._conditions):
                truth = condition.evaluate(values)
                if unknown(k) if truth is None else truth is not answer:
                    return k
            return -1
        k = 0
        for function, given, expected in ready[1]:
            if expected is None:
                found.append(function(*given(found)))
            elif bool(function(*given(found))) is expected:
                k += 1
            else:
                return k
        return -1

    def _list(self) -> tuple[_Listed, list[_Step]]:
        pairs: list[tuple[Number, Number]] = []
        for condition, _ in self._conditions:
            a, b = condition.a, condition.b
            pairs.append((_ZERO, _ZERO) if a.key == b.key and a.whole else (a, b))
        listed = _Listed(chain.from_iterable(pairs))
        steps: list[_Step] = []
        done = 0
        for (condition, answer), pair in zip(self._conditions, pairs, strict=True):
            places = listed.places(pair)
            needed = max(done, max(places) + 1 - listed.given)
            for function, given in listed.steps[done:needed]:
                steps.append((function, given, None))
            done = needed
            steps.append((FUNCTIONS[condition.op], _given(places), answer))
        return listed, steps
