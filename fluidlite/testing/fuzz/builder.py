"""Build a recipe step by step; steps that a definition or a reference refuses are dropped and counted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, NUMPY, dtype_name
from fluidlite.base.errors import FluidError
from fluidlite.program.program import Program
from fluidlite.testing.fuzz.error_bounds import NoReference
from fluidlite.testing.fuzz.recipe import OperatorStep, Recipe, append, declare
from fluidlite.testing.fuzz.reference import Evaluator, exactly
from fluidlite.testing.fuzz.tolerance import Array, Bounded, wide

MAX_ELEMENTS = 30_000
MAX_MAGNITUDE = {"float64": 1e8, "float32": 1e6, "float16": 500.0, "bfloat16": 1e6}
"""Largest magnitude of values that later steps read."""
MAX_RELATIVE_BOUND = 1e-2
"""Largest bound of a value, relative to its mean magnitude, for it to be used by later steps and compared."""


def is_conditioned(value: Bounded) -> bool:
    """Whether a value is well conditioned: its bound is finite, and small relative to its magnitude."""
    if not np.isfinite(value.bound).all():
        return False
    if value.value.dtype.kind in "biu":
        return not value.bound.any()
    array = wide(value.value)
    if not np.isfinite(array).all():
        return bool(value.exact)
    size = float(np.abs(array).mean()) if array.size else 0.0
    return float(value.bound.mean() if array.size else 0.0) <= MAX_RELATIVE_BOUND * size + 1e-30


def _elements(program: Program, name: str) -> int:
    """The product of a variable's known dims."""
    return math.prod(d for d in program.global_block().var(name).shape or () if d >= 0)


