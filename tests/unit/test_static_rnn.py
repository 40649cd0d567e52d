"""StaticRNN on every place, compiled and interpreted, against a loop of float64 NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers

pytestmark = pytest.mark.filterwarnings("ignore::fluidlite.errors.FallbackWarning")
RNG = np.random.default_rng(5)


@pytest.fixture(params=[(kind, mode) for kind in ("cpu", "opencl", "fpga") for mode in ("interpreted", "compiled")],
                ids="-".join)  # fmt: skip
def exe(request: pytest.FixtureRequest, require: Callable[..., None]) -> fluid.Executor:
    kind, mode = request.param
    require(kind)
    return fluid.Executor(kind, mode=mode)


def network(steps: int) -> tuple[Any, Any, Any]:
    x = layers.data("x", [steps, -1, 3], append_batch_size=False)
    x.stop_gradient = False
    rnn = layers.StaticRNN()
    with rnn.step():
        word = rnn.step_input(x)
        before = rnn.memory(shape=[-1, 3], batch_ref=word, init_value=0.5)
        hidden = layers.tanh(layers.fc(before, 3, param_attr="w", bias_attr="b") + word)
        rnn.update_memory(before, hidden)
        rnn.step_output(hidden)
    out = rnn()
    return x, out, layers.reduce_sum(layers.square(out))


def reference(x: Any, w: Any, b: Any) -> tuple[Any, Any, Any, Any]:
    before, values = np.full(x.shape[1:], 0.5), []
    for step in x:
        values.append(np.tanh((values[-1] if values else before) @ w + b + step))
    dx, dw, db, dh = np.zeros_like(x), 0 * w, 0 * b, np.zeros(x.shape[1:])
    for t in range(len(x) - 1, -1, -1):
        dx[t] = (dh + 2 * values[t]) * (1 - values[t] ** 2)
        dw, db, dh = dw + (values[t - 1] if t else before).T @ dx[t], db + dx[t].sum(0), dx[t] @ w.T
    return np.array(values), dx, dw, db


@pytest.mark.parametrize("steps", [1, 2, 100])
def test_values_and_gradients_of_all_steps(exe: fluid.Executor, steps: int) -> None:
    x, out, loss = network(steps)
    assert out.shape == (steps, -1, 3)
    main = fluid.default_main_program()
    gradients = fluid.gradients(loss, [x, *(main.global_block().var(name) for name in "wb")])
    exe.run(fluid.default_startup_program())
    w, b = (np.array(fluid.global_scope().find_var(name).get_tensor()).astype(np.float64) for name in "wb")
    for batch in (4, 1):
        fed = RNG.normal(size=(steps, batch, 3)).astype(np.float32)
        found = exe.run(feed={"x": fed}, fetch_list=[out, *gradients])
        for value, expected in zip(found, reference(fed.astype(np.float64), w, b), strict=True):
            np.testing.assert_allclose(value, expected, rtol=2e-3, atol=2e-4)


def test_gradients_of_some_of_its_outputs() -> None:
    """The others count as zeros, whatever dims they have: those of the batch are not declared."""
    x = layers.data("x", [3, -1, 2], append_batch_size=False)
    x.stop_gradient = False
    rnn = layers.StaticRNN()
    with rnn.step():
        step = rnn.step_input(x)
        before = rnn.memory(shape=[-1, 2], batch_ref=step)
        after = step * step + layers.scale(before, 0.5)
        rnn.update_memory(before, after)
        rnn.output(before, after, layers.scale(after, 3.0))
    sums = [layers.reduce_sum(each) for each in rnn()]
    weights = np.array([[1.5, 1, 0], [1.75, 1.5, 1], [5.25, 4.5, 3]])  # of a step's square in each of the sums
    asked = [[0], [1], [2], [0, 2], [0, 1, 2]]
    gradients = [fluid.gradients(layers.sums([sums[i] for i in chosen]), x)[0] for chosen in asked]
    fed = RNG.normal(size=(3, 4, 2)).astype("float32")
    for chosen, found in zip(asked, fluid.Executor("cpu").run(feed={"x": fed}, fetch_list=gradients), strict=True):
        expected = 2 * fed * weights[chosen].sum(0)[:, None, None]
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=str(chosen))


def test_states_that_change_places() -> None:
    x = layers.data("x", [4, 2], append_batch_size=False)
    one, two = layers.fill_constant([2], "float32", 1.0), layers.fill_constant([2], "float32", 2.0)
    rnn = layers.StaticRNN()
    with rnn.step():
        step = rnn.step_input(x)
        a, b = rnn.memory(init=one), rnn.memory(init=two)
        rnn.update_memory(a, b)
        rnn.update_memory(b, a)
        rnn.output(a + step, b + step)
    got = fluid.Executor("cpu").run(feed={"x": np.zeros((4, 2), np.float32)}, fetch_list=rnn())
    assert [got[0][:, 0].tolist(), got[1][:, 0].tolist()] == [[1, 2, 1, 2], [2, 1, 2, 1]]


def test_no_step() -> None:
    x = layers.data("x", [-1, 2], append_batch_size=False)
    rnn = layers.StaticRNN()
    with rnn.step():
        rnn.step_output(rnn.step_input(x) * 2.0)
    exe = fluid.Executor("cpu")
    assert exe.run(feed={"x": np.ones((3, 2), np.float32)}, fetch_list=[rnn()])[0].tolist() == [[2, 2]] * 3
    with pytest.raises(fluid.errors.ShapeError, match="no step"):
        exe.run(feed={"x": np.ones((0, 2), np.float32)}, fetch_list=[rnn()])


def test_refuses() -> None:
    x, y = (layers.data(name, dims, append_batch_size=False) for name, dims in (("x", [4, 2]), ("y", [5, 2])))
    total = layers.fill_constant([2], "float32", 0.0)
    rnn = layers.StaticRNN()
    for call in (lambda: rnn.step_input(x), lambda: rnn.memory(init=x), lambda: rnn.step_output(x)):
        with pytest.raises(fluid.errors.ProgramError, match="inside of the step"):
            call()
    with pytest.raises(fluid.errors.ProgramError, match="after its step block"):
        rnn()

    def different(rnn: Any) -> None:
        rnn.step_input(x), rnn.step_input(y)

    def forgotten(rnn: Any) -> None:
        rnn.step_output(rnn.step_input(x) + rnn.memory(init=total))

    def outside(rnn: Any) -> None:
        step = rnn.step_input(x)
        layers.assign(step, output=total)
        rnn.step_output(step)

    def nothing(rnn: Any) -> None:
        rnn.step_input(x)

    def strange(rnn: Any) -> None:
        rnn.update_memory(x, x)

    def within(rnn: Any) -> None:
        rnn.memory(init=layers.fill_constant([2], "float32", 0.0))

    for body, message in ((different, "4 steps"), (forgotten, "not updated"), (outside, "a variable outside"),
                          (nothing, "no step_output"), (strange, "what StaticRNN.memory returned"),
                          (within, "made before the step")):  # fmt: skip
        rnn = layers.StaticRNN()
        home = fluid.default_main_program().global_block()
        held = len(home.ops), len(home.vars)
        with pytest.raises(fluid.errors.ProgramError, match=message), rnn.step():
            body(rnn)
        assert (len(home.ops), len(home.vars), home.program.num_blocks) == (*held, 1)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("rows", [(1, 2), (2, 2), (2, 1)], ids=["grows", "stays", "shrinks"])
def test_gradients_of_a_state_whose_dims_change(exe: fluid.Executor, steps: int, rows: tuple[int, int]) -> None:
    """A start of one row is broadcast to the batch; a start of two becomes their mean."""
    begin, batch = rows
    x = layers.data("x", [steps, -1, 4], append_batch_size=False, stop_gradient=False)
    h0 = layers.data("h0", [-1, 4], append_batch_size=False, stop_gradient=False)
    rnn = layers.StaticRNN()
    with rnn.step():
        word, state = rnn.step_input(x), rnn.memory(init=h0)
        kept = layers.reduce_mean(state, dim=0, keep_dim=True) if batch == 1 else state
        after = layers.tanh(layers.elementwise_add(kept, word) if begin != 1 else layers.elementwise_add(word, kept))
        rnn.update_memory(state, after)
        rnn.step_output(after)
    loss = layers.reduce_mean(layers.square(rnn()))
    gradients = fluid.gradients(loss, [x, h0])

    def cost(words: Any, first: Any) -> float:
        total, value = 0.0, first
        for each in words:
            value = np.tanh((value.mean(0, keepdims=True) if batch == 1 else value) + each)
            total += (value**2).sum()
        return float(total / (steps * batch * 4))

    arrays = [RNG.normal(size=(steps, batch, 4)), RNG.normal(size=(begin, 4))]
    feed = {name: array.astype(np.float32) for name, array in zip(("x", "h0"), arrays, strict=True)}
    found = exe.run(feed=feed, fetch_list=[loss, *gradients])
    np.testing.assert_allclose(found[0], [cost(*arrays)], rtol=1e-5)
    for at, gradient in enumerate(found[1:]):
        expected = np.zeros_like(arrays[at])
        for position in np.ndindex(expected.shape):
            costs = []
            for step in (1e-5, -1e-5):
                moved = [array.copy() for array in arrays]
                moved[at][position] += step
                costs.append(cost(*moved))
            expected[position] = (costs[0] - costs[1]) / 2e-5
        np.testing.assert_allclose(gradient, expected, atol=1e-5)
