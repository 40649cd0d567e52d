"""Tensor, program, registry, planner, interpreter, scope, backward; Fluid's names of ``fluid.framework``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fluidlite.framework.flags import get_flags, set_flags
    from fluidlite.framework.installation import (
        cpu_places,
        cuda_pinned_places,
        cuda_places,
        in_dygraph_mode,
        require_version,
    )
    from fluidlite.framework.operator import Operator
    from fluidlite.framework.operator import grad_name as grad_var_name
    from fluidlite.framework.program import (
        Block,
        Program,
        default_main_program,
        default_startup_program,
        device_guard,
        name_scope,
        program_guard,
    )
    from fluidlite.framework.variable import Parameter, Variable
    from fluidlite.framework.vartype import dtype_of as convert_np_dtype_to_dtype_

__all__ = [
    "Block", "Operator", "Parameter", "Program", "Variable", "convert_np_dtype_to_dtype_", "cpu_places",
    "cuda_pinned_places", "cuda_places", "default_main_program", "default_startup_program", "device_guard",
    "get_flags", "grad_var_name", "in_dygraph_mode", "name_scope", "program_guard", "require_version", "set_flags",
]  # fmt: skip

_OWN_NAMES = {"convert_np_dtype_to_dtype_": "dtype_of", "grad_var_name": "grad_name"}
_HOMES = {
    "flags": ("get_flags", "set_flags"),
    "installation": ("cpu_places", "cuda_pinned_places", "cuda_places", "in_dygraph_mode", "require_version"),
    "operator": ("Operator", "grad_var_name"),
    "program": (
        "Block", "Program", "default_main_program", "default_startup_program", "device_guard", "name_scope",
        "program_guard",
    ),
    "variable": ("Parameter", "Variable"),
    "vartype": ("convert_np_dtype_to_dtype_",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for: the rooms of this package import each other through it."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOME_OF[name]}")
    return globals().setdefault(name, getattr(home, _OWN_NAMES.get(name, name)))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
