"""What once went wrong quietly in the core: each test fails if it does so again."""

from __future__ import annotations

import copy
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers, plugin_loader
from fluidlite.base.errors import DeviceError, FluidError, OutOfRangeError, ProgramError, RegistryError
from fluidlite.platform.context_pool import get_context
from fluidlite.plugin import Inference, hookimpl, register_kernel
from fluidlite.program.kernel_registry import kernels
from fluidlite.program.registry import ops, register_op

X = np.array([[1, 2], [3, 4]], "float32")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Programs, scope and names of its own for each test."""
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.scope_guard(fluid.Scope()),
        fluid.unique_name.guard(),
    ):
        yield


@pytest.fixture
def own() -> Iterator[Any]:
    """``own(kernel function, places, dtype)`` declares operator "tested", whose Out has X's dims."""
    made: list[Any] = []

    def declare(function: Any, *places: str, dtype: str = "float32") -> None:
        def infer(call: Any) -> Any:
            return {"Out": call.spec("X").with_(dtype=dtype)}

        made.append((ops, register_op("tested", Inference(infer), inputs=("X",), outputs=("Out",))))
        made.append((kernels, register_kernel("tested", *(places or ("cpu",)))(function)))

    yield declare
    for room, item in reversed(made):
        room.remove(item)


def data(stop: bool = False) -> Any:
    x = layers.data("x", [2, 2], append_batch_size=False)
    x.stop_gradient = stop
    return x


def use(x: Any) -> Any:
    block = fluid.default_main_program().global_block()
    out = block.create_var()
    block.append_op("tested", {"X": x}, {"Out": out})
    return out


def run(*fetches: Any) -> list[Any]:
    results: list[Any] = fluid.Executor("cpu").run(feed={"x": X}, fetch_list=list(fetches))
    return results


# Gradients


def test_a_second_gradient_has_a_name_of_its_own() -> None:
    x = data()
    (first,) = fluid.gradients(layers.reduce_sum(x * 3.0), [x])
    (second,) = fluid.gradients(layers.reduce_sum(layers.elementwise_mul(x, x)), [x])
    assert first is not None and second is not None and first.name == "x@GRAD" != second.name
    one, two = run(first, second)
    np.testing.assert_array_equal(one, np.full((2, 2), 3))
    np.testing.assert_array_equal(two, 2 * X)


def test_the_gradient_of_an_intermediate_and_of_the_target_itself() -> None:
    x = data()
    h = layers.scale(x, 3.0)
    grads = fluid.gradients(layers.reduce_sum(layers.elementwise_mul(h, h)), [x, h])
    np.testing.assert_array_equal(run(*grads), [18 * X, 6 * X])
    (ones,) = fluid.gradients(h, [h])
    np.testing.assert_array_equal(run(ones)[0], np.ones((2, 2)))


def test_one_variable_twice_in_an_operator_in_place() -> None:
    x = data()
    a = layers.scale(x, 1.0)
    fluid.default_main_program().global_block().append_op("elementwise_add", {"X": a, "Y": a}, {"Out": a})
    value, grad = run(a, fluid.gradients(layers.reduce_sum(a), [x])[0])
    np.testing.assert_array_equal(value, 2 * X)
    np.testing.assert_array_equal(grad, np.full((2, 2), 2))


# Runs


@pytest.mark.opencl
def test_a_recorded_index_is_not_the_next_runs_error(own: Any) -> None:
    failing = True

    def kernel(call: Any, context: Any) -> Any:
        def run(context: Any, io: Any) -> None:
            if failing:
                raise ValueError("on purpose")
            context.copy_within(io.span("Out"), io.span("X"))

        return run

    own(kernel, "opencl")
    ids = layers.data("ids", [2, 1], dtype="int64", append_batch_size=False)
    rows = layers.embedding(ids, [5, 2])
    out = use(data())
    exe = fluid.Executor("opencl:0")
    exe.run(fluid.default_startup_program())
    with pytest.raises(DeviceError, match="on purpose"):
        exe.run(feed={"ids": np.array([[0], [99]]), "x": X}, fetch_list=[rows, out])
    failing = False
    (_, result) = exe.run(feed={"ids": np.array([[0], [1]]), "x": X}, fetch_list=[rows, out])
    np.testing.assert_array_equal(result, X)