class Builder:
    """A recipe under construction, whose values are evaluated step by step.

    ``rng``: the source of all choices.
    ``dtypes``, ``known_dtypes``: preferred dtypes of this program; all dtypes of the place.
    ``types``: operator types of steps from samples; empty: any.
    ``due``: operators of the next steps from samples, the last one first.
    ``batches``: sizes of the open first dim; a program is built for each of them.
    ``pool``: names of finite, well conditioned values that later steps may read.
    ``refused``: number of dropped steps and unused values, by reason.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        batches: Sequence[int],
        dtypes: Sequence[str],
        known_dtypes: Sequence[str],
        types: Sequence[str] = (),
    ) -> None:
        self.rng = rng
        self.known_dtypes = tuple(known_dtypes)
        self.types = tuple(types)
        self.due: list[str] = []
        self.batches = tuple(batches)
        self.dtypes = tuple(dtypes)
        self.program = Program()
        self.concrete = [Program() for _ in batches]
        self.steps: list[OperatorStep] = []
        self.feeds: list[dict[str, Array]] = [{} for _ in batches]
        self.state: dict[str, Array] = {}
        self.open: set[str] = set()
        self.lods: dict[str, Any] = {}
        self.pool: list[str] = []
        self.results: list[str] = []
        self.refused: Counter[str] = Counter()
        self.declared: dict[str, str] = {}
        self.at = [Evaluator({}, self.lods, 7 + i) for i in range(len(batches))]
        self._count = 0

    # Choices -------------------------------------------------------------------------------------------------------

    def any(self, items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    # Facts of values ------------------------------------------------------------------------------------------------

    def dims(self, name: str) -> list[tuple[int, ...]]:
        return [e.values[name].value.shape for e in self.at]

    def dtype(self, name: str) -> str:
        return dtype_name(self.at[0].values[name].value.dtype)

    def range(self, name: str) -> tuple[float, float]:
        """The minimum and the maximum over all batches."""
        arrays = [wide(e.values[name].value) for e in self.at if e.values[name].value.size]
        if not arrays:
            return 0.0, 0.0
        return min(float(a.min()) for a in arrays), max(float(a.max()) for a in arrays)

    # Feeds and steps ------------------------------------------------------------------------------------------------

    def feed(self, arrays: Sequence[Array], open_dim: bool = False, lod: Any = (), stem: str = "x") -> str:
        """Feed an array for each batch."""
        name = self.name(stem)
        for feeds, evaluator, array in zip(self.feeds, self.at, arrays, strict=True):
            feeds[name] = array
            evaluator.values[name] = exactly(array)
        if open_dim:
            self.open.add(name)
        if lod:
            self.lods[name] = lod
        self._declare(name, arrays)
        return name

    def keep(self, array: Array, stem: str = "state") -> str:
        name = self.name(stem)
        self.state[name] = array
        for evaluator in self.at:
            evaluator.values[name] = exactly(array)
        self._declare(name, [array] * len(self.batches))
        return name

    def feed_state(self, name: str, array: Array) -> None:
        """Also feed a persistable variable: each run begins with these values in it."""
        for feeds, evaluator in zip(self.feeds, self.at, strict=True):
            feeds[name] = array
            evaluator.values[name] = exactly(array)

    def _declare(self, name: str, arrays: Sequence[Array]) -> None:
        opened = frozenset(self.open)
        for program, array in ((self.program, arrays[0]), *zip(self.concrete, arrays, strict=True)):
            state = {name: array} if name in self.state else {}
            declare(program, Recipe((), ({} if state else {name: array},), state, open_dims=opened, lods=self.lods))
            opened = frozenset()  # only the program for all batches has open dims
        self.declared[name] = dtype_name(arrays[0].dtype)

    def numbers(self, dims: Sequence[int], dtype: str, low: float = -2.0, high: float = 2.0) -> Array:
        if dtype == "bool":
            return self.rng.random(dims) < 0.5
        if dtype in ALL_FLOATS:
            return self.rng.uniform(low, high, dims).astype(NUMPY[dtype])
        return self.rng.integers(int(np.ceil(low)), max(int(np.ceil(low)) + 1, int(high) + 1), dims).astype(
            NUMPY[dtype]
        )

    def fresh(self, dims: Sequence[int], dtype: str, open_dim: bool, low: float = -2.0, high: float = 2.0) -> str:
        """Feed random numbers; with ``open_dim`` the batch is a dim before ``dims``."""
        dims = list(dims)
        while np.prod(dims) * (max(self.batches) if open_dim else 1) > MAX_ELEMENTS:
            dims[int(np.argmax(dims))] = 1
        arrays = [self.numbers((b, *dims) if open_dim else dims, dtype, low, high) for b in self.batches]
        if not open_dim:
            arrays = [arrays[0]] * len(arrays)
        return self.feed(arrays, open_dim)

    def append(
        self,
        type: str,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> dict[str, tuple[str, ...]] | None:
        """Append an operator, if its definition and its reference accept it.

        ``outputs``: by slot, the number of new variables, or names of old ones; default: one Out.
        Returns the names by slot; None if it was refused.
        """
        input_names = {slot: (names,) if isinstance(names, str) else tuple(names) for slot, names in inputs.items()}
        output_names = {
            slot: tuple(self.name("v") for _ in range(names)) if isinstance(names, int) else tuple(names)
            for slot, names in (outputs or {"Out": 1}).items()
        }
        step = OperatorStep(type, input_names, output_names, dict(attrs or {}))
        try:
            for program in (*self.concrete, self.program):  # before the reference, which may need too much memory
                append(program, step)
        except FluidError:
            self._refuse(f"definition: {type}")
            return None
        if any(_elements(program, name) > MAX_ELEMENTS for program in self.concrete for name in step.writes()):
            self._refuse("too large")
            return None
        block = self.program.global_block()
        dtypes = self.declared | {name: block.var(name).dtype for name in step.writes()}
        try:
            values_by_batch = [evaluator.outputs(step, dtypes) for evaluator in self.at]
        except (NoReference, FluidError):
            self._refuse(f"reference: {type}")
            return None
        if any(b.value.size > MAX_ELEMENTS for each in values_by_batch for b in each.values()):  # value-dependent
            self._refuse("too large")
            return None
        self.steps.append(step)
        self.declared = dtypes
        for evaluator, values in zip(self.at, values_by_batch, strict=True):
            evaluator.take(step, values)
        self._note(step)
        return output_names

    def _refuse(self, why: str) -> None:
        """Count a refusal, and remove the operator from the programs that have it."""
        self.refused[why] += 1
        for program in (*self.concrete, self.program):
            block = program.global_block()
            names = {name for step in self.steps for name in step.writes()} | set(self.declared)
            for name in set(block.vars) - names:
                del block.vars[name]
            while len(block.ops) > len(self.steps):
                block._remove_op(len(block.ops) - 1)

    def _note(self, step: OperatorStep) -> None:
        """Add a step's values to the results and the pool, if they are well conditioned."""
        batched = any(name in self.open for name in step.reads())
        for name in step.writes():
            if name in self.state or not all(name in e.values for e in self.at):
                continue
            dims = self.dims(name)
            if batched and all(d and d[0] == b for d, b in zip(dims, self.batches, strict=True)):
                self.open.add(name)
            elif name in self.open:
                self.open.discard(name)
            if not all(is_conditioned(e.values[name]) for e in self.at):
                self.refused["ill conditioned"] += 1
            else:
                self.results.append(name)
                inner = {d[1:] if name in self.open else d for d in dims}
                if self._modest(name) and len(inner) == 1:
                    self.pool.append(name)

    def _modest(self, name: str) -> bool:
        low, high = self.range(name)
        limit = MAX_MAGNITUDE.get(self.dtype(name), 1e6)
        return bool(np.isfinite(low) and np.isfinite(high) and -limit <= low and high <= limit)

    def out(
        self, type: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None, slot: str = "Out"
    ) -> str | None:
        """Append an operator with one output; its name, or None if it was refused."""
        names = self.append(type, inputs, {slot: 1}, attrs)
        return None if names is None else names[slot][0]

    # Inputs of an operator ------------------------------------------------------------------------------------------

    def pick(
        self, dtypes: Sequence[str] | None = None, rank: Sequence[int] | None = None, nonempty: bool = False
    ) -> str:
        """One of the last values that fits, or a new feed."""
        fits = [
            name
            for name in self.pool[-14:]
            if (dtypes is None or self.dtype(name) in dtypes)
            and (rank is None or len(self.dims(name)[0]) in rank)
            and not (nonempty and 0 in self.dims(name)[0])
        ]
        if fits and not self.chance(0.1):
            return str(self.any(fits))
        count = int(self.any(rank)) if rank else int(self.rng.integers(1, 5))
        open_dim = count > 0 and self.chance(0.6)
        dims = [self.size(nonempty) for _ in range(count - open_dim)]
        return self.fresh(dims, str(self.any(dtypes or self.dtypes)), open_dim)

    def size(self, nonempty: bool = False) -> int:
        """A dim: mostly small, sometimes 0 or 1 or above 1,024."""
        if not nonempty and self.chance(0.015):
            return 0
        usual = (1, 2, 3, 3, 4, 5, 7, 8, 11, 15, 16, 17, 33)
        return int(self.any(usual)) if self.chance(0.97) else int(self.any((1025, 2050)))
