"""The user's line: where in their program an operator was made."""

from __future__ import annotations

import contextlib
import os
import sys
from types import CodeType, FrameType
from typing import NamedTuple

from fluidlite.base.plugin_modules import plugin_modules

PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_USER_FOLDERS = (os.path.join(PACKAGE_FOLDER, "cli", ""), os.path.join(PACKAGE_FOLDER, "testing", ""))
"""Packages of ours that use the library as anybody would."""
_CONTEXT_METHODS = ("__enter__", "__exit__")
"""They run a context that a method returned; what they call says whose it is."""


class Line(NamedTuple):
    """A place in the user's program, and what of ours was called there (``layers.fc``, ``layers.IfElse``)."""

    file: str
    number: int
    api: str

    def __str__(self) -> str:
        where = f"{os.path.basename(self.file)}:{self.number}"
        return f"{where}, {self.api}" if self.api else where


NOWHERE = Line("?", 0, "")


def in_package(file: str) -> bool:
    """Whether code in a file is the library's own, not a user's."""
    return file.startswith(PACKAGE_FOLDER) and not file.startswith(_USER_FOLDERS)


def source_location() -> Line:
    """Walk up the stack to the first frame outside the package and outside the modules of plugins."""
    frame: FrameType | None = sys._getframe(1)
    called: FrameType | None = None
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        # contextlib runs the library's context managers, and no user's line lies in it
        if file != contextlib.__file__:
            if not in_package(file) and plugin_modules.owner(frame.f_globals.get("__name__") or "__main__") is None:
                return Line(file, frame.f_lineno, _api(called) if called is not None else "")
            name = code.co_name
            if not name.startswith(("_", "<")) or (_is_method(code) and name not in _CONTEXT_METHODS):
                called = frame
        frame = frame.f_back
    return NOWHERE


def _is_method(code: CodeType) -> bool:
    return code.co_varnames[:1] == ("self",)


def _api(frame: FrameType) -> str:
    """What a user calls the function that runs in a frame; constructors and private methods by their class alone."""
    code = frame.f_code
    name, module = code.co_name, frame.f_globals.get("__name__", "")
    if _is_method(code):
        for owner in type(frame.f_locals.get("self")).__mro__:
            if owner.__module__.startswith("fluidlite.") and not owner.__qualname__.startswith("_"):
                module, outer = owner.__module__, owner.__qualname__.partition(".")[0]
                by_class = name in ("__init__", "__call__") or (name.startswith("_") and not name.startswith("__"))
                name = outer if by_class else f"{outer}.{name}"
                break
    package = module.removeprefix("fluidlite.").split(".")[0]
    return f"{package}.{name}" if package != "fluidlite" else name
