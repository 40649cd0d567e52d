"""Executors with a context of their own: runs on queues that do not wait for each other."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.errors import PlaceError, ProgramError
from fluidlite.platform.context_pool import get_context, new_context, open_contexts, using
from fluidlite.platform.device_registry import devices

KINDS = ("cpu", "opencl", "fpga", *{where.kind for where in fluid.places() if where.kind == "cuda"})


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, require: Callable[..., None]) -> str:
    require(request.param)
    return f"{request.param}:0"


def model() -> tuple[fluid.Program, fluid.Program, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 5
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = layers.data("x", [16])
        out = layers.tanh(layers.fc(x, 8))
        test = main.clone(for_test=True)
        loss = layers.mean(layers.square(out))
        fluid.optimizer.SGD(0.5).minimize(loss)
    return main, startup, loss, (test, out)


FEED = {"x": np.random.default_rng(0).standard_normal((4, 16)).astype("float32")}


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_executors_with_contexts_share_state_in_order(place: str, mode: str) -> None:
    """One trains, another reads what it wrote, each through its own queue, in turns."""
    main, startup, loss, (test, out) = model()

    def train_and_read(trainer: fluid.Executor, reader: fluid.Executor) -> list[Any]:
        scope, found = fluid.Scope(), []
        trainer.run(startup, scope=scope)
        for _ in range(6):
            found.append(trainer.run(main, FEED, [loss], scope=scope)[0].tolist())
            found.append(reader.run(test, FEED, [out], scope=scope)[0].tolist())
        return found

    def executor(context: Any = None) -> fluid.Executor:
        return fluid.Executor(place, fallback="allow", mode=mode, context=context)

    mine = executor()
    right = train_and_read(mine, mine)
    queues = devices.unit(place).info.queues
    gc.collect()
    before = len(open_contexts())
    trainer, reader = executor(0), executor(queues - 1)
    assert len(open_contexts()) == before + 2
    default = get_context(place)
    launches = default.counts.launches
    assert train_and_read(trainer, reader) == right
    assert get_context(place) is default
    assert default.counts.launches == launches  # nothing went by the thread's own queue
    trainer.close()
    reader.close()
    assert len(open_contexts()) == before
    given = new_context(place)
    assert train_and_read(executor(given), executor(given)) == right
    assert not given.closed
    given.close()


def test_threads_share_an_executor_that_has_a_context(place: str) -> None:
    _, startup, _, (test, out) = model()
    exe, scope = fluid.Executor(place, fallback="allow", context=0), fluid.Scope()
    exe.run(startup, scope=scope)
    right = exe.run(test, FEED, [out], scope=scope)[0].tolist()
    wrong: list[Any] = []

    def work() -> None:
        child = scope.new_scope()
        for _ in range(40):
            try:
                found = exe.run(test, FEED, [out], scope=child)[0].tolist()
            except Exception as error:
                found = error
            if found != right:
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert exe.cache_info()["executables"].entries <= 8
    exe.close()


@pytest.mark.opencl
def test_a_queue_goes_on_while_another_is_held_up() -> None:
    import pyopencl

    _, startup, _, (test, out) = model()
    first, second = (fluid.Executor("opencl:0", context=queue) for queue in (0, 1))
    scopes = fluid.Scope(), fluid.Scope()
    right = []
    for exe, scope in zip((first, second), scopes, strict=True):
        exe.run(startup, scope=scope)
        right.append(exe.run(test, FEED, [out], scope=scope)[0].tolist())
    assert right[0] == right[1]
    raw = first._context.raw  # type: ignore[union-attr]
    gate = pyopencl.UserEvent(raw.board.context)
    pyopencl.enqueue_barrier(raw.queue, wait_for=[gate])
    raw.queue.flush()
    held: list[Any] = []
    thread = threading.Thread(target=lambda: held.append(first.run(test, FEED, [out], scope=scopes[0])[0].tolist()))
    thread.start()
    try:
        for _ in range(3):
            assert second.run(test, FEED, [out], scope=scopes[1])[0].tolist() == right[1]
        assert held == []
    finally:
        gate.set_status(pyopencl.command_execution_status.COMPLETE)
        thread.join(60)
    assert held == [right[0]]
    first.close()
    second.close()


def test_contexts_that_cannot_be(place: str) -> None:
    queues = devices.unit(place).info.queues
    for wrong in (queues, -1, True):
        with pytest.raises(PlaceError, match=f"{place} has no queue {wrong}: it has .*expected"):
            fluid.Executor(place, context=wrong)
    closed = new_context(place)
    closed.close()
    with pytest.raises(PlaceError, match=r"cannot use .*: it is closed"):
        fluid.Executor(place, context=closed)
    other = "cpu:0" if place != "cpu:0" else None
    if other is not None:
        with pytest.raises(PlaceError, match=f"an executor on {other} cannot use .*: it is one of {place}"):
            fluid.Executor(other, context=get_context(place))
    context = new_context(place)
    exe = fluid.Executor(place, context=context)
    context.close()
    with pytest.raises(ProgramError, match=f"the context of the executor on {place} is closed"):
        exe.run(fluid.Program())


def test_using_a_context_ends_with_its_block(place: str) -> None:
    mine, other = get_context(place), new_context(place)
    with using(other):
        assert get_context(place) is other
        with using(mine):
            assert get_context(place) is mine
        assert get_context(place) is other
    assert get_context(place) is mine
    other.close()
