"""The kit as a pytest function, and as a list of named checks for those who do not use pytest."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fluidlite.base.errors import DeviceUnavailable, FluidError, MissingExtraError
from fluidlite.platform.devices import devices
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.testing.cases import cases
from fluidlite.testing.check import check_gradient, check_sample
from fluidlite.testing.random_bits import random_checks
from fluidlite.testing.raw_device import device_checks


@dataclass(frozen=True)
class Check:
    """A named check; call it with a place.

    Attributes
    ----------
    id : str
        ``device[copy_within]``, ``relu[rank4:float64]``, or ``relu.grad[rank4:float64]``.
    run : callable
        Takes a Place.
    """

    id: str
    run: Callable[[Place], None]

    def __call__(self, place: PlaceLike) -> None:
        self.run(Place.parse(place))

    def names(self) -> tuple[str, ...]:
        """What a line of known failures may say to mean this check, from exact to broad."""
        operator, _, rest = self.id.partition("[")
        broad = (f"{operator}[{rest.rpartition(':')[0]}]", operator) if ":" in rest else (operator,)
        return (self.id, *broad)


def checks(operators: Iterable[str] | None = None) -> list[Check]:
    """Every check of the kit: the device's, random numbers, then each operator's samples and gradients."""
    others = {**device_checks(), **random_checks()} if operators is None else {}
    found = [Check(name, check) for name, check in others.items()]
    for case in cases(operators):
        found.append(Check(case.id, partial(check_sample, case)))
        if case.sample.grads:
            found.append(Check(f"{case.op.type}.grad[{case.label}:{case.dtype}]", partial(check_gradient, case)))
    return found


def read_known_failures(text: str) -> dict[str, str]:
    """Read known failures: a line each, ``op[sample]: reason``; ``#`` starts a comment.

    ``op[sample:dtype]`` means one check, ``op[sample]`` all dtypes, ``op`` all of an operator's values
    (``op.grad`` its gradients).

    Raises
    ------
    FluidError
        A line has no reason.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        name, colon, reason = line.partition("]:") if "[" in line else line.partition(":")
        if not colon or not reason.strip():
            raise FluidError(f"known failures, line {number}: {line!r} has no reason; write `op[sample]: reason`")
        found[name.strip() + ("]" if "[" in line else "")] = reason.strip()
    return found


def conformance(
    place: PlaceLike, known_failures: str | Path | None = None, operators: Iterable[str] | None = None
) -> Callable[[Check], None]:
    """Return a parametrised pytest function that runs the whole kit on a place.

    Parameters
    ----------
    place : Place or str
        If its device cannot be used, every test skips with the device's own reason.
    known_failures : path, optional
        Lines ``op[sample]: reason``, relative to the calling file. Such a check must fail (else the line is to
        be removed), and its reason is reported.
    operators : types, optional
        Only these operators, and no checks of the device.
    """
    try:
        import pytest
    except ImportError:
        raise MissingExtraError("fluidlite.testing.conformance needs pytest\n  Do: pip install pytest") from None
    where = Place.parse(place)
    known: Mapping[str, str] = {}
    if known_failures is not None:
        folder = Path(sys._getframe(1).f_globals.get("__file__", ".")).parent
        known = read_known_failures((folder / known_failures).read_text(encoding="utf-8"))
    unused = set(known)
    parameters: list[Any] = []
    for check in checks(operators):
        name = next((name for name in check.names() if name in known), None)
        unused.discard(name or "")
        exact = name == check.id
        marks = [pytest.mark.xfail(reason=known[name], strict=exact)] if name is not None else []
        parameters.append(pytest.param(check, id=check.id, marks=marks))
    if unused and operators is None:
        raise FluidError(f"{known_failures}: no check is called {', '.join(sorted(unused))}")

    @pytest.mark.parametrize("check", parameters)
    def test(check: Check) -> None:
        try:
            devices.unit(where)
        except DeviceUnavailable as exc:
            pytest.skip(str(exc))
        check(where)

    return test
