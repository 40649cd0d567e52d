"""Inference of an operator's outputs: dims and dtypes of a call, checked."""

from __future__ import annotations

from collections.abc import Mapping

from fluidlite.base.errors import FluidError, ProgramError, ShapeError
from fluidlite.program.op_call import Call
from fluidlite.tensor.tensor_spec import (
    MAX_NBYTES,
    MAX_RANK,
    MAX_TABLE_VALUES,
    MAX_VALUES,
    TENSOR_ARRAY,
    Spec,
    dims_problem,
    specs_of,
)

_KINDS = (
    ("a tensor array", "layers.create_array, or layers.array_write, which makes one"),
    ("a tensor", "layers.array_read(array, i) for one element, layers.tensor_array_to_tensor for all"),
)
"""What is said where an input is of another kind: one that is no array, one that is."""


def check_inputs(call: Call) -> None:
    """Raise where an input has a dtype or kind that is not taken, or more numbers than metadata can be."""
    for declared in call.op.inputs:
        most = MAX_TABLE_VALUES if declared.table else MAX_VALUES
        if declared.value and any(spec.size > most for spec in call.ins.get(declared.name, ())):
            call.fail(declared.name, f"at most {most} numbers: they are taken as metadata")
        for spec in call.ins.get(declared.name, ()):
            if spec.kind not in declared.kinds:
                wanted, do = _KINDS[spec.kind == TENSOR_ARRAY]
                call.fail(declared.name, wanted, do=do)
    for slot, allowed in call.op.dtypes.items():
        for spec in call.ins.get(slot, ()):
            if spec.dtype not in allowed:
                call.fail_dtype(slot, allowed)


def inferred(call: Call) -> dict[str, tuple[Spec, ...]]:
    """What the definition's inference says of a call, by output slot.

    Raises ProgramError: what the inference raises; an exception of another kind means that attributes and dims make no
    sense together.
    Raises ShapeError: an output that no memory can hold.
    """
    infer = call.op.infer
    assert infer is not None
    try:
        found = infer(call)
    except FluidError:
        raise
    except Exception as exc:
        raise ProgramError(f"its inputs and attributes make no sense together: {type(exc).__name__}: {exc}") from exc
    if not isinstance(found, Mapping) or not all(map(call.op.output, found)):
        raise _no_specs(call, found)
    made: dict[str, tuple[Spec, ...]] = {}
    for slot, specs in found.items():
        if not isinstance(specs, (Spec, list, tuple)):
            raise _no_specs(call, found)
        made[slot] = specs_of(specs)
        for spec in made[slot]:
            if not isinstance(spec, Spec):
                raise _no_specs(call, found)
            if 0 < spec.nbytes <= MAX_NBYTES and len(spec.dims) <= MAX_RANK:
                continue
            problem = dims_problem(spec.dims, spec.dtype)
            if problem:
                raise ShapeError(f"{slot} {problem}")
    return made


def _no_specs(call: Call, found: object) -> ProgramError:
    slots = ", ".join(slot.name for slot in call.op.outputs)
    return ProgramError(
        f"its inference returned {found!r:.100}; expected a Spec, or several, by output slot ({slots})"
        f"\n  In the declaration at {call.op.origin}"
    )
