"""Every sample of every operator, and every gradient, on every place that can be used here."""

from __future__ import annotations

from typing import Any

import pytest

import fluidlite as fluid
from fluidlite.platform.devices import devices
from fluidlite.testing import Check, checks
from fluidlite.tools.matrix import kernel_matrix

CHECKS = checks()
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


@pytest.mark.parametrize("place", USABLE)
@pytest.mark.parametrize("check", [pytest.param(check, id=check.id) for check in CHECKS])
def test_conforms(check: Check, place: str) -> None:
    check(place)


def test_there_are_enough() -> None:
    assert len(CHECKS) > FEWEST


@pytest.mark.parametrize("place", every_place())
def test_no_operator_falls_back_where_there_is_a_capability(place: str) -> None:
    unit = devices.unit(place)
    if unit.array is None and unit.dialect is None:
        pytest.skip(f"{place} has neither array namespace nor dialect")
    cells = {row.op: row.cells[unit.place] for row in kernel_matrix([place])}
    left = {op: cell.text for op, cell in cells.items() if cell.hows["fallback"] or cell.hows["none"]}
    assert left == {}
