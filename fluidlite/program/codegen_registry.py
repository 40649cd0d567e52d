"""Where code generators put themselves: capability -> how a kernel is made from an operator's expression."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fluidlite.base.errors import PlaceError
from fluidlite.platform.device_registry import Unit
from fluidlite.program.op_call import Call
from fluidlite.program.prepared import Prepared


class Generator(Protocol):
    """Makes kernels of scalar expressions for one capability."""

    def refuse(self, call: Call, unit: Any) -> str | None:
        """Why no kernel can be generated for this call on a device (``unit``: info, array, language), or None."""
        ...

    def prepare(self, call: Call, context: Any) -> Prepared:
        """Return what computes a call."""
        ...

    def may_lie_on(self, call: Call) -> Mapping[str, str]:
        """For output slots the input slots on which they may lie, since what is there is read before."""
        ...


def _never(call: Call, *_: Any) -> bool:
    return False


checks_indices: Callable[[Call], bool] = _never
"""Whether a kernel that is generated for a call checks indices; ``fluidlite.expr`` puts its own here."""


def _unable(traced: Any, values: Any) -> Any:
    raise PlaceError("no array namespace evaluates expressions; expected fluidlite.render to be imported")


evaluated: Callable[[Any, Mapping[str, Any]], Mapping[str, Any]] = _unable
"""NumPy arrays by output slot of a trace that reads no operand; ``fluidlite.render`` puts its own here."""

elementwise: Callable[[Call], bool] = _never
"""Whether an expression only computes element by element; ``fluidlite.render`` puts its own here."""

has_steps: Callable[[Call], bool] = _never
"""Whether an expression runs another one step by step; ``fluidlite.expr`` puts its own here."""

parts_first: Callable[[Call], bool] = _never
"""Whether an expression is said with other operators, if it can be, rather than as loops; ``fluidlite.render`` puts its
own here.
"""

prepare_steps: Callable[[Call, Any, Any], Prepared] = _unable  # type: ignore[assignment]
"""Prepares an operator that runs another one step by step, of the choices for one; the compiler puts its own here."""

generators: dict[str, Generator] = {}
"""Filled by ``fluidlite.codegen``; asked in this order: kernel language, then array."""


def generator_names(unit: Unit) -> dict[str, str]:
    """The code generators of a device by name, best first, each with its capability.

    A kernel language says its name; an array namespace is called as its module.
    """
    found: dict[str, str] = {}
    if unit.language is not None:
        found[getattr(unit.language, "name", "c")] = "language"
    if unit.array is not None:
        found.setdefault(getattr(unit.array.xp, "__name__", "array").rpartition(".")[2], "array")
    return found


def generator_capability(unit: Unit, name: str) -> str:
    """Return the capability of a generator that a device has.

    Raises PlaceError if it has none of that name; the message lists those that it has, and what to install for another.
    """
    names = generator_names(unit)
    if isinstance(name, str) and name in names:
        return names[name]
    has = f"{unit.place} has {', '.join(names)}" if names else f"{unit.place} has no code generator"
    extra = getattr(unit.device, "extras", {}).get(name) if isinstance(name, str) else None
    do = f"\n  Do: pip install {extra}" if extra else "\n  Do: leave codegen= out for the best that the place has"
    raise PlaceError(f"codegen is {name!r}; {has}{do}")
