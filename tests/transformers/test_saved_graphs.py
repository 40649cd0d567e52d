"""Programs of the functional front, written as JSON and read again."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
import fluidlite.graph as ng
from fluidlite.program.registry import ops
from fluidlite.transformers import Transformer, make_transformer


def again() -> fluid.Program:
    """The main program, from its own text."""
    text = fluid.default_main_program().to_json()
    read = fluid.Program.from_json(text)
    assert read.to_json() == text
    return read


def test_actions_sequences_and_state(transformer: Transformer) -> None:
    x = ng.placeholder((2,))
    v = ng.variable((2,), 1.0)
    t = ng.temporary((2,))
    table = ng.constant(np.float32([1, 2]))
    put = ng.sequential([ng.assign(t, x * table), ng.assign(v, v + t)])
    both = ng.sequential([put, v * 2])
    slope = ng.deriv(ng.sum(ng.square(v)), v)
    first = transformer.computation([both, slope, put, v], x)
    block = again().global_block()
    named = [block.var(value.name) for value in (both, slope, put, v)]
    second = make_transformer().computation(named, block.var(x.name))
    for _ in range(2):
        for found, wanted in zip(second([1, 1]), first([1, 1]), strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_the_front_goes_on_where_it_was(cpu: Transformer) -> None:
    v = ng.variable((2,), 5.0)
    t = ng.temporary((2,))
    ng.assign(v, v + 1)
    table = ng.constant(np.float32([1, 2]))
    program = again()
    block = program.global_block()
    with fluid.program_guard(program):
        new, cell, fixed = (block.var(value.name) for value in (v, t, table))
        found = cpu.computation(ng.sequential([ng.assign(cell, new), ng.assign(new, cell * 2), new + fixed]))()
        np.testing.assert_array_equal(found, [11, 12])
        with pytest.raises(ValueError, match="cannot be assigned"):
            ng.assign(fixed, 1.0)
        assert cpu.computation(None, new)([7, 7]) is None
        with pytest.raises(ValueError, match="cannot be an argument"):
            cpu.computation(None, fixed)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int64", "bool"])
def test_initial_values_keep_every_bit(dtype: str, cpu: Transformer) -> None:
    array = np.asarray([[0.1, -0.0, 3.0]], "float64").astype(fluid.plugin.numpy_dtype(dtype))
    kept = ng.variable((1, 3), array, dtype)
    number = ng.variable((2,), 1, dtype)
    computed = ng.variable((2,), number, dtype)
    block = again().global_block()
    results = cpu.computation([block.var(value.name) for value in (kept, number, computed)])()
    for found, wanted in zip(results, (array, np.ones(2), np.ones(2)), strict=True):
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found.astype("float64"), wanted.astype("float64"))
    assert dtype in ("int64", "bool") or np.signbit(results[0].astype("float64"))[0, 1]


def test_a_callable_initial_value_is_not_saved(cpu: Transformer) -> None:
    v = ng.variable((2,), lambda dims: np.ones(dims))
    read = again().global_block().var(v.name)
    computation = cpu.computation(read)
    with pytest.raises(ValueError, match="give it an initial_value, assign it first, or pass it as an argument"):
        computation()
    read.initial = 3.0  # type: ignore[attr-defined]
    np.testing.assert_array_equal(cpu.computation(read)(), [3, 3])


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"initial_of": "nobody"}, "which is not there"),
        ({"initial_of": ["v"]}, "not a valid program"),
        ({"initial": [1, 2, 3]}, "not a valid program"),
        ({"initial": "ten"}, "not a valid program"),
        ({"initial": {}}, "not a valid program"),
        ([], "node is"),
    ],
)
def test_nonsense(facts: Any, word: str) -> None:
    ng.variable((2,), 1.0)
    record = json.loads(fluid.default_main_program().to_json())
    record["blocks"][0]["vars"][0]["node"] = facts
    with pytest.raises(fluid.errors.SavedModelError, match=word):
        fluid.Program.from_json(json.dumps(record))


def test_no_place_runs_what_orders_and_stores(cpu: Transformer) -> None:
    """The registry finds the two operators, and lists none of them."""
    assert ops.find("write_state") is not None
    assert "sequential" in ops
    assert not {"write_state", "sequential"}.intersection(op.type for op in ops)
    x = ng.placeholder((2,))
    last = ng.sequential([x * 2, x * 3])
    feed = {x.name: np.ones(2, "float32")}
    exe = fluid.Executor("cpu")
    with pytest.raises(fluid.FluidError, match="sequential"):
        exe.run(feed=feed, fetch_list=[last])
    np.testing.assert_array_equal(cpu.computation(last, x)([1, 1]), [3, 3])
