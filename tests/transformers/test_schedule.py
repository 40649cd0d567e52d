"""ScheduleUpdates: updates run once they can, and nothing else changes its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from networks import network, runs

import fluidlite as fluid
import fluidlite.graph as ng
from fluidlite import layers
from fluidlite.transformers import Graph, PassList, ScheduleUpdates, Transformer


def order(program: fluid.Program, wanted: list[Any]) -> list[str]:
    """Operators after the pass, each with what it writes first."""
    graph = Graph(program, [value.name for value in wanted])
    PassList([ScheduleUpdates()]).run(graph)
    return [f"{op.operator.type} {op.output_arg_names[0]}" for op in graph.operators]


def before(program: fluid.Program) -> list[str]:
    return [f"{op.type} {op.output_arg_names[0]}" for op in program.global_block().ops]


def test_each_update_follows_its_gradient_and_the_last_reader() -> None:
    main, _, _, wanted = network(3, 8)
    found = order(main, wanted)
    assert sorted(found) == sorted(before(main))
    gradients = [i for i, op in enumerate(found) if op.startswith("mul_grad")]
    assert [found[i + 1] for i in gradients] == [f"momentum fc_{k}.w_0" for k in (2, 1, 0)]
    rest = [op for op in found if not op.startswith("momentum")]
    assert rest == [op for op in before(main) if not op.startswith("momentum")]


@pytest.mark.parametrize(
    "make",
    [
        lambda: fluid.optimizer.Adam(0.01, regularization=fluid.regularizer.L2Decay(0.1)),
        lambda: fluid.optimizer.Momentum(0.01, 0.9, regularization=fluid.regularizer.L1Decay(0.1)),
        lambda: fluid.optimizer.SGD(layers.exponential_decay(0.1, 10, 0.9)),
        lambda: fluid.optimizer.Lamb(0.01),
    ],
    ids=["adam", "momentum", "schedule", "lamb"],
)
@pytest.mark.parametrize("clip", [False, True])
def test_training_is_the_same(make: Any, clip: bool) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        main, startup = fluid.default_main_program(), fluid.default_startup_program()
        startup.random_seed = 3
        x = hidden = layers.data("x", [6])
        for _ in range(3):
            hidden = layers.fc(hidden, 6, act="tanh")
        loss = layers.mean(layers.square_error_cost(hidden, x))
        if clip:
            fluid.clip.set_gradient_clip(fluid.clip.GradientClipByGlobalNorm(0.01), program=main)
        make().minimize(loss)
        moved = order(main, [loss])
        net = main, startup, {"x": np.random.default_rng(0).normal(size=(5, 6)).astype("float32")}, [loss]
        interpreted, _, _ = runs(net, "cpu", "interpreted", 4)
        found = []
        for passes in ([], [ScheduleUpdates()]):
            scope = fluid.Scope()
            exe = fluid.Executor("cpu", mode="compiled", passes=passes)
            exe.run(startup, scope=scope)
            found.append([exe.run(main, net[2], [loss], scope=scope) for _ in range(4)])
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[1], interpreted, rtol=1e-6)  # other kernels for small tensors
    assert moved != before(main) or clip  # a norm of all gradients holds every update back


def test_what_reads_the_old_value_comes_before() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        main = fluid.default_main_program()
        w = layers.create_global_var([2], 1.0, "float32", persistable=True, name="w")
        x = layers.data("x", [2], append_batch_size=False)
        new = layers.scale(x, 2.0)
        early = layers.elementwise_add(w, x)
        layers.assign(new, w)
        late = layers.elementwise_mul(w, early)
        found = order(main, [early, late])
        assert [op.split()[0] for op in found] == ["scale", "elementwise_add", "assign", "elementwise_mul"]


def test_nothing_moves_past_an_operator_that_runs_itself() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        main = fluid.default_main_program()
        w = layers.create_global_var([2], 1.0, "float32", persistable=True, name="w")
        x = layers.data("x", [2], append_batch_size=False)
        new = layers.scale(x, 2.0)
        shown = layers.Print(layers.exp(x))
        layers.exp(shown)
        layers.assign(new, w)
        found = [op.split()[0] for op in order(main, [shown])]
        assert found.index("assign") == found.index("print") + 1


def test_an_update_stays_behind_what_may_find_an_index_out_of_range(transformer: Transformer) -> None:
    table, count = ng.variable((3, 2), 1.0), ng.variable((), 0.0)
    i = ng.placeholder((1,), "int64")
    rows = ng.lookup_table(table, i)
    train = transformer.computation([rows, ng.assign(count, count + 1)], i)
    for index in (2, 7, -1, 0):
        if index in (2, 0):
            train([index])
        else:
            with pytest.raises(fluid.errors.OutOfRangeError, match=f"index {index} "):
                train([index])
    assert transformer.computation(count)() == 2
