"""Executable programs: what a call does and does not, when it binds again, and that errors are as good as ever."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from networks import fed, network, random_program, runs

import fluidlite as fluid
import fluidlite.graph as ng
from fluidlite import layers, memory
from fluidlite.base.errors import DeviceError, FluidError, OutOfMemoryError, OutOfRangeError
from fluidlite.compiler.executable.executable import Executable
from fluidlite.compiler.executable.executable_cache import MAX_EXECUTABLES, ExecutableCache
from fluidlite.executor.executor import Executor
from fluidlite.platform.context_pool import get_context
from fluidlite.plugin import Inference
from fluidlite.program.kernel_registry import kernels, register_kernel
from fluidlite.program.op_call import Call
from fluidlite.program.registry import ops, register_op
from fluidlite.transformers import Transformer

PLACES = ["cpu", pytest.param("opencl", marks=pytest.mark.opencl), "fpga"]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, require: Callable[..., None]) -> str:
    require(request.param)
    return str(request.param)


def cache_of(exe: Executor) -> ExecutableCache:
    assert exe._executables is not None
    return exe._executables


def last(exe: Executor) -> Executable:
    found = cache_of(exe).last
    assert found is not None
    return found


def plainly(place: Any) -> Executor:
    """An executor that runs programs as they are, without passes."""
    return fluid.Executor(place, mode="compiled", passes=())


# What a call does ----------------------------------------------------------------------------------------------------


def test_a_call_allocates_and_chooses_nothing(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    main, startup, feed, wanted = network()
    exe, scope = plainly(place), fluid.Scope()
    exe.run(startup, scope=scope)
    first = exe.run(main, feed, wanted, scope=scope)
    executable = last(exe)
    assert (executable.attached, cache_of(exe).binds) == (1, 1)

    def never(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a bound call dispatches, infers or allocates")

    before = {where: memory.stats(where).allocations for where in map(str, fluid.places())}
    monkeypatch.setattr("fluidlite.compiler.executable.linked_plan.prepare_step", never)
    monkeypatch.setattr("fluidlite.compiler.executable.executable.run_stages", never)
    monkeypatch.setattr("fluidlite.compiler.graph_runner.plan_graph", never)
    monkeypatch.setattr("fluidlite.tensor.tensor.Tensor.allocate", never)
    monkeypatch.setattr(Call, "__init__", never)
    for _ in range(3):
        second = exe.run(main, feed, wanted, scope=scope)
        assert second[0] < first[0]
        first = second
    assert last(exe) is executable
    assert executable.attached == 1
    after = {where: memory.stats(where).allocations for where in before}
    assert after == before


def test_each_operator_is_one_callable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fluidlite.compiler.executable.linker.merge_launches", lambda actions, owners: (actions, owners)
    )
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = y = layers.data("x", [1], append_batch_size=False)
        for _ in range(100):
            y = layers.elementwise_add(y, x)
        exe = plainly("cpu")
        assert exe.run(feed={"x": np.ones(1, "float32")}, fetch_list=[y])[0] == 101
    assert len(last(exe).actions) == 100
    assert last(exe).memory.planned <= 5 * 64


def test_another_batch_size_compiles_nothing(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    main, startup, _, wanted = network()
    exe, scope = fluid.Executor(place, mode="compiled"), fluid.Scope()
    exe.run(startup, scope=scope)
    for batch in (16, 8, 64):  # sums of few and of many elements are two kernels
        exe.run(main, {"x": fed(batch, 64)}, wanted, scope=scope)
    compiled: list[Any] = []
    language = get_context(place).language
    if language is not None:
        true_compile = type(language).compile
        monkeypatch.setattr(
            type(language), "compile", lambda *args: compiled.append(args[2]) or true_compile(*args)
        )  # fmt: skip
    from fluidlite.codegen import array_kernel

    monkeypatch.setattr(
        array_kernel, "compile", lambda *args: compiled.append(args[1]) or compile(*args), raising=False
    )
    binds = cache_of(exe).binds
    for batch in (4, 32, 12):
        exe.run(main, {"x": fed(batch, 64)}, wanted, scope=scope)
    assert cache_of(exe).binds == binds + 3
    assert compiled == []


def test_results_are_copies(place: str) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = layers.data("x", [-1], append_batch_size=False)
        y = layers.scale(layers.scale(x, 2.0), 2.0)
        exe = fluid.Executor(place, mode="compiled")
        for size in (3, 50_000):
            found = [exe.run(feed={"x": np.full(size, k, "float32")}, fetch_list=[y, y, x]) for k in range(3)]
            for k, (one, two, given) in enumerate(found):
                assert (one == 4 * k).all()
                one += 1
                assert (two == 4 * k).all()
                given += 1
            assert (exe.run(feed={"x": np.ones(size, "float32")}, fetch_list=[y])[0] == 4).all()


def test_feeds_are_borrowed_and_only_read(place: str) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = layers.data("x", [-1], append_batch_size=False)
        y = layers.mean(layers.relu(layers.relu(x)))
        exe = fluid.Executor(place, mode="compiled")
        for size in (4, 100_000):
            given = np.full(size, -1, "float32")
            given.flags.writeable = False
            assert exe.run(feed={"x": given}, fetch_list=[y])[0] == 0
            tensor = fluid.Tensor().set(np.full(size, 3, "float32"), place)  # already there
            assert exe.run(feed={"x": tensor}, fetch_list=[y])[0] == 3
            assert (tensor.numpy() == 3).all()
            assert exe.run(feed={"x": np.full(size, 5, "float32")}, fetch_list=[y])[0] == 5


# Equal to the interpreter --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(100, 106))
def test_random_numbers_are_the_interpreters(seed: int) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = layers.data("x", [64], append_batch_size=False)
        made = [layers.dropout(x, 0.5), layers.uniform_random([8], min=0.0), layers.dropout(layers.scale(x, 2.0), 0.5)]
        program = fluid.default_main_program()
        program.random_seed = seed
        feed = {"x": np.ones(64, "float32")}
        answers = {}
        for mode in ("interpreted", "compiled"):
            exe, scope = fluid.Executor("cpu", mode=mode), fluid.Scope()
            answers[mode] = [exe.run(feed=feed, fetch_list=made, scope=scope) for _ in range(3)]
    for one, other in zip(answers["interpreted"], answers["compiled"], strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
    assert not np.array_equal(answers["compiled"][0][1], answers["compiled"][1][1])


def test_training_is_the_interpreters(place: str) -> None:
    wanted, _, _ = runs(network(2, 32, 4), place, "interpreted", 5)
    found, exe, _ = runs(network(2, 32, 4), place, "compiled", 5)
    np.testing.assert_allclose(np.ravel(found), np.ravel(wanted), rtol=1e-5)
    assert last(exe).attached == 1


def test_versions_of_state_rise() -> None:
    main, startup, feed, wanted = network()
    exe, scope = fluid.Executor("cpu", mode="compiled"), fluid.Scope()
    exe.run(startup, scope=scope)
    tensor = scope.find_var("fc_0.w_0").get_tensor()
    versions = []
    for _ in range(3):
        exe.run(main, feed, wanted, scope=scope)
        versions.append(tensor.version)
    assert versions[0] < versions[1] < versions[2]


# State that moves ----------------------------------------------------------------------------------------------------


def test_state_whose_memory_is_replaced_is_bound_again(place: str) -> None:
    main, startup, feed, wanted = network()
    exe, scope = fluid.Executor(place, mode="compiled"), fluid.Scope()
    exe.run(startup, scope=scope)
    start = exe.run(main, feed, wanted, scope=scope)[0]
    executable = last(exe)
    state = {name: scope.find_var(name).get_tensor().numpy().copy() for name in executable.binding.names}
    later = exe.run(main, feed, wanted, scope=scope)[0]
    assert executable.attached == 1
    tensor = scope.find_var("fc_0.w_0").get_tensor()
    for name, value in state.items():  # equal dims: copied in, nothing to bind
        scope.find_var(name).get_tensor().set(value, place)
    assert exe.run(main, feed, wanted, scope=scope)[0] == later
    assert executable.attached == 1
    for name, value in state.items():
        scope.find_var(name).get_tensor().share_data_with(fluid.Tensor().set(value, place))
    assert exe.run(main, feed, wanted, scope=scope)[0] == later
    assert (executable.attached, last(exe)) == (2, executable)
    scope.erase(list(state))
    for name, value in state.items():  # new variables
        scope.var(name).get_tensor().set(value, place)
    assert exe.run(main, feed, wanted, scope=scope)[0] == later != start
    assert executable.attached == 3
    assert tensor is not scope.find_var("fc_0.w_0").get_tensor()


def test_state_of_other_dims_or_elsewhere_is_planned_anew(place: str) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        state = layers.create_global_var([3], 1.0, "float32", persistable=True, name="s")
        y = layers.scale(state, 2.0)
        exe, scope = fluid.Executor(place, mode="compiled", fallback="allow"), fluid.Scope()
        exe.run(fluid.default_startup_program(), scope=scope)
        for values, where in (([1, 2, 3], place), ([1, 2], place), ([5, 6, 7], "cpu"), ([1, 2, 3], place)):
            scope.find_var("s").get_tensor().set(np.array(values, "float32"), where)
            for _ in range(2):
                assert exe.run(fetch_list=[y], scope=scope)[0].tolist() == [2 * value for value in values]


def test_state_that_is_gone_is_an_error_and_comes_back() -> None:
    main, startup, feed, wanted = network()
    exe, scope = fluid.Executor("cpu", mode="compiled"), fluid.Scope()
    exe.run(startup, scope=scope)
    exe.run(main, feed, wanted, scope=scope)
    scope.erase(["fc_0.w_0"])
    with pytest.raises(FluidError, match=r"'fc_0.w_0' has no value"):
        exe.run(main, feed, wanted, scope=scope)
    exe.run(startup, scope=scope)
    exe.run(main, feed, wanted, scope=scope)


def test_scopes_are_told_apart() -> None:
    main, startup, feed, wanted = network()
    exe = fluid.Executor("cpu", mode="compiled")
    scopes = [fluid.Scope(), fluid.Scope()]
    for scope in scopes:
        exe.run(startup, scope=scope)
    alone = [exe.run(main, feed, wanted, scope=scopes[0])[0] for _ in range(4)]
    turns = [exe.run(main, feed, wanted, scope=scopes[1])[0], exe.run(main, feed, wanted, scope=scopes[0])[0]]
    assert turns[0] == alone[0]
    assert turns[1] < alone[-1]


def test_a_scope_that_ends_takes_its_memory_along() -> None:
    main, startup, feed, wanted = network()
    exe = fluid.Executor("cpu", mode="compiled")
    gc.collect()
    before = memory.used("cpu")
    for _ in range(3):
        scope = fluid.Scope()
        exe.run(startup, scope=scope)
        exe.run(main, feed, wanted, scope=scope)
        exe.run(main, feed, wanted, scope=scope)
        arena = last(exe).memory.planned
        assert memory.used("cpu") > before + arena + 2 * 4 * 64 * 64 * 4
        del scope
        gc.collect()
        assert memory.used("cpu") <= before + arena
    exe.close()


def test_an_executor_that_ends_takes_its_arena_along() -> None:
    main, startup, feed, wanted = network()
    scope = fluid.Scope()
    fluid.Executor("cpu").run(startup, scope=scope)
    gc.collect()
    gc.disable()
    try:
        before = memory.used("cpu")
        exe = fluid.Executor("cpu", mode="compiled")
        for _ in range(2):
            exe.run(main, feed, wanted, scope=scope)
        assert memory.used("cpu") > before
        del exe
        assert memory.used("cpu") <= before
    finally:
        gc.enable()


def test_state_that_shares_memory_is_left_to_the_interpreter() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        a, b = (layers.create_global_var([2], value, "float32", persistable=True, name=name)
                for name, value in (("a", 1.0), ("b", 5.0)))  # fmt: skip
        layers.assign(layers.scale(a, 2.0), a)
        answers = []
        for mode in ("interpreted", "compiled"):
            exe, scope = fluid.Executor("cpu", mode=mode, passes=()), fluid.Scope()
            exe.run(fluid.default_startup_program(), scope=scope)
            scope.find_var("b").get_tensor().share_data_with(scope.find_var("a").get_tensor())
            answers.append([v.tolist() for _ in range(2) for v in exe.run(fetch_list=[a, b], scope=scope)])
    assert answers == [[[2.0, 2.0]] * 2 + [[4.0, 4.0]] * 2] * 2


def test_an_output_that_reads_its_own_state() -> None:
    """Not in place: the operator's kernel cannot write over what it reads, so the result is copied home."""
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        state = layers.create_global_var([2, 3], 0.0, "float32", persistable=True, name="s")
        flipped = layers.reverse(state, [1])
        state.block.append_op("elementwise_add", {"X": flipped, "Y": layers.data("x", [3], append_batch_size=False)},
                              {"Out": state}, {})  # fmt: skip
        state.block.append_op("reverse", {"X": state}, {"Out": state}, {"axis": [1]})
        answers = []
        for mode in ("interpreted", "compiled"):
            exe, scope = fluid.Executor("cpu", mode=mode), fluid.Scope()
            exe.run(fluid.default_startup_program(), scope=scope)
            feed = {"x": np.float32([1, 2, 4])}
            answers.append([exe.run(feed=feed, fetch_list=[state], scope=scope)[0].tolist() for _ in range(3)])
    assert answers[0] == answers[1]
    assert last(exe).attached == 1


