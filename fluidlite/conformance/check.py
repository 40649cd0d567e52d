"""Checks of one test case on one place: outputs and gradients against the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, NUMPY
from fluidlite.base.errors import ProgramError
from fluidlite.conformance.cases import Array, Case, cases_of
from fluidlite.conformance.op_harness import MODES, OperatorProgram, build, feed_output_gradients, other_builds, run
from fluidlite.conformance.reference import Oracle
from fluidlite.conformance.samples import reference_of
from fluidlite.conformance.tolerances import ConformanceError, gradient_tolerance, tolerance
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.program.registry import ops
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor import Tensor

Graded = tuple[str, int, Variable, Variable]
"""A variable of an input slot, with its gradient."""


def check_sample(case: Case | str, place: PlaceLike, modes: Sequence[str] = MODES) -> None:
    """Run a case on a place, interpreted and compiled, and compare every output: dims, dtype and values.

    Parameters
    ----------
    case : Case or str
        A case, or an operator's type: then all of its cases.
    place : Place or str
    modes : sequence of str, optional
        The executor's modes.

    Raises
    ------
    ConformanceError
        Names case, place, output and the worst element.
    FluidError
        The operator of that type has no samples, or no reference.
    """
    place = Place.parse(place)
    if not isinstance(case, (Case, str)):
        raise ProgramError(f"check_sample takes a case or an operator's type, got {case!r:.80}")
    for item in cases_of(case) if isinstance(case, str) else [case]:
        _check_values(item, place, modes)


def _check_values(case: Case, place: Place, modes: Sequence[str]) -> None:
    oracle = Oracle(case)
    program = build(case, oracle.counts())
    for mode in modes:
        _check_outputs(case, oracle, program, place, mode, "")
        for parameter, slots in other_builds(program) if mode == "compiled" else ():
            other = build(case, oracle.counts(), **{parameter: slots})
            _check_outputs(case, oracle, other, place, mode, f", {' and '.join(sorted(slots))} {parameter}")


def _check_outputs(case: Case, oracle: Oracle, program: OperatorProgram, place: Place, mode: str, variant: str) -> None:
    compared = [
        (f"{slot}[{i}]", variable, value)
        for slot in case.requested_outputs()
        if slot in oracle.outputs
        for i, (variable, value) in enumerate(zip(program.outputs[slot], oracle.outputs[slot], strict=True))
    ]
    results = run(program, place, [variable for _, variable, _ in compared], mode)
    for (output, variable, expected), result in zip(compared, results, strict=True):
        location = f"{case.id} on {place}, {mode}{variant}: {output}"
        _check_metadata(location, variable, result, expected)
        rtol = tolerance(place, case.coarsest_dtype(variable.dtype))
        compare(location, result.numpy(), expected, rtol, oracle.cancellation_error)


def check_sample_gradients(case: Case, place: PlaceLike, modes: Sequence[str] = MODES, subsets: bool = True) -> None:
    """Compare a case's gradients, interpreted and compiled, with central differences of its reference.

    All gradients are computed together; if there are several, each is also computed alone, since operators then skip
    the others. A gradient that also starts from an intermediate output is computed once more without that.

    ``modes``: the executor's modes.
    ``subsets``: whether to compute gradients also alone, and without those of intermediate outputs.
    Raises ConformanceError, which names case, place, input and the worst element.
    """
    if case.sample.grads:
        if case.op.grad is None:
            raise ConformanceError(
                f"{case.id}: its sample names gradients of {', '.join(case.sample.grads)}; it has no gradient"
                "\n  Do: declare what that reads (Differentiation(reads=...)), write it (gradient), or leave grads out "
                "of the sample"
            )
        place, oracle = Place.parse(place), Oracle(case)
        intermediate = [slot.name for slot in case.op.outputs if slot.intermediate and slot.name in oracle.weights]
        all_slots = tuple(case.sample.grads)
        if subsets and 0 < len(intermediate) < len(oracle.weights):
            _check_gradients(case, oracle, place, modes, all_slots)
            for slot in intermediate:
                del oracle.weights[slot]
        singles = [(slot,) for slot in all_slots] if subsets and len(all_slots) > 1 and case.dtype == "float32" else []
        for slots in (all_slots, *singles):
            _check_gradients(case, oracle, place, modes, slots)


def _check_gradients(case: Case, oracle: Oracle, place: Place, modes: Sequence[str], slots: tuple[str, ...]) -> None:
    program, graded = _with_gradients(case, oracle, slots)
    for mode in modes:
        _check_graded(case, oracle, program, graded, place, mode, "")
        if mode == "compiled" and any(parameter == "computed" for parameter, _ in other_builds(program)):
            rebuilt = _with_gradients(case, oracle, slots, computed=True)
            _check_graded(case, oracle, *rebuilt, place, mode, ", all computed")


def _with_gradients(
    case: Case, oracle: Oracle, slots: tuple[str, ...], computed: bool = False
) -> tuple[OperatorProgram, list[Graded]]:
    from fluidlite.program.backward import gradients

    program = build(case, oracle.counts(), computed=case.sample.inputs if computed else ())
    targets, starts = feed_output_gradients(program, oracle.weights, computed)
    inputs = [(slot, i, variable) for slot in slots for i, variable in enumerate(program.inputs[slot])]
    graded: list[Graded] = []
    for (slot, i, variable), grad in zip(inputs, gradients(targets, [each[2] for each in inputs], starts), strict=True):
        if grad is None:
            raise ConformanceError(f"{case.id}: backward makes no gradient of {slot}[{i}]")
        graded.append((slot, i, variable, grad))
    return program, graded


def _check_graded(
    case: Case, oracle: Oracle, program: OperatorProgram, graded: list[Graded], place: Place, mode: str, variant: str
) -> None:
    rtol, expected = gradient_tolerance(place, case.coarsest_dtype()), oracle.gradients()
    results = run(program, place, [grad for *_, grad in graded], mode)
    for (slot, i, variable, _), result in zip(graded, results, strict=True):
        location = f"{case.id} on {place}, {mode}{variant}: gradient of {slot}[{i}]"
        _check_metadata(location, variable, result, expected[slot][i])
        compare(location, result.numpy(), expected[slot][i], rtol, oracle.cancellation_error)


def _check_metadata(location: str, variable: Variable, result: Tensor, expected: Array) -> None:
    if tuple(result.dims) != expected.shape:
        raise ConformanceError(f"{location} has dims {list(result.dims)}; expected {list(expected.shape)}")
    declared = variable.shape
    if len(declared) != len(expected.shape) or any(
        d not in (-1, n) for d, n in zip(declared, expected.shape, strict=True)
    ):
        raise ConformanceError(f"{location} has dims {list(expected.shape)}; it was declared {list(declared)}")
    if result.dtype != variable.dtype:
        raise ConformanceError(f"{location} is {result.dtype}; it was declared {variable.dtype}")


def compare(where: str, actual: Any, expected: Array, rtol: float, atol: float) -> None:
    """Compare arrays: floats within rtol * (abs(expected) + mean magnitude) + atol, other dtypes exactly."""
    if not expected.size:
        return
    name = str(actual.dtype)
    if name not in ALL_FLOATS:
        is_wrong = np.asarray(actual != expected)
        limit: Any = 0
    else:
        with np.errstate(over="ignore"):
            rounded = expected.astype(NUMPY[name]).astype(np.float64)
        expected = np.where(np.isinf(rounded), rounded, expected)  # values out of the dtype's range are infinite
        actual = actual.astype(np.float64)
        finite = np.isfinite(expected)
        magnitude = float(np.mean(np.abs(expected[finite]))) if finite.any() else 0.0
        with np.errstate(invalid="ignore"):
            limit = rtol * (np.abs(expected) + magnitude) + atol
            is_equal = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
            is_wrong = ~(is_equal | (np.isfinite(expected) & (np.abs(actual - expected) <= limit)))
    if is_wrong.any():
        with np.errstate(invalid="ignore"):
            distance = np.abs(np.asarray(actual, np.float64) - np.asarray(expected, np.float64))
        place = np.unravel_index(np.argmax(np.where(is_wrong, np.nan_to_num(distance, nan=np.inf), -1)), is_wrong.shape)
        raise ConformanceError(
            f"{where}: {int(is_wrong.sum())} of {is_wrong.size} elements are wrong; at {[int(i) for i in place]} "
            f"it is {actual[place]}, expected {expected[place]} (relative tolerance {rtol:g})"
        )


def operators_with_samples() -> list[str]:
    return [op.type for op in ops if reference_of(op.type) is not None]
