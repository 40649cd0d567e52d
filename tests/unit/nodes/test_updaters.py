"""Updaters against NumPy in float64: each weight once, state of its own, clipping, numbers that are none."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import FluidError, NodeError, NonFiniteError
from fluidlite.nodes import Prealloc, Tensor, cpu, device
from fluidlite.nodes.leaves import Weight
from fluidlite.nodes.updaters import MAX_WHOLE_PROGRAMS, Adam, Sgd, Updater

SHAPES = ([3, 4], [5], [2, 1, 2])


def weights_on(place: str, dtype: str = "float32") -> tuple[list[Weight], list[np.ndarray[Any, Any]]]:
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(shape) for shape in SHAPES]
    return [Weight(place, value.astype("float32"), dtype=dtype) for value in values], values


def give(weights: list[Weight], step: int) -> list[np.ndarray[Any, Any]]:
    """Set gradients; return them."""
    rng = np.random.default_rng(step + 1)
    found = []
    for weight in weights:
        grad = rng.standard_normal(weight.value().dims)
        weight.reset_grad()
        weight.add_grad(Tensor(weight.dev(), values=grad, dtype=weight.value().dtype))
        found.append(grad)
    return found


def sgd(value: Any, grad: Any, state: dict[str, Any], rate: float) -> Any:
    return value - rate * grad


def adam(value: Any, grad: Any, state: dict[str, Any], rate: float) -> Any:
    t = state["t"] = state.get("t", 0) + 1
    m = state["m"] = 0.9 * state.get("m", 0) + 0.1 * grad
    v = state["v"] = 0.999 * state.get("v", 0) + 0.001 * grad * grad
    return value - rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-8)


def momentum(value: Any, grad: Any, state: dict[str, Any], rate: float) -> Any:
    state["v"] = 0.9 * state.get("v", 0) + grad
    return value - rate * state["v"]


CASES = {
    "sgd": (lambda **options: Sgd(0.1, **options), sgd),
    "adam": (lambda **options: Adam(0.1, **options), adam),
    "momentum": (lambda **options: Updater(fluid.optimizer.MomentumOptimizer, 0.1, momentum=0.9, **options), momentum),
}


@pytest.mark.parametrize("name", CASES)
def test_as_numpy_says(place: str, name: str) -> None:
    make, rule = CASES[name]
    updater = make()
    weights, values = weights_on(place)
    weights[1].move_to(Prealloc(place, 1 << 12))
    places = [weight.value().allocation for weight in weights]
    states: list[dict[str, Any]] = [{} for _ in weights]
    for step in range(5):
        chosen = [0, 1, 2] if step != 2 else [2, 0]  # a graph need not have all weights
        if step == 3:
            updater.learning_rate = 0.05
        grads = give(weights, step)
        updater.update([weights[i] for i in chosen])
        for i in chosen:
            values[i] = rule(values[i], grads[i], states[i], updater.learning_rate)
        for weight, value in zip(weights, values, strict=True):
            np.testing.assert_allclose(weight.value().numpy(), value, rtol=2e-5, atol=1e-5)
    assert [weight.value().allocation for weight in weights] == places


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_dtypes(place: str, dtype: str) -> None:
    for make, rule in CASES.values():
        updater = make()
        weights, values = weights_on(place, dtype)
        states: list[dict[str, Any]] = [{} for _ in weights]
        for step in range(3):
            grads = give(weights, step)
            updater.update(weights)
            values = [rule(*each, 0.1) for each in zip(values, grads, states, strict=True)]
        for weight, value in zip(weights, values, strict=True):
            assert weight.value().dtype == dtype
            np.testing.assert_allclose(weight.value().numpy(), value, atol=1e-2 if dtype == "float16" else 1e-6)


def test_each_weight_once(place: str) -> None:
    weight = Weight(place, np.ones(3, "float32"))
    tie = weight.tied()
    tie.add_grad(Tensor(place, values=[1.0, 2.0, 3.0]))
    before = weight.value().version
    Sgd(0.5).update([weight, tie, weight, tie.tied()])
    assert weight.value().numpy().tolist() == tie.value().numpy().tolist() == [0.5, 0.0, -0.5]
    assert weight.value().version > before


def test_clip_by_a_number_and_by_the_norm_of_all(place: str) -> None:
    weights, values = weights_on(place)
    grads = give(weights, 0)
    Sgd(1.0, clip=0.25).update(weights)
    for weight, value, grad in zip(weights, values, grads, strict=True):
        np.testing.assert_allclose(weight.value().numpy(), value - grad.clip(-0.25, 0.25), rtol=1e-5, atol=1e-6)
    weights, values = weights_on(place)
    give(weights, 0)
    Sgd(1.0, clip=fluid.clip.GradientClipByGlobalNorm(0.5)).update(weights)
    norm = np.sqrt(sum((grad**2).sum() for grad in grads))
    for weight, value, grad in zip(weights, values, grads, strict=True):
        np.testing.assert_allclose(weight.value().numpy(), value - grad * 0.5 / norm, rtol=1e-5, atol=1e-6)
    for weight, grad in zip(weights, grads, strict=True):  # gradients are not written
        np.testing.assert_allclose(weight.grad().numpy(), grad.astype("float32"))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_numbers_that_are_none_change_nothing(place: str, name: str, bad: float) -> None:
    make, rule = CASES[name]
    updater = make()
    weights, values = weights_on(place)
    give(weights, 0)
    weights[1].grad()[2:3] = [bad]
    with pytest.raises(
        NonFiniteError, match=r"the gradient of Weight \(.*test_updaters.py:\d+\) has elements"
    ) as caught:
        updater.update(weights)
    assert str(caught.value).count("Weight (") == 1 and "no weight was changed" in str(caught.value)
    for weight, value in zip(weights, values, strict=True):
        np.testing.assert_allclose(weight.value().numpy(), value.astype("float32"), rtol=1e-6)
    grads = give(weights, 1)
    updater.update(weights)  # no state was changed either
    for weight, value, grad in zip(weights, values, grads, strict=True):
        np.testing.assert_allclose(weight.value().numpy(), rule(value, grad, {}, 0.1), rtol=2e-5, atol=1e-5)


def test_the_check_may_be_left_out(place: str) -> None:
    weight = Weight(place, np.ones(2, "float32"))
    weight.add_grad(Tensor(place, values=[np.inf, 1.0]))
    Sgd(1.0, check_finite=False).update(weight)
    assert weight.value().numpy().tolist() == [-np.inf, 0.0]


def test_weights_on_two_places() -> None:
    places = [str(found) for found in fluid.places() if found.kind in ("cpu", "opencl", "fpga", "cuda")]
    weights = [Weight(place, np.ones(2, "float32")) for place in places]
    for weight in weights:
        weight.add_grad(Tensor(weight.dev(), values=[1.0, 2.0]))
    Sgd(0.5, clip=1.5).update(weights)
    for weight, place in zip(weights, places, strict=True):
        assert weight.dev() is device(place) and weight.value().numpy().tolist() == [0.5, 0.25]
    if len(places) > 1:
        weights[-1].grad().fill(np.nan)
        with pytest.raises(NonFiniteError):
            Sgd(0.5).update(weights)
        assert weights[0].value().numpy().tolist() == [0.5, 0.25]  # nor on another place
        with pytest.raises(NodeError, match="takes the norm of all gradients, and the weights lie on cpu:0, "):
            Sgd(0.5, clip=fluid.clip.GradientClipByGlobalNorm(0.5)).update(weights)


def test_state_moves_with_its_weight(place: str) -> None:
    weight, other = Weight(cpu(), np.ones(2, "float32")), Weight(cpu(), np.ones(2, "float32"))
    updater, value, state = Adam(0.1), np.ones(2), {}  # type: ignore[var-annotated]
    for step, where in enumerate(("cpu", place, place, "cpu")):
        weight.move_to(where)
        grad = give([weight, other], step)[0]
        updater.update([weight, other])
        value = adam(value, grad, state, 0.1)
        np.testing.assert_allclose(weight.value().numpy(), value, rtol=1e-5)


def test_state_goes_with_its_weight() -> None:
    updater = Adam()
    weight = Weight(cpu(), np.ones(1000, "float32"))
    for _ in range(3):
        give([weight], 0)
        updater.update(weight)
    (held,) = updater._states.values()
    sizes = sorted(tensor.spec.size for tensor in held.state.values())  # type: ignore[union-attr]
    assert sizes == [1, 1, 1000, 1000]
    del weight, held
    gc.collect()
    assert not updater._states


def test_sets_of_weights_that_change_need_few_programs(place: str) -> None:
    """As with words: each update has others, in another order; state stays with its weight."""
    updater = Adam(0.1)
    many, steps = (20, 25) if place == "cpu:0" else (7, 12)  # a program of each of the first eight sets is compiled
    weights = [Weight(place, np.full(4, i, "float32")) for i in range(many)]
    weights.append(Weight(place, np.ones((2, 3), "float32")))
    values = [weight.value().numpy().astype("float64") for weight in weights]
    states: list[dict[str, Any]] = [{} for _ in weights]
    rng = np.random.default_rng(0)
    for step in range(steps):
        chosen = rng.permutation(many + 1)[: rng.integers(1, many + 1)].tolist()
        grads = give([weights[i] for i in chosen], step)
        updater.update([weights[i] for i in chosen])
        for i, grad in zip(chosen, grads, strict=True):
            values[i] = adam(values[i], grad, states[i], 0.1)
    for weight, value in zip(weights, values, strict=True):
        np.testing.assert_allclose(weight.value().numpy(), value, rtol=1e-4, atol=1e-5)
    assert updater._programs.misses <= MAX_WHOLE_PROGRAMS + 6


def test_what_is_no_target() -> None:
    weight = Weight(cpu(), np.ones(2, "float32"))
    with pytest.raises(NodeError, match=r"none of 1 weights has a gradient\n  Do: graph.reset_grad"):
        Sgd().update(weight)
    with pytest.raises(NodeError, match=r"update takes weights; one is 3"):
        Sgd().update([weight, 3])  # type: ignore[list-item]
    with pytest.raises(NodeError, match=r"update takes a graph or weights, got 3"):
        Sgd().update(3)  # type: ignore[arg-type]
    Sgd().update([])


def test_bad_arguments() -> None:
    for clip in (0, -1.0, True, "1"):
        with pytest.raises(NodeError, match="clip is"):
            Sgd(clip=clip)  # type: ignore[arg-type]
    for rate in ("1", True, None, float("nan")):
        with pytest.raises(NodeError, match="the learning rate is"):
            Sgd(rate)  # type: ignore[arg-type]
    with pytest.raises((FluidError, TypeError)):
        Updater(fluid.optimizer.MomentumOptimizer, 0.1, nothing=1)
    with pytest.raises(FluidError, match="beta1"):
        Adam(beta1=1.5)
