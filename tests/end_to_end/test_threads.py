"""Runs in several threads: a scope, or a child scope, for each; parameters shared read-only."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import memory
from fluidlite.base.errors import OutOfRangeError, ProgramError
from fluidlite.base.weak_objects import WeakObjects
from fluidlite.compiler.executable.executable_cache import MAX_EXECUTABLES
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context, open_contexts

layers = fluid.layers
KINDS = ("cpu", "opencl", "fpga", *{where.kind for where in fluid.places() if where.kind == "cuda"})
THREADS = 4


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, require: Callable[..., None]) -> str:
    require(request.param)
    return f"{request.param}:0"


def together(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """Do the work in several threads at once; what they return, or the first error."""
    results: list[Any] = [None] * count
    failures: list[BaseException] = []
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            barrier.wait()
            results[number] = work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


def classifier(train: bool) -> tuple[Any, Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 6
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x, label = layers.data("x", [6]), layers.data("label", [1], dtype="int64")
        logits = layers.fc(layers.dropout(layers.fc(x, 8, act="tanh"), 0.3, is_test=not train), 3)
        loss = layers.mean(layers.softmax_with_cross_entropy(logits, label))
        if train:
            fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    return main, startup, logits, loss


def batch(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((5, 6)).astype("float32"), "label": rng.integers(0, 3, (5, 1))}


def test_training_in_scopes_of_their_own(place: str) -> None:
    main, startup, _, loss = classifier(train=True)
    exe = fluid.Executor(place, fallback="allow")

    def train(seed: int) -> list[float]:
        scope = fluid.Scope()
        exe.run(startup, scope=scope)
        return [float(exe.run(main, batch(seed * 100 + step), [loss], scope=scope)[0][0]) for step in range(8)]

    alone = [train(seed) for seed in range(THREADS)]
    assert together(train) == alone


def test_child_scopes_share_parameters(place: str) -> None:
    main, startup, logits, _ = classifier(train=False)
    exe = fluid.Executor(place, fallback="allow")
    scope = fluid.Scope()
    exe.run(startup, scope=scope)

    def predict(seed: int) -> list[Any]:
        child = scope.new_scope()
        return [exe.run(main, batch(seed * 100 + step), [logits], scope=child)[0].tolist() for step in range(10)]

    alone = [predict(seed) for seed in range(THREADS)]
    assert together(predict) == alone


def test_an_executor_a_thread(place: str) -> None:
    main, startup, logits, _ = classifier(train=False)
    scope = fluid.Scope()
    fluid.Executor(place, fallback="allow").run(startup, scope=scope)

    def predict(seed: int) -> Any:
        exe = fluid.Executor(place, fallback="allow")
        return [exe.run(main, batch(seed), [logits], scope=scope.new_scope())[0].tolist() for _ in range(5)]

    found = together(predict)
    assert all(values == [values[0]] * 5 for values in found)


def test_scope_guards_are_for_their_thread(place: str) -> None:
    main, startup, _, loss = classifier(train=True)
    exe = fluid.Executor(place, fallback="allow")

    def train(seed: int) -> list[float]:
        with fluid.scope_guard(fluid.Scope()):
            exe.run(startup)
            return [float(exe.run(main, batch(seed), [loss])[0][0]) for _ in range(4)]

    assert together(train) == [train(seed) for seed in range(THREADS)]


def test_an_error_in_one_thread_is_that_threads(place: str) -> None:
    main, startup, _, loss = classifier(train=True)
    exe = fluid.Executor(place, fallback="allow")

    def train(seed: int) -> list[float]:
        scope = fluid.Scope()
        exe.run(startup, scope=scope)
        losses = []
        for step in range(8):
            feed = batch(seed * 100 + step)
            if seed == 1 and step % 2:
                feed["label"][2] = 17
                with pytest.raises(OutOfRangeError, match="index 17 is out of range"):
                    exe.run(main, feed, [loss], scope=scope)
            else:
                losses.append(float(exe.run(main, feed, [loss], scope=scope)[0][0]))
        return losses

    alone = [train(seed) for seed in range(THREADS)]
    found = together(train)
    assert [len(losses) for losses in found] == [8, 4, 8, 8]
    assert found[0] == alone[0]
    assert found[2:] == alone[2:]
    assert all(np.isfinite(losses).all() for losses in found)


def test_contexts_of_a_thread_close_with_it(place: str) -> None:
    get_context(place)
    gc.collect()
    before = len(open_contexts())
    used = memory.used(place)

    def work(seed: int) -> None:
        fluid.Tensor().set(np.full(1000, seed, "float32"), place).numpy()

    together(work)
    gc.collect()
    assert len(open_contexts()) == before
    assert memory.used(place) == used


def test_contexts_of_ended_threads_keep_no_kernels(place: str) -> None:
    main, startup, logits, _ = classifier(train=False)
    exe = fluid.Executor(place, fallback="allow")
    scope = fluid.Scope()
    exe.run(startup, scope=scope)
    together(lambda _: exe.run(main, batch(1), [logits], scope=scope.new_scope()))
    gc.collect()
    closed = [thing for thing in gc.get_objects() if isinstance(thing, Context) and thing.closed]
    assert [context for context in closed if len(context.prepared)] == []


def test_each_thread_has_a_context_of_its_own(place: str) -> None:
    contexts = together(lambda _: get_context(place))
    assert len({id(context) for context in contexts}) == THREADS
    assert get_context(place) is get_context(place)


def test_tensors_cross_threads(place: str) -> None:
    """What one thread's context wrote, another's reads in order."""
    tensor = fluid.Tensor().set(np.zeros(1000, "float32"), place)

    def read(seed: int) -> Any:
        return [float(tensor.numpy().sum()) for _ in range(20)]

    for number in range(5):
        tensor.set(np.full(1000, number, "float32"), place)
        assert together(read) == [[1000.0 * number] * 20] * THREADS


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads change places a hundred times as often as they do by default."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(before)


def several(count: int) -> tuple[list[tuple[fluid.Program, Any, dict[str, Any]]], fluid.Scope]:
    """Programs that differ in sizes and result, what to feed them, and the scope of their parameters."""
    startup, found = fluid.Program(), []
    startup.random_seed = 11
    for k in range(count):
        main = fluid.Program()
        with fluid.program_guard(main, startup), fluid.unique_name.guard(f"p{k}_"):
            x = layers.data("x", [6 + k])
            y = layers.reduce_sum(layers.scale(layers.tanh(layers.fc(x, 8 + k)), float(k + 1)))
        found.append((main, y, {"x": np.random.default_rng(k).standard_normal((3, 6 + k)).astype("float32")}))
    scope = fluid.Scope()
    fluid.Executor("cpu").run(startup, scope=scope)
    return found, scope


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("programs", [3, MAX_EXECUTABLES + 4])
def test_an_executor_of_sixteen_threads_keeps_what_they_run(place: str, programs: int) -> None:
    """Together they run many times as many executables as an executor keeps of one thread."""
    found, scope = several(programs)
    exe = fluid.Executor(place, fallback="allow")
    right = [exe.run(main, feed, [y], scope=scope)[0].tolist() for main, y, feed in found]

    def work(number: int) -> int:
        child, turns = scope.new_scope(), np.random.default_rng(number)
        for _ in range(200 if programs < MAX_EXECUTABLES else 3 * MAX_EXECUTABLES):
            k = int(turns.integers(programs))
            main, y, feed = found[k]
            assert exe.run(main, feed, [y], scope=child)[0].tolist() == right[k]
        return len(exe._executables._executables)  # type: ignore[union-attr]

    assert max(together(work, 16)) <= 17 * MAX_EXECUTABLES
    gc.collect()
    exe.run(*found[0][:1], found[0][2], [found[0][1]], scope=scope)


@pytest.mark.usefixtures("hasty")
def test_an_executor_that_is_closed_while_others_run_it(place: str) -> None:
    found, scope = several(3)
    right = [fluid.Executor(place, fallback="allow").run(main, feed, [y], scope=scope) for main, y, feed in found]
    exe = fluid.Executor(place, fallback="allow")

    def work(number: int) -> int:
        child = scope.new_scope()
        for turn in range(300):
            if number == 0 and turn == 40:
                exe.close()
            main, y, feed = found[turn % 3]
            try:
                assert exe.run(main, feed, [y], scope=child) == right[turn % 3]
            except ProgramError as error:
                assert str(error) == "the executor is closed"
                return turn
        return 300

    assert together(work, 8)[0] == 40


@pytest.mark.usefixtures("hasty")
def test_a_scope_that_several_threads_train_and_read(place: str) -> None:
    """Reading threads see parameters between two steps, never half of one, though their memory moves meanwhile."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        pair = [layers.create_global_var([64], 0.0, "float32", persistable=True, name=name) for name in ("a", "b")]
        for each in pair:
            layers.assign(layers.scale(each, 1.0, 1.0), each)
    exe, scope = fluid.Executor(place, fallback="allow"), fluid.Scope()
    exe.run(startup, scope=scope)
    exe.run(main, scope=scope)
    lock = threading.Lock()

    def work(number: int) -> None:
        for turn in range(30):
            with lock:  # a step is the user's to keep apart; the executor's caches are not
                exe.run(main, scope=scope)
                if number == 0 and turn % 5 == 0:
                    scope.find_var("a").get_tensor().move_to("cpu")  # type: ignore[union-attr]

    together(work, 8)
    values = [scope.find_var(name).get_tensor().numpy() for name in ("a", "b")]  # type: ignore[union-attr]
    assert [set(value.tolist()) for value in values] == [{241.0}, {241.0}]


