"""Every sample of every operator, and every gradient, on every place that can be used here."""

from __future__ import annotations

from typing import Any

import pytest
from operator_checks import (
    CHECKS,
    MODES,
    PAIRWISE,
    QUARTERS,
    by_operator,
    case_of,
    dtype_path_of,
    pairwise,
    parsed,
    path_of,
    run_checks,
    shared,
    where_most_falls_back,
    written,
)
from unoptimised import EVERY, most_unoptimised

import fluidlite as fluid
from fluidlite.base.opt_level import VARIABLE, opt_level
from fluidlite.cli.kernel_matrix import kernel_matrix
from fluidlite.platform.device_registry import devices
from fluidlite.program.kernel_registry import CAPABILITIES
from fluidlite.testing import Check

FEWEST = 1500
"""A floor: an operator family that fails to load must not pass for want of tests."""
MARKED = ("opencl", "cuda")


def every_place() -> list[Any]:
    """A parameter for each usable place, and a skipped one for each kind that cannot be used."""
    found = [(place.kind, str(place), "") for place in fluid.places()]
    found += [(kind, kind, reason) for kind, reason in devices.kinds().items() if reason]
    parameters = []
    for kind, text, reason in found:
        marks = [getattr(pytest.mark, kind)] if kind in MARKED else []
        parameters.append(pytest.param(text, marks=[*marks, pytest.mark.skip(reason)] if reason else marks, id=text))
    return parameters


USABLE = [parameter for parameter in every_place() if not any(m.name == "skip" for m in parameter.marks)]


@pytest.mark.parametrize("group", by_operator(CHECKS))
def test_conforms_on_the_cpu(group: list[Check]) -> None:
    assert run_checks(group, "cpu")


def beside_the_cpu() -> list[Any]:
    """A parameter for each operator on each usable place but the cpu: its checks, and the place."""
    made = []
    for usable in USABLE:
        (place,) = usable.values
        unit = devices.unit(place)
        if unit.place.kind == "cpu":
            continue
        computes = unit.array is not None or unit.language is not None
        kinds = (*unit.capabilities(), unit.place.kind)
        found = pairwise(CHECKS, kinds)
        found = found if computes else where_most_falls_back(found, unit.place.kind)
        if unit.place.kind in QUARTERS:
            found = shared(found, QUARTERS[unit.place.kind], kinds)
        for group in by_operator(most_unoptimised(found)):
            made.append(pytest.param(*group.values, place, marks=usable.marks, id=f"{group.id}-{place}"))
    return made


@pytest.mark.parametrize(("group", "place"), beside_the_cpu())
def test_conforms(group: list[Check], place: str) -> None:
    assert run_checks(group, place)


def test_there_are_enough() -> None:
    assert len(CHECKS) > FEWEST


def test_pairs_leave_out_no_dtype_no_path_and_no_mode() -> None:
    def modes(found: list[Check]) -> set[tuple[str, str]]:
        return {(parsed(check)[0], mode) for check in found for mode in check.run.keywords.get("modes", MODES)}

    def dtypes(found: list[Check]) -> set[str]:
        """Of each operator with a written kernel, and of each module of others."""
        paths = {check.id: (dtype_path_of(check, by_hand), repr(parsed(check)[::2])) for check in found}
        return {shared if path == name else path for name, (path, shared) in paths.items()}

    by_hand = written(CAPABILITIES)
    every = [check for check in CHECKS if case_of(check)]
    kept = [check for check in PAIRWISE if case_of(check)]
    assert dtypes(kept) == dtypes(every)
    assert modes(kept) == modes(every)
    both = {parsed(check)[:2] for check in every} - {parsed(check)[:2] for check in kept}
    assert {path_of(check, by_hand) for check in kept} >= {
        path_of(check, by_hand) for check in every if parsed(check)[:2] in both and parsed(check)[2] == "float32"
    }
    assert all(
        {subject.removesuffix(".grad"), f"{subject.removesuffix('.grad')}_grad"}.isdisjoint(by_hand)
        for subject, _ in both
    )


@pytest.mark.parametrize("places", [("opencl", "llvm"), ("recording", "strict", "cpu without llvmlite")])
def test_places_share_all_checks(places: tuple[str, ...]) -> None:
    kinds = ("language", "memory") if "llvm" in places else ("array", "memory")
    every = pairwise(CHECKS, kinds)
    found = [{check.id for check in shared(every, QUARTERS[place])} for place in places]
    assert set.union(*found) == {check.id for check in every}
    assert sorted(quarter for place in places for quarter in QUARTERS[place]) == [0, 1, 2, 3]
    assert all(len(some - set.union(*found[:i], *found[i + 1 :])) > FEWEST // 6 for i, some in enumerate(found))
    subjects = {parsed(check)[0] for check in every}
    assert {parsed(check)[0] for check in every if check.id in set.intersection(*found)} == subjects


def test_some_checks_of_each_subject_are_optimised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    levels: dict[str, list[int]] = {"relu": [], "relu.grad": []}
    checks = [
        Check(f"{subject}[{i}:float32]", lambda place, seen=seen: seen.append(opt_level()))
        for subject, seen in levels.items()
        for i in range(2 * EVERY)
    ]
    for check in most_unoptimised(checks):
        check("cpu")
    assert levels["relu"] == [3, *[0] * (EVERY - 1), 3, *[0] * (EVERY - 1)]
    assert levels["relu.grad"][0] == 3 in levels["relu.grad"][1:] and 0 in levels["relu.grad"]
    monkeypatch.setenv(VARIABLE, "3")
    levels["relu"].clear()
    for check in most_unoptimised(checks[: 2 * EVERY]):
        check("cpu")
    assert set(levels["relu"]) == {3}


def test_a_failure_names_each_check_that_fails() -> None:
    def fail(place: Any) -> None:
        raise ValueError(f"wrong on {place}")

    good, bad = Check("relu[good:float32]", lambda place: None), Check("relu[bad:float32]", fail)
    assert run_checks([good], "cpu") == 1
    with pytest.raises(AssertionError, match=r"1 checks fail on cpu: relu\[bad:float32\]\n.*ValueError: wrong on cpu"):
        run_checks([good, bad], "cpu")
    assert run_checks([good, bad], "cpu", lambda error: isinstance(error, ValueError)) == 1


@pytest.mark.parametrize("place", every_place())
def test_no_operator_falls_back_where_there_is_a_capability(place: str) -> None:
    unit = devices.unit(place)
    if unit.array is None and unit.language is None:
        pytest.skip(f"{place} has neither array namespace nor kernel language")
    cells = {row.op: row.cells[unit.place] for row in kernel_matrix([place])}
    left = {op: cell.text for op, cell in cells.items() if cell.hows["fallback"] or cell.hows["none"]}
    assert left == {}
