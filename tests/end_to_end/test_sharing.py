"""State that several threads train, read, move, set and save at once: no update is lost, none is seen by half."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.invalidation import cache_version
from fluidlite.compiler.executable.executable import Executable
from fluidlite.memory.allocation import NO_CONTEXTS, Sharing
from fluidlite.memory.sharing import Use
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context, new_context, using

layers = fluid.layers
KINDS = ("cpu", "opencl", "fpga", *{where.kind for where in fluid.places() if where.kind == "cuda"})
THREADS, TURNS, SIZE = 6, 30, 64
HELD = 0.5
"""Seconds after which what has not happened behind a gate counts as waiting for it."""


def happens(done: Callable[[], bool]) -> bool:
    """Whether something is done though a gate holds it back."""
    end = time.monotonic() + HELD
    while not done() and time.monotonic() < end:
        time.sleep(0.01)
    return done()


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, require: Callable[..., None]) -> str:
    require(request.param)
    return f"{request.param}:0"


@pytest.fixture(autouse=True)
def hasty() -> Iterator[None]:
    """Threads change places a hundred times as often as they do by default."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(before)


class Counter:
    """A program that adds 1 to each of its variables, and another that reads them."""

    def __init__(self, place: str, mode: str, size: int = SIZE) -> None:
        self.place = place
        self.train, self.read, startup = fluid.Program(), fluid.Program(), fluid.Program()
        with fluid.program_guard(self.train, startup):
            pair = [self._variable(name, size) for name in ("a", "b")]
            for each in pair:
                layers.assign(layers.scale(each, 1.0, 1.0), each)
        with fluid.program_guard(self.read, fluid.Program()):
            self.sums = [layers.scale(self._variable(name, size), 2.0) for name in ("a", "b")]
        self.scope = fluid.Scope()
        self.exe = fluid.Executor(place, fallback="allow", mode=mode)
        self.exe.run(startup, scope=self.scope)

    @staticmethod
    def _variable(name: str, size: int) -> Any:
        return layers.create_global_var([size], 0.0, "float32", persistable=True, name=name)

    def tensor(self, name: str) -> fluid.Tensor:
        variable = self.scope.find_var(name)
        assert variable is not None
        return variable.get_tensor()

    def step(self) -> None:
        self.exe.run(self.train, scope=self.scope)

    def values(self) -> list[set[float]]:
        return [set(self.tensor(name).numpy().tolist()) for name in ("a", "b")]


def together(work: Callable[[int], None], count: int = THREADS) -> None:
    failures: list[BaseException] = []
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            barrier.wait()
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_one_call_after_the_other_from_many_threads(place: str, mode: str, tmp_path: Path) -> None:
    """Calls that a lock keeps apart follow each other on the device, too, whichever thread made them."""
    counter, lock, expected = Counter(place, mode), threading.Lock(), {"a": 0.0, "b": 0.0}

    def work(number: int) -> None:
        turns = random.Random(number)
        for turn in range(TURNS):
            with lock:
                counter.step()
                expected["a"] += 1
                expected["b"] += 1
                name = turns.choice("ab")
                what = turns.randrange(8)
                tensor = counter.tensor(name)
                if what == 0:
                    tensor.move_to(turns.choice(["cpu", place]))
                elif what == 1:
                    expected[name] = float(100 * number + turn)
                    tensor.set(np.full(SIZE, expected[name], "float32"))
                elif what == 2:
                    tensor.set(np.full(SIZE, expected[name], "float32"), turns.choice(["cpu", place]))
                elif what == 3:
                    tensor[3:9] = np.full(6, expected[name], "float32")
                elif what == 4:
                    assert set(tensor.numpy().tolist()) == {expected[name]}
                elif what == 5:
                    found = counter.exe.run(counter.read, {}, counter.sums, scope=counter.scope)
                    assert [set(array.tolist()) for array in found] == [{2 * expected["a"]}, {2 * expected["b"]}]
                elif what == 6 and turn % 4 == 0:
                    with fluid.scope_guard(counter.scope):
                        fluid.io.save_persistables(counter.exe, str(tmp_path), counter.train)
                    scope = fluid.Scope()
                    with fluid.scope_guard(scope):
                        fluid.io.load_persistables(counter.exe, str(tmp_path), counter.train)
                        found = [scope.find_var(n).get_tensor().numpy() for n in ("a", "b")]  # type: ignore[union-attr]
                    assert [set(array.tolist()) for array in found] == [{expected["a"]}, {expected["b"]}]
                elif what == 7:
                    assert set(fluid.Tensor().assign(tensor).numpy().tolist()) == {expected[name]}

    together(work)
    assert counter.values() == [{expected["a"]}, {expected["b"]}]


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_calls_at_once_from_many_threads(place: str, mode: str) -> None:
    """Nobody keeps them apart: each update counts once, and what is read lies between two of them."""
    counter = Counter(place, mode, 4096)
    movers = 2

    def work(number: int) -> None:
        turns = random.Random(number)
        for _ in range(TURNS):
            if number >= movers:
                counter.step()
            elif turns.random() < 0.3:
                counter.tensor(turns.choice("ab")).move_to(turns.choice(["cpu", place]))
            else:
                found = counter.exe.run(counter.read, {}, counter.sums, scope=counter.scope)
                assert [len(set(array.tolist())) for array in found] == [1, 1]
                assert found[0][0] == found[1][0]  # both are of one step

    together(work)
    updates = float((THREADS - movers) * TURNS)
    assert counter.values() == [{updates}, {updates}]