@pytest.mark.opencl
def test_a_guarded_update_into_another_variable_leaves_it_alone() -> None:
    ids = layers.data("ids", [2, 1], dtype="int64", append_batch_size=False)
    rows = layers.embedding(ids, [5, 2])
    made = {
        name: layers.create_global_var([2, 2], value, "float32", persistable=True, name=name)
        for name, value in (("w", 1.0), ("w2", 5.0))
    }
    rate = layers.fill_constant([1], "float32", 0.1)
    block = fluid.default_main_program().global_block()
    block.append_op("sgd", {"Param": made["w"], "Grad": rows, "LearningRate": rate}, {"ParamOut": made["w2"]})
    exe = fluid.Executor("opencl:0")
    exe.run(fluid.default_startup_program())
    with pytest.raises(OutOfRangeError, match="index 99"):
        exe.run(feed={"ids": np.array([[0], [99]])}, fetch_list=[])
    variable = fluid.global_scope().find_var("w2")
    assert variable is not None
    np.testing.assert_array_equal(variable.get_tensor().numpy(), np.full((2, 2), 5))


def test_two_threads_on_one_scope_do_not_wait_for_each_other() -> None:
    scope = fluid.Scope()
    total = layers.create_parameter([4], "float32", name="pa") + layers.create_parameter([4], "float32", name="pb")
    for _ in range(30):
        total = layers.scale(total, 1.0)
    program = fluid.default_main_program()
    barrier = threading.Barrier(2)

    def work(mine: str) -> None:
        scope.var(mine).get_tensor().set(np.ones(4, "float32"), "cpu")
        exe = fluid.Executor("cpu")
        barrier.wait()
        for _ in range(200):
            exe.run(program, {}, [total], scope=scope)

    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in ("pa", "pb")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    assert not any(thread.is_alive() for thread in threads)


def test_an_array_that_a_kernel_keeps_is_not_taken_over(own: Any) -> None:
    def kernel(call: Any, context: Any) -> Any:
        table = np.full((3, 5, 7), 7, "float32")  # of dims that no earlier run has kept a tensor for
        return lambda context, io: table

    own(kernel)
    out = use(layers.data("x", [3, 5, 7], append_batch_size=False))
    fluid.default_main_program().global_block().append_op("scale", {"X": out}, {"Out": out}, {"scale": 2.0})
    exe = fluid.Executor("cpu")
    for _ in range(3):
        (result,) = exe.run(feed={"x": np.zeros((3, 5, 7), "float32")}, fetch_list=[out])
        np.testing.assert_array_equal(result, np.full((3, 5, 7), 14))


def test_who_reads_anothers_memory_is_known_to_it() -> None:
    total = layers.scale(layers.create_parameter([4], "float32", name="p"), 2.0)
    program, scope = fluid.default_main_program(), fluid.global_scope()
    tensor = scope.var("p").get_tensor().set(np.ones(4, "float32"), "cpu")
    seen: list[Any] = []

    def work() -> None:
        fluid.Executor("cpu").run(program, {}, [total], scope=scope)
        seen.append(get_context("cpu") in (tensor.allocation.users or ()))  # type: ignore[union-attr]

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(200)
    assert seen == [True]  # so its block waits for that context before it is used again


def test_bfloat16_is_no_float16(own: Any) -> None:
    import ml_dtypes

    own(lambda call, context: lambda context, io: io.array("X").astype(ml_dtypes.bfloat16), dtype="float16")
    with pytest.raises(DeviceError, match="returned bfloat16, inference found float16"):
        run(use(data()))


def test_a_plain_kernel_that_changes_its_output_is_named(own: Any) -> None:
    def kernel(ctx: Any) -> None:
        ctx.output("Out").mutable_data((3,), ctx.place, "float64")[...] = 0

    own(kernel)
    with pytest.raises(DeviceError, match=r"operator tested .*made float64\[3\]"):
        run(use(data()))


# Plans


