"""C text of sums whose rounding errors grow with the logarithm of how many numbers are added, not with the number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

LEVELS = 16
"""Sums of up to STEPS 2 ** LEVELS numbers are added by pairs; those of more, one after the other."""


@dataclass(frozen=True)
class Pairwise:
    """Writes sums by pairs (Higham, The accuracy of floating point summation, 1993), in lanes side by side.

    A kernel adds numbers to ``acc[0]``, ``acc[1]``, ..., and says after each ``STEPS`` of them that they are to be
    kept; sums of as many numbers are added to each other, as a binary counter carries.

    Attributes
    ----------
    kind : str
        The type of the sums, in the kernel language's keywords.
    lanes : int
        How many sums there are: a constant.
    """

    kind: str
    lanes: int
    STEPS: ClassVar[int] = 32
    """Numbers that are added one after the other."""

    def _each(self, statement: str) -> str:
        return f"for (int v = 0; v < {self.lanes}; ++v) {statement}"

    @property
    def declare(self) -> str:
        """Declare ``acc``, all zero, and what else is needed: ``sums``, ``kept`` and ``added``."""
        return (
            f"{self.kind} acc[{self.lanes}], sums[{LEVELS * self.lanes}]; int kept_sums = 0, added = 0; "
            f"{self._each('acc[v] = 0;')}"
        )

    def after(self, count: str) -> str:
        """Statement after ``count`` more numbers were added to a lane, at most: keep the sums if it is time."""
        held = f"sums[level * {self.lanes} + v]"
        return (
            f"added += {count}; if (added >= {self.STEPS}) {{ int level = 0; "
            f"for (int left = kept_sums; (left & 1) && level < {LEVELS - 1}; left >>= 1) {{ "
            f"{self._each(f'acc[v] += {held};')} ++level; }} "
            f"if (kept_sums == {2**LEVELS - 1}) {self._each(f'acc[v] += {held};')} "
            f"{self._each(f'{{ {held} = acc[v]; acc[v] = 0; }}')} "
            f"kept_sums = kept_sums == {2**LEVELS - 1} ? {2 ** (LEVELS - 1)} : kept_sums + 1; "
            "added = 0; }"
        )

    @property
    def finish(self) -> str:
        """Statement that leaves the whole sums in ``acc``."""
        return (
            f"if (kept_sums) for (int level = 0; level < {LEVELS}; ++level) if (kept_sums >> level & 1) "
            f"{self._each(f'acc[v] += sums[level * {self.lanes} + v];')}"
        )
