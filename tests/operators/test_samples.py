"""Every sample of every operator, and every gradient, on every place that can be used here."""

from __future__ import annotations

import pytest

import fluidlite as fluid
from fluidlite.testing import Check, checks

CHECKS = checks()
FEWEST = 500
"""A floor: an operator family that fails to load must not pass for want of tests."""


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
@pytest.mark.parametrize("check", [pytest.param(check, id=check.id) for check in CHECKS])
def test_conforms(check: Check, place: str) -> None:
    check(place)


def test_there_are_enough() -> None:
    assert len(CHECKS) > FEWEST
