"""Where code generators put themselves: capability -> how a kernel is made from an operator's expression."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fluidlite.base.errors import PlaceError
from fluidlite.framework.call import Call
from fluidlite.framework.kernels import Run
from fluidlite.platform.devices import Unit


class Generator(Protocol):
    """Makes kernels of scalar expressions for one capability."""

    def refuse(self, call: Call, unit: Any) -> str | None:
        """Why no kernel can be generated for this call on a device (``unit``: info, array, dialect), or None."""
        ...

    def prepare(self, call: Call, context: Any) -> Run:
        """Return ``run(context, io)``."""
        ...


def _never(call: Call, *_: Any) -> bool:
    return False


checks_indices: Callable[[Call], bool] = _never
"""Whether a kernel that is generated for a call checks indices; ``fluidlite.expr`` puts its own here."""


def _unable(traced: Any, values: Any) -> Any:
    raise PlaceError("no array namespace evaluates expressions; expected fluidlite.render to be imported")


evaluated: Callable[[Any, Mapping[str, Any]], Mapping[str, Any]] = _unable
"""NumPy arrays by output slot of a trace that reads no operand; ``fluidlite.render`` puts its own here."""

in_blocks: Callable[[Call, Unit], bool] = _never
"""Whether array calls of an expression make no new arrays that are large; ``fluidlite.render`` puts its own here."""

generators: dict[str, Generator] = {}
"""Filled by ``fluidlite.codegen``; asked in this order: dialect, then array."""


def generator_names(unit: Unit) -> dict[str, str]:
    """The code generators of a device by name, best first, each with its capability.

    A dialect says its name; an array namespace is called as its module.
    """
    found: dict[str, str] = {}
    if unit.dialect is not None:
        found[getattr(unit.dialect, "name", "c")] = "dialect"
    if unit.array is not None:
        found.setdefault(getattr(unit.array.xp, "__name__", "array").rpartition(".")[2], "array")
    return found


def generator_capability(unit: Unit, name: str) -> str:
    """Return the capability of a generator that a device has.

    Raises
    ------
    PlaceError
        If it has none of that name; the message lists those that it has, and what to install for another.
    """
    names = generator_names(unit)
    if isinstance(name, str) and name in names:
        return names[name]
    has = f"{unit.place} has {', '.join(names)}" if names else f"{unit.place} has no code generator"
    extra = getattr(unit.device, "extras", {}).get(name) if isinstance(name, str) else None
    do = f"\n  Do: pip install {extra}" if extra else "\n  Do: leave codegen= out for the best that the place has"
    raise PlaceError(f"codegen is {name!r}; {has}{do}")
