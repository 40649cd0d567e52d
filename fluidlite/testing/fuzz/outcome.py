"""Findings of a check, and the comparison of results with expected values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from fluidlite.testing.fuzz.recipe import Recipe
from fluidlite.testing.fuzz.tolerance import Array, Bounded, distance, wide


@dataclass(frozen=True)
class Finding:
    """A detected error.

    ``kind``: ``value``, ``modes``, ``gradient``, ``difference``, ``metadata``, ``error``, ``foreign``, ``threads``,
    ``feed``.
    ``what``: a description of one line.
    ``name``: the variable; "" for an error.
    """

    kind: str
    what: str
    name: str
    recipe: Recipe

    @property
    def key(self) -> str:
        """The part that shrinking must preserve: the kind, and for an error its class and whether it was built."""
        parts = {"error": 2, "foreign": 1}.get(self.kind, 0)
        return ":".join([self.kind, *self.what.split(":")[:parts]])


@dataclass
class Outcome:
    """The findings of a check, and the comparisons that were not possible.

    ``discarded``: number of skipped comparisons, by reason.
    ``compared``, ``differences``: number of compared values and gradients, and of gradients compared with differences.
    """

    findings: list[Finding] = field(default_factory=list)
    discarded: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    differences: int = 0


def differs(actual: Array, expected: Bounded) -> str:
    """How ``actual`` is beyond the bounds; "" if it is within them. NaN equals NaN."""
    value, bound = expected
    if not value.size:
        return ""
    if value.dtype.kind in "biu":
        wrong = actual != value
        far = wrong.astype(float)
    else:
        far = distance(wide(actual), wide(value))
        wrong = far > bound
    if not wrong.any():
        return ""
    with np.errstate(all="ignore"):
        at = np.unravel_index(int(np.argmax(np.where(wrong, far, -1.0))), value.shape)
    limit = float(np.broadcast_to(bound, value.shape)[at])
    return (
        f"{int(wrong.sum())} of {wrong.size} elements; at {[int(i) for i in at]} it is {actual[at]!r}, "
        f"expected {value[at]!r} within {limit:.3g}"
    )
