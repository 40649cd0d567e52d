"""Products: gradients that are products, transposes that they read, and epilogues that their kernels compute."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from fusion_programs import assert_same, without

import fluidlite as fluid
from fluidlite import layers, memory
from fluidlite.base.dtypes import NUMPY
from fluidlite.compiler.passes import (
    DeadCode,
    FoldTransposes,
    FuseElementwise,
    FuseEpilogues,
    GraphPass,
    ScheduleUpdates,
    SimplifyShapes,
    SplitProducts,
    default_passes,
)
from fluidlite.platform.context_pool import get_context
from fluidlite.plugin import Call, Library, register_kernel
from fluidlite.program.kernel_registry import kernels
from fluidlite.transformers import Computation, Transformer, make_transformer_factory

OPENCL = pytest.param("opencl", marks=pytest.mark.opencl)
ALL = (DeadCode, SplitProducts, FoldTransposes, SimplifyShapes, FuseElementwise, FuseEpilogues, ScheduleUpdates)
Build = Callable[[], "tuple[list[Any], list[Any]]"]


def types(computation: Computation) -> list[str]:
    return [op.type for op in computation.transformed.operators]


def run(
    place: str, build: Build, feeds: Sequence[Any], passes: Sequence[type[GraphPass]]
) -> tuple[Sequence[Any], list[str]]:
    """Run a program after some passes; return the results, and the types of what ran."""
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        results, arguments = build()
        with make_transformer_factory(place, seed=3)() as transformer:
            transformer.graph_passes = [each() for each in passes]  # type: ignore[assignment]
            computation = transformer.computation(results, *arguments)
            return computation(*feeds), types(computation)


def given(*dims: int, dtype: str = "float32", seed: int = 0) -> Any:
    return np.random.default_rng(seed + sum(dims)).uniform(-1, 1, dims).astype(NUMPY[dtype])


def data(name: str, dims: Sequence[int], dtype: str = "float32") -> Any:
    made = layers.data(name, list(dims), dtype=dtype, append_batch_size=False)
    made.stop_gradient = False
    return made


@pytest.fixture(params=["cpu", OPENCL])
def place(request: pytest.FixtureRequest, require: Callable[..., None]) -> Iterator[str]:
    """A place whose products are written in its kernel language: the CPU's too, without its libraries."""
    require(request.param)
    if request.param != "cpu":
        yield request.param
        return
    with without("native", "array"):
        yield "cpu"


# Gradients -----------------------------------------------------------------------------------------------------------

FORMS = {
    "matmul": ((4, 6), (6, 3), {}),
    "x transposed": ((6, 4), (6, 3), {"transpose_x": True}),
    "y transposed": ((4, 6), (3, 6), {"transpose_y": True, "alpha": 0.5}),
    "both": ((6, 4), (3, 6), {"transpose_x": True, "transpose_y": True}),
    "open": ((-1, 6), (6, 3), {}),
    "joined": ((2, -1, 6), (6, 3), {}),
    "batches": ((2, 4, 6), (2, 3, 6), {"transpose_y": True}),
    "mul": ((-1, 12), (12, 3), {"x_num_col_dims": 1}),
    "mul of rows": ((-1, 2, 6), (6, 3), {"x_num_col_dims": 2}),
    "mul of columns": ((5, 4, 3), (4, 3, 2), {"y_num_col_dims": 2}),
}


@pytest.mark.parametrize("where", ["cpu", OPENCL])
@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_products(where: str, form: str, require: Callable[..., None]) -> None:
    require(where)
    x_dims, y_dims, attrs = FORMS[form]

    def build() -> tuple[list[Any], list[Any]]:
        x, y = data("x", x_dims), data("y", y_dims)
        out = layers.mul(x, y, **attrs) if form.startswith("mul") else layers.matmul(x, y, **attrs)
        loss = layers.reduce_sum(layers.square(out))
        return [loss, *fluid.gradients([loss], [x, y])], [x, y]

    feeds = [given(*(5 if dim < 0 else dim for dim in dims), seed=k) for k, dims in enumerate((x_dims, y_dims))]
    expected, before = run(where, build, feeds, (DeadCode,))
    found, after = run(where, build, feeds, (DeadCode, SplitProducts, SimplifyShapes))
    assert_same(found, expected, form)
    assert sum(name.endswith("mul_grad") for name in before) == 1
    assert not any(name.endswith("mul_grad") for name in after)
    assert sum(name in ("matmul", "mul") for name in after) == 3


