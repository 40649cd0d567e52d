"""Numbers that an operator takes as an attribute or as tensors: dims of ``reshape2``, bounds of ``slice``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluidlite.program.op_call import slot_of_attribute
from fluidlite.tensor.tensor_spec import MAX_VALUES

if TYPE_CHECKING:
    from fluidlite.program.op_call import Call

OptionalInt = int | None
"""None: unknown before the run."""


def numbers_of(call: Call, attr: str) -> tuple[OptionalInt, ...] | None:
    """Return the numbers of an attribute, or of the tensors that replace it.

    None stands for an unknown number, and for all of them if even their count is unknown.
    """
    name = slot_of_attribute(call, attr)
    if name is None:
        value = call.attr(attr)
        return tuple(value) if isinstance(value, tuple) else (value,)
    specs = call.specs(name)
    declared = call.op.input(name)
    if declared is not None and declared.duplicable:
        for spec in specs:
            call.need(spec.size in (1, -1), name, "tensors of one number")
        return tuple(None if spec.value is None else int(spec.value[0]) for spec in specs)
    spec = specs[0]
    call.need(spec.rank <= 1, name, "one row of numbers, [n]")
    if spec.value is not None:
        return tuple(int(number) for number in spec.value)
    call.need(spec.size <= MAX_VALUES, name, f"at most {MAX_VALUES} numbers")
    return None if spec.size < 0 else (None,) * spec.size


def number_of(call: Call, attr: str) -> OptionalInt:
    """Return the number of an attribute, or of the tensor that replaces it; None if it is unknown."""
    numbers = numbers_of(call, attr)
    if numbers is None:
        return None
    if len(numbers) != 1:
        call.fail_attr(attr, "one number")
    return numbers[0]
