"""Writes api.txt: the public names of fluidlite and of its modules for authors, with signatures.

python tools/api_text.py            write the file
python tools/api_text.py --check    print what differs, and exit 1 if something does
"""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from module_reference import constructed, members, signature
from pages import line

MODULES = ("fluidlite", "fluidlite.plugin", "fluidlite.expr", "fluidlite.graph", "fluidlite.testing")
PATH = Path(__file__).resolve().parents[1] / "api.txt"


def entries(module: str) -> Iterator[str]:
    """A line for each public name of a module, and for each public member of its classes."""
    found = import_module(module)
    for name in sorted(found.__all__):
        each = getattr(found, name)
        path = f"{module}.{name}"
        if inspect.ismodule(each):
            yield f"{path}: module"
        elif inspect.isclass(each):
            bases = ", ".join(base.__name__ for base in each.__bases__ if base is not object)
            yield f"class {signature(path, each) if constructed(each) else path}" + (f": {bases}" if bases else "")
            for member, value in members(each):
                yield f"    {member}" if isinstance(value, property) else f"    {signature(member, value)}"
        elif inspect.isfunction(each):
            yield signature(path, each)
        elif isinstance(each, (bool, int, float, str)):
            yield f"{path} = {each!r}"
        else:
            yield f"{path}: {type(each).__name__}"


def text() -> str:
    return "".join(f"{line(each) if each[0] != ' ' else '    ' + line(each)}\n" for m in MODULES for each in entries(m))


def difference() -> str:
    """What differs between the file and the code, as a unified diff; empty if nothing does."""
    known = PATH.read_text(encoding="utf-8") if PATH.exists() else ""
    code = text().splitlines()
    return "\n".join(difflib.unified_diff(known.splitlines(), code, "api.txt", "the code", lineterm="", n=0))


if __name__ == "__main__":
    if "--check" in sys.argv:
        shown = difference()
        print(shown, end="\n" if shown else "")
        sys.exit(bool(shown))
    PATH.write_text(text(), encoding="utf-8")
