"""Axes of loops, and the elements that loops compute."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fluidlite.expr.number import Condition, Number, number
from fluidlite.render.loops.indices import axis_leaf, computed_indices


@dataclass(frozen=True, eq=False)
class Axis:
    """An axis of a loop.

    It runs from ``begin`` (default 0) to ``end`` (default ``size``, excluded). These may depend on enclosing axes, and
    are in [0, size].
    """

    name: str
    size: Number
    begin: Number | None = None
    end: Number | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Axes with equal keys are equal."""
        begin, end = self.bounds
        return self.name, begin.key, end.key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Axis) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def leaf(self) -> Number:
        """The index along the axis."""
        return axis_leaf(self.name)

    @property
    def bounds(self) -> tuple[Number, Number]:
        """The first index, and the end, which is excluded."""
        return number(0) if self.begin is None else self.begin, self.size if self.end is None else self.end


@dataclass(frozen=True, eq=False)
class Element:
    """A scalar expression that a loop computes.

    ``op``: ``load`` (params: source, offset, conditions that predicate it), ``number`` (params: a Number of the call),
    ``index`` (params: a Number of axes), ``random`` (params: kind, sub-stream, linear index), ``map`` (params: a scalar
    primitive), ``cast``, ``select`` (params: conditions; the first operand where all hold, else the second),
    ``checked`` (params: size, conditions), ``reduce`` or ``arg`` (params: kind, axes) or ``running``, a scan (params:
    kind, axis, whether it is exclusive).
    ``dtype``: float16 and bfloat16 only of values that are moved, not computed.
    """

    op: str
    args: tuple[Element, ...]
    params: tuple[Any, ...]
    dtype: str

    @cached_property
    def numbers(self) -> tuple[Number, ...]:
        """The numbers in the params."""
        numbers: list[Number] = []
        for each in self.params:
            if isinstance(each, Number):
                numbers.append(each)
            elif isinstance(each, tuple):
                for one in each:
                    if isinstance(one, Condition):
                        numbers += (one.a, one.b)
                    elif isinstance(one, Axis):
                        numbers += one.bounds
        return tuple(numbers)

    @cached_property
    def indices(self) -> tuple[str, ...]:
        """The names of the computed indices that the numbers depend on."""
        return computed_indices(self.numbers)
