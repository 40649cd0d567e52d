"""The conformance checks as a pytest function."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fluidlite.base.errors import DeviceUnavailable, FluidError, MissingExtraError
from fluidlite.conformance.checks import Check, checks, read_known_failures
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place, PlaceLike


def conformance(
    place: PlaceLike, known_failures: str | Path | None = None, operators: Iterable[str] | None = None
) -> Callable[[Check], None]:
    """Return a parametrised pytest function that runs all checks on a place.

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
    reasons: Mapping[str, str] = {}
    if known_failures is not None:
        folder = Path(sys._getframe(1).f_globals.get("__file__", ".")).parent
        reasons = read_known_failures((folder / known_failures).read_text(encoding="utf-8"))
    unused = set(reasons)
    parameters: list[Any] = []
    for check in checks(operators):
        name = next((name for name in check.names() if name in reasons), None)
        unused.discard(name or "")
        exact = name == check.id
        marks = [pytest.mark.xfail(reason=reasons[name], strict=exact)] if name is not None else []
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
