"""Compare gradients between modes, and with central differences of the references."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, NUMPY, dtype_name
from fluidlite.base.errors import FallbackWarning
from fluidlite.conformance.op_harness import MODES
from fluidlite.platform.place import Place
from fluidlite.tensor.var_type import VarType
from fluidlite.testing.fuzz.differences import disagreement
from fluidlite.testing.fuzz.execute import Results, RunFailed, execute, new_scope
from fluidlite.testing.fuzz.outcome import Finding, Outcome, differs
from fluidlite.testing.fuzz.recipe import Built, Recipe, build
from fluidlite.testing.fuzz.tolerance import SMALLEST, UNIT, Array, Bounded, wide


def compare_gradients(
    recipe: Recipe, built: Built, results: Mapping[str, Results], place: Place, outcome: Outcome
) -> None:
    """Compare gradients between both modes, with a tolerance from the program's condition.

    Every fed float, and every float that backward reads, is perturbed by some units of the coarsest dtype among the
    values that the targets depend on: the change of a gradient estimates its sensitivity to rounding.
    """
    what = "gradient" if recipe.order == 1 else "second derivative"
    grain = coarsest(recipe, built)
    compute = min(grain, UNIT["float32"])  # half types compute in float32
    neighbours = _neighbours(recipe, place, grain)
    if neighbours is None:
        outcome.discarded["gradient: the neighbourhood raises"] += 1
        return
    for name, gradient in built.gradients.items():
        first, second = (wide(results[mode][0][gradient]) for mode in MODES)
        if not first.size:
            continue
        dtype = dtype_name(results[MODES[0]][0][gradient].dtype)
        change = np.maximum(*(np.abs(wide(other[name]) - first) for other in neighbours))
        mean = float(np.abs(first).mean())
        spread = float(change.mean())
        is_finite = np.isfinite(first).all() and np.isfinite(change).all()
        if not is_finite or spread > max(1e-3, 64 * grain) * mean + 1e-30:
            outcome.discarded["gradient: ill conditioned"] += 1
            continue
        outcome.compared += 1
        sizes = np.abs(first) + mean
        bound = 16 * (change + spread) + (256 * compute + 8 * grain) * sizes + SMALLEST[dtype]
        reason = differs(second, Bounded(first, bound))
        if reason:
            text = f"{what} of {name}, compiled against interpreted: {reason}"
            outcome.findings.append(Finding("gradient", text, name, recipe))
            return
        if recipe.differences:
            answer = disagreement(recipe, name, first, bound, grain)
            outcome.differences += answer is not None
            if answer is None:
                outcome.discarded["difference: not smooth, or no reference"] += 1
            if answer:
                outcome.findings.append(Finding("difference", f"{what} of {name}: {answer}", name, recipe))
                return


def coarsest(recipe: Recipe, built: Built) -> float:
    """The largest unit in the last place among the values that the targets depend on."""
    needed = set(recipe.targets)
    for step in reversed(recipe.steps):
        if not needed.isdisjoint(step.writes()):
            needed.update(step.reads())
    block = built.program.global_block()
    return max(UNIT[block.var(name).dtype] for name in needed if block.var(name).dtype in ALL_FLOATS)


def _with_rounding(
    recipe: Recipe, rng: np.random.Generator, units: float, grain: float
) -> tuple[Built, dict[str, Array]]:
    """The program with each float that a gradient operator reads perturbed by some units, to simulate rounding.

    1 - tanh(x)^2 may consist only of the rounding of tanh(x), which no perturbation of x shows. The signs of the
    perturbations are state of the program, random for each element as far as dims are known.
    """
    built, signs = build(recipe), dict[str, Array]()
    block = built.program.global_block()
    for op in [op for op in block.ops if op.role == "backward"]:
        read = {
            name
            for slot, names in op.inputs.items()
            for name in names
            if (declared := op.definition.input(slot)) is not None and not declared.unread
        }
        for name in sorted(read & {name for name in op.input_arg_names if block.has_var(name)}):
            variable = block.var(name)
            is_dense = variable.spec is not None and variable.type == VarType.LOD_TENSOR
            if not is_dense or variable.dtype not in ALL_FLOATS or name in op.output_arg_names:
                continue
            signed, step, perturbed = (
                block.create_temporary(prefix=f"{name}.{what}", stop_gradient=True)
                for what in ("signed", "step", "perturbed")
            )
            dims = [max(d, 1) for d in variable.shape]
            sign = block.create_var(
                f"{perturbed.name}.sign", dims, variable.dtype, persistable=True, stop_gradient=True
            )
            signs[sign.name] = rng.choice([-1.0, 1.0], dims).astype(NUMPY[variable.dtype])
            size = max(grain, UNIT[variable.dtype]) * units
            for type, inputs, out, attrs in (
                ("elementwise_mul", {"X": [name], "Y": [sign.name]}, signed, {}),
                ("scale", {"X": [signed.name]}, step, {"scale": size}),
                ("elementwise_add", {"X": [name], "Y": [step.name]}, perturbed, {}),
            ):
                block._insert(block.ops.index(op), type, inputs, {"Out": [out.name]}, attrs)
            op.rename_input(name, perturbed.name)
    return built, signs


def _neighbours(recipe: Recipe, place: Place, grain: float) -> list[dict[str, Array]] | None:
    """The gradients of slightly perturbed runs; None if one raises."""
    from fluidlite.executor import Executor

    rng = np.random.default_rng(3)
    neighbours = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        for units in (2.5, 1.5):  # a value that one of them does not change, the other one does
            built, signs = _with_rounding(recipe, rng, units, grain)
            moved = replace(
                recipe,
                runs=recipe.each_run(lambda run: {n: _nudged(a, rng, grain) for n, a in run.items()})[:1],
                state={**{n: _nudged(a, rng, grain) for n, a in recipe.state.items()}, **signs},
                fetches=(),
            )
            executor = Executor(place, mode="interpreted", fallback="allow")
            try:
                values = execute(moved, built, executor, new_scope(moved, place), place)[0]
                neighbours.append({name: values[gradient] for name, gradient in built.gradients.items()})
            except RunFailed:
                return None
            finally:
                executor.close()
    return neighbours


def _nudged(array: Array, rng: np.random.Generator, grain: float) -> Array:
    """Perturb every float by about a unit in the last place, of its own dtype or of a coarser one."""
    if dtype_name(array.dtype) not in ALL_FLOATS:
        return array
    unit = max(grain, UNIT[dtype_name(array.dtype)])
    perturbed: Array = (wide(array) * (1 + 2.5 * unit * rng.choice([-1.0, 1.0], array.shape))).astype(array.dtype)
    return perturbed
