"""Every optimiser, whole: five steps on each place against the same optimiser written in float64 NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers, optimizer

Array = np.ndarray[Any, Any]
Step = Callable[[Array, Array, "dict[str, Any]", float, int], Array]

STEPS = 5
ROWS = np.random.default_rng(0).normal(size=(8, 3))
START = {"w": np.array([[0.5, 0.3], [-1.0, 0.2], [2.0, -0.7]]), "v": np.array([[0.4], [1.5]])}
RATES = [0.2, 0.2, 0.1, 0.1, 0.1]


KINDS = ("cpu", "opencl")


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, require: Callable[..., None]) -> Iterator[str]:
    require(request.param)
    with (
        fluid.unique_name.guard(),
        fluid.scope_guard(fluid.Scope()),
        fluid.program_guard(fluid.Program(), fluid.Program()),
    ):
        yield f"{request.param}:0"


# The optimisers again, in float64. state starts empty; step counts from 1 ---------------------------------------------


def sgd(w: Array, g: Array, state: dict[str, Any], rate: float, i: int) -> Array:
    return w - rate * g


def momentum(mu: float, nesterov: bool = False) -> Step:
    def step(w: Array, g: Array, state: dict[str, Any], rate: float, i: int) -> Array:
        state["v"] = mu * state.get("v", 0.0) + g
        return w - rate * (g + mu * state["v"] if nesterov else state["v"])

    return step


def lars(mu: float, coeff: float, decay: float) -> Step:
    def step(w: Array, g: Array, state: dict[str, Any], rate: float, i: int) -> Array:
        own = rate * coeff * np.linalg.norm(w) / (np.linalg.norm(g) + decay * np.linalg.norm(w))
        state["v"] = mu * state.get("v", 0.0) + own * (g + decay * w)
        return w - state["v"]

    return step


def adam(b1: float, b2: float, eps: float) -> Step:
    def step(w: Array, g: Array, state: dict[str, Any], rate: float, i: int) -> Array:
        state["m"] = b1 * state.get("m", 0.0) + (1 - b1) * g
        state["v"] = b2 * state.get("v", 0.0) + (1 - b2) * g**2
        return w - rate * np.sqrt(1 - b2**i) / (1 - b1**i) * state["m"] / (np.sqrt(state["v"]) + eps)

    return step


def adamax(b1: float, b2: float, eps: float) -> Step:
    def step(w: Array, g: Array, state: dict[str, Any], rate: float, i: int) -> Array:
        state["m"] = b1 * state.get("m", 0.0) + (1 - b1) * g
        state["u"] = np.maximum(b2 * state.get("u", 0.0) + eps, np.abs(g))
        return w - rate / (1 - b1**i) * state["m"] / state["u"]

    return step


def adagrad(eps: float, first: float = 0.0) -> Step:
    def step(w: Array, g: Array, state: dict[str, Any], rate: float, i: int) -> Array:
        state["s"] = state.get("s", first) + g**2
        return w - rate * g / (np.sqrt(state["s"]) + eps)

    return step


def decayed_adagrad(decay: float, eps: float) -> Step:
    def step(w: Array, g: Array, state: dict[str, Any], rate: float, i: int) -> Array:
        state["s"] = decay * state.get("s", 0.0) + (1 - decay) * g**2
        return w - rate * g / (np.sqrt(state["s"]) + eps)

    return step


def adadelta(rho: float, eps: float) -> Step:
    def step(w: Array, g: Array, state: dict[str, Any], rate: float, i: int) -> Array:
        state["g"] = rho * state.get("g", 0.0) + (1 - rho) * g**2
        move = np.sqrt((state.get("u", 0.0) + eps) / (state["g"] + eps)) * g
        state["u"] = rho * state.get("u", 0.0) + (1 - rho) * move**2
        return w - move

    return step


def rmsprop(rho: float, eps: float, mu: float, centered: bool) -> Step:
    def step(w: Array, g: Array, state: dict[str, Any], rate: float, i: int) -> Array:
        state["s"] = rho * state.get("s", 0.0) + (1 - rho) * g**2
        state["g"] = rho * state.get("g", 0.0) + (1 - rho) * g
        spread = state["s"] - (state["g"] ** 2 if centered else 0.0)
        state["v"] = mu * state.get("v", 0.0) + rate * g / np.sqrt(spread + eps)
        return w - state["v"]

    return step


def ftrl(l1: float, l2: float, power: float) -> Step:
    def step(w: Array, g: Array, state: dict[str, Any], rate: float, i: int) -> Array:
        old = state.get("n", np.zeros_like(w))
        state["n"] = old + g**2
        state["z"] = state.get("z", 0.0) + g - (state["n"] ** -power - old**-power) / rate * w
        shrunk = (l1 * np.sign(state["z"]) - state["z"]) / (state["n"] ** -power / rate + 2 * l2)
        return np.where(np.abs(state["z"]) > l1, shrunk, 0.0)

    return step


def lamb(decay: float, b1: float, b2: float, eps: float) -> Step:
    def step(w: Array, g: Array, state: dict[str, Any], rate: float, i: int) -> Array:
        state["m"] = b1 * state.get("m", 0.0) + (1 - b1) * g
        state["v"] = b2 * state.get("v", 0.0) + (1 - b2) * g**2
        direction = state["m"] / (np.sqrt(state["v"]) + eps) + decay * w
        return w - rate * np.linalg.norm(w) / np.linalg.norm(direction) * direction

    return step


def dpsgd(clip: float) -> Step:
    def step(w: Array, g: Array, state: dict[str, Any], rate: float, i: int) -> Array:
        return w - rate * g / max(np.linalg.norm(g) / clip, 1.0)

    return step


# One of each: how it is made, what it does, and the names of its state ------------------------------------------------

Case = tuple[Callable[..., Any], Step, str]
CASES: dict[str, Case] = {
    "sgd": (lambda rate: optimizer.SGD(rate), sgd, ""),
    "momentum": (lambda rate: optimizer.Momentum(rate, 0.8), momentum(0.8), "velocity"),
    "nesterov": (lambda rate: optimizer.Momentum(rate, 0.8, use_nesterov=True), momentum(0.8, True), "velocity"),
    "lars": (lambda rate: optimizer.LarsMomentum(rate, 0.8, 0.3, 0.2), lars(0.8, 0.3, 0.2), "velocity"),
    "lars_defaults": (lambda rate: optimizer.LarsMomentum(rate, 0.8), lars(0.8, 1e-3, 5e-4), "velocity"),
    "dpsgd": (lambda rate: optimizer.Dpsgd(rate, clip=0.5, batch_size=4.0, sigma=0.0), dpsgd(0.5), ""),
    "adam": (
        lambda rate: optimizer.Adam(rate, 0.8, 0.9, 1e-3), adam(0.8, 0.9, 1e-3),
        "moment1 moment2 beta1_pow_acc beta2_pow_acc",
    ),
    "adam_defaults": (
        lambda rate: optimizer.Adam(rate), adam(0.9, 0.999, 1e-8), "moment1 moment2 beta1_pow_acc beta2_pow_acc"
    ),
    "adamax": (
        lambda rate: optimizer.Adamax(rate, 0.8, 0.9, 1e-3), adamax(0.8, 0.9, 1e-3), "moment inf_norm beta1_pow_acc"
    ),
    "adagrad": (lambda rate: optimizer.Adagrad(rate, 1e-3), adagrad(1e-3), "moment"),
    "adagrad_begun": (
        lambda rate: optimizer.Adagrad(rate, 1e-3, initial_accumulator_value=0.2), adagrad(1e-3, 0.2), "moment"
    ),
    "decayed_adagrad": (
        lambda rate: optimizer.DecayedAdagrad(rate, 0.8, 1e-3), decayed_adagrad(0.8, 1e-3), "moment"
    ),
    "adadelta": (
        lambda rate: optimizer.Adadelta(rate, 1e-2, 0.8), adadelta(0.8, 1e-2), "_avg_squared_grad _avg_squared_update"
    ),
    "rmsprop": (
        lambda rate: optimizer.RMSProp(rate, 0.8, 1e-2, 0.3), rmsprop(0.8, 1e-2, 0.3, False),
        "momentum mean_square mean_grad",
    ),
    "rmsprop_centered": (
        lambda rate: optimizer.RMSPropOptimizer(rate, 0.8, 1e-2, centered=True), rmsprop(0.8, 1e-2, 0.0, True),
        "momentum mean_square mean_grad",
    ),
    "ftrl": (lambda rate: optimizer.Ftrl(rate, 0.1, 0.2), ftrl(0.1, 0.2, -0.5), "squared linear"),
    "ftrl_power": (
        lambda rate: optimizer.Ftrl(rate, l1=0.1, lr_power=-0.7), ftrl(0.1, 0.0, -0.7), "squared linear"
    ),
    "lamb": (
        lambda rate: optimizer.Lamb(rate, 0.1, 0.8, 0.9, 1e-3), lamb(0.1, 0.8, 0.9, 1e-3),
        "moment1 moment2 beta1_pow_acc beta2_pow_acc",
    ),
}  # fmt: skip


def model(dtype: str) -> Any:
    """mean((x w v)^2), with w and v as START says."""
    x = layers.data("x", [3], dtype=dtype)
    for name, value in START.items():
        attr = fluid.ParamAttr(name, fluid.initializer.NumpyArray(value))
        x = layers.mul(x, layers.create_parameter(list(value.shape), dtype, attr=attr))
    return layers.mean(layers.square(x))


def gradients(now: dict[str, Array]) -> dict[str, Array]:
    out = ROWS @ now["w"] @ now["v"]
    error = 2 * out / len(ROWS)
    return {"v": (ROWS @ now["w"]).T @ error, "w": ROWS.T @ error @ now["v"].T}


@pytest.mark.parametrize(
    ("place", "dtype"), [("cpu", "float64"), *((kind, "float32") for kind in KINDS)], indirect=["place"]
)
@pytest.mark.parametrize("name", CASES)
def test_five_steps(name: str, dtype: str, place: str) -> None:
    make, step, state = CASES[name]
    loss = model(dtype)
    rate = layers.piecewise_decay([2], [0.2, 0.1])
    updates, _ = make(rate).minimize(loss)
    block = fluid.default_main_program().global_block()
    for part in state.split():
        assert {f"w_{part}_0", f"v_{part}_0"} <= set(block.vars), part
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    now, states = {k: v.copy() for k, v in START.items()}, {k: {} for k in START}  # type: ignore[var-annotated]
    for i in range(STEPS):
        found = exe.run(feed={"x": ROWS.astype(dtype)}, fetch_list=["w", "v"])
        slopes = gradients(now)
        now = {k: step(now[k], slopes[k], states[k], RATES[i], i + 1) for k in now}
        for key, value in zip(("w", "v"), found, strict=True):
            tolerance = 2e-4 if dtype == "float32" else 1e-6  # the rate is float32, 1e-7 off
            np.testing.assert_allclose(value, now[key], rtol=tolerance, atol=tolerance / 10, err_msg=f"{name} step {i}")
    assert {op.role for op in updates if op.type != "cast"} == {"optimize"}  # a float64 parameter's rate is cast


@pytest.mark.parametrize("place", ["cpu"], indirect=True)
@pytest.mark.parametrize("name", CASES)
def test_an_mlp_learns(name: str, place: str) -> None:
    """What a step writes on other places, :func:`test_five_steps` knows to the last digits."""
    make = CASES[name][0]
    rng = np.random.default_rng(3)
    features = rng.normal(size=(64, 4)).astype("float32")
    target = np.sin(features.sum(1, keepdims=True)).astype("float32")
    fluid.default_startup_program().random_seed = 7
    x, y = layers.data("x", [4]), layers.data("y", [1])
    loss = layers.mean(layers.square_error_cost(layers.fc(layers.fc(x, 16, act="tanh"), 1), y))
    make(0.05).minimize(loss)
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    losses = [float(exe.run(feed={"x": features, "y": target}, fetch_list=[loss])[0][0]) for _ in range(30)]
    assert losses[-1] < 0.97 * losses[0] and np.isfinite(losses).all(), losses


def test_dpsgd_adds_one_noise_to_all_elements_anew_each_step(place: str) -> None:
    loss = model("float32")
    optimizer.Dpsgd(1.0, clip=1e6, batch_size=2.0, sigma=3.0).minimize(loss)
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    fluid.default_main_program().random_seed = 5
    now, seen = {k: v.copy() for k, v in START.items()}, []
    for _ in range(2):
        found = dict(zip(("w", "v"), exe.run(feed={"x": ROWS.astype("float32")}, fetch_list=["w", "v"]), strict=True))
        slopes = gradients(now)
        for key in now:
            noise = (now[key] - slopes[key] - found[key]) * 2.0
            np.testing.assert_allclose(noise, np.full_like(noise, noise.flat[0]), rtol=1e-3, atol=1e-3)
            seen.append(float(noise.flat[0]))
        now = {k: v.astype("float64") for k, v in found.items()}
    assert len({round(noise, 3) for noise in seen}) == 4 and max(map(abs, seen)) > 0.1


def test_a_late_error_leaves_decomposed_state_alone(require: Callable[..., None]) -> None:
    require("opencl")
    for make in (lambda: optimizer.Lamb(0.1), lambda: optimizer.LarsMomentum(0.1, 0.9), lambda: optimizer.Adam(0.1)):
        programs = fluid.Program(), fluid.Program()
        scope = fluid.Scope()
        with fluid.program_guard(*programs), fluid.unique_name.guard(), fluid.scope_guard(scope):
            words = layers.data("words", [1], dtype="int64")
            make().minimize(layers.mean(layers.embedding(words, [10, 4])))
            exe = fluid.Executor("opencl:0")
            exe.run(programs[1])
            exe.run(programs[0], feed={"words": [[3], [2]]})
            names = [name for name, var in programs[0].global_block().vars.items() if var.persistable]
            before = {name: np.array(scope.find_var(name).get_tensor()) for name in names}
            with pytest.raises(fluid.FluidError, match="out of range"):
                exe.run(programs[0], feed={"words": [[3], [12]]}, fetch_list=["embedding_0.w_0"])
            for name in names:
                np.testing.assert_array_equal(np.array(scope.find_var(name).get_tensor()), before[name], err_msg=name)


@pytest.mark.parametrize("make", [lambda: optimizer.Lamb(0.1), lambda: optimizer.LarsMomentum(0.1, 0.9)])
def test_decomposed_updates_are_in_place(make: Callable[[], Any], place: str) -> None:
    make().minimize(model("float32"))
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    tensors = [fluid.global_scope().find_var(name).get_tensor() for name in START]
    held = [tensor.allocation for tensor in tensors]
    exe.run(feed={"x": ROWS.astype("float32")})
    assert [tensor.allocation for tensor in tensors] == held
    data = exe.explain_last()
    assert "transfer" not in str(data).split("operators:")[0] and "home" not in str(data), data
