"""contrib.layers: basic_lstm and basic_gru against plain float64 NumPy, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.contrib.layers import BasicGRUUnit, BasicLSTMUnit, basic_gru, basic_lstm

L = fluid.layers
PLACES = [str(place) for place in fluid.places()]
BATCH, STEPS, WIDTH, UNITS = 3, 4, 2, 3
RNG = np.random.default_rng(8)
X = RNG.normal(size=(BATCH, STEPS, WIDTH))
LENGTHS = np.array([4, 1, 2])


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def lstm(x: Any, states: Any, p: list[Any], forget: float = 0.5) -> list[Any]:
    i, j, f, o = np.split(np.concatenate([x, states[0]], 1) @ p[0] + p[1], 4, axis=1)
    c = states[1] * sigmoid(f + forget) + sigmoid(i) * np.tanh(j)
    return [np.tanh(c) * sigmoid(o), c]


def gru(x: Any, states: Any, p: list[Any]) -> list[Any]:
    r, u = np.split(sigmoid(np.concatenate([x, states[0]], 1) @ p[0] + p[2]), 2, axis=1)
    return [u * states[0] + (1 - u) * np.tanh(np.concatenate([x, r * states[0]], 1) @ p[1] + p[3])]


def expected(kind: str, parameters: dict[str, Any], first: Any, layers: int, ways: int, lengths: Any) -> list[Any]:
    """Results of all steps, and last states by layer and direction; of each layer its own parameters, by name."""
    step, count = (lstm, 2) if kind == "lstm" else (gru, 1)
    outs, ends = [], np.zeros((count, layers * ways, BATCH, UNITS))
    for way in range(ways):
        below = X
        for layer in range(layers):
            mark = ("fw", "bw")[way]
            ends_of = [""] if kind == "lstm" else ["_gate", "_candidate"]
            p = [parameters[f"{part}_{mark}_{part}_{layer}{end}"] for part in "wb" for end in ends_of]
            states = [each[layer * ways + way] for each in first]
            made = np.zeros((BATCH, STEPS, UNITS))
            for t in reversed(range(STEPS)) if way else range(STEPS):
                new = step(below[:, t], states, p)
                states = [np.where((t < lengths)[:, None], a, b) for a, b in zip(new, states, strict=True)]
                made[:, t] = states[0]
            ends[:, layer * ways + way] = states
            below = made
        outs.append(below)
    return [np.concatenate(outs, axis=2), *ends]


CASES = {
    "lstm both ways": ("lstm", 2, 2, True, True, False),
    "gru both ways": ("gru", 2, 2, True, False, True),
    "lstm": ("lstm", 1, 1, True, False, True),
    "gru": ("gru", 2, 1, False, True, False),
}
RUNS = [("cpu", mode, case) for mode in ("compiled", "interpreted") for case in CASES]
RUNS += [(place, "compiled", case) for place in PLACES if not place.startswith("cpu") for case in ("lstm", "gru")]


def build(kind: str, layers: int, ways: int, lengths: bool, batch_first: bool, given: bool) -> Any:
    dims = [BATCH, STEPS, WIDTH] if batch_first else [STEPS, BATCH, WIDTH]
    x = L.data("x", dims, append_batch_size=False)
    x.stop_gradient = False
    n = L.data("n", [BATCH], dtype="int64", append_batch_size=False) if lengths else None
    names = ("h", "c")[: 2 if kind == "lstm" else 1]
    first = [L.data(name, [layers * ways, BATCH, UNITS], append_batch_size=False) if given else None for name in names]
    bias = fluid.ParamAttr(name="b", initializer=fluid.initializer.Normal())
    options: dict[str, Any] = {"num_layers": layers, "sequence_length": n, "bidirectional": ways == 2}
    options |= {"batch_first": batch_first, "param_attr": fluid.ParamAttr(name="w"), "bias_attr": bias}
    if kind == "lstm":
        return x, basic_lstm(x, *first, UNITS, forget_bias=0.5, **options)
    return x, basic_gru(x, *first, UNITS, **options)


@pytest.mark.parametrize(("place", "mode", "case"), RUNS)
def test_layers_are_what_numpy_makes(place: str, mode: str, case: str) -> None:
    kind, layers, ways, lengths, batch_first, given = CASES[case]
    _, made = build(kind, layers, ways, lengths, batch_first, given)
    parameters = {p.name: p for p in fluid.default_main_program().all_parameters()}
    assert len(parameters) == layers * ways * (2 if kind == "lstm" else 4)
    exe = fluid.Executor(place, mode=mode, fallback="allow")
    exe.run(fluid.default_startup_program())
    count = 2 if kind == "lstm" else 1
    first = (
        RNG.normal(size=(count, layers * ways, BATCH, UNITS))
        if given
        else np.zeros((count, layers * ways, BATCH, UNITS))
    )
    feed: dict[str, Any] = {"x": (X if batch_first else X.transpose(1, 0, 2)).astype("float32")}
    feed |= {"n": LENGTHS} if lengths else {}
    feed |= {name: first[k].astype("float32") for k, name in enumerate(("h", "c")[:count])} if given else {}
    found = exe.run(feed=feed, fetch_list=[*made, *parameters.values()])
    values = {name: value.astype("float64") for name, value in zip(parameters, found[len(made) :], strict=True)}
    wanted = expected(kind, values, first, layers, ways, LENGTHS if lengths else np.full(BATCH, STEPS))
    wanted[0] = wanted[0] if batch_first else wanted[0].transpose(1, 0, 2)
    for got, right in zip(found, wanted, strict=False):
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-6)


def test_gradients_are_differences() -> None:
    """Along a random way through the input, of a masked LSTM of two layers both ways."""
    x, (out, hidden, cell) = build("lstm", 2, 2, True, True, False)
    loss = L.reduce_sum(out * out) + L.reduce_sum(hidden * cell)
    (grad,) = fluid.gradients([loss], [x])
    fluid.default_startup_program().random_seed = 3
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    way = np.random.default_rng(3).normal(size=X.shape)

    def at(step: float) -> Any:
        return exe.run(feed={"x": (X + step * way).astype("float32"), "n": LENGTHS}, fetch_list=[loss, grad])

    slope = float(np.squeeze(at(1e-2)[0]) - np.squeeze(at(-1e-2)[0])) / 2e-2
    np.testing.assert_allclose(float((at(0)[1] * way).sum()), slope, rtol=2e-3)


def test_a_dropped_result_does_not_reach_the_states() -> None:
    """All is dropped of what layers give: results are 0, and the states of the first layer as without."""
    x = L.data("x", [BATCH, STEPS, WIDTH], append_batch_size=False)
    options = {"param_attr": fluid.ParamAttr(name="w"), "bias_attr": fluid.ParamAttr(name="b")}
    out, last = basic_gru(x, None, UNITS, dropout_prob=1.0, num_layers=2, **options)
    _, alone = basic_gru(x, None, UNITS, num_layers=2, **options)
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    dropped, states, whole = exe.run(feed={"x": X.astype("float32")}, fetch_list=[out, last, alone])
    assert not dropped.any()
    np.testing.assert_allclose(states[0], whole[0], rtol=1e-6)
    assert not np.allclose(states[1], whole[1])


def test_units_are_steps() -> None:
    """A unit keeps its parameters for all of its calls, and takes activations."""
    x, h, c = (L.data(name, [UNITS]) for name in "xhc")
    unit = BasicLSTMUnit("unit", UNITS, gate_activation=L.relu, activation=L.sigmoid, forget_bias=0.0)
    hidden, cell = unit(x, *unit(x, h, c))
    step = BasicGRUUnit("step", UNITS, activation=L.relu)
    new = step(x, step(x, h))
    parameters = fluid.default_main_program().all_parameters()
    assert len(parameters) == 2 + 4
    assert {p.name.split("_", 1)[0].split(".")[0] for p in parameters} == {"unit", "step"}
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    values = [RNG.normal(size=(2, UNITS)) for _ in "xhc"]
    feed = {name: value.astype("float32") for name, value in zip("xhc", values, strict=True)}
    found = [each.astype("float64") for each in exe.run(feed=feed, fetch_list=[hidden, cell, new, *parameters])]
    (w, b), p, states = found[3:5], found[5:], values[1:]
    for _ in range(2):
        i, j, f, o = np.split(np.concatenate([values[0], states[0]], 1) @ w + b, 4, axis=1)
        new_cell = states[1] * np.maximum(f, 0) + np.maximum(i, 0) * sigmoid(j)
        states = [sigmoid(new_cell) * np.maximum(o, 0), new_cell]
    by_width = sorted(p, key=lambda each: (each.ndim, each.shape[-1]))
    bias_c, bias_g, weight_c, weight_g = by_width
    state = values[1]
    for _ in range(2):
        r, u = np.split(sigmoid(np.concatenate([values[0], state], 1) @ weight_g + bias_g), 2, axis=1)
        state = u * state + (1 - u) * np.maximum(np.concatenate([values[0], r * state], 1) @ weight_c + bias_c, 0)
    for got, right in zip(found[:3], [*states, state], strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-6)


def test_refuses_what_does_not_fit() -> None:
    x, rows = L.data("x", [BATCH, STEPS, WIDTH], append_batch_size=False), L.data("rows", [WIDTH])
    h = L.data("h", [2, BATCH, UNITS], append_batch_size=False)
    for call, message in (
        (lambda: basic_gru(rows, None, UNITS), "argument 'input'"),
        (lambda: basic_gru(x, h, UNITS), "argument 'init_hidden'"),
        (lambda: basic_gru(x, None, 0), "argument 'hidden_size'"),
        (lambda: basic_gru(x, None, UNITS, num_layers=0), "argument 'num_layers'"),
        (lambda: basic_gru(x, None, UNITS, dropout_prob=1.5), "argument 'dropout_prob'"),
        (lambda: basic_gru(x, None, UNITS, sequence_length=x), "argument 'sequence_length'"),
        (lambda: basic_gru(x, None, UNITS, gate_activation=3), "argument 'activation'"),
        (lambda: basic_lstm(x, h, None, UNITS, num_layers=2), "argument 'init_cell'"),
        (lambda: basic_lstm(x, None, h, UNITS, num_layers=2), "argument 'init_hidden'"),
        (lambda: basic_lstm(x, None, None, UNITS, forget_bias="one"), "argument 'forget_bias'"),
    ):
        with pytest.raises(fluid.FluidError, match=message):
            call()
    assert not fluid.default_main_program().all_parameters()
