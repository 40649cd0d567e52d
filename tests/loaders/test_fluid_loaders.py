"""Fluid's DataLoader, PyReader and py_reader, as programs of Fluid 1.x use them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import FeedError, LoaderError, ProgramError

BATCHES, SIZE = 5, 4
X = np.random.default_rng(2).standard_normal((BATCHES * SIZE, 3)).astype(np.float32)
Y = np.arange(BATCHES * SIZE, dtype=np.int64).reshape(-1, 1)


def samples() -> Iterator[Any]:
    yield from zip(X, Y, strict=True)


def sample_lists() -> Iterator[Any]:
    yield from fluid.batch(samples, SIZE)()


def batches() -> Iterator[Any]:
    for first in range(0, len(X), SIZE):
        yield X[first : first + SIZE], Y[first : first + SIZE]


def lod_batches() -> Iterator[Any]:
    for first in range(0, len(X), SIZE):
        yield fluid.create_lod_tensor(X[first : first + SIZE], [[1, 3]], "cpu"), Y[first : first + SIZE]


WAYS = {
    "sample": lambda loader, places: loader.set_sample_generator(samples, SIZE, places=places),
    "sample list": lambda loader, places: loader.set_sample_list_generator(sample_lists, places),
    "batch": lambda loader, places: loader.set_batch_generator(batches, places),
}
OLD_WAYS = {
    "sample": lambda loader, places: loader.decorate_sample_generator(samples, SIZE, places=places),
    "sample list": lambda loader, places: loader.decorate_sample_list_generator(sample_lists, places),
    "batch": lambda loader, places: loader.decorate_batch_generator(batches, places),
}


def inputs() -> list[fluid.Variable]:
    return [fluid.layers.data("x", [3]), fluid.layers.data("y", [1], dtype="int64")]


def mean_of(feeds: Any, executor: fluid.Executor, *fetches: fluid.Variable) -> Any:
    """What a loop over an iterable loader fetches."""
    return [executor.run(feed=data, fetch_list=list(fetches)) for data in feeds]


@pytest.mark.parametrize(
    "make", [fluid.io.DataLoader.from_generator, fluid.io.PyReader], ids=["DataLoader", "PyReader"]
)
@pytest.mark.parametrize("way", WAYS)
def test_iterable(make: Any, way: str, place: str) -> None:
    x, y = inputs()
    out = fluid.layers.scale(x, 2.0)
    loader = make(feed_list=[x, y], capacity=64)
    (WAYS if make is not fluid.io.PyReader else OLD_WAYS)[way](loader, [fluid.Place.parse(place)])
    executor = fluid.Executor(place)
    for _ in range(2):  # epochs
        found = mean_of(loader(), executor, out, y)
        np.testing.assert_array_equal(np.concatenate([each[0] for each in found]), 2 * X)
        np.testing.assert_array_equal(np.concatenate([each[1] for each in found]), Y)


def test_lists_of_tensors(place: str) -> None:
    loader = fluid.io.DataLoader.from_generator(inputs(), 4, return_list=True, use_double_buffer=False)
    loader.set_batch_generator(lod_batches, places=fluid.Place.parse(place))
    (first,), *_ = list(loader())
    assert isinstance(first, list)
    assert first[0].lod() == [[0, 1, 4]]
    assert first[0].place == fluid.Place.parse(place)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("given", [True, False], ids=["places", "no places"])
def test_feeding_a_program(way: str, given: bool, place: str) -> None:
    x, y = inputs()
    out = fluid.layers.scale(x, 2.0)
    loader = fluid.io.DataLoader.from_generator([x, y], capacity=2, iterable=False)
    WAYS[way](loader, [fluid.Place.parse(place)] if given else None)
    executor = fluid.Executor(place)
    for _ in range(2):
        loader.start()
        found = []
        with pytest.raises(fluid.core.EOFException, match=r"no more batches\n.*reset"):
            while True:
                found.append(executor.run(fetch_list=[out, y]))
        with pytest.raises(fluid.core.EOFException):
            executor.run(fetch_list=[out])
        loader.reset()
        np.testing.assert_array_equal(np.concatenate([each[0] for each in found]), 2 * X)
        np.testing.assert_array_equal(np.concatenate([each[1] for each in found]), Y)
    assert fluid.core.EOFException.__mro__.index(EOFError)


def test_py_reader_trains_and_tests(place: str) -> None:
    """The form of Fluid's own examples: two programs, a reader each, parameters shared."""

    def net(is_test: bool) -> Any:
        reader = fluid.layers.py_reader(
            8, [[-1, 3], [-1, 1]], ["float32", "int64"], lod_levels=[0, 0], name="test" if is_test else "train"
        )
        reader = fluid.layers.double_buffer(reader)
        x, y = fluid.layers.read_file(reader)
        out = fluid.layers.fc(x, 1, param_attr=fluid.ParamAttr("w", fluid.initializer.Constant(0.1)), bias_attr=False)
        return reader, fluid.layers.mean(fluid.layers.square_error_cost(out, fluid.layers.cast(y, "float32")))

    main, startup, test = fluid.Program(), fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        train_reader, loss = net(False)
        fluid.optimizer.SGD(0.001).minimize(loss)
    with fluid.program_guard(test, fluid.Program()), fluid.unique_name.guard():
        test_reader, test_loss = net(True)
    train_reader.decorate_paddle_reader(fluid.batch(samples, SIZE))
    test_reader.decorate_tensor_provider(batches)
    executor = fluid.Executor(place)
    executor.run(startup)
    losses: dict[str, list[float]] = {"train": [], "test": []}
    for _ in range(3):
        for reader, program, fetch, name in (
            (train_reader, main, loss, "train"), (test_reader, test, test_loss, "test"),
        ):  # fmt: skip
            reader.start()
            try:
                while True:
                    losses[name].append(float(executor.run(program, fetch_list=[fetch])[0][0]))
            except fluid.core.EOFException:
                reader.reset()
    weights, wanted = np.full((3, 1), 0.1), []
    for _ in range(3):
        for number in range(BATCHES):
            x, y = X[number * SIZE :][:SIZE].astype(np.float64), Y[number * SIZE :][:SIZE]
            error = x @ weights - y
            wanted.append(float((error**2).mean()))
            weights -= 0.001 * 2 / SIZE * x.T @ error
    np.testing.assert_allclose(losses["train"], wanted, rtol=1e-4)
    assert len(losses["test"]) == len(losses["train"])