def test_a_context_is_closed_once_its_work_is_done(place: str) -> None:
    """Who sees that a context is closed takes what it wrote as written."""
    for _ in range(20):
        counter = Counter(place, "compiled", 1 << 14)
        context = new_context(place)
        exe = fluid.Executor(place, fallback="allow", context=context)
        for _ in range(30):
            exe.run(counter.train, scope=counter.scope)
        closing = threading.Thread(target=context.close)
        closing.start()
        while not context.closed:
            pass
        assert counter.values() == [{30.0}, {30.0}]
        closing.join()


@pytest.mark.opencl
def test_a_context_whose_queue_is_held_is_not_closed() -> None:
    """It counts as closed only after its last launch has ended."""
    cl: Any = pytest.importorskip("pyopencl")
    counter, context = Counter("opencl:0", "compiled"), new_context("opencl:0")
    exe = fluid.Executor("opencl:0", fallback="allow", context=context)
    exe.run(counter.train, scope=counter.scope)
    gate = cl.UserEvent(context.board.context)
    cl.enqueue_barrier(context.queue, wait_for=[gate])
    closing = threading.Thread(target=context.close)
    try:
        exe.run(counter.train, scope=counter.scope)
        closing.start()
        assert not happens(lambda: context.closed)  # for the update that stands behind the gate
    finally:
        gate.set_status(cl.command_execution_status.COMPLETE)
        closing.join()
    assert context.closed
    assert counter.values() == [{2.0}, {2.0}]


