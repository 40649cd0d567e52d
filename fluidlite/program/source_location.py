"""The user's line: where in their program an operator was made."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from fluidlite.base.plugin_modules import plugin_modules

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_USERS = (os.path.join(_PACKAGE, "cli", ""), os.path.join(_PACKAGE, "testing", ""))
"""Rooms of ours that use the library as anybody would."""


class Line(NamedTuple):
    """A place in the user's program, and the function of ours that was called there (``layers.fc``)."""

    file: str
    number: int
    api: str

    def __str__(self) -> str:
        where = f"{os.path.basename(self.file)}:{self.number}"
        return f"{where}, {self.api}" if self.api else where


NOWHERE = Line("?", 0, "")


def source_location() -> Line:
    """Walk up the stack to the first frame outside the package and outside the modules of plugins."""
    frame = sys._getframe(1)
    api = ""
    while frame is not None:
        file = frame.f_code.co_filename
        ours = file.startswith(_PACKAGE) and not file.startswith(_USERS)
        if not ours and plugin_modules.owner(frame.f_globals.get("__name__") or "__main__") is None:
            return Line(file, frame.f_lineno, api)
        name = frame.f_code.co_name
        if not name.startswith(("_", "<")):
            module = frame.f_globals.get("__name__", "")
            room = module.removeprefix("fluidlite.").split(".")[0]
            api = f"{room}.{name}" if room != "fluidlite" else name
        back = frame.f_back
        if back is None:
            break
        frame = back
    return NOWHERE