# LRUCache -------------------------------------------------------------------------------------------------------------


def test_a_storm_of_shapes_stays_bounded(place: str) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = layers.data("x", [-1, 64], append_batch_size=False)
        y = layers.mean(layers.softmax(layers.softmax(x)))
        exe = plainly(place)
        before = memory.used(place)
        sizes = [*range(200, 100, -1), *range(1, MAX_EXECUTABLES + 5)]
        for size in sizes:
            exe.run(feed={"x": np.ones((size, 64), "float32")}, fetch_list=[y])
            largest = max(b.memory.planned for b in cache_of(exe)._executables.values() if b is not None)
            assert memory.used(place) - before <= largest + 4096
            assert len(cache_of(exe)) <= MAX_EXECUTABLES
        assert last(exe).memory.planned < 64 * 4 * 100 * 3
        exe.close()
        assert memory.used(place) <= before


def test_the_arena_of_an_evicted_program_is_freed() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = layers.data("x", [-1], append_batch_size=False)
        y = layers.mean(layers.cumsum(layers.cumsum(x)))
        exe = plainly("cpu")
        exe.run(feed={"x": np.ones(1 << 20, "float32")}, fetch_list=[y])
        held = memory.used("cpu")
        for size in range(1, MAX_EXECUTABLES + 2):
            exe.run(feed={"x": np.ones(size, "float32")}, fetch_list=[y])
        assert memory.used("cpu") < held - (1 << 22)
        exe.close()


