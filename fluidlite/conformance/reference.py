"""Expected results of a case: values by its float64 reference, gradients by central differences of that."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, dtype_name
from fluidlite.base.lru_cache import LRUCache
from fluidlite.conformance.cases import Array, Case
from fluidlite.conformance.samples import Reference, reference_of
from fluidlite.program.opdef import OpDef

_differences: LRUCache[dict[str, list[Array]]] = LRUCache(4096, "central differences", 64 << 20)
_STEP = 5e-4
"""Step of the central differences, relative to the magnitude of the element, if that is above 1."""
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Machine epsilon by dtype: the distance from 1 to the next number."""


def exact(array: Array) -> Array:
    """A floating array in float64; others as they are."""
    return array.astype(np.float64) if dtype_name(array.dtype) in ALL_FLOATS else array


def with_lod(reference: Reference) -> Reference:
    """Wrap a reference as a function of inputs, attributes and LoD; not every reference takes the LoD."""
    if len(inspect.signature(reference).parameters) > 2:
        return reference
    return lambda inputs, attrs, _: reference(inputs, attrs)


def call_reference(
    reference: Reference, op: OpDef, inputs: Mapping[str, list[Array]], attrs: Mapping[str, Any], lod: Mapping[str, Any]
) -> dict[str, list[Array]]:
    """Call a reference, as :func:`with_lod` gives it: arrays by slot, lists where the operator's slot takes several."""
    arguments = {
        slot: list(arrays) if (declared := op.input(slot)) is not None and declared.duplicable else arrays[0]
        for slot, arrays in inputs.items()
    }
    with np.errstate(all="ignore"):
        results = reference(arguments, attrs, lod)
    return {
        slot: [np.asarray(a) for a in (value if isinstance(value, (list, tuple)) else [value])]
        for slot, value in results.items()
    }


def random_weights(rng: np.random.Generator, dims: tuple[int, ...]) -> Array:
    """Weights of both signs, in eighths: every floating dtype holds them exactly."""
    weights: Array = rng.choice([-1.0, 1.0], dims) * rng.integers(2, 8, dims) / 8
    return weights


class Oracle:
    """The expected float64 results of one case.

    ``outputs``: by slot; the results of the reference for the inputs as fed (rounded to the case's dtype).
    ``weights``: by slot; the output gradients of :meth:`gradients`: fixed numbers for each output of the gradient rule.
    ``cancellation_error``: rounding error of differences of inputs: half a unit in the last place of the largest input.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        reference = reference_of(case.op.type)
        assert reference is not None
        self._reference, self._call = reference, with_lod(reference)
        self.attrs = case.attrs()
        self.inputs = {slot: [exact(a) for a in arrays] for slot, arrays in case.inputs().items()}
        self.outputs = self.evaluate(self.inputs)
        floats = [a for arrays in self.inputs.values() for a in arrays if a.dtype.kind == "f"]
        largest = max((float(np.abs(a[np.isfinite(a)]).max(initial=0.0)) for a in floats), default=0.0)
        self.cancellation_error = EPSILON[case.coarsest_dtype()] * largest / 2
        rng = np.random.default_rng(7)
        self.weights = {
            slot: [random_weights(rng, a.shape) for a in self.outputs[slot]]
            for slot in case.graded_outputs()
            if slot in self.outputs and all(a.dtype.kind == "f" for a in self.outputs[slot])
        }

    def evaluate(self, inputs: Mapping[str, list[Array]]) -> dict[str, list[Array]]:
        return call_reference(self._call, self.case.op, inputs, self.attrs, self.case.sample.lod)

    def counts(self) -> dict[str, int]:
        return {slot: len(self.outputs.get(slot, (None,))) for slot in self.case.requested_outputs()}

    def gradients(self) -> dict[str, list[Array]]:
        """Gradients of the weighted sum of the outputs, for the sample's ``grads`` slots; the arrays are read-only.

        Fourth-order central differences of the reference: four evaluations an element. The cache serves all places.
        """
        key = tuple((slot, a.shape, str(a.dtype), a.tobytes()) for slot, arrays in self.inputs.items() for a in arrays)
        definition = self._reference, repr(self.attrs), repr(self.case.sample.lod), tuple(self.case.sample.grads)
        return _differences.get((*definition, tuple(self.weights), key), self._gradients)

    def _gradients(self) -> dict[str, list[Array]]:
        gradients: dict[str, list[Array]] = {}
        for slot in self.case.sample.grads:
            gradients[slot] = []
            for array in self.inputs[slot]:
                grad = np.zeros(array.shape)
                for place in np.ndindex(array.shape):
                    grad[place] = self._difference(array, place)
                grad.flags.writeable = False
                gradients[slot].append(grad)
        return gradients

    def _difference(self, array: Array, place: tuple[int, ...]) -> float:
        value = array[place]
        step = _STEP * max(1.0, abs(float(value)))
        total = 0.0
        try:
            for steps, factor in ((1, 8.0), (-1, -8.0), (2, -1.0), (-2, 1.0)):
                array[place] = value + steps * step
                total += factor * self._weighted_sum()
        finally:
            array[place] = value
        return total / (12 * step)

    def _weighted_sum(self) -> float:
        outputs = self.evaluate(self.inputs)
        return sum(
            float(np.sum(weight * output))
            for slot, weights in self.weights.items()
            for weight, output in zip(weights, outputs[slot], strict=True)
        )
