"""Checks of sequences in two forms: a LoD tensor, or padded sequences with their lengths."""

from __future__ import annotations

from fluidlite.base.dtypes import INTS
from fluidlite.operators.inference import dims_compatible
from fluidlite.operators.sequence_rows import need_lod
from fluidlite.program.op_call import Call
from fluidlite.tensor.tensor_spec import Spec


def need_lengths(call: Call, slot: str, sequences_slot: str, batch: int) -> None:
    """Refuse lengths that are not one integer for each padded sequence of ``sequences_slot``."""
    if call.dtype(slot) not in INTS:
        call.fail_dtype(slot, INTS)
    need_each(call, slot, batch, f"the length of each sequence of {sequences_slot}")


def need_each(call: Call, slot: str, count: int, description: str) -> None:
    """Refuse an input that is not [count] or [count, 1]; ``description`` names its contents."""
    dims = call.dims(slot)
    fits = len(dims) in (1, 2) and dims_compatible(dims[0], count) and all(dims_compatible(d, 1) for d in dims[1:])
    call.need(fits, slot, f"[{count}] or [{count}, 1]: {description}")


def need_one_level(call: Call, slot: str) -> Spec:
    """The metadata of an input with one level of LoD."""
    spec = need_lod(call, slot)
    call.need(spec.lod_level == 1, slot, "one level of LoD")
    return spec


def need_scalar_rows(call: Call, slot: str) -> Spec:
    """The metadata of an input with one level of LoD and one number in each row."""
    spec = need_one_level(call, slot)
    call.need(
        spec.rank in (1, 2) and all(dims_compatible(d, 1) for d in spec.dims[1:]), slot, "a number a row, as [rows, 1]"
    )
    return spec


def same_count(call: Call, slot: str, count: int, other: str, expected: int) -> int:
    """The common number of sequences of two inputs; raises ShapeError if they differ."""
    if not dims_compatible(count, expected):
        call.fail(slot, f"{expected} sequences, as many as {other} has")
    return expected if count < 0 else count
