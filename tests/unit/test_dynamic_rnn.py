"""DynamicRNN on every place: against plain NumPy, and against dynamic_lstm and dynamic_gru with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import errors, layers

MODES = ("interpreted", "compiled")
PLACES = [("cpu", "interpreted"), ("cpu", "compiled"), ("opencl", "compiled"), ("fpga", "interpreted")]
pytestmark = pytest.mark.filterwarnings("ignore::fluidlite.errors.FallbackWarning")
RNG = np.random.default_rng(8)


@pytest.fixture(params=PLACES, ids="-".join)
def exe(request: pytest.FixtureRequest, require: Callable[..., None]) -> fluid.Executor:
    kind, mode = request.param
    require(kind)
    return fluid.Executor(kind, mode=mode)


@pytest.fixture(params=MODES)
def cpu(request: pytest.FixtureRequest) -> fluid.Executor:
    return fluid.Executor("cpu", mode=request.param)


def sequences(width: int = 3, name: str = "x", lod_level: int = 1) -> Any:
    made = layers.data(name, [width], lod_level=lod_level)
    made.stop_gradient = False
    return made


def batch(lengths: list[int], width: int = 3) -> tuple[Any, list[Any]]:
    """A LoD tensor, and its sequences as arrays of float64."""
    rows = RNG.uniform(-1, 1, (sum(lengths), width)).astype(np.float32)
    ends = np.cumsum(lengths)
    parts = [rows[end - size : end].astype(np.float64) for end, size in zip(ends, lengths, strict=True)]
    return fluid.create_lod_tensor(rows, [lengths], "cpu"), parts


def parameter(name: str) -> Any:
    return fluid.default_main_program().global_block().var(name)


# Against NumPy


def test_states_inputs_and_outputs(exe: fluid.Executor) -> None:
    """H = tanh(x + s * h), where s is of the sequence; the first h is given; empty sequences and batches of one."""
    x, scale, start = sequences(), layers.data("scale", [3]), layers.data("start", [3])
    for each in (scale, start):
        each.stop_gradient = False
    rnn = layers.DynamicRNN()
    with rnn.block():
        row, factor = rnn.step_input(x), rnn.static_input(scale)
        before = rnn.memory(init=start, need_reorder=True)
        count = rnn.memory(shape=[1], value=10.0)
        state = layers.tanh(row + factor * before)
        rnn.update_memory(before, state)
        rnn.update_memory(count, count + 1.0)
        rnn.output(state, count)
    out, counts = rnn()
    slopes = fluid.gradients(layers.reduce_sum(out * out), [x, scale, start])
    last = layers.sequence_last_step(out)
    for lengths in ([2, 4, 1, 4], [1], [3, 0, 2], [0, 0]):
        data, parts = batch(lengths)
        s, h = (RNG.uniform(-1, 1, (len(lengths), 3)).astype(np.float32) for _ in range(2))
        fetched = [out, counts, *slopes, *([last] if min(lengths) else [])]
        found = exe.run(feed={"x": data, "scale": s, "start": h}, fetch_list=fetched, return_numpy=False)
        values, expected = [], [[], np.zeros((len(lengths), 3)), np.zeros((len(lengths), 3))]
        for number, part in enumerate(parts):
            states, given = [h[number].astype(np.float64)], s[number].astype(np.float64)
            for row in part:
                states.append(np.tanh(row + given * states[-1]))
            values.append(np.array(states[1:]).reshape(-1, 3))
            slope, rows = np.zeros(3), []
            for now, before in zip(states[:0:-1], states[-2::-1], strict=True):
                inner = (slope + 2 * now) * (1 - now**2)
                rows.insert(0, inner)
                expected[1][number] += inner * before
                slope = inner * given
            expected[0].append(np.array(rows).reshape(-1, 3))
            expected[2][number] = slope
        assert found[0].recursive_sequence_lengths() == [lengths]
        np.testing.assert_allclose(np.asarray(found[0]), np.concatenate(values), rtol=1e-5, atol=1e-6)
        assert np.asarray(found[1]).ravel().tolist() == [10.0 + t for n in lengths for t in range(n)]
        expected[0] = np.concatenate(expected[0])
        for slope, wanted in zip(found[2:], expected, strict=False):
            np.testing.assert_allclose(np.asarray(slope), wanted, rtol=1e-4, atol=1e-5)
        if min(lengths):
            np.testing.assert_allclose(np.asarray(found[5]), [value[-1] for value in values], rtol=1e-5, atol=1e-6)


def test_a_gradient_through_a_hundred_steps(cpu: fluid.Executor) -> None:
    x = sequences(1)
    rnn = layers.DynamicRNN()
    with rnn.block():
        row = rnn.step_input(x)
        before = rnn.memory(shape=[1], value=1.0)
        rnn.update_memory(before, before * row)
        rnn.output(before * row)
    last = layers.sequence_last_step(rnn())
    (dx,) = fluid.gradients(layers.reduce_sum(last), x)
    lengths = [100, 37]
    rows = RNG.uniform(0.97, 1.03, (137, 1)).astype(np.float32)
    data = fluid.create_lod_tensor(rows, [lengths], "cpu")
    found = cpu.run(feed={"x": data}, fetch_list=[last, dx], return_numpy=False)
    exact = rows.astype(np.float64)
    wholes = np.array([exact[:100].prod(), exact[100:].prod()])
    np.testing.assert_allclose(np.asarray(found[0]).ravel(), wholes, rtol=1e-4)
    np.testing.assert_allclose(np.asarray(found[1]), np.repeat(wholes, lengths)[:, None] / exact, rtol=1e-4)


def test_sequences_in_sequences(cpu: fluid.Executor) -> None:
    """A step of the upper level is a sequence of the lower one; a static input may be a sequence."""
    x, y = sequences(lod_level=2), sequences(name="y")
    rnn = layers.DynamicRNN()
    with rnn.block():
        sums = layers.sequence_pool(rnn.step_input(x), "sum")
        beside = layers.sequence_pool(rnn.static_input(y), "max")
        before = rnn.memory(shape=[3])
        state = before + sums * beside
        rnn.update_memory(before, state)
        rnn.output(state)
    out = rnn()
    rows = RNG.uniform(-1, 1, (9, 3)).astype(np.float32)
    data = fluid.create_lod_tensor(rows, [[1, 3], [4, 2, 1, 2]], "cpu")
    other, parts = batch([2, 3])
    (found,) = cpu.run(feed={"x": data, "y": other}, fetch_list=[out], return_numpy=False)
    exact = rows.astype(np.float64)
    sums = np.stack([exact[:4].sum(0), exact[4:6].sum(0), exact[6], exact[7:].sum(0)])
    beside = [part.max(0) for part in parts]
    expected = np.concatenate([sums[:1] * beside[0], np.cumsum(sums[1:] * beside[1], axis=0)])
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-6)
    assert found.recursive_sequence_lengths() == [[1, 3]]


# Against the operators


def lstm_step(row: Any, h: Any, c: Any) -> tuple[Any, Any]:
    gates = layers.elementwise_add(row + layers.matmul(h, parameter("w")), parameter("b"))
    candidate, input_gate, forget_gate, output_gate = layers.split(gates, 4, dim=1)
    cell = layers.sigmoid(forget_gate) * c + layers.sigmoid(input_gate) * layers.tanh(candidate)
    return layers.sigmoid(output_gate) * layers.tanh(cell), cell


def compare(exe: fluid.Executor, one: Any, other: Any, width: int) -> None:
    wanted = [parameter("x"), parameter("w"), parameter("b")]
    fetched = [one, other]
    for out in (one, other):
        fetched += fluid.gradients(layers.reduce_sum(out * out), wanted)
    exe.run(fluid.default_startup_program())
    for lengths in ([2, 4, 1, 4], [1]):
        found = exe.run(feed={"x": batch(lengths, width)[0]}, fetch_list=fetched, return_numpy=False)
        assert found[0].lod() == found[1].lod()
        arrays = [np.asarray(value) for value in found]
        for left, right in ((0, 1), (2, 5), (3, 6), (4, 7)):
            np.testing.assert_allclose(arrays[left], arrays[right], rtol=1e-4, atol=1e-6)


BIAS = fluid.initializer.Uniform(-0.5, 0.5, seed=3)


def test_it_is_dynamic_lstm(cpu: fluid.Executor) -> None:
    x = sequences(8)
    hidden, _ = layers.dynamic_lstm(x, 8, param_attr="w", bias_attr=fluid.ParamAttr("b", initializer=BIAS),
                                    use_peepholes=False)  # fmt: skip
    rnn = layers.DynamicRNN()
    with rnn.block():
        row = rnn.step_input(x)
        h, c = rnn.memory(shape=[2]), rnn.memory(shape=[2])
        after = lstm_step(row, h, c)
        rnn.update_memory(h, after[0])
        rnn.update_memory(c, after[1])
        rnn.output(after[0])
    compare(cpu, hidden, rnn(), 8)


def test_it_is_dynamic_gru(cpu: fluid.Executor) -> None:
    x = sequences(6)
    hidden = layers.dynamic_gru(x, 2, param_attr="w", bias_attr=fluid.ParamAttr("b", initializer=BIAS))
    rnn = layers.DynamicRNN()
    with rnn.block():
        row = layers.elementwise_add(rnn.step_input(x), parameter("b"))
        h = rnn.memory(shape=[2])
        flat = layers.reshape(parameter("w"), [-1])
        gates = layers.reshape(layers.slice(flat, [0], [0], [8]), [2, 4])
        candidate = layers.reshape(layers.slice(flat, [0], [8], [12]), [2, 2])
        update, reset = layers.split(
            layers.sigmoid(layers.slice(row, [1], [0], [4]) + layers.matmul(h, gates)), 2, dim=1
        )
        new = layers.tanh(layers.slice(row, [1], [4], [6]) + layers.matmul(reset * h, candidate))
        after = h - update * h + update * new
        rnn.update_memory(h, after)
        rnn.output(after)
    compare(cpu, hidden, rnn(), 6)


def test_it_is_trained() -> None:
    cpu = fluid.Executor("cpu")
    x, y = sequences(), layers.data("y", [1])
    rnn = layers.DynamicRNN()
    with rnn.block():
        row = rnn.step_input(x)
        before = rnn.memory(shape=[8])
        hidden = layers.fc([row, before], 8, act="tanh")
        rnn.update_memory(before, layers.dropout(hidden, 0.0))
        rnn.output(hidden)
    loss = layers.mean(layers.square(layers.fc(layers.sequence_last_step(rnn()), 1) - y))
    test = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Adam(0.05).minimize(loss)
    fluid.default_startup_program().random_seed = 7
    cpu.run(fluid.default_startup_program())
    data, parts = batch([2, 4, 1, 4, 3])
    feed = {"x": data, "y": np.float32([[part.sum()] for part in parts])}
    losses = [cpu.run(feed=feed, fetch_list=[loss])[0].item() for _ in range(25)]
    assert losses[-1] < 0.2 * losses[0]
    (again,) = cpu.run(test, feed=feed, fetch_list=[loss])
    assert again.item() < losses[-1] * 1.5 + 1e-3


def test_it_is_saved_and_loaded(tmp_path: Any) -> None:
    x = sequences()
    rnn = layers.DynamicRNN()
    with rnn.block():
        row = rnn.step_input(x)
        before = rnn.memory(shape=[4])
        hidden = layers.fc([row, before], 4, act="tanh")
        rnn.update_memory(before, hidden)
        rnn.output(hidden)
    last = layers.sequence_last_step(rnn())
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    feed = {"x": batch([2, 4])[0]}
    (expected,) = exe.run(feed=feed, fetch_list=[last])
    fluid.io.save_inference_model(str(tmp_path), ["x"], [last], exe)
    with fluid.scope_guard(fluid.Scope()):
        program, _, targets = fluid.io.load_inference_model(str(tmp_path), exe)
        (found,) = exe.run(program, feed=feed, fetch_list=targets)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


# Errors


def refused(make: Callable[[], Any], *words: str) -> None:
    with pytest.raises(errors.FluidError) as caught:
        make()
    for word in words:
        assert word in str(caught.value), (word, str(caught.value))


def test_methods_out_of_place() -> None:
    x, dense = sequences(), layers.data("dense", [3])
    rnn = layers.DynamicRNN()
    for call in (lambda: rnn.step_input(x), lambda: rnn.memory(shape=[1]), lambda: rnn.output(x)):
        refused(call, "inside of its block")
    refused(rnn, "after its block")
    before = len(fluid.default_main_program().blocks), len(fluid.default_main_program().global_block().ops)

    def block(body: Callable[[layers.DynamicRNN], None]) -> None:
        made = layers.DynamicRNN()
        with made.block():
            body(made)

    def kept(made: layers.DynamicRNN, update: bool = True) -> None:
        row = made.step_input(x)
        state = made.memory(shape=[3])
        if update:
            made.update_memory(state, row)
        made.output(row) if update is not None else None

    refused(lambda: block(lambda rnn: None), "no step_input")
    refused(lambda: block(lambda rnn: rnn.memory(shape=[1])), "comes after step_input")
    refused(lambda: block(lambda rnn: rnn.static_input(dense)), "comes after step_input")
    refused(lambda: block(lambda rnn: kept(rnn, False)), "not updated")
    refused(lambda: block(lambda rnn: [rnn.step_input(x), rnn.memory()]), "'init'")
    refused(lambda: block(lambda rnn: rnn.update_memory(rnn.step_input(x), x)), "DynamicRNN.memory")
    refused(lambda: block(lambda rnn: rnn.step_input(rnn.step_input(x))), "'x'", "before the block")
    refused(lambda: block(lambda rnn: rnn.step_input(dense)), "X", "LoD")
    program = fluid.default_main_program()
    assert (len(program.blocks), len(program.global_block().ops)) == before, "nothing is left of what was refused"
    good = layers.DynamicRNN()
    with good.block():
        kept(good)
    refused(good.block, "opened already")
    refused(lambda: good.output(x), "inside of its block")


def test_step_inputs_of_other_lengths(cpu: fluid.Executor) -> None:
    x, y = sequences(), sequences(name="y")
    rnn = layers.DynamicRNN()
    with rnn.block():
        rnn.output(rnn.step_input(x) + rnn.step_input(y))
    out = rnn()
    feed = {"x": batch([2, 1])[0], "y": batch([1, 2])[0]}
    refused(lambda: cpu.run(feed=feed, fetch_list=[out], return_numpy=False), "other lengths", "test_dynamic_rnn.py")
    feed["y"] = batch([2, 1])[0]
    (found,) = cpu.run(feed=feed, fetch_list=[out], return_numpy=False)
    assert found.recursive_sequence_lengths() == [[2, 1]]


def test_a_filled_state_of_steps_in_sequences_of_sequences(exe: fluid.Executor) -> None:
    """It has a row for each inner sequence, of which there may be more than outer ones, or fewer that are not empty."""
    x = layers.data("x", [2], lod_level=2)
    rnn = layers.DynamicRNN()
    with rnn.block():
        row = rnn.step_input(x, level=1)
        before = rnn.memory(shape=[2], value=1.0)
        state = row * before + 0.5
        rnn.update_memory(before, state)
        rnn.output(state)
    out = rnn()
    for lod in ([[2, 1], [2, 1, 3]], [[1, 0, 2], [1, 2, 2]], [[0, 0, 1], [4]], [[3, 3], [1, 1, 2, 0, 1, 1]]):
        rows = RNG.uniform(-1, 1, (sum(lod[1]), 2)).astype(np.float32)
        expected, at = np.zeros((len(rows), 2)), 0
        for size in lod[1]:
            held = np.ones(2)
            for t in range(at, at + size):
                held = expected[t] = rows[t] * held + 0.5
            at += size
        feed = {"x": fluid.create_lod_tensor(rows, lod, "cpu")}
        (found,) = exe.run(feed=feed, fetch_list=[out], return_numpy=False)
        assert found.recursive_sequence_lengths() == lod
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5)


@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
@pytest.mark.parametrize("lengths", [[[0, 0], []], [[1, 0], [2]], [[0], []]])
def test_steps_keep_inner_levels_if_there_is_no_step(mode: str, lengths: list[list[int]]) -> None:
    x = layers.data("x", [2], lod_level=2)
    table = layers.lod_rank_table(x)
    again = layers.array_to_lod_tensor(layers.lod_tensor_to_array(x, table), table)
    pooled = [layers.sequence_pool(each, "sum", pad_value=5.0) for each in (x, again)]
    fed = fluid.LoDTensor()
    fed.set(np.ones((sum(lengths[1]), 2), "float32"), fluid.CPUPlace())
    fed.set_recursive_sequence_lengths(lengths)
    exe = fluid.Executor("cpu", mode=mode)
    back, expected, found = exe.run(feed={"x": fed}, fetch_list=[again, *pooled], return_numpy=False)
    assert back.lod() == fed.lod()
    assert found.lod() == expected.lod()
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
