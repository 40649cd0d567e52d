"""Sparse gradients of tables: as the dense ones, by rows, for each optimiser, on each place, in both modes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers, optimizer
from fluidlite.errors import OutOfRangeError, ProgramError

HEIGHT, WIDTH = 12, 4
REPEATED = np.array([[3], [7], [3], [0], [11], [3]])
PLACES = [str(place) for place in fluid.places()]

MAKERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optimizer.SGD(0.1),
    "momentum": lambda: optimizer.Momentum(0.1, 0.9, use_nesterov=True),
    "adam": lambda: optimizer.Adam(0.1),
    "adagrad": lambda: optimizer.Adagrad(0.1, initial_accumulator_value=0.1),
    "ftrl": lambda: optimizer.Ftrl(0.1, l1=0.01, l2=0.01),
    "rmsprop": lambda: optimizer.RMSProp(0.1, momentum=0.5, centered=True),
    "adamax": lambda: optimizer.Adamax(0.1),
    "lamb": lambda: optimizer.Lamb(0.1),
    "norm": lambda: optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByNorm(0.05)),
    "global_norm": lambda: optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByGlobalNorm(0.05)),
    "value": lambda: optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByValue(0.01)),
}


def train(
    sparse: bool, make: Callable[[], Any], batches: list[np.ndarray], place: str = "cpu", twice: bool = False,
    dense_use: bool = False, padding: int | None = None, interpret: bool = False,
) -> tuple[np.ndarray, list[str]]:  # fmt: skip
    """The table after some steps, from the same start, and the types of the operators."""
    main, startup = fluid.Program(), fluid.Program()
    start = np.linspace(-1, 1, HEIGHT * WIDTH).reshape(HEIGHT, WIDTH).astype("float32")
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        ids = layers.data("ids", [1], dtype="int64")
        table = fluid.ParamAttr(name="table", initializer=fluid.initializer.NumpyArrayInitializer(start))
        found = layers.embedding(ids, [HEIGHT, WIDTH], is_sparse=sparse, padding_idx=padding, param_attr=table)
        cost = layers.reduce_sum(layers.square(found) * found)
        if twice:
            other = layers.embedding((ids + 1) % 12, [HEIGHT, WIDTH], is_sparse=sparse, param_attr=table)
            cost = cost + layers.reduce_sum(layers.square(other))
        if dense_use:
            cost = cost + layers.reduce_sum(layers.square(main.global_block().var("table")))
        make().minimize(cost)
    scope = fluid.Scope()
    with fluid.scope_guard(scope):
        exe = fluid.Executor(place, fallback="allow", mode="interpreted" if interpret else "compiled")
        exe.run(startup)
        for batch in batches:
            exe.run(main, feed={"ids": batch})
        return np.array(scope.find_var("table").get_tensor()), [op.type for op in main.global_block().ops]


def same(make: Callable[[], Any], **how: Any) -> list[str]:
    """Sparse is as dense to rounding; the types of the sparse program's operators."""
    batches = [REPEATED, np.array([[1], [3]]), REPEATED[:3]]
    expected, _ = train(False, make, batches, **{**how, "place": "cpu", "interpret": False})
    found, types = train(True, make, batches, **how)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    return types


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "ftrl"])
def test_each_optimizer_computes_what_it_does_of_a_dense_gradient(name: str) -> None:
    types = same(MAKERS[name])
    assert "lookup_table_rows_grad" in types and "lookup_table_grad" not in types
    assert ("rows_at" in types) == (name in ("momentum", "adam", "rmsprop", "adamax", "lamb"))
    assert "dense_rows" not in types


def test_rows_of_ftrl_are_those_of_the_dense_one() -> None:
    """Others stay: the dense update sets them to what their accumulators say."""
    touched = [0, 3, 7, 11]
    expected, _ = train(False, MAKERS["ftrl"], [REPEATED] * 3)
    found, types = train(True, MAKERS["ftrl"], [REPEATED] * 3)
    start, _ = train(True, MAKERS["ftrl"], [])
    np.testing.assert_allclose(found[touched], expected[touched], rtol=2e-5)
    np.testing.assert_array_equal(np.delete(found, touched, 0), np.delete(start, touched, 0))
    assert not {"dense_rows", "rows_at"} & set(types)


def test_lazy_adam_leaves_rows_alone_that_have_no_gradient() -> None:
    def lazy() -> Any:
        return optimizer.Adam(0.1, lazy_mode=True)

    eager, _ = train(True, MAKERS["adam"], [REPEATED] * 3)
    found, types = train(True, lazy, [REPEATED] * 3)
    np.testing.assert_allclose(found, eager, rtol=2e-5, atol=1e-7)  # the same rows each time: no moment is left over
    once, _ = train(True, lazy, [REPEATED])
    then, _ = train(True, lazy, [REPEATED, np.array([[1]])])
    np.testing.assert_array_equal(np.delete(then, 1, 0), np.delete(once, 1, 0))
    assert not {"dense_rows", "rows_at"} & set(types)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("interpret", [False, True])
