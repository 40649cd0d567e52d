"""Sizes that depend on values: a plan pauses, the host looks, and the rest is planned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import OutOfRangeError, ShapeError
from fluidlite.plugin import Execution, Inference
from fluidlite.program.kernel_registry import kernels, register_kernel
from fluidlite.program.opdef import Slot
from fluidlite.program.registry import ops, register_op
from fluidlite.tensor.tensor_spec import Spec

layers = fluid.layers
PLACES = [str(place) for place in fluid.places()]


def _infer_first(call: Any) -> Any:
    value = call.value("N")
    return {"Out": Spec.of((-1 if value is None else value[0], *call.dims("X")[1:]), call.dtype("X"))}


@pytest.fixture(autouse=True)
def operators() -> Iterator[None]:
    """``test_first``: the first N rows. ``test_positive``: the elements that are above 0."""
    fluid.places()
    made = [
        register_op("test_first", Inference(_infer_first), inputs=("X", Slot("N", value=True)), outputs=("Out",)),
        register_op(
            "test_positive",
            Inference(lambda call: {"Out": Spec.of((-1,), call.dtype("X"))}, dynamic=True),
            Execution(host_only="a test"),
            inputs=("X",),
            outputs=("Out",),
        ),
    ]

    def first(call: Any, context: Any) -> Any:
        rows = call.value("N")[0]

        def run(context: Any, io: Any) -> None:
            io.array("Out")[...] = io.array("X")[:rows]

        return run

    def positive(call: Any, context: Any) -> Any:
        def run(context: Any, io: Any) -> None:
            x = io.array("X")
            io.resize("Out", (int((x > 0).sum()),))
            io.array("Out")[...] = x[x > 0]

        return run

    own = [register_kernel("test_first", "array", "cpu")(first), register_kernel("test_positive", "array")(positive)]
    yield
    for op in made:
        ops.remove(op)
    for kernel in own:
        kernels.remove(kernel)


def build(n: Any = None) -> tuple[Any, Any]:
    """Scale x, keep n rows, scale again, keep what is positive, scale again."""
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        block = program.global_block()
        x = layers.scale(layers.data("x", [2]), 2.0)
        n = layers.data("n", [1], append_batch_size=False, dtype="int64") if n is None else n()
        some, few = block.create_var("some"), block.create_var("few")
        block.append_op("test_first", {"X": x, "N": n}, {"Out": some})
        tripled = layers.scale(some, 3.0)
        block.append_op("test_positive", {"X": tripled}, {"Out": few})
        return program, layers.scale(few, 0.5)


X = np.array([[1, -1], [2, 3], [-4, 5]], "float32")
ANSWERS = {1: [3], 2: [3, 6, 9], 3: [3, 6, 9, 15]}


@pytest.mark.parametrize("place", PLACES)
def test_sizes_follow_the_values(place: str) -> None:
    program, result = build()
    exe = fluid.Executor(place, fallback="allow")
    for n in (1, 3, 2, 1, 3):
        (out,) = exe.run(program, {"x": X, "n": np.array([n])}, [result])
        assert out.tolist() == ANSWERS[n]


def test_dims_are_open_when_the_program_is_built() -> None:
    program, result = build()
    assert result.shape == (-1,)
    assert program.global_block().var("some").shape == (-1, 2)


def test_the_same_answers_are_planned_once() -> None:
    program, result = build()
    exe = fluid.Executor("cpu")
    plans = []
    for n in (1, 2, 1):
        exe.run(program, {"x": X, "n": np.array([n])}, [result])
        plans.append(exe._runner.last)
    assert plans[0] is plans[2] is not plans[1]


def test_a_value_that_metadata_tells_needs_no_look() -> None:
    def two() -> Any:
        return layers.fill_constant([1], "int64", 2)

    program, result = build(two)
    exe = fluid.Executor("cpu")
    assert exe.run(program, {"x": X}, [result])[0].tolist() == ANSWERS[2]
    first = exe._runner.last
    assert first is not None
    assert first.before is not None
    assert first.before.before is None  # one pause: for the positive ones; none for the rows
    assert "value" not in [move.why for move in first.moves]


def test_a_value_that_is_overwritten_is_read_again() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        block = program.global_block()
        x, n = layers.data("x", [2]), layers.fill_constant([1], "int64", 1)
        outs = [block.create_var("one"), block.create_var("two")]
        block.append_op("test_first", {"X": x, "N": n}, {"Out": outs[0]})
        layers.increment(n)
        block.append_op("test_first", {"X": x, "N": n}, {"Out": outs[1]})
    one, two = fluid.Executor("cpu").run(program, {"x": X}, outs)
    assert (one.shape, two.shape) == ((1, 2), (2, 2))


def test_explain_leaves_dims_open_before_and_tells_all_after() -> None:
    program, result = build()
    report = fluid.explain(program, "cpu", feed={"x": (3, 2)}, fetch_list=[result])
    assert report.summary["operators"] == 5
    exe = fluid.Executor("cpu")
    exe.run(program, {"x": X, "n": np.array([2])}, [result])
    after = exe.explain_last()
    assert [row["op"] for row in after.data()] == ["scale", "test_first", "scale", "test_positive", "scale"]
    assert after.summary["fetches"] == 1


@pytest.mark.parametrize("place", PLACES)
def test_a_late_error_comes_before_the_look(place: str) -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        block = program.global_block()
        x = layers.data("x", [2])
        counts = layers.data("counts", [4], append_batch_size=False, dtype="float32")
        index = layers.data("i", [1], append_batch_size=False, dtype="int64")
        n, some = layers.cast(layers.gather(counts, index), "int64"), block.create_var("some")
        block.append_op("test_first", {"X": x, "N": n}, {"Out": some})
    feed = {"x": X, "counts": np.array([1, 2, 3, 0], "float32")}
    exe = fluid.Executor(place, fallback="allow")
    with pytest.raises(OutOfRangeError, match=r"gather.*index 9 is out of range"):
        exe.run(program, {**feed, "i": np.array([9])}, [some])
    assert exe.run(program, {**feed, "i": np.array([1])}, [some])[0].shape == (2, 2)


def test_state_that_only_the_rest_writes_is_kept() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        block = program.global_block()
        block.create_var("count", [1], "float32", persistable=True)
        few = block.create_var("few")
        block.append_op("test_positive", {"X": layers.data("x", [2])}, {"Out": few})
        total = layers.reduce_sum(few)
        layers.sums([total, block.var("count")], out=block.var("count"))
    scope, exe = fluid.Scope(), fluid.Executor("cpu")
    scope.var("count").get_tensor().set(np.zeros(1, "float32"))
    for _ in range(2):
        exe.run(program, {"x": X}, scope=scope)
    assert scope.var("count").get_tensor().numpy().tolist() == [22]


def test_an_error_in_the_rest_leaves_the_executor_working() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        block = program.global_block()
        x, n = layers.data("x", [2]), layers.data("n", [1], append_batch_size=False, dtype="int64")
        some = block.create_var("some")
        block.append_op("test_first", {"X": x, "N": n}, {"Out": some})
        fixed = layers.data("fixed", [2, 2], append_batch_size=False)
        result = layers.elementwise_add(some, fixed)
    exe, fixed_value = fluid.Executor("cpu"), np.zeros((2, 2), "float32")
    with pytest.raises(ShapeError, match="elementwise_add"):
        exe.run(program, {"x": X, "n": np.array([3]), "fixed": fixed_value}, [result])
    (out,) = exe.run(program, {"x": X, "n": np.array([2]), "fixed": fixed_value}, [result])
    assert out.tolist() == X[:2].tolist()


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
def test_a_later_stage_updates_state_that_an_earlier_one_moved(place: str) -> None:
    """Where a table is looked up and updated on another place: it is moved there once, and written in place there."""
    losses = []
    for where, mode in ((place, "compiled"), ("cpu", "interpreted")):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            fluid.default_startup_program().random_seed = 1
            ids = fluid.layers.data("ids", [4], dtype="int64")
            end = fluid.layers.data("end", [1], dtype="int64", append_batch_size=False)
            rows = fluid.layers.slice(fluid.embedding(ids, [9, 3]), axes=[1], starts=[0], ends=[end])
            loss = fluid.layers.mean(fluid.layers.reduce_sum(rows * rows, dim=1))
            fluid.optimizer.Adam(0.1).minimize(loss)
            exe = fluid.Executor(where, mode=mode, fallback="allow")
            with fluid.scope_guard(fluid.Scope()):
                exe.run(fluid.default_startup_program())
                feeds = [{"ids": np.arange(8).reshape(2, 4), "end": np.array([2 + i % 2])} for i in range(4)]
                losses.append([exe.run(feed=feed, fetch_list=[loss])[0].item() for feed in feeds])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