def test_gradients_that_are_summed_over_a_batch_stay(cpu: Transformer) -> None:
    x, y = data("x", (2, 3, 4)), data("y", (4,))
    loss = layers.reduce_sum(layers.matmul(x, y))
    computation = cpu.computation(fluid.gradients([loss], [x, y]), x, y)
    dx, dy = computation(given(2, 3, 4), given(4))
    assert "matmul_grad" in types(computation)
    np.testing.assert_allclose(dx, np.broadcast_to(given(4), (2, 3, 4)))
    np.testing.assert_allclose(dy, given(2, 3, 4).sum((0, 1)), rtol=1e-5)


def test_a_library_that_has_the_gradient_alone_keeps_it(cpu: Transformer) -> None:
    library = Library("whole", ("cpu",), 99)
    kernels.add_library(library)

    @register_kernel("matmul_grad", "cpu", library="whole")
    def gradient(call: Call, context: Any) -> Any:
        def compute(context: Any, io: Any) -> None:
            io.array("X@GRAD")[...] = 7
            io.array("Y@GRAD")[...] = 8

        return compute

    try:
        x, y = data("x", (2, 3)), data("y", (3, 2))
        loss = layers.reduce_sum(layers.matmul(x, y))
        computation = cpu.computation(fluid.gradients([loss], [x, y]), x, y)
        dx, dy = computation(given(2, 3), given(3, 2))
    finally:
        kernels.remove(gradient)
        kernels.remove_library(library)
    assert (dx == 7).all() and (dy == 8).all()