@pytest.mark.parametrize("how", [{}, {"twice": True}, {"dense_use": True}, {"padding": 3}], ids=str)
def test_lookups_on_each_place(place: str, interpret: bool, how: dict[str, Any]) -> None:
    types = same(MAKERS["adagrad"], place=place, interpret=interpret, **how)
    assert ("dense_rows" in types) == ("dense_use" in how)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["momentum", "rmsprop"])
def test_updates_of_all_rows_on_each_place(name: str, place: str) -> None:
    same(MAKERS[name], place=place)


@pytest.mark.parametrize("name", ["momentum", "rmsprop", "adam"])
def test_an_empty_batch_is_a_gradient_of_zeros(name: str) -> None:
    """State goes on by itself, as with a dense gradient of 0."""
    batches = [REPEATED, np.zeros((0, 1), "int64"), REPEATED[:2]]
    expected, _ = train(False, MAKERS[name], batches)
    found, _ = train(True, MAKERS[name], batches)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def test_the_update_makes_no_dense_gradient_where_loops_are_fused() -> None:
    ids = layers.data("ids", [1], dtype="int64")
    found = layers.embedding(ids, [50_000, 8], is_sparse=True)
    optimizer.RMSProp(0.1).minimize(layers.reduce_sum(found))
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    for _ in range(2):
        exe.run(feed={"ids": REPEATED})
    types = [row["op"] for row in exe.explain_last().data()]
    generated = fluid.explain(place="cpu").data()
    if any(row["op"] == "rmsprop" and row["kernel"] == "expression (language)" for row in generated):
        assert "fused.rows_at_rmsprop" in types and "rows_at" not in types, types


@pytest.mark.parametrize("place", PLACES)
def test_an_empty_batch_changes_nothing(place: str) -> None:
    before, _ = train(True, MAKERS["sgd"], [], place)
    after, _ = train(True, MAKERS["sgd"], [np.zeros((0, 1), "int64")], place)
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("place", PLACES)
def test_ids_out_of_range_are_refused_and_nothing_is_lost(place: str) -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        ids = layers.data("ids", [1], dtype="int64")
        found = layers.embedding(ids, [HEIGHT, WIDTH], is_sparse=True, param_attr=fluid.ParamAttr(name="table"))
        optimizer.SGD(0.1).minimize(layers.reduce_sum(found))
    exe, scope = fluid.Executor(place, fallback="allow"), fluid.Scope()
    exe.run(startup, scope=scope)
    before = np.array(scope.find_var("table").get_tensor())
    for bad in (HEIGHT, -1):
        with pytest.raises(OutOfRangeError):
            exe.run(main, feed={"ids": np.array([[2], [bad]])}, scope=scope)
        np.testing.assert_array_equal(before, np.array(scope.find_var("table").get_tensor()))
    exe.run(main, feed={"ids": np.array([[2]])}, scope=scope)
    after = np.array(scope.find_var("table").get_tensor())
    np.testing.assert_allclose(before[2] - after[2], 0.1, rtol=1e-5)


@pytest.mark.parametrize("decay", [fluid.regularizer.L2Decay(0.5), fluid.regularizer.L1Decay(0.5)], ids=repr)
@pytest.mark.parametrize("rule", [optimizer.SGD, optimizer.Ftrl, partial(optimizer.Adam, lazy_mode=True)], ids=str)
def test_all_rows_decay(rule: Callable[..., Any], decay: Any) -> None:
    same(lambda: rule(0.1, regularization=decay))


def test_merged_rows_and_their_values() -> None:
    ids = layers.data("ids", [1], dtype="int64")
    found = layers.embedding(ids, [HEIGHT, WIDTH], is_sparse=True)
    ((_, grad),) = optimizer.SGD(0.1).backward(layers.reduce_sum(found))
    merged = layers.merge_selected_rows(grad)
    values = layers.get_tensor_from_selected_rows(merged)
    assert grad.type == fluid.core.VarDesc.VarType.SELECTED_ROWS and merged.selected is not None
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    rows, out = exe.run(feed={"ids": REPEATED}, fetch_list=[merged.selected.rows, values])
    np.testing.assert_array_equal(rows, [3, 7, 0, 11])
    np.testing.assert_array_equal(out, np.array([[3.0], [1], [1], [1]]) * np.ones(WIDTH))
    for layer in (layers.merge_selected_rows, layers.get_tensor_from_selected_rows):
        with pytest.raises(ProgramError, match="expected SelectedRows"):
            layer(found)


@pytest.mark.parametrize(
    "use",
    [
        lambda g: layers.mean(g),
        lambda g: layers.concat([g, g]),
        lambda g: layers.relu(g),
        lambda g: g + 1.0,
        lambda g: g[0] * g,
    ],
)
def test_layers_refuse_rows_for_tensors(use: Callable[[Any], Any]) -> None:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        ids = layers.data("ids", [1], dtype="int64")
        loss = layers.reduce_sum(layers.embedding(ids, [HEIGHT, WIDTH], is_sparse=True))
        ((_, grad),) = optimizer.SGD(0.1).backward(loss)
        before = len(main.global_block().ops)
        with pytest.raises(ProgramError, match=r"sparse rows .*expected a tensor"):
            use(grad)
        assert len(main.global_block().ops) == before
        assert layers.scale(layers.get_tensor_from_selected_rows(grad), 2.0).shape[1] == WIDTH
