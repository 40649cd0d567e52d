"""RecomputeOptimizer: a wrapper of another optimiser that ignores checkpoints."""

from __future__ import annotations

import warnings
from typing import Any

from fluidlite.base.errors import ProgramError
from fluidlite.optimizer.base import Optimizer

__all__ = ["RecomputeOptimizer"]


class RecomputeOptimizer:
    """Delegates to another optimiser. In Fluid it recomputes parts of the program to save memory, with equal results.

    Parameters
    ----------
    optimizer : Optimizer
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ProgramError(
                f"optimizer.RecomputeOptimizer: argument 'optimizer' is {optimizer!r}; "
                "expected one of fluid.optimizer's, such as SGD(0.1)"
            )
        self._optimizer = optimizer

    def _set_checkpoints(self, checkpoints: Any) -> None:
        warnings.warn(
            "RecomputeOptimizer recomputes nothing: the executor plans memory for every program it runs",
            UserWarning,
            stacklevel=2,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)
