"""Numbers and conditions of calls, evaluated as a list: a number that several have in common is computed once.

They say what ``Number.evaluate`` and ``Condition.evaluate`` say. Writing and compiling a function of Python for each
would take as long as fifty evaluations, and most are asked less often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fluidlite.expr.number import FUNCTIONS, Condition, Number, Values, number


class _Listed:
    """What numbers are computed of: leaves, constants, then functions of what lies before."""

    def __init__(self, numbers: Iterable[Number]) -> None:
        every: dict[str, Number] = {}
        for n in numbers:
            pending = [n]
            while pending:
                one = pending[-1]
                missing = [arg for arg in one.args if arg.key not in every]
                if missing and one.key not in every:
                    pending += missing
                    continue
                every.setdefault(one.key, one)
                pending.pop()
        leaves = [n for n in every.values() if n.op != "const" and not n.args]
        constants = [n for n in every.values() if n.op == "const"]
        functions = [n for n in every.values() if n.args]
        self.at = {n.key: i for i, n in enumerate([*leaves, *constants, *functions])}
        """Where each number stands, by key."""
        self.steps = [(FUNCTIONS[n.op], tuple([self.at[arg.key] for arg in n.args])) for n in functions]
        self.given = len(leaves) + len(constants)
        self._leaves = [n.value for n in leaves]
        self._constants = [n.value for n in constants]

    def begin(self, values: Values) -> list[Any] | None:
        """Leaves and constants in a call; None if a leaf is not known."""
        found = [values[leaf] for leaf in self._leaves]
        return None if None in found else found + self._constants


class Formulas:
    """Numbers, all of which a call gives."""

    def __init__(self, numbers: Sequence[Number]) -> None:
        self._numbers = numbers
        self._listed = _Listed(numbers)
        self._at = [self._listed.at[n.key] for n in numbers]

    def __call__(self, values: Values) -> list[Any]:
        """What they are in a call; None where a leaf is not known."""
        found = self._listed.begin(values)
        if found is None:
            return [n.evaluate(values) for n in self._numbers]
        for function, args in self._listed.steps:
            found.append(function(*[found[i] for i in args]))
        return [found[i] for i in self._at]


class Answers:
    """Conditions with the answers that are expected of them."""

    def __init__(self, asked: Sequence[tuple[Condition, bool]]) -> None:
        self._conditions = asked
        pairs = [(number(0),) * 2 if c.a.key == c.b.key and c.a.whole else (c.a, c.b) for c, _ in asked]
        listed = self._listed = _Listed([each for pair in pairs for each in pair])
        self._steps: list[tuple[Callable[..., Any], tuple[int, ...], bool | None]] = []
        """Functions and comparisons, each with what it is of, and the answer that is expected of it."""
        done = 0
        for (condition, answer), (a, b) in zip(asked, pairs, strict=True):
            of = listed.at[a.key], listed.at[b.key]
            needed = max(done, max(of) + 1 - listed.given)
            self._steps += [(*step, None) for step in listed.steps[done:needed]]
            done = needed
            self._steps.append((FUNCTIONS[condition.op], of, answer))

    def first_other(self, values: Values, unknown: Callable[[int], bool]) -> int:
        """The number of the first condition with another answer in a call, or -1.

        Parameters
        ----------
        unknown : callable
            Says of a condition whose numbers are not known whether its answer is another.
        """
        found = self._listed.begin(values)
        if found is None:
            for k, (condition, answer) in enumerate(self._conditions):
                truth = condition.evaluate(values)
                if unknown(k) if truth is None else truth is not answer:
                    return k
            return -1
        k = 0
        for function, args, expected in self._steps:
            if expected is None:
                found.append(function(*[found[i] for i in args]))
            elif bool(function(found[args[0]], found[args[1]])) is expected:
                k += 1
            else:
                return k
        return -1
