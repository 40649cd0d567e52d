"""Layers: what they make against float64 NumPy, their gradients against differences, their buffers and queues."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers, nn
from fluidlite.errors import NetworkError
from fluidlite.nn import set_up
from fluidlite.program.backward import append_backward

Make = Callable[..., nn.Network]
RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(5, 12)).astype("float32")
IMAGES = RANDOM.normal(size=(3, 2, 6, 6)).astype("float32")


def windows(x: np.ndarray, size: int, stride: int, padding: int = 0, fill: float = 0.0) -> np.ndarray:
    """[n, c, h, w] as [n, c, rows, columns, size, size]."""
    x = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)], constant_values=fill)
    found = np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))
    return found[:, :, ::stride, ::stride]


def dense(x: np.ndarray, p: dict[str, np.ndarray]) -> np.ndarray:
    return np.maximum(x.reshape(len(x), -1) @ p["w_0"] + p["b_0"], 0)


def conv(x: np.ndarray, p: dict[str, np.ndarray]) -> np.ndarray:
    made = np.einsum("nchwij,fcij->nfhw", windows(x, 3, 2, 1), p["w_0"])
    return np.tanh(made + p["b_0"][:, None, None])


def layer_norm(x: np.ndarray, p: dict[str, np.ndarray]) -> np.ndarray:
    mean, variance = x.mean(1, keepdims=True), x.var(1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * p["w_0"] + p["b_0"]


STEPS = RANDOM.normal(size=(3, 4, 5)).astype("float32")


def lstm(x: np.ndarray, w: np.ndarray, units: int, reverse: bool = False) -> np.ndarray:
    """One layer in one direction, [rows, steps, units]; gates are input, forget, candidate, output."""
    a, rest = np.split(w, [4 * units * x.shape[2]])
    r, bias = np.split(rest, [4 * units * units])
    h = c = np.zeros((len(x), units))
    made = np.zeros((*x.shape[:2], units))
    for t in reversed(range(x.shape[1])) if reverse else range(x.shape[1]):
        gates = x[:, t] @ a.reshape(4 * units, -1).T + h @ r.reshape(4 * units, -1).T + bias.reshape(2, -1).sum(0)
        i, f, g, o = np.split(gates, 4, axis=1)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = made[:, t] = np.tanh(c) / (1 + np.exp(-o))
    return made


def last_of_both(x: np.ndarray, p: dict[str, np.ndarray]) -> np.ndarray:
    w, size = p["w_0"], 4 * 2 * (5 + 2)
    forward, back = (np.concatenate([w[at * size :][:size], w[2 * size + at * 16 :][:16]]) for at in (0, 1))
    return np.concatenate([lstm(x, forward, 2)[:, -1], lstm(x, back, 2, True)[:, 0]], 1)


CASES: dict[str, tuple[Callable[[], nn.Layer], np.ndarray, Callable[..., np.ndarray]]] = {
    "dense": (lambda: nn.Dense(7, "relu"), ROWS, dense),
    "dense of images": (lambda: nn.Dense(7, "relu"), IMAGES, dense),
    "dense without bias": (lambda: nn.Dense(7, bias=False), ROWS, lambda x, p: x @ p["w_0"]),
    "conv2d": (lambda: nn.Conv2D(4, 3, 2, 1, activation="tanh"), IMAGES, conv),
    "max pool": (lambda: nn.Pool2D(2), IMAGES, lambda x, p: windows(x, 2, 2).max((-2, -1))),
    "mean pool": (lambda: nn.Pool2D(3, 1, kind="avg"), IMAGES, lambda x, p: windows(x, 3, 1).mean((-2, -1))),
    "whole pool": (lambda: nn.Pool2D(kind="avg"), IMAGES, lambda x, p: x.mean((2, 3), keepdims=True)),
    "flatten": (nn.Flatten, IMAGES, lambda x, p: x.reshape(3, 72)),
    "reshape": (lambda: nn.Reshape([3, -1]), ROWS, lambda x, p: x.reshape(5, 3, 4)),
    "activation": (lambda: nn.Activation("sigmoid"), ROWS, lambda x, p: 1 / (1 + np.exp(-x))),
    "layer norm": (nn.LayerNorm, ROWS, layer_norm),
    "batch norm": (nn.BatchNorm, ROWS, lambda x, p: x / np.sqrt(1 + 1e-5)),  # averages before training: 0 and 1
    "dropout": (lambda: nn.Dropout(0.5), ROWS, lambda x, p: x),
    "lstm": (lambda: nn.LSTM(3), STEPS, lambda x, p: lstm(x, p["w_0"], 3)),
    "last of an lstm both ways": (lambda: nn.LSTM(2, both_ways=True, steps=False), STEPS, last_of_both),
    "function": (lambda: nn.Function(lambda v: layers.scale(v, 2.0)), ROWS, lambda x, p: 2 * x),
}


@pytest.mark.parametrize("name", CASES)
def test_layers_make_what_their_formula_says(network: Make, place: str, name: str) -> None:
    make, x, formula = CASES[name]
    layer = make()
    made = network([layer], x.shape[1:], place=place, loss=None, optimizer=None)
    found = made(x)
    given = {p.name.rpartition(".")[2]: np.float64(layer.tensor(p).numpy()) for p in layer.parameters}
    wanted = formula(np.float64(x), given)
    assert found.shape == wanted.shape
    assert layer.output.shape[1:] == wanted.shape[1:]
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


def test_an_embedding_takes_rows_of_its_table(network: Make, place: str) -> None:
    ids = np.array([[3, 1], [0, 3]], "int64")
    layer = nn.Embedding(5, 4, padding=0)
    made = network([layer], (2,), place=place, input_dtype="int64", loss=None, optimizer=None)
    made.set_up()
    table = layer.tensor("w_0").numpy().copy()
    table[0] = 0
    np.testing.assert_array_equal(made(ids), table[ids])
    with pytest.raises(NetworkError, match="expected ids"):
        network([nn.Embedding(5, 4)], (2,))


@pytest.mark.parametrize("name", ["dense", "conv2d", "max pool", "layer norm", "activation"])
def test_gradients_of_layers_are_those_of_differences(network: Make, name: str) -> None:
    make, x, formula = CASES[name]
    layer = make()
    made = network([layer], x.shape[1:], loss=None, optimizer=None)
    made.set_up()
    block = made.program.global_block()
    with fluid.program_guard(made.program):
        factors = layers.data("factors", [-1, *layer.output.shape[1:]])
        loss = layers.reduce_sum(layers.elementwise_mul(layer.output, factors))
    made.input.stop_gradient = False
    grads = append_backward(loss, [made.input, *layer.parameters]) if layer.parameters else append_backward(
        loss, [made.input]
    )  # fmt: skip
    weights = RANDOM.normal(size=(len(x), *layer.output.shape[1:])).astype("float32")
    values = {p.name.rpartition(".")[2]: np.float64(layer.tensor(p).numpy()) for p in layer.parameters}
    found = made.executor.run(
        made.program, {"input": x, "factors": weights}, [gradient for _, gradient in grads], scope=made.scope
    )
    assert block.program is made.program
    for (variable, _), gradient in zip(grads, found, strict=True):
        key = variable.name.rpartition(".")[2]
        for at in RANDOM.permutation(gradient.size)[:6]:
            sides = []
            for step in (1e-5, -1e-5):
                data, parameters = np.float64(x), {k: v.copy() for k, v in values.items()}
                target = data if variable is made.input else parameters[key]
                target.reshape(-1)[at] += step
                sides.append((formula(data, parameters) * weights).sum())
            assert gradient.reshape(-1)[at] == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=2e-3, abs=2e-4)


def test_a_batch_norm_normalises_the_batch_in_training(network: Make) -> None:
    layer = nn.BatchNorm(momentum=0.5)
    made = network([layer, nn.Dense(1)], (12,), loss="squared_error", optimizer=fluid.optimizer.SGD(0.0))
    made.batched_train([(ROWS, np.zeros((5, 1), "float32"))])
    mean, variance = np.float64(ROWS).mean(0), np.float64(ROWS).var(0)
    np.testing.assert_allclose(layer.tensor("mean").numpy(), 0.5 * mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer.tensor("variance").numpy(), 0.5 + 0.5 * variance, rtol=1e-5)
    steps = made.stepwise()
    steps.forward(ROWS, np.zeros((5, 1), "float32"))
    np.testing.assert_allclose(steps.output(0).numpy(), (ROWS - mean) / np.sqrt(variance + 1e-5), rtol=1e-4, atol=1e-5)


def test_dropout_drops_in_training_alone(network: Make, place: str) -> None:
    x = np.ones((50, 40), "float32")
    made = network([nn.Dropout(0.25), nn.Dense(1)], (40,), place=place, loss="squared_error")
    np.testing.assert_array_equal(made.predict(x).shape, (50, 1))
    steps = made.stepwise()
    steps.forward(x, np.zeros((50, 1), "float32"))
    kept = steps.output(0).numpy()
    assert set(np.unique(kept)) == {np.float32(0), np.float32(1 / 0.75)}
    assert (kept == 0).mean() == pytest.approx(0.25, abs=0.05)


# Buffers and queues ------------------------------------------------------------------------------------------------


def deep(count: int = 6, width: int = 16) -> list[nn.Layer]:
    return [nn.Dense(width, "tanh") for _ in range(count)]


def test_the_input_of_a_layer_is_the_output_of_the_one_before(network: Make, place: str) -> None:
    made = network(deep(), (16,), place=place, loss="squared_error")
    for before, layer in zip(made.layers, made.layers[1:], strict=False):
        assert layer.input is before.output
    assert made.layers[0].input is made.input
    copies = {"assign", "c_broadcast"}
    assert copies.isdisjoint(op.type for op in made.program.global_block().ops)
    x = RANDOM.normal(size=(8, 16)).astype("float32")
    steps = made.stepwise()
    steps.forward(x, np.zeros((8, 16), "float32"))
    for number in range(1, len(made.layers)):
        assert steps.input(number) is steps.output(number - 1)


def test_each_layer_has_a_queue_of_its_own(network: Make, place: str) -> None:
    made = network(deep(), (16,), place=place)
    made.set_up()
    contexts = [layer.context for layer in made.layers]
    assert len({id(context) for context in contexts}) == len(contexts)
    for layer in made.layers:
        for parameter in layer.parameters:
            assert layer.tensor(parameter).allocation.context is layer.context


def test_layers_are_set_up_and_torn_down_side_by_side(
    network: Make, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layer waits until another is at it too, before and after its own work, which is on its own queue."""
    values, under_way = [], list[tuple[str, str, object]]()
    for cores in (1, 2):
        made = network(deep(4), (16,), place=place, seed=3)
        with monkeypatch.context() as patch:
            patch.setattr(set_up, "available_processors", lambda cores=cores: cores)
            if cores == 2:
                barrier = threading.Barrier(2)
                for name in ("_initialise", "_release_layer"):
                    patch.setattr(set_up, name, together(getattr(set_up, name), name, barrier, under_way))
            made.set_up()
            values.append(made.parameters())
            contexts = [layer.context for layer in made.layers]
            made.close()
    assert all(context is not None and context.closed for context in contexts)
    assert [name for name, *_ in under_way] == ["_initialise"] * 4 + ["_release_layer"] * 4
    for first, second in zip(under_way[::2], under_way[1::2], strict=True):
        assert first[1] != second[1]  # threads
        assert first[2] is not second[2]  # queues
    for name, value in values[0].items():
        np.testing.assert_array_equal(value, values[1][name])


