"""Recurrent layers: against each other, against a plain LSTM of NumPy, through 100 steps, and what they refuse."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid

L = fluid.layers
Array = np.ndarray[Any, Any]
PLACES = [str(place) for place in fluid.places()]
LENGTHS = (3, 0, 5, 1)
RNG = np.random.default_rng(3)


def run(feed: dict[str, Any], fetch: list[Any], place: str = "cpu", mode: str = "compiled") -> list[Array]:
    exe = fluid.Executor(place, mode=mode, fallback="allow")
    exe.run(fluid.default_startup_program())
    return fetched(exe, feed, fetch)


def fetched(exe: Any, feed: dict[str, Any], fetch: list[Any]) -> list[Array]:
    return [found.numpy() for found in exe.run(feed=feed, fetch_list=fetch, return_numpy=False)]


def ragged(rows: Array, lengths: tuple[int, ...] = LENGTHS) -> Any:
    return fluid.create_lod_tensor(rows, [list(lengths)], fluid.CPUPlace())


def constant(name: str, value: Array) -> Any:
    return fluid.ParamAttr(name=name, initializer=fluid.initializer.NumpyArrayInitializer(value))


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
@pytest.mark.parametrize("place", PLACES)
def test_padded_is_dynamic_sequence_by_sequence(place: str, mode: str) -> None:
    """cudnn_lstm over one padded sequence gives what dynamic_lstm gives over that sequence among others."""
    units, width = 4, 3
    of_input, of_state = RNG.normal(size=(4, units, width)), RNG.normal(size=(4, units, units))
    bias = RNG.normal(size=(4, units))
    flat = np.concatenate([of_input.ravel(), of_state.ravel(), bias.ravel(), np.zeros(4 * units)]).astype("float32")
    order = [2, 0, 1, 3]  # candidate, input, forget, output
    rows = RNG.normal(size=(sum(LENGTHS), width)).astype("float32")
    x = L.data("x", [width], lod_level=1)
    gates = L.fc(x, 4 * units, bias_attr=False,
                 param_attr=constant("w_x", of_input[order].reshape(-1, width).T.astype("float32")))  # fmt: skip
    hidden, cell = L.dynamic_lstm(
        gates, 4 * units, use_peepholes=False,
        param_attr=constant("w_h", of_state[order].reshape(-1, units).T.astype("float32")),
        bias_attr=constant("b", bias[order].reshape(1, -1).astype("float32")),
    )  # fmt: skip
    found, cells = run({"x": ragged(rows)}, [hidden, cell], place, mode)
    starts = np.concatenate([[0], np.cumsum(LENGTHS)])
    for begin, end in pairwise(starts):
        if begin == end:
            continue
        with fluid.program_guard(fluid.Program(), fluid.Program()):
            padded = L.data("p", [int(end - begin), 1, width], append_batch_size=False)
            zero = L.fill_constant([1, 1, units], "float32", 0.0)
            out, last_h, last_c = L.lstm(padded, zero, zero, 50, units, 1,
                                         default_initializer=fluid.initializer.NumpyArrayInitializer(flat))  # fmt: skip
            made, h, c = run({"p": rows[begin:end, None]}, [out, last_h, last_c], place, mode)
        np.testing.assert_allclose(found[begin:end], made[:, 0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(h[0, 0], made[-1, 0], rtol=1e-6)
        np.testing.assert_allclose(c[0, 0], cells[end - 1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("origin", [False, True])
def test_gru_units_are_a_dynamic_gru(origin: bool) -> None:
    units, steps = 3, 4
    weight, bias = (constant(name, RNG.normal(size=dims).astype("float32"))
                    for name, dims in (("w", (units, 3 * units)), ("b", (1, 3 * units))))  # fmt: skip
    rows = RNG.normal(size=(2 * steps, 3 * units)).astype("float32")  # two sequences
    x = L.data("x", [3 * units], lod_level=1)
    whole = L.dynamic_gru(x, units, param_attr=weight, bias_attr=bias, origin_mode=origin)
    step_rows = L.data("s", [steps, 2, 3 * units], append_batch_size=False)
    state = L.fill_constant([2, units], "float32", 0.0)
    states = []
    for row in L.unstack(step_rows):
        state, _, _ = L.gru_unit(row, state, 3 * units, param_attr=weight, bias_attr=bias, origin_mode=origin)
        states.append(state)
    by_step = np.stack([rows[:steps], rows[steps:]], 1)
    found = run({"x": ragged(rows, (steps, steps)), "s": by_step}, [whole, L.stack(states)])
    np.testing.assert_allclose(found[0], np.moveaxis(found[1], 1, 0).reshape(-1, units), rtol=1e-5, atol=1e-6)


def test_lstm_unit_is_a_step() -> None:
    x, h, c = (L.data(name, [size]) for name, size in (("x", 2), ("h", 3), ("c", 3)))
    weight, bias = RNG.normal(size=(5, 12)).astype("float32"), RNG.normal(size=12).astype("float32")
    hidden, cell = L.lstm_unit(x, h, c, 1.0, constant("w", weight), constant("b", bias))
    feed = {name: RNG.normal(size=(4, size)).astype("float32") for name, size in (("x", 2), ("h", 3), ("c", 3))}
    i, f, o, g = np.split(np.concatenate([feed["x"], feed["h"]], 1) @ weight + bias, 4, axis=1)
    wanted = sigmoid(f + 1) * feed["c"] + sigmoid(i) * np.tanh(g)
    found = run(feed, [hidden, cell])
    np.testing.assert_allclose(found[1], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[0], sigmoid(o) * np.tanh(wanted), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["lstm", "lstmp", "gru"])
def test_gradients_through_100_steps(kind: str) -> None:
    units, lengths = 2, (100, 37)
    x = L.data("x", [4 * units if kind != "gru" else 3 * units], dtype="float64", lod_level=1)
    x.stop_gradient = False
    if kind == "gru":
        out = L.dynamic_gru(x, units)
    elif kind == "lstm":
        out, _ = L.dynamic_lstm(x, 4 * units, dtype="float64")
    else:
        out, _ = L.dynamic_lstmp(x, 4 * units, 2, dtype="float64")
    loss = L.reduce_sum(out * out)
    (grad,) = fluid.gradients([loss], [x])
    rows = RNG.normal(size=(sum(lengths), x.shape[1]))
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    (found,) = fetched(exe, {"x": ragged(rows, lengths)}, [grad])
    direction = RNG.normal(size=rows.shape)
    ends = [fetched(exe, {"x": ragged(rows + step * direction, lengths)}, [loss])[0] for step in (1e-6, -1e-6)]
    np.testing.assert_allclose(float((found * direction).sum()), float(np.squeeze(ends[0] - ends[1])) / 2e-6, rtol=1e-6)


def test_dropout_between_layers() -> None:
    """The mask is redrawn in every run, is of the seed where one is given, and the gradient is of the mask drawn."""
    x = L.data("x", [3, 2, 4], append_batch_size=False, dtype="float64")
    x.stop_gradient = False
    zero = L.fill_constant([2, 2, 50], "float64", 0.0)
    weights = fluid.initializer.Uniform(-0.5, 0.5, seed=3)
    free, _, _ = L.lstm(x, zero, zero, 3, 50, 2, dropout_prob=0.5, default_initializer=weights)
    fixed, _, _ = L.lstm(x, zero, zero, 3, 50, 2, dropout_prob=0.5, default_initializer=weights, seed=7)
    loss = L.reduce_sum(fixed * fixed)
    (grad,) = fluid.gradients([loss], [x])
    test = fluid.default_main_program().clone(for_test=True)
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    rows = RNG.normal(size=(3, 2, 4))
    first, second = (exe.run(feed={"x": rows}, fetch_list=[free, fixed, grad]) for _ in range(2))
    assert not np.array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])
    direction = RNG.normal(size=rows.shape)
    ends = [exe.run(feed={"x": rows + step * direction}, fetch_list=[loss])[0] for step in (1e-6, -1e-6)]
    np.testing.assert_allclose((first[2] * direction).sum(), np.squeeze(ends[0] - ends[1]) / 2e-6, rtol=1e-6)
    plain = [exe.run(test, feed={"x": rows}, fetch_list=[name])[0] for name in (free.name, fixed.name)]
    np.testing.assert_allclose(plain[0], plain[1])


@pytest.mark.parametrize("place", PLACES)
def test_trains(place: str) -> None:
    """The sign of the first number of each sequence, which the last state must remember."""
    x, y = L.data("x", [2], lod_level=1), L.data("y", [1])
    forward, _ = L.dynamic_lstm(L.fc(x, 32), 32, is_reverse=True)
    backward = L.dynamic_gru(L.fc(x, 24), 8, is_reverse=True)
    firsts = L.data("firsts", [1], dtype="int64")
    loss = L.mean(L.square_error_cost(L.fc(L.gather(L.concat([forward, backward], 1), firsts), 1), y))
    fluid.optimizer.Adam(0.03).minimize(loss)
    exe = fluid.Executor(place, fallback="allow")
    exe.run(fluid.default_startup_program())
    rng, feeds, losses = np.random.default_rng(0), [], []
    for lengths in ((3, 1, 4, 2), (2, 5, 1, 3)):
        rows, ends = rng.normal(size=(sum(lengths), 2)).astype("float32"), np.cumsum(lengths)
        at = (ends - lengths).astype("int64")[:, None]
        feeds.append({"x": ragged(rows, lengths), "y": np.sign(rows[ends - 1, :1]), "firsts": at})
    for step in range(60):
        losses.append(float(np.squeeze(exe.run(feed=feeds[step % 2], fetch_list=[loss])[0])))
    assert np.mean(losses[-4:]) < 0.2 * np.mean(losses[:4])


def _refused(build: Any, *words: str) -> None:
    with pytest.raises(fluid.FluidError) as caught:
        build()
    assert all(word in str(caught.value) for word in (*words, "test_recurrent.py")), str(caught.value)
    assert not [op for op in fluid.default_main_program().global_block().ops if "lstm" in op.type or "gru" in op.type]


@pytest.mark.parametrize("layer", [
    lambda x: L.dynamic_lstm(x, 12),
    lambda x: L.dynamic_lstmp(x, 12, 2),
    lambda x: L.dynamic_gru(x, 4),
])  # fmt: skip
def test_refuses_rows_without_sequences(layer: Any) -> None:
    x = L.data("x", [12])
    _refused(lambda: layer(x), "Input", "lod_level=1")


def test_refuses_what_does_not_fit() -> None:
    x, state = L.data("x", [12], lod_level=1), L.data("s", [3])
    _refused(lambda: L.dynamic_lstm(x, 16), "Input", "16")
    _refused(lambda: L.dynamic_lstm(x, 10), "size", "multiple of 4")
    _refused(lambda: L.dynamic_lstm(x, 12, h_0=state), "C0")
    _refused(lambda: L.dynamic_lstm(x, 12, h_0=state, c_0=L.data("c", [5])), "C0", "5")
    _refused(lambda: L.dynamic_lstm(x, 12, gate_activation="softplus"), "gate_activation", "softplus")
    _refused(lambda: L.dynamic_lstm(x, 12, bias_attr=False), "bias_attr")
    _refused(lambda: L.dynamic_lstmp(x, 12, 2, param_attr="one"), "param_attr", "list of two")
    _refused(lambda: L.dynamic_lstmp(x, 12, 2, cell_clip=-1.0), "cell_clip")
    _refused(lambda: L.dynamic_gru(x, 5), "Input", "15")
    _refused(lambda: L.gru_unit(x, state, 10), "size", "multiple of 3")
    _refused(lambda: L.gru_unit(x, state, 12), "Input")
    _refused(lambda: L.gru_unit(x, state, 12, activation="softplus"), "activation")
    _refused(lambda: L.lstm(x, state, state, 3, 4, 1), "input", "steps, batch, width")


def test_refuses_states_of_another_batch_when_it_runs() -> None:
    x, h, c = L.data("x", [8], lod_level=1), L.data("h", [2]), L.data("c", [2])
    hidden, _ = L.dynamic_lstm(x, 8, h_0=h, c_0=c)
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    feed = {
        "x": ragged(np.ones((5, 8), "float32"), (2, 3)),
        "h": np.ones((3, 2), "float32"),
        "c": np.ones((2, 2), "float32"),
    }
    with pytest.raises(fluid.FluidError, match="H0"):
        exe.run(feed=feed, fetch_list=[hidden])
    feed["h"] = feed["h"][:2]
    assert fetched(exe, feed, [hidden])[0].shape == (5, 2)


@pytest.mark.parametrize("layer", [
    lambda x: L.dynamic_lstm(x, 8, use_peepholes=True, dtype="float64")[0],
    lambda x: L.dynamic_gru(x, 4, h_0=None),
])  # fmt: skip
def test_has_second_derivatives(layer: Any) -> None:
    width = 8 if "lstm" in str(layer.__code__.co_names) else 12
    x = L.data("x", [width], lod_level=1, dtype="float64")
    x.stop_gradient = False
    out = layer(x)
    (first,) = fluid.gradients([L.reduce_sum(out * out)], [x])
    total = L.reduce_sum(first * first)
    (second,) = fluid.gradients([total], [x])
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    rows, way = RNG.normal(size=(5, width)), RNG.normal(size=(5, width))
    (found,) = fetched(exe, {"x": ragged(rows, (3, 0, 2))}, [second])
    ends = [fetched(exe, {"x": ragged(rows + step * way, (3, 0, 2))}, [total])[0] for step in (1e-6, -1e-6)]
    np.testing.assert_allclose((found * way).sum(), float(np.squeeze(ends[0] - ends[1])) / 2e-6, rtol=1e-6)
