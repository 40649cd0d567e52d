"""Source locations: the user's line that created an operator."""

from __future__ import annotations

import contextlib
import os
import sys
from types import CodeType, FrameType
from typing import NamedTuple

from fluidlite.base.plugin_modules import plugin_modules

PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_USER_FOLDERS = (os.path.join(PACKAGE_FOLDER, "cli", ""), os.path.join(PACKAGE_FOLDER, "testing", ""))
"""Packages of fluidlite that use the library like user code."""
_CONTEXT_METHODS = ("__enter__", "__exit__")
"""They enter a context that a method returned; that method names the API instead."""


class SourceLine(NamedTuple):
    """A line of the user's program, and the API function called there (``layers.fc``, ``layers.IfElse``)."""

    file: str
    number: int
    api: str

    def __str__(self) -> str:
        location = f"{os.path.basename(self.file)}:{self.number}"
        return f"{location}, {self.api}" if self.api else location


NOWHERE = SourceLine("?", 0, "")


def in_package(file: str) -> bool:
    """Whether a file belongs to the library, not to a user."""
    return file.startswith(PACKAGE_FOLDER) and not file.startswith(_USER_FOLDERS)


def source_location() -> SourceLine:
    """Return the line of the innermost stack frame outside of the package and of plugins' modules."""
    frame: FrameType | None = sys._getframe(1)
    api_frame: FrameType | None = None
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        # contextlib runs the library's context managers, and is no user code
        if file != contextlib.__file__:
            if not in_package(file) and plugin_modules.owner(frame.f_globals.get("__name__") or "__main__") is None:
                return SourceLine(file, frame.f_lineno, _api(api_frame) if api_frame is not None else "")
            name = code.co_name
            if not name.startswith(("_", "<")) or (_is_method(code) and name not in _CONTEXT_METHODS):
                api_frame = frame
        frame = frame.f_back
    return NOWHERE


def _is_method(code: CodeType) -> bool:
    return code.co_varnames[:1] == ("self",)


def _api(frame: FrameType) -> str:
    """Return the API name of the function of a frame; of constructors and private methods, the name of the class."""
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