def together(work: Any, name: str, barrier: threading.Barrier, under_way: list[tuple[str, str, object]]) -> Any:
    """The work of a layer, which goes on when another layer's has come as far."""

    def one(network: nn.Network, layer: nn.Layer) -> Any:
        under_way.append((name, threading.current_thread().name, layer.context))
        barrier.wait(60)
        found = work(network, layer)
        barrier.wait(60)
        return found

    return one


def test_setting_up_and_tearing_down_again_and_again_leaves_nothing(network: Make, place: str) -> None:
    x = RANDOM.normal(size=(8, 16)).astype("float32")

    def once() -> None:
        made = network(deep(), (16,), place=place, loss="squared_error")
        made.batched_train([(x, x)], epochs=2)
        made.close()

    once()
    gc.collect()
    before = fluid.memory.used(place)
    for _ in range(3):
        once()
        gc.collect()
    assert fluid.memory.used(place) == before


def test_an_error_while_layers_are_set_up_names_the_layer(network: Make) -> None:
    made = network([nn.Dense(4), nn.Dense(4, weight=fluid.initializer.Constant(1.0), name="second")], (3,))
    made.layers[1].startup.global_block().append_op(
        "reshape2",
        {"X": "second.w_0"},
        {"Out": made.layers[1].startup.global_block().create_var("x")},
        {"shape": [2, 8]},
    )
    op = made.layers[1].startup.global_block().ops[-1]
    op._attrs = type(op.attrs)({**op.attrs, "shape": (5, 5)})  # what no builder would take
    made.layers[1].startup.global_block().var("x").persistable = True
    with pytest.raises(fluid.errors.FluidError) as exc:
        made.set_up()
    assert any("layer 1, dense 'second'" in note for note in exc.value.__notes__)


