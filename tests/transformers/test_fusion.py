"""Fusion: the same values bit for bit, fewer kernels, and nothing reordered."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
import fluidlite.graph as ng
from fluidlite import layers, plugin_loader
from fluidlite.compiler.passes import FuseEpilogues
from fluidlite.platform.context_pool import get_context
from fluidlite.program.operator import FUSED_OPERATORS
from fluidlite.program.registry import ops
from fluidlite.transformers import (
    CommonSubexpressions,
    Computation,
    FuseElementwise,
    Transformer,
    make_transformer_factory,
)

_spec = importlib.util.spec_from_file_location("fusion_programs", Path(__file__).parent / "fusion_programs.py")
assert _spec is not None and _spec.loader is not None
programs: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(programs)

ELEMENTWISE = programs.elementwise()
FORWARD = [op for op in ELEMENTWISE if not programs.is_gradient(op)]
GENERATING = ("cpu", pytest.param("opencl", marks=pytest.mark.opencl))
WAYS = ("array", "language")


def types(computation: Computation) -> list[str]:
    return [op.type for op in computation.transformed.operators]


def work(computation: Computation) -> list[str]:
    """What a computation runs, constants apart."""
    return [name for name in types(computation) if name != "fill_constant"]


def fused(transformer: Transformer, on: bool = True) -> Transformer:
    """Let a transformer run the pass alone, or none."""
    transformer.graph_passes = [CommonSubexpressions(), FuseElementwise()] if on else []  # type: ignore[assignment]
    return transformer


@pytest.fixture(params=GENERATING)
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def transformer(place: str) -> Any:
    with make_transformer_factory(place)() as made:
        yield fused(made)


# The same values


@pytest.mark.parametrize(
    "way, dtype",
    [
        *(("array", dtype) for dtype in ("float32", "float16", "bfloat16", "float64")),
        *(pytest.param("language", dtype, marks=pytest.mark.slow) for dtype in ("float32", "bfloat16")),
    ],
)
def test_every_operator_between_others(way: str, dtype: str) -> None:
    """Each operator on its sample, with one before it and one behind, and its gradient: the same bits as apart."""
    seen = fewer = 0
    with programs.without(*(other for other in WAYS if other != way)):
        for op in FORWARD:
            built = programs.sample_program(op, dtype)
            if built is None:
                continue
            expected, apart = programs.run("cpu", *built, False)
            found, together = programs.run("cpu", *built, True)
            programs.assert_same(found, expected, f"{op.type} {dtype}")
            seen += 1
            fewer += len(together) < len(apart)
    assert seen > 70 and fewer > 0.9 * seen, (seen, fewer)


@pytest.mark.parametrize("way", WAYS)
def test_random_programs(way: str) -> None:
    apart = together = 0
    used: set[str] = set()
    with programs.without(*(other for other in WAYS if other != way)):
        for seed in range(60 if way == "array" else 20):
            drawn = programs.Draw(seed, 14, ELEMENTWISE)
            given = drawn.program, drawn.feeds, drawn.results
            expected, before = programs.run("cpu", *given, False)
            found, after = programs.run("cpu", *given, True)
            programs.assert_same(found, expected, f"seed {seed}")
            apart, together = apart + len(before), together + len(after)
            used.update(drawn.made)
    assert together < 0.7 * apart
    assert len(used) > (0.7 if way == "array" else 0.4) * len(ELEMENTWISE)


@pytest.mark.opencl
def test_random_programs_on_opencl() -> None:
    apart = together = 0
    for seed in range(4):
        drawn = programs.Draw(1000 + seed, 10, ELEMENTWISE)
        given = drawn.program, drawn.feeds, drawn.results
        expected, before = programs.run("opencl", *given, False)
        found, after = programs.run("opencl", *given, True)
        programs.assert_same(found, expected, f"seed {seed}")
        apart, together = apart + len(before), together + len(after)
    assert together < 0.7 * apart


def test_random_programs_on_array_api_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that has the functions of the Array-API standard alone."""
    pytest.importorskip("array_api_strict")
    fluid.places()
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "plugins"))
    plugin_loader.load("strict", "strict_device")
    try:
        apart = together = 0
        for seed in range(12):
            drawn = programs.Draw(5000 + seed, 10, ELEMENTWISE)
            if any("float16" in str(array.dtype) for array in drawn.feeds.values()):
                continue  # the standard has no half types
            given = drawn.program, drawn.feeds, drawn.results
            expected, before = programs.run("strict", *given, False)
            found, after = programs.run("strict", *given, True)
            programs.assert_same(found, expected, f"seed {seed}")
            apart, together = apart + len(before), together + len(after)
        assert together < 0.8 * apart
    finally:
        plugin_loader.unload("strict")


