"""Recipe: a random program as plain data: operators by type, fed arrays, state and fetches.

Unlike a Program, data can also be evaluated by references, shrunk and printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, dtype_name
from fluidlite.conformance.cases import canonical
from fluidlite.program.opdef import OpDef
from fluidlite.program.program import Program
from fluidlite.program.registry import ops

Array = np.ndarray[Any, Any]
Names = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class OperatorStep:
    """One operator.

    ``inputs``, ``outputs``: names by slot.
    ``attrs``: those that differ from the definition's defaults.
    ``block``: the label of its block (:mod:`fluidlite.testing.fuzz.blocks`); empty: none.
    """

    type: str
    inputs: Names
    outputs: Names
    attrs: Mapping[str, Any] = field(default_factory=dict)
    block: str = ""

    @property
    def op(self) -> OpDef:
        return ops.get(self.type)

    def reads(self) -> Iterator[str]:
        return (name for names in self.inputs.values() for name in names)

    def writes(self) -> Iterator[str]:
        return (name for names in self.outputs.values() for name in names)

    def canonical(self) -> dict[str, Any]:
        return canonical(self.op, self.attrs)


def on(step: OperatorStep, place: str | None) -> OperatorStep:
    """Return the step with the device annotation of ``device_guard(place)``; None: without one."""
    attrs = {name: value for name, value in step.attrs.items() if name != "op_device"}
    return replace(step, attrs=attrs if place is None else {**attrs, "op_device": place})


@dataclass(frozen=True)
class Recipe:
    """A program with its feeds and state.

    ``runs``: the feed of each run, arrays by name; every run feeds the same names.
    ``state``: by name; persistable variables before the first run.
    ``open_dims``: fed names whose first dim is declared -1.
    ``lods``: offsets by name.
    ``targets``: backward starts from the sum of these variables; empty: no gradients.
    ``wrt``: variables whose gradients are fetched.
    ``order``: 1; or 2: the gradients of the sum of all gradients are fetched.
    ``threads``: the number of threads that run it concurrently, with one executor and a scope each.
    ``broken``: by name, possibly invalid feeds that replace those of the first run: both modes must refuse them with
    one class of error, or neither. Empty: none.
    ``differences``: whether gradients are also compared with central differences of the references.
    """

    steps: tuple[OperatorStep, ...]
    runs: tuple[Mapping[str, Array], ...]
    state: Mapping[str, Array] = field(default_factory=dict)
    fetches: tuple[str, ...] = ()
    open_dims: frozenset[str] = frozenset()
    lods: Mapping[str, Any] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    wrt: tuple[str, ...] = ()
    order: int = 1
    threads: int = 1
    broken: Mapping[str, Array] = field(default_factory=dict)
    differences: bool = False

    def types(self) -> set[str]:
        return {step.type for step in self.steps}

    def each_run(self, change: Callable[[Mapping[str, Array]], Mapping[str, Array]]) -> tuple[Mapping[str, Array], ...]:
        """Apply ``change`` to each run; runs that are the same object stay the same object."""
        results: dict[int, Mapping[str, Array]] = {}
        for run in self.runs:
            if id(run) not in results:
                results[id(run)] = change(run)
        return tuple(results[id(run)] for run in self.runs)

    def live(self) -> Recipe:
        """Return the recipe without dead steps, feeds and state: those that no fetch, target or state needs."""
        needed = {*self.fetches, *self.targets, *self.state}
        steps: list[OperatorStep] = []
        for step in reversed(self.steps):
            if not needed.isdisjoint(step.writes()):
                steps.append(step)
                needed.update(step.reads())
        used = {name for step in steps for name in (*step.reads(), *step.writes())} | {*self.fetches, *self.targets}
        return replace(
            self,
            steps=tuple(steps[::-1]),
            runs=self.each_run(lambda run: {name: array for name, array in run.items() if name in used}),
            state={name: array for name, array in self.state.items() if name in used},
            wrt=tuple(name for name in self.wrt if name in used),
            broken={name: array for name, array in self.broken.items() if name in used},
        )


@dataclass
class Built:
    """A program built from a recipe.

    ``gradients``: names of gradients, by the name of the variable; only for variables that backward reaches.
    """

    program: Program
    gradients: dict[str, str] = field(default_factory=dict)


def declare(program: Program, recipe: Recipe) -> None:
    block = program.global_block()
    fed = recipe.runs[0]
    for name, array in {**recipe.state, **fed}.items():
        dims = (-1, *array.shape[1:]) if name in recipe.open_dims else array.shape
        dtype = dtype_name(array.dtype)
        block.create_var(
            name,
            dims,
            dtype,
            persistable=name in recipe.state,
            stop_gradient=dtype not in ALL_FLOATS,
            lod_level=len(recipe.lods.get(name, ())),
            is_data=name in fed and name not in recipe.state,
        )


def append(program: Program, step: OperatorStep) -> None:
    """Append one operator to the current block; new outputs are declared."""
    block = program.global_block()
    for name in step.writes():
        if not block.has_var(name):
            block.create_var(name)
    program.current_block().append_op(
        step.type,
        {slot: list(names) for slot, names in step.inputs.items()},
        {slot: list(names) for slot, names in step.outputs.items()},
        dict(step.attrs),
    )


def build(recipe: Recipe) -> Built:
    """Build the program.

    Raises FluidError if a definition refuses a step, or a gradient does not exist.
    """
    from fluidlite.program.backward import gradients
    from fluidlite.testing.fuzz.blocks import append_all

    built = Built(Program())
    declare(built.program, recipe)
    append_all(built.program, recipe.steps)
    if recipe.targets:
        block = built.program.global_block()
        inputs = [block.var(name) for name in recipe.wrt]
        grads = gradients([block.var(name) for name in recipe.targets], inputs)
        if recipe.order > 1:
            first = [gradient for gradient in grads if gradient is not None]
            grads = gradients(first, inputs) if first else grads
        built.gradients = {
            name: gradient.name for name, gradient in zip(recipe.wrt, grads, strict=True) if gradient is not None
        }
    return built
