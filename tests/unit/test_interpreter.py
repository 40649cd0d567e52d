"""The interpreter: memory, in-place updates, workspaces, plain kernels, and errors on the way."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import memory, register_kernel
from fluidlite.base.errors import DeviceError, FetchError, OutOfMemoryError
from fluidlite.plugin import Prepared
from fluidlite.program.kernel_registry import kernels

layers = fluid.layers


@pytest.fixture
def kernel() -> Iterator[Callable[..., Any]]:
    """``kernel(op, function, **options)`` registers one for the test."""
    made = []

    def add(op: str, function: Any, **options: Any) -> None:
        made.append(register_kernel(op, "cpu", library="test_mine", **options)(function))

    yield add
    for each in made:
        kernels.remove(each)


def chain(length: int, width: int = 1000) -> tuple[Any, Any]:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        value = layers.data("x", [width])
        for _ in range(length):
            value = layers.scale(value, 1.0, bias=1.0)
    return program, value


def test_scalars_are_recycled() -> None:
    program = fluid.Program()
    block = program.global_block()
    value = one = block.create_var("x", shape=[], dtype="float32", is_data=True)
    for i in range(5):
        out = block.create_var(f"o{i}")
        block.append_op("elementwise_add", {"X": value, "Y": one}, {"Out": out})
        value = out
    exe = fluid.Executor("cpu")
    for _ in range(3):  # the second run finds what the first one kept
        (result,) = exe.run(program, {"x": np.float32(2)}, [value])
        assert result.shape == () and result == 12


def test_intermediates_are_freed_after_their_last_reader() -> None:
    program, result = chain(30)
    exe = fluid.Executor("cpu")
    feed = {"x": np.zeros((8, 1000), "float32")}
    exe.run(program, feed, [result])
    gc.collect()
    memory.reset_peak("cpu")
    before = memory.used("cpu")
    (out,) = exe.run(program, feed, [result])
    assert out[0, 0] == 30
    assert memory.peak("cpu") - before <= 4 * 32_000  # not 30 of them
    assert memory.used("cpu") <= before + 2 * 32_000


def test_a_run_leaves_no_memory_behind_even_when_it_fails(kernel: Any) -> None:
    program, result = chain(3)
    with fluid.program_guard(program):
        result = layers.relu(result)
    exe = fluid.Executor("cpu")
    feed = {"x": np.zeros((2, 1000), "float32")}
    exe.run(program, feed, [result])
    gc.collect()
    before = memory.stats("cpu").live

    def broken(call: Any, context: Any) -> Any:
        def run(context: Any, io: Any) -> None:
            io.array("Out")
            raise LookupError("no table")

        return run

    kernel("relu", broken)
    for _ in range(5):
        with pytest.raises(
            DeviceError,
            match=r"operator relu \(test_interpreter.py:\d+, layers.relu\) failed on cpu:0: LookupError: no table",
        ):
            exe.run(program, feed, [result])
    gc.collect()
    assert memory.stats("cpu").live <= before + 2


def test_a_memory_error_inside_a_kernel_is_out_of_memory(kernel: Any) -> None:
    def greedy(call: Any, context: Any) -> Any:
        def run(context: Any, io: Any) -> None:
            raise MemoryError("1 TiB")

        return run

    kernel("scale", greedy)
    program, result = chain(1)
    with pytest.raises(OutOfMemoryError, match=r"operator scale \(.*out of memory: 1 TiB"):
        fluid.Executor("cpu").run(program, {"x": np.zeros((1, 1000), "float32")}, [result])


def test_an_interrupt_passes_and_the_next_run_works(kernel: Any) -> None:
    answers: list[Any] = [KeyboardInterrupt, None]

    def interrupted(call: Any, context: Any) -> Any:
        def run(context: Any, io: Any) -> None:
            answer = answers.pop(0)
            if answer is not None:
                raise answer
            io.array("Out")[...] = io.array("X")

        return run

    kernel("scale", interrupted)
    program, result = chain(1)
    exe = fluid.Executor("cpu")
    feed = {"x": np.ones((1, 1000), "float32")}
    with pytest.raises(KeyboardInterrupt):
        exe.run(program, feed, [result])
    assert exe.run(program, feed, [result])[0].sum() == 1000


def test_a_prepared_kernel_is_prepared_once_for_the_same_call(kernel: Any) -> None:
    prepared = []

    def counted(call: Any, context: Any) -> Any:
        prepared.append(call.dims("X"))

        def run(context: Any, io: Any) -> Any:
            return io.array("X") + 1

        return run

    kernel("scale", counted)
    program, result = chain(5, width=3)
    exe = fluid.Executor("cpu")
    for rows in (1, 2, 1, 2):
        (out,) = exe.run(program, {"x": np.zeros((rows, 3), "float32")}, [result])
        assert (out == 5).all()
    assert prepared == [(1, 3), (2, 3)]


def test_a_workspace_has_the_bytes_that_were_asked_for(kernel: Any) -> None:
    seen = []

    def needy(call: Any, context: Any) -> Any:
        def run(context: Any, io: Any) -> None:
            seen.append((io.workspace.dims, io.workspace.dtype))
            io.workspace.array()[...] = 255
            io.array("Out")[...] = io.array("X")

        return Prepared(run, workspace=12_345)

    kernel("scale", needy)
    program, result = chain(2)
    (out,) = fluid.Executor("cpu").run(program, {"x": np.ones((1, 1000), "float32")}, [result])
    assert seen == [((12_345,), "uint8")] * 2
    assert out.sum() == 1000


def attributed(call: Any, context: Any) -> Any:
    def run(context: Any, io: Any) -> None:
        """Do nothing."""

    run.workspace = 12_345  # type: ignore[attr-defined]
    return run


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        (attributed, r"Do: return Prepared\(run, workspace=\.\.\., bind=\.\.\.\)"),
        (lambda call, context: None, "prepared None; expected run"),
        (lambda call, context: Prepared(print, workspace=-1), "-1 bytes of workspace; expected 0 or more"),
        (lambda call, context: Prepared(print, workspace=1.5), "1.5 bytes"),
    ],
)
@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_what_a_kernel_prepares_is_checked(kernel: Any, prepare: Any, expected: str, mode: str) -> None:
    """A size that nobody looks at would be a workspace that is missing."""
    kernel("scale", prepare)
    program, result = chain(2)
    exe = fluid.Executor("cpu", mode=mode)
    for _ in range(2):
        with pytest.raises(fluid.FluidError, match=expected) as error:
            exe.run(program, {"x": np.ones((1, 1000), "float32")}, [result])
        assert "test_interpreter.py" in str(error.value)


def test_the_plain_form_of_a_kernel(kernel: Any) -> None:
    def plain(ctx: Any) -> None:
        x, out = ctx.input("X"), ctx.output("Out")
        out.mutable_data(ctx.place)[...] = x.data() * ctx.attr("scale")

    kernel("scale", plain)
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        result = layers.scale(layers.data("x", [3]), 5.0)
    exe = fluid.Executor("cpu")
    assert exe.run(program, {"x": np.ones((1, 3), "float32")}, [result])[0].tolist() == [[5, 5, 5]]
    assert exe.explain_last().data()[0]["library"] == "test_mine"


def test_state_is_updated_in_place() -> None:
    program = fluid.Program()
    block = program.global_block()
    for name in ("p", "lr"):
        block.create_var(name, [3] if name == "p" else [1], "float32", persistable=True)
    block.create_var("g", [3], "float32", is_data=True)
    block.append_op("sgd", {"Param": "p", "Grad": "g", "LearningRate": "lr"}, {"ParamOut": "p"})
    scope = fluid.Scope()
    p = scope.var("p").get_tensor().set(np.ones(3, "float32"))
    scope.var("lr").get_tensor().set(np.full(1, 0.5, "float32"))
    view, held, version = p.numpy(), p.allocation, p.version
    exe = fluid.Executor("cpu")
    for _ in range(2):
        exe.run(program, {"g": np.ones(3, "float32")}, scope=scope)
    assert p.allocation is held
    assert view.tolist() == [0, 0, 0]
    assert p.version > version


def test_sharing_state_with_another_scope_is_seen() -> None:
    program = fluid.Program()
    block = program.global_block()
    block.create_var("w", [2], "float32", persistable=True)
    block.append_op("scale", {"X": "w"}, {"Out": block.create_var("out")}, {"scale": 3.0})
    one, two = fluid.Scope(), fluid.Scope()
    tensor = one.var("w").get_tensor().set(np.ones(2, "float32"))
    two.var("w").get_tensor().share_data_with(tensor)
    tensor[...] = 5.0
    assert fluid.Executor("cpu").run(program, fetch_list=["out"], scope=two)[0].tolist() == [15, 15]


def test_strided_state_and_feeds_are_made_contiguous() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        result = layers.scale(layers.data("x", [3]), 2.0)
    exe = fluid.Executor("cpu")
    array = np.arange(12, dtype="float32").reshape(4, 3)
    for feed in (
        array[::2],
        np.asfortranarray(array),
        fluid.Tensor().set(np.arange(24, dtype="float32").reshape(4, 6))[:, ::2],
    ):
        wanted = (feed.numpy() if isinstance(feed, fluid.Tensor) else feed) * 2
        np.testing.assert_array_equal(exe.run(program, {"x": feed}, [result])[0], wanted)


def test_a_strided_view_in_a_scope_is_read_right() -> None:
    program = fluid.Program()
    block = program.global_block()
    block.create_var("w", [4], "float32", persistable=True)
    block.append_op("scale", {"X": "w"}, {"Out": block.create_var("out")}, {"scale": 2.0})
    scope = fluid.Scope()
    whole = fluid.Tensor().set(np.arange(8, dtype="float32").reshape(4, 2))
    scope.var("w").get_tensor().share_data_with(whole[:, 1])
    assert fluid.Executor("cpu").run(program, fetch_list=["out"], scope=scope)[0].tolist() == [2, 6, 10, 14]


def test_lod_travels_and_needs_return_numpy_false() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        result = layers.relu(layers.data("x", [2], lod_level=1))
    exe = fluid.Executor("cpu")
    feed = {"x": fluid.create_lod_tensor(np.ones((5, 2), "float32"), [[2, 3]], fluid.CPUPlace())}
    with pytest.raises(
        FetchError, match=r"holds LoD of 1 level.*2 sequences.*\n  Do: exe.run\(..., return_numpy=False\)"
    ):
        exe.run(program, feed, [result])
    (tensor,) = exe.run(program, feed, [result], return_numpy=False)
    assert tensor.lod() == [[0, 2, 5]]
    assert tensor.recursive_sequence_lengths() == [[2, 3]]
    assert tensor.numpy().sum() == 10


def test_a_fetched_tensor_outlives_the_executor() -> None:
    program, result = chain(1)
    exe = fluid.Executor("cpu")
    (tensor,) = exe.run(program, {"x": np.ones((1, 1000), "float32")}, [result], return_numpy=False)
    exe.close()
    del exe
    gc.collect()
    assert tensor.numpy().sum() == 2000
    assert tensor.to("cpu") is tensor


def test_runs_do_not_touch_earlier_fetches() -> None:
    program, result = chain(4)
    exe = fluid.Executor("cpu")
    found = [exe.run(program, {"x": np.full((2, 1000), number, "float32")}, [result])[0] for number in range(5)]
    assert [float(array[0, 0]) for array in found] == [4, 5, 6, 7, 8]
    assert all((array == array[0, 0]).all() for array in found)
