"""What a loop goes through, and one number that it computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fluidlite.expr.number import Condition, Number, number
from fluidlite.render.loops.indices import axis_leaf


@dataclass(frozen=True, eq=False)
class Axis:
    """An axis of a loop.

    It counts from 0 to ``size``, but only from ``begin`` on and to ``end``, which are computed of axes around it, and
    lie within 0 and the size.
    """

    name: str
    size: Number
    begin: Number | None = None
    end: Number | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Equal keys are equal axes."""
        begin, end = self.bounds
        return self.name, begin.key, end.key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Axis) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def leaf(self) -> Number:
        """Its number."""
        return axis_leaf(self.name)

    @property
    def bounds(self) -> tuple[Number, Number]:
        """Where it begins, and where it ends."""
        return number(0) if self.begin is None else self.begin, self.size if self.end is None else self.end


@dataclass(frozen=True, eq=False)
class Element:
    """One number that a loop computes.

    ``op``: ``load`` (params: source, place among its elements, conditions under which that is there), ``number``
    (params: a Number of the call), ``index`` (params: a Number of axes), ``random`` (params: kind, sub-stream, place
    among all elements), ``map`` (params: a scalar primitive), ``cast``, ``select`` (params: conditions; the first
    operand where all hold, else the second), ``checked`` (params: size, conditions), ``reduce`` or ``arg`` (params:
    kind, axes) or ``running`` (params: kind, the axis in whose order, whether without the element itself).
    ``dtype``: float16 and bfloat16 only of what is moved.
    """

    op: str
    args: tuple[Element, ...]
    params: tuple[Any, ...]
    dtype: str


def numbers_in(x: Element) -> Iterator[Number]:
    """The numbers that an element is computed of by itself."""
    for each in x.params:
        if isinstance(each, Number):
            yield each
        elif isinstance(each, tuple):
            for one in each:
                if isinstance(one, Condition):
                    yield from (one.a, one.b)
                elif isinstance(one, Axis):
                    yield from one.bounds
