from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import HALVES, NUMPY
from fluidlite.conformance.sample_helpers import MIXED, WIDE, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample

Ranges = Mapping[str, "tuple[float, float]"]
Named = Mapping[str, Mapping[str, Any]]


SCALARS = ("LearningRate", "Beta1Pow", "Beta2Pow", "Beta1Tensor", "Beta2Tensor")
"""Inputs of one number."""


def tensors(*dims: int, **ranges: tuple[float, float]) -> dict[str, Any]:
    """Return Param, Grad, LearningRate, and state of uniform numbers in ``ranges``; SCALARS hold one number."""
    inputs = {"Param": rand(*dims, seed=1), "Grad": rand(*dims, seed=2), "LearningRate": np.asarray([0.1], "float32")}
    for i, (slot, (low, high)) in enumerate(ranges.items()):
        size = (1,) if slot in SCALARS else dims
        inputs[slot] = rand(*size, low=low, high=high, seed=3 + i)
    return inputs


def halved(inputs: Inputs, dtype: str, *wide: str) -> Outputs:
    """Return inputs in a half type, except those named."""
    return {slot: array if slot in wide else array.astype(NUMPY[dtype]) for slot, array in inputs.items()}


def update_samples(
    ranges: Ranges,
    attributes: Named,
    outputs: tuple[str, ...] = (),
    rate: bool = True,
) -> Callable[[], list[Sample]]:
    """Return samples of an update: a matrix with each of ``attributes``, then edge cases and half types.

    ``ranges``: by slot, (low, high); state beside Param, Grad and LearningRate.
    ``attributes``: by name; the first is used for the edge cases.
    ``outputs``: output slots to request; empty: all.
    ``rate``: whether there is a LearningRate.
    """

    def samples() -> list[Sample]:
        def operands(*dims: int) -> dict[str, Any]:
            arrays = tensors(*dims, **ranges)
            return arrays if rate else {slot: array for slot, array in arrays.items() if slot != "LearningRate"}

        first = next(iter(attributes.values()))
        state = tuple(slot for slot in operands(1) if slot not in ("Param", "Grad"))
        scalars = tuple(slot for slot in state if slot in SCALARS)
        result = [
            Sample(operands(5, 7), each, name=name, dtypes=WIDE, outputs=outputs) for name, each in attributes.items()
        ]
        for name, dims in (("one", (1,)), ("empty", (0, 3)), ("large", (300, 250))):
            result.append(Sample(operands(*dims), first, name=name, outputs=outputs))
        for half in HALVES:
            inputs = halved(operands(5, 7), half, *state)
            result.append(Sample(inputs, first, name=half, dtypes=MIXED, outputs=outputs))
        if len(state) > len(scalars):
            inputs = halved(operands(5, 7), "float16", *scalars)
            result.append(Sample(inputs, first, name="half_state", dtypes=MIXED, outputs=outputs))
        return result

    return samples


def squares(x: Any) -> float:
    return sum((float(v) * float(v) for v in np.ravel(x)), 0.0)
