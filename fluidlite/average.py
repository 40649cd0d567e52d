"""WeightedAverage: a running mean of numbers on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.base.errors import ProgramError

__all__ = ["WeightedAverage"]


class WeightedAverage:
    """The weighted mean of the added values."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Remove all values."""
        self.numerator: Any = None
        self.denominator: Any = None

    def add(self, value: Any, weight: Any) -> None:
        """Add a value.

        Parameters
        ----------
        value : float or numpy.ndarray
        weight : float or numpy.ndarray of one
            Such as the size of the batch.
        """
        if not _is_number(value) and not isinstance(value, np.ndarray):
            raise ProgramError(f"WeightedAverage.add: value is {value!r}; expected a number or a numpy.ndarray")
        if not _is_number(weight) and not (isinstance(weight, np.ndarray) and weight.size == 1):
            raise ProgramError(f"WeightedAverage.add: weight is {weight!r}; expected a number")
        if self.denominator is None:
            self.numerator, self.denominator = value * weight, weight
        else:
            self.numerator, self.denominator = self.numerator + value * weight, self.denominator + weight

    def eval(self) -> Any:
        """Return the mean.

        Raises
        ------
        ValueError
            If nothing was added, or all weights are 0.
        """
        if self.denominator is None or not np.any(self.denominator):
            raise ValueError("there is nothing to average yet; call add(value, weight)")
        return self.numerator / self.denominator


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float, np.integer, np.floating))
