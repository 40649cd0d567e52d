"""Inference of the dims and dtypes of an operator's outputs, with checks."""

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
"""The expectation and the advice in errors of inputs of a wrong kind: of one that is no array, and of one that is."""


def check_inputs(call: Call) -> None:
    """Raise if an input has a dtype or kind that its slot does not accept, or too many numbers for metadata."""
    for declared in call.op.inputs:
        max_numbers = MAX_TABLE_VALUES if declared.table else MAX_VALUES
        if declared.value and any(spec.size > max_numbers for spec in call.ins.get(declared.name, ())):
            call.fail(declared.name, f"at most {max_numbers} numbers: they are taken as metadata")
        for spec in call.ins.get(declared.name, ()):
            if spec.kind not in declared.kinds:
                expected, do = _KINDS[spec.kind == TENSOR_ARRAY]
                call.fail(declared.name, expected, do=do)
    for slot, allowed in call.op.dtypes.items():
        for spec in call.ins.get(slot, ()):
            if spec.dtype not in allowed:
                call.fail_dtype(slot, allowed)


def inferred(call: Call) -> dict[str, tuple[Spec, ...]]:
    """Run the inference of the definition on a call, and return specs by output slot.

    Raises ProgramError: raised by the inference, or for any other exception in it, which means that attributes and dims
    are inconsistent.
    Raises ShapeError: an output is too large for any memory.
    """
    infer = call.op.infer
    assert infer is not None
    try:
        results = infer(call)
    except FluidError:
        raise
    except Exception as exc:
        raise ProgramError(f"its inputs and attributes make no sense together: {type(exc).__name__}: {exc}") from exc
    if not isinstance(results, Mapping) or not all(map(call.op.output, results)):
        raise _no_specs(call, results)
    specs_by_slot: dict[str, tuple[Spec, ...]] = {}
    for slot, specs in results.items():
        if not isinstance(specs, (Spec, list, tuple)):
            raise _no_specs(call, results)
        specs_by_slot[slot] = specs_of(specs)
        for spec in specs_by_slot[slot]:
            if not isinstance(spec, Spec):
                raise _no_specs(call, results)
            if 0 < spec.nbytes <= MAX_NBYTES and len(spec.dims) <= MAX_RANK:
                continue
            problem = dims_problem(spec.dims, spec.dtype)
            if problem:
                raise ShapeError(f"{slot} {problem}")
    return specs_by_slot


def _no_specs(call: Call, results: object) -> ProgramError:
    slots = ", ".join(slot.name for slot in call.op.outputs)
    return ProgramError(
        f"its inference returned {results!r:.100}; expected a Spec, or several, by output slot ({slots})"
        f"\n  In the declaration at {call.op.origin}"
    )