def test_the_queue_of_a_reader_has_a_size() -> None:
    """Scripts print ``py_reader.queue.size()`` at each step."""
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        reader = fluid.layers.py_reader(4, [[-1, 3], [-1, 1]], ["float32", "int64"])
        x, _ = fluid.layers.read_file(reader)
        total = fluid.layers.reduce_sum(x)
        reader.decorate_tensor_provider(batches)
        executor = fluid.Executor("cpu")
        sizes = [reader.queue.size()]
        for _ in range(2):
            reader.start()
            with pytest.raises(fluid.core.EOFException):
                while True:
                    executor.run(fetch_list=[total])
                    sizes.append(reader.queue.size())
            reader.reset()
            sizes.append(reader.queue.size())
    assert sizes[0] == sizes[-1] == sizes[len(sizes) // 2] == 0 and 0 <= min(sizes) <= max(sizes) <= 4


def test_variables_that_are_there(place: str) -> None:
    x, y = inputs()
    total = fluid.layers.reduce_sum(x)
    reader = fluid.layers.create_py_reader_by_data(2, [x, y])
    assert fluid.layers.read_file(reader) == [x, y]
    reader.decorate_batch_generator(batches, [fluid.Place.parse(place)])
    clone = fluid.default_main_program().clone(for_test=True)
    reader.start()
    executor = fluid.Executor(place)
    first = executor.run(fetch_list=[total])[0]
    second = executor.run(clone, fetch_list=[total.name])[0]  # copies share the reader
    np.testing.assert_allclose(
        [first, second], X[: 2 * SIZE].reshape(2, -1).sum(1, keepdims=True)[:, 0].reshape(2, *first.shape), rtol=1e-5
    )
    reader.reset()
    found = executor.run(feed={"x": X, "y": Y}, fetch_list=[total])[0]  # one that was not started is left alone
    np.testing.assert_allclose(found, X.sum().reshape(found.shape), rtol=1e-4)
    pruned = fluid.default_main_program().prune([total], feeds=[x])
    assert not pruned.readers
    executor.run(pruned, feed={"x": X}, fetch_list=[total.name])


def test_a_single_variable_of_sequences() -> None:
    reader = fluid.layers.py_reader(2, [[-1, 1]], ["int64"], lod_levels=[1])
    words = fluid.layers.read_file(reader)
    reader.decorate_paddle_reader(fluid.batch(lambda: iter([([1, 2, 3],), ([4],)]), 2))
    reader.start()
    (found,) = fluid.Executor().run(fetch_list=[words], return_numpy=False)
    assert found.recursive_sequence_lengths() == [[3, 1]]
    reader.reset()


def test_a_reset_in_the_middle(place: str) -> None:
    x, y = inputs()
    loader = fluid.io.DataLoader.from_generator([x, y], 2, iterable=False)
    loader.set_sample_generator(samples, SIZE, places=fluid.Place.parse(place))
    executor = fluid.Executor(place)
    for _ in range(3):
        loader.start()
        for number in range(2):
            found = executor.run(fetch_list=[y])[0]
            np.testing.assert_array_equal(found, Y[number * SIZE :][:SIZE])
        loader.reset()


def test_threads_share_the_batches_of_an_epoch() -> None:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        reader = fluid.layers.py_reader(4, [[-1, 1]], ["float32"])
        y = fluid.layers.scale(fluid.layers.read_file(reader), 2.0)
    reader.decorate_tensor_provider(lambda: ([np.full((1, 1), i, "float32")] for i in range(100)))
    executor = fluid.Executor("cpu")
    executor.run(fluid.Program())
    for _ in range(3):
        taken: list[float] = []

        def work(taken: list[float] = taken) -> None:
            with contextlib.suppress(fluid.core.EOFException):
                while True:
                    taken.append(executor.run(main, fetch_list=[y])[0].item() / 2)

        reader.start()
        threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert sorted(taken) == list(range(100))
        reader.reset()


@pytest.mark.parametrize("count", [1, 3])
def test_threads_share_an_iterator(count: int) -> None:
    """Each batch goes to one of them, and those of a list are consecutive."""
    loader = fluid.io.DataLoader.from_generator(inputs(), 4)
    numbers = 60 * count
    loader.set_batch_generator(
        lambda: ([np.zeros((1, 3), "float32"), np.full((1, 1), i, "int64")] for i in range(numbers)),
        fluid.cpu_places(count),
    )
    lists, taken = loader(), list[list[int]]()

    def work() -> None:
        for group in lists:
            taken.append([int(feed["y"].numpy().item()) for feed in group])

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work) for _ in range(4)]:
            future.result()
    assert sorted(taken) == np.arange(numbers).reshape(-1, count).tolist()


