"""Constant folding: what depends on constants alone is computed once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
import fluidlite.graph as ng
from fluidlite.graph.value import emit
from fluidlite.platform.device_registry import devices
from fluidlite.transformers import Computation, EliminateCopies, FoldConstants, Graph, PassList, Transformer


@pytest.fixture(autouse=True, params=[True, False], ids=["folded", "not folded"])
def folding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    on: bool = request.param
    passes = [FoldConstants()] if on else []
    monkeypatch.setattr("fluidlite.compiler.transformer.default_passes", lambda: PassList(passes))
    return on


def types(computation: Computation) -> list[str]:
    return [op.type for op in computation.transformed.operators]


def test_scalars(folding: bool, transformer: Transformer) -> None:
    x = ng.placeholder((3,))
    computation = transformer.computation(x * (ng.constant(3.0) * 2 + 1), x)
    np.testing.assert_array_equal(computation([1, 2, 3]), [7, 14, 21])
    assert types(computation) == ["fill_constant", "elementwise_mul"] if folding else len(types(computation)) == 6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64", "bool"])
def test_every_number_stays(dtype: str, folding: bool, transformer: Transformer) -> None:
    """What is written into the program is what the operators would have made, to the bit."""
    if dtype == "bool":
        attrs: dict[str, Any] = {"int32_values": [1, 0, 1, 1]}
    elif dtype.startswith("int"):
        attrs = {"int32_values": [0, -1, 2**31 - 1, 2**53 + 1 if dtype == "int64" else -(2**31)]}
    else:
        attrs = {"fp32_values": [0.1, -0.0, float("nan"), float("-inf")]}
    given = emit("assign_value", {}, {"shape": [4], "dtype": dtype, **attrs})
    if dtype not in devices.unit(transformer.place).info.dtypes:
        pytest.skip(f"{transformer.place} has no {dtype}")
    turned = emit("reshape2", {"X": given}, {"shape": [2, 2]})
    same = emit("fill_constant", {}, {"shape": [3], "str_value": "9007199254740993", "dtype": "int64"})
    computation = transformer.computation([turned, emit("reshape2", {"X": same}, {"shape": [3, 1]})])
    found, large = computation()
    if dtype.startswith("float") or dtype == "bfloat16":
        wide = found.astype("float64").reshape(-1)
        assert wide[0] == np.float64(0.1).astype(found.dtype).astype("float64")
        assert wide[1] == 0
        assert np.signbit(wide[1])
        assert np.isnan(wide[2])
        assert wide[3] == -np.inf
    else:
        np.testing.assert_array_equal(found.reshape(-1).astype("int64"), attrs["int32_values"])
    assert (large == 2**53 + 1).all()
    assert types(computation).count("reshape2") == (0 if folding else 2)


def test_one_number_everywhere_is_a_fill(folding: bool, cpu: Transformer) -> None:
    x = ng.placeholder((2, 3))
    ones = emit("fill_constant", {}, {"shape": [2, 3], "value": 1.0, "dtype": "float32"})
    computation = cpu.computation(x - ng.exp(ones * 0) * -0.0, x)
    found = computation(np.full((2, 3), -0.0))
    assert not np.signbit(found).any()
    assert not folding or types(computation) == ["fill_constant", "elementwise_sub"]


def test_the_gradient_of_a_scalar_begins_with_a_constant(folding: bool, cpu: Transformer) -> None:
    w = ng.variable((4,), 2.0)
    computation = cpu.computation(ng.deriv(ng.sum(ng.square(w)), w))
    np.testing.assert_array_equal(computation(), np.full(4, 4.0))
    assert (types(computation) == ["fill_constant", "square_grad"]) == folding


def test_random_operators_and_state_are_not_folded(folding: bool, transformer: Transformer) -> None:
    v = ng.variable((4,), 1.0)
    draw = ng.uniform((4,)) * 1.0 * v
    put = ng.assign(v, v + 1)
    computation = transformer.computation([draw, put, v])
    first, _, one = computation()
    second, _, two = computation()
    assert (first != second / 2).any()
    np.testing.assert_array_equal([one[0], two[0]], [2, 3])
    assert [t for t in types(computation) if "random" in t]


def test_stored_arrays_are_constants(folding: bool, transformer: Transformer) -> None:
    x = ng.placeholder((2,))
    table = ng.constant(np.float32([[1, 2], [3, 4]]))
    weight = ng.variable((2,), 2.0)
    fixed = ng.persistent_tensor((2,), 3.0)
    computation = transformer.computation([x * ng.sum(table), ng.exp(weight - 2), ng.exp(fixed - 3)], x)
    np.testing.assert_array_equal(computation([1, 2]), [[10, 20], [1, 1], [1, 1]])
    assert ("reduce_sum" in types(computation)) != folding
    assert types(computation).count("exp") == 2


def test_an_executors_scope_says_what_a_constant_holds(folding: bool) -> None:
    """Only a transformer gives it its initial value."""
    table = ng.constant(np.float32([1, 2]))
    graph = Graph(fluid.default_main_program(), [ng.exp(table).name])
    (FoldConstants() if folding else EliminateCopies()).do_pass(graph)
    assert [op.type for op in graph] == ["read_state", "exp"]


def test_large_values_are_left(folding: bool, cpu: Transformer) -> None:
    x = ng.placeholder((5000,))
    wide = ng.exp(ng.constant(np.zeros(5000, "float32")))
    large = emit("fill_constant", {}, {"shape": [5000], "value": 1.0, "dtype": "float32"})
    computation = cpu.computation(x * ng.exp(large) * wide, x)
    assert abs(computation(np.ones(5000))[7] - np.e) < 1e-5
    assert types(computation).count("exp") == 2


def test_the_limit_can_be_set(folding: bool, cpu: Transformer) -> None:
    if folding:
        cpu.graph_passes[0] = FoldConstants(most_bytes=8)
    x = ng.placeholder((3,))
    three = emit("fill_constant", {}, {"shape": [3], "value": 1.0, "dtype": "float32"})
    computation = cpu.computation([x * (ng.constant(1.0) + 1), x * ng.exp(three)], x)
    computation([1, 2, 3])
    assert types(computation).count("exp") == 1
    assert types(computation).count("elementwise_add") == (0 if folding else 1)


def test_a_constant_operator_that_fails_fails_when_it_runs(folding: bool, cpu: Transformer) -> None:
    table = emit("assign_value", {}, {"shape": [3, 1], "dtype": "float32", "fp32_values": [1, 2, 3]})
    bad = emit("gather", {"X": table, "Index": ng.constant(7, (1,), "int64")})
    good = emit("gather", {"X": table, "Index": ng.constant(2, (1,), "int64")})
    computation = cpu.computation([good, bad])
    cpu.initialize()
    with pytest.raises(fluid.errors.OutOfRangeError, match=r"gather \(test_passes_fold.py"):
        computation()
    assert cpu.computation(good)() == 3
    assert types(computation).count("gather") == (1 if folding else 2)


def test_dims_from_constants_are_known_early(folding: bool, cpu: Transformer) -> None:
    x = ng.placeholder((6,))
    dims = emit("concat", {"X": [ng.constant(2, (1,), "int32"), ng.constant(1, (1,), "int32") + 2]}, {"axis": 0})
    computation = cpu.computation(emit("reshape2", {"X": x, "Shape": dims}, {"shape": [-1, 3]}), x)
    np.testing.assert_array_equal(computation(np.arange(6)), np.arange(6.0).reshape(2, 3))
    assert ("concat" in types(computation)) != folding
