"""Loops and branches on every place, compiled and interpreted, against plain float64 NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.errors import FetchError

KINDS = ("cpu", "opencl", "fpga")
MODES = ("interpreted", "compiled")
pytestmark = pytest.mark.filterwarnings("ignore::fluidlite.errors.FallbackWarning")


@pytest.fixture(params=[(kind, mode) for kind in KINDS for mode in MODES], ids="-".join)
def exe(request: pytest.FixtureRequest, require: Callable[..., None]) -> fluid.Executor:
    kind, mode = request.param
    require(kind)
    return fluid.Executor(kind, mode=mode)


@pytest.fixture
def cpu() -> fluid.Executor:
    return fluid.Executor("cpu")


def fed(name: str, dims: list[int], dtype: str = "float32") -> Any:
    made = layers.data(name, dims, dtype=dtype, append_batch_size=False)
    made.stop_gradient = dtype != "float32"
    return made


def counted(n: Any, body: Callable[[Any], None], **options: Any) -> Any:
    """Run a body n times; return the counter."""
    i = layers.fill_constant([1], "int64", 0)
    more = layers.less_than(i, n)
    with layers.While(more, **options).block():
        body(i)
        layers.increment(i)
        layers.less_than(i, n, cond=more)
    return i


def count(n: int) -> Any:
    return np.array([n], np.int64)


RNG = np.random.default_rng(3)
X = RNG.uniform(0.2, 0.9, (2, 3)).astype(np.float32)


# While


def test_a_loop_of_any_number_of_steps_and_its_gradient(exe: fluid.Executor) -> None:
    x, n = fed("x", [2, 3]), fed("n", [1], "int64")
    s = layers.assign(x)
    i = counted(n, lambda _: layers.assign(s * x + 1.0, output=s))
    (dx,) = fluid.gradients(layers.reduce_sum(s), x)
    for steps in (0, 1, 2, 100, 0):
        value, slope = X.astype(np.float64), np.ones((2, 3))
        for _ in range(steps):
            value, slope = value * X + 1, slope * X + value
        found = exe.run(feed={"x": X, "n": count(steps)}, fetch_list=[s, i, dx])
        np.testing.assert_allclose(found[0], value, rtol=2e-5)
        assert found[1].tolist() == [steps]
        np.testing.assert_allclose(found[2], slope, rtol=2e-4)


def test_what_a_loop_grows(exe: fluid.Executor) -> None:
    """The dims that change are open, in the loop and after it; Transformers keep what they have seen so."""
    x, n = fed("x", [2, 3]), fed("n", [1], "int64")
    seen = layers.fill_constant_batch_size_like(x, [-1, 0, 3], "float32", 0.0)
    seen.stop_gradient = False

    def body(i: Any) -> None:
        new = layers.unsqueeze(x * layers.cast(i + 1, "float32") + layers.reduce_sum(seen, 1), [1])
        layers.assign(layers.concat([seen, new], 1), seen)

    counted(n, body)
    assert seen.shape == (2, -1, 3)
    last = layers.reduce_sum(seen, 1)
    (dx,) = fluid.gradients(layers.reduce_sum(last), x)
    for steps in (0, 1, 4):
        factors: list[int] = []
        for i in range(steps):
            factors.append(i + 1 + sum(factors))
        found = exe.run(feed={"x": X, "n": count(steps)}, fetch_list=[seen, last, dx])
        np.testing.assert_allclose(found[0], X[:, None] * np.reshape(factors, (1, -1, 1)), rtol=1e-6)
        np.testing.assert_allclose(found[1], X * sum(factors), rtol=1e-6)
        np.testing.assert_allclose(found[2], np.full_like(X, sum(factors)), rtol=1e-6)


def test_parameters_in_a_loop_are_trained(exe: fluid.Executor) -> None:
    x, n = fed("x", [2, 3]), fed("n", [1], "int64")
    h = layers.fc(x, 3, param_attr="v", bias_attr=False)
    counted(n, lambda _: layers.assign(layers.fc(h, 3, act="tanh", param_attr="w", bias_attr="b"), output=h))
    loss = layers.mean(h)
    fluid.optimizer.SGD(0.5).minimize(loss)
    exe.run(fluid.default_startup_program())
    scope = fluid.global_scope()
    held = [np.array(scope.find_var(name).get_tensor()).astype(np.float64) for name in "vwb"]
    for _ in range(3):
        (found,) = exe.run(feed={"x": X, "n": count(3)}, fetch_list=[loss])
        expected, slopes = _tanh_loop(X.astype(np.float64), *held, 3)
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        held = [value - 0.5 * slope for value, slope in zip(held, slopes, strict=True)]
    for name, value in zip("vwb", held, strict=True):
        np.testing.assert_allclose(np.array(scope.find_var(name).get_tensor()), value, rtol=1e-3, atol=1e-5)


def _tanh_loop(x: Any, v: Any, w: Any, b: Any, steps: int) -> tuple[Any, list[Any]]:
    values = [x @ v]
    for _ in range(steps):
        values.append(np.tanh(values[-1] @ w + b))
    dh, dw, db = np.full(values[-1].shape, 1 / values[-1].size), 0.0 * w, 0.0 * b
    for before, after in zip(values[-2::-1], values[:0:-1], strict=True):
        inner = dh * (1 - after**2)
        dw, db, dh = dw + before.T @ inner, db + inner.sum(0), inner @ w.T
    return values[-1].mean(), [x.T @ dh, dw, db]


def test_loops_in_loops(exe: fluid.Executor) -> None:
    x, n = fed("x", [2, 3]), fed("n", [1], "int64")
    s = layers.assign(x)

    def outer(i: Any) -> None:
        counted(i, lambda _: layers.assign(s * x, output=s))

    counted(n, outer)
    (dx,) = fluid.gradients(layers.reduce_sum(s), x)
    for steps in (1, 2, 4):  # 0 + 1 + ... products
        power = steps * (steps - 1) // 2 + 1
        found = exe.run(feed={"x": X, "n": count(steps)}, fetch_list=[s, dx])
        np.testing.assert_allclose(found[0], X.astype(np.float64) ** power, rtol=2e-5)
        np.testing.assert_allclose(found[1], power * X.astype(np.float64) ** (power - 1), rtol=2e-4)


def test_values_are_swapped_and_outer_ones_stay(exe: fluid.Executor) -> None:
    a, b, n = fed("a", [2, 3]), fed("b", [2, 3]), fed("n", [1], "int64")
    i = layers.fill_constant([1], "int64", 0)
    found = layers.while_loop(
        lambda i, a, b: layers.less_than(i, n), lambda i, a, b: [i + 1, b, a * 2.0], [i, a, b]
    )  # fmt: skip
    da, db = fluid.gradients(layers.reduce_sum(found[1]), [a, b])
    got = exe.run(feed={"a": X, "b": 10 * X, "n": count(3)}, fetch_list=[*found, a, i, da, db])
    np.testing.assert_allclose(got[1], 20 * X, rtol=1e-6)
    np.testing.assert_allclose(got[2], 4 * X, rtol=1e-6)
    np.testing.assert_array_equal(got[3], X)
    assert (got[0].tolist(), got[4].tolist()) == ([3], [0])
    np.testing.assert_allclose(got[5], 0 * X)
    np.testing.assert_allclose(got[6], 0 * X + 2)


def test_values_that_grow(exe: fluid.Executor) -> None:
    n = fed("n", [1], "int64")
    x = layers.data("x", [-1, 3], append_batch_size=False)
    x.stop_gradient = False
    s = layers.assign(x)
    counted(n, lambda _: layers.assign(layers.concat([s, x * 2.0]), output=s))
    (dx,) = fluid.gradients(layers.reduce_sum(s), x)
    for steps in (0, 2, 3):
        found = exe.run(feed={"x": X, "n": count(steps)}, fetch_list=[s, dx])
        np.testing.assert_allclose(found[0], np.concatenate([X] + [2 * X] * steps), rtol=1e-6)
        np.testing.assert_allclose(found[1], np.full_like(X, 1 + 2 * steps))


def test_random_numbers_of_each_step_are_the_same_both_ways() -> None:
    x, n = fed("x", [4, 50]), fed("n", [1], "int64")
    fluid.default_main_program().random_seed = 7
    s = layers.assign(x)
    masks = layers.fill_constant([4, 50], "float32", 1.0)

    def body(_: Any) -> None:
        mask = layers.dropout(layers.ones_like(x), 0.2)
        layers.assign(s * mask, output=s)
        layers.assign(masks * mask, output=masks)

    counted(n, body)
    (dx,) = fluid.gradients(layers.reduce_sum(s), x)
    seen = []
    for mode in MODES:
        with fluid.scope_guard(fluid.Scope()):
            exe = fluid.Executor("cpu", mode=mode)
            for _ in range(2):
                found = exe.run(feed={"x": np.ones((4, 50), np.float32), "n": count(4)}, fetch_list=[masks, dx])
                np.testing.assert_array_equal(*found)
                seen.append(found[0])
    np.testing.assert_array_equal(seen[0], seen[2])
    np.testing.assert_array_equal(seen[1], seen[3])
    assert not np.array_equal(seen[0], seen[1])
    assert 0.2 < (seen[0] == 0).mean() < 0.9


def test_a_loop_survives_saving_and_cloning(cpu: fluid.Executor) -> None:
    x, n = fed("x", [2, 3]), fed("n", [1], "int64")
    s = layers.assign(x)
    counted(n, lambda _: layers.assign(s + x, output=s))
    main = fluid.default_main_program()
    for program in (fluid.Program.from_json(main.to_json()), main.clone(), main.clone(for_test=True), main.prune([s])):
        (found,) = cpu.run(program, {"x": X, "n": count(3)}, [s.name])
        np.testing.assert_allclose(found, 4 * X, rtol=1e-6)


@pytest.mark.parametrize("kind", ["block", "switch", "cond", "static rnn", "gradients"])
def test_branches_and_steps_survive_saving(kind: str, cpu: fluid.Executor) -> None:
    """A program with blocks of each kind is what it was after JSON, text for text and number for number."""
    x, on = fed("x", [2, 3]), fed("on", [1], "bool")
    x.stop_gradient = False
    s, zero = layers.assign(x), layers.fill_constant([3], "float32", 0.0)
    if kind == "block":
        with layers.ConditionalBlock([on], is_scalar_condition=True).block():
            layers.assign(s + x, output=s)
    elif kind == "switch":
        with layers.Switch() as switch:
            with switch.case(on):
                layers.assign(s * 3.0, output=s)
            with switch.default():
                layers.assign(s * 5.0, output=s)
    elif kind == "static rnn":
        rnn = layers.StaticRNN()
        with rnn.step():
            before = rnn.memory(init=zero)
            rnn.update_memory(before, before + rnn.step_input(x))
            rnn.step_output(before)
        s = rnn()
    else:
        s = layers.cond(on, lambda: x * x, lambda: x + 1.0)
    fetches = [s.name] + ([g.name for g in fluid.gradients(s, x)] if kind == "gradients" else [])
    main = fluid.default_main_program()
    again = fluid.Program.from_json(main.to_json())
    assert (str(again), again.to_json()) == (str(main), main.to_json())
    for holds in (True, False):
        feed = {"x": X, "on": np.array([holds])}
        np.testing.assert_array_equal(cpu.run(again, feed, fetches), cpu.run(main, feed, fetches))


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("written", ["what went in", "what came out"])
@pytest.mark.parametrize("kind", ["while", "while_loop", "block", "switch", "cond", "print", "py_func"])
def test_what_an_operator_hands_on_is_another_value(kind: str, written: str, mode: str, place: str) -> None:
    """Blocks that do not run, and print, give what they were given; what writes over one leaves the other."""
    x = fed("x", [2, 3])
    zero = layers.fill_constant([1], "int64", 0)
    off = layers.less_than(zero, zero)
    given = layers.tanh(x)
    out = layers.assign(given)
    if kind == "while":
        with layers.While(off).block():
            layers.assign(layers.exp(out), output=out)
            layers.less_than(zero, zero, cond=off)
    elif kind == "while_loop":
        out = layers.while_loop(lambda i, v: layers.less_than(i, zero), lambda i, v: [i, layers.exp(v)], [zero, given])[
            1
        ]
    elif kind == "block":
        with layers.ConditionalBlock([off], is_scalar_condition=True).block():
            layers.assign(layers.exp(out), output=out)
    elif kind == "switch":
        with layers.Switch() as switch, switch.case(off):
            layers.assign(layers.exp(out), output=out)
    elif kind == "cond":
        out = layers.cond(off, lambda: layers.exp(given), lambda: given)
    elif kind == "print":
        out = layers.Print(given, print_phase="backward")
    else:
        out = fluid.default_main_program().global_block().create_var("out", [2, 3], "float32")
        layers.py_func(lambda value: value, given, out)
    changed, kept = (given, out) if written == "what went in" else (out, given)
    changed.block.append_op("scale", {"X": changed}, {"Out": changed}, {"scale": 0.5, "bias": 0.25})
    fetches = [layers.scale(kept, 2.0), layers.scale(changed, 2.0)]
    exe = fluid.Executor(place, mode=mode, fallback="allow")
    for _ in range(3):
        found = exe.run(feed={"x": X}, fetch_list=fetches)
        np.testing.assert_allclose(found[0], 2 * np.tanh(X), rtol=1e-5)
        np.testing.assert_allclose(found[1], np.tanh(X) + 0.5, rtol=1e-5)


def test_what_steps_keep_is_not_fetched(cpu: fluid.Executor) -> None:
    x, n = fed("x", [2, 3]), fed("n", [1], "int64")
    x.stop_gradient = False
    s = layers.assign(x)
    counted(n, lambda _: layers.assign(s * x, output=s))
    (slope,) = fluid.gradients(s, x)
    main = fluid.default_main_program()
    (steps,) = [variable.name for variable in main.list_vars() if variable.type == "step_scopes"]
    for program in (main, main.clone(for_test=True)):
        with pytest.raises(FetchError, match=f"names '{steps}', which holds the step scopes of a loop"):
            cpu.run(program, {"x": X, "n": count(3)}, [steps])
    cpu.run(main, {"x": X, "n": count(3)}, [slope])


@pytest.mark.parametrize("counts_known", [True, False])
def test_only_the_condition_comes_to_the_host(require: Callable[..., None], counts_known: bool) -> None:
    """And not that, where counters say how often the loop runs."""
    require("opencl")
    n, x = fed("n", [1], "int64"), fed("x", [100, 100])
    s, limit = layers.assign(x), layers.cast(n, "float32")

    def body(i: Any) -> None:
        layers.assign(s + x, output=s)
        if not counts_known:  # a comparison of floats comes last
            layers.increment(times)
            layers.less_than(times, limit, cond=more)

    if counts_known:
        counted(n, body)
    else:
        times = layers.fill_constant([1], "float32", 0.0)
        more = layers.less_than(times, limit)
        with layers.While(more).block():
            body(None)
    total = layers.reduce_sum(s)
    exe = fluid.Executor("opencl:0")
    moved = []
    for steps in (5, 5, 55):
        counts = fluid.platform.context_pool.get_context("opencl:0").counts
        before = counts.bytes_out
        exe.run(feed={"x": np.ones((100, 100), np.float32), "n": count(steps)}, fetch_list=[total])
        moved.append(counts.bytes_out - before)
    assert moved[2] - moved[1] == (0 if counts_known else 50)  # a bool an iteration


def test_the_outer_block_is_still_optimised(cpu: fluid.Executor) -> None:
    x, n = fed("x", [2, 3]), fed("n", [1], "int64")
    s = layers.assign(layers.tanh(layers.exp(x * 2.0) + 1.0))
    counted(n, lambda _: layers.assign(s + x, output=s))
    (found,) = cpu.run(feed={"x": X, "n": count(2)}, fetch_list=[layers.sqrt(s * s + 1.0)])
    expected = np.tanh(np.exp(2 * X.astype(np.float64)) + 1) + 2 * X
    np.testing.assert_allclose(found, np.sqrt(expected**2 + 1), rtol=1e-5)
    types = [line.op.type for line in cpu.explain_last().plan.lines]
    assert "while" in types
    assert not {"exp", "tanh", "sqrt"} & set(types)  # fused


def test_a_loop_that_nothing_needs_does_not_run(cpu: fluid.Executor) -> None:
    n = fed("n", [1], "int64")
    i = counted(n, lambda _: None)
    other = layers.fill_constant([1], "float32", 3.0)
    assert cpu.run(fetch_list=[other])[0].tolist() == [3]  # n is not even fed
    assert cpu.run(feed={"n": count(2)}, fetch_list=[i])[0].tolist() == [2]
    seen: list[int] = []
    counted(n, lambda i: layers.py_func(lambda value: seen.append(int(value.numpy()[0])), i, None))
    cpu.run(feed={"n": count(3)}, fetch_list=[other])
    assert seen == [0, 1, 2]


def test_loops_that_are_refused(cpu: fluid.Executor) -> None:
    n = fed("n", [1], "int64")
    i = layers.fill_constant([1], "int64", 0)
    more = layers.less_than(i, n)
    main = fluid.default_main_program()
    with pytest.raises(fluid.errors.ProgramError, match="never writes its condition") as caught:  # noqa: SIM117
        with layers.While(more).block():
            layers.increment(i)
    assert "less_than" in str(caught.value)
    assert (len(main.blocks), main.current_block_idx) == (1, 0)
    with pytest.raises(ZeroDivisionError), layers.While(more).block():
        raise ZeroDivisionError
    assert (len(main.blocks), main.current_block_idx) == (1, 0)
    for wrong in (i, 1, None, layers.less_than(fed("a", [2]), fed("b", [2]))):
        with pytest.raises(fluid.errors.ProgramError, match=r"a bool of one element|a Variable"):
            layers.While(wrong)
    loop = layers.While(more, max_iterations=7)
    with loop.block():
        layers.increment(i, 0)
        layers.less_than(i, n, cond=more)
    with pytest.raises(fluid.errors.OutOfRangeError, match=r"while.*test_control_flow.py(.|\n)*after 7 iterations"):
        cpu.run(feed={"n": count(3)}, fetch_list=[i])
    assert cpu.run(feed={"n": count(0)}, fetch_list=[i])[0].tolist() == [0]  # the next run works


def test_an_error_in_an_iteration_names_the_operator(exe: fluid.Executor) -> None:
    n, x = fed("n", [1], "int64"), fed("x", [4, 2])
    s = layers.fill_constant([1, 2], "float32", 0.0)
    i = counted(n, lambda i: layers.assign(s + layers.gather(x, layers.cast(i, "int32")), output=s))
    feed = {"x": np.ones((4, 2), np.float32)}
    with pytest.raises(fluid.FluidError, match="gather"):
        exe.run(feed={**feed, "n": count(9)}, fetch_list=[s])
    found = exe.run(feed={**feed, "n": count(4)}, fetch_list=[s, i])
    assert (found[0].tolist(), found[1].tolist()) == ([[4.0, 4.0]], [4])


def test_an_operator_without_derivative_in_a_loop() -> None:
    n, x = fed("n", [1], "int64"), fed("x", [2, 3])
    s = layers.assign(x)
    counted(
        n, lambda _: layers.assign(layers.cumsum(layers.py_func(abs, s, s.block.create_var("o", [2, 3], "float32"))), s)
    )
    with pytest.raises(fluid.errors.GradientError, match="py_func"):
        fluid.gradients(layers.reduce_sum(s), x)


def test_while_loop_refuses(cpu: fluid.Executor) -> None:
    i = layers.fill_constant([1], "int64", 0)
    for arguments, message in (
        ((None, len, [i]), "cond"), ((len, None, [i]), "body"), ((lambda i: i < 3, lambda i: i, []), "loop_vars"),
        ((lambda i: i, lambda i: i, [i]), "a bool of one element"),
        ((lambda i: i < 3, lambda i: [i, i], [i]), "returned 2 value"),
        ((lambda i: i < 3, lambda i: layers.cast(i, "float32"), [i]), "expected the same"),
    ):  # fmt: skip
        with pytest.raises(fluid.FluidError, match=message):
            layers.while_loop(*arguments)
        assert fluid.default_main_program().num_blocks == 1


# Branches


def test_cond_runs_one_branch_and_takes_its_gradient(exe: fluid.Executor) -> None:
    x, y, p = fed("x", [2, 3]), fed("y", [2, 3]), fed("p", [1])
    pred = layers.less_than(p, layers.fill_constant([1], "float32", 0.5))
    out, both = layers.cond(pred, lambda: [x * y, (x, y)], lambda: [layers.exp(x), (y * 3.0, x)])
    dx, dy = fluid.gradients(layers.reduce_sum(out) + layers.reduce_sum(both[0]), [x, y])
    e = np.exp(X.astype(np.float64))
    for number, expected in ((0.0, (3 * X * X, X, 3 * X, 3 * X + 1, X)), (1.0, (e, 9 * X, X, e, 0 * X + 3))):
        got = exe.run(feed={"x": X, "y": 3 * X, "p": np.array([number], np.float32)}, fetch_list=[out, *both, dx, dy])
        if not number:
            expected = (3 * X * X, X, 3 * X, 3 * X + 1, X)
        for found, value in zip(got, expected, strict=True):
            np.testing.assert_allclose(found, value, rtol=1e-5)


def test_switch_takes_the_first_that_holds(exe: fluid.Executor) -> None:
    step = fed("step", [1])
    rate = layers.create_global_var([1], 0.0, "float32", persistable=True, name="rate")
    exe.run(fluid.default_startup_program())
    one, two = (layers.fill_constant([1], "float32", float(v)) for v in (1, 2))
    with layers.Switch() as switch:
        with switch.case(layers.less_than(step, one)):
            layers.assign(layers.fill_constant([1], "float32", 10.0), output=rate)
        with switch.case(layers.less_than(step, two)):
            layers.assign(step * 2.0, output=rate)
        with switch.default():
            layers.assign(rate + 1.0, output=rate)
    saved = fluid.Program.from_json(fluid.default_main_program().to_json())
    for program in (fluid.default_main_program(), saved):
        for number, value in ((0.5, 10), (1.5, 3), (7, 4), (7, 5), (0, 10)):
            (found,) = exe.run(program, feed={"step": np.array([number], np.float32)}, fetch_list=[rate])
            assert found.tolist() == [value]


def test_case_and_switch_case(exe: fluid.Executor) -> None:
    index, x = fed("index", [1], "int32"), fed("x", [2, 3])
    numbered = layers.switch_case(index, {3: lambda: x * 3.0, 1: lambda: x + 1.0}, lambda: x * 0.0)
    listed = layers.switch_case(index, [lambda: x + 5.0, lambda: x - 5.0])
    wide = layers.cast(index, "float32")
    first = layers.case([(wide < layers.fill_constant([1], "float32", 1.0), lambda: x * 7.0),
                         (wide < layers.fill_constant([1], "float32", 3.0), lambda: x * 8.0)])  # fmt: skip
    for number, values in ((0, (0 * X, X + 5, 7 * X)), (1, (X + 1, X - 5, 8 * X)), (3, (3 * X, X - 5, 8 * X))):
        got = exe.run(feed={"index": np.array([number], np.int32), "x": X}, fetch_list=[numbered, listed, first])
        for found, value in zip(got, values, strict=True):
            np.testing.assert_allclose(found, value, rtol=1e-6)


def test_a_block_that_does_not_run_leaves_what_was(cpu: fluid.Executor) -> None:
    x, p = fed("x", [2, 3]), fed("p", [1])
    pred = layers.less_than(p, layers.fill_constant([1], "float32", 0.5))
    kept = layers.assign(x)
    with layers.ConditionalBlock([pred], is_scalar_condition=True).block():
        layers.assign(kept * 2.0, output=kept)
    (dx,) = fluid.gradients(layers.reduce_sum(kept), x)
    for number, factor in ((0, 2), (1, 1)):
        found = cpu.run(feed={"x": X, "p": np.array([number], np.float32)}, fetch_list=[kept, dx])
        np.testing.assert_allclose(found[0], factor * X)
        np.testing.assert_allclose(found[1], 0 * X + factor)
    lost = fluid.default_main_program().global_block().create_var("lost", [2, 3], "float32")
    with layers.ConditionalBlock([pred], is_scalar_condition=True).block():
        layers.assign(x, output=lost)
    cpu.run(feed={"x": X, "p": np.array([0], np.float32)}, fetch_list=[lost])
    with pytest.raises(fluid.errors.ProgramError, match=r"test_control_flow.py(.|\n)*'lost' has no value from before"):
        cpu.run(feed={"x": X, "p": np.array([1], np.float32)}, fetch_list=[lost])


def test_a_block_that_runs_unless_something_is_empty(cpu: fluid.Executor) -> None:
    x = layers.data("x", [-1, 3], append_batch_size=False)
    ran = layers.fill_constant([1], "float32", 0.0)
    with layers.ConditionalBlock([x]).block():
        layers.assign(ran + 1.0, output=ran)
    assert cpu.run(feed={"x": X}, fetch_list=[ran])[0].tolist() == [1]
    assert cpu.run(feed={"x": X[:0]}, fetch_list=[ran])[0].tolist() == [0]


def test_branches_that_are_refused() -> None:
    x, p = fed("x", [2, 3]), fed("p", [1])
    pred = layers.less_than(p, layers.fill_constant([1], "float32", 0.5))
    main = fluid.default_main_program()
    for call, message in (
        (lambda: layers.cond(pred, lambda: x, lambda: [x, x]), "the same structure"),
        (lambda: layers.cond(pred, lambda: x), "the same structure"),
        (lambda: layers.cond(pred, lambda: x, lambda: layers.cast(x, "int64")), "one dtype and rank"),
        (lambda: layers.cond(x, lambda: x, lambda: x), "a bool of one element"),
        (lambda: layers.cond(pred, 3, lambda: x), "true_fn"),
        (lambda: layers.case([]), "pred_fn_pairs"), (lambda: layers.case([(pred, 1)]), "pred_fn_pairs"),
        (lambda: layers.switch_case(x, [lambda: x]), "branch_index"),
        (lambda: layers.switch_case(layers.cast(p, "int64"), [(1, lambda: x), (1, lambda: x)]), "a number twice"),
        (lambda: layers.switch_case(layers.cast(p, "int64"), {}), "branch_fns"),
        (lambda: layers.Switch().default(), "after one case"), (lambda: layers.Switch().case(x), "a bool"),
        (lambda: layers.ConditionalBlock([]), "inputs"), (lambda: layers.ConditionalBlock([x], True), "a bool"),
    ):  # fmt: skip
        with pytest.raises(fluid.FluidError, match=message):
            call()
        assert (main.num_blocks, main.current_block_idx) == (1, 0)


def test_a_condition_of_several_elements_names_its_operator_once(cpu: fluid.Executor) -> None:
    x = layers.data("x", [2])
    out = layers.cond(layers.less_than(x, x), lambda: x, lambda: x)
    with pytest.raises(fluid.FluidError, match=r"has dims \[3, 2\]; expected one element") as exc:
        cpu.run(feed={"x": np.ones((3, 2), "float32")}, fetch_list=[out])
    assert str(exc.value).count("operator conditional_block") == 1


@pytest.mark.parametrize("value", [True, False])
def test_a_condition_may_be_a_constant_truth_value(value: bool) -> None:
    holds = layers.fill_constant([1], "bool", value)
    out = layers.cond(
        holds, lambda: layers.fill_constant([1], "float32", 3), lambda: layers.fill_constant([1], "float32", 4)
    )
    (found,) = fluid.Executor("cpu").run(fetch_list=[out])
    assert found.tolist() == [3 if value else 4]
    with pytest.raises(fluid.errors.ProgramError, match="'value' is bool True; expected a number"):
        layers.fill_constant([1], "float32", True)


@pytest.mark.parametrize("nesting", ["cond", "while", "static_rnn"])
def test_random_numbers_of_nested_blocks_are_those_of_the_forward_run(exe: fluid.Executor, nesting: str) -> None:
    """A dropout inside a block inside a loop: x is 1, so that its gradient is the sum of the masks, as its value is."""
    x = layers.data("x", [4])
    x.stop_gradient = False
    total, yes = layers.scale(x, 0.0), layers.fill_constant([1], "bool", True)
    i, n = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 3)
    condition = layers.less_than(i, n)

    def inner() -> Any:
        if nesting == "cond":
            return layers.cond(yes, lambda: layers.dropout(x, 0.5), lambda: layers.scale(x, 1.0))
        if nesting == "while":
            inside, k = layers.scale(x, 0.0), layers.fill_constant([1], "int64", 0)
            more = layers.less_than(k, n)
            with layers.While(more).block():
                layers.assign(inside + layers.dropout(x, 0.5), output=inside)
                layers.increment(k)
                layers.less_than(k, n, cond=more)
            return inside
        rows, rnn = layers.reshape(x, [1, -1, 4]), layers.StaticRNN()
        with rnn.step():
            row = rnn.step_input(rows)
            rnn.step_output(layers.dropout(row, 0.5))
        return layers.reduce_sum(rnn(), 0)

    with layers.While(condition).block():
        layers.assign(total + inner(), output=total)
        layers.increment(i)
        layers.less_than(i, n, cond=condition)
    (gradient,) = fluid.gradients(layers.reduce_sum(total), x)
    scope, sums = fluid.Scope(), []
    for _ in range(3):
        value, found = exe.run(feed={"x": np.ones((2, 4), "float32")}, fetch_list=[total, gradient], scope=scope)
        np.testing.assert_array_equal(found, value)
        sums.append(value.tolist())
    assert sums[0] != sums[1] or sums[1] != sums[2]