# Transposes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["cpu", OPENCL, "fpga"])
def test_transposes_are_read_as_they_were(where: str, require: Callable[..., None]) -> None:
    require(where)

    def build() -> tuple[list[Any], list[Any]]:
        x, y = data("x", (4, 6)), data("y", (3, 6))
        swapped = layers.transpose(layers.matmul(x, layers.transpose(y, [1, 0]), alpha=2.0), [1, 0])
        product = layers.mul(layers.transpose(x, [1, 0]), x)
        return [swapped, product], [x, y]

    x, y = given(4, 6), given(3, 6)
    _, before = run(where, build, [x, y], (DeadCode,))
    (swapped, product), after = run(where, build, [x, y], (DeadCode, FoldTransposes))
    assert len(before) == 5 and after == ["matmul", "matmul"]
    np.testing.assert_allclose(swapped, 2 * y @ x.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(product, x.T @ x, rtol=1e-5, atol=1e-6)


def test_transposes_that_stay(cpu: Transformer) -> None:
    """One that others read too, one of a product that is fetched, one of other dims, one of rows that are joined."""
    cpu.graph_passes = [DeadCode(), FoldTransposes()]  # type: ignore[assignment]
    x, batch = data("x", (4, 4)), data("batch", (2, 3, 4))
    product = layers.matmul(x, x)
    turned = layers.transpose(product, [1, 0])
    odd = layers.matmul(layers.transpose(batch, [0, 2, 1]), data("w", (3, 5)))
    moved = layers.matmul(layers.transpose(batch, [1, 0, 2]), data("v", (4, 5)))
    names = [v for v in fluid.default_main_program().global_block().vars.values() if v.is_data]
    computation = cpu.computation([product, turned, odd, moved], *names)
    feeds = {"x": given(4, 4), "batch": given(2, 3, 4), "w": given(3, 5), "v": given(4, 5)}
    found = computation(*(feeds[v.name] for v in names))
    assert types(computation).count("transpose2") + types(computation).count("transpose") == 3
    np.testing.assert_allclose(found[1], found[0].T)
    np.testing.assert_allclose(found[2], feeds["batch"].transpose(0, 2, 1) @ feeds["w"], rtol=1e-5, atol=1e-6)


# Epilogues of products that are written in a kernel language ----------------------------------------------------------

TAILS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[int, int, int], tuple[int, ...]]]] = {
    "bias and relu": (lambda t, c: layers.relu(layers.elementwise_add(t, c)), lambda b, m, n: (n,)),
    "bias and gelu": (lambda t, c: layers.gelu(layers.elementwise_add(t, c)), lambda b, m, n: (n,)),
    "residual": (lambda t, c: layers.elementwise_add(t, c), lambda b, m, n: (b, m, n) if b > 1 else (m, n)),
    "rows": (lambda t, c: layers.elementwise_mul(t, c), lambda b, m, n: (b, m, 1) if b > 1 else (m, 1)),
    "a number": (lambda t, c: layers.elementwise_div(layers.scale(t, 0.25, 1.0), c), lambda b, m, n: (1,)),
    "mask": (lambda t, c: layers.tanh(layers.elementwise_add(t, c)), lambda b, m, n: (m, n)),
    "cast": (lambda t, c: layers.cast(layers.elementwise_max(t, c), "float64"), lambda b, m, n: (n,)),
}
SIZES = {"small": (1, 3, 5, 7), "tiles": (1, 37, 70, 19), "wide": (1, 8, 64, 16), "batch": (3, 9, 33, 4)}


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("size", SIZES)
def test_the_product_stores_what_follows_it(place: str, tail: str, size: str) -> None:
    """One kernel, and the same bits as one after the other."""
    b, m, n, k = SIZES[size]
    after, dims = TAILS[tail]

    def build() -> tuple[list[Any], list[Any]]:
        x = data("x", (b, m, k) if b > 1 else (m, k))
        y, c = data("y", (b, k, n) if b > 1 else (k, n)), data("c", dims(b, m, n))
        return [after(layers.matmul(x, y, alpha=0.5), c)], [x, y, c]

    feeds = [given(*(b, m, k)[b == 1 :]), given(*(b, k, n)[b == 1 :], seed=1), given(*dims(b, m, n), seed=2)]
    expected, before = run(place, build, feeds, (FuseElementwise,))
    found, kernels_ = run(place, build, feeds, (FuseElementwise, FuseEpilogues))
    assert_same(found, expected, f"{tail}, {size}")
    assert len(kernels_) == 1 and kernels_[0].startswith("fused.matmul"), kernels_
    assert len(before) == 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_half_types_are_rounded_before_the_epilogue(place: str, dtype: str) -> None:
    def build() -> tuple[list[Any], list[Any]]:
        x, y, c = data("x", (9, 20), dtype), data("y", (20, 33), dtype), data("c", (33,), dtype)
        return [layers.sigmoid(layers.elementwise_add(layers.mul(x, y), c))], [x, y, c]

    feeds = [given(9, 20, dtype=dtype), given(20, 33, dtype=dtype), given(33, dtype=dtype)]
    expected, _ = run(place, build, feeds, (FuseElementwise,))
    found, after = run(place, build, feeds, (FuseElementwise, FuseEpilogues))
    assert_same(found, expected, dtype)
    assert after == ["fused.mul_add_sigmoid"]


