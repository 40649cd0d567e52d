"""Buffers: written again only after what reads them, kept by who holds them, without copies that nobody needs."""

from __future__ import annotations

import gc
import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.loaders import Batch, BatchedLoader
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context, new_context, using

PLUGINS = str(Path(__file__).parent.parent / "plugins")
BATCHES, SIZE, WIDTH = 12, 8, 16
X = np.random.default_rng(5).standard_normal((BATCHES * SIZE, WIDTH)).astype(np.float32)


@pytest.fixture
def lazy() -> Iterator[Any]:
    """A place whose queues do nothing before somebody waits."""
    sys.path.insert(0, PLUGINS)
    try:
        devices, fake = importlib.import_module("lazy_device"), importlib.import_module("fake_device")
    finally:
        sys.path.remove(PLUGINS)
    with fake.installed(devices.LazyDevice()) as device:
        yield device


def read_later(batch: Batch, context: Context) -> np.ndarray[Any, Any]:
    """Enqueue the read of a batch, as compute does; the array is valid when somebody waits."""
    out = np.zeros((batch.size, WIDTH), np.float32)
    context.copy_out(out.reshape(-1).view(np.uint8).data, batch["x"].span())
    return out


@pytest.mark.parametrize("options", [{}, {"buffers": 2, "preload": 1}, {"buffers": 1, "preload": 1}, {"workers": 3},
                                     {"buffers": 3, "preload": 3}], ids=str)  # fmt: skip
def test_a_buffer_is_written_after_the_compute_that_reads_it(lazy: Any, options: dict[str, int]) -> None:
    context = get_context(lazy.kind)
    read = [read_later(batch, context) for batch in BatchedLoader({"x": X}, SIZE, lazy.kind, **options)]
    context.wait()
    np.testing.assert_array_equal(np.concatenate(read), X)


def test_a_batch_is_there_for_what_reads_it(lazy: Any) -> None:
    context = get_context(lazy.kind)
    for batch in BatchedLoader({"x": X}, SIZE, lazy.kind):
        read = read_later(batch, context)
        context.wait()  # nothing else has waited for the copy
        np.testing.assert_array_equal(read, X[batch.number * SIZE :][:SIZE])


def test_a_buffer_is_written_after_other_queues_that_read_it(lazy: Any) -> None:
    other = new_context(lazy.kind)
    read = []
    for batch in BatchedLoader({"x": X}, SIZE, lazy.kind, buffers=2, preload=1):
        with using(other):
            fluid.tensor.transfer.order_after_writes(batch["x"], other)
            read.append(read_later(batch, other))
    other.wait()
    np.testing.assert_array_equal(np.concatenate(read), X)


def test_memory_goes_back_after_the_compute_that_reads_it(lazy: Any) -> None:
    """The epoch ends while compute is queued: whoever gets the memory next writes after that."""
    context = get_context(lazy.kind)
    read = [read_later(batch, context) for batch in BatchedLoader({"x": X}, SIZE, lazy.kind)]
    gc.collect()
    fluid.memory.trim(lazy.kind)
    spoiled = [fluid.Tensor().set(np.full((SIZE, WIDTH), -1, np.float32), lazy.kind) for _ in range(8)]
    context.wait()
    np.testing.assert_array_equal(np.concatenate(read), X)
    del spoiled


def test_memory_goes_back_after_other_queues_that_read_it(lazy: Any) -> None:
    fluid.memory.trim(lazy.kind)  # what comes next gets what goes back here
    other = new_context(lazy.kind)
    read = []
    for batch in BatchedLoader({"x": X}, SIZE, lazy.kind):
        with using(other):
            fluid.tensor.transfer.order_after_writes(batch["x"], other)
            read.append(read_later(batch, other))
    del batch
    get_context(lazy.kind).wait()  # that the loop's own queue has read it is not enough
    gc.collect()
    spoiled = [fluid.Tensor().set(np.full((SIZE, WIDTH), -1, np.float32), lazy.kind) for _ in range(8)]
    get_context(lazy.kind).wait()
    other.wait()
    np.testing.assert_array_equal(np.concatenate(read), X)
    del spoiled


@pytest.mark.parametrize("options", [{}, {"buffers": 1, "preload": 1}, {"buffers": 2, "preload": 2, "workers": 2},
                                     {"processes": True}], ids=str)  # fmt: skip
def test_batches_that_are_held_stay_as_they_are(place: str, options: dict[str, Any]) -> None:
    held = list(BatchedLoader({"x": X}, SIZE, place, **options))
    np.testing.assert_array_equal(np.concatenate([batch["x"].numpy() for batch in held]), X)


def test_one_tensor_of_a_batch_keeps_it() -> None:
    y = np.arange(len(X)).reshape(-1, 1)
    held = [batch["y"] for batch in BatchedLoader({"x": X, "y": y}, SIZE)]
    np.testing.assert_array_equal(np.concatenate([tensor.numpy() for tensor in held]), y)


def test_arrays_of_the_host_keep_their_batch() -> None:
    arrays = [batch["x"].numpy() for batch in BatchedLoader({"x": X}, SIZE)]
    np.testing.assert_array_equal(np.concatenate(arrays), X)


