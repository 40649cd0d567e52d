"""Layouts of values between kernels that name one: rearrangements and their bytes, on every place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.compiler.passes import AssignLayouts, PassList, default_passes
from fluidlite.compiler.planning.min_cut import SINK, SOURCE, FlowNetwork
from fluidlite.compiler.planning.plan import Launch
from fluidlite.plugin import KernelOptions
from fluidlite.program.kernel_registry import Library, kernels, register_kernel
from fluidlite.render.loops import kernels as loop_kernels

layers = fluid.layers
PLACES = ["cpu", pytest.param("opencl:0", marks=pytest.mark.opencl), "fpga:0"]
NHWC = {"Input": "NHWC", "Output": "NHWC"}
SEEN: list[str] = []


def convolve(x: Any, w: Any, stride: int, pad: int) -> Any:
    """A convolution in NumPy, with no kernel of ours."""
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    seen = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwij,mcij->nmhw", seen, w)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, require: Any) -> Iterator[str]:
    """A place where the kernel of conv2d wants channels to lie last, as a plugin would register it.

    It computes in NumPy; from other places it copies what it needs itself.
    """
    name = request.param
    require(name.split(":")[0])
    kind = name.split(":")[0]
    library = Library("last_first", (kind,), 50)

    def conv2d(call: Any, context: Any) -> Any:
        stride, pad = call.attr("strides")[0], call.attr("paddings")[0]

        def run(context: Any, io: Any) -> None:
            SEEN.append("conv2d")
            if kind == "cpu":
                x, out = io.array("Input"), io.array("Output")
                assert x.strides[1] == out.strides[1] == x.itemsize
                out[...] = convolve(x, io.array("Filter"), stride, pad)
                return
            n, c, h, w = call.dims("Input")
            image = np.empty((n, h, w, c), np.float32)
            filters = np.empty(call.dims("Filter"), np.float32)
            for array, slot in ((image, "Input"), (filters, "Filter")):
                context.copy_out(memoryview(array.reshape(-1).view(np.uint8)), io.span(slot))
            context.wait()
            out = convolve(image.transpose(0, 3, 1, 2), filters, stride, pad).transpose(0, 2, 3, 1)
            out = np.ascontiguousarray(out, np.float32)
            context.copy_in(io.span("Output"), memoryview(out.reshape(-1).view(np.uint8)))
            context.wait()

        return run

    kernels.add_library(library)
    kernel = register_kernel("conv2d", kind, library="last_first", options=KernelOptions(layouts=NHWC))(conv2d)
    SEEN.clear()
    yield name
    kernels.remove(kernel)
    kernels.remove_library(library)


def network(activation: str = "relu", bias: bool = False) -> Any:
    """conv, batch_norm, an activation, pool, conv."""
    x = layers.data("x", [3, 16, 16])
    y = layers.conv2d(x, 8, 3, padding=1, bias_attr=bias)
    y = layers.batch_norm(y, act=activation, is_test=True)
    y = layers.pool2d(y, 2, "max", 2)
    return layers.conv2d(y, 4, 3, padding=1, bias_attr=bias)


X = np.random.default_rng(0).standard_normal((2, 3, 16, 16), np.float32)


def run(place: str, result: Any, passes: Any = None, feed: Any = None) -> tuple[Any, list[int], Any]:
    """Run it; the result, the bytes of each rearrangement, and the executor."""
    exe = fluid.Executor(place, fallback="allow", mode="compiled", passes=passes)
    feed = {"x": X} if feed is None else feed
    (out,) = exe.run(fluid.default_main_program(), feed, [result])
    again = exe.run(fluid.default_main_program(), feed, [result])[0]
    np.testing.assert_array_equal(out, again)
    moves = [move for line in exe.explain_last().plan.lines for move in line.moves if move.why == "layout"]
    return out, [move.spec.nbytes for move in moves], exe


def started(place: str, result: Any) -> Any:
    fluid.Executor(place, fallback="allow").run(fluid.default_startup_program())
    return result


def without() -> PassList:
    return PassList(item for item in default_passes() if not isinstance(item, AssignLayouts))


IMAGE, WIDE, POOLED, LAST = 2 * 3 * 256 * 4, 2 * 8 * 256 * 4, 2 * 8 * 64 * 4, 2 * 4 * 64 * 4


@pytest.mark.parametrize("bias", [False, True])
def test_a_chain_is_rearranged_at_its_ends_only(place: str, bias: bool) -> None:
    result = started(place, network(bias=bias))
    expected, before, _ = run(place, result, without())
    found, after, _ = run(place, result)
    assert SEEN.count("conv2d") == 8
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5)
    assert before == [IMAGE, WIDE, POOLED, LAST]
    assert after == [IMAGE, LAST]


def test_the_pass_says_what_it_saved(place: str) -> None:
    result = started(place, network())
    passes = default_passes()
    (mine,) = [item for item in passes if isinstance(item, AssignLayouts)]
    _, moved, exe = run(place, result, passes)
    images = X.shape[0]  # the batch is open in the program, and counts as one
    assert mine.rearranged == (sum((IMAGE, WIDE, POOLED, LAST)) // images, sum(moved) // images)
    assert not any("op_layout" in op.hints for op in fluid.default_main_program().global_block().ops)
    assert "(layout)" in exe.explain_last().text()


def test_values_that_are_fetched_or_reshaped_are_plain_and_rearranged_once(place: str) -> None:
    x = layers.data("x", [3, 16, 16])
    y = layers.conv2d(x, 8, 3, padding=1, bias_attr=False)
    pooled = layers.pool2d(layers.relu(y), 2, "avg", 2)
    rows = layers.reshape(pooled, [-1, 8 * 64])
    result = started(place, layers.concat([rows, layers.reshape(layers.conv2d(pooled, 4, 3), [-1, 4 * 36])], 1))
    expected, before, _ = run(place, result, without())
    found, after, _ = run(place, result)
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5)
    assert sum(after) < sum(before)
    assert after == [IMAGE, POOLED, 2 * 4 * 36 * 4]  # pooled goes on in the layout, and plain to reshape


def test_nothing_is_laid_out_where_that_would_move_more(place: str) -> None:
    x = layers.data("x", [3, 16, 16])
    y = layers.pool2d(layers.conv2d(x, 8, 1, bias_attr=False), 2, "max", 1, pool_padding=1)
    result = started(place, layers.reduce_sum(y, dim=[2, 3]))
    expected, before, _ = run(place, result, without())
    found, after, _ = run(place, result)
    np.testing.assert_allclose(found, expected, 1e-4, 1e-4)
    assert before == after == [IMAGE, WIDE]  # the pooled image, 17 x 17, is larger


def test_both_sides_of_a_sum_agree(place: str) -> None:
    x = layers.data("x", [3, 16, 16])
    one = layers.conv2d(x, 8, 3, padding=1, bias_attr=False)
    other = layers.batch_norm(layers.conv2d(layers.tanh(x), 8, 1, bias_attr=False), is_test=True)
    total = layers.relu(layers.elementwise_add(layers.batch_norm(one, is_test=True), other))
    result = started(place, layers.conv2d(total, 4, 3, padding=1))
    expected, before, _ = run(place, result, without())
    found, after, _ = run(place, result)
    np.testing.assert_allclose(found, expected, 1e-4, 1e-4)
    assert sum(before) == 2 * IMAGE + 3 * WIDE + 4 * LAST
    assert sum(after) == IMAGE + 4 * LAST  # tanh reads what the first convolution does


def test_gradients_are_those_of_plain_memory(place: str) -> None:
    x = layers.data("x", [3, 16, 16])
    y = layers.batch_norm(layers.conv2d(x, 8, 3, padding=1), act="relu")
    y = layers.conv2d(layers.pool2d(y, 2, "max", 2), 4, 3, padding=1)
    loss = layers.mean(layers.square(y))
    fluid.optimizer.SGD(0.01).minimize(loss)
    found = []
    for passes in (without(), None):
        fluid.default_startup_program().random_seed = 3
        with fluid.scope_guard(fluid.Scope()):
            fluid.Executor(place, fallback="allow").run(fluid.default_startup_program())
            exe = fluid.Executor(place, fallback="allow", mode="compiled", passes=passes)
            found.append([exe.run(fluid.default_main_program(), {"x": X}, [loss])[0] for _ in range(3)])
    np.testing.assert_allclose(found[1], found[0], 1e-4)
    assert found[0][2] < found[0][0]


def test_random_numbers_stay_where_they_are(place: str) -> None:
    x = layers.data("x", [3, 16, 16])
    y = layers.dropout(layers.relu(layers.conv2d(x, 8, 3, padding=1, bias_attr=False)), 0.5, seed=7)
    result = started(place, layers.conv2d(y, 4, 3, padding=1, bias_attr=False))
    expected, before, _ = run(place, result, without())
    found, after, _ = run(place, result)
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5)
    assert before == after == [IMAGE, WIDE, WIDE, 4 * LAST]


def test_three_spatial_dims() -> None:
    layouts = {"Input": "NDHWC", "Output": "NDHWC"}

    def conv3d(call: Any, context: Any) -> Any:
        def run(context: Any, io: Any) -> None:
            x, out = io.array("Input"), io.array("Output")
            assert x.strides[1] == out.strides[1] == x.itemsize
            out[...] = np.einsum("ncdhw,mc->nmdhw", x, io.array("Filter")[:, :, 0, 0, 0])

        return run

    library = Library("last_first", ("cpu",), 50)
    kernels.add_library(library)
    kernel = register_kernel("conv3d", "cpu", library="last_first", options=KernelOptions(layouts=layouts))(conv3d)
    try:
        x = layers.data("x", [2, 4, 8, 8])
        y = layers.pool3d(layers.relu(layers.conv3d(x, 4, 1)), 2, "max", 2)
        result = started("cpu", layers.conv3d(y, 2, 1))
        feed = {"x": np.random.default_rng(1).standard_normal((3, 2, 4, 8, 8), np.float32)}
        expected, before, _ = run("cpu", result, without(), feed)
        found, after, _ = run("cpu", result, None, feed)
        np.testing.assert_allclose(found, expected, 1e-5, 1e-5)
        assert (len(before), len(after)) == (4, 2)
    finally:
        kernels.remove(kernel)
        kernels.remove_library(library)


def test_the_least_cut_is_the_least_of_all_cuts() -> None:
    rng = np.random.default_rng(5)
    for _ in range(60):
        cut, size = FlowNetwork(), 6
        nodes = [SOURCE, SINK, *(cut.node() for _ in range(size))]
        arcs = [(int(a), int(b), float(c)) for a, b, c in rng.integers(0, (size + 2, size + 2, 9), (18, 3)) if a != b]
        for tail, head, cost in arcs:
            cut.arc(tail, head, cost)

        def cost(others: set[int], arcs: list[tuple[int, int, float]] = arcs) -> float:
            return sum(c for tail, head, c in arcs if tail not in others and head in others)

        sides = [{SINK, *(n for i, n in enumerate(nodes[2:]) if bits >> i & 1)} for bits in range(1 << size)]
        least = min(map(cost, sides))
        found = cut.sink_side()
        assert cost(found) == least
        assert len(found) == min(len(side) for side in sides if cost(side) == least)


def test_ends_that_cannot_be_parted_are_an_error() -> None:
    cut = FlowNetwork()
    middle = cut.node()
    cut.arc(SOURCE, middle)
    cut.arc(middle, SINK)
    with pytest.raises(ValueError, match="cannot be parted"):
        cut.sink_side()


@pytest.mark.parametrize("place", ["cpu", pytest.param("opencl:0", marks=pytest.mark.opencl)])
def test_our_own_convolutions_prefer_channels_last(place: str, require: Any) -> None:
    require(place.split(":")[0])
    if fluid.platform.device_registry.devices.unit(place).language is None:
        pytest.skip(f"{place} has no kernel language")
    x = layers.data("x", [3, 32, 32])
    y = layers.conv2d(x, 16, 3, padding=1, act="relu")
    y = layers.pool2d(layers.batch_norm(layers.conv2d(y, 24, 3, padding=1), act="relu", is_test=True), 2, "max", 2)
    result = started(place, layers.pool2d(layers.conv2d(y, 16, 3), global_pooling=True, pool_type="avg"))
    feed = {"x": np.random.default_rng(2).standard_normal((4, 3, 32, 32), np.float32)}
    expected, before, _ = run(place, result, without(), feed)
    passes = default_passes()
    (mine,) = [item for item in passes if isinstance(item, AssignLayouts)]
    found, after, exe = run(place, result, passes, feed)
    np.testing.assert_allclose(found, expected, 1e-4, 1e-5)
    lines = [line for line in exe.explain_last().plan.lines if line.op.type.startswith("conv2d")]
    assert [line.choice.library for line in lines] == ["registers"] * 3  # type: ignore[union-attr]
    assert before == []
    assert after == [4 * 3 * 32 * 32 * 4, 4 * 16 * 4]  # what is fed, and one number a channel at the end
    assert mine.rearranged[1] < mine.rearranged[0] / 5


def test_one_convolution_alone_lays_out_itself() -> None:
    x = layers.data("x", [16, 32, 32])
    result = started("cpu", layers.conv2d(x, 16, 3))
    feed = {"x": np.random.default_rng(2).standard_normal((4, 16, 32, 32), np.float32)}
    assert run("cpu", result, None, feed)[1] == []


@pytest.mark.parametrize(("dims", "stays"), [([8], True), ([1], True), ([8, 1, 1], False)])
def test_fused_operators_with_vectors_of_channels_stay_in_the_layout(place: str, dims: list[int], stays: bool) -> None:
    x = layers.data("x", [3, 16, 16])
    y = layers.scale(layers.conv2d(x, 8, 3, padding=1, act="relu"), 2.5, 0.5)
    y = layers.elementwise_mul(y, layers.fill_constant([1], "float32", 3.0))
    y = layers.tanh(layers.elementwise_sub(y, layers.assign(np.full(dims, 1.5, np.float32)), axis=1))
    result = started(place, layers.conv2d(y, 4, 3, padding=1, bias_attr=False))
    expected, before, _ = run(place, result, without())
    found, after, _ = run(place, result)
    np.testing.assert_allclose(found, expected, 1e-4, 1e-4)
    assert after == ([IMAGE, 4 * LAST] if stays else before)


@pytest.mark.parametrize("ours", PLACES)
def test_an_axis_that_the_run_knows_is_no_error_beside_a_convolution(ours: str, require: Any) -> None:
    """The pass asks for kernels before it is known; the planner asks again."""
    require(ours.split(":")[0])
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        x = layers.data("x", [3, 6, 6])
        axis = layers.data("axis", [1], dtype="int32", append_batch_size=False)
        y = layers.conv2d(x, 4, 3)
        block = fluid.default_main_program().global_block()
        out = block.create_temporary()
        block.append_op("concat", {"X": [y, y], "AxisTensor": axis}, {"Out": out})
        start = fluid.default_startup_program()
        feed = {"x": np.arange(216, dtype="float32").reshape(2, 3, 6, 6), "axis": np.array([2], "int32")}
        found = []
        for mode in ("interpreted", "compiled"):
            exe = fluid.Executor(ours, mode=mode, fallback="allow")
            if not found:
                exe.run(start)
            found.append(exe.run(feed=feed, fetch_list=[y, out]))
    for one, both in found:
        np.testing.assert_array_equal(both, np.concatenate([one, one], 2))


def test_what_a_fetch_moves_lies_over_no_other_fetch(place: str) -> None:
    x = layers.data("x", [3, 16, 16])
    small = layers.relu(layers.conv2d(x, 3, 3, padding=1, bias_attr=False))
    made = [layers.reduce_sum(x, [1], keep_dim=True), *(layers.conv2d(small, 3, 3, padding=1) for _ in range(3)), small]
    results = started(place, made)
    exe = fluid.Executor(place, fallback="allow", mode="compiled")
    found = exe.run(fluid.default_main_program(), {"x": X}, results)
    assert exe.memory_plan is not None
    exe.memory_plan.verify()
    expected = fluid.Executor(place, fallback="allow", mode="interpreted").run(
        fluid.default_main_program(), {"x": X}, results
    )
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, 1e-5, 1e-5)


@pytest.mark.parametrize("place", [p for p in PLACES if p != "fpga:0"], indirect=True)
def test_loops_are_analysed_in_the_layout_in_which_they_compute(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost model, the check of aliases and the kernel ask for loops over one order of dims, not over the plain
    order too.
    """
    x = layers.data("x", [3, 16, 16])
    y = layers.batch_norm(layers.conv2d(x, 8, 3, padding=1, bias_attr=False), act="relu")
    result = started(place, layers.conv2d(y, 4, 3, padding=1, bias_attr=False))
    lowered: set[tuple[int, ...]] = set()
    lower = loop_kernels._lower_anew

    def recorded(call: Any) -> Any:
        lowered.update(spec.dims[1:] for specs in call.ins.values() for spec in specs if spec.rank == 4)
        return lower(call)

    monkeypatch.setattr(loop_kernels, "_lower_anew", recorded)
    loop_kernels._cache.clear()
    _, _, exe = run(place, result)
    fused = [
        step for step in exe.explain_last().plan.steps if isinstance(step, Launch) and "batch_norm" in step.call.op.type
    ]
    assert [step.call.dims("X0")[1:] for step in fused] == [(16, 16, 8)]
    assert (8, 16, 16) not in lowered
