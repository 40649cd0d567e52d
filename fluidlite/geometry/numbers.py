"""Numbers that an operator takes as tensors or as an attribute: ``reshape2``'s dims, ``slice``'s bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluidlite.program.op_call import standing_for
from fluidlite.tensor.tensor_spec import MAX_VALUES

if TYPE_CHECKING:
    from fluidlite.program.op_call import Call

Number = int | None
"""None: not known before the run."""


def numbers_of(call: Call, attr: str) -> tuple[Number, ...] | None:
    """Return the numbers that an attribute says, or tensors in its place.

    None stands for a number that is not known yet, and for all of them if even their count is not.
    """
    name = standing_for(call, attr)
    if name is None:
        found = call.attr(attr)
        return tuple(found) if isinstance(found, tuple) else (found,)
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


def number_of(call: Call, attr: str) -> Number:
    """Return the one number that an attribute says, or a tensor in its place; None if it is not known yet."""
    found = numbers_of(call, attr)
    if found is None:
        return None
    if len(found) != 1:
        call.fail_attr(attr, "one number")
    return found[0]