def test_memory_is_given_back(place: str) -> None:
    with BatchedLoader({"x": X}, SIZE, place) as loader:
        used = fluid.memory.used(place)
        for batch in loader:  # noqa: B007
            assert fluid.memory.used(place) <= used + 4 * SIZE * WIDTH * 4
        del batch
        assert fluid.memory.used(place) == used
        kept = next(iter(loader))
        gc.collect()
        assert fluid.memory.used(place) == used + SIZE * WIDTH * 4
        np.testing.assert_array_equal(kept["x"].numpy(), X[:SIZE])
    np.testing.assert_array_equal(kept["x"].numpy(), X[:SIZE])  # the loader is closed
    del kept
    assert fluid.memory.used(place) == used


def test_only_as_many_buffers_as_were_asked_for(place: str) -> None:
    loader = BatchedLoader({"x": np.tile(X, (8, 1))}, SIZE, place, buffers=3, preload=1)
    before = fluid.memory.stats(place).allocations
    assert sum(1 for _ in loader) == 8 * BATCHES
    assert fluid.memory.stats(place).allocations - before <= 3


def test_buffers_grow_with_their_sequences(place: str) -> None:
    words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
    samples = [(list(range(n)),) for n in (1, 300, 2, 4000, 3, 5, 20000, 1)]
    for batch, (text,) in zip(BatchedLoader(samples, 1, place, [words], buffers=2, preload=1), samples, strict=True):
        assert batch["words"].numpy().ravel().tolist() == text


def total(width: int = WIDTH) -> tuple[fluid.Program, fluid.Program]:
    """A program that adds the rows of what it is fed to a variable ``total``, after some work."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.layers.data("x", shape=[width])
        sums = fluid.layers.create_global_var([width], 0.0, "float32", persistable=True, name="total")
        y = fluid.layers.scale(fluid.layers.scale(x, 2.0), 0.5)
        fluid.layers.assign(fluid.layers.elementwise_add(sums, fluid.layers.reduce_sum(y, 0)), sums)
    return main, startup


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
@pytest.mark.parametrize("context", [None, 1])
def test_runs_read_their_own_batches(place: str, mode: str, context: int | None) -> None:
    if place.startswith("cpu") and context:
        context = 0
    main, startup = total(64)
    x = np.random.default_rng(1).standard_normal((40 * 256, 64)).astype(np.float32)
    with fluid.scope_guard(fluid.Scope()):
        executor = fluid.Executor(place, mode=mode, context=context)
        executor.run(startup)
        for batch in BatchedLoader({"x": x}, 256, place, buffers=2, preload=1):
            executor.run(main, feed=batch)  # without a fetch, nothing waits
        (found,) = executor.run(main, feed={"x": np.zeros((1, 64), np.float32)}, fetch_list=["total"])
        executor.close()
    np.testing.assert_allclose(found, x.astype(np.float64).sum(0), atol=1e-2)


def test_runs_copy_nothing_in(place: str) -> None:
    main, startup = total(256)
    x = np.ones((8 * 256, 256), np.float32)  # 256 KiB a batch: more than the host copies
    with fluid.scope_guard(fluid.Scope()):
        executor = fluid.Executor(place)
        executor.run(startup)
        counts = get_context(place).counts
        for batch in BatchedLoader({"x": x}, 256, place):
            before = counts.copy_in, counts.bytes_in
            executor.run(main, feed=batch)
            assert batch.number < 2 or (counts.copy_in, counts.bytes_in) == before
        assert "0 feeds copied" in executor.explain_last().summary_line()


def test_runs_do_not_write_what_they_are_fed(place: str) -> None:
    x = fluid.layers.data("x", shape=[WIDTH])
    y = fluid.layers.relu(fluid.layers.scale(fluid.layers.reshape(x, [-1, WIDTH // 2, 2]), -1.0))
    executor = fluid.Executor(place)
    for batch in BatchedLoader({"x": X}, SIZE, place):
        rows = X[batch.number * SIZE :][:SIZE]
        for fetches in ([y], [y, x], [x]):
            found = executor.run(feed=batch, fetch_list=fetches)
            np.testing.assert_array_equal(batch["x"].numpy(), rows)
            if fetches[-1] is x:
                np.testing.assert_array_equal(found[-1], rows)


def test_fetches_outlive_their_batch(place: str) -> None:
    x = fluid.layers.data("x", shape=[WIDTH])
    y = fluid.layers.reshape(x, [-1, WIDTH // 2, 2])
    executor = fluid.Executor(place)
    found = [
        executor.run(feed=batch, fetch_list=[x, y], return_numpy=False)
        for batch in BatchedLoader({"x": X}, SIZE, place)
    ]
    for index in (0, 1):
        np.testing.assert_array_equal(np.concatenate([each[index].numpy() for each in found]).reshape(X.shape), X)


def test_another_thread_takes_the_batches(place: str) -> None:
    found: list[Any] = []
    iterator = iter(BatchedLoader({"x": X}, SIZE, place))
    first = next(iterator)
    thread = threading.Thread(target=lambda: found.extend(batch["x"].numpy() for batch in iterator))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(np.concatenate([first["x"].numpy(), *found]), X)
