"""Which cases ``--op`` and ``--place`` leave, and how processes share the cases."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from distribution import BY_CASE, LONG, OperatorScheduling, operator_of, place_of, rank, select
from grouped import Group, Member
from operator_checks import CHECKS, by_operator

from fluidlite.program.registry import ops


def item(name: str, **params: Any) -> Any:
    return SimpleNamespace(name=name, callspec=SimpleNamespace(params=params))


def left(items: list[Any], op: list[str] | None = None, place: list[str] | None = None) -> list[str]:
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    select(SimpleNamespace(getoption={"op": op, "place": place}.get, hook=hook), items)  # type: ignore[arg-type]
    return [each.name for each in items]


def cases() -> list[Any]:
    (relu,) = (each.values[0] for each in by_operator(CHECKS) if each.id == "relu")
    return [
        item("check", group=relu, place="opencl:0"), item("test_conforms_on_the_cpu[relu]", group=relu),
        item("definition", op=ops.get("relu")), item("gradient", type="relu_grad", place="cpu"),
        item("other", op=ops.get("tanh"), place="cpu:0"), SimpleNamespace(name="without parameters"),
    ]  # fmt: skip


def test_operators_and_places_choose_cases() -> None:
    everything = [each.name for each in cases()]
    assert left(cases()) == everything
    assert left(cases(), op=["relu"]) == everything[:4]
    assert left(cases(), op=["relu_grad", "tanh"]) == everything[:5]
    assert left(cases(), place=["opencl"]) == ["check"]
    assert left(cases(), ["relu"], ["cpu:0"]) == ["test_conforms_on_the_cpu[relu]", "gradient"]


def test_of_a_case_of_several_checks_those_of_the_operator_are_left() -> None:
    several = Group(Member(type, {"op": ops.get(type)}) for type in ("relu", "tanh"))
    others = Group([Member("cpu", {"place": "cpu"})])
    found = [item("several", members=several), item("others", members=others)]
    assert left(found, op=["relu"]) == ["several"]
    assert [member.name for member in found[0].callspec.params["members"]] == ["relu"]
    assert left([item("several", members=several), item("others", members=others)], place=["cpu"]) == ["others"]


def test_a_choice_of_nothing_is_an_error() -> None:
    with pytest.raises(pytest.UsageError, match="rellu"):
        left(cases(), ["rellu"])


def test_parameters_that_say_nothing() -> None:
    assert operator_of({"group": [], "op": None, "type": 3}) is None
    assert place_of({}) is None


def test_long_cases_go_first_and_short_ones_fill_the_end() -> None:
    assert [rank(LONG[0]), rank("tests/unit/test_expr.py::test_x"), rank(f"{BY_CASE[0]}::test_x[relu]")] == [0, 1, 2]
    scheduling = OperatorScheduling.__new__(OperatorScheduling)
    assert scheduling._split_scope(f"{BY_CASE[0]}::test_x[relu]") == f"{BY_CASE[0]}::test_x[relu]"
    assert scheduling._split_scope("tests/unit/test_expr.py::test_x[relu]") == "tests/unit/test_expr.py"
