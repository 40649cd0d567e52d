"""Computations: results, arguments, state and order, on every place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
import fluidlite.graph as ng
from fluidlite.plugin import Execution, Inference
from fluidlite.program.opdef import Attr
from fluidlite.program.registry import ops
from fluidlite.transformers import Transformer, make_transformer_factory


def test_the_first_example(transformer: Transformer) -> None:
    a, b, c = ng.constant(4), ng.placeholder(()), ng.placeholder(())
    d = ng.multiply(a, b)
    e = ng.add(d, c)
    found = transformer.computation(e, b, c)(2, 7)
    assert found == 15
    assert found.shape == ()
    assert transformer.computation([d, e], b, c)(2, 7) == (8, 15)


def test_every_kind_of_result(cpu: Transformer) -> None:
    x = ng.placeholder((2,))
    v = ng.variable((2,), 0.0)
    y, z, put = x + 1, x * 2, ng.assign(v, x)
    given = [1.0, 2.0]
    assert isinstance(cpu.computation(y, x)(given), np.ndarray)
    assert isinstance(cpu.computation([y], x)(given), tuple)
    found = cpu.computation((y, z, y), x)(given)
    np.testing.assert_array_equal(found, [[2, 3], [2, 4], [2, 3]])
    assert not np.shares_memory(found[0], found[2])
    by_value = cpu.computation({y, z}, x)(given)
    assert set(by_value) == {y, z}
    np.testing.assert_array_equal(by_value[z], [2, 4])
    assert cpu.computation(put, x)(given) is None
    assert cpu.computation([put, z], x)(given)[0] is None
    by_key = cpu.computation({"once": y, "twice": y, "put": put}, x)(given)
    assert list(by_key) == ["once", "twice", "put"]
    assert by_key["put"] is None
    np.testing.assert_array_equal(by_key["twice"], [2, 3])
    assert not np.shares_memory(by_key["once"], by_key["twice"])
    assert cpu.computation({}, x)(given) == {}
    assert cpu.computation(None)() is None
    assert cpu.computation([])() == ()
    np.testing.assert_array_equal(cpu.computation(x, x)(given), given)


def test_results_are_copies(transformer: Transformer) -> None:
    v = ng.variable((3,), 1.0)
    read, add = transformer.computation(v), transformer.computation(ng.assign(v, v + 1))
    first = read()
    add()
    np.testing.assert_array_equal(first, np.ones(3))
    first[:] = 100
    np.testing.assert_array_equal(read(), np.full(3, 2.0))


@pytest.mark.parametrize("rows", [3, 40000])
def test_views_where_they_are_asked_for(rows: int, transformer: Transformer) -> None:
    """On the host a view of where it was computed, which the next call writes again; elsewhere a copy."""
    x, v = ng.placeholder((-1,)), ng.variable((2,), 1.0)
    both = transformer.computation([ng.exp(x) * 2, v], x, copy=False)
    apart = transformer.computation([ng.exp(x) * 2, v], x)
    wanted = apart(np.zeros(rows))
    for _ in range(2):
        found = both(np.zeros(rows))
        np.testing.assert_array_equal(found[0], wanted[0])
        np.testing.assert_array_equal(found[1], [1, 1])
    again = both(np.ones(rows))
    transformer.computation(ng.assign(v, v + 1))()
    np.testing.assert_array_equal(wanted[0], np.full(rows, 2))
    for earlier, later, after in zip(found, again, (np.exp(1) * 2, 2), strict=True):
        shared = np.shares_memory(earlier, later)
        assert earlier.flags.writeable != shared
        assert shared or transformer.place.kind != "cpu"
        assert not shared or transformer.place.kind != "opencl"
        if shared:
            np.testing.assert_allclose(earlier, after, rtol=1e-6)
    if transformer.place.kind == "cpu":
        assert both.memory_plan.planned >= rows * 4


def test_a_view_outlives_its_arena() -> None:
    x = ng.placeholder((-1,))
    with make_transformer_factory("cpu")() as made:
        double = made.computation(ng.exp(x) * 2, x, copy=False)
        view = [double(np.zeros(50000)) for _ in range(2)][1]
        for rows in (500000, 500000, 10):
            double(np.zeros(rows))
    assert view.shape == (50000,)
    assert np.isfinite(view.sum())


def test_results_that_the_user_changes_afterwards(cpu: Transformer) -> None:
    x = ng.placeholder(())
    listed, named = [x + 1], {"a": x + 1}
    computations = cpu.computation(listed, x), cpu.computation(named, x)
    listed.append(x + 2)
    named["b"] = x + 2
    assert computations[0](1) == (2,)
    assert computations[1](1) == {"a": 2}


def test_feed_dict(cpu: Transformer) -> None:
    a, b = ng.placeholder(()), ng.placeholder(())
    minus = cpu.computation(a - b, a, b)
    assert minus(feed_dict={b: 1, a: 5}) == 4
    assert minus(5, 1) == 4


def test_other_dims_at_each_call(transformer: Transformer) -> None:
    x = ng.placeholder((-1, 2))
    total = transformer.computation(ng.sum(x), x)
    assert total(np.ones((3, 2))) == 6
    assert total(np.ones((5, 2))) == 10
    assert total(np.ones((0, 2))) == 0


def test_state_is_shared_and_retained(transformer: Transformer) -> None:
    v = ng.variable((2,), initial_value=[1.0, 2.0])
    train = transformer.computation(ng.assign(v, v * 2))
    train()
    infer = transformer.computation(v + 1)  # added when others have run
    np.testing.assert_array_equal(infer(), [3, 5])
    train()
    np.testing.assert_array_equal(infer(), [5, 9])


def test_an_argument_overwrites_state_for_good(transformer: Transformer) -> None:
    v = ng.variable((2,))
    p = ng.persistent_tensor((), 1.0)
    store = transformer.computation(None, v)
    assert store([3, 4]) is None
    np.testing.assert_array_equal(transformer.computation(v)(), [3, 4])
    np.testing.assert_array_equal(transformer.computation(v * p, p)(10), [30, 40])
    np.testing.assert_array_equal(transformer.computation(v * p)(), [30, 40])


def test_a_scope_of_its_own(cpu: Transformer) -> None:
    v = ng.variable((), 1.0)
    add = ng.assign(v, v + 1)
    cpu.computation(add)()
    with make_transformer_factory("cpu")() as other:
        assert other.computation(v)() == 1
    assert cpu.computation(v)() == 2


def test_initial_values(transformer: Transformer) -> None:
    values = {
        "number": ng.variable((2, 2), 3),
        "list": ng.variable((2,), [1, 2]),
        "callable": ng.variable((2, 3), lambda dims: np.arange(6.0).reshape(dims)),
        "value": ng.variable((2,), ng.constant([1.0, 2.0]) * 2),
        "integers": ng.persistent_tensor((2,), [5, 6], dtype="int64"),
        "flag": ng.persistent_tensor((3,), True, dtype="bool"),
    }
    transformer_all = transformer.computation(list(values.values()))
    transformer.initialize()
    found = dict(zip(values, transformer_all(), strict=True))
    np.testing.assert_array_equal(found["number"], np.full((2, 2), 3))
    np.testing.assert_array_equal(found["list"], [1, 2])
    np.testing.assert_array_equal(found["callable"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(found["value"], [2, 4])
    assert found["integers"].dtype == np.int64
    assert found["flag"].all()


def test_initial_values_are_set_once(cpu: Transformer) -> None:
    v = ng.variable((4,), ng.uniform((4,)))
    read = cpu.computation(v)
    first = read()
    cpu.initialize()
    cpu.computation(v + 0)()
    np.testing.assert_array_equal(read(), first)


def test_an_initial_array_is_copied(cpu: Transformer) -> None:
    array = np.ones(2, "float32")
    v, c = ng.variable((2,), array), ng.constant(array)
    array[:] = 5
    np.testing.assert_array_equal(cpu.computation(v + c)(), [2, 2])


def test_an_unlisted_assignment_does_not_run(transformer: Transformer) -> None:
    v = ng.variable((), 1.0)
    ng.assign(v, 5.0)
    assert transformer.computation(v + 1)() == 2


def test_program_order(transformer: Transformer) -> None:
    v = ng.variable((), 1.0)
    before = v + 0
    put = ng.assign(v, v + 10)
    after = v + 0
    computation = transformer.computation([after, put, before, v])
    assert computation() == (11, None, 1, 11)
    assert computation() == (21, None, 11, 21)


def test_sequential_runs_its_parts_in_order(transformer: Transformer) -> None:
    v = ng.variable((), 1.0)
    double, add = ng.assign(v, v * 2), ng.assign(v, v + 1)
    assert transformer.computation(ng.sequential([add, double, v]))() == 4
    assert transformer.computation(ng.sequential([double, add, v]))() == 9


def test_sequential_runs_a_part_once(transformer: Transformer) -> None:
    v = ng.variable((), 1.0)
    add = ng.assign(v, v + 1)
    both = ng.sequential([ng.sequential([add, v]), add, v])
    assert transformer.computation([both, add])() == (2, None)


def test_the_value_of_a_sequence_stays(transformer: Transformer) -> None:
    v = ng.variable((), 1.0)
    first = ng.sequential([ng.assign(v, 2.0), v])
    second = ng.assign(v, 3.0)
    assert transformer.computation([first, second, v])() == (2, None, 3)


def test_a_sequence_that_ends_with_an_action(cpu: Transformer) -> None:
    v = ng.variable((), 1.0)
    twice = ng.sequential([ng.assign(v, v + 1), ng.assign(v, v * 10)])
    assert cpu.computation(twice)() is None
    assert cpu.computation(v)() == 20


def test_value_of_is_a_snapshot(transformer: Transformer) -> None:
    v = ng.variable((2,), 1.0)
    old = ng.value_of(v)
    add = ng.assign(v, v + 1)
    old_found, _, new = transformer.computation([old, add, v])()
    np.testing.assert_array_equal(old_found, [1, 1])
    np.testing.assert_array_equal(new, [2, 2])


def test_swap(transformer: Transformer) -> None:
    a, b = ng.variable((), 1.0), ng.variable((), 2.0)
    kept = ng.value_of(a)
    swap = ng.sequential([kept, ng.assign(a, b), ng.assign(b, kept)])
    transformer.computation(swap)()
    assert transformer.computation([a, b])() == (2, 1)


def test_temporaries(transformer: Transformer) -> None:
    t = ng.temporary((2,))
    x = ng.placeholder((2,))
    done = ng.sequential([ng.assign(t, x), ng.assign(t, t * t), ng.set_item(t, 0, -1.0), t + 1])
    np.testing.assert_array_equal(transformer.computation(done, x)([2, 3]), [0, 10])


def test_fill_and_set_item(transformer: Transformer) -> None:
    m = ng.variable((3, 4), np.arange(12.0).reshape(3, 4))
    want = np.arange(12, dtype="float32").reshape(3, 4)
    cases = [
        (1, 5.0), ((slice(None, None, 2), slice(1, 3)), [[1.0, 2.0], [3.0, 4.0]]), ((Ellipsis, -1), 7.0),
        (slice(0, 0), 3.0), ((2, slice(None, None, -1)), [1.0, 2.0, 3.0, 4.0]), ((0, 0), -1.0),
    ]  # fmt: skip
    for item, value in cases:
        transformer.computation(ng.set_item(m, item, value))()
        want[item] = value
        np.testing.assert_array_equal(transformer.computation(m)(), want)
    transformer.computation(ng.fill(m, 2.5))()
    np.testing.assert_array_equal(transformer.computation(m)(), np.full((3, 4), 2.5))
    n = ng.variable((2,), 0, dtype="int64")
    transformer.computation(ng.fill(n, 2**60 + 1))()  # which no float is
    assert transformer.computation(n)().tolist() == [2**60 + 1] * 2


def test_random_values_are_drawn_anew_and_seeded() -> None:
    u = ng.uniform((8,), 2.0, 3.0)
    draws = []
    for seed in (7, 7, 8):
        with make_transformer_factory("cpu", seed=seed)() as made:
            draw = made.computation([u, u])
            first, again = draw()
            np.testing.assert_array_equal(first, again)
            draws.append((first, draw()[0]))
    assert (draws[0][0] >= 2).all() and (draws[0][0] < 3).all()
    assert (draws[0][0] != draws[0][1]).any()
    np.testing.assert_array_equal(draws[0], draws[1])
    assert (draws[0][0] != draws[2][0]).any()


def test_is_input_cuts_the_graph(cpu: Transformer) -> None:
    x = ng.placeholder(())
    y = x * 2
    y.is_input = True
    assert cpu.computation(y + 1, y)(10) == 11
    assert cpu.computation(y + 1, x)(10) == 21


def test_training(transformer: Transformer) -> None:
    rng = np.random.default_rng(0)
    data = rng.normal(size=(64, 3)).astype("float32")
    truth = data @ np.float32([[1], [-2], [0.5]]) + 0.25
    x, t = ng.placeholder((-1, 3)), ng.placeholder((-1, 1))
    w, b = ng.variable((3, 1), 0.0), ng.variable((1,), 0.0)
    loss = ng.mean(ng.square(x @ w + b - t))
    updates = [ng.assign(p, p - 0.2 * g) for p, g in zip((w, b), ng.deriv(loss, [w, b]), strict=True)]
    train = transformer.computation([loss, *updates], x, t)
    losses = [float(train(data, truth)[0]) for _ in range(60)]
    assert losses[-1] < 1e-3 < losses[0]
    np.testing.assert_allclose(transformer.computation(w)(), [[1], [-2], [0.5]], atol=0.05)


def test_programs_of_fluid_layers(cpu: Transformer) -> None:
    x = fluid.layers.data("x", [4])
    y = fluid.layers.fc(x, 1, param_attr=fluid.initializer.Constant(0.5))
    loss = fluid.layers.mean(y)
    updates, _ = fluid.optimizer.SGD(0.1).minimize(loss)
    infer = cpu.computation(y, x)
    train = cpu.computation([loss, *updates], x)
    ones = np.ones((2, 4), "float32")
    np.testing.assert_allclose(infer(ones), np.full((2, 1), 2.0))
    assert train(ones)[1:] == (None,) * len(updates)
    np.testing.assert_allclose(infer(ones), np.full((2, 1), 1.5), rtol=1e-6)
    np.testing.assert_allclose(cpu.computation(ng.relu(y) + 1, x)(ones), np.full((2, 1), 2.5), rtol=1e-6)


def test_parameters_of_fluid_are_state(cpu: Transformer) -> None:
    x = fluid.layers.data("x", [2])
    y = fluid.layers.fc(x, 1, param_attr=fluid.initializer.Constant(0.5), bias_attr=False)
    (w,) = fluid.default_main_program().all_parameters()
    cpu.computation(ng.assign(w, ng.value_of(w) * 4))()
    np.testing.assert_array_equal(cpu.computation(y, x)(np.ones((1, 2))), [[4]])
    np.testing.assert_array_equal(cpu.computation(y, x, w)(np.ones((1, 2)), [[1], [2]]), [[3]])


def test_lod(cpu: Transformer) -> None:
    x = fluid.layers.data("x", [1], lod_level=1)
    computation = cpu.computation([fluid.layers.mean(x)], x)
    rows = fluid.create_lod_tensor(np.float32([[1], [2], [6]]), [[1, 2]], "cpu")
    assert computation(rows)[0] == 3
    with pytest.raises(ValueError, match="0 LoD levels"):
        computation(np.ones((3, 1)))
    with pytest.raises(ValueError, match="LoD, which a NumPy array cannot hold"):
        cpu.computation(fluid.layers.relu(x), x)(rows)


def test_the_executor_runs_the_rest_of_such_a_program() -> None:
    x, v = ng.placeholder((2,)), ng.variable((2,), 1.0)
    ng.sequential([ng.assign(v, x), v])
    out = fluid.Executor("cpu").run(feed={x.name: np.float32([1, 2])}, fetch_list=[x * 2])
    np.testing.assert_array_equal(out[0], [2, 4])


@pytest.mark.parametrize("seed", range(12))
def test_straight_programs_do_what_python_does(seed: int, cpu: Transformer) -> None:
    """Random assignments, reads and sums of state: computed in Python as they are made."""
    rng = np.random.default_rng(seed)
    held = [float(i + 1) for i in range(3)]
    start = list(held)
    state = [ng.variable((), value) for value in held]
    values = [ng.constant(2) + 0]
    known = [2.0]
    results, wanted = [], []
    for _ in range(30):
        i, j, k = (int(n) for n in rng.integers(0, 3, 3))
        kind = rng.integers(0, 5)
        if kind == 0:
            n = int(rng.integers(len(values)))
            results.append(ng.assign(state[i], values[n]))
            held[i] = known[n]
            wanted.append(None)
            continue
        if kind == 1:
            results.append(ng.assign(state[i], state[j]))
            held[i] = held[j]
            wanted.append(None)
            continue
        if kind == 4:
            made, number = state[j] - state[k] * 0.5, held[j] - held[k] * 0.5
        else:
            made, number = ng.value_of(state[i]) if kind == 2 else state[i] + 0, held[i]
        values.append(made)
        known.append(number)
        results.append(made)
        wanted.append(number)
    found = cpu.computation([*results, *state])()
    assert [None if value is None else float(value) for value in found] == pytest.approx([*wanted, *held])
    load = cpu.computation(None, *state)
    load(*start)
    sequence = cpu.computation(ng.sequential(results))()
    assert wanted[-1] == (None if sequence is None else pytest.approx(float(sequence)))
    assert [float(value) for value in cpu.computation(state)()] == pytest.approx(held)


@pytest.fixture
def running() -> Iterator[str]:
    """An operator with a sub-block: X plus how many operators the block has."""

    def run(frame: Any, op: fluid.Operator) -> None:
        (x,) = frame.read("X")
        out = fluid.Tensor()
        out.set(x.numpy() + len(op._block_attr("sub_block").ops), "cpu")
        frame.write("Out", [out])

    made = fluid.register_op(
        "test_counts_its_block",
        Inference(lambda call: {"Out": call.spec("X")}),
        Execution(run=run),
        inputs=("X",),
        outputs=("Out",),
        attrs=(Attr("sub_block", "block"),),
    )
    yield made.type
    ops.remove(made)


def test_sub_blocks_come_along(running: str, cpu: Transformer) -> None:
    program = fluid.default_main_program()
    x, unused = ng.placeholder((2,)), ng.placeholder((2,))
    outer = ng.exp(x)
    ng.exp(unused)
    inside = program.create_block()
    ng.tanh(outer)
    program.rollback()
    block = program.global_block()
    out = block.create_var("out")
    block.append_op(running, {"X": x}, {"Out": out}, {"sub_block": inside.idx})
    computation = cpu.computation(ng.add(out, 0), x)
    np.testing.assert_array_equal(computation([1, 2]), [2, 3])
    assert [op.type for op in computation.transformed.operators].count("exp") == 1


def test_the_users_program_is_never_edited(cpu: Transformer) -> None:
    v = ng.variable((), 1.0)
    out = ng.sequential([ng.assign(v, v + 1), v])
    before = str(fluid.default_main_program())
    cpu.computation(out)()
    assert str(fluid.default_main_program()) == before


def test_calls_after_an_error_work(cpu: Transformer) -> None:
    table, i = ng.variable((3, 2), 1.0), ng.placeholder((1,), "int64")
    rows = cpu.computation(ng.lookup_table(table, i), i)
    with pytest.raises(fluid.errors.OutOfRangeError, match="index 3"):
        rows([3])
    np.testing.assert_array_equal(rows([2]), [[1, 1]])
