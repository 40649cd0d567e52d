"""The optimisation level of the kernel compilers."""

from __future__ import annotations

import os

from .errors import DeviceError

VARIABLE = "FLUIDLITE_OPT_LEVEL"
MAX_OPT_LEVEL = 3


def opt_level() -> int:
    """Return the value of ``FLUIDLITE_OPT_LEVEL``: 0 (no optimisation) to 3, the default when it is not set.

    Raises
    ------
    DeviceError
        The variable has another value.
    """
    text = os.environ.get(VARIABLE) or str(MAX_OPT_LEVEL)
    if text not in ("0", "1", "2", "3"):
        raise DeviceError(f"{VARIABLE} is {text!r}; expected 0, 1, 2 or 3\n  Do: unset it, for the fastest kernels")
    return int(text)
