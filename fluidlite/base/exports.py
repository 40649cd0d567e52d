"""``__all__`` of modules that only re-export: ``from x import name as name`` is the one list of their names."""

from __future__ import annotations

import sys
from inspect import ismodule


def export(module: str, *more: str) -> None:
    """Set ``__all__`` of a module: its names without a leading underscore.

    ``module``: ``__name__`` of the module, which calls this at its end.
    ``*more``: modules that it exports (no others are exported), and names that its ``__getattr__`` resolves.
    """
    names = vars(sys.modules[module])
    own = (name for name, value in names.items() if name[0] != "_" and not ismodule(value))
    names["__all__"] = sorted({*own, *more})