def test_a_process_reads() -> None:
    loader = fluid.io.DataLoader.from_generator(inputs(), 2, use_multiprocess=True)
    loader.set_sample_list_generator(sample_lists)
    np.testing.assert_array_equal(np.concatenate([data["y"].numpy() for (data,) in loader]), Y)


def test_several_places() -> None:
    places = fluid.cpu_places(2)
    loader = fluid.io.DataLoader.from_generator(inputs(), 2)
    loader.set_batch_generator(batches, places)
    groups = list(loader())
    assert [[int(each["y"].numpy()[0, 0]) for each in group] for group in groups] == [[0, 4], [8, 12]]
    kept = fluid.io.DataLoader.from_generator(inputs(), 2, drop_last=False).set_batch_generator(batches, places)
    assert [len(group) for group in kept()] == [2, 2, 1]


def test_an_exception_of_the_generator_comes_at_its_run() -> None:
    x, y = inputs()

    def bad() -> Iterator[Any]:
        yield X[:2], Y[:2]
        raise OSError("the disk is away")

    loader = fluid.io.DataLoader.from_generator([x, y], 2, iterable=False).set_batch_generator(bad)
    loader.start()
    executor = fluid.Executor()
    executor.run(fetch_list=[x])
    with pytest.raises(OSError, match="the disk is away"):
        executor.run(fetch_list=[x])
    loader.reset()
    loader.start()
    executor.run(fetch_list=[x])
    loader.reset()


