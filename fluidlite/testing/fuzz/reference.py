"""Expected values of a recipe: the definitions' float64 references, operator by operator, with an error bound each.

After each operator the value is rounded to the variable's dtype, as in every mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, NUMPY, dtype_name
from fluidlite.testing.fuzz.error_bounds import ErrorBounds, NoReference, float_dtypes, reference_of
from fluidlite.testing.fuzz.recipe import OperatorStep, Recipe
from fluidlite.testing.fuzz.tolerance import Array, Bounded, wide


class Evaluator:
    """Evaluates steps one by one.

    ``values``: by name, of all variables so far; a missing name has no reference value.
    """

    def __init__(self, values: Mapping[str, Bounded], lods: Mapping[str, Any], seed: int = 0) -> None:
        self.values = dict(values)
        self.lods = lods
        self._bounds = ErrorBounds(seed)

    def take(self, step: OperatorStep, outputs: Mapping[str, Bounded]) -> None:
        for name in step.writes():
            self.values.pop(name, None)
        self.values.update(outputs)

    def outputs(self, step: OperatorStep, dtypes: Mapping[str, str]) -> dict[str, Bounded]:
        """Compute the outputs of a step, without storing them.

        ``dtypes``: declared dtypes by output name; a name that is missing keeps the reference's dtype.
        Raises NoReference if an input has no reference value, or the reference raises.
        """
        op, attrs = step.op, step.canonical()
        missing = [name for name in step.reads() if name not in self.values]
        if missing:
            raise NoReference(f"{missing[0]} has no reference value")
        inputs = {slot: [self.values[name] for name in names] for slot, names in step.inputs.items()}
        lod = {slot: self.lods[names[0]] for slot, names in step.inputs.items() if names and names[0] in self.lods}
        exact = reference_of(op, {s: [wide(b.value) for b in bs] for s, bs in inputs.items()}, attrs, lod)
        declared: dict[str, str] = {}
        for slot, names in step.outputs.items():
            if len(names) != len(exact.get(slot, names)):
                raise NoReference(f"{op.type}: {len(exact[slot])} values for the {len(names)} variables of {slot}")
            for name, array in zip(names, exact.get(slot, ()), strict=False):
                floats = float_dtypes(inputs) if array.dtype.kind == "f" else []
                own = "float32" if array.dtype.kind == "f" else dtype_name(array.dtype)
                declared[slot] = dtypes.get(name) or (floats or [own])[0]
        bounds = self._bounds.of(step, attrs, inputs, exact, declared, lod)
        results: dict[str, Bounded] = {}
        for slot, names in step.outputs.items():
            for i, (name, array) in enumerate(zip(names, exact.get(slot, ()), strict=False)):
                dtype = declared[slot]
                with np.errstate(all="ignore"):
                    value = array.astype(NUMPY[dtype])
                try:
                    bound = np.broadcast_to(bounds[slot][i], value.shape)
                except ValueError:
                    raise NoReference(f"{op.type}: bounds of {slot} have other dims than the value") from None
                bound = np.nan_to_num(bound, nan=np.inf, posinf=np.inf)
                if dtype in ALL_FLOATS:
                    bound = np.where(np.isfinite(wide(value)), bound, np.where(bound > 0, np.inf, 0.0))
                results[name] = Bounded(value, bound)
        return results


def exactly(array: Array) -> Bounded:
    """A fed array: its bound is 0."""
    return Bounded(array, np.zeros(array.shape))


def evaluate(recipe: Recipe, dtypes: Mapping[str, str]) -> list[dict[str, Bounded]]:
    """The values of all variables after each run; state is carried over to the next run.

    Names without a reference value are missing. Steps are not evaluated again for the inputs of an earlier run.
    """
    fed: dict[int, Bounded] = {}

    def fed_value(array: Array) -> Bounded:
        return fed.setdefault(id(array), exactly(array))

    state = {name: fed_value(array) for name, array in recipe.state.items()}
    earlier: list[list[tuple[list[Bounded], dict[str, Bounded]]]] = [[] for _ in recipe.steps]
    results: list[dict[str, Bounded]] = []
    for number, run in enumerate(recipe.runs):
        evaluator = Evaluator({**state, **{n: fed_value(a) for n, a in run.items()}}, recipe.lods, number)
        for step, evaluations in zip(recipe.steps, earlier, strict=True):
            inputs = [evaluator.values[name] for name in step.reads() if name in evaluator.values]
            outputs = next((outs for ins, outs in evaluations if _are_identical(ins, inputs)), None)
            if outputs is None:
                try:
                    outputs = evaluator.outputs(step, dtypes)
                except NoReference:
                    outputs = {}
                evaluations.append((inputs, outputs))
            evaluator.take(step, outputs)
        results.append(evaluator.values)
        state = {name: evaluator.values[name] for name in recipe.state if name in evaluator.values}
    return results


def _are_identical(first: list[Bounded], second: list[Bounded]) -> bool:
    return len(first) == len(second) and all(a is b for a, b in zip(first, second, strict=True))
