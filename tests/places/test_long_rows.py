"""Concatenations of long rows, which are a loop a part, and gradients of slices, which are such concatenations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.expr.calls import leaves, traced_of
from fluidlite.program.op_call import Call
from fluidlite.program.registry import ops
from fluidlite.render.loops.nests import MIN_NEST_ELEMENTS, nests_of
from fluidlite.tensor.tensor_spec import Spec

L = fluid.layers
PLACES = [str(place) for place in fluid.places()]
RNG = np.random.default_rng(4)
LONG = {
    "vectors": ([(MIN_NEST_ELEMENTS,), (3,), (700,)], 0),
    "rows": ([(5, MIN_NEST_ELEMENTS // 5 + 1), (5, 1), (5, 40)], 1),
    "an empty part": ([(2, MIN_NEST_ELEMENTS), (2, 0), (2, 9)], 1),
    "columns of 1": ([(MIN_NEST_ELEMENTS, 1), (7, 1)], 0),
}


def nests(shapes: list[tuple[int, ...]], axis: int) -> int:
    whole = list(shapes[0])
    whole[axis] = sum(shape[axis] for shape in shapes)
    ins = {"X": tuple(Spec.of(shape, "float32") for shape in shapes)}
    call = Call(ops.get("concat"), ins, {"Out": (Spec.of(whole, "float32"),)}, {"axis": axis})
    return len(nests_of(traced_of(call), {("Out", 0): "float32"}, leaves(call)))


def test_a_long_row_is_a_loop_a_part() -> None:
    assert nests([(MIN_NEST_ELEMENTS,), (3,)], 0) == 2
    assert nests([(4, MIN_NEST_ELEMENTS), (4, 3), (4, 5)], 1) == 3
    assert nests([(4, 3), (4, 5)], 1) == 1  # short: one launch
    assert nests([(MIN_NEST_ELEMENTS, 8), (3, 8)], 0) == 1  # whole rows are chosen, not elements


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", LONG)
def test_parts_lie_where_they_belong(case: str, place: str) -> None:
    shapes, axis = LONG[case]
    arrays = [RNG.normal(size=shape).astype("float32") for shape in shapes]
    for mode in ("compiled", "interpreted"):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            xs = [L.data(f"x{k}", list(a.shape), append_batch_size=False) for k, a in enumerate(arrays)]
            twice = L.concat([xs[0], *xs, xs[0]], axis)
            computed = L.concat([L.exp(xs[0]), xs[-1] * 2.0, L.cumsum(xs[0], axis=axis)], axis)
            feed = {f"x{k}": a for k, a in enumerate(arrays)}
            found = fluid.Executor(place, mode=mode, fallback="allow").run(feed=feed, fetch_list=[twice, computed])
        np.testing.assert_array_equal(found[0], np.concatenate([arrays[0], *arrays, arrays[0]], axis))
        sums = np.cumsum(arrays[0].astype("float64"), axis)
        expected = np.concatenate([np.exp(arrays[0]), arrays[-1] * 2, sums], axis)
        np.testing.assert_allclose(found[1], expected, rtol=1e-4, atol=1e-3)


def _terms(x: Any, sizes: list[int], covers: bool) -> Any:
    at, total = 0, None
    for k, size in enumerate(sizes):
        part = L.slice(x, axes=[0], starts=[at], ends=[at + size])
        term = L.reduce_sum(part * part) * float(k + 1)
        total, at = term if total is None else total + term, at + size + (not covers)
    return total


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("covers", [True, False])
def test_gradients_of_slices(covers: bool, place: str) -> None:
    """Of slices that tile an input, or leave numbers out, whose gradients are 0."""
    sizes = [MIN_NEST_ELEMENTS, 5, 300]
    total = sum(sizes) + (0 if covers else 2)
    values = RNG.normal(size=total).astype("float32")
    x = L.data("x", [total], append_batch_size=False)
    x.stop_gradient = False
    (grad,) = fluid.gradients([_terms(x, sizes, covers)], [x])
    (found,) = fluid.Executor(place, fallback="allow").run(feed={"x": values}, fetch_list=[grad])
    factors, at = np.zeros(total), 0
    for k, size in enumerate(sizes):
        factors[at : at + size] = k + 1
        at += size + (not covers)
    np.testing.assert_allclose(found, 2 * factors * values, rtol=1e-5)
