"""Memory of every place that is here."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import memory
from fluidlite.base.errors import AllocationError, FallbackWarning, FluidError, OutOfMemoryError
from fluidlite.memory.sharing import Use, turn
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context, new_context
from fluidlite.platform.device_registry import devices

KINDS = ("cpu", "opencl", "fpga", *{where.kind for where in fluid.places() if where.kind == "cuda"})


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, require: Callable[..., None]) -> Iterator[str]:
    require(request.param)
    gc.collect()
    yield f"{request.param}:0"
    memory.set_limit(request.param, None)


def test_alloc_used_free(place: str) -> None:
    before = memory.stats(place)
    one = memory.alloc(place, 1000)
    now = memory.stats(place)
    assert now.used == before.used + 1000
    assert now.live == before.live + 1
    assert now.reserved >= now.used + now.padding
    assert now.peak >= now.used
    with pytest.raises(AllocationError, match="foreign free"):
        memory.free(one, "elsewhere:0")
    memory.free(one, place)
    assert memory.used(place) == before.used
    with pytest.raises(AllocationError, match=f"double free: these 1000 bytes on {place}"):
        memory.free(one)
    with pytest.raises(AllocationError, match="use after free"):
        one.span()


def test_every_allocation_is_aligned_and_apart(place: str) -> None:
    context = get_context(place)
    held = [memory.alloc(place, nbytes) for nbytes in (1, 63, 64, 65, 1000, 4096)]
    for number, one in enumerate(held):
        data = np.full(one.nbytes, number, np.uint8)
        context.copy_in(one.span(), data.data)
    for number, one in enumerate(held):
        back = np.zeros(one.nbytes, np.uint8)
        context.copy_out(back.data, one.span())
        context.wait()
        assert (back == number).all()
        address = one.block.address if one.block is not None else None
        if address is not None:
            assert one.address() % devices.unit(place).info.alignment == 0
        memory.free(one)


def test_zero_bytes(place: str) -> None:
    used = memory.used(place)
    one = memory.alloc(place, 0)
    assert memory.used(place) == used
    get_context(place).copy_in(one.span(), memoryview(b""))
    memory.free(one)


def test_a_limit_is_out_of_memory_and_the_process_goes_on(place: str) -> None:
    with pytest.raises(FluidError):  # what caches of earlier tests keep would make room
        memory.alloc(place, 1 << 46)
    gc.collect()
    memory.set_limit(place, memory.stats(place).used + memory.stats(place).padding + 4096)
    with pytest.raises(
        OutOfMemoryError, match=f"out of memory on {place}: asked for 1,000,000 bytes, used .*, reserved .*its limit is"
    ):
        memory.alloc(place, 1_000_000)
    memory.set_limit(place, None)
    memory.free(memory.alloc(place, 1_000_000))


def test_a_limit_takes_back_what_runs_of_other_threads_keep(place: str) -> None:
    program, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(program, startup):
        hidden = x = fluid.layers.data("x", [64])
        for _ in range(4):
            hidden = fluid.layers.fc(hidden, 64, act="tanh")
    executor, scope = fluid.Executor(place, mode="interpreted", fallback="allow"), fluid.Scope()
    executor.run(startup, scope=scope)
    feed = {x.name: np.ones((4096, 64), "float32")}
    with ThreadPoolExecutor(1) as other:  # it stays, and its context with it
        other.submit(executor.run, program, feed, [hidden], scope=scope).result()
        gc.collect()
        now = memory.stats(place)
        memory.set_limit(place, now.used + now.padding + 500_000)
        memory.free(memory.alloc(place, 300_000))
        with pytest.raises(OutOfMemoryError):
            memory.alloc(place, 1_000_000)


@pytest.mark.parametrize("nbytes", [1 << 46, 1 << 61, 1 << 64])
def test_more_than_there_is(place: str, nbytes: int) -> None:
    used = memory.used(place)
    with pytest.raises((OutOfMemoryError, FluidError), match=f"{nbytes:,} bytes|{nbytes}"):
        memory.alloc(place, nbytes)
    assert memory.used(place) == used
    memory.free(memory.alloc(place, 100))


@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
def test_out_of_memory_in_a_run_names_the_operator(place: str, mode: str) -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = fluid.layers.data("x", [64])
        y = fluid.layers.relu(fluid.layers.concat([x, x], axis=0))
    exe = fluid.Executor(place, mode=mode)
    feed = {"x": np.ones((64, 64), "float32")}
    gc.collect()
    now = memory.stats(place)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        if mode == "interpreted":  # compiled, later runs allocate nothing
            exe.run(program, feed, [y])
        gc.collect()
        memory.set_limit(place, now.used + now.padding + 20_000)  # concat takes 32 KB
        what = r"operator (fused\.)?(concat|relu|concat_relu)\b|moving (x|concat)"
        with pytest.raises(OutOfMemoryError, match=rf"({what}).*out of memory on {place}: asked for .*used .*reserved"):
            exe.run(program, feed, [y])
        memory.set_limit(place, None)
        (out,) = exe.run(program, feed, [y])
    assert out.sum() == 2 * 64 * 64


def test_an_arena(place: str) -> None:
    alignment = devices.unit(place).info.alignment
    arena = memory.arena(place, 4 * alignment)
    with arena():
        one = fluid.Tensor().set(np.arange(alignment, dtype="uint8"), place)
        two = fluid.Tensor().set(np.full(3 * alignment, 9, "uint8"), place)
    assert arena.used == 4 * alignment
    np.testing.assert_array_equal(one.numpy(), np.arange(alignment, dtype="uint8"))
    assert (two.numpy() == 9).all()
    kept = one.numpy()
    with pytest.raises(OutOfMemoryError, match=f"arena on {place} is full"), arena():
        fluid.Tensor().set(np.zeros(1), place)
    arena.reset()
    with pytest.raises(AllocationError, match="stale arena memory"):
        one.numpy()
    with arena():
        fluid.Tensor().set(np.full(alignment, 7, "uint8"), place)
    assert kept[1] == 1  # numpy() of an arena is a copy
    arena.close()


def uses(one: memory.Allocation, context: Context) -> list[Use]:
    return [Use(one, context, False)]


def test_a_block_used_by_two_contexts_is_right(place: str) -> None:
    """What one context wrote, another reads when it has its turn, many times over."""
    mine, other = get_context(place), new_context(place)
    for number in range(50):
        one = memory.alloc(place, 4096, mine)
        mine.copy_in(one.span(), np.full(4096, number, np.uint8).data)
        back = np.zeros(4096, np.uint8)
        with turn((other,), partial(uses, one, other)):
            other.copy_out(back.data, one.span())
        memory.free(one)  # the other context may not have read it yet
        two = memory.alloc(place, 4096, mine)
        mine.copy_in(two.span(), np.full(4096, 255, np.uint8).data)
        other.wait()
        assert (back == number).all()
        memory.free(two)
    other.close()


def test_threads_hammer_one_place(place: str) -> None:
    before = memory.stats(place)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            context = get_context(place)
            held: list[Any] = []
            for step in range(60):
                one = memory.alloc(place, 1 + (seed * 31 + step * 17) % 900)
                context.copy_in(one.span(), np.full(one.nbytes, seed, np.uint8).data)
                held.append(one)
                if len(held) > 5:
                    one = held.pop(step % 5)
                    back = np.zeros(one.nbytes, np.uint8)
                    context.copy_out(back.data, one.span())
                    context.wait()
                    assert (back == seed).all()
                    if step % 2:
                        memory.free(one)
                    del one
            for one in held:
                memory.free(one)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    gc.collect()
    now = memory.stats(place)
    assert (now.used, now.live) == (before.used, before.live)
    assert now.allocations - before.allocations == 240
