"""How much the compilers of kernels optimise."""

from __future__ import annotations

import os

from .errors import DeviceError

VARIABLE = "FLUIDLITE_OPT_LEVEL"
MOST_OPTIMISED = 3


def opt_level() -> int:
    """Return what ``FLUIDLITE_OPT_LEVEL`` says now: 0 (nothing is optimised) to 3, which is also what is not said.

    Raises
    ------
    DeviceError
        It says something else.
    """
    text = os.environ.get(VARIABLE) or str(MOST_OPTIMISED)
    if text not in ("0", "1", "2", "3"):
        raise DeviceError(f"{VARIABLE} is {text!r}; expected 0, 1, 2 or 3\n  Do: unset it, for the fastest kernels")
    return int(text)
