"""Compare gradients with central differences of the references, which are evaluated in float64."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.testing.fuzz.error_bounds import NoReference, reference_of
from fluidlite.testing.fuzz.recipe import OperatorStep, Recipe
from fluidlite.testing.fuzz.tolerance import Array, wide

STEP = 1e-4
"""Step of the fourth-order difference, relative to the direction; longer if values are coarser."""
SECOND_STEP = 8e-3
"""Longest step of mixed second differences, whose rounding error grows with the inverse square of the step."""
MAX_STEP_DISAGREEMENT = 1e-6
"""Relative disagreement of two step sizes from which the function is treated as not smooth (a kink or a jump)."""
MIN_STEP_GRAINS = 8.0
"""Minimum step in units in the last place of the coarsest values, so that it exceeds their rounding."""
OTHER_DERIVATIVES = frozenset({"center_loss", "cvm", "data_norm", "spectral_norm", "straight_through_max"})
"""Operators whose declared gradient differs from the derivative of their reference."""


def _has_tied_extremes(step: OperatorStep, attrs: Mapping[str, Any], x: Array) -> bool:
    """Whether a reduction's extreme occurs twice: each occurrence has the whole derivative, as in Fluid."""
    if step.type not in ("reduce_max", "reduce_min") or not x.size:
        return False
    axes = tuple(range(x.ndim)) if attrs["reduce_all"] else tuple(attrs["dim"])
    extremes: Array = (np.max if step.type == "reduce_max" else np.min)(x, axis=axes, keepdims=True)
    return bool((x == extremes).sum() > extremes.size)


def _has_duplicate_indices(step: OperatorStep, inputs: Mapping[str, Sequence[Array]]) -> bool:
    """Whether unpool writes two elements of a plane to one index: both have its gradient, as in Fluid."""
    if step.type != "unpool":
        return False
    (indices,) = inputs["Indices"]
    return any(len(np.unique(plane)) < plane.size for images in indices for plane in images)


def _is_nondifferentiable(step: OperatorStep, inputs: Mapping[str, Sequence[Array]], moved: Container[str]) -> bool:
    """Whether perturbed values enter a slot through which, as declared, no derivative flows, as in Fluid."""
    return any(
        name in moved and slot in step.op.stop_gradient and x.dtype.kind == "f"
        for slot, names in step.inputs.items()
        for name, x in zip(names, inputs[slot], strict=True)
    )


def unrounded(recipe: Recipe, moved: Mapping[str, Array]) -> float:
    """The sum of the targets after the first run, with inputs perturbed by ``moved``, evaluated in float64.

    A name that a step writes without reading it gets a new value there: the last value on which the targets depend is
    perturbed.

    Raises NoReference if a step has no reference for these inputs, or its derivative is not that of the reference.
    """
    values = {name: wide(array) for name, array in {**recipe.state, **recipe.runs[0]}.items()}
    begins = {name: _last_writer(recipe, name) for name in moved}
    moving = {name for name, at in begins.items() if at < 0}
    for name, by in moved.items():
        if begins[name] < 0:
            values[name] = values[name] + by
    for i, step in enumerate(recipe.steps):
        if any(name not in values for name in step.reads()):
            for name in step.writes():
                values.pop(name, None)
            continue
        attrs = step.canonical()
        inputs = {slot: [values[name] for name in names] for slot, names in step.inputs.items()}
        if any(_has_tied_extremes(step, attrs, x) for x in inputs.get("X", ())):
            raise NoReference(f"{step.type}: equal extremes")
        if _has_duplicate_indices(step, inputs):
            raise NoReference(f"{step.type}: equal places")
        if _is_nondifferentiable(step, inputs, moving):
            raise NoReference(f"{step.type}: no derivative flows through an input")
        moving |= {*(step.writes() if moving.intersection(step.reads()) else ()), *(n for n in moved if begins[n] == i)}
        if step.type == "cast" and attrs["out_dtype"] in ALL_FLOATS:
            outputs = {"Out": [wide(np.asarray(inputs["X"][0], np.float64))]}
        else:
            lod = {s: recipe.lods[names[0]] for s, names in step.inputs.items() if names and names[0] in recipe.lods}
            outputs = reference_of(step.op, inputs, attrs, lod)
        for slot, names in step.outputs.items():
            values.update(zip(names, outputs.get(slot, ()), strict=False))
        for name, by in moved.items():
            if i == begins[name] and name in values:
                values[name] = values[name] + by
    missing = [name for name in recipe.targets if name not in values]
    if missing:
        raise NoReference(f"{missing[0]} has no reference value")
    return float(sum(values[name].sum() for name in recipe.targets))


