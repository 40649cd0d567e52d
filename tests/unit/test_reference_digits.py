"""References of functions of one number keep their digits: near 0, far from it, and where parts nearly cancel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fluidlite.conformance.cases import Case, cases
from fluidlite.program.registry import ops
from fluidlite.testing.fuzz.call import call_reference
from fluidlite.testing.fuzz.reference import exactly
from fluidlite.testing.fuzz.tolerance import rounding, running_error

NUMBERS = np.concatenate([sign * np.logspace(-9, 2, 400) for sign in (1.0, -1.0)])


def _functions() -> list[Any]:
    """The first float64 case of each operator of X alone that is a function of scalars, for each of its attributes."""
    found: dict[str, Case] = {}
    for case in cases():
        plain = case.op.scalar is not None and not case.op.random and set(case.sample.inputs) == {"X"}
        if plain and case.dtype == "float64":
            found.setdefault(f"{case.op.type} {case.sample.attrs}", case)
    return [pytest.param(case, id=name) for name, case in found.items()]


@pytest.mark.parametrize("case", _functions())
def test_a_reference_keeps_its_digits(case: Case) -> None:
    """It is the expression's value but for the expression's own rounding, or 1e-12 of its size."""
    op, attrs = ops.get(case.op.type), case.attrs()
    found = call_reference(op, {"X": [NUMBERS]}, attrs, {})
    kinds = {slot: "float64" if arrays[0].dtype.kind == "f" else str(arrays[0].dtype) for slot, arrays in found.items()}
    terms = running_error(op, attrs, {"X": [exactly(NUMBERS)]}, kinds)
    if terms is None:
        pytest.skip("no plain function of scalars")
    for slot, term in terms.items():
        (given,) = found[slot]
        if given.dtype.kind != "f":
            continue
        with np.errstate(all="ignore"):
            apart = np.abs(term.value - given)
            limit = term.drift + 4 * rounding(given, "float64") + 1e-12 * np.abs(given)
        off = np.isfinite(given) & np.isfinite(term.value) & (apart > limit)
        assert not off.any(), f"{slot} at {NUMBERS[np.argmax(off)]!r}: {given[np.argmax(off)]!r}"
