"""The planner: which kernel, where, what moves, and what stays at home."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import Library, register_kernel
from fluidlite.base.errors import FallbackWarning, FeedError, KernelNotFoundError, ProgramError, RegistryError
from fluidlite.platform.context_pool import get_context
from fluidlite.program.kernel_registry import kernels

sys.path.append(str(Path(__file__).parents[1] / "plugins"))
from fake_device import FakeDevice, installed

from fluidlite.plugin import Execution, Inference, Lowering

layers = fluid.layers


@pytest.fixture
def fake() -> Iterator[str]:
    """A place without any capability but memory."""
    fluid.places()
    with installed(FakeDevice()) as device:
        yield device.kind


def relu_program() -> tuple[Any, Any]:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = layers.data("x", [3])
        y = layers.tanh(layers.relu(x))
    return program, y


FEED = {"x": np.asarray([[-1, 0, 2]], "float32")}


# --- fallback --------------------------------------------------------------------------------------------------------


def test_the_policy_warn_warns_once_a_program_with_the_count(fake: str) -> None:
    program, y = relu_program()
    exe = fluid.Executor(fake)
    with pytest.warns(
        FallbackWarning, match=rf"2 of 2 operators have no kernel for {fake}:0 and run on cpu:0: relu, tanh"
    ) as caught:
        exe.run(program, FEED, [y])
        exe.run(program, FEED, [y])
    assert len(caught) == 1
    assert caught[0].filename.endswith("test_planner.py")


def test_the_policy_allow_is_silent(fake: str) -> None:
    program, y = relu_program()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for exe in (fluid.Executor(fake, fallback="allow"), fluid.Executor("cpu")):
            np.testing.assert_allclose(exe.run(program, FEED, [y])[0], np.tanh([[0, 0, 2]]), rtol=1e-6)


def test_the_policy_error_names_operator_line_and_reasons(fake: str) -> None:
    program, y = relu_program()
    fluid.set_fallback("error")
    with pytest.raises(KernelNotFoundError) as caught:
        fluid.Executor(fake).run(program, FEED, [y])
    text = str(caught.value)
    assert f"relu cannot run on {fake}:0; fallback is 'error'." in text
    assert f"native: no kernel is registered for {fake}" in text
    assert f"generated: {fake} has neither array namespace nor kernel language" in text
    assert 'Do: fluid.set_fallback("warn")' in text
    assert "At: test_planner.py:" in text
    fluid.Executor(fake, fallback="allow").run(program, FEED, [y])  # an executor's own policy wins
    with pytest.raises(KernelNotFoundError):
        fluid.explain(program, fake)


def test_a_wrong_policy() -> None:
    with pytest.raises(RegistryError, match="fallback is 'maybe'; expected one of error, warn, allow"):
        fluid.set_fallback("maybe")


# --- libraries -------------------------------------------------------------------------------------------------------


def matmul_library(**options: Any) -> str:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = layers.data("x", [2, 2], append_batch_size=False)
        y = layers.matmul(x, x)
    exe = fluid.Executor("cpu", **options)
    exe.run(program, {"x": np.eye(2, dtype="float32")}, [y])
    return str(exe.explain_last().data()[0]["library"])


def test_library_preference() -> None:
    if "blas" not in {library.name for library in kernels.libraries()} or matmul_library() != "blas":
        pytest.skip("NumPy's wheel has no cblas here")
    assert (
        matmul_library(libraries={"cpu": ["plain"]}) == "array"
    )  # the expression: no library of the plain kernels has it
    assert matmul_library(libraries={"cpu": ["blas", "plain"]}) == "blas"
    fluid.set_libraries("cpu", ["plain"])
    try:
        assert matmul_library() == "array"
        assert matmul_library(libraries={"cpu": ["blas"]}) == "blas"
    finally:
        fluid.set_libraries("cpu", [])
    assert matmul_library() == "blas"


def test_an_unknown_library() -> None:
    with pytest.raises(RegistryError, match=r"no library is called 'mkl'; there are .*plain"):
        fluid.set_libraries("cpu", ["mkl"])


def count(results: list[str], name: str) -> Any:
    def prepare(call: Any, context: Any) -> Any:
        def run(context: Any, io: Any) -> None:
            results.append(name)
            io.array("Out")[...] = np.maximum(io.array("X"), 0)

        return run

    return prepare


def test_the_highest_rank_wins_and_caches_watch_the_registry() -> None:
    program, y = relu_program()
    exe = fluid.Executor("cpu")
    ran: list[str] = []
    exe.run(program, FEED, [y])
    assert exe.explain_last().data()[0]["how"] == "generated"
    low, high = Library("test_low", ("cpu",), 5), Library("test_high", ("cpu",), 50)
    added = []
    try:
        for library in (low, high):
            kernels.add_library(library)
            added.append(register_kernel("relu", "cpu", library=library.name)(count(ran, library.name)))
            exe.run(program, FEED, [y])
        assert ran == ["test_low", "test_high"]
        assert [row["how"] for row in exe.explain_last().data()] == ["native", "generated"]
        fluid.Executor("cpu", libraries={"cpu": ["test_low"]}).run(program, FEED, [y])
        assert ran[-1] == "test_low"
    finally:
        for kernel in added:
            kernels.remove(kernel)
        for library in (low, high):
            kernels.remove_library(library)
    exe.run(program, FEED, [y])
    assert exe.explain_last().data()[0]["how"] == "generated"
    assert len(ran) == 3


def test_a_second_kernel_is_refused_unless_it_overrides() -> None:
    ran: list[str] = []
    one = register_kernel("tanh", "cpu", library="test_once")(count(ran, "one"))
    two = None
    try:
        with pytest.raises(
            RegistryError,
            match=r"operator 'tanh' on cpu with .*'test_once' is registered twice: at .*test_planner.py:\d+ and at",
        ):
            register_kernel("tanh", "cpu", library="test_once")(lambda call, context: None)
        two = register_kernel("tanh", "cpu", library="test_once", override=True)(count(ran, "two"))
        program, y = relu_program()
        fluid.Executor("cpu", libraries={"cpu": ["test_once"]}).run(program, FEED, [y])
        assert ran == ["two"]
    finally:
        for kernel in filter(None, (one, two)):
            kernels.remove(kernel)


def test_a_refusal_is_shown_with_its_reason() -> None:
    kernel = register_kernel("relu", "cpu", library="test_picky", supports=lambda call: "it is Tuesday")(
        lambda call, context: None
    )
    try:
        program, _ = relu_program()
        text = fluid.explain(program, "cpu").text(refused=True)
        assert "not native test_picky: it is Tuesday" in text
    finally:
        kernels.remove(kernel)


def test_a_kernel_that_returns_nonsense_is_a_clear_error() -> None:
    program, y = relu_program()
    exe = fluid.Executor("cpu")
    returns: dict[str, Any] = {
        "expected run": lambda call, context: 3,
        "returned dims": lambda call, context: lambda context, io: np.zeros((7, 7), "float32"),
        "returned 2 arrays for 1 outputs": lambda call, context: lambda context, io: (np.zeros((1, 3), "float32"),) * 2,
        "ZeroDivisionError": lambda call, context: lambda context, io: 1 / 0,
    }
    for message, prepare in returns.items():
        kernel = register_kernel("relu", "cpu", library="test_wrong")(prepare)
        try:
            with pytest.raises(fluid.FluidError, match=message) as caught:
                exe.run(program, FEED, [y])
            assert "relu" in str(caught.value)
        finally:
            kernels.remove(kernel)
        np.testing.assert_allclose(exe.run(program, FEED, [y])[0], np.tanh([[0, 0, 2]]), rtol=1e-6)


# --- home ------------------------------------------------------------------------------------------------------------


def counter(guard: str | None = None) -> Any:
    program = fluid.Program()
    block = program.global_block()
    block.create_var("state", [2], "float32", persistable=True)
    with fluid.program_guard(program), fluid.device_guard(guard):
        block.append_op("scale", {"X": "state"}, {"Out": "state"}, {"bias": 1.0})
    return program


def test_a_persistable_that_is_written_elsewhere_comes_home(fake: str) -> None:
    program, scope = counter(), fluid.Scope()
    tensor = scope.var("state").get_tensor().set(np.zeros(2, "float32"), fake)
    exe = fluid.Executor(fake, fallback="allow")
    for _ in range(3):
        exe.run(program, scope=scope)
    assert str(tensor.place) == f"{fake}:0"
    assert tensor.numpy().tolist() == [3, 3]
    assert [(m["from"], m["to"], m["why"]) for m in exe.explain_last().data()[0]["moves"]] == [
        (f"{fake}:0", "cpu:0", "transfer"), ("cpu:0", f"{fake}:0", "home"),
    ]  # fmt: skip


def test_coming_home_writes_into_the_same_memory(fake: str) -> None:
    program, scope = counter(), fluid.Scope()
    tensor = scope.var("state").get_tensor().set(np.zeros(2, "float32"), fake)
    held = tensor.allocation
    fluid.Executor(fake, fallback="allow").run(program, scope=scope)
    assert scope.find_var("state").get_tensor() is tensor  # type: ignore[union-attr]
    assert tensor.allocation is held


def test_a_device_guard_is_obeyed_and_state_comes_home(fake: str) -> None:
    program, scope = counter(guard=fake), fluid.Scope()
    tensor = scope.var("state").get_tensor().set(np.zeros(2, "float32"), "cpu")
    kernel = register_kernel("scale", fake, library="test_fake")(
        lambda call, context: (
            lambda context, io: context.copy_in(io.span("Out"), np.full(2, 7, "float32").data.cast("B"))
        )
    )
    try:
        exe = fluid.Executor("cpu")
        exe.run(program, scope=scope)
        assert exe.explain_last().data()[0]["place"] == f"{fake}:0"
        assert str(tensor.place) == "cpu:0"
        assert tensor.numpy().tolist() == [7, 7]
    finally:
        kernels.remove(kernel)


def test_state_left_on_another_place_moves_home(fake: str) -> None:
    program, scope = counter(), fluid.Scope()
    tensor = scope.var("state").get_tensor().set(np.zeros(2, "float32"), fake)
    exe = fluid.Executor("cpu")
    exe.run(program, scope=scope)
    assert str(tensor.place) == "cpu:0"
    assert tensor.numpy().tolist() == [1, 1]
    assert [m["why"] for m in exe.explain_last().data()[0]["moves"]] == ["state"]
    exe.run(program, scope=scope)
    assert exe.explain_last().plan.moves == []
    assert tensor.numpy().tolist() == [2, 2]


def test_a_value_moves_once_for_several_readers(fake: str) -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = layers.data("x", [3])
        one, two, three = layers.relu(x), layers.tanh(x), layers.exp(x)
    kernel = register_kernel("relu", fake, library="test_fake")(
        lambda call, context: lambda context, io: context.copy_in(io.span("Out"), bytes(12))
    )
    try:
        exe = fluid.Executor(fake, fallback="allow")
        exe.run(program, FEED, [one, two, three])
        assert [(m.name, str(m.target), m.why) for m in exe.explain_last().plan.moves] == [("x", f"{fake}:0", "feed")]
    finally:
        kernels.remove(kernel)


def test_a_pinned_operator_is_no_fallback(fake: str) -> None:
    fluid.set_fallback("error")
    definition = fluid.register_op(
        "test_pinned",
        Inference(lambda call: {"Out": call.spec("X")}),
        Execution(host_only="it reads a file"),
        inputs=("X",),
        outputs=("Out",),
    )
    kernel = register_kernel("test_pinned", "cpu")(
        lambda call, context: lambda context, io: io.array("Out").__setitem__(..., io.array("X") + 1)
    )
    try:
        program = fluid.Program()
        block = program.global_block()
        block.create_var("x", [2], "float32", is_data=True)
        block.append_op("test_pinned", {"X": "x"}, {"Out": block.create_var("out")})
        exe = fluid.Executor(fake)
        assert exe.run(program, {"x": np.zeros(2, "float32")}, ["out"])[0].tolist() == [1, 1]
        text = str(exe.explain_last())
        assert "pinned: it reads a file" in text
        assert "1 operators: 1 pinned" in text
    finally:
        kernels.remove(kernel)
        from fluidlite.program.registry import ops

        ops.remove(definition)


def test_a_pinned_operator_may_be_said_with_others(fake: str) -> None:
    from fluidlite.program.registry import ops

    def decompose(call: Any, build: Any) -> None:
        twice = build("scale", {"X": build.input("X")}, {"Out": build.temp()}, {"scale": 2.0})
        build("relu", {"X": twice}, {"Out": build.output("Out")})

    definition = fluid.register_op(
        "test_pinned_parts",
        Inference(lambda call: {"Out": call.spec("X")}),
        Execution(host_only="it reads a file"),
        Lowering(decompose=decompose),
        inputs=("X",),
        outputs=("Out",),
    )
    try:
        program = fluid.Program()
        block = program.global_block()
        block.create_var("x", [2], "float32", is_data=True)
        block.append_op("test_pinned_parts", {"X": "x"}, {"Out": block.create_var("out")})
        for place in ("cpu", fake):
            exe = fluid.Executor(place, fallback="error")
            assert exe.run(program, {"x": np.asarray([3, -1], "float32")}, ["out"])[0].tolist() == [6, 0]
            assert "pinned  cpu:0  scale + relu" in str(exe.explain_last())
    finally:
        ops.remove(definition)


# --- what runs -------------------------------------------------------------------------------------------------------


def test_what_nobody_needs_is_pruned() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x, unfed = layers.data("x", [3]), layers.data("unfed", [3])
        y = layers.relu(x)
        layers.tanh(unfed)
    exe = fluid.Executor("cpu")
    exe.run(program, FEED, [y])
    assert (exe.explain_last().summary["operators"], exe.explain_last().summary["pruned"]) == (1, 1)


def test_read_before_write() -> None:
    program = fluid.Program()
    block = program.global_block()
    block.create_var("ghost", [2], "float32")
    block.append_op("relu", {"X": "ghost"}, {"Out": block.create_var("out")})
    with pytest.raises(
        ProgramError, match=r"operator relu \(test_planner.py:\d+.*'ghost' is read before anything writes it"
    ):
        fluid.Executor("cpu").run(program, fetch_list=["out"])


def test_a_feed_of_a_variable_in_the_middle() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = layers.data("x", [3])
        y = layers.relu(x)
        z = layers.scale(y, 2.0)
    given = {"x": FEED["x"], y.name: np.full((1, 3), 5, "float32")}
    for mode in ("compiled", "interpreted"):
        exe = fluid.Executor("cpu", mode=mode)
        with pytest.raises(
            FeedError, match=rf"'{y.name}' is fed, and operator relu \(test_planner.py:\d+.* computes it"
        ):
            exe.run(program, given, [z])
        with pytest.raises(FeedError, match="computes it before anything reads"):
            fluid.explain(program, "cpu", feed=given, fetch_list=[z], mode=mode)
        assert exe.run(program, {"x": FEED["x"]}, [z])[0].tolist() == [[0, 0, 4]]
        # nobody needs what computes it: the feed is all there is
        assert exe.run(program, given, [x])[0].tolist() == FEED["x"].tolist()


def test_a_feed_is_never_written(fake: str) -> None:
    program = fluid.Program()
    block = program.global_block()
    block.create_var("x", [3], "float32", is_data=True)
    block.append_op("relu", {"X": "x"}, {"Out": "x"})
    array = np.asarray([-1, 0, 2], "float32")
    array.flags.writeable = False
    assert fluid.Executor("cpu").run(program, {"x": array}, ["x"])[0].tolist() == [0, 0, 2]
    assert array.tolist() == [-1, 0, 2]
    writable = array.copy()
    fluid.Executor("cpu").run(program, {"x": writable}, ["x"])
    assert writable.tolist() == [-1, 0, 2]
    tensor = fluid.Tensor().set(array)
    fluid.Executor("cpu").run(program, {"x": tensor}, ["x"])
    assert tensor.numpy().tolist() == [-1, 0, 2]


def test_fetches_own_their_memory() -> None:
    program, y = relu_program()
    block = program.global_block()
    exe = fluid.Executor("cpu")
    (one,) = exe.run(program, FEED, [y])
    kept = one.copy()
    exe.run(program, {"x": FEED["x"] * 3}, [y])
    np.testing.assert_array_equal(one, kept)
    one[...] = 9
    (x,) = exe.run(program, FEED, [block.var("x")])
    x[...] = 5
    assert FEED["x"].tolist() == [[-1, 0, 2]]
    scope = fluid.Scope()
    tensor = scope.var("state").get_tensor().set(np.zeros(2, "float32"))
    (state,) = exe.run(counter(), fetch_list=["state"], scope=scope)
    state[...] = 77
    assert tensor.numpy().tolist() == [1, 1]


def test_a_variable_written_twice() -> None:
    program = fluid.Program()
    block = program.global_block()
    block.create_var("x", [3], "float32", is_data=True)
    for name in ("a", "b", "c"):
        block.create_var(name)
    block.append_op("scale", {"X": "x"}, {"Out": "a"}, {"scale": 2.0})
    block.append_op("scale", {"X": "a"}, {"Out": "b"}, {"bias": 1.0})
    block.append_op("scale", {"X": "x"}, {"Out": "a"}, {"scale": -1.0})
    block.append_op("elementwise_add", {"X": "a", "Y": "b"}, {"Out": "c"})
    x = np.asarray([1, 2, 3], "float32")
    a, b, c = fluid.Executor("cpu").run(program, {"x": x}, ["a", "b", "c"])
    np.testing.assert_array_equal(a, -x)
    np.testing.assert_array_equal(b, 2 * x + 1)
    np.testing.assert_array_equal(c, x + 1)


def test_the_plan_is_cached_by_dims_and_edits() -> None:
    program, y = relu_program()
    exe = fluid.Executor("cpu")
    exe.run(program, FEED, [y])
    plan = exe.explain_last().plan
    exe.run(program, FEED, [y])
    assert exe.explain_last().plan is plan
    exe.run(program, {"x": np.zeros((5, 3), "float32")}, [y])
    assert exe.explain_last().plan is not plan
    with fluid.program_guard(program):
        z = layers.scale(y, 2.0)
    assert exe.run(program, FEED, [z])[0].shape == (1, 3)


# --- explain ---------------------------------------------------------------------------------------------------------


def test_explain_before_is_what_ran_after(fake: str) -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x, label = layers.data("x", [4]), layers.data("label", [1], dtype="int64")
        loss = layers.mean(layers.softmax_with_cross_entropy(layers.fc(x, 3, act="relu"), label))
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    feed = {"x": np.ones((5, 4), "float32"), "label": np.zeros((5, 1), "int64")}
    for place in ("cpu", fake):
        with fluid.scope_guard(fluid.Scope()):
            exe = fluid.Executor(place, fallback="allow")
            fluid.set_fallback("allow")
            exe.run(startup)
            before = fluid.explain(main, place, {name: value.shape for name, value in feed.items()}, [loss])
            exe.run(main, feed, [loss])
            after = exe.explain_last()
            assert str(before) == str(after)
            assert before.data() == after.data()
            assert before.summary == after.summary
            assert before.html() == after.html()


def test_explain_without_dims() -> None:
    program, _ = relu_program()
    report = fluid.explain(program, "cpu")
    assert [row["op"] for row in report.data()] == ["relu", "tanh"]
    assert "Plan on cpu:0" in str(report)
    assert "2 operators: 2 generated" in report.summary_line()
    with pytest.raises(FeedError, match="explain's feed of 'x' is 'wide'"):
        fluid.explain(program, "cpu", {"x": "wide"})
    with pytest.raises(ProgramError, match="has no variable 'z'"):
        fluid.explain(program, "cpu", {"z": (1, 3)})


def test_explaining_changes_nothing(fake: str) -> None:
    program, y = relu_program()
    context = get_context(fake)
    context.counts.reset()
    fluid.set_fallback("allow")
    edits = program.edits
    fluid.explain(program, fake, {"x": (4, 3)}, [y])
    assert program.edits == edits
    assert (context.counts.copy_in, context.counts.copy_out) == (0, 0)


def test_explain_last_before_any_run() -> None:
    with pytest.raises(ProgramError, match="has run nothing yet"):
        fluid.Executor("cpu").explain_last()
