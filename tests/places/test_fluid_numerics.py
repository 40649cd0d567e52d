"""What keeps training finite in Fluid, and sums that lose no digits: on every place, compiled and interpreted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid

L = fluid.layers
MODES = ("compiled", "interpreted")
PLACES = [*map(str, fluid.places()), "strict"]


@pytest.fixture(scope="module", autouse=True)
def strict(load_plugin: Callable[[str, str], None]) -> None:
    pytest.importorskip("array_api_strict")
    load_plugin("strict", "strict_device")


each_place = pytest.mark.parametrize("place", PLACES)
each_mode = pytest.mark.parametrize("mode", MODES)


def run(place: str, mode: str, build: Callable[..., Any], **feeds: Any) -> list[Any]:
    """Build a program on feeds and return what it fetches, run twice: the second run takes the shorter way."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.scope_guard(fluid.Scope()), fluid.program_guard(main, startup), fluid.unique_name.guard():
        given = {
            name: L.data(name, list(value.shape), dtype=value.dtype.name, append_batch_size=False)
            for name, value in feeds.items()
        }
        for variable in given.values():
            variable.stop_gradient = variable.dtype not in ("float32", "float64")
        found = build(**given)
        exe = fluid.Executor(place, mode=mode)
        exe.run(startup)
        fetches = list(found) if isinstance(found, (list, tuple)) else [found]
        exe.run(main, feeds, fetches)
        return [np.asarray(value) for value in exe.run(main, feeds, fetches)]


def probabilities(x: Any, axis: int = -1) -> Any:
    e = np.exp(np.maximum(x.astype("f8") - x.astype("f8").max(axis=axis, keepdims=True), -64))
    return e / e.sum(axis=axis, keepdims=True)


# softmax -----------------------------------------------------------------------------------------------------------


@each_place
@each_mode
@pytest.mark.parametrize(("dims", "axis"), [((3, 5), -1), ((70, 40), -1), ((5, 3), 0), ((4, 30, 35), 1)])
def test_no_probability_is_zero(place: str, mode: str, dims: tuple[int, ...], axis: int) -> None:
    x = np.random.default_rng(1).uniform(-200, 200, dims).astype("float32")
    (plain,) = run(place, mode, lambda x: L.softmax(x, axis=axis), x=x)
    np.testing.assert_allclose(plain, probabilities(x, axis), rtol=2e-5)
    assert plain.min() >= np.exp(-64.0) / dims[axis] * 0.999
    (between,) = run(place, mode, lambda x: L.scale(L.softmax(L.scale(x, 2.0), axis=axis), 3.0), x=x)
    np.testing.assert_allclose(between, 3 * probabilities(2 * x, axis), rtol=2e-5)


@each_place
@each_mode
def test_its_gradient_is_fluids(place: str, mode: str) -> None:
    """(dout - sum(dout out)) out, as if nothing were limited: cross_entropy's -1 / p takes p away again."""
    x = np.asarray([[0, 100, 20], [-70, 70, 0]], "float32")
    label = np.asarray([[0], [0]], "int64")

    def build(x: Any, label: Any) -> Any:
        cost = L.cross_entropy(L.softmax(x), label)
        return cost, fluid.gradients(L.reduce_sum(cost), [x])[0]

    cost, grad = run(place, mode, build, x=x, label=label)
    p = probabilities(x)
    np.testing.assert_allclose(cost, -np.log(p[:, :1]), rtol=1e-5)
    np.testing.assert_allclose(grad, p - np.eye(3)[label[:, 0]], rtol=2e-5, atol=1e-30)


@each_place
@each_mode
def test_training_stays_finite(place: str, mode: str) -> None:
    """One layer on inputs of 0 to 10: its scores soon are hundreds apart."""
    rng = np.random.default_rng(2)
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    steps = 300 if place.startswith("cpu") and mode == "compiled" else 40
    with fluid.scope_guard(fluid.Scope()), fluid.program_guard(main, startup), fluid.unique_name.guard():
        x, label = L.data("x", [64]), L.data("label", [1], dtype="int64")
        loss = L.mean(L.cross_entropy(L.fc(x, 10, act="softmax"), label))
        fluid.optimizer.Adam(0.05).minimize(loss)
        exe = fluid.Executor(place, mode=mode)
        exe.run(startup)
        costs = []
        for _ in range(steps):
            feed = {"x": rng.uniform(0, 10, (32, 64)).astype("float32"), "label": rng.integers(0, 10, (32, 1))}
            costs.append(float(np.asarray(exe.run(main, feed, [loss])[0]).item()))
        weight = fluid.global_scope().find_var("fc_0.w_0").get_tensor().numpy()
    assert np.isfinite(costs).all() and max(costs) < 70
    assert np.isfinite(weight).all()


# softmax_with_cross_entropy ----------------------------------------------------------------------------------------


@each_place
@each_mode
@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("soft", [False, True])
def test_large_logits_lose_no_digits(place: str, mode: str, rows: int, soft: bool) -> None:
    rng = np.random.default_rng(3)
    x = np.concatenate([[[10000, 10001, 9999]], 1e4 + rng.integers(-80, 80, (rows, 3)) / 16]).astype("float32")
    hard = rng.integers(0, 3, (rows + 1, 1))
    hard[0] = 0
    share = np.eye(3)[hard[:, 0]] * 0.75 + 0.25 / 3
    label = share.astype("float32") if soft else hard
    (cost,) = run(
        place, mode, lambda x, label: L.softmax_with_cross_entropy(x, label, soft_label=soft), x=x, label=label
    )
    less = x.astype("f8") - x.max(axis=1, keepdims=True)
    logs = less - np.log(np.exp(less).sum(axis=1, keepdims=True))
    exact = -(label * logs).sum(axis=1, keepdims=True) if soft else -np.take_along_axis(logs, hard, 1)
    np.testing.assert_allclose(cost, exact, rtol=4e-6, atol=3e-7)