def test_a_write_is_seen_by_the_context_that_wrote_before(place: str) -> None:
    """The owner of memory waits for a writer from elsewhere as that one waits for the owner."""
    counter, other = Counter(place, "compiled", 1 << 14), new_context(place)
    elsewhere = fluid.Executor(place, fallback="allow", context=other)
    for number in range(40):
        counter.step()
        elsewhere.run(counter.train, scope=counter.scope)
        if number % 3 == 0:
            counter.step()
            assert counter.values() == [{float(2 * number + number // 3 + 3)}] * 2
    assert get_context(place) is not other


@pytest.mark.opencl
@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
@pytest.mark.parametrize("back", ["by its user", "by a run"])
def test_who_trains_a_moved_variable_waits_for_who_trained_it_last(back: str, mode: str) -> None:
    """The update between is in the queue neither of who moved it, and so owns its memory, nor of who trains next."""
    cl: Any = pytest.importorskip("pyopencl")
    counter = Counter("opencl:0", mode)
    mover, last, following = [new_context("opencl:0") for _ in range(3)]
    trains = [
        fluid.Executor("opencl:0", fallback="allow", mode=mode, context=context)
        for context in (mover, last, following)
    ]  # fmt: skip
    for exe in trains * 2:
        exe.run(counter.train, scope=counter.scope)
    with using(mover):
        counter.tensor("a").move_to("cpu")
        if back == "by its user":
            counter.tensor("a").move_to("opencl:0")
    trains[0].run(counter.train, scope=counter.scope)
    gate = cl.UserEvent(last.board.context)
    cl.enqueue_barrier(last.queue, wait_for=[gate])
    waits = threading.Thread(target=following.wait)
    try:
        trains[1].run(counter.train, scope=counter.scope)
        trains[2].run(counter.train, scope=counter.scope)
        waits.start()
        assert not happens(lambda: not waits.is_alive())  # for the update that stands behind the gate
    finally:
        gate.set_status(cl.command_execution_status.COMPLETE)
    waits.join()
    assert counter.values() == [{9.0}, {9.0}]


@pytest.mark.opencl
def test_the_tests_see_a_context_that_waits_for_the_owner_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for the one whose memory it is, and not for the last writer, loses an update."""

    def take(self: Use) -> None:
        allocation = self.allocation
        self.context.wait_for(allocation.context.record())
        allocation.used_by(self.context)
        allocation.sharing = Sharing(self.context, NO_CONTEXTS)
        cache_version.invalidate()

    monkeypatch.setattr(Use, "take", take)
    monkeypatch.setitem(globals(), "HELD", 60.0)
    with pytest.raises(AssertionError):
        test_who_trains_a_moved_variable_waits_for_who_trained_it_last("by its user", "compiled")


@pytest.mark.opencl
def test_the_tests_see_a_turn_that_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without turns the queues of one device run past each other: the test above finds it."""
    monkeypatch.setattr(Use, "conflicting_contexts", lambda self: set())
    monkeypatch.setitem(globals(), "HELD", 60.0)
    with pytest.raises(AssertionError):
        test_who_trains_a_moved_variable_waits_for_who_trained_it_last("by its user", "compiled")


@pytest.mark.opencl
def test_the_tests_see_a_context_that_is_closed_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said to be closed before its queue is done, nobody waits for what it has enqueued."""

    def close(self: Context) -> None:
        self.closed = True
        cache_version.invalidate()
        self.raw.wait()
        self._release()

    monkeypatch.setattr(Context, "close", close)
    monkeypatch.setitem(globals(), "HELD", 60.0)
    with pytest.raises(AssertionError):
        test_a_context_whose_queue_is_held_is_not_closed()


def test_memory_stays_while_a_run_is_bound_to_it(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread, whose memory it is, replaces it before or after, not between the look and the launch."""
    other = next((each for each in fluid.places() if str(each) != place), None)
    if other is None:
        pytest.skip("there is one place")
    counter, movers = Counter(place, "compiled"), list[threading.Thread]()

    def elsewhere(do: Callable[[], object]) -> threading.Thread:
        movers.append(threading.Thread(target=do))
        movers[-1].start()
        return movers[-1]

    def attached(self: Executable, attach: Callable[[Executable], None] = Executable._attach) -> None:
        mover = elsewhere(lambda: counter.tensor("b").move_to(other))
        mover.join(0.3)
        assert mover.is_alive()
        attach(self)

    for name in ("a", "b"):
        elsewhere(partial(counter.tensor(name).set, np.full(SIZE, 7, "float32"), place)).join()
    monkeypatch.setattr(Executable, "_attach", attached)
    found = counter.exe.run(counter.read, {}, counter.sums, scope=counter.scope)
    assert [set(array.tolist()) for array in found] == [{14.0}, {14.0}]
    for mover in movers:
        mover.join(200)
    assert len(movers) == 3
    assert counter.tensor("b").place == other
    assert counter.values() == [{7.0}, {7.0}]