def test_several_outputs_and_open_dims(place: str) -> None:
    """The activation and what its gradient keeps; another batch size uses the same kernel."""
    x, w, c = data("x", (-1, 6)), data("w", (6, 21)), data("c", (21,))
    total = layers.elementwise_add(layers.mul(x, w), c)
    results = [layers.relu(total), layers.scale(total, 2.0)]
    with make_transformer_factory(place)() as transformer:
        transformer.graph_passes = [FuseElementwise(), FuseEpilogues()]  # type: ignore[assignment]
        computation = transformer.computation(results, x, w, c)
        for rows in (5, 1, 40):
            a, b = computation(given(rows, 6), given(6, 21), given(21))
            wanted = given(rows, 6) @ given(6, 21) + given(21)
            np.testing.assert_allclose(a, np.maximum(wanted, 0), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(b, 2 * wanted, rtol=1e-5, atol=1e-6)
        assert len(types(computation)) == 1


def test_what_turns_out_not_to_fit_runs_apart(place: str) -> None:
    """The product has one row, and the other operand several: known when it runs."""
    x, w, c = data("x", (-1, 6)), data("w", (6, 5)), data("c", (-1, 5))
    with make_transformer_factory(place)() as transformer:
        transformer.graph_passes = [FuseElementwise(), FuseEpilogues()]  # type: ignore[assignment]
        computation = transformer.computation(layers.tanh(layers.elementwise_add(layers.mul(x, w), c)), x, w, c)
        for rows, others in ((4, 4), (1, 3), (3, 1)):
            found = computation(given(rows, 6), given(6, 5), given(others, 5))
            wanted = np.tanh(given(rows, 6) @ given(6, 5) + given(others, 5))
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        assert types(computation) == ["fused.mul_add_tanh"]


def test_a_sum_of_nothing(place: str) -> None:
    def build() -> tuple[list[Any], list[Any]]:
        x, w, c = data("x", (-1, -1)), data("w", (-1, 5)), data("c", (5,))
        return [layers.elementwise_add(layers.matmul(x, w), c)], [x, w, c]

    for rows, width in ((3, 0), (0, 2)):
        feeds = [np.ones((rows, width), "float32"), np.ones((width, 5), "float32"), given(5)]
        found, _ = run(place, build, feeds, (FuseElementwise, FuseEpilogues))
        np.testing.assert_array_equal(found[0], np.broadcast_to(given(5), (rows, 5)))


# What is left as it is -----------------------------------------------------------------------------------------------


def _kept(build: Build, feeds: Sequence[Any], place: str) -> list[str]:
    expected, _ = run(place, build, feeds, ())
    found, after = run(place, build, feeds, (FuseElementwise, FuseEpilogues))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return after


def test_a_product_that_others_read_is_stored(place: str) -> None:
    def build() -> tuple[list[Any], list[Any]]:
        x = data("x", (4, 4))
        product = layers.matmul(x, x)
        return [layers.relu(product), layers.softmax(product)], [x]

    assert "matmul" in _kept(build, [given(4, 4)], place)


def test_a_product_that_is_fetched_is_stored(place: str) -> None:
    def build() -> tuple[list[Any], list[Any]]:
        x = data("x", (4, 4))
        product = layers.matmul(x, x)
        return [product, layers.relu(product)], [x]

    assert _kept(build, [given(4, 4)], place) == ["matmul", "relu"]


def test_a_product_that_is_broadcast_or_added_up_is_stored(place: str) -> None:
    def build() -> tuple[list[Any], list[Any]]:
        x, big = data("x", (4, 4)), data("big", (3, 4, 4))
        return [layers.elementwise_add(big, layers.matmul(x, x)), layers.reduce_sum(layers.matmul(x, x))], [x, big]

    assert sum(name == "matmul" for name in _kept(build, [given(4, 4), given(3, 4, 4)], place)) == 2


@pytest.mark.parametrize("where", [str(place) for place in fluid.places()])
def test_a_product_of_which_a_fused_sum_is_taken_is_stored(where: str) -> None:
    """Half types are rounded before they are added up."""
    program = fluid.Program()
    block = program.global_block()
    for name, dims in (("x", [1, 1]), ("w", [1, 1]), ("bias", [1])):
        block.create_var(name, dims, "float32", is_data=True)
    for name in ("product", "biased", "bent", "half", "total"):
        block.create_var(name)
    block.append_op("mul", {"X": ["x"], "Y": ["w"]}, {"Out": ["product"]}, {})
    block.append_op("elementwise_add", {"X": ["product"], "Y": ["bias"]}, {"Out": ["biased"]}, {"axis": 1})
    block.append_op("stanh", {"X": ["biased"]}, {"Out": ["bent"]}, {})
    block.append_op("cast", {"X": ["bent"]}, {"Out": ["half"]}, {"in_dtype": "float32", "out_dtype": "bfloat16"})
    block.append_op("reduce_sum", {"X": ["half"]}, {"Out": ["total"]}, {"reduce_all": True})
    feed = {"x": given(1, 1), "w": given(1, 1), "bias": given(1)}
    first, second = (
        fluid.Executor(where, fallback="allow", mode=mode).run(program, feed, ["total"])[0]
        for mode in ("interpreted", "compiled")
    )
    np.testing.assert_array_equal(first.astype("float32"), second.astype("float32"))


def test_random_numbers_stay_apart(place: str) -> None:
    def build() -> tuple[list[Any], list[Any]]:
        x = data("x", (4, 4))
        return [layers.dropout(layers.matmul(x, x), 0.5, seed=5)], [x]

    assert _kept(build, [given(4, 4)], place) == ["matmul", "dropout"]


def test_state_that_is_written_between(place: str) -> None:
    """The product reads what state held before; its reader needs what is stored afterwards."""
    w = layers.create_global_var([4, 4], 2.0, "float32", persistable=True, name="w")
    x = data("x", (4, 4))
    product = layers.matmul(x, w)
    layers.assign(layers.elementwise_add(w, w), w)
    result = layers.elementwise_add(product, w)
    exe = fluid.Executor(place, mode="compiled")
    exe.run(fluid.default_startup_program())
    (found,) = exe.run(feed={"x": given(4, 4)}, fetch_list=[result])
    np.testing.assert_allclose(found, given(4, 4) @ np.full((4, 4), 2.0) + 4, rtol=1e-5)


def test_an_update_of_what_the_product_reads(place: str) -> None:
    """W = W - rate (X W): the product must have read all of W before any of it is written."""
    w = layers.create_global_var([40, 40], 0.0, "float32", persistable=True, name="w")
    x, rate = data("x", (40, 40)), layers.fill_constant([1], "float32", 0.5)
    block = fluid.default_main_program().global_block()
    grad = layers.matmul(x, w)
    block.append_op("sgd", {"Param": w, "Grad": grad, "LearningRate": rate}, {"ParamOut": w})
    exe, scope = fluid.Executor(place, mode="compiled"), fluid.Scope()
    exe.run(fluid.default_startup_program(), scope=scope)
    scope.find_var("w").get_tensor().set(given(40, 40, seed=4), exe.place)
    exe.run(feed={"x": given(40, 40)}, fetch_list=[], scope=scope)
    before = given(40, 40, seed=4)
    wanted = before - 0.5 * (given(40, 40) @ before)
    np.testing.assert_allclose(scope.find_var("w").get_tensor().numpy(), wanted, rtol=1e-4, atol=1e-5)


# Training ------------------------------------------------------------------------------------------------------------


def training(optimizer: Any, place: str, without_passes: Sequence[type[GraphPass]] = ()) -> tuple[Any, Any, list[str]]:
    """Three steps; the losses, the parameters, and what ran."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 11
    with fluid.program_guard(main, startup):
        hidden = layers.fc(layers.data("x", [20]), 32, act="relu", param_attr=fluid.ParamAttr("w0"))
        shared = fluid.ParamAttr("w1")
        hidden = layers.fc(layers.fc(hidden, 32, act="tanh", param_attr=shared), 32, param_attr=shared)
        loss = layers.mean(layers.square(layers.fc(hidden, 6, param_attr=fluid.ParamAttr("w2"))))
        optimizer().minimize(loss)
    passes = [item for item in default_passes() if not isinstance(item, tuple(without_passes))]
    exe, scope = fluid.Executor(place, mode="compiled", passes=passes), fluid.Scope()
    exe.run(startup, scope=scope)
    losses = [exe.run(main, {"x": given(9, 20)}, [loss], scope=scope)[0][0] for _ in range(3)]
    ran = [line.op.type for line in exe.explain_last().plan.lines]
    return np.array(losses), [scope.find_var(name).get_tensor().numpy() for name in ("w0", "w1", "w2")], ran


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: fluid.optimizer.SGD(0.1),
    "momentum": lambda: fluid.optimizer.Momentum(0.1, 0.9),
    "nesterov": lambda: fluid.optimizer.Momentum(0.1, 0.9, use_nesterov=True),
    "no momentum": lambda: fluid.optimizer.Momentum(0.1, 0.0),
    "adam": lambda: fluid.optimizer.Adam(0.01),
    "decay": lambda: fluid.optimizer.Momentum(0.1, 0.9, regularization=fluid.regularizer.L2Decay(0.1)),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("where", ["cpu", "language", OPENCL, "fpga"])
def test_training_is_the_same(where: str, optimizer: str, require: Callable[..., None]) -> None:
    """Equal but for one rounding where a product adds to the velocity."""
    place = "cpu" if where == "language" else where
    require(place)
    with without(*(("native", "array") if where == "language" else ())):
        apart = training(OPTIMIZERS[optimizer], place, (FuseEpilogues, SplitProducts, FoldTransposes))
        found = training(OPTIMIZERS[optimizer], place)
    np.testing.assert_allclose(found[0], apart[0], rtol=1e-5)
    for a, b in zip(found[1], apart[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    if where in ("language", "opencl"):
        assert len(found[2]) <= len(apart[2]) - 3


# Libraries that add to what is there ---------------------------------------------------------------------------------


def test_a_step_with_momentum_adds_to_the_velocity(cpu: Transformer) -> None:
    """Where the library can do no more than add; a weight that two layers share is updated where their sum is made."""
    pytest.importorskip("fluidlite.kernels.blas")
    found = training(OPTIMIZERS["momentum"], "cpu")[2]
    assert found.count("fused.matmul_accumulate") == 2 and found.count("fused.part_momentum") == 1  # a sum of two
    assert found.count("sgd") == 2 and found.count("momentum") == 4
    without = training(OPTIMIZERS["momentum"], "cpu", (FuseEpilogues,))[2]
    assert without.count("momentum") + without.count("fused.part_momentum") == 7
    for other in ("nesterov", "decay", "no momentum"):
        assert "fused.matmul_accumulate" not in training(OPTIMIZERS[other], "cpu")[2]


def test_a_residual_is_added_to(cpu: Transformer) -> None:
    def build() -> tuple[list[Any], list[Any]]:
        x, w = data("x", (70, 80)), data("w", (80, 80))
        hidden = layers.tanh(x)
        out = layers.elementwise_add(layers.scale(hidden, 0.5), layers.matmul(hidden, w))
        return [layers.softmax(out), hidden], [x, w]

    feeds = [given(70, 80), given(80, 80)]
    expected, _ = run("cpu", build, feeds, ())
    found, after = run("cpu", build, feeds, (FuseEpilogues,))
    assert "fused.matmul_add" in after and "elementwise_add" not in after
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_what_is_added_to_lives_on(cpu: Transformer) -> None:
    """The other term is read again afterwards: it is copied, not overwritten."""

    def build() -> tuple[list[Any], list[Any]]:
        x, w = data("x", (70, 80)), data("w", (80, 80))
        other = layers.tanh(x)
        out = layers.elementwise_add(layers.matmul(x, w), other)
        return [layers.softmax(out), layers.softmax(other)], [x, w]

    x, w = given(70, 80), given(80, 80)
    expected, _ = run("cpu", build, [x, w], ())
    found, after = run("cpu", build, [x, w], (FuseEpilogues,))
    assert "fused.matmul_add" in after
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_batches_and_vectors_are_added_to(cpu: Transformer) -> None:
    for x_dims, y_dims in (((3, 5, 7), (3, 7, 4)), ((1, 9), (9, 6)), ((6, 9), (9, 1)), ((2, 3, 8), (8, 5))):

        def build(x_dims: Any = x_dims, y_dims: Any = y_dims) -> tuple[list[Any], list[Any]]:
            x, y, c = data("x", x_dims), data("y", y_dims), data("c", (*x_dims[:-1], y_dims[-1]))
            more = layers.elementwise_mul(c, layers.fill_constant([1], "float32", 3.0))
            return [layers.elementwise_add(more, layers.matmul(x, y, alpha=2.0))], [x, y, c]

        feeds = [given(*x_dims), given(*y_dims), given(*x_dims[:-1], y_dims[-1])]
        found, after = run("cpu", build, feeds, (FuseElementwise, FuseEpilogues))
        assert len(after) == 1 and after[0].startswith("fused.matmul"), after
        np.testing.assert_allclose(found[0], 3 * feeds[2] + 2 * (feeds[0] @ feeds[1]), rtol=1e-5, atol=1e-5)


def test_zero_times_infinity_is_still_not_a_number(cpu: Transformer) -> None:
    """A sum whose factor is 0 would leave its term out."""

    def build() -> tuple[list[Any], list[Any]]:
        x, c = data("x", (4, 4)), data("c", (4, 4))
        nothing = layers.elementwise_mul(c, layers.fill_constant([1], "float32", 0.0))
        return [layers.elementwise_add(nothing, layers.matmul(x, x))], [x, c]

    found, after = run(
        "cpu", build, [given(4, 4), np.full((4, 4), np.inf, "float32")], (FuseElementwise, FuseEpilogues)
    )
    assert np.isnan(found[0]).all() and "matmul" in after


def test_gradients_that_are_added_to_state_take_no_memory(cpu: Transformer) -> None:
    """The allocator's peak of a step with momentum, beyond the state: less than one gradient."""

    def peak(*off: type[GraphPass]) -> int:
        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup):
            hidden = layers.data("x", [256])
            for _ in range(3):
                hidden = layers.fc(hidden, 256, act="relu", bias_attr=False)
            loss = layers.mean(hidden)
            fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)
        passes = [item for item in default_passes() if not isinstance(item, off)]
        exe, scope = fluid.Executor("cpu", mode="compiled", passes=passes), fluid.Scope()
        exe.run(startup, scope=scope)
        gc.collect()
        memory.trim("cpu")
        before = memory.used("cpu")
        memory.reset_peak("cpu")
        for _ in range(2):
            exe.run(main, {"x": given(8, 256)}, [loss], scope=scope)
        found = memory.peak("cpu") - before
        exe.close()
        return found

    gradient = 256 * 256 * 4
    assert peak() < gradient < peak(FuseEpilogues)