def test_half_types_are_rounded_at_each_operator(transformer: Transformer) -> None:
    x = layers.data("x", [3], dtype="float16")
    computation = transformer.computation(x * 1.001 * 1.001 * 1.001, x)
    given = np.float16([[1000, 3, 7]])
    step = np.float16(1.001)
    np.testing.assert_array_equal(computation(given), given * step * step * step)
    assert len(types(computation)) == 1


def test_random_numbers_are_the_same(place: str) -> None:
    def build() -> list[Any]:
        x = layers.data("x", [300])
        dropped = layers.dropout(x * 2.0, 0.4)
        own = layers.dropout(x, 0.5, seed=11)
        noise = layers.gaussian_random([4, 300]) * 0.5 + x
        return [dropped + 1.0, layers.exp(own), noise]

    found = []
    for on in (False, True):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            results = build()
            with make_transformer_factory(place, seed=7)() as made:
                computation = fused(made, on).computation(results, fluid.default_main_program().global_block().var("x"))
                given = np.linspace(-1, 1, 1200, dtype="float32").reshape(4, 300)
                found += [computation(given), computation(given)]
    assert len(types(computation)) < 5 and any("dropout" in name for name in types(computation))
    programs.assert_same([*found[2], *found[3]], [*found[0], *found[1]])
    assert not np.array_equal(found[0][0], found[1][0]) and np.array_equal(found[0][1], found[1][1])


# How many kernels


@pytest.mark.parametrize("on", [True, False])
def test_a_chain_is_one_kernel(on: bool, place: str) -> None:
    with make_transformer_factory(place)() as made:
        x, y = ng.placeholder((1,)), ng.placeholder((1,))
        value = x
        for _ in range(100):
            value = value + y
        computation = fused(made, on).computation(value, x, y)
        assert computation([1], [2]) == [201]
        assert types(computation) == (["fused.add_x100"] if on else ["elementwise_add"] * 100)
        before = get_context(made.place).counts.launches
        computation([1], [2])
        if place != "cpu":
            assert get_context(made.place).counts.launches - before == (1 if on else 100)


def test_numbers_are_arguments(transformer: Transformer) -> None:
    x = ng.placeholder((3,))
    first = transformer.computation(ng.exp(x * 2.0 + 1.0), x)
    second = transformer.computation(ng.exp(x * 3.0 - -5.0), x)
    np.testing.assert_allclose(first([1, 2, 3]), np.exp(np.float32([3, 5, 7])), rtol=1e-6)
    np.testing.assert_allclose(second([0, 0, 1]), np.exp(np.float32([5, 5, 8])), rtol=1e-6)
    assert types(first) == ["fused.mul_add_exp"] and types(second) == ["fused.mul_sub_exp"]
    third = transformer.computation(ng.exp(x * 4.0 + 0.5), x)
    third([1, 2, 3])
    one, other = (c.transformed.operators[-1].definition for c in (first, third))
    assert one is other


@pytest.mark.parametrize("on", [True, False])
def test_gelu_of_a_product_and_a_sum(on: bool, place: str) -> None:
    x = layers.data("x", [64])
    w, b = (layers.data(name, [64], append_batch_size=False) for name in "wb")
    with make_transformer_factory(place)() as made:
        computation = fused(made, on).computation(layers.gelu(x * w + b), x, w, b)
        given = [np.random.RandomState(k).uniform(-2, 2, dims).astype("float32") for k, dims in
                 enumerate([(5, 64), (64,), (64,)])]  # fmt: skip
        found = computation(*given)
    assert types(computation) == (["fused.mul_add_gelu"] if on else ["elementwise_mul", "elementwise_add", "gelu"])
    inner = given[0].astype("float64") * given[1] + given[2]
    from math import erf, sqrt

    np.testing.assert_allclose(found, inner * 0.5 * (1 + np.vectorize(erf)(inner / sqrt(2))), rtol=1e-5, atol=1e-6)


