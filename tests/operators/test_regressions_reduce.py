"""Reductions and norms: nothing to reduce, and numbers that are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.dtypes import NUMPY
from fluidlite.base.errors import ShapeError
from fluidlite.conformance.samples import Sample
from fluidlite.program.registry import ops
from fluidlite.testing import Case, check_sample

PLACES = [place for place in map(str, fluid.places()) if not place.startswith("fpga")]


@pytest.mark.parametrize("type", ["reduce_max", "reduce_min"])
def test_nothing_has_no_extreme(type: str) -> None:
    block = fluid.Program().global_block()
    out = block.create_var("out")
    cases: list[tuple[Any, Any]] = [([5, 0], {"dim": [1]}), ([0, 3], {}), ([0, 3], {"reduce_all": True})]
    for i, (dims, attrs) in enumerate(cases):
        x = block.create_var(f"x{i}", dims, "float32")
        with pytest.raises(ShapeError, match="1 element or more"):
            block.append_op(type, {"X": x}, {"Out": out}, attrs)
    block.append_op(type, {"X": block.create_var("x", [0, 3], "float32")}, {"Out": out}, {"dim": [1]})
    assert out.shape == (0,)


@pytest.mark.parametrize("type", ["reduce_max", "reduce_min"])
@pytest.mark.parametrize("place", PLACES)
def test_nothing_has_no_extreme_once_it_is_fed(place: str, type: str) -> None:
    program = fluid.Program()
    block = program.global_block()
    x, out = block.create_var("x", [-1, 3], "float32", is_data=True), block.create_var("out")
    block.append_op(type, {"X": x}, {"Out": out}, {})
    with pytest.raises(ShapeError, match="1 element or more"):
        fluid.Executor(place).run(program, {"x": np.zeros((0, 3), "float32")}, [out])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_lines_of_no_elements_have_a_norm(place: str, dtype: str) -> None:
    x = np.zeros((5, 0), "float32")
    check_sample(Case(ops.get("norm"), Sample({"X": x}, {"axis": 1, "epsilon": 0.25}), "lines", dtype), place)


@pytest.mark.parametrize("place", PLACES)
def test_a_norm_that_is_no_number_clips_all(place: str) -> None:
    program = fluid.Program()
    block = program.global_block()
    x, out = block.create_var("x", [3], "float32", is_data=True), block.create_var("out")
    block.append_op("clip_by_norm", {"X": x}, {"Out": out}, {"max_norm": 1.0})
    (found,) = fluid.Executor(place).run(program, {"x": np.array([1, np.nan, 2], "float32")}, [out])
    assert np.isnan(found).all()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_wrap(place: str, dtype: str) -> None:
    """As in NumPy; C leaves an overflow of signed numbers open, so kernels in C add in unsigned words."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = np.array([[high, 1, 5], [low, -1, 3], [high, high, high]], dtype)
    uses = {
        "reduce_sum": ({"dim": [1]}, np.sum(x, axis=1, dtype=dtype)),
        "reduce_prod": ({"dim": [1]}, np.prod(x, axis=1, dtype=dtype)),
        "cumsum": ({"axis": 1}, np.cumsum(x, axis=1, dtype=dtype)),
    }
    for type, (attrs, expected) in uses.items():
        block = fluid.Program().global_block()
        given, out = block.create_var("x", x.shape, dtype, is_data=True), block.create_var("out")
        block.append_op(type, {"X": given}, {"Out": out}, attrs)
        (found,) = fluid.Executor(place).run(block.program, {"x": x}, [out])
        assert found.tolist() == expected.tolist(), type
    block = fluid.Program().global_block()
    feed = {"X": np.array([high, 0], dtype), "Index": np.array([[0], [0]]), "Updates": np.array([1, 5], dtype)}
    inputs = {slot: block.create_var(slot, array.shape, str(array.dtype), is_data=True) for slot, array in feed.items()}
    block.append_op("scatter_nd_add", inputs, {"Out": block.create_var("out")})
    (found,) = fluid.Executor(place).run(block.program, feed, ["out"])
    assert found.tolist() == [low + 5, 0]


@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_the_mean_of_nothing_is_no_number(place: str, dtype: str, mode: str) -> None:
    """As NumPy has it, whatever the dtype."""
    program = fluid.Program()
    block = program.global_block()
    x, out = block.create_var("x", [0, 2], dtype, is_data=True), block.create_var("out")
    block.append_op("reduce_mean", {"X": x}, {"Out": out}, {"dim": [0], "keep_dim": True})
    exe = fluid.Executor(place, fallback="allow", mode=mode)
    (found,) = exe.run(program, {"x": np.zeros((0, 2), NUMPY[dtype])}, [out])
    assert found.dtype == NUMPY[dtype]
    assert np.isnan(found.astype("float64")).tolist() == [[True, True]]
