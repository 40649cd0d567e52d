"""Which cases ``--op`` and ``--place`` leave, and how processes share the cases."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distribution import BY_CASE, IN_TURN, LONG, OperatorScheduling, in_turn, operator_of, place_of, rank, select
from grouped import Group, Member
from operator_checks import CHECKS, by_operator

from fluidlite.program.registry import ops


def item(name: str, **params: Any) -> Any:
    return SimpleNamespace(name=name, nodeid=name, callspec=SimpleNamespace(params=params))


def left(items: list[Any], op: list[str] | None = None, place: list[str] | None = None, *args: str) -> list[str]:
    config: Any = SimpleNamespace(
        getoption={"op": op, "place": place}.get, args=args, hook=SimpleNamespace(pytest_deselected=lambda items: None)
    )
    select(config, items)
    return [each.name for each in items]


def cases() -> list[Any]:
    (relu,) = (each.values[0] for each in by_operator(CHECKS) if each.id == "relu")
    return [
        item("check", group=relu, place="opencl:0"), item("test_conforms_on_the_cpu[relu]", group=relu),
        item("definition", op=ops.get("relu")), item("gradient", type="relu_grad", place="cpu"),
        item("other", op=ops.get("tanh"), place="cpu:0"), SimpleNamespace(name="without", nodeid="without"),
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


@pytest.mark.parametrize("processes", [[], ["-n", "2"]])
def test_a_run_of_nothing_says_so(processes: list[str]) -> None:
    pytest.importorskip("xdist")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *processes, "--op", "rellu", __file__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=Path(__file__).parents[2])
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: no case is of operator ['rellu']" in done.stdout + done.stderr
    assert "INTERNALERROR" not in done.stdout + done.stderr


def test_a_case_runs_on_the_cpu_and_on_one_other_place_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ("cpu", "one", "other", "third")
    monkeypatch.setattr("distribution.fluid.places", lambda: [SimpleNamespace(kind=kind) for kind in kinds])
    file = IN_TURN[0]

    def made(file: str = file, kinds: tuple[str, ...] = kinds) -> list[Any]:
        return [item(f"{file}::test_x[{kind}:0-case{i}]") for i in range(6) for kind in kinds]

    kept = left(made())
    assert sum("[cpu:0-" in name for name in kept) == 6
    assert [sum(f"[{kind}:0-" in name for name in kept) for kind in kinds[1:]] == [2, 2, 2]
    assert len({name.partition("-")[2] for name in kept if "cpu" not in name}) == 6
    assert left(made()) == kept and not in_turn([each for each in made() if each.name in kept])
    assert len(left(made(), None, None, f"{file}::test_x")) == 24  # who names cases gets all of them
    assert not in_turn(made("tests/places/test_of_the_place.py"))
    assert not in_turn(made(kinds=("cpu", "absent", "other")))  # cases of what is not there are skipped, and say so
    assert not in_turn(
        [item(f"{file}::test_x[one-other]"), item(f"{file}::test_x[other-one]"), item(f"{file}::test_y")]
    )


def test_parameters_that_say_nothing() -> None:
    assert operator_of({"group": [], "op": None, "type": 3}) is None
    assert place_of({}) is None


def test_long_cases_go_first_and_short_ones_fill_the_end() -> None:
    assert [rank(LONG[0]), rank("tests/unit/test_expr.py::test_x"), rank(f"{BY_CASE[0]}::test_x[relu]")] == [0, 1, 2]
    scheduling = OperatorScheduling.__new__(OperatorScheduling)
    assert scheduling._split_scope(f"{BY_CASE[0]}::test_x[relu]") == f"{BY_CASE[0]}::test_x[relu]"
    assert scheduling._split_scope("tests/unit/test_expr.py::test_x[relu]") == "tests/unit/test_expr.py"


def test_cases_of_an_operator_go_to_one_process() -> None:
    scheduling = OperatorScheduling.__new__(OperatorScheduling)
    scheduling._owners = {}
    names = [f"{file}::test_x[{name}]" for file in BY_CASE[:2] for name in ("relu", "relu-opencl:0", "tanh", "exp")]
    scheduling.workqueue = OrderedDict((name, {}) for name in ("tests/unit/test_expr.py", *names))
    given: list[tuple[str, str]] = []
    for node in ("a", "a", "b", "a", "b", "a", "b", "a", "a"):
        given.append((node, scheduling._next(node)))
        del scheduling.workqueue[given[-1][1]]
    order = [(node, name.partition("[")[2]) for node, name in given]
    assert order == [
        ("a", ""), ("a", "relu]"), ("b", "tanh]"), ("a", "relu-opencl:0]"), ("b", "exp]"), ("a", "relu]"),
        ("b", "tanh]"), ("a", "relu-opencl:0]"), ("a", "exp]"),
    ]  # fmt: skip
    assert not scheduling.workqueue