def test_what_is_evicted_or_moved_still_answers() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = layers.data("x", [-1], append_batch_size=False)
        y = layers.reduce_sum(layers.cumsum(x))
        exe = fluid.Executor("cpu", mode="compiled")
        for size in (3, 900, 3, 40, 20_000, 3, 900):  # the arena grows under those that are bound
            assert exe.run(feed={"x": np.ones(size, "float32")}, fetch_list=[y])[0] == size * (size + 1) / 2


# Errors --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def fragile() -> Iterator[list[Exception]]:
    """An operator that copies; what stands in the list is raised instead."""
    failing: list[Exception] = []
    fluid.places()
    made = register_op("test_fragile", Inference(lambda call: {"Out": call.spec("X")}), inputs=("X",), outputs=("Out",))

    def prepare(call: Any, context: Any) -> Any:
        def run(context: Any, io: Any) -> None:
            if failing:
                raise failing.pop()
            io.array("Out")[...] = io.array("X")

        return run

    kernel = register_kernel("test_fragile", "array")(prepare)
    yield failing
    ops.remove(made)
    kernels.remove(kernel)


@pytest.mark.parametrize("error", [ValueError("broken"), KeyError("Y"), MemoryError("none left")])
def test_errors_are_the_interpreters(fragile: list[Exception], error: Exception) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = layers.data("x", [2], append_batch_size=False)
        y = x.block.create_var(name="y", shape=[2], dtype="float32")
        x.block.append_op("test_fragile", {"X": layers.relu(x)}, {"Out": y})
        texts = []
        for mode in ("interpreted", "compiled"):
            exe = fluid.Executor("cpu", mode=mode)
            feed = {"x": np.ones(2, "float32")}
            exe.run(feed=feed, fetch_list=[y])
            fragile.append(error)
            with pytest.raises((DeviceError, OutOfMemoryError), match=r"test_fragile \(test_bind.py:\d+") as caught:
                exe.run(feed=feed, fetch_list=[y])
            texts.append(str(caught.value))
            assert exe.run(feed=feed, fetch_list=[y])[0].tolist() == [1, 1]
    assert texts[0] == texts[1]
    assert not last(exe).busy


