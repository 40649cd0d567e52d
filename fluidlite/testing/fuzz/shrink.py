"""Shrink a failing recipe: fewer fetches, runs and steps, smaller dims, simpler values; the failure is preserved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fluidlite.base.errors import FluidError
from fluidlite.platform.place import Place
from fluidlite.testing.fuzz.outcome import Finding
from fluidlite.testing.fuzz.recipe import Recipe, build, on
from fluidlite.testing.fuzz.reference import evaluate
from fluidlite.testing.fuzz.run import check
from fluidlite.testing.fuzz.tolerance import Array

Check = Callable[[Recipe], "list[Finding]"]


class _Shrinker:
    def __init__(self, finding: Finding, run: Check, seconds: float) -> None:
        self.finding = finding
        self.run = run
        self.deadline = time.monotonic() + seconds

    @property
    def recipe(self) -> Recipe:
        return self.finding.recipe

    def attempt(self, recipe: Recipe) -> bool:
        """Accept a recipe if it fails with the same key; return whether it does."""
        if time.monotonic() > self.deadline:
            return False
        try:
            findings = self.run(recipe)
        except (FluidError, ValueError, IndexError, KeyError, TypeError):
            return False
        for finding in findings:
            if finding.key == self.finding.key:
                self.finding = replace(finding, recipe=recipe)
                return True
        return False

    def all(self) -> None:
        """Try all reductions until none succeeds."""
        self.attempt(replace(self.recipe, threads=1))
        self.attempt(replace(self.recipe, steps=tuple(replace(step, block="") for step in self.recipe.steps)))
        self.attempt(replace(self.recipe, steps=tuple(on(step, None) for step in self.recipe.steps)))
        self.attempt(replace(self.recipe, broken={}))
        self._fetches()
        self._runs()
        while time.monotonic() < self.deadline:
            before = self.recipe
            self._steps()
            self._fetches()
            self._runs()
            self._dims()
            if self.recipe is before:
                break
        self._numbers()

    def _fetches(self) -> None:
        name = self.finding.name.removeprefix("state ")
        recipe = self.recipe
        if self.finding.kind in ("gradient", "difference"):
            self.attempt(replace(recipe, wrt=(name,), fetches=()).live())
            for target in recipe.targets:
                if len(self.recipe.targets) > 1 and self.attempt(replace(self.recipe, targets=(target,)).live()):
                    break
            return
        if recipe.targets:
            self.attempt(replace(recipe, targets=(), wrt=()).live())
        if name and len(self.recipe.fetches) > 1:
            self.attempt(replace(self.recipe, fetches=(name,) if name in self.recipe.fetches else ()).live())
        for fetch in self.recipe.fetches:
            if len(self.recipe.fetches) > 1 or self.recipe.state or self.recipe.targets:
                self.attempt(replace(self.recipe, fetches=tuple(f for f in self.recipe.fetches if f != fetch)).live())

    def _runs(self) -> None:
        for count in range(1, len(self.recipe.runs)):
            if self.attempt(replace(self.recipe, runs=self.recipe.runs[:count])):
                break
        for run in self.recipe.runs:
            if len(self.recipe.runs) > 1 and self.attempt(replace(self.recipe, runs=(run,))):
                break
        if len(self.recipe.runs) > 2:
            self.attempt(replace(self.recipe, runs=(self.recipe.runs[0], self.recipe.runs[-1])))
        if self.recipe.open_dims:
            self.attempt(replace(self.recipe, open_dims=frozenset()))
        for name in list(self.recipe.state):
            if name in self.recipe.state:
                self.attempt(self._without_state(name))

    def _without_state(self, name: str) -> Recipe:
        recipe = self.recipe
        array = recipe.state[name]
        written = {n for step in recipe.steps for n in step.writes()}
        rest = {n: a for n, a in recipe.state.items() if n != name}
        if name in written:
            return replace(recipe, steps=tuple(s for s in recipe.steps if name not in s.writes())).live()
        return replace(recipe, state=rest, runs=recipe.each_run(lambda run: {**run, name: array}))

    def _steps(self) -> None:
        size = max(1, len(self.recipe.steps) // 2)
        while size:
            start = 0
            while start < len(self.recipe.steps) and time.monotonic() < self.deadline:
                cut = self._fed(start, start + size)
                if cut is None or not self.attempt(cut):
                    start += size
            size //= 2

    def _fed(self, start: int, stop: int) -> Recipe | None:
        """Return the recipe without some steps; values that the other steps read are fed instead."""
        recipe = self.recipe
        removed, remaining = recipe.steps[start:stop], (*recipe.steps[:start], *recipe.steps[stop:])
        outputs = {n for step in removed for n in step.writes()} - set(recipe.state)
        written = {n for step in remaining for n in step.writes()}
        needed = [n for n in outputs if n not in written and any(n in step.reads() for step in remaining)]
        block = build(replace(recipe, targets=(), wrt=())).program.global_block()
        dtypes = {name: block.var(name).dtype for step in recipe.steps for name in step.writes()}
        values = evaluate(recipe, dtypes)
        runs = []
        for run, run_values in zip(recipe.runs, values, strict=True):
            if any(name not in run_values for name in needed):
                return None
            runs.append({**run, **{name: run_values[name].value for name in needed}})
        fetches = tuple(f for f in recipe.fetches if f not in outputs or f in written)
        opened = set(recipe.open_dims)
        if len(runs) > 1:
            opened |= {n for n in needed if len({run[n].shape for run in runs}) > 1}
        cut = replace(recipe, steps=remaining, runs=tuple(runs), fetches=fetches, open_dims=frozenset(opened))
        return cut.live()

    def _dims(self) -> None:
        for new in (1, 2, 3):
            for old in sorted(
                {d for run in self.recipe.runs for a in run.values() for d in a.shape if d > new}, reverse=True
            ):
                self.attempt(self._resized(old, new, everywhere=False))
                self.attempt(self._resized(old, new, everywhere=True))

    def _resized(self, old: int, new: int, everywhere: bool) -> Recipe:
        def cut(array: Array) -> Array:
            return array[tuple(slice(new) if d == old else slice(None) for d in array.shape)]

        def number(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [number(v) for v in value]
            return new if type(value) is int and value == old else value

        steps = self.recipe.steps
        if everywhere:
            steps = tuple(replace(s, attrs={k: number(v) for k, v in s.attrs.items()}) for s in steps)
        return replace(
            self.recipe,
            steps=steps,
            state={n: cut(a) for n, a in self.recipe.state.items()},
            runs=self.recipe.each_run(lambda run: {n: cut(a) for n, a in run.items()}),
        )

    def _numbers(self) -> None:
        for name, array in self._arrays():
            if array.dtype.kind in "biu":
                continue
            for plainer in (
                np.ones_like(array),
                np.round(array.astype(np.float64)),
                np.round(array.astype(np.float64), 2),
            ):
                if self.attempt(self._with(name, plainer.astype(array.dtype))):
                    break

    def _arrays(self) -> Iterator[tuple[str, Array]]:
        yield from list(self.recipe.state.items())
        if len(self.recipe.runs) == 1:
            yield from list(self.recipe.runs[0].items())

    def _with(self, name: str, array: Array) -> Recipe:
        if name in self.recipe.state:
            return replace(self.recipe, state={**self.recipe.state, name: array})
        return replace(self.recipe, runs=tuple({**run, name: array} for run in self.recipe.runs))


def shrink(finding: Finding, place: Place, seconds: float = 30.0) -> Finding:
    """Shrink the recipe of a finding.

    ``seconds``: time limit.
    """

    def run(recipe: Recipe) -> list[Finding]:
        return check(recipe, place).findings

    shrinker = _Shrinker(finding, run, seconds)
    shrinker.all()
    return shrinker.finding
