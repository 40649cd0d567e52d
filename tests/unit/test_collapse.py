"""Axes that all primitives of a trace go through as through one are one before loops are made."""

from __future__ import annotations

import gc
from collections.abc import Callable
from math import prod
from typing import Any
from weakref import ref

import pytest

from fluidlite.expr import reductions, views
from fluidlite.expr.indexing import take
from fluidlite.expr.primitives import TENSOR_PRIMITIVES
from fluidlite.expr.tensor import Tensor, apply_scalar, cast
from fluidlite.expr.traced import Traced, trace, values_of
from fluidlite.expr.windows import window
from fluidlite.render.loops.collapse import MATCHES, collapsed

Shape = tuple[int, ...]
ROW, COLUMN = (1, -1, 1, 1), (1, 1, 1, -1)


def traced(function: Callable[..., Any], *dims: Shape, dtypes: tuple[str, ...] = ()) -> Traced:
    dtype = dtypes or ("float32",) * len(dims)
    operands = {f"X{k}": [(each, one)] for k, (each, one) in enumerate(zip(dims, dtype, strict=True))}

    def made(given: dict[str, tuple[Tensor, ...]], floats: Any) -> dict[str, Any]:
        found = function(*(x for (x,) in given.values()))
        return {f"Out{k}": x for k, x in enumerate(found if isinstance(found, tuple) else (found,))}

    return trace(made, operands)


def ranks(function: Callable[..., Any], *dims: Shape, dtypes: tuple[str, ...] = ()) -> list[int]:
    """How many axes each operand and then each result has left; each dim is checked to be a product of the dims."""
    before = traced(function, *dims, dtypes=dtypes)
    after = collapsed(before)
    values = values_of({f"X{k}": [(each, "float32")] for k, each in enumerate(dims)})
    for old, new in ((before.inputs, after.inputs), (before.outputs, after.outputs)):
        for slot in old:
            for a, b in zip(old[slot], new[slot], strict=True):
                assert prod(d.evaluate(values) for d in a.dims) == prod(d.evaluate(values) for d in b.dims)
                assert a.dtype == b.dtype
    return [x.rank for side in (after.inputs, after.outputs) for found in side.values() for x in found]


def norm(x: Tensor, scale: Tensor, shape: Shape = ROW) -> Tensor:
    """Multiplied by a factor for each of a dim, and what is left of its mean."""
    kept = shape.index(-1)
    axes = [axis for axis in range(4) if axis != kept]
    scaled = x * views.broadcast(views.reshape(scale, shape), x.dims)
    return scaled - views.broadcast(reductions.reduce_sum(x, axes, keep=True), x.dims)


@pytest.mark.parametrize(
    ("function", "dims", "left"),
    [
        (lambda x, y: apply_scalar("tanh", x) + y, [(2, 3, 4, 5)] * 2, [1, 1, 1]),
        (norm, [(2, 3, 4, 5), (3,)], [3, 1, 3]),
        (lambda x, y: norm(x, y, COLUMN), [(2, 3, 4, 5), (5,)], [2, 1, 2]),
        (lambda x: reductions.reduce_sum(x, [0, 1]), [(2, 3, 4, 5)], [2, 1]),
        (lambda x: reductions.reduce_sum(x, [1, 3], keep=True), [(2, 3, 4, 5)], [4, 4]),
        (lambda x: reductions.reduce_sum(x, [0, 1, 2, 3]), [(2, 3, 4, 5)], [1, 0]),
        (lambda x: views.transpose(x, [0, 2, 3, 1]), [(2, 3, 4, 5)], [3, 3]),
        (lambda x: views.transpose(x, [2, 3, 0, 1]), [(2, 3, 4, 5)], [2, 2]),
        (lambda x: views.slice_axis(x, 1, 1, 2), [(2, 3, 4, 5)], [3, 3]),
        (lambda x: views.flip(x, 3), [(2, 3, 4, 5)], [2, 2]),
        (lambda x: views.pad(x, [0, 0, 1, 0], [0, 0, 0, 0]), [(2, 3, 4, 5)], [3, 3]),
        (lambda x, y: views.concat([x, y], 1), [(2, 3, 4, 5), (2, 7, 4, 5)], [3, 3, 3]),
        (lambda x: window(x, 2, 2, 1, 1), [(2, 3, 4, 5)], [3, 4]),
        (lambda x: views.iota(x.dims, 1, "int64") + cast(x, "int64"), [(2, 3, 4, 5)], [3, 3]),
        (lambda x, y: reductions.matmul(x, y), [(2, 3, 4, 5), (2, 3, 5, 6)], [3, 3, 3]),
    ],
)
def test_axes_that_stay_together_are_one(function: Callable[..., Any], dims: list[Shape], left: list[int]) -> None:
    assert ranks(function, *dims) == left


def test_rows_that_are_taken_keep_their_own_axis() -> None:
    table, indices = (7, 4, 5), (2, 3)
    assert ranks(lambda x, i: take(x, i, 0), table, indices, dtypes=("float32", "int64")) == [2, 1, 2]


def test_reshapes_between_what_is_one_axis_go() -> None:
    def function(x: Tensor) -> Tensor:
        return views.reshape(views.reshape(x, [-1, x.dims[3]]) + 1.0, x.dims)

    found = collapsed(traced(function, (2, 3, 4, 5)))
    assert [x.op for x in found.every] == ["input", "number", "map"]


def test_an_axis_that_is_read_in_parts_elsewhere_stays_in_parts() -> None:
    """What is one dim of a reshape is several where another reader goes through these one by one: all do then."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        rows = views.reshape(x, [-1, x.dims[3]]) * 2.0
        return views.reshape(rows, x.dims) + views.broadcast(views.reshape(y, (-1, 1, 1, 1)), x.dims)

    assert ranks(function, (2, 3, 4, 5), (2,)) == [2, 1, 2]


def test_ones_between_do_not_join_what_is_broadcast_apart() -> None:
    """As the gradient of a mean of images is spread over them: one axis after the other."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        wide = views.broadcast(views.reshape(y, [y.dims[0], 1, 1, y.dims[1]]), [x.dims[0], 1, x.dims[2], x.dims[3]])
        return x * views.broadcast(wide, x.dims)

    assert ranks(function, (2, 3, 4, 5), (2, 5)) == [4, 2, 4]


def test_results_of_equal_dims_keep_equal_axes() -> None:
    """So that one loop may store both."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1.0, views.slices(y, [0, 0, 0, 0], x.dims)

    assert ranks(function, (2, 3, 4, 5), (3, 4, 5, 6)) == [4, 4, 4, 4]


def test_sizes_that_are_equal_by_chance_join_nothing() -> None:
    """Text for some sizes has to be right for others: axes are one for all calls, or two."""

    def function(x: Tensor) -> Tensor:
        return views.transpose(views.reshape(x, [x.dims[1], x.dims[0], -1]), [1, 0, 2])

    assert ranks(function, (4, 4, 4)) == ranks(function, (2, 6, 5))


@pytest.mark.parametrize("axes", [[0, 1, 2, 3], [1, 3]])
def test_a_trace_goes_when_nobody_holds_it(axes: list[int]) -> None:
    """Whether its axes became others or not."""
    found = traced(lambda x: reductions.reduce_sum(x, axes), (2, 3, 4, 5))
    collapsed(found)
    gone = ref(found)
    del found
    gc.collect()
    assert gone() is None


def test_what_is_said_of_axes_is_known_of_primitives() -> None:
    assert set(TENSOR_PRIMITIVES) >= set(MATCHES)
