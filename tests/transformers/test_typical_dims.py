"""Dims for the cost model: substituted in those that are known, or inferred where an operator computed with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import cycle

import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.passes.fuse_dims import GenericDims, equivalence_classes, generic_dims, typical_dims
from fluidlite.compiler.passes.fuse_expressions import TYPICAL_DIMS
from fluidlite.program.variable import Variable


def _products() -> Variable:
    """Rows of sequences as one dim, which is twice and sixty times an unknown one, and the product of two."""
    x = layers.data("x", [-1, -1, 6], append_batch_size=False)
    rows = layers.softmax(layers.reshape(x, [-1, 6]))
    y = layers.data("y", [10, 6])
    flat = layers.fc(layers.reshape(y, [-1, 6]), 3)
    return layers.mean(layers.concat([layers.reduce_sum(rows, 1), layers.reduce_sum(layers.concat([flat, flat]), 1)]))


def _batch() -> Variable:
    x = layers.data("x", [8])
    return layers.mean(layers.softmax(layers.fc(x, 4, act="relu")) * 2)


def _halved() -> Variable:
    """Sides of a picture that nobody knows, halved."""
    return layers.pool2d(layers.data("x", [-1, 3, -1, -1]), 2, "max", 2)


@pytest.mark.parametrize(("make", "substituted"), [(_batch, True), (_products, False), (_halved, False)])
def test_dims_are_those_that_inference_finds(make: Callable[[], Variable], substituted: bool) -> None:
    out = make()
    graph = Graph(fluid.default_main_program(), [out.name])
    assert (generic_dims(graph).at(TYPICAL_DIMS) is not None) is substituted
    found, inferred = typical_dims(graph, TYPICAL_DIMS), GenericDims(graph, cycle(TYPICAL_DIMS))
    values = [value for op in graph.ops for value in (*op.args, *op.results)]
    assert {value.name: found.dims(value) for value in values} == {v.name: inferred.dims(v) for v in values}


def test_products_of_unknown_dims_are_substituted() -> None:
    out = layers.reshape(layers.data("x", [-1, -1, 6], append_batch_size=False), [-1, 3])
    graph = Graph(fluid.default_main_program(), [out.name])
    found = generic_dims(graph).at(TYPICAL_DIMS)
    assert found is not None
    assert found.dims(graph.results[0]) == (TYPICAL_DIMS[0] * TYPICAL_DIMS[1] * 2, 3)


def _unknown(*names: str) -> list[Variable]:
    return [layers.data(name, [-1, -1], append_batch_size=False) for name in names]


def _dims(found: GenericDims, graph: Graph) -> dict[str, tuple[int, ...] | None]:
    return {value.name: found.dims(value) for op in graph.ops for value in (*op.args, *op.results)}


def test_only_what_an_operator_needs_is_equal() -> None:
    """Rows of summands are as many, and columns; that there are as many columns as rows nobody says."""
    x, y, z = _unknown("x", "y", "z")
    out = layers.sum([layers.sum([x, y]), layers.transpose(z, [1, 0])])
    graph = Graph(fluid.default_main_program(), [out.name])
    dims = _dims(generic_dims(graph), graph)
    assert dims["x"] is not None and len(set(dims["x"])) == 2
    assert dims["x"] == dims["y"] == dims[out.name]
    assert dims["z"] == dims["x"][::-1]


def test_only_what_a_product_sums_is_equal() -> None:
    x, y = _unknown("x", "y")
    graph = Graph(fluid.default_main_program(), [layers.matmul(x, y).name])
    dims = _dims(generic_dims(graph), graph)
    assert dims["x"] is not None and dims["y"] is not None
    assert dims["x"][1] == dims["y"][0] and len({*dims["x"], *dims["y"]}) == 3


def test_what_may_broadcast_is_doubted() -> None:
    x, y = _unknown("x", "y")
    graph = Graph(fluid.default_main_program(), [(x + y).name, layers.sum([x, y]).name])
    found = generic_dims(graph)
    dims = _dims(found, graph)
    assert dims["x"] == dims["y"] and dims["x"] is not None and len(set(dims["x"])) == 2
    assert not found.is_certain(dims["x"])


@pytest.mark.parametrize(
    ("classes", "found"),
    [
        ([{1, 2, 3}], [[1, 2, 3]]),
        ([{1, 3}, {2, 4}], [[1, 3], [2, 4]]),
        ([{1}, {2}, {3, 5}, {4}], [[1], [2], [3, 5], [4]]),
        ([{1, 4, 6}, {2, 3, 5}], [[1, 4, 6], [2, 3, 5]]),
        ([set(range(1, 40))], None),
    ],
)
def test_the_fewest_dims_are_equal(classes: list[set[int]], found: list[list[int]] | None) -> None:
    def works(apart: Iterable[int]) -> bool:
        return all(each <= set(apart) or each.isdisjoint(apart) for each in classes)

    assert equivalence_classes(sorted(set().union(*classes)), works) == found