def _last_writer(recipe: Recipe, name: str) -> int:
    """The last step that writes a name without reading it and that the targets depend on; -1 if there is none."""
    needed = set(recipe.targets)
    for i in reversed(range(len(recipe.steps))):
        writes, reads = set(recipe.steps[i].writes()), set(recipe.steps[i].reads())
        if needed.isdisjoint(writes):
            continue
        if name in writes and name not in reads and name in needed:
            return i
        needed = (needed - writes) | reads
    return -1


def derivative(recipe: Recipe, name: str, direction: Array, longest: float) -> tuple[float, float]:
    """The derivative of the sum of the targets along a direction, and its uncertainty.

    The uncertainty is the disagreement of two step sizes, or of forward and backward differences: at a kink, such as a
    maximum of two equal numbers, central differences of all step sizes agree on the mean of both sides.
    """
    estimates, bends = [], []
    center = unrounded(recipe, {name: 0 * direction})
    for step in (longest, longest / 2):
        near, far = (
            [unrounded(recipe, {name: sign * count * step * direction}) for sign in (1, -1)] for count in (1, 2)
        )
        estimates.append((8 * (near[0] - near[1]) - (far[0] - far[1])) / (12 * step))
        bends.append((near[0] - center + near[1] - center) / step)
    kink = 2 * bends[1] - bends[0]  # without the second derivative's part, which grows with the step
    return estimates[1], max(abs(estimates[0] - estimates[1]), abs(kink))


def second_derivative(recipe: Recipe, name: str, direction: Array, longest: float) -> tuple[float, float]:
    """The derivative along a direction of the sum of all gradients, and the disagreement of two step sizes.

    That sum is the derivative along ones in all variables of ``wrt``: the result is a mixed second derivative.
    """
    inputs = {**recipe.state, **recipe.runs[0]}
    ones = {each: np.ones(inputs[each].shape) for each in recipe.wrt}
    estimates = []
    for step in (longest, longest / 2, longest / 4):
        total = 0.0
        for first in (1, -1):
            for second in (1, -1):
                moved = {each: first * step * by for each, by in ones.items()}
                moved[name] = moved[name] + second * step * direction
                total += first * second * unrounded(recipe, moved)
        estimates.append(total / (4 * step * step))
    better = [(4 * fine - coarse) / 3 for coarse, fine in pairwise(estimates)]
    return better[1], abs(better[0] - better[1])


def disagreement(recipe: Recipe, name: str, gradient: Array, bound: Array, grain: float) -> str | None:
    """How a gradient differs from the derivative along a random direction; "" if it does not, None if unknown.

    ``gradient``, ``bound``: the result of a run, and the tolerance of each element.
    ``grain``: the unit in the last place of the coarsest values in between.
    """
    is_scaled = any(step.attrs.get("norm_by_times") for step in recipe.steps)  # in warpctc, not in its loss
    if is_scaled or not OTHER_DERIVATIVES.isdisjoint(type.partition("_grad")[0] for type in recipe.types()):
        return None
    if recipe.order > 1 and _last_writer(recipe, name) >= 0:
        return None  # the gradient may be expressed by that value or by its inputs: tanh' = 1 - tanh^2
    array = wide({**recipe.state, **recipe.runs[0]}[name])
    rng = np.random.default_rng(11)
    direction = rng.choice([-1.0, 1.0], array.shape) * max(0.1, float(np.abs(array).mean()) if array.size else 1.0)
    try:
        if recipe.order > 1:
            expected, unsure = second_derivative(recipe, name, direction, max(SECOND_STEP, MIN_STEP_GRAINS * grain))
        else:
            expected, unsure = derivative(recipe, name, direction, max(STEP, MIN_STEP_GRAINS * grain))
    except NoReference:
        return None
    terms = float(np.abs(gradient * direction).sum())
    smooth = max(MAX_STEP_DISAGREEMENT, 2 * MIN_STEP_GRAINS * grain)
    if not np.isfinite(expected) or unsure > smooth * (terms + abs(expected)) + 1e-9:
        return None
    limit = float((bound * np.abs(direction)).sum()) + 10 * unsure + smooth * terms + 1e-8
    along = float((gradient * direction).sum())
    if abs(along - expected) <= limit:
        return ""
    return f"along a direction it is {along:.10g}, central differences give {expected:.10g} within {limit:.3g}"
