"""Programs for tests of fusion: of all elementwise operators of the registry, at random; and their comparison."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import fluidlite as fluid
from fluidlite.base.dtypes import ALL_FLOATS, NUMPY
from fluidlite.base.errors import FluidError
from fluidlite.compiler import policy as policies
from fluidlite.conformance.samples import samples_of
from fluidlite.program.opdef import GRAD, OpDef
from fluidlite.program.registry import ops
from fluidlite.transformers import FuseElementwise, make_transformer_factory

Arrays = dict[str, np.ndarray[Any, Any]]


def elementwise() -> list[OpDef]:
    """Every operator that has an expression."""
    return [op for op in ops if op.scalar is not None]


class Draw:
    """A program of ``count`` operators drawn at random, over values of several dims and dtypes.

    Attributes
    ----------
    program : Program
    feeds : arrays by name
    results : some of its variables
    """

    def __init__(self, seed: int, count: int, types: Sequence[OpDef]) -> None:
        self.rng = random.Random(seed)
        self.program = fluid.Program()
        self.block = self.program.global_block()
        self.feeds: Arrays = {}
        self.pool: list[Any] = []
        dtype = self.rng.choice(["float32", "float32", "float64", "float16", "bfloat16"])
        for dims in ((5, 7), (7,), (5, 1), (1,), (5, 7), (5, 7)):
            self._feed(dims, dtype)
        for other in ("int64", "bool", "uint8"):
            self._feed((5, 7), other)
        self.made: list[str] = []
        for _ in range(60 * count):
            if len(self.made) < count:
                self._append(self.rng.choice(types))
        inner = [v for v in self.pool if v.name not in self.feeds]
        self.results = [v for v in inner if self.rng.random() < 0.3] or inner[-1:]

    def _feed(self, dims: tuple[int, ...], dtype: str) -> None:
        name = f"in{len(self.feeds)}"
        numbers = np.random.RandomState(self.rng.randrange(2**31)).uniform(-2, 2, dims)
        whole = dtype not in ALL_FLOATS
        self.feeds[name] = numbers > 0 if dtype == "bool" else (np.round(3 * numbers) if whole else numbers).astype(
            NUMPY[dtype]
        )  # fmt: skip
        self.pool.append(self.block.create_var(name=name, shape=dims, dtype=dtype, is_data=True))

    def _append(self, op: OpDef) -> None:
        inputs = self._inputs(op)
        if inputs is None:
            return
        outputs, new = {}, []
        for slot in op.outputs:
            pair = op.must_alias.get(slot.name)
            if pair is None:
                made = outputs[slot.name] = self.block.create_var(name=f"v{len(self.block.vars)}")
                new.append(made)
            elif pair in inputs:
                outputs[slot.name] = inputs[pair]
        samples = samples_of(op.type)
        attrs = dict(self.rng.choice(samples).attrs) if samples else {}
        before = len(self.block.ops)
        try:
            self.block.append_op(op.type, inputs, outputs, attrs)
            good = all(v.spec is not None and 0 < v.spec.size < 2000 for v in new)
        except FluidError:
            good = False
        if good:
            self.made.append(op.type)
            self.pool += new
            return
        del self.block.ops[before:]
        for made in new:
            self.block.vars.pop(made.name, None)

    def _inputs(self, op: OpDef) -> dict[str, Any] | None:
        inputs: dict[str, Any] = {}
        first: Any = None
        for slot in op.inputs:
            if slot.value or (slot.dispensable and self.rng.random() < 0.5):
                continue
            fits = [v for v in self.pool if v.dtype in op.dtypes.get(slot.name, (v.dtype,))]
            if first is not None:
                fits = [v for v in fits if v.dtype == first.dtype] or fits
                if op.type.endswith("_grad"):  # gradients trust backward, which makes them of equal dims
                    fits = [v for v in fits if tuple(v.shape) == tuple(first.shape)]
            if op.must_alias:  # what is updated in place is one variable, and read nowhere else
                fits = [v for v in fits if v.name not in self.feeds and all(v is not u for u in inputs.values())]
            if not fits:
                return None
            chosen = self.rng.choice(fits[-6:] if self.rng.random() < 0.7 else fits)
            first = chosen if first is None else first
            inputs[slot.name] = chosen
        return inputs


def sample_program(op: OpDef, dtype: str) -> tuple[fluid.Program, Arrays, list[Any]] | None:
    """Return an operator on its first sample of a dtype, with others around it; None if there is no such sample."""
    fit = [s for s in samples_of(op.type) if dtype in s.dtypes and not s.lod and s.name not in ("empty", "large")]
    fit = [s for s in fit if all(isinstance(array, np.ndarray) and array.size for array in s.inputs.values())]
    if not fit:
        return None
    sample, program = fit[0], fluid.Program()
    block = program.global_block()
    feeds, inputs = {}, {}
    for slot, array in sample.inputs.items():
        wanted = NUMPY[dtype] if array.dtype.kind == "f" else array.dtype
        feeds[slot] = array.astype(wanted)
        given = block.create_var(name=slot, shape=array.shape, dtype=str(wanted), is_data=True)
        declared = op.input(slot)
        if declared is None or declared.value or str(wanted) not in ALL_FLOATS:
            inputs[slot] = given
            continue
        inputs[slot] = block.create_var(name=slot + "_")
        block.append_op("scale", {"X": given}, {"Out": inputs[slot]}, {"scale": 0.75, "bias": 0.125})
    outputs = {}
    for slot_out in op.outputs:
        pair = op.must_alias.get(slot_out.name)
        if pair is None or pair in inputs:
            outputs[slot_out.name] = inputs[pair] if pair else block.create_var(name=slot_out.name)
    block.append_op(op.type, inputs, outputs, dict(sample.attrs))
    results = []
    for name, made in outputs.items():
        results.append(made)
        if made.dtype in ALL_FLOATS:
            results.append(block.create_var(name=name + "_after"))
            block.append_op("softsign", {"X": made}, {"Out": results[-1]}, {})
    grads = [slot for slot in sample.grads if inputs[slot].dtype in ALL_FLOATS]
    if grads and op.grad is not None and not op.random:
        with fluid.program_guard(program):
            found = fluid.gradients([results[-1]], [block.var(slot) for slot in grads])
        results += [grad for grad in found if grad is not None]
    return program, feeds, results


def run(
    place: str, program: fluid.Program, feeds: Mapping[str, Any], results: Sequence[Any], fuse: bool
) -> tuple[tuple[Any, ...], list[str]]:
    """Run a program with the pass, or without any; return the results, and the types of what ran."""
    with make_transformer_factory(place, seed=3)() as transformer:
        transformer.graph_passes = [FuseElementwise()] if fuse else []  # type: ignore[assignment]
        computation = transformer.computation(list(results), *(program.global_block().var(name) for name in feeds))
        return computation(*feeds.values()), [op.type for op in computation.transformed.operators]


def assert_same(found: Sequence[Any], expected: Sequence[Any], what: str = "") -> None:
    """Bit for bit, but for which NaN it is."""
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert a.dtype == b.dtype and a.shape == b.shape, (what, k)
        x, y = (v.astype("float64") if v.dtype.kind not in "iub" else v for v in (a, b))
        np.testing.assert_array_equal(x, y, err_msg=f"{what}, result {k}")
        if x.dtype.kind == "f":
            there = ~np.isnan(x)
            np.testing.assert_array_equal(np.signbit(x)[there], np.signbit(y)[there], err_msg=f"{what}, signs of {k}")


@contextmanager
def without(*ways: str) -> Iterator[None]:
    """Leave out ways and capabilities."""
    before = policies._current
    policies._current = policies.Policy(before.fallback, before.libraries, (*before.exclude, *ways))
    try:
        yield
    finally:
        policies._current = before


def is_gradient(op: OpDef) -> bool:
    """Whether an operator is the gradient of another."""
    return any(slot.name.endswith(GRAD) for slot in op.outputs)