def mlp(optimizer: Any) -> tuple[Any, ...]:
    x, label = layers.data("x", [20]), layers.data("label", [1], dtype="int64")
    h = layers.dropout(layers.fc(x, 32, act="relu"), 0.3)
    h = layers.fc(h, 32, act="gelu") * 2.0 + 1.0
    loss = layers.mean(layers.softmax_with_cross_entropy(layers.fc(h, 5), label))
    steps, _ = optimizer.minimize(loss)
    return x, label, loss, steps


OPTIMIZERS = {
    "adam": lambda: fluid.optimizer.Adam(0.01, regularization=fluid.regularizer.L2Decay(1e-3)),
    "rmsprop": lambda: fluid.optimizer.RMSProp(0.01),
    "momentum": lambda: fluid.optimizer.Momentum(0.01, 0.9, regularization=fluid.regularizer.L2Decay(1e-3)),
    "sgd": lambda: fluid.optimizer.SGD(0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training(name: str, place: str) -> None:
    """Losses and all state after steps of two batch sizes: the same bits; the operators are counted."""
    losses, states, counts = [], [], []
    rng = np.random.RandomState(0)
    x_given, label_given = rng.rand(16, 20).astype("float32"), rng.randint(0, 5, (16, 1))
    for on in (False, True):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            x, label, loss, steps = mlp(OPTIMIZERS[name]())
            with make_transformer_factory(place, seed=5)() as made:
                off = (FuseEpilogues,) if on else (FuseEpilogues, FuseElementwise)
                made.graph_passes = [p for p in made.graph_passes if not isinstance(p, off)]  # type: ignore[assignment]
                computation = made.computation([loss, *steps], x, label)
                losses.append([computation(x_given[:n], label_given[:n])[0] for n in (16, 16, 7)])
                states.append({v.name: made.scope.var(v.name).tensor.numpy().copy() for v in computation.state})
                counts.append(types(computation))
    programs.assert_same([*losses[1], *states[1].values()], [*losses[0], *states[0].values()])
    apart, together = counts
    if name == "adam":  # an update is one kernel a parameter, decay included
        assert together.count("fused.scale_add_adam") == 6 and not {"adam", "scale"} & set(together)
    forward = ["mul", "fused.add_relu_dropout", "mul", "fused.add_gelu_scale_x2", "mul", "elementwise_add"]
    assert [t for t in together if t != "fill_constant"][:6] == forward
    assert together.count("fused.scale_gelu_grad") == 1 and together.count("fused.dropout_grad_relu_grad") == 1
    assert len(together) <= len(apart) - 7


def test_gradients_of_broadcasts(transformer: Transformer) -> None:
    """Sums over broadcast dims stay operators of their own; what is as large as the elements is fused."""
    x, w, b = ng.placeholder((4, 3)), ng.variable((3,), initial_value=2.0), ng.variable((3,), initial_value=1.0)
    loss = ng.sum(ng.tanh(x * w + b))
    computation = transformer.computation([ng.deriv(loss, v) for v in (x, w, b)], x)
    given = np.float32(np.arange(12).reshape(4, 3) / 10)
    slope = 1 - np.tanh(given * 2 + 1) ** 2
    for found, expected in zip(computation(given), (slope * 2, (slope * given).sum(0), slope.sum(0)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert any(name.startswith("fused.tanh_grad") for name in types(computation))


@pytest.mark.parametrize("dims", [(3, 5), (700, 900)])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_a_sum_ends_a_group(axis: int | None, dims: tuple[int, int], transformer: Transformer) -> None:
    """Nothing of the size of the elements is stored."""
    x, y = (
        layers.data("x", [-1, dims[1]], append_batch_size=False),
        layers.data("y", [dims[1]], append_batch_size=False),
    )
    total = layers.reduce_sum(layers.square(x * y), dim=axis)
    computation = transformer.computation(total, x, y)
    a, b = (np.random.RandomState(k).rand(*d).astype("float32") for k, d in enumerate((dims, dims[1:])))
    expected = ((a.astype("float64") * b) ** 2).sum(axis)
    np.testing.assert_allclose(computation(a, b).reshape(np.shape(expected)), expected, rtol=1e-5)
    assert types(computation) == ["fused.mul_square_reduce_sum"]
    np.testing.assert_array_equal(computation(a, b), computation(a, b))


def test_sums_of_half_types_are_rounded_once(place: str) -> None:
    """Elements that an operator adds up are not rounded before; the sum is."""
    x, w = layers.data("x", [400], dtype="float16"), layers.data("w", [400], dtype="float16", append_batch_size=False)
    block = x.block
    scaled, grad = layers.scale(x, 0.3), block.create_var(name="w_grad")
    block.append_op("elementwise_mul_grad", {"X": x, "Y": w, "Out@GRAD": scaled}, {"Y@GRAD": grad}, {})
    given = np.random.RandomState(0).uniform(-1, 1, (64, 400)).astype("float16"), np.ones(400, "float16")
    with make_transformer_factory(place)() as made:
        apart = fused(made, False).computation(grad, x, w)(*given)
        computation = fused(made).computation(grad, x, w)
        np.testing.assert_array_equal(computation(*given), apart)
    assert types(computation) == ["fused.scale_mul_grad"]
    wide = given[0].astype("float32")
    exact = ((wide * np.float32(0.3)).astype("float16").astype("float32") * wide).sum(0)
    np.testing.assert_allclose(apart.astype("float32"), exact, rtol=6e-4)


def test_a_sum_and_its_elements_are_two_kernels(transformer: Transformer) -> None:
    x = ng.placeholder((40, 50))
    squares = ng.square(x * 2.0)
    computation = transformer.computation([squares, ng.sum(squares)], x)
    given = np.ones((40, 50), "float32")
    found = computation(given)
    assert (found[0] == 4).all() and found[1] == 8000
    assert [name for name in work(computation) if "sum" in name or "square" in name] == [
        "fused.mul_square", "reduce_sum",
    ]  # fmt: skip


def test_gradients_that_are_added_up(transformer: Transformer) -> None:
    """The sum of a value's gradients is fused with what reads it."""
    x = layers.data("x", [8])
    x.stop_gradient = False
    h = layers.relu(layers.scale(x, 2.0))
    (grad,) = fluid.gradients([layers.reduce_sum(layers.exp(h) + layers.tanh(h) * 3.0)], [x])
    computation = transformer.computation(grad, x)
    given = np.linspace(-1, 1, 24, dtype="float32").reshape(3, 8)
    relu = np.maximum(given * 2, 0)
    slope = np.where(given > 0, 2 * (np.exp(relu) + 3 * (1 - np.tanh(relu) ** 2)), 0)
    np.testing.assert_allclose(computation(given), slope, rtol=1e-5)
    assert "sum" not in types(computation) and any("_sum_relu_grad" in name for name in types(computation))


# Sizes


def test_another_size_compiles_nothing(transformer: Transformer) -> None:
    x, y = ng.placeholder((-1, 7)), ng.placeholder((7,))
    computation = transformer.computation(ng.tanh(x * y + 1.0) - y, x, y)
    bias = np.full(7, 0.5, "float32")
    computation(np.ones((600, 7), "float32"), bias)
    assert len(work(computation)) == 1
    context = get_context(transformer.place)
    compiled = len(context._compiled)
    for rows in (601, 1200, 900):
        given = np.ones((rows, 7), "float32")
        np.testing.assert_allclose(computation(given, bias), np.tanh(given * 0.5 + 1) - 0.5, rtol=1e-5)
    assert len(context._compiled) == compiled


def test_dims_that_turn_out_to_broadcast(transformer: Transformer) -> None:
    """Two unknown dims are taken for equal; where one is 1 the operators run one by one, with the right gradients."""
    x, y = layers.data("x", [3]), layers.data("y", [3])
    for each in (x, y):
        each.stop_gradient = False
    out = layers.tanh(layers.scale(x, 2.0) * layers.scale(y, 3.0)) + x
    grads = fluid.gradients([layers.reduce_sum(out)], [x, y])
    computation = transformer.computation([out, *grads], x, y)
    rng = np.random.RandomState(1)
    for n, m in ((4, 4), (1, 4), (4, 1), (1, 1)):
        a, b = rng.rand(n, 3).astype("float32"), rng.rand(m, 3).astype("float32")
        found = computation(a, b)
        inner = np.tanh(a * 6 * b)
        dx, dy = np.ones_like(inner) + (1 - inner**2) * 6 * b, (1 - inner**2) * 6 * a
        expected = (
            inner + a, dx.sum(0, keepdims=True) if n == 1 else dx, dy.sum(0, keepdims=True) if m == 1 else dy,
        )  # fmt: skip
        for value, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(value, right, rtol=1e-4, atol=1e-6)
    assert any(name.startswith("fused.") for name in types(computation))


def test_two_inputs_of_one_value_at_two_places(transformer: Transformer) -> None:
    x, y = layers.data("x", [3, 3], append_batch_size=False), layers.data("y", [3], append_batch_size=False)
    row = layers.elementwise_add(x, y, axis=0)
    computation = transformer.computation(layers.elementwise_mul(row, y, axis=1), x, y)
    a, b = np.float32(np.arange(9).reshape(3, 3)), np.float32([1, 2, 3])
    np.testing.assert_array_equal(computation(a, b), (a + b[:, None]) * b)
    assert len(types(computation)) == 1


def test_zero_elements(transformer: Transformer) -> None:
    x = ng.placeholder((-1, 3))
    computation = transformer.computation(ng.exp(x * 2.0) + x, x)
    assert computation(np.zeros((0, 3), "float32")).shape == (0, 3)
    assert len(work(computation)) == 1


# What must not move


def test_a_value_that_others_read_is_stored_once(transformer: Transformer) -> None:
    x = ng.placeholder((4, 4))
    middle = ng.exp(x * 0.5)
    computation = transformer.computation([ng.tanh(middle), middle @ middle, middle], x)
    given = np.eye(4, dtype="float32")
    found = computation(given)
    expected = np.exp(given * np.float32(0.5))
    np.testing.assert_allclose(found[0], np.tanh(expected), rtol=1e-5)
    np.testing.assert_allclose(found[1], expected @ expected, rtol=1e-5)
    (one,) = [op for op in computation.transformed.operators if op.type.startswith("fused.")]
    assert one.type == "fused.mul_exp_tanh" and len(one.output_arg_names) == 2


def test_groups_are_convex(transformer: Transformer) -> None:
    """What runs between two operators, and needs the first, cannot run within one kernel of both."""
    x = ng.placeholder((3, 3))
    first = ng.exp(x)
    computation = transformer.computation(first + first @ x, x)
    given = np.eye(3, dtype="float32")
    np.testing.assert_allclose(computation(given), np.exp(given) + np.exp(given) @ given, rtol=1e-5)
    assert types(computation) == ["exp", "matmul", "elementwise_add"] or len(types(computation)) == 3


def test_state_is_read_before_it_is_written(transformer: Transformer) -> None:
    x = ng.placeholder((3,))
    w = ng.variable((3,), initial_value=1.0)
    before = ng.tanh(x * w)
    update = ng.assign(w, w * 2.0 + before)
    after = ng.exp(w)
    computation = transformer.computation([before, update, after, w], x)
    held = np.ones(3, "float32")
    for _ in range(3):
        given = np.float32([0.1, 0.2, 0.3])
        found = computation(given)
        first = np.tanh(given * held)
        held = held * 2 + first
        np.testing.assert_allclose(found[0], first, rtol=1e-5)
        np.testing.assert_allclose(found[2], np.exp(held), rtol=1e-5)
        np.testing.assert_allclose(found[3], held, rtol=1e-5)
    assert "assign" not in types(computation) and any("assign" in name for name in types(computation))


def test_a_late_error_leaves_fused_state_alone(place: str) -> None:
    """An index out of range, found after the launches: the update that follows it has written nothing."""
    ids = layers.data("ids", [1], dtype="int64")
    table = layers.embedding(ids, (5, 4), param_attr=fluid.ParamAttr(name="table"))
    loss = layers.mean(layers.square(layers.fc(table, 3, param_attr=fluid.ParamAttr(name="w"))))
    steps, _ = fluid.optimizer.Adam(0.1, regularization=fluid.regularizer.L2Decay(0.1)).minimize(loss)
    with make_transformer_factory(place, seed=1)() as made:
        computation = made.computation([loss, *steps], ids)
        computation(np.int64([[0], [4]]))
        assert "fused.scale_add_adam" in types(computation)
        held = {v.name: made.scope.var(v.name).tensor.numpy().copy() for v in computation.state}
        with pytest.raises(fluid.errors.OutOfRangeError, match="lookup_table"):
            computation(np.int64([[1], [7]]))
        for name, before in held.items():
            np.testing.assert_array_equal(made.scope.var(name).tensor.numpy(), before, err_msg=name)
        computation(np.int64([[1], [2]]))
        assert not np.array_equal(made.scope.var("w").tensor.numpy(), held["w"])


@pytest.mark.opencl
def test_never_across_places() -> None:
    x = layers.data("x", [3])
    with fluid.device_guard("opencl:0"):
        there = layers.exp(layers.tanh(x))
    out = layers.relu(layers.scale(there, 2.0))
    with make_transformer_factory("cpu")() as made:
        computation = fused(made).computation(out, x)
        np.testing.assert_allclose(computation([[1, 2, 3]]), [2 * np.exp(np.tanh([1, 2, 3]))], rtol=1e-5)
    assert types(computation) == ["fused.tanh_exp", "fused.scale_relu"]


def test_what_is_left_alone(cpu: Transformer) -> None:
    """The user's library, and kernels that a library has for the place."""
    x = layers.data("x", [3])
    chosen = layers.exp(layers.tanh(x))
    chosen.block.ops[-1].set_attr("op_library", "plain")
    computation = fused(cpu).computation(layers.relu(chosen), x)
    computation([[1, 2, 3]])
    assert types(computation) == ["tanh", "exp", "relu"]


def test_a_place_without_generated_kernels() -> None:
    """Fused operators would fall back as a whole, where the place has kernels for some of their parts."""
    x = layers.data("x", [3])
    with make_transformer_factory("fpga")() as made:
        computation = fused(made).computation(layers.relu(layers.elementwise_add(x, x)), x)
        np.testing.assert_array_equal(computation([[1, -2, 3]]), [[2, 0, 6]])
    assert types(computation) == ["elementwise_add", "relu"]


def test_limits(cpu: Transformer) -> None:
    xs = [ng.placeholder((3,)) for _ in range(60)]
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    computation = fused(cpu).computation(total, *xs)
    assert (computation(*([1, 2, 3] for _ in xs)) == [60, 120, 180]).all()
    assert 3 <= len(types(computation)) <= 4


# What users see


def test_explain_and_source(place: str) -> None:
    x = layers.data("x", [8])
    out = layers.tanh(layers.scale(x, 2.0))
    with make_transformer_factory(place)() as made:
        computation = fused(made).computation(out, x)
        computation(np.zeros((3, 8), "float32"))
    report = fluid.explain(computation, feed={"x": (600, 8)})
    text = str(report)
    assert "fused.scale_tanh  generated" in text and "test_fusion.py" in text
    assert "made of scale (test_fusion.py" in text and "tanh (test_fusion.py" in text
    (row,) = report.data()
    assert [item.split()[0] for item in row["made_of"]] == ["scale", "tanh"]
    (line,) = report.plan.lines
    assert line.choice is not None and line.call is not None
    source = line.choice.prepare(line.call, get_context(made.place)).source
    assert "fl_fused_scale_tanh" in source and source.count("p_X0[") == 1


def test_errors_name_all_lines(cpu: Transformer) -> None:
    x, y = (layers.data(name, [-1, -1, 3], append_batch_size=False) for name in "xy")
    out = layers.relu(layers.elementwise_mul(x, layers.tanh(y)))
    computation = fused(cpu).computation(out, x, y)
    with pytest.raises(
        fluid.errors.ShapeError, match=r"fused\.tanh_mul_relu \(test_fusion\.py:\d+.*its elementwise_mul: Y"
    ):
        computation(np.zeros((2, 4, 3), "float32"), np.zeros((2, 5, 3), "float32"))
    assert computation(np.zeros((2, 4, 3), "float32"), np.zeros((2, 4, 3), "float32")).shape == (2, 4, 3)


def test_decomposed_it_is_what_it_was(place: str) -> None:
    """Where dims are not the same elements, loops, or the operators it was made of, compute it: the same bits."""
    found = []
    for on in (False, True):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            x, y = layers.data("x", [3]), layers.data("y", [3])
            out = layers.exp(layers.dropout(layers.scale(x, 2.0), 0.5)) + layers.softsign(y) * 0.5
            with make_transformer_factory(place, seed=2)() as made:
                computation = fused(made, on).computation(out, x, y)
                found.append(computation([[1, 2, 3]], np.ones((4, 3))))
    assert len(work(computation)) == 1
    np.testing.assert_array_equal(*found)
    report = fluid.explain(computation, feed={"x": (1, 3), "y": (4, 3)})
    assert [row["how"] for row in report.data()] == ["decomposed" if place == "cpu" else "generated"]
    definition = computation.transformed.operators[-1].definition
    assert definition.expression.operators == 6 and definition.random and not ops.find(definition.type)


def test_memory_may_be_shared(transformer: Transformer) -> None:
    """The output takes the memory of an input that ends."""
    x = ng.placeholder((64, 64))
    product = x @ x
    computation = transformer.computation(ng.tanh(product * x + product), x)
    computation(np.eye(64, dtype="float32"))
    (one,) = [op for op in computation.transformed.operators if FUSED_OPERATORS in op.hints]
    shared = one.definition.may_alias["Out0"]
    assert [value.name for value in one.inputs[shared]] == [product.name]


def test_the_pass_twice_changes_nothing(cpu: Transformer) -> None:
    x = ng.placeholder((3,))
    computation = fused(cpu).computation(ng.exp(x * 2.0) + 1.0, x)
    computation([1, 2, 3])
    graph = computation.transformed
    assert graph is not None
    before = str(graph)
    FuseElementwise().do_pass(graph)
    assert str(graph) == before


def test_sizes_that_are_not_known_are_not_counted_up_to() -> None:
    """Dims are made up to see which are equal: nothing may go through as many sequences as they say."""
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()), fluid.unique_name.guard():
        image = layers.data("image", [1, 4, 4])
        windows = layers.relu(layers.scale(layers.im2sequence(image, filter_size=2, stride=2), 2.0))
    exe = fluid.Executor("cpu")
    given = np.arange(32, dtype="float32").reshape(2, 1, 4, 4)
    (found,) = exe.run(program, {"image": given}, [windows], return_numpy=False)
    assert tuple(found.dims) == (8, 4)
    assert found.lod() == [[0, 4, 8]]


def test_several_unknown_dims_of_one_value_fuse() -> None:
    """What stands for unknown dims is larger than any tensor: it meets no limit of real ones."""
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = layers.data("x", [-1, -1, -1], append_batch_size=False)
        y = layers.exp(x) + x
        exe = fluid.Executor("cpu")
        for dims in ((2, 3, 4), (1, 5, 1)):
            fed = np.ones(dims, "float32")
            np.testing.assert_allclose(exe.run(feed={"x": fed}, fetch_list=[y])[0], np.exp(fed) + fed, rtol=1e-6)
        assert exe.explain_last().summary["operators"] == 1


@pytest.mark.parametrize("rows", [3, 700])
def test_what_tensors_cannot_say_is_computed_element_by_element(place: str, rows: int) -> None:
    """A fraction beside integers, and random numbers whose dims no operand has: fused, and the same bits."""
    found = []
    for on in (False, True):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            x = layers.data("x", [8], dtype="int64")
            counted = layers.scale(layers.elementwise_mul(x, x), 2.5)
            y = layers.data("y", [rows, 8], append_batch_size=False)
            drawn = layers.tanh(layers.uniform_random([rows, 8], seed=7) + y)
            with make_transformer_factory(place, seed=2)() as made:
                computation = fused(made, on).computation([counted, drawn], x, y)
                given = np.random.RandomState(0).randint(-9, 9, (rows, 8)), np.full((rows, 8), 0.5, "float32")
                found.append(computation(*given))
    assert all(name.startswith("fused.") for name in work(computation))
    programs.assert_same(*found)
