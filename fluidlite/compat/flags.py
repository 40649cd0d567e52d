"""Fluid's flags: ``set_flags({"FLAGS_check_nan_inf": True})``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fluidlite.base.arguments import listed, mapped
from fluidlite.base.errors import ProgramError
from fluidlite.compiler.instrumentation import check_finite, everywhere

_flags: dict[str, Any] = {"FLAGS_check_nan_inf": False}


def set_flags(flags: Mapping[str, Any]) -> None:
    """Set flags by Fluid's names.

    Raises
    ------
    ProgramError
        For an unknown flag.
    """
    for name, value in mapped("flags", flags, "a dict such as {'FLAGS_check_nan_inf': True}").items():
        if name not in _flags:
            raise ProgramError(f"there is no flag {name!r}; there are {', '.join(_flags)}")
        _flags[name] = value
    everywhere(check_finite, bool(_flags["FLAGS_check_nan_inf"]))


def get_flags(names: str | Sequence[str]) -> dict[str, Any]:
    """Values of flags."""
    wanted = [names] if isinstance(names, str) else listed("flags", names, "names of flags")
    for name in wanted:
        if name not in _flags:
            raise ProgramError(f"there is no flag {name!r}; there are {', '.join(_flags)}")
    return {name: _flags[name] for name in wanted}
