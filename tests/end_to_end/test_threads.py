"""Runs in several threads: a scope, or a child scope, for each; parameters shared read-only."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import memory
from fluidlite.base.errors import OutOfRangeError
from fluidlite.platform.context import Context
from fluidlite.platform.pool import get_context, open_contexts

layers = fluid.layers
KINDS = ("cpu", "opencl", "fpga", *{where.kind for where in fluid.places() if where.kind == "cuda"})
THREADS = 4


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, require: Callable[..., None]) -> str:
    require(request.param)
    return f"{request.param}:0"


def together(work: Callable[[int], Any]) -> list[Any]:
    """Do the work in several threads at once; what they return, or the first error."""
    results: list[Any] = [None] * THREADS
    failures: list[BaseException] = []
    barrier = threading.Barrier(THREADS)

    def run(number: int) -> None:
        try:
            barrier.wait()
            results[number] = work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
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