@each_place
def test_a_loss_of_far_logits_has_no_limit(place: str) -> None:
    x, label = np.asarray([[0, 150], [-30, 170]], "float32"), np.zeros((2, 1), "int64")
    (cost,) = run(place, "compiled", L.softmax_with_cross_entropy, logits=x, label=label)
    np.testing.assert_allclose(cost[:, 0], [150, 200], rtol=1e-6)


# Squares that are infinite -----------------------------------------------------------------------------------------


@each_place
@pytest.mark.parametrize("rows", [1, 300])
def test_lengths_are_of_squares(place: str, rows: int) -> None:
    """As Fluid's: 1e30 squared is infinite, and what is divided by that is 0."""
    x = np.tile(np.asarray([[1e30, -2.0, 3.0], [3e-30, 4e-30, 0.0], [3.0, -4.0, 0.0]], "float32"), (rows, 1))
    (out,) = run(place, "compiled", lambda x: L.l2_normalize(x, axis=1), x=x)
    exact = [[0, 0, 0], [3e-24, 4e-24, 0], [0.6, -0.8, 0]]
    np.testing.assert_allclose(out, np.tile(np.asarray(exact, "float32"), (rows, 1)), rtol=1e-6)


# Sums ----------------------------------------------------------------------------------------------------------------

ULPS = 20
"""Blocks of 32, 16 sums side by side, and pairs of those: far less than that; one after the other it is thousands."""
LARGE = {
    "all": ((2, 100000), None),
    "rows": ((4, 50000), [1]),
    "columns": ((50000, 4), [0]),
    "wide_columns": ((9000, 70), [0]),
    "thousands_of_columns": ((4000, 1024), [0]),
    "middle": ((3, 20000, 5), [1]),
    "outer_and_inner": ((2500, 9, 33), [0, 2]),
    "inner_two": ((3, 700, 40), [1, 2]),
}
BUILDS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any], bool]] = {
    "reduce_sum": (L.reduce_sum, lambda x: x, False),
    "reduce_mean": (L.reduce_mean, lambda x: x, True),
    "fused": (lambda x, dim: L.reduce_sum(L.relu(L.scale(x, 2.0)), dim), lambda x: 2 * x, False),
}


@each_place
@each_mode
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("case", LARGE)
def test_large_numbers(place: str, mode: str, case: str, build: str) -> None:
    dims, axes = LARGE[case]
    if place.startswith("fpga") and case != "columns":
        pytest.skip("it has the cpu's kernels: one of them is enough")
    layer, value, mean = BUILDS[build]
    x = (1e8 + np.random.default_rng(4).uniform(-1e3, 1e3, dims)).astype("float32")
    (got,) = run(place, mode, lambda x: layer(x, dim=axes), x=x)
    axis = None if axes is None else tuple(axes)
    exact = value(x.astype("f8")).sum(axis=axis)
    if mean:
        exact = exact / (x.size / exact.size)
    error = np.abs(got.reshape(exact.shape) - exact) / np.spacing(np.abs(exact).astype("float32"))
    assert error.max() <= ULPS


@each_place
def test_the_mean_of_a_million(place: str) -> None:
    x = (1e8 + np.random.default_rng(5).uniform(-1e3, 1e3, 1000000)).astype("float32")
    (got,) = run(place, "compiled", L.mean, x=x)
    assert abs(float(got.item()) - x.astype("f8").mean()) <= 4 * np.spacing(np.float32(1e8))


@each_place
@each_mode
def test_the_gradient_of_a_bias(place: str, mode: str) -> None:
    """The sum over rows over which an operand was broadcast."""
    rng = np.random.default_rng(6)
    x = (1e4 + rng.uniform(-1, 1, (30000, 6))).astype("float32")
    b = rng.uniform(-1, 1, (6,)).astype("float32")

    def build(x: Any, b: Any) -> Any:
        return fluid.gradients(L.reduce_sum(L.elementwise_mul(x, L.elementwise_add(x, b))), [b])[0]

    (got,) = run(place, mode, build, x=x, b=b)
    exact = x.astype("f8").sum(axis=0)
    assert (np.abs(got - exact) <= ULPS * np.spacing(exact.astype("float32"))).all()


@each_place
@each_mode
def test_the_gradient_of_a_layer_norms_bias(place: str, mode: str) -> None:
    """A sum over rows in a kernel of its own."""
    rng = np.random.default_rng(7)
    x = rng.uniform(-1, 1, (20000, 64)).astype("float32")
    dy = rng.uniform(0.9, 1.1, x.shape).astype("float32")

    def build(x: Any, dy: Any) -> Any:
        out = L.layer_norm(x, bias_attr=fluid.ParamAttr("bias"))
        return fluid.gradients(L.reduce_sum(L.elementwise_mul(out, dy)), [x.block.var("bias")])[0]

    (got,) = run(place, mode, build, x=x, dy=dy)
    exact = dy.astype("f8").sum(axis=0)
    assert (np.abs(got - exact) <= ULPS * np.spacing(exact.astype("float32"))).all()
