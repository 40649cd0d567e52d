"""Two queues: they overlap, and events or the host's waits order them; measured by the board's clock."""

from __future__ import annotations

from typing import Any

import fluidlite as fluid
import numpy as np
import pytest
from fluidlite.plugin import Span

import fluidlite_fpga
from fluidlite_fpga import FpgaDevice
from fpga_simulator.timing import COPY, Timeline, copy_cycles

SIZE = 128
MATMUL = (1, 1, SIZE, SIZE, SIZE, False, False)


def spans(device: FpgaDevice, count: int) -> list[Span]:
    allocator = device.allocator(0)
    return [Span(allocator.allocate(4 * SIZE * SIZE), 0, 4 * SIZE * SIZE) for _ in range(count)]


def times(device: FpgaDevice) -> dict[str, tuple[int, int, int]]:
    """The last command of each name: queue, start, end."""
    log = device.command_log(0)
    return {entry["command"]: (entry["queue"], entry["start"], entry["end"]) for entry in log if "start" in entry}


def start_both(device: FpgaDevice, queues: tuple[int, int], ordered: bool) -> dict[str, tuple[int, int, int]]:
    """A product in one context and a copy in another; ``ordered``: the copy waits for the product."""
    compute, copy = device.context(0, queues[0]), device.context(0, queues[1])
    x, y, out, other = spans(device, 4)
    compute.enqueue("matmul", "float32", [x, y, out], MATMUL, (1.0,))
    if ordered:
        copy.wait_for(compute.record())
    copy.copy_in(other, np.ones(SIZE * SIZE, np.float32).data)
    compute.wait()
    copy.wait()
    return times(device)


def test_two_queues_overlap(device: FpgaDevice) -> None:
    assert device.info(0).queues == 2
    times_by_command = start_both(device, (0, 1), ordered=False)
    (queue, start, end), (other, begin, finish) = times_by_command["matmul"], times_by_command["copy_in"]
    assert (queue, other) == (0, 1)
    overlap = min(end, finish) - max(start, begin)
    assert overlap == min(end - start, finish - begin) > 1000  # the shorter is within the longer


def test_one_queue_does_not(device: FpgaDevice) -> None:
    times_by_command = start_both(device, (0, 0), ordered=False)
    assert times_by_command["copy_in"][1] == times_by_command["matmul"][2]


def test_an_event_orders_them(device: FpgaDevice) -> None:
    times_by_command = start_both(device, (0, 1), ordered=True)
    assert times_by_command["copy_in"][1] == times_by_command["matmul"][2]


def test_what_the_host_sends_after_it_has_waited_comes_later(device: FpgaDevice) -> None:
    compute, copy = device.context(0, 0), device.context(0, 1)
    x, y, out, other = spans(device, 4)
    compute.enqueue("matmul", "float32", [x, y, out], MATMUL, (1.0,))
    compute.wait()
    copy.copy_in(other, np.ones(4, np.float32).data)
    copy.wait()
    times_by_command = times(device)
    assert times_by_command["copy_in"][1] >= times_by_command["matmul"][2]


def test_two_computations_share_the_one_unit(device: FpgaDevice) -> None:
    first, second = device.context(0, 0), device.context(0, 1)
    x, y, out, other = spans(device, 4)
    first.enqueue("matmul", "float32", [x, y, out], MATMUL, (1.0,))
    second.enqueue("matmul", "float32", [x, y, other], MATMUL, (1.0,))
    first.wait()
    second.wait()
    one, two = [entry for entry in device.command_log(0) if entry["command"] == "matmul"]
    assert (one["queue"], two["queue"]) == (0, 1)
    assert two["start"] == one["end"]


def test_a_loop_that_copies_ahead_takes_less_time_than_one_that_does_not(device: FpgaDevice) -> None:
    """Double buffering, as in a loader: the next batch is copied while the current one is computed."""

    def cycles(queues: tuple[int, int]) -> int:
        compute, copy = device.context(0, queues[0]), device.context(0, queues[1])
        batches, weights, out = spans(device, 2), *spans(device, 2)
        device.clear_command_log(0)
        used: list[Any] = [None, None]
        for step in range(6):
            batch = batches[step % 2]
            if used[step % 2] is not None:
                copy.wait_for(used[step % 2])
            copy.copy_in(batch, np.ones(SIZE * SIZE, np.float32).data)
            compute.wait_for(copy.record())
            compute.enqueue("matmul", "float32", [batch, weights, out], MATMUL, (1.0,))
            used[step % 2] = compute.record()
        compute.wait()
        log = [entry for entry in device.command_log(0) if "start" in entry]
        return int(log[-1]["end"]) - int(log[0]["start"])

    sequential, overlapped = cycles((0, 0)), cycles((0, 1))
    one_copy = copy_cycles(4 * SIZE * SIZE)
    assert overlapped == sequential - 5 * min(one_copy, (sequential - 6 * one_copy) // 6)


def test_a_fence_that_is_too_old_to_be_known_orders_after_everything() -> None:
    timeline = Timeline()
    timeline.run(0, COPY, 100, 0)
    timeline.wait(1, fence=12345)
    assert timeline.run(1, "other", 1, 0) == (100, 101)


def test_contexts_of_the_framework_take_queues_in_turn_and_agree() -> None:
    from fluidlite.platform.context_pool import new_context

    contexts = [new_context("fpga:0") for _ in range(2)]
    try:
        first, second = contexts
        tensor = fluid.Tensor().set(np.arange(12, dtype=np.float32), "fpga:0")
        span = tensor.span()
        fluidlite_fpga.clear_command_log()
        first.copy_in(span, np.full(12, 7, np.float32).data.cast("B"))
        second.wait_for(first.record())
        host = np.zeros(12, np.float32)
        second.copy_out(host.data.cast("B"), span)
        second.wait()
        assert (host == 7).all()
        log = [entry for entry in fluidlite_fpga.command_log() if "start" in entry]
        assert {entry["queue"] for entry in log} == {0, 1}
        assert log[1]["start"] >= log[0]["end"]
    finally:
        for context in contexts:
            context.close()


SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e38, -1e38, 1e-40, 1.0, -2.5], np.float32)
UNARY = ("relu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "square", "abs", "reciprocal", "softsign")


@pytest.mark.parametrize("op", [*UNARY, "elementwise_max", "elementwise_min", "elementwise_div", "reduce_max"])
def test_special_numbers_are_those_of_the_cpu(op: str) -> None:
    """NaN, infinities and signed zeros do not depend on the place."""
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = fluid.layers.data("x", [10, 10], append_batch_size=False)
        y = fluid.layers.data("y", [10, 10], append_batch_size=False)
        layer = getattr(fluid.layers, op)
        out = layer(x, y) if op.startswith("elementwise") else layer(x, dim=[1]) if op == "reduce_max" else layer(x)
    feed = {"x": np.repeat(SPECIAL, 10).reshape(10, 10), "y": np.tile(SPECIAL, 10).reshape(10, 10)}
    cpu, board = (fluid.Executor(place, mode="interpreted").run(program, feed, [out])[0] for place in ("cpu", "fpga"))
    np.testing.assert_array_equal(np.isnan(board), np.isnan(cpu))
    np.testing.assert_allclose(board, cpu, rtol=1e-6)
    zero = (cpu == 0) & (board == 0)
    np.testing.assert_array_equal(np.signbit(board[zero]), np.signbit(cpu[zero]))
