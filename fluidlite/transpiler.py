"""Fluid's transpilers; those that are not needed here do nothing but warn."""

from __future__ import annotations

import warnings
from typing import Any

from fluidlite.base.absent import getattr_of
from fluidlite.base.errors import ProgramError
from fluidlite.fold_batch_norm import InferenceTranspiler
from fluidlite.program.program import Program

__all__ = ["InferenceTranspiler", "memory_optimize", "release_memory"]


def _warn(name: str, program: Any) -> None:
    if not isinstance(program, Program):
        raise ProgramError(f"{name}: input_program is {type(program).__name__}; expected a Program")
    warnings.warn(
        f"fluid.{name} does nothing: the executor plans memory for every program it runs", UserWarning, stacklevel=3
    )


def memory_optimize(
    input_program: Program, skip_opt_set: Any = None, print_log: bool = False, level: int = 0, skip_grads: bool = False
) -> None:
    """Do nothing, and warn that memory is planned in any case."""
    _warn("memory_optimize", input_program)


def release_memory(input_program: Program, skip_opt_set: Any = None) -> None:
    """Do nothing, and warn that memory is planned in any case."""
    _warn("release_memory", input_program)


__getattr__ = getattr_of(__name__)
