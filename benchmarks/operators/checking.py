"""Whether contenders compute the same."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.operators.case import Array, Case, Inputs, listed
from fluidlite.conformance.samples import reference_of

ODD = 1e-5
"""Part of the elements that may differ: at ties and kinks libraries choose different gradients."""


class DifferenceError(AssertionError):
    """Two contenders give different results."""


def _double(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind not in "iub" else array.astype(np.int64)


def compare(what: str, given: Sequence[Array], expected: Sequence[Array | None], case: Case) -> None:
    """Hold results against each other, as the case says."""
    if len(given) != len(expected):
        raise DifferenceError(f"{what}: {len(given)} results against {len(expected)}")
    for i, (one, two) in enumerate(zip(given, expected, strict=True)):
        if two is None:
            continue
        if np.size(one) != np.size(two):
            raise DifferenceError(f"{what}, result {i}: dims {one.shape} against {two.shape}")
        if case.check == "dims":
            continue
        a, b = _double(np.asarray(one)).reshape(-1), _double(np.asarray(two)).reshape(-1)
        if case.check == "moments":
            a, b = np.array([a.mean(), a.std()]), np.array([b.mean(), b.std()])
        scale = float(np.abs(b[np.isfinite(b)]).mean()) if b.size else 0.0
        wrong = ~((np.abs(a - b) <= case.tolerance * (np.abs(b) + scale)) | (a == b) | (np.isnan(a) & np.isnan(b)))
        if wrong.sum() > ODD * wrong.size:
            k = int(np.argmax(wrong))
            raise DifferenceError(
                f"{what}, result {i}: {wrong.mean():.2%} of {wrong.size} differ, the first at {k}: {a[k]} and {b[k]}"
            )


def by_reference(definition: Any, case: Case, size: str, given: Inputs | None = None) -> list[Array]:
    """Return what the operator's definition says, of the case's inputs or of others."""
    attrs = {
        attr.name: None if (value := case.attributes(size).get(attr.name, attr.default)) is None else attr.check(value)
        for attr in definition.attrs
    }
    inputs = {
        slot: [_exact(item) for item in value] if isinstance(value, list) else _exact(value)
        for slot, value in (case.inputs(size) if given is None else given).items()
    }
    arguments: list[Any] = [inputs, attrs]
    reference = reference_of(definition.type)
    assert reference is not None, f"{definition.type} has no reference"
    if len(inspect.signature(reference).parameters) > 2:
        arguments.append(case.offsets(size))
    found = reference(*arguments)
    return [np.asarray(array) for slot in case.outputs for array in listed(found[slot])]


def _exact(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array