@pytest.mark.usefixtures("hasty")
def test_a_tensor_that_another_thread_moves(place: str) -> None:
    """It is read, written and copied where it is at that moment."""
    tensor = fluid.Tensor().set(np.zeros(3, "float32"), "cpu")
    values = [fluid.Tensor().set(np.full(3, step, "float32"), "cpu") for step in range(500)]
    ended = threading.Event()

    def work(number: int) -> None:
        try:
            last = 0.0
            for step in range(500):
                if number == 0:
                    tensor.move_to(("cpu", place)[step % 2])
                elif number == 1:
                    (tensor.set if step % 2 else tensor.assign)(values[step])
                else:
                    found = np.array(tensor if number == 2 else tensor.to(place))
                    assert found.min() == found.max() >= last
                    last = found.min()
                if ended.is_set():
                    return
        except BaseException:
            ended.set()
            raise

    together(work)
    assert tensor.numpy().min() == 499


def test_what_is_listed_while_others_add_to_it() -> None:
    class Thing:
        pass

    things: WeakObjects[Thing] = WeakObjects()

    def work(number: int) -> int:
        kept = []
        for turn in range(400):
            kept.append(Thing())
            things.add(kept[-1])
            things.add(kept[-1])
            if turn % 3 == 0:
                del kept[turn % len(kept)]
            assert all(isinstance(each, Thing) for each in things)
        things.discard(kept.pop())
        return len(kept)

    assert sum(together(work)) > 0
    gc.collect()
    assert len(things) == 0