def test_an_index_out_of_range_spoils_no_state(place: str) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        ids = layers.data("ids", [1], dtype="int64")
        loss = layers.mean(layers.embedding(ids, [5, 4], param_attr="table"))
        fluid.optimizer.SGD(0.1).minimize(loss)
        exe, scope = fluid.Executor(place, mode="compiled", fallback="allow"), fluid.Scope()
        exe.run(fluid.default_startup_program(), scope=scope)
        main, good = fluid.default_main_program(), {"ids": np.array([[1], [2]])}
        exe.run(main, good, [loss], scope=scope)
        before = scope.find_var("table").get_tensor().numpy().copy()
        with pytest.raises(OutOfRangeError, match=r"lookup_table.*9 is out of range"):
            exe.run(main, {"ids": np.array([[1], [9]])}, [loss], scope=scope)
        np.testing.assert_array_equal(scope.find_var("table").get_tensor().numpy(), before)
        exe.run(main, good, [loss], scope=scope)
        assert (scope.find_var("table").get_tensor().numpy() != before).any()


def test_out_of_memory_and_on() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = layers.data("x", [-1], append_batch_size=False)
        y = layers.mean(layers.cumsum(layers.cumsum(x)))
        exe = plainly("cpu")
        exe.run(feed={"x": np.ones(100, "float32")}, fetch_list=[y])
        now = memory.stats("cpu")
        memory.set_limit("cpu", now.used + now.padding + (1 << 20))
        try:
            with pytest.raises(OutOfMemoryError, match="out of memory on cpu:0"):
                exe.run(feed={"x": np.ones(1 << 20, "float32")}, fetch_list=[y])
        finally:
            memory.set_limit("cpu", None)
        assert exe.run(feed={"x": np.ones(1, "float32")}, fetch_list=[y])[0] == 1