def test_edits_behind_the_programs_back_are_seen() -> None:
    y = layers.scale(data(), 2.0)
    block = fluid.default_main_program().global_block()
    block.append_op("scale", {"X": y}, {"Out": y}, {"scale": 5.0})
    exe = fluid.Executor("cpu")
    np.testing.assert_array_equal(exe.run(feed={"x": X}, fetch_list=[y])[0], 10 * X)
    duplicate = copy.deepcopy(fluid.default_main_program())
    duplicate.global_block().ops[-1].set_attr("scale", 7.0)
    block.ops.pop()
    np.testing.assert_array_equal(exe.run(feed={"x": X}, fetch_list=[y])[0], 2 * X)
    np.testing.assert_array_equal(exe.run(duplicate, feed={"x": X}, fetch_list=[y.name])[0], 14 * X)
    y.persistable = True
    exe.run(feed={"x": X})
    assert fluid.global_scope().find_var(y.name) is not None


def test_a_persistable_that_no_operator_uses_can_be_fetched() -> None:
    layers.create_global_var([1], 3.0, "float32", persistable=True, name="alone")
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    assert exe.run(fetch_list=["alone"])[0] == 3


def test_explain_shows_a_chain_in_place() -> None:
    y = layers.scale(data(), 2.0)
    fluid.default_main_program().global_block().append_op("scale", {"X": y}, {"Out": y}, {"scale": 5.0})
    assert fluid.explain().summary["operators"] == 2


def test_an_executors_options_are_checked() -> None:
    with pytest.raises(ProgramError, match="fallback is 'eror'"):
        fluid.Executor("cpu", fallback="eror")
    with pytest.raises(RegistryError, match="'nosuch'"):
        fluid.Executor("cpu", libraries={"cpu": ["nosuch"]})


def test_an_override_gives_back_what_it_hid() -> None:
    mine = register_kernel("matmul", "cpu", library="blas", override=True)(
        lambda call, context: lambda context, io: None
    )
    try:
        assert kernels.of("matmul")[0] is mine
        assert any(kernel.library == "blas" and kernel is not mine for kernel in kernels.of("matmul"))
    finally:
        kernels.remove(mine)
    y = layers.matmul(data(), layers.scale(data(), 1.0))
    np.testing.assert_array_equal(run(y)[0], X @ X)


def test_errors_of_a_device_guard_name_the_line() -> None:
    with fluid.device_guard("nowhere:0"):
        y = layers.scale(data(), 2.0)
    with pytest.raises(FluidError, match=r"operator scale \(test_regressions.py:\d+.*nowhere"):
        run(y)


# Plugins


def test_a_plugin_that_exits_or_misspells_a_hook_takes_nobody_with_it() -> None:
    def leave(register: Any) -> None:
        raise SystemExit(3)

    for name, hook, function, cause in (
        ("test_exits", "register_devices", leave, "SystemExit: 3"),
        ("test_misspells", "register_kernel", lambda register: None, "register_kernel"),
    ):
        module = types.ModuleType(name)
        setattr(module, hook, hookimpl(function))
        with pytest.warns(fluid.PluginWarning, match=name):
            record = plugin_loader.load(name, module)
        plugin_loader.unload(name)
        assert record.state == "failed" and cause in record.error
    assert fluid.places()


def test_blocks_cut_a_value_that_has_only_the_first_dim() -> None:
    """A large generated call works in blocks of rows: the factor of each row goes along with its rows."""
    rows, columns = 4096, 256
    x = np.random.default_rng(0).standard_normal((rows, columns), np.float32)
    factor = np.arange(rows, dtype=np.float32).reshape(rows, 1)
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        given = layers.data("x", [columns])
        given.stop_gradient = False
        zero = layers.fill_constant([1, columns], "float32", 0.0)
        distance = program.global_block().create_var("distance")
        sub = program.global_block().create_var("sub")
        program.global_block().append_op(
            "squared_l2_distance", {"X": given, "Y": zero}, {"Out": distance, "sub_result": sub}
        )
        weight = layers.data("weight", [1])
        (grad,) = fluid.gradients(layers.reduce_sum(layers.elementwise_mul(distance, weight)), given)
    (value,) = fluid.Executor("cpu").run(program, {"x": x, "weight": factor}, [grad])
    np.testing.assert_allclose(value, 2 * factor * x, 1e-5)
