"""Trip counts of loops whose condition compares counters: the host then reads no condition.

A counter is an integer of one element to which each iteration adds the same constant (0 if no iteration writes it). If
the block's condition compares two of them, their values before the loop determine the number of iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from fluidlite.base.dtypes import INTS
from fluidlite.program.block import Block
from fluidlite.program.operator import Operator
from fluidlite.tensor.tensor_spec import Spec

MAX_EXACT_COUNT = 1 << 24
"""Maximum magnitude of counters: float32 has all integers up to it. Beyond, the condition is read."""

_ORDERS = {"less_than": (1, True), "less_equal": (1, False), "greater_than": (-1, True), "greater_equal": (-1, False)}
"""Comparisons as X - Y < 0 or <= 0, by the sign of the difference and whether they are strict."""


class CounterValue(NamedTuple):
    """An outer variable's value at the start of an iteration, plus a constant; None: the constant only."""

    name: str | None
    constant: int


class TripCount(NamedTuple):
    """A condition (X - Y) * sign < 0, or <= 0 if not ``strict``.

    ``x``, ``y``: their values in the first iteration.
    ``change``: the constant that each iteration adds to X - Y.
    """

    x: CounterValue
    y: CounterValue
    change: int
    sign: int
    strict: bool

    @property
    def names(self) -> list[str]:
        """The outer variables whose values :meth:`of` needs."""
        return [each.name for each in (self.x, self.y) if each.name is not None]

    def of(self, values: Mapping[str, int]) -> int | None:
        """The number of iterations if there is a first one; None if it is infinite, or cannot be counted exactly."""
        x, y = (values[each.name] + each.constant if each.name is not None else each.constant for each in self[:2])
        difference, change = (x - y) * self.sign, self.change * self.sign
        limit = 0 if self.strict else 1  # the loop continues while the difference is below
        if max(abs(x), abs(y), abs(difference)) > MAX_EXACT_COUNT:
            return None
        if difference >= limit:
            return 1
        if change <= 0:
            return None
        return 1 + -((difference - limit) // change)


def find_trip_count(block: Block, condition: str) -> TripCount | None:
    """The trip count of a block's loop as a function of counters; None: the host must read the condition."""
    if not _is_single_number(block, condition, ("bool",)):
        return None
    current: dict[str, CounterValue | None] = {}
    comparison: tuple[str, CounterValue, CounterValue] | None = None

    def value(name: str) -> CounterValue | None:
        if name in current:
            return current[name]
        return CounterValue(name, 0) if name not in block.vars and _is_single_number(block, name, INTS) else None

    comparisons: dict[str, tuple[str, CounterValue, CounterValue] | None] = {}  # by the variable of the result
    for op in block.ops:
        counter, op_comparison = _counter_value(op, value), None
        if op.type in _ORDERS:
            x, y = (value(op.input(slot)[0]) for slot in ("X", "Y"))
            op_comparison = (op.type, x, y) if x is not None and y is not None else None
        elif op.type == "assign":
            op_comparison = comparisons.get(op.input("X")[0])
        for name in op.output_arg_names:
            current[name], comparisons[name] = counter, op_comparison
    comparison = comparisons.get(condition)
    if comparison is None:
        return None
    changes = [_change(each, current) for each in comparison[1:]]
    if changes[0] is None or changes[1] is None:
        return None
    sign, strict = _ORDERS[comparison[0]]
    return TripCount(comparison[1], comparison[2], changes[0] - changes[1], sign, strict)


def _change(value: CounterValue, current: Mapping[str, CounterValue | None]) -> int | None:
    """The constant that an iteration adds to a counter; None if it is no constant."""
    if value.name is None or value.name not in current:
        return 0
    after = current[value.name]
    return after.constant if after is not None and after.name == value.name else None


def _counter_value(op: Operator, value: Callable[[str], CounterValue | None]) -> CounterValue | None:
    """The counter that an operator computes, or None."""
    if op.type == "fill_constant":
        number = float(op.attrs["str_value"] or op.attrs["value"])
        shape = tuple(op.attrs["shape"])
        is_count = number.is_integer() and abs(number) <= MAX_EXACT_COUNT and op.attrs["dtype"] in INTS
        return CounterValue(None, int(number)) if is_count and shape in ((1,), ()) and not op.inputs else None
    if op.type not in ("assign", "increment", "scale") or len(op.input_arg_names) != 1:
        return None
    counter = value(op.input("X")[0])
    if counter is None or op.type == "assign":
        return counter
    step = op.attrs["step"] if op.type == "increment" else op.attrs["bias"]
    if (op.type == "scale" and op.attrs["scale"] != 1.0) or not float(step).is_integer() or abs(step) > MAX_EXACT_COUNT:
        return None
    return CounterValue(counter.name, counter.constant + int(step))


def _is_single_number(block: Block, name: str, dtypes: tuple[str, ...]) -> bool:
    variable = block.find_var(name)
    spec: Spec | None = variable.spec if variable is not None else None
    return spec is not None and spec.dtype in dtypes and spec.size == 1
