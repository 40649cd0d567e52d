"""How often a loop runs, where its condition compares counters: the host then needs to read no condition.

A counter is an integer of one element to which each iteration adds the same constant (0 for one that no iteration
writes). Where the block's condition compares two of them, their values before the loop say the number of iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from fluidlite.base.dtypes import INTS
from fluidlite.program.block import Block
from fluidlite.program.operator import Operator
from fluidlite.tensor.tensor_spec import Spec

EXACT = 1 << 24
"""Magnitude up to which every dtype that an operator may compute in counts exactly; beyond, the condition is read."""

_SIGNS = {"less_than": (1, True), "less_equal": (1, False), "greater_than": (-1, True), "greater_equal": (-1, False)}
"""Comparisons as X - Y < 0 or <= 0, by the sign of the difference and whether they are strict."""


class Sum(NamedTuple):
    """An outer variable's value at the start of an iteration, plus a constant; None: the constant alone."""

    name: str | None
    constant: int


class TripCount(NamedTuple):
    """A condition that is (X - Y) * sign below 0.

    ``x``, ``y``: in the first iteration.
    ``change``: what each iteration adds to X - Y.
    """

    x: Sum
    y: Sum
    change: int
    sign: int
    strict: bool

    @property
    def names(self) -> list[str]:
        """The outer variables whose values are asked for."""
        return [each.name for each in (self.x, self.y) if each.name is not None]

    def of(self, values: Mapping[str, int]) -> int | None:
        """The number of iterations where there is a first one; None: it has no end, or cannot be counted exactly."""
        x, y = (values[each.name] + each.constant if each.name is not None else each.constant for each in self[:2])
        difference, change = (x - y) * self.sign, self.change * self.sign
        limit = 0 if self.strict else 1  # it goes on while the difference is below
        if max(abs(x), abs(y), abs(difference)) > EXACT:
            return None
        if difference >= limit:
            return 1
        if change <= 0:
            return None
        return 1 + -((difference - limit) // change)


def find_trip_count(block: Block, condition: str) -> TripCount | None:
    """How the condition of a block's loop depends on counters; None: the host has to read it."""
    if not _one_number(block, condition, ("bool",)):
        return None
    now: dict[str, Sum | None] = {}
    found: tuple[str, Sum, Sum] | None = None

    def value(name: str) -> Sum | None:
        if name in now:
            return now[name]
        return Sum(name, 0) if name not in block.vars and _one_number(block, name, INTS) else None

    copies: dict[str, tuple[str, Sum, Sum] | None] = {}  # comparisons by the variable that holds them
    for op in block.ops:
        made, compared = _counter(op, value), None
        if op.type in _SIGNS:
            x, y = (value(op.input(slot)[0]) for slot in ("X", "Y"))
            compared = (op.type, x, y) if x is not None and y is not None else None
        elif op.type == "assign":
            compared = copies.get(op.input("X")[0])
        for name in op.output_arg_names:
            now[name], copies[name] = made, compared
    found = copies.get(condition)
    if found is None:
        return None
    changes = [_change(each, now) for each in found[1:]]
    if changes[0] is None or changes[1] is None:
        return None
    sign, strict = _SIGNS[found[0]]
    return TripCount(found[1], found[2], changes[0] - changes[1], sign, strict)


def _change(value: Sum, now: Mapping[str, Sum | None]) -> int | None:
    """What an iteration adds to a sum."""
    if value.name is None or value.name not in now:
        return 0
    after = now[value.name]
    return after.constant if after is not None and after.name == value.name else None


def _counter(op: Operator, value: Callable[[str], Sum | None]) -> Sum | None:
    """What an operator makes, if it is a counter."""
    if op.type == "fill_constant":
        number = float(op.attrs["str_value"] or op.attrs["value"])
        shape = tuple(op.attrs["shape"])
        whole = number.is_integer() and abs(number) <= EXACT and op.attrs["dtype"] in INTS
        return Sum(None, int(number)) if whole and shape in ((1,), ()) and not op.inputs else None
    if op.type not in ("assign", "increment", "scale") or len(op.input_arg_names) != 1:
        return None
    given = value(op.input("X")[0])
    if given is None or op.type == "assign":
        return given
    step = op.attrs["step"] if op.type == "increment" else op.attrs["bias"]
    if (op.type == "scale" and op.attrs["scale"] != 1.0) or not float(step).is_integer() or abs(step) > EXACT:
        return None
    return Sum(given.name, given.constant + int(step))


def _one_number(block: Block, name: str, dtypes: tuple[str, ...]) -> bool:
    variable = block.find_var(name)
    spec: Spec | None = variable.spec if variable is not None else None
    return spec is not None and spec.dtype in dtypes and spec.size == 1
