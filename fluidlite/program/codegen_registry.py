"""The registry of code generators, by capability: each generates kernels from the expressions of operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fluidlite.base.errors import PlaceError
from fluidlite.platform.device_registry import Unit
from fluidlite.program.op_call import Call
from fluidlite.program.prepared import Prepared


class CodeGenerator(Protocol):
    """Generates kernels of scalar expressions for one capability."""

    def refuse(self, call: Call, unit: Any) -> str | None:
        """Return why no kernel can be generated for a call on a device (``unit``: info, array, language), or None."""
        ...

    def prepare(self, call: Call, context: Any) -> Prepared:
        """Return the kernel of a call."""
        ...

    def aliasable_slots(self, call: Call) -> Mapping[str, str]:
        """Return the output slots that may alias an input slot: each element is read before it is overwritten."""
        ...


def _never(call: Call, *_: Any) -> bool:
    return False


checks_indices: Callable[[Call], bool] = _never
"""Whether the generated kernel of a call checks indices; ``fluidlite.expr`` sets it."""


def _unable(traced: Any, values: Any) -> Any:
    raise PlaceError("no array namespace evaluates expressions; expected fluidlite.render to be imported")


evaluated: Callable[[Any, Mapping[str, Any]], Mapping[str, Any]] = _unable
"""Evaluates a trace without operands to NumPy arrays by output slot; ``fluidlite.render`` sets it."""

elementwise: Callable[[Call], bool] = _never
"""Whether the expression of a call is elementwise; ``fluidlite.render`` sets it."""

has_steps: Callable[[Call], bool] = _never
"""Whether the expression of a call runs another one step by step; ``fluidlite.expr`` sets it."""

prefers_decomposition: Callable[[Call], bool] = _never
"""Whether the expression of a call is decomposed into operators, if it can be, rather than generated as loops;
``fluidlite.render`` sets it."""

prepare_steps: Callable[[Call, Any, Any], Prepared] = _unable  # type: ignore[assignment]
"""Prepares an operator that runs another one step by step, from the choices for one step; the compiler sets it."""

generators: dict[str, CodeGenerator] = {}
"""Generators by capability, set by ``fluidlite.codegen``, in order of preference: kernel language, then array."""


def generator_names(unit: Unit) -> dict[str, str]:
    """Return the code generators of a device by name, best first, each with its capability.

    The name is that of the kernel language, or that of the array namespace's module.
    """
    capabilities: dict[str, str] = {}
    if unit.language is not None:
        capabilities[getattr(unit.language, "name", "c")] = "language"
    if unit.array is not None:
        capabilities.setdefault(getattr(unit.array.xp, "__name__", "array").rpartition(".")[2], "array")
    return capabilities


def generator_capability(unit: Unit, name: str) -> str:
    """Return the capability of a generator that a device has.

    Raises PlaceError if it has none of that name; the message lists those available, and what to install for another.
    """
    names = generator_names(unit)
    if isinstance(name, str) and name in names:
        return names[name]
    available = f"{unit.place} has {', '.join(names)}" if names else f"{unit.place} has no code generator"
    extra = getattr(unit.device, "extras", {}).get(name) if isinstance(name, str) else None
    advice = f"\n  Do: pip install {extra}" if extra else "\n  Do: leave codegen= out for the best that the place has"
    raise PlaceError(f"codegen is {name!r}; {available}{advice}")
