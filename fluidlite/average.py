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
        term, share = _float64(value), _float64(weight)
        if term is None:
            raise ProgramError(f"WeightedAverage.add: value is {value!r}; expected a number or a numpy.ndarray of such")
        if share is None or np.size(share) != 1:
            raise ProgramError(f"WeightedAverage.add: weight is {weight!r}; expected a number")
        share = float(np.ravel(share)[0])
        term = term * share
        if self.denominator is None:
            self.numerator, self.denominator = term, share
        else:
            self.numerator, self.denominator = self.numerator + term, self.denominator + share

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


def _float64(value: Any) -> Any:
    """A number or an array in float64, in which sums of narrow dtypes do not overflow; None if it is neither."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating, np.ndarray)):
        return None
    try:
        # Texts, complex numbers and objects are of another kind.
        return value.astype(np.float64, casting="same_kind") if isinstance(value, np.ndarray) else float(value)
    except (TypeError, OverflowError):
        return None