# Who looks on, calls back, or goes piecewise -------------------------------------------------------------------------


def test_observers_see_each_operator() -> None:
    main, startup, feed, wanted = network()
    exe, scope = fluid.Executor("cpu", mode="compiled"), fluid.Scope()
    exe.run(startup, scope=scope)
    exe.run(main, feed, wanted, scope=scope)
    seen: list[str] = []
    with fluid.debug(on_op=lambda op, io: seen.append(op.type)):
        exe.run(main, feed, wanted, scope=scope)
    assert seen == [op.type for op in main.global_block().ops]
    with pytest.raises(FluidError, match="NaN"), fluid.debug(check_nan=True):
        exe.run(main, {"x": np.full((16, 64), np.nan, "float32")}, wanted, scope=scope)


def test_an_operator_that_runs_the_same_program_again() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = layers.data("x", [2], append_batch_size=False)
        y = layers.scale(x, 2.0)
        main, exe, depth = fluid.default_main_program(), fluid.Executor("cpu", mode="compiled"), [0]
        out = main.global_block().create_var(name="out", shape=[2], dtype="float32")

        def again(value: Any) -> Any:
            depth[0] += 1
            if depth[0] < 3:
                exe.run(main, {"x": np.full(2, 100, "float32")}, [out])
            depth[0] -= 1
            return np.asarray(value)

        layers.py_func(again, y, out)
        z = layers.elementwise_add(out, y)
        for _ in range(3):
            assert exe.run(main, {"x": np.ones(2, "float32")}, [z])[0].tolist() == [4, 4]