def overwriting(x: fluid.Variable) -> fluid.Variable:
    """Write twice its input over it."""
    layers.assign(layers.scale(x, 2.0), x)
    return x


def test_writing_over_an_output_that_backward_needs_is_refused(network: Make) -> None:
    made = network([nn.Dense(8, "sigmoid", name="first")])  # the gradient of a sigmoid reads its output
    with pytest.raises(
        NetworkError, match=r"layer 1, function.*writes over the output .* of layer 0, dense 'first'"
    ) as exc:
        made.add_layer(nn.Function(overwriting))
    assert "operator sigmoid" in str(exc.value)
    assert len(made.layers) == 1
    made.add_layer(nn.Function(lambda v: layers.scale(v, 2.0)))


def test_writing_over_an_output_that_nobody_needs_is_not(network: Make) -> None:
    made = network([nn.Flatten(), nn.Function(overwriting), nn.Dense(3)], (4, 4))
    x = RANDOM.normal(size=(2, 4, 4)).astype("float32")
    made.set_up()
    weight, bias = made.layers[2].tensor("w_0").numpy(), made.layers[2].tensor("b_0").numpy()
    np.testing.assert_allclose(made(x), 2 * x.reshape(2, 16) @ weight + bias, rtol=1e-4, atol=1e-5)