# Deferred errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["cpu", "language", OPENCL])
def test_an_index_out_of_range_spoils_no_weight(where: str, require: Callable[..., None]) -> None:
    """The updates in the products' epilogues are skipped, and nothing waits in front of them."""
    place = "cpu" if where == "language" else where
    require(place)
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), without(*(("native", "array") if where == "language" else ())):
        words = layers.data("words", [1], dtype="int64")
        hidden = layers.embedding(words, [10, 16], param_attr=fluid.ParamAttr("table"))
        loss = layers.mean(layers.fc(hidden, 24, act="tanh", param_attr=fluid.ParamAttr("w")))
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
        exe, scope = fluid.Executor(place, mode="compiled"), fluid.Scope()
        exe.run(startup, scope=scope)

        def step(*indices: int) -> None:
            exe.run(main, {"words": np.array(indices, "int64").reshape(-1, 1)}, [loss], scope=scope)

        step(1, 2, 3)
        ran = [line.op.type for line in exe.explain_last().plan.lines]
        assert ("fused.matmul_accumulate" if where == "cpu" else "fused.matmul_momentum") in ran
        tensor = scope.find_var("w").get_tensor()
        before = tensor.numpy().copy()
        context = get_context(place)
        context.counts.reset()
        step(1, 2, 3)
        reads = context.counts.status_reads
        assert not (tensor.numpy() == before).all()
        before = tensor.numpy().copy()
        with pytest.raises(fluid.FluidError, match="index 12 is out of range"):
            step(1, 12, 3)
        np.testing.assert_array_equal(tensor.numpy(), before)
        assert where != "opencl" or reads == 1
        step(4, 5, 6)
        assert not (tensor.numpy() == before).all()


