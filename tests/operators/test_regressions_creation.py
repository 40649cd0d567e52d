"""Numbers that are too large, or none, where whole numbers and sizes are made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import AttributeValueError, ShapeError

PLACES = [place for place in map(str, fluid.places()) if not place.startswith("fpga")]
INF, NAN = float("inf"), float("nan")
X = np.zeros((1, 1, 2, 2), "float32")


def run(place: str, type: str, feed: dict[str, Any], attrs: dict[str, Any]) -> Any:
    program = fluid.Program()
    block = program.global_block()
    inputs = {slot: block.create_var(slot, a.shape, str(a.dtype), is_data=True) for slot, a in feed.items()}
    block.append_op(type, inputs, {"Out": block.create_var("out")}, attrs)
    (result,) = fluid.Executor(place).run(program, feed, ["out"])
    return result


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_whole_numbers_are_filled_in_or_refused(place: str, dtype: str) -> None:
    for value, expected in ((-2.7, -2), (2.7, 2), (INF, None), (-INF, None), (1e30, None), (NAN, None)):
        one = {"value": value, "dtype": dtype}
        like = {"X": np.zeros((2, 3), "float32")}
        batch = {"Input": np.zeros((2, 3), "float32")}
        for type, feed, attrs in (
            ("fill_constant", {}, {"shape": [2], **one}),
            ("fill_constant", {}, {"shape": [2], "str_value": str(value), "dtype": dtype}),
            ("fill_any_like", like, one),
            ("fill_constant_batch_size_like", batch, {"shape": [-1, 2], **one}),
            ("fill", {}, {"shape": [1], "value": [value], "dtype": dtype}),
        ):
            if expected is None:
                with pytest.raises(AttributeValueError, match=f"expected a? ?numbers? from -.*{dtype}"):
                    run(place, type, feed, attrs)
            else:
                array = run(place, type, feed, attrs)
                assert array.dtype == dtype
                assert set(array.ravel().tolist()) == {expected}, value


def test_truth_is_filled_in() -> None:
    for value in (INF, NAN, 0.5):
        assert run("cpu:0", "fill_constant", {}, {"shape": [2], "value": value, "dtype": "bool"}).all()
        assert run("cpu:0", "fill", {}, {"shape": [2], "value": [value] * 2, "dtype": "bool"}).all()


@pytest.mark.parametrize("value", [INF, 1e30, -1e12])
def test_a_padding_that_the_dtype_does_not_hold(value: float) -> None:
    block = fluid.Program().global_block()
    x = block.create_var("x", [2], "int32")
    with pytest.raises(AttributeValueError, match="becomes one of int32"):
        block.append_op("pad", {"X": x}, {"Out": block.create_var("out")}, {"paddings": [1, 1], "pad_value": value})


@pytest.mark.parametrize("slot", ["Start", "End", "Step"])
@pytest.mark.parametrize("value", [NAN, INF])
def test_a_range_of_numbers_that_are_none(slot: str, value: float) -> None:
    feed = {name: np.array([n], "float32") for name, n in (("Start", 0), ("End", 3), ("Step", 1))}
    feed[slot][0] = value
    with pytest.raises(ShapeError, match=f"{slot} is .*a finite number"):
        run("cpu:0", "range", feed, {})


def test_a_scale_beyond_all_images() -> None:
    way = {"interp_method": "nearest"}
    for scale in (INF, 1e30):
        with pytest.raises(AttributeValueError, match="fewer rows and columns"):
            run("cpu:0", "nearest_interp", {"X": X}, {**way, "scale": scale})
        with pytest.raises(ShapeError, match="fewer rows and columns"):
            run("cpu:0", "nearest_interp", {"X": X, "Scale": np.array([scale], "float32")}, way)
    with pytest.raises(ShapeError, match=r"Scale is .*one number"):
        run("cpu:0", "nearest_interp", {"X": X, "Scale": np.zeros(0, "float32")}, way)


@pytest.mark.parametrize("place", PLACES)
def test_a_window_far_from_the_next(place: str) -> None:
    attrs = {"ksize": [2, 2], "strides": [1, 2**33]}
    x = np.arange(6, dtype="float32").reshape(1, 1, 3, 2)
    np.testing.assert_array_equal(run(place, "max_pool2d_with_index", {"X": x}, attrs)[0, 0], [[3], [5]])


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_random_rows_are_as_many_as_rows_and_constant_ones_as_sequences(mode: str) -> None:
    """Of a LoD tensor, Fluid's constant layer counts sequences; its random layers count rows."""
    layers = fluid.layers
    x = layers.data("x", [2], lod_level=1)
    noise = layers.gaussian_random_batch_size_like(x, [-1, 2])
    uniform = layers.uniform_random_batch_size_like(x, [-1, 3])
    constant = layers.fill_constant_batch_size_like(x, [-1, 2], "float32", 1.0)
    exe = fluid.Executor("cpu", mode=mode)
    for lengths in ([2, 0, 3], [5]):
        fed = fluid.create_lod_tensor(np.zeros((5, 2), "float32"), [lengths], fluid.CPUPlace())
        a, b, c = exe.run(feed={"x": fed}, fetch_list=[noise, uniform, constant])
        assert (a.shape, b.shape, c.shape) == ((5, 2), (5, 3), (len(lengths), 2))
        assert len(np.unique(a)) == 10