# Forward, backward and step apart ----------------------------------------------------------------------------------


def test_steps_apart_are_a_training_step(network: Make, place: str, digits: Any) -> None:
    x, y = digits[0][:80], digits[1][:80]

    def stack() -> list[nn.Layer]:
        return [nn.Dense(16, "relu"), nn.Dropout(0.1), nn.Dense(10)]

    whole, apart = network(stack(), place=place), network(stack(), place=place)
    losses = [entry["loss"] for entry in whole.batched_train([(x, y)], epochs=4)]
    steps, found = apart.stepwise(), []
    for _ in range(4):
        found.append(steps.forward(x, y))
        steps.backward()
        steps.step()
    np.testing.assert_allclose(found, losses, rtol=1e-6)
    for name, value in whole.parameters().items():
        np.testing.assert_allclose(apart.parameters()[name], value, rtol=1e-5, atol=1e-6)
    steps.close()


def test_an_output_that_somebody_overwrote_is_refused_by_backward(network: Make, place: str, digits: Any) -> None:
    x, y = digits[0][:8], digits[1][:8]
    made = network([nn.Dense(16, "relu", name="first"), nn.Dense(10)], place=place)
    steps = made.stepwise()
    steps.forward(x, y)
    steps.output(0).set(np.zeros((8, 16), "float32"))
    before = made.parameters()
    with pytest.raises(NetworkError, match="somebody wrote to the output of layer 0, dense 'first'"):
        steps.backward()
    with pytest.raises(NetworkError, match="step comes before backward"):
        steps.step()
    for name, value in made.parameters().items():
        np.testing.assert_array_equal(value, before[name])
    steps.forward(x, y)
    steps.backward()
    steps.step()
    with pytest.raises(NetworkError, match="backward comes before forward"):
        steps.backward()
