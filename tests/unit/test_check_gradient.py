"""check_gradient of programs, graphs and functions: it passes what is right, and says where something is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import graph as ng, layers
from fluidlite.errors import GradientError
from fluidlite.program.kernel_registry import kernels, register_kernel
from fluidlite.testing import GradientMismatch, check_gradient

PLACES = [str(place) for place in fluid.places()]
STEPS = {"float64": 1e-8, "float32": 5e-3, "float16": 5e-2, "bfloat16": 1e-1}


@pytest.fixture(autouse=True)
def _own_programs() -> Iterator[None]:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        yield


def rand(*dims: int, seed: int = 0, low: float = -1.0, high: float = 1.0) -> Any:
    return np.random.default_rng(seed).uniform(low, high, dims)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "used twice": (lambda x: x * ng.exp(x) + x, (rand(3),)),
    "broadcast": (lambda x, y: ng.tanh(x) * y, (rand(3, 1), rand(2, seed=1))),
    "scalar": (lambda x: x * x, (np.asarray(0.5),)),
    "softmax": (lambda x, t: ng.cross_entropy_multi(ng.softmax(x), t), (rand(3, 4), rand(3, 4, low=0, seed=1))),
    "matmul": (lambda x, y: ng.sum(x @ y), (rand(2, 3), rand(3, 4, seed=1))),
    "remainder": (lambda x: x % 3.0 + x * x, (np.asarray([0.5, 4.0, -2.0]),)),
    "empty": (lambda x: ng.sum(x), (rand(0, 3),)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(place: str, name: str) -> None:
    function, arrays = FUNCTIONS[name]
    report = check_gradient(function, place, arrays)
    assert report.right
    assert len(report.inputs) == len(arrays)
    assert [found.compared for found in report.inputs] == [a.size for a in arrays]
    assert all(found.error < 1e-8 for found in report.inputs)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_steps_suit_the_dtype(dtype: str) -> None:
    x = layers.data("x", [2, 3], append_batch_size=False, dtype=dtype, stop_gradient=False)
    y = layers.reduce_sum(layers.elementwise_mul(layers.tanh(x), layers.exp(x)), dim=1)
    report = check_gradient(y, "cpu", feed={x: rand(2, 3)})
    assert report.worst.dtype == dtype
    assert report.worst.error < STEPS[dtype]
    assert f"x {dtype}[2, 3]: 0 of 6 wrong; worst at [" in str(report)


@pytest.mark.parametrize("place", PLACES)
def test_a_program_with_parameters_and_a_batch(place: str) -> None:
    x = layers.data("x", [4], stop_gradient=False)
    label = layers.data("label", [1], dtype="int64")
    hidden = layers.fc(x, 5, act="tanh")
    loss = layers.mean(layers.softmax_with_cross_entropy(layers.fc(hidden, 3), label))
    fluid.optimizer.Adam(0.1).minimize(loss)  # which changes state, and is no part of the loss
    exe, scope = fluid.Executor(place), fluid.Scope()
    exe.run(fluid.default_startup_program(), scope=scope)
    before = np.array(scope.find_var("fc_0.w_0").get_tensor().numpy())
    text = fluid.default_main_program().to_string()
    feed = {"x": rand(6, 4), "label": np.arange(6).reshape(6, 1) % 3}
    report = check_gradient(loss, place, feed=feed, scope=scope)
    assert {found.name for found in report.inputs} == {"x", "fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0"}
    assert [found.compared for found in check_gradient(loss, place, feed=feed, scope=scope, elements=3).inputs] == [
        3
    ] * 5
    np.testing.assert_array_equal(scope.find_var("fc_0.w_0").get_tensor().numpy(), before)
    assert fluid.default_main_program().to_string() == text


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_random_operators_draw_the_same(mode: str) -> None:
    x = layers.data("x", [8, 5], append_batch_size=False, dtype="float64", stop_gradient=False)
    noise = layers.cast(layers.gaussian_random([8, 5]), "float64")
    y = layers.dropout(layers.exp(x) * noise, 0.4)
    report = check_gradient(y, "cpu", feed={x: rand(8, 5)}, mode=mode)
    assert report.worst.error < 1e-8


def test_a_graph_with_state() -> None:
    x, w = ng.placeholder((3,), "float64"), ng.variable((3,), rand(3), "float64")
    count = ng.variable((), 0.0)
    loss = ng.sequential([ng.assign(count, count + 1), ng.sum(ng.sin(x * w))])
    report = check_gradient(loss, "cpu", feed={x: rand(3, seed=2)})
    assert {found.name for found in report.inputs} == {x.name, w.name, count.name}
    given = check_gradient(loss, "cpu", feed={x: rand(3, seed=2), w: rand(3, seed=3)}, wrt=[w])
    assert [found.name for found in given.inputs] == [w.name]


def test_one_input_of_several() -> None:
    x = layers.data("x", [3], append_batch_size=False, dtype="float64")  # stop_gradient is True
    y = layers.data("y", [3], append_batch_size=False, dtype="float64", stop_gradient=False)
    feed = {"x": rand(3), "y": rand(3, seed=1)}
    assert [found.name for found in check_gradient(x * y, feed=feed).inputs] == ["y"]
    assert [found.name for found in check_gradient(x * y, feed=feed, wrt=["x"]).inputs] == ["x"]


# --- what is wrong ---------------------------------------------------------------------------------------------------


def test_a_wrong_kernel_is_found_with_both_values() -> None:
    def tanh_grad(call: Any, context: Any) -> Any:
        def run(context: Any, io: Any) -> None:
            out = io.array("Out")
            grad = io.array("Out@GRAD") * (1 - out * out)
            grad[1] *= 1.5
            io.array("X@GRAD")[...] = grad

        return run

    kernel = register_kernel("tanh_grad", "cpu", library="wrong")(tanh_grad)
    try:
        with pytest.raises(GradientMismatch) as info:
            check_gradient(lambda x: ng.sum(ng.tanh(x)), "cpu", [np.asarray([0.5, 0.25, -0.5])], mode="interpreted")
    finally:
        kernels.remove(kernel)
    worst = info.value.report.worst
    assert (worst.index, worst.wrong) == ((1,), 1)
    right = 1 - np.tanh(0.25) ** 2
    assert worst.gradient == pytest.approx(1.5 * right)
    assert worst.difference == pytest.approx(right)
    assert "1 of 3 wrong; worst at [1]: gradient 1.4" in str(info.value)


def test_a_path_that_stops_is_found() -> None:
    x = layers.data("x", [3], append_batch_size=False, dtype="float64", stop_gradient=False)
    square = layers.square(x)
    square.stop_gradient = True
    with pytest.raises(GradientMismatch, match="3 of 3 wrong"):
        check_gradient(layers.exp(x) * square, feed={x: rand(3, low=0.5)})
    with pytest.raises(GradientMismatch, match="gradient 0, difference"):
        check_gradient(layers.scale(square, 1.0), feed={x: rand(3, low=0.5)})


def test_what_cannot_be_checked() -> None:
    x = layers.data("x", [3], append_batch_size=False, dtype="float64", stop_gradient=False)
    y = layers.exp(x)
    with pytest.raises(GradientError, match="cannot be changed by itself"):
        check_gradient(layers.square(y), feed={x: rand(3)}, wrt=[y])
    with pytest.raises(GradientError, match="clip_by_norm"):
        check_gradient(layers.clip_by_norm(x, 1.0), feed={x: rand(3)})
    with pytest.raises(GradientError, match="expected one value"):
        check_gradient(lambda x: None, "cpu", [rand(3)])
    with pytest.raises(GradientError, match="takes a case, a variable or a function"):
        check_gradient(3)  # type: ignore[call-overload]
