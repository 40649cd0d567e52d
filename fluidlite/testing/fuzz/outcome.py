"""What a check found, and how results are held against what is expected."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from fluidlite.testing.fuzz.recipe import Recipe
from fluidlite.testing.fuzz.tolerance import Array, Bounded, distance, wide


@dataclass(frozen=True)
class Finding:
    """Something that is wrong.

    ``kind``: ``value``, ``modes``, ``gradient``, ``difference``, ``metadata``, ``error``, ``foreign``, ``threads``,
    ``feed``.
    ``what``: one line.
    ``name``: the variable; "" for an error.
    """

    kind: str
    what: str
    name: str
    recipe: Recipe

    @property
    def key(self) -> str:
        """What must stay while the recipe is cut down: of an error its class, and whether it was run at all."""
        parts = {"error": 2, "foreign": 1}.get(self.kind, 0)
        return ":".join([self.kind, *self.what.split(":")[:parts]])


@dataclass
class Outcome:
    """What a check found, and what it could not say.

    ``discarded``: what was not compared, by reason.
    ``compared``, ``differences``: values and gradients that were; gradients that were held against central differences.
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