def test_datasets() -> None:
    class Dataset:
        batch_size = SIZE

        def __len__(self) -> int:
            return len(X) - 1

        def __getitem__(self, index: int) -> Any:
            return X[index], Y[index]

    loader = fluid.io.DataLoader.from_dataset(Dataset(), fluid.cpu_places(1), use_vars=inputs())
    assert sum(len(data["y"].numpy()) for (data,) in loader()) == (BATCHES - 1) * SIZE
    kept = fluid.io.DataLoader.from_dataset(Dataset(), "cpu", False, inputs(), batch_size=3)
    assert sum(len(data["y"].numpy()) for (data,) in kept()) == len(X) - 1
    with pytest.raises(LoaderError, match="has no use_vars"):
        fluid.io.DataLoader.from_dataset(Dataset(), "cpu")
    with pytest.raises(ProgramError, match="takes no generator"):
        loader.set_batch_generator(batches)


def test_misuse() -> None:
    x, y = inputs()
    make = fluid.io.DataLoader.from_generator
    with pytest.raises(LoaderError, match="feed_list is empty"):
        make(capacity=2)
    with pytest.raises(LoaderError, match="feed_list holds 'x'"):
        make(["x"], 2)
    with pytest.raises(LoaderError, match="capacity is 0"):
        make([x], 0)
    with pytest.raises(LoaderError, match="the reader is list; expected a function"):
        make([x], 2).set_batch_generator([1])
    with pytest.raises(LoaderError, match="batch_size is 0"):
        make([x], 2).set_sample_generator(samples, 0)
    with pytest.raises(LoaderError, match="places is empty"):
        make([x], 2).set_batch_generator(batches, [])
    with pytest.raises(ProgramError, match=r"has no generator\n"):
        next(iter(make([x], 2)()))
    with pytest.raises(ProgramError, match="is iterable"):
        make([x], 2).set_batch_generator(batches).start()
    loader = make([x, y], 2, iterable=False)
    with pytest.raises(ProgramError, match="has no generator"):
        loader.start()
    with pytest.raises(ProgramError, match="is not iterable"):
        loader()
    loader.set_batch_generator(batches)
    executor = fluid.Executor()
    with pytest.raises(ProgramError, match=r"feeds x, y, and was not started\n.*start\(\)"):
        executor.run(fetch_list=[x])
    loader.start()
    with pytest.raises(ProgramError, match="was started before"):
        loader.start()
    with pytest.raises(ProgramError, match=r"was started\n.*reset"):
        loader.set_batch_generator(batches)
    with pytest.raises(FeedError, match="the feed names 'x', which the reader"):
        executor.run(feed={"x": X}, fetch_list=[x])
    loader.reset()
    loader.reset()


def test_misuse_of_layers() -> None:
    with pytest.raises(ProgramError, match="shapes"):
        fluid.layers.py_reader(2, [], [])
    with pytest.raises(ProgramError, match="dtypes"):
        fluid.layers.py_reader(2, [[-1, 1]], ["float32", "int64"])
    with pytest.raises(ProgramError, match="lod_levels"):
        fluid.layers.py_reader(2, [[-1, 1]], ["float32"], lod_levels=[])
    with pytest.raises(ProgramError, match="reader"):
        fluid.layers.read_file(3)
    with pytest.raises(ProgramError, match="reader"):
        fluid.layers.double_buffer("reader")
    assert not fluid.default_main_program().readers