def test_what_an_operator_keeps_stays() -> None:
    kept: list[Any] = []
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = layers.data("x", [3], append_batch_size=False)
        hidden = layers.scale(layers.scale(x, 2.0), 1.0)
        out = hidden.block.create_var(name="out", shape=[3], dtype="float32")

        def keep(value: Any) -> Any:
            kept.append(value.numpy())
            return value

        layers.py_func(keep, hidden, out)
        last_value = layers.scale(layers.tanh(layers.scale(out, 5.0)), 3.0)
        exe = fluid.Executor("cpu", mode="compiled")
        for k in range(4):
            exe.run(feed={"x": np.full(3, k, "float32")}, fetch_list=[last_value])
    assert [array.tolist() for array in kept] == [[2.0 * k] * 3 for k in range(4)]


def test_only_what_must_be_is_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where sizes depend on values, each stage is bound once its answer comes again."""
    interpreted: list[int] = []
    from fluidlite.compiler.executable import executable as module

    true_steps = module.run_stages
    monkeypatch.setattr(
        module, "run_stages", lambda frame: interpreted.append(len(frame.plan.steps)) or true_steps(frame)
    )
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = layers.data("x", [6], append_batch_size=False)
        positive = layers.where(layers.greater_than(layers.scale(x, 2.0), layers.fill_constant([1], "float32", 0.0)))
        total = layers.reduce_sum(layers.scale(layers.cast(positive, "float32"), 3.0))
        exe = plainly("cpu")
        answers = []
        for values in ([1, -1, 1, 1, -1, -1], [1, 1, 1, -1, -1, -1], [-1, -1, -1, 1, 1, 1], [1, 1, 1, 1, 1, 1]):
            answers.append(exe.run(feed={"x": np.float32(values)}, fetch_list=[total])[0].item())
    assert answers == [15, 9, 36, 45]
    assert len(interpreted) == 2  # three elements at first, and six


def test_threads_have_memory_of_their_own() -> None:
    main, startup, _, wanted = network()
    exe = fluid.Executor("cpu", mode="compiled")
    answers: dict[int, list[float]] = {}

    def train(number: int) -> None:
        scope = fluid.Scope()
        exe.run(startup, scope=scope)
        feed = {"x": fed(16, 64) * (number + 1)}
        answers[number] = [exe.run(main, feed, wanted, scope=scope)[0].item() for _ in range(20)]

    threads = [threading.Thread(target=train, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = dict(answers)
    for number in range(4):
        train(number)
        assert answers[number] == together[number]


def test_computations_share_state(transformer: Transformer) -> None:
    x = ng.placeholder((-1, 2))
    w = ng.variable((2, 1), initial_value=1.0)
    update = ng.assign(w, w * 2)
    double, read = transformer.computation(update), transformer.computation(ng.sum(x @ w), x)
    for k in range(4):
        assert read(np.ones((3, 2))) == 6 * 2**k
        double()
    assert read(np.ones((5, 2))) == 160
    planned = read.memory_plan.planned
    assert planned > 0


@pytest.mark.parametrize("seed", [203, 211, 219])
def test_a_mode_that_is_none(seed: int) -> None:
    with pytest.raises(FluidError, match="expected one of interpreted, compiled"):
        fluid.Executor("cpu", mode="fast")
    one, _, _ = runs(random_program(seed), "cpu", "compiled", 2)
    two, _, _ = runs(random_program(seed), "cpu", "interpreted", 2)
    for a, b in zip(one, two, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5)
