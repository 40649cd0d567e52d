"""Numbers in a table, and conditions on them, have the values of their evaluation."""

from __future__ import annotations

import math
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from fluidlite.expr.number import FUNCTIONS, Condition, Number, apply, attribute, longest_of, number, offsets_leaf, size
from fluidlite.expr.number_table import ConditionList, NumberTable

COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
TWO = ("add", "sub", "mul", "div", "floordiv", "mod", "pow", "minimum", "maximum")
ONE = ("neg", "abs", "floor", "ceil", "exp", "sqrt", "log", "tanh", "single", "whole")
LEAVES = [size("a"), size("b"), attribute("f"), longest_of("X", 0, 0)]
OFFSETS = offsets_leaf("X", 0, 0).value


def _random(rng: Any, depth: int) -> Number:
    if not depth or rng.random() < 0.2:
        return (
            LEAVES[rng.integers(len(LEAVES))] if rng.random() < 0.8 else number([0, 3, -2.5, math.inf][rng.integers(4)])
        )
    if rng.random() < 0.3:
        return apply(ONE[rng.integers(len(ONE))], _random(rng, depth - 1))
    return apply(TWO[rng.integers(len(TWO))], _random(rng, depth - 1), _random(rng, depth - 1))


def _values(rng: Any) -> dict[str, Any]:
    found = {
        "a": int(rng.integers(0, 6)),
        "b": int(rng.integers(0, 6)),
        "f": float(rng.normal()),
        OFFSETS: (0, 2, 2, 7),
    }
    if rng.random() < 0.2:
        found[list(found)[rng.integers(len(found))]] = None
    return found


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and (a == b or (a != a and b != b)) and repr(a) == repr(b)


def _evaluated(n: Any, values: Any) -> Any:
    try:
        return n.evaluate(values)
    except (ArithmeticError, ValueError) as exc:
        return type(exc)


def _tabulated(numbers: list[Number], values: Any) -> list[Any]:
    table = NumberTable()
    places = [table.place(n) for n in numbers]
    results = table.evaluate(values)
    return [results[k] for k in places]


@pytest.mark.parametrize("seed", range(60))
def test_tables_are_evaluations(seed: int) -> None:
    rng = np.random.default_rng(seed)
    numbers = [_random(rng, 4) for _ in range(4)]
    for _ in range(16):
        values = _values(rng)
        wanted = [_evaluated(n, values) for n in numbers]
        if any(isinstance(each, type) for each in wanted):
            continue
        assert all(map(_same, _tabulated(numbers, values), wanted))


@pytest.mark.parametrize("seed", range(60))
def test_answers_are_evaluations(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kinds = [COMPARISONS[k] for k in rng.integers(len(COMPARISONS), size=5)]
    asked = [(Condition(kind, _random(rng, 2), _random(rng, 2)), bool(rng.random() < 0.5)) for kind in kinds]
    answers = ConditionList(asked)
    for _ in range(16):
        values = _values(rng)
        truths = [_evaluated(condition, values) for condition, _ in asked]
        if any(isinstance(truth, type) for truth in truths):
            continue
        for unknown in (True, False):
            other = [
                unknown if truth is None else truth is not answer
                for truth, (_, answer) in zip(truths, asked, strict=True)
            ]
            wanted = other.index(True) if True in other else -1
            assert answers.first_mismatch(values, [lambda k: False, lambda k: True][unknown]) == wanted


def test_all_functions_are_applied() -> None:
    for name, function in FUNCTIONS.items():
        if name in ("longest", "where"):
            continue
        count = 2 if name in (*COMPARISONS, *TWO) else 1
        assert _tabulated([Number(name, tuple(LEAVES[:count]))], {"a": 5, "b": 2}) == [function(*(5, 2)[:count])]


def test_a_number_in_common_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setitem(FUNCTIONS, "abs", lambda a: (seen.append(a), abs(a))[1])
    shared = apply("abs", size("a"))
    conditions = [Condition("less", apply(op, shared, size("b")), number(9)) for op in ("add", "sub", "mul")]
    answers = ConditionList([(each, True) for each in conditions])
    for a in (3, 4):  # a table from the second time on
        seen.clear()
        assert answers.first_mismatch({"a": a, "b": 2}, lambda k: True) == -1
    assert seen == [4]


def test_threads_may_ask_at_once() -> None:
    """A table that another thread is still making is not taken."""
    leaves = [size(name) for name in "abcdefgh"]
    numbers = [apply("add", apply("mul", one, other), one) for one in leaves for other in leaves]
    asked = [(Condition("less", n, number(50)), True) for n in numbers]
    values = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6, "g": 7, "h": 8}
    other = [c.evaluate(values) for c, _ in asked].index(False)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for _ in range(60):
                answers = ConditionList(asked)
                assert {*pool.map(answers.first_mismatch, [values] * 8, [lambda k: True] * 8)} == {other}
    finally:
        sys.setswitchinterval(interval)
