"""What a case should give: values by its float64 reference, gradients by differences of that reference."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, dtype_name
from fluidlite.base.lru_cache import LRUCache
from fluidlite.conformance.cases import Array, Case
from fluidlite.conformance.samples import reference_of

_differences: LRUCache[dict[str, list[Array]]] = LRUCache(4096, "central differences", 64 << 20)
_STEP = 5e-4
_UNIT = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def exact(array: Array) -> Array:
    """A floating array in float64; others as they are."""
    return array.astype(np.float64) if dtype_name(array.dtype) in ALL_FLOATS else array


def _largest(array: Array) -> float:
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0


class Oracle:
    """The float64 answers to one case.

    Attributes
    ----------
    outputs : dict of slot to list of arrays
        What the reference gives for the inputs as fed (rounded to the case's dtype).
    weights : dict of slot to list of arrays
        The gradients that :meth:`gradients` starts from: fixed numbers for each output of the gradient rule.
    cancelled : float
        What differences of the inputs lose by rounding: half a unit in the last place of the largest input.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        reference = reference_of(case.op.type)
        assert reference is not None
        self._reference = reference
        self._takes_lod = len(inspect.signature(reference).parameters) > 2
        self.attrs = case.attrs()
        self.inputs = {slot: [exact(a) for a in arrays] for slot, arrays in case.inputs().items()}
        self.outputs = self.evaluate(self.inputs)
        floats = [a for arrays in self.inputs.values() for a in arrays if a.dtype.kind == "f"]
        largest = max(map(_largest, floats), default=0.0)
        self.cancelled = _UNIT[case.loosest()] * largest / 2
        rng = np.random.default_rng(7)
        self.weights = {
            slot: [rng.choice([-1.0, 1.0], a.shape) * rng.integers(2, 8, a.shape) / 8 for a in self.outputs[slot]]
            for slot in case.graded_outputs()
            if slot in self.outputs and all(a.dtype.kind == "f" for a in self.outputs[slot])
        }  # eighths: every floating dtype holds them exactly

    def evaluate(self, inputs: Mapping[str, list[Array]]) -> dict[str, list[Array]]:
        """Call the reference."""
        given = {slot: arrays if self._duplicable(slot) else arrays[0] for slot, arrays in inputs.items()}
        arguments: list[Any] = [given, self.attrs]
        if self._takes_lod:
            arguments.append(self.case.sample.lod)
        with np.errstate(all="ignore"):
            results = self._reference(*arguments)
        return {
            slot: [np.asarray(a) for a in (value if isinstance(value, (list, tuple)) else [value])]
            for slot, value in results.items()
        }

    def _duplicable(self, slot: str) -> bool:
        declared = self.case.op.input(slot)
        return declared is not None and declared.duplicable

    def gradients(self) -> dict[str, list[Array]]:
        """Gradients of the weighted sum of the outputs, for the sample's ``grads`` slots; the arrays are read-only.

        Central differences of fourth order on the reference: four values an element. Places have them in common.
        """
        given = tuple((slot, a.shape, str(a.dtype), a.tobytes()) for slot, some in self.inputs.items() for a in some)
        case = self._reference, repr(self.attrs), repr(self.case.sample.lod), tuple(self.case.sample.grads)
        return _differences.get((*case, tuple(self.weights), given), self._gradients)

    def _gradients(self) -> dict[str, list[Array]]:
        found: dict[str, list[Array]] = {}
        for slot in self.case.sample.grads:
            found[slot] = []
            for array in self.inputs[slot]:
                grad = np.zeros(array.shape)
                for place in np.ndindex(array.shape):
                    grad[place] = self._difference(array, place)
                grad.flags.writeable = False
                found[slot].append(grad)
        return found

    def _difference(self, array: Array, place: tuple[int, ...]) -> float:
        middle = array[place]
        step = _STEP * max(1.0, abs(float(middle)))
        total = 0.0
        try:
            for steps, factor in ((1, 8.0), (-1, -8.0), (2, -1.0), (-2, 1.0)):
                array[place] = middle + steps * step
                total += factor * self._weighted_sum()
        finally:
            array[place] = middle
        return total / (12 * step)

    def _weighted_sum(self) -> float:
        outputs = self.evaluate(self.inputs)
        return sum(
            float(np.sum(weight * output))
            for slot, weights in self.weights.items()
            for weight, output in zip(weights, outputs[slot], strict=True)
        )
