"""Cells and rnn against plain NumPy, with lengths, both ways, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid

L = fluid.layers
PLACES = [str(place) for place in fluid.places()]
BATCH, STEPS, WIDTH, UNITS = 3, 3, 2, 3
RNG = np.random.default_rng(5)
X = RNG.normal(size=(BATCH, STEPS, WIDTH)).astype("float32")
LENGTHS = np.array([3, 1, 2])


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def lstm(x: Any, states: Any, p: list[Any]) -> Any:
    i, j, f, o = np.split(np.concatenate([x, states[0]], 1) @ p[0] + p[1], 4, axis=1)
    c = states[1] * sigmoid(f + 1) + sigmoid(i) * np.tanh(j)
    h = np.tanh(c) * sigmoid(o)
    return h, [h, c]


def gru(x: Any, states: Any, p: list[Any]) -> Any:
    r, u = np.split(sigmoid(np.concatenate([x, states[0]], 1) @ p[0] + p[1]), 2, axis=1)
    h = u * states[0] + (1 - u) * np.tanh(np.concatenate([x, r * states[0]], 1) @ p[2] + p[3])
    return h, [h]


def unrolled(step: Any, count: int, p: list[Any], lengths: Any, reverse: bool) -> Any:
    states, out = [np.zeros((BATCH, UNITS))] * count, np.zeros((BATCH, STEPS, UNITS))
    for t in reversed(range(STEPS)) if reverse else range(STEPS):
        out[:, t], new = step(X[:, t], states, p)
        states = [np.where((t < lengths)[:, None], a, b) for a, b in zip(new, states, strict=True)]
    return out, states


@pytest.mark.parametrize(("place", "reverse"), [("cpu", False), *((place, True) for place in PLACES)])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("steps", [STEPS, -1])
def test_rnn_is_what_numpy_makes(kind: str, place: str, reverse: bool, steps: int) -> None:
    x = L.data("x", [-1, steps, WIDTH], append_batch_size=False)
    lengths = L.data("n", [BATCH], dtype="int64", append_batch_size=False)
    cell = L.LSTMCell(UNITS) if kind == "lstm" else L.GRUCell(UNITS)
    out, states = L.rnn(cell, x, sequence_length=lengths, is_reverse=reverse)
    parameters = fluid.default_main_program().all_parameters()
    assert len(parameters) == (2 if kind == "lstm" else 4)
    exe = fluid.Executor(place, fallback="allow")
    exe.run(fluid.default_startup_program())
    fetch = [out, *(states if kind == "lstm" else [states]), *parameters]
    found = exe.run(feed={"x": X, "n": LENGTHS}, fetch_list=fetch)
    values, count = found[-len(parameters) :], 2 if kind == "lstm" else 1
    wanted, last = unrolled(lstm if kind == "lstm" else gru, count, values, LENGTHS, reverse)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-5, atol=1e-6)
    for got, right in zip(found[1 : 1 + count], last, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("steps", [STEPS, -1])
def test_steps_beyond_a_length_have_no_gradient(steps: int) -> None:
    x = L.data("x", [-1, steps, WIDTH], append_batch_size=False)
    lengths = L.data("n", [BATCH], dtype="int64", append_batch_size=False)
    x.stop_gradient = False
    _, state = L.rnn(L.GRUCell(UNITS), x, sequence_length=lengths)
    (grad,) = fluid.gradients([L.reduce_sum(state)], [x])
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    (found,) = exe.run(feed={"x": X, "n": LENGTHS}, fetch_list=[grad])
    reached = np.arange(STEPS) < LENGTHS[:, None]
    np.testing.assert_array_equal(np.abs(found).sum(2) > 0, reached)


@pytest.mark.parametrize("steps", [STEPS, -1])
def test_a_cell_of_ones_own_with_structures(steps: int) -> None:
    class Running(L.RNNCell):
        """Sums of two inputs, apart."""

        @property
        def state_shape(self) -> Any:
            return {"a": [WIDTH], "b": [1]}

        def call(self, inputs: Any, states: Any, **kwargs: Any) -> Any:
            new = {"a": states["a"] + inputs[0], "b": states["b"] + inputs[1] * kwargs["times"]}
            return new["a"], new

    x, y = (L.data(name, [steps, BATCH, size], append_batch_size=False) for name, size in (("x", WIDTH), ("y", 1)))
    out, last = L.rnn(Running(), (x, y), time_major=True, times=2.0)
    feed = {"x": np.moveaxis(X, 1, 0), "y": np.moveaxis(X[..., :1], 1, 0)}
    found = fluid.Executor("cpu").run(feed=feed, fetch_list=[out, last["a"], last["b"]])
    np.testing.assert_allclose(found[0], np.cumsum(feed["x"], 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], X.sum(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[2], 2 * X[..., :1].sum(1), rtol=1e-5, atol=1e-6)


def test_refuses_what_does_not_fit() -> None:
    x, more, rows = L.data("x", [STEPS, WIDTH]), L.data("o", [STEPS + 1, WIDTH]), L.data("r", [WIDTH])
    for build, words in (
        (lambda: L.rnn(None, x), "RNNCell"),
        (lambda: L.rnn(L.GRUCell(UNITS), (x, more)), "one number of steps"),
        (lambda: L.rnn(L.GRUCell(UNITS), x, sequence_length=rows), "[batch]"),
        (lambda: L.rnn(L.LSTMCell(UNITS), x, initial_states=rows), "a hidden state and a cell"),
        (lambda: L.GRUCell(0), "hidden_size"),
        (lambda: L.GRUCell(UNITS, activation="tanh"), "a layer"),
    ):
        with pytest.raises(fluid.FluidError) as caught:
            build()
        assert words in str(caught.value)
    with pytest.raises(NotImplementedError, match="must define call"):
        L.RNNCell()(x, rows)
