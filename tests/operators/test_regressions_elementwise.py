"""Elementwise operators: broadcasting among dims of 1, numbers that are none, functions far from 0."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.errors import ShapeError
from fluidlite.conformance.reference import Oracle
from fluidlite.conformance.samples import Sample
from fluidlite.program.registry import ops
from fluidlite.testing import Case, check_gradient, check_sample, reference_of

EVERYWHERE = [str(place) for place in fluid.places()]
PLACES = [place for place in EVERYWHERE if not place.startswith("fpga")]
ON_PURPOSE = "straight_through_max"
"""Its gradient is no derivative."""
ONE_TENSOR = [
    op.type
    for op in ops
    if op.scalar and op.grad and not op.random and op.type != ON_PURPOSE and reference_of(op.type)
    if [slot.name for slot in op.inputs if not slot.dispensable] == ["X"] and any(a.type == "float" for a in op.attrs)
]


def run(place: str, type: str, feed: dict[str, Any], attrs: dict[str, Any] | None = None, out: str = "Out") -> Any:
    program = fluid.Program()
    block = program.global_block()
    inputs = {
        slot: block.create_var(slot.lower(), array.shape, str(array.dtype), is_data=True)
        for slot, array in feed.items()
    }
    block.append_op(type, inputs, {out: block.create_var("out")}, attrs or {})
    (result,) = fluid.Executor(place).run(program, {k.lower(): v for k, v in feed.items()}, ["out"])
    return result


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("x", "y", "axis", "dtypes"),
    [((1, 4), (4,), -1, ("float32", "float16", "bfloat16")), ((1, 4), (4,), 1, ("float32",)),
     ((1, 1, 4), (1, 4), 1, ("float16",)), ((1, 3, 4), (3, 4), -1, ("bfloat16",)), ((1, 3, 1), (3, 1), 1, ("float32",)),
     ((4,), (1, 4), -1, ("float32",))],
)  # fmt: skip
def test_operands_of_other_ranks_that_fill_each_other(
    place: str, x: Any, y: Any, axis: int, dtypes: tuple[str, ...]
) -> None:  # fmt: skip
    """Which dims meet is the same for all dtypes."""
    rng = np.random.default_rng(0)
    inputs = {"X": rng.uniform(1, 2, x).astype("float32"), "Y": rng.uniform(1, 2, y).astype("float32")}
    for type, dtype in itertools.product(("elementwise_add", "elementwise_max", "elementwise_div"), dtypes):
        case = Case(ops.get(type), Sample(inputs, {"axis": axis}, ("X", "Y")), "ranks", dtype)
        check_sample(case, place)
        check_gradient(case, place)


def test_an_axis_beyond_all_memory() -> None:
    block = fluid.Program().global_block()
    x, y = block.create_var("x", [4, 5], "float32"), block.create_var("y", [5], "float32")
    with pytest.raises(ShapeError, match="start at dim 2147483648"):
        block.append_op("elementwise_add", {"X": x, "Y": y}, {"Out": block.create_var("out")}, {"axis": 2**31})


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("type", ["hard_shrink", "thresholded_relu", "softshrink", "relu", "relu6", "brelu", "elu"])
def test_nan_stays(place: str, type: str) -> None:
    x = np.array([np.nan, 3.0], "float32")
    assert np.isnan(run(place, type, {"X": x})).tolist() == [True, False]


@pytest.mark.parametrize("place", PLACES)
def test_the_error_function_is_one_far_from_0(place: str) -> None:
    x = np.array([-np.inf, -1e6, -4.2, 4.2, 1e6, np.inf], "float32")
    np.testing.assert_array_equal(run(place, "erf", {"X": x}), np.sign(x))
    far = np.array([-1e6, -200.0, 200.0], "float32")
    np.testing.assert_allclose(run(place, "gelu", {"X": far}), [0, 0, 200], rtol=0, atol=1e-35)
    tail = run(place, "gelu", {"X": np.array([-7.5, -9.0, -11.0, -12.5], "float32")})
    exact = np.array([0.5 * x * math.erfc(-x / math.sqrt(2)) for x in (-7.5, -9.0, -11.0, -12.5)])
    assert (np.abs(np.log2(tail / exact)) < 1.01).all()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("x", "y", "axis", "dims"), [((), (2, 3), -1, (2, 3)), ((2, 3), (1,), 2, (2, 3)), ((2, 3), (1, 1), 1, (2, 3))]
)
def test_unknown_dims_that_may_be_one(place: str, x: Any, y: Any, axis: int, dims: Any) -> None:
    """What is right for known dims is not refused while they are unknown: two unknown dims are not one element."""
    program = fluid.Program()
    block = program.global_block()
    inputs = {slot: block.create_var(slot, [-1] * len(d), "float32", is_data=True) for slot, d in (("X", x), ("Y", y))}
    block.append_op("elementwise_add", inputs, {"Out": block.create_var("out")}, {"axis": axis})
    feed = {"X": np.full(x, 2, "float32"), "Y": np.full(y, 3, "float32")}
    (out,) = fluid.Executor(place).run(program, feed, ["out"])
    assert out.shape == dims and (out == 5).all()


@pytest.mark.parametrize("type", ONE_TENSOR)
@pytest.mark.parametrize("place", EVERYWHERE)
def test_gradients_under_attributes_of_any_sign_and_size(place: str, type: str) -> None:
    """On which side of a kink X lies says X; the sign of Out says it for some attributes alone."""
    op = ops.get(type)
    floats = [attr for attr in op.attrs if attr.type == "float"]
    x = np.arange(-3.987, 4, 0.2)  # nowhere near a kink
    if type == "pow":
        x = np.abs(x) + 0.5  # differences are of little use where it is steep
    for attr, value in itertools.product(floats, (-1.5, -0.5, 0.0, 0.5, 1.5, 3.0)):
        attrs = {each.name: 1.0 for each in floats if each.default is None} | {attr.name: value}
        case = Case(op, Sample({"X": x}, attrs, ("X",)), f"{attr.name}={value}", "float64")
        if np.isfinite(Oracle(case).outputs["Out"]).all():
            check_gradient(case, place)


@pytest.mark.parametrize("place", EVERYWHERE)
@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
@pytest.mark.parametrize("how", ["attribute", "one number", "tensor"])
def test_derivatives_of_whole_powers_at_0(place: str, mode: str, how: str) -> None:
    """Each is a number: c (c - 1) ... times the power that is left, and 0 once the factor is."""
    x = np.array([0.0, 1.5, -2.0, -0.0], "float32")
    for c in (0.0, 1.0, 2.0, 3.0):
        program, factor = fluid.Program(), 1.0
        with fluid.program_guard(program, fluid.Program()):
            base = layers.data("x", [4], append_batch_size=False)
            base.stop_gradient = False
            if how == "tensor":
                found = [layers.elementwise_pow(base, layers.fill_constant([4], "float32", c))]
            else:
                found = [layers.pow(base, c if how == "attribute" else layers.fill_constant([1], "float32", c))]
            for _ in range(4):
                found += fluid.gradients(found[-1:], [base])
        for order, got in enumerate(fluid.Executor(place, mode=mode).run(program, {"x": x}, found)):
            exact = factor * np.power(x, c - order) if factor else np.zeros(4)
            np.testing.assert_allclose(got, exact, rtol=1e-5, atol=0, err_msg=f"{c} {order}")
            factor *= c - order


@pytest.mark.parametrize("place", EVERYWHERE)
@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_derivatives_by_the_exponent_of_0(place: str, mode: str) -> None:
    """Those of a power that stays 0 are 0; of 0 to the 0 too, as others have it."""
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x, y = (layers.data(name, [5], append_batch_size=False) for name in "xy")
        y.stop_gradient = False
        (grad,) = fluid.gradients([layers.elementwise_pow(x, y)], [y])
    feed = {"x": np.array([0, 0, 0, 2, 3], "float32"), "y": np.array([0, 0.5, 2, 2, -1], "float32")}
    (got,) = fluid.Executor(place, mode=mode).run(program, feed, [grad])
    np.testing.assert_allclose(got, [0, 0, 0, 4 * math.log(2), math.log(3) / 3], rtol=1e-6)


def test_unknown_dims_that_cannot_fit() -> None:
    block = fluid.Program().global_block()
    x, y = block.create_var("x", [4, 5], "float32"), block.create_var("y", [3, -1], "float32")
    with pytest.raises(ShapeError, match="dims that broadcast"):
        block.append_op("elementwise_add", {"X": x, "Y": y}, {"Out": block.create_var("out")}, {"axis": 1})