def test_transposes_stay_where_the_kernel_takes_none(cpu: Transformer) -> None:
    """A library that has plain products alone keeps them."""
    library = Library("upright", ("cpu",), 99)
    kernels.add_library(library)

    def supports(call: Call) -> str | None:
        return "no transposes" if call.attr("transpose_X") or call.attr("transpose_Y") else None

    @register_kernel("matmul", "cpu", library="upright", supports=supports)
    def product(call: Call, context: Any) -> Any:
        def compute(context: Any, io: Any) -> None:
            io.array("Out")[...] = io.array("X") @ io.array("Y")

        return compute

    try:
        x, y = data("x", (4, 6)), data("y", (3, 6))
        out = layers.matmul(x, layers.transpose(y, [1, 0]))
        computation = cpu.computation([layers.transpose(out, [1, 0]), *fluid.gradients([out], [x])], x, y)
        swapped, dx = computation(given(4, 6), given(3, 6))
    finally:
        kernels.remove(product)
        kernels.remove_library(library)
    assert sum(name.startswith("transpose") for name in types(computation)) == 2
    np.testing.assert_allclose(swapped, given(3, 6) @ given(4, 6).T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dx, np.ones((4, 3)) @ given(3, 6), rtol=1e-5)


def test_a_fast_product_is_not_traded_for_one_with_an_epilogue() -> None:
    """Where the user puts another library first, its product runs, and the rest after it."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        loss = layers.mean(layers.fc(layers.data("x", [256]), 256, bias_attr=False))
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    exe, scope = fluid.Executor("cpu", mode="compiled", libraries={"cpu": ["plain"]}), fluid.Scope()
    exe.run(startup, scope=scope)
    exe.run(main, {"x": given(64, 256)}, [loss], scope=scope)
    rows = {row["op"]: row for row in exe.explain_last().data()}
    assert rows["matmul"]["library"] == "array"  # the gradient, as the expression says it
    assert rows["momentum"]["how"] == "generated"
    assert not any(type.startswith("fused.matmul") for type in rows)


@pytest.mark.parametrize("place", ["cpu", OPENCL])
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("sizes", [(4, 4, 4), (65, 1, 5), (64, 64, 64)])
@pytest.mark.parametrize("stored", ["half", "float32"])
def test_a_product_plus_a_half_tensor(place: str, half: str, sizes: tuple[int, int, int], stored: str) -> None:
    """The product is float32: no accumulation of it in memory for halves, which is half as large."""
    m, k, n = sizes
    a, b = (layers.data(name, dims, append_batch_size=False) for name, dims in (("a", [m, k]), ("b", [k, n])))
    h = layers.data("h", [m, n], dtype=half, append_batch_size=False)
    y = layers.matmul(a, b) + layers.cast(h, "float32")
    y = layers.cast(y, half) if stored == "half" else y
    ones = {"a": np.ones((m, k), "float32"), "b": np.ones((k, n), "float32"), "h": np.ones((m, n), NUMPY[half])}
    for mode in ("interpreted", "compiled"):
        exe = fluid.Executor(place, mode=mode)
        for _ in range(3):
            (found,) = exe.run(feed=ones, fetch_list=[y])
            np.testing.assert_array_equal(np.asarray(found, "float32"), np.full((m, n), k + 1.0))


@pytest.mark.parametrize("place", ["cpu", OPENCL])
@pytest.mark.parametrize("dims", [((3, 0, 17), (17, 8)), ((3, 4, 0), (0, 8)), ((0, 4), (4, 0)), ((2, 0, 4), (2, 4, 3))])
def test_gradients_of_products_of_nothing(place: str, dims: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x, w = (
        layers.data(name, list(d), append_batch_size=False, stop_gradient=False)
        for name, d in zip("xw", dims, strict=True)
    )
    loss = layers.reduce_sum(layers.matmul(x, w))
    gradients = fluid.gradients([loss], [x, w])
    feed = {name: np.ones(d, "float32") for name, d in zip("xw", dims, strict=True)}
    for mode in ("interpreted", "compiled"):
        total, *found = fluid.Executor(place, mode=mode).run(feed=feed, fetch_list=[loss, *gradients])
        assert total == 0
        assert [g.shape for g in found] == list(dims)
        assert not any(g.any() for g in found)
