"""What old scripts do with what an executor returns: ``float(loss)`` of an array of one element."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fluidlite.executor.executor import Executor


class OldArray(np.ndarray[Any, Any]):
    """An array that ``float``, ``int`` and ``"%f"`` take if it has one element, of whatever rank.

    NumPy took it until its release 2.4, and scripts of Fluid rely on it: their losses have the dims [1].
    """

    def __float__(self) -> float:
        return float(self._number())

    def __int__(self) -> int:
        return int(self._number())

    def _number(self) -> Any:
        if self.size != 1:
            raise TypeError(f"an array of {self.size} elements is no number; expected one of one element")
        return self.item()


@contextmanager
def old_arrays() -> Iterator[None]:
    """Let executors return :class:`OldArray` inside the block."""
    plain = Executor.run

    @functools.wraps(plain)
    def run(*args: Any, **kwargs: Any) -> list[Any]:
        return [each.view(OldArray) if type(each) is np.ndarray else each for each in plain(*args, **kwargs)]

    setattr(Executor, "run", run)  # noqa: B010
    try:
        yield
    finally:
        setattr(Executor, "run", plain)  # noqa: B010
