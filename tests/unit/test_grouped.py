"""Cases of several checks: all that fail are named, what is skipped is told, one check runs alone."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import grouped as module
import pytest
from grouped import Group, Member, family, grouped, run_each, text_of

import fluidlite as fluid
from fluidlite.program.registry import ops

RAN: list[Any] = []


@pytest.fixture(autouse=True)
def _all_checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    RAN.clear()
    monkeypatch.setattr(module, "chosen", [])
    monkeypatch.setattr(module, "left_out", [])
    yield


def members(*names: str) -> list[Member]:
    return [Member(name, {"name": name}) for name in names]


def groups_of(test: Any) -> dict[str, Group]:
    (mark,) = [mark for mark in test.pytestmark if mark.name == "parametrize"]
    return {each.id: each.values[0] for each in mark.args[1]}


def test_all_that_fail_are_named_and_how_to_run_one(request: pytest.FixtureRequest) -> None:
    def run(member: Member) -> None:
        RAN.append(member.name)
        if member.name == "bad":
            raise ValueError("wrong")
        if member.name == "worse":
            pytest.fail("broken")

    with pytest.raises(AssertionError) as caught:
        run_each(members("good", "bad", "worse", "last"), run)
    assert RAN == ["good", "bad", "worse", "last"]
    for text in ("2 of 4 checks fail: bad, worse", "bad: ValueError: wrong", "worse: Failed: broken"):
        assert text in str(caught.value)
    assert f"pytest '{request.node.nodeid}' --check 'bad'" in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_case_whose_time_is_over_ends() -> None:
    def run(member: Member) -> None:
        RAN.append(member.name)
        pytest.fail("Timeout (>300.0s) from pytest-timeout.")

    with pytest.raises(AssertionError, match="a: Failed: Timeout"):
        run_each(members("a", "b"), run)
    assert RAN == ["a"]


def test_each_check_has_programs_of_its_own() -> None:
    def run(member: Member) -> None:
        fluid.layers.data("x", shape=[2])
        RAN.append((fluid.unique_name.generate("fc"), len(fluid.default_main_program().global_block().vars)))

    run_each(members("a", "b"), run)
    assert RAN[0] == RAN[1]


def test_what_is_skipped_is_told() -> None:
    def run(member: Member) -> None:
        if member.name != "good":
            pytest.skip(f"no {member.name}")

    with pytest.raises(pytest.skip.Exception, match="no place; no time"):
        run_each(members("place", "time"), run)
    assert module.left_out == []
    run_each(members("place", "good"), run)
    assert module.left_out == ["no place"]


def test_one_check_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "chosen", ["oo"])
    run_each(members("good", "bad", "moon"), lambda member: RAN.append(member.name))
    assert RAN == ["good", "moon"]
    with pytest.raises(pytest.skip.Exception, match="called oo"):
        run_each(members("bad"), lambda member: RAN.append(member.name))


def test_parameters_become_groups() -> None:
    @grouped(("a", "b"), [(1, "x"), (1, "y"), pytest.param(2, "x", id="named")], by=("a",))
    def test(tmp: str, a: int, b: str) -> None:
        """What it says."""
        RAN.append((tmp, a, b))

    assert test.__doc__ == "What it says."
    assert list(inspect.signature(test).parameters) == ["tmp", "members"]
    groups = groups_of(test)
    assert {key: [each.name for each in group] for key, group in groups.items()} == {
        "1": ["1-x", "1-y"],
        "2": ["named"],
    }
    test(tmp="t", members=groups["1"])
    assert RAN == [("t", 1, "x"), ("t", 1, "y")]


def test_values_that_take_a_while_are_made_when_the_case_runs() -> None:
    def inner(a: int) -> list[str]:
        RAN.append(f"made of {a}")
        return ["x", "y"]

    @grouped(("a",), [(1,), (2,)], by=lambda a: "all", inner=("b", inner))
    def test(a: int, b: str) -> None:
        RAN.append((a, b))

    groups = groups_of(test)
    assert RAN == []
    test(members=groups["all"])
    assert RAN == ["made of 1", "made of 2", (1, "x"), (1, "y"), (2, "x"), (2, "y")]


def test_a_group_has_the_marks_of_its_cases() -> None:
    there = pytest.param(1, marks=pytest.mark.opencl)
    grouped(("a",), [there, there], by=lambda a: "all")
    with pytest.raises(ValueError, match="2 has other marks than the group all"):
        grouped(("a",), [there, (2,)], by=lambda a: "all")


def test_names() -> None:
    relu = ops.get("relu")
    assert (text_of(relu), text_of(0.5), text_of(len)) == ("relu", "0.5", "len")
    assert family(relu) == "activations"
