"""Numbers and conditions of calls as functions: those that are asked again and again are written as Python.

They say what ``Number.evaluate`` and ``Condition.evaluate`` say; a number that several have in common is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fluidlite.expr.number import FUNCTIONS, Condition, Number, Values

_WORTH = 4
"""So often they are evaluated before they are written: that takes as long as ten evaluations."""
_SIGNS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}


class _Writer:
    """The text of a function of leaves, which returns None where one is not known."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {f"f_{name}": function for name, function in FUNCTIONS.items()}
        self.lines: list[str] = []
        self._leaves: dict[str, str] = {}
        self._known: dict[str, str] = {}

    def number(self, n: Number) -> str:
        """The name of a number."""
        pending = [n]
        while pending:
            one = pending[-1]
            missing = [arg for arg in one.args if arg.key not in self._known]
            if missing and one.key not in self._known:
                pending += missing
                continue
            pending.pop()
            if one.key not in self._known:
                self._known[one.key] = self._one(one)
        return self._known[n.key]

    def _one(self, n: Number) -> str:
        if n.op == "const":
            name = f"c{len(self.names)}"
            self.names[name] = n.value
            return name
        if not n.args:
            return self._leaves.setdefault(n.value, f"v{len(self._leaves)}")
        name = f"n{len(self._known)}"
        self.lines.append(f"{name} = {self.applied(n.op, [self._known[arg.key] for arg in n.args])}")
        return name

    @staticmethod
    def applied(function: str, args: Sequence[str]) -> str:
        """The text of a function of what has names."""
        sign = _SIGNS.get(function)
        return f"{args[0]} {sign} {args[1]}" if sign is not None else f"f_{function}({', '.join(args)})"

    def function(self) -> Callable[[Values], Any]:
        """What was written."""
        head = [f"{name} = values[{leaf!r}]" for leaf, name in self._leaves.items()]
        head += [f"if {' or '.join(f'{name} is None' for name in self._leaves.values())}: return None"] * bool(head)
        text = "\n    ".join(["def function(values):", *head, *self.lines])
        exec(compile(text, "<formulas>", "exec"), self.names)
        found: Callable[[Values], Any] = self.names["function"]
        return found


class Formulas:
    """Numbers, all of which a call gives."""

    def __init__(self, numbers: Sequence[Number]) -> None:
        self._numbers = numbers
        self._asked = 0
        self._function: Callable[[Values], Any] | None = None

    def __call__(self, values: Values) -> list[Any]:
        """What they are in a call; None where a leaf is not known."""
        self._asked += 1
        if self._function is None and self._asked > _WORTH:
            writer = _Writer()
            names = [writer.number(n) for n in self._numbers]
            writer.lines.append(f"return [{', '.join(names)}]")
            self._function = writer.function()
        found = self._function(values) if self._function is not None else None
        return found if found is not None else [n.evaluate(values) for n in self._numbers]


class Answers:
    """Conditions with the answers that are expected of them."""

    def __init__(self, asked: Sequence[tuple[Condition, bool]]) -> None:
        self._conditions = asked
        self._asked = 0
        self._function: Callable[[Values], Any] | None = None

    def first_other(self, values: Values, unknown: Callable[[int], bool]) -> int:
        """The number of the first condition with another answer in a call, or -1.

        Parameters
        ----------
        unknown : callable
            Says of a condition whose numbers are not known whether its answer is another.
        """
        self._asked += 1
        if self._function is None and self._asked > _WORTH:
            self._function = self._written()
        found = self._function(values) if self._function is not None else None
        if found is not None:
            return int(found)
        for k, (condition, answer) in enumerate(self._conditions):
            truth = condition.evaluate(values)
            if unknown(k) if truth is None else truth is not answer:
                return k
        return -1

    def _written(self) -> Callable[[Values], Any]:
        writer = _Writer()
        for k, (condition, answer) in enumerate(self._conditions):
            a, b = condition.a, condition.b
            if a.key == b.key and a.whole:
                truth = condition.op in ("equal", "less_equal", "greater_equal")
                writer.lines += [f"return {k}"] * (truth is not answer)
                continue
            said = writer.applied(condition.op, [writer.number(a), writer.number(b)])
            writer.lines.append(f"if {'not ' if answer else ''}({said}): return {k}")
        writer.lines.append("return -1")
        return writer.function()
