"""Checks of one case on one place."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, NUMPY
from fluidlite.framework.registry import ops
from fluidlite.framework.tensor import Tensor
from fluidlite.framework.variable import Variable
from fluidlite.platform.devices import devices
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.testing.cases import Array, Case, cases
from fluidlite.testing.expected import Oracle
from fluidlite.testing.run import MODES, build, run, start_gradients

_VALUES = {"float64": 1e-10, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
_GRADIENTS = {"float64": 1e-6, "float32": 5e-5, "float16": 6e-3, "bfloat16": 4e-2}


class ConformanceError(AssertionError):
    """A place gives another answer than the reference."""


def tolerance(place: PlaceLike, dtype: str) -> float:
    """The relative tolerance of values: the framework's, or the device's own if that is looser."""
    return _loosened(place, dtype, _VALUES)


def gradient_tolerance(place: PlaceLike, dtype: str) -> float:
    """The relative tolerance of gradients, which differences of the reference know less exactly."""
    return _loosened(place, dtype, _GRADIENTS)


def _loosened(place: PlaceLike, dtype: str, table: dict[str, float]) -> float:
    return max(table[dtype], devices.unit(place).info.tolerance.get(dtype, 0.0))


def check_sample(case: Case | str, place: PlaceLike) -> None:
    """Run a case on a place, interpreted and compiled, and compare every output: dims, dtype and values.

    Parameters
    ----------
    case : Case or str
        A case, or an operator's type: then all of its cases.
    place : Place or str

    Raises
    ------
    ConformanceError
        Names case, place, output and the worst element.
    """
    place = Place.parse(place)
    for one_case in cases([case]) if isinstance(case, str) else [case]:
        _check_values(one_case, place)


def _check_values(case: Case, place: Place) -> None:
    oracle = Oracle(case)
    wanted = case.sample.outputs or tuple(slot.name for slot in case.op.outputs)
    counts = {slot: len(oracle.outputs.get(slot, (None,))) for slot in wanted}
    one = build(case, counts)
    compared = [
        (f"{slot}[{i}]", variable, value)
        for slot in wanted
        if slot in oracle.outputs
        for i, (variable, value) in enumerate(zip(one.outputs[slot], oracle.outputs[slot], strict=True))
    ]
    for mode in MODES:
        results = run(one, place, [variable for _, variable, _ in compared], mode)
        for (what, variable, expected), result in zip(compared, results, strict=True):
            where = f"{case.id} on {place}, {mode}: {what}"
            _check_metadata(where, variable, result, expected)
            rtol = tolerance(place, case.loosest(variable.dtype))
            compare(where, result.numpy(), expected, rtol, oracle.cancelled)


def check_gradient(case: Case | str, place: PlaceLike) -> None:
    """Run the gradient operators of a case and compare with central differences of the reference.

    All gradients are made together and, where there are several, also each alone: operators leave out the others.

    Raises
    ------
    ConformanceError
    """
    place = Place.parse(place)
    for one_case in cases([case]) if isinstance(case, str) else [case]:
        if one_case.sample.grads:
            oracle = Oracle(one_case)
            expected = oracle.gradients()
            _check_gradients(one_case, oracle, expected, place, tuple(expected))
            if len(expected) > 1 and one_case.dtype == "float32":
                for slot in expected:
                    _check_gradients(one_case, oracle, expected, place, (slot,))


def _check_gradients(
    case: Case, oracle: Oracle, expected: dict[str, list[Array]], place: Place, slots: tuple[str, ...]
) -> None:
    from fluidlite.framework.backward import gradients

    wanted = case.sample.outputs or tuple(slot.name for slot in case.op.outputs)
    one = build(case, {slot: len(oracle.outputs.get(slot, (None,))) for slot in wanted})
    targets, starts = start_gradients(one, oracle.weights)
    inputs = [(slot, i, variable) for slot in slots for i, variable in enumerate(one.inputs[slot])]
    made: list[Variable | None] = gradients(targets, [variable for *_, variable in inputs], starts)
    for (slot, i, _), grad in zip(inputs, made, strict=True):
        if grad is None:
            raise ConformanceError(f"{case.id}: backward makes no gradient of {slot}[{i}]")
    rtol = gradient_tolerance(place, case.loosest())
    for mode in MODES:
        results = run(one, place, [grad for grad in made if grad is not None], mode)
        for (slot, i, variable), result in zip(inputs, results, strict=True):
            where = f"{case.id} on {place}, {mode}: gradient of {slot}[{i}]"
            _check_metadata(where, variable, result, expected[slot][i])
            compare(where, result.numpy(), expected[slot][i], rtol, oracle.cancelled)


def _check_metadata(where: str, variable: Variable, result: Tensor, expected: Array) -> None:
    if tuple(result.dims) != expected.shape:
        raise ConformanceError(f"{where} has dims {list(result.dims)}; expected {list(expected.shape)}")
    if result.dtype != variable.dtype:
        raise ConformanceError(f"{where} is {result.dtype}; it was declared {variable.dtype}")


def compare(where: str, actual: Any, expected: Array, rtol: float, atol: float) -> None:
    """Hold floats within ``rtol`` of the element plus the mean magnitude, plus ``atol``; all else must be equal."""
    if not expected.size:
        return
    name = str(actual.dtype)
    if name not in ALL_FLOATS:
        wrong = np.asarray(actual != expected)
        limit: Any = 0
    else:
        with np.errstate(over="ignore"):
            rounded = expected.astype(NUMPY[name]).astype(np.float64)
        expected = np.where(np.isinf(rounded), rounded, expected)  # beyond the dtype's range: infinity
        actual = actual.astype(np.float64)
        finite = np.isfinite(expected)
        magnitude = float(np.mean(np.abs(expected[finite]))) if finite.any() else 0.0
        with np.errstate(invalid="ignore"):
            limit = rtol * (np.abs(expected) + magnitude) + atol
            same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
            wrong = ~(same | (np.isfinite(expected) & (np.abs(actual - expected) <= limit)))
    if wrong.any():
        with np.errstate(invalid="ignore"):
            distance = np.abs(np.asarray(actual, np.float64) - np.asarray(expected, np.float64))
        place = np.unravel_index(np.argmax(np.where(wrong, np.nan_to_num(distance, nan=np.inf), -1)), wrong.shape)
        raise ConformanceError(
            f"{where}: {int(wrong.sum())} of {wrong.size} elements are wrong; at {[int(i) for i in place]} "
            f"it is {actual[place]!r}, expected {expected[place]!r} (relative tolerance {rtol:g})"
        )


def operators_with_samples() -> list[str]:
    """The operators that :func:`cases` covers."""
    return [op.type for op in ops if op.reference is not None]
