"""Whatever holds samples gives the same batches; what it gives is read in order, whole, and as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import FeedError
from fluidlite.loaders import Batch, BatchedLoader, FullLoader

SAMPLES, SIZE = 23, 5
X = np.random.default_rng(3).standard_normal((SAMPLES, 4)).astype(np.float32)
Y = np.arange(SAMPLES, dtype=np.int64).reshape(-1, 1)
DICTS = [{"x": x, "y": y} for x, y in zip(X, Y, strict=True)]
TUPLES = [(x, y) for x, y in zip(X, Y, strict=True)]


class TorchDataset:
    """The protocol of torch's map-style datasets."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        assert type(index) is int
        return ForeignTensor(X[index]), int(Y[index, 0])


class ForeignTensor:
    """Another library's array: NumPy knows it by ``__array__``."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._array if dtype is None else self._array.astype(dtype)

    def __len__(self) -> int:
        return len(self._array)


class TorchDatasetOfLists(TorchDataset):
    """With torch's ``__getitems__``, which reads several samples at once."""

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("__getitems__ is there")

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(X[index], Y[index]) for index in indices]


class TorchIterable:
    """The protocol of torch's IterableDataset, which inherits a ``__getitem__`` that raises."""

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return iter(TUPLES)


class HuggingFace:
    """The protocol of Hugging Face's datasets: numbers give a row, lists give columns of Python lists."""

    column_names = ("x", "y", "text")

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, key: Any) -> dict[str, Any]:
        found = {"x": X[key].tolist(), "y": Y[key].tolist(), "text": [str(k) for k in np.atleast_1d(key)]}
        return found if isinstance(key, list) else {**found, "text": str(key)}


class HuggingFaceIterable:
    """The protocol of Hugging Face's IterableDataset: an iterable of mappings."""

    def __iter__(self) -> Iterator[Any]:
        return iter([{**sample, "text": "more"} for sample in DICTS])


def declared() -> list[fluid.Variable]:
    x = fluid.layers.data("x", shape=[4])
    return [x, fluid.layers.data("y", shape=[1], dtype="int64")]


def stored(folder: Path) -> dict[str, str]:
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", Y)
    return {"x": str(folder / "x.npy"), "y": str(folder / "y.npy")}


SOURCES: dict[str, Callable[[Path], Any]] = {
    "mapping of arrays": lambda folder: {"x": X, "y": Y},
    "tuple of arrays": lambda folder: (X, Y),
    "paths of .npy files": stored,
    "memory-mapped arrays": lambda folder: {k: np.load(v, mmap_mode="r") for k, v in stored(folder).items()},
    "mapping of tensors": lambda folder: {"x": fluid.Tensor().set(X), "y": fluid.Tensor().set(Y)},
    "other byte order": lambda folder: {"x": X.astype(">f4"), "y": Y},
    "list of mappings": lambda folder: DICTS,
    "list of tuples": lambda folder: TUPLES,
    "reader": lambda folder: lambda: iter(TUPLES),
    "decorated reader": lambda folder: fluid.io.buffered(fluid.io.map_readers(lambda s: s, lambda: iter(TUPLES)), 3),
    "composed reader": lambda folder: fluid.io.compose(lambda: iter(X), lambda: iter(Y)),
    "generator": lambda folder: (sample for sample in DICTS),
    "iterable of mappings": lambda folder: dict.fromkeys(range(SAMPLES)) and HuggingFaceIterable(),
    "torch dataset": lambda folder: TorchDataset(),
    "torch dataset of lists": lambda folder: TorchDatasetOfLists(),
    "torch iterable": lambda folder: TorchIterable(),
    "hugging face": lambda folder: HuggingFace(),
}


def collected(loader: Any) -> tuple[list[int], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Sizes of the batches of an epoch, and their samples."""
    batches: list[Batch] = []
    for number, batch in enumerate(loader):
        assert batch.number == number
        batches.append(batch)
    xs, ys = (np.concatenate([batch[name].numpy() for batch in batches]) for name in ("x", "y"))
    return [batch.size for batch in batches], xs, ys


@pytest.mark.parametrize("source", SOURCES)
def test_every_kind_of_source(source: str, place: str, tmp_path: Path) -> None:
    loader = BatchedLoader(SOURCES[source](tmp_path), SIZE, place, declared())
    sizes, xs, ys = collected(loader)
    assert sizes == [5, 5, 5, 5, 3]
    np.testing.assert_array_equal(xs, X)
    np.testing.assert_array_equal(ys, Y)
    assert (xs.dtype, ys.dtype) == (np.float32, np.int64)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("options", [{"workers": 3}, {"processes": True}], ids=str)
def test_workers_and_processes(source: str, options: dict[str, Any], tmp_path: Path) -> None:
    loader = BatchedLoader(SOURCES[source](tmp_path), SIZE, names=declared(), **options)
    sizes, xs, ys = collected(loader)
    assert sizes == [5, 5, 5, 5, 3]
    np.testing.assert_array_equal(xs, X)
    np.testing.assert_array_equal(ys, Y)


@pytest.mark.parametrize("source", SOURCES)
def test_the_full_loader(source: str, place: str, tmp_path: Path) -> None:
    loader = FullLoader(SOURCES[source](tmp_path), place, declared())
    sizes, xs, ys = collected(loader)
    assert (sizes, len(loader), loader.batch_size) == ([SAMPLES], 1, None)
    np.testing.assert_array_equal(xs, X)
    np.testing.assert_array_equal(ys, Y)
    before = fluid.memory.stats(place).allocations
    (again,) = loader
    assert again.epoch == 1
    assert fluid.memory.stats(place).allocations == before  # it is there
    assert again["x"].place == fluid.Place.parse(place)


def test_facts_of_a_loader() -> None:
    loader = BatchedLoader({"x": X, "y": Y}, SIZE, drop_last=True)
    assert (len(loader), loader.samples, loader.batch_size, loader.names) == (4, SAMPLES, SIZE, ("x", "y"))
    assert len(BatchedLoader({"x": X}, SIZE)) == 5
    assert len(list(loader)) == 4
    stream = BatchedLoader(lambda: iter(DICTS), SIZE)
    assert (stream.samples, stream.names) == (None, None)
    with pytest.raises(TypeError, match="no len"):
        len(stream)


@pytest.mark.parametrize("source", [{"x": X, "y": Y}, lambda: iter(DICTS)], ids=["rows", "stream"])
def test_a_smaller_last_batch_is_kept_or_dropped(source: Any, place: str) -> None:
    assert collected(BatchedLoader(source, 9, place))[0] == [9, 9, 5]
    sizes, xs, _ = collected(BatchedLoader(source, 9, place, drop_last=True))
    assert sizes == [9, 9]
    np.testing.assert_array_equal(xs, X[:18])


@pytest.mark.parametrize("options", [{"shuffle": True}, {"shuffle": 7, "stream": True}], ids=["rows", "stream"])
def test_shuffling_follows_seed_and_epoch(options: dict[str, Any]) -> None:
    source: Any = (lambda: iter(DICTS)) if options.pop("stream", False) else {"x": X, "y": Y}

    def orders(seed: int, first: int = 0, **more: Any) -> list[list[int]]:
        loader = BatchedLoader(source, SIZE, seed=seed, **options, **more)
        loader.epoch = first
        return [collected(loader)[2].ravel().tolist() for _ in range(3)]

    found = orders(5)
    assert all(sorted(order) == list(range(SAMPLES)) for order in found)
    assert len({tuple(order) for order in found}) == 3
    assert found == orders(5) == orders(5, processes=True)
    assert orders(5, first=2)[0] == found[2]  # goes on where a run was stopped
    assert orders(6)[0] != found[0]


def test_transforms_run_on_samples_and_on_batches() -> None:
    def one(sample: dict[str, Any]) -> dict[str, Any]:
        return {"x": sample["x"] * 2, "y": sample["y"]}

    def whole(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": batch["x"] + 1, "y": batch["y"]}

    for options in ({}, {"processes": True, "workers": 2}):
        loader = BatchedLoader({"x": X, "y": Y}, SIZE, transform=one, batch_transform=whole, **options)
        np.testing.assert_array_equal(collected(loader)[1], X * 2 + 1)


def test_what_is_declared_holds_of_what_transforms_give() -> None:
    def scaled(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": batch["x"].astype(np.float32) / 255, "y": batch["y"]}

    raw = (X * 100).astype(np.uint8)
    loader = BatchedLoader((raw, Y), SIZE, names=declared(), batch_transform=scaled)
    np.testing.assert_array_equal(collected(loader)[1], raw.astype(np.float32) / 255)


def test_transforms_cannot_change_the_dataset() -> None:
    def in_place(batch: dict[str, Any]) -> dict[str, Any]:
        batch["x"] += 1
        return batch

    with pytest.raises(ValueError, match="read-only"):
        list(BatchedLoader({"x": X, "y": Y}, SIZE, batch_transform=in_place))


def test_whole_batches_and_lists_of_samples(place: str) -> None:
    lists = fluid.batch(lambda: iter(TUPLES), 10)
    sizes, xs, _ = collected(BatchedLoader(lists, None, place, declared(), yields="sample lists"))
    assert sizes == [10, 10, 3]
    np.testing.assert_array_equal(xs, X)

    def batches() -> Iterator[Any]:
        yield X[:3], Y[:3]
        yield {"y": Y[3:10], "x": fluid.Tensor().set(X[3:10])}
        yield [X[10:], Y[10:]]

    sizes, xs, ys = collected(BatchedLoader(batches, None, place, declared(), yields="batches"))
    assert sizes == [3, 7, 13]
    np.testing.assert_array_equal(xs, X)
    np.testing.assert_array_equal(ys, Y)


def test_sequences_become_lod(place: str) -> None:
    words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
    label = fluid.layers.data("label", shape=[1], dtype="int64")
    texts = [list(range(n)) for n in (3, 1, 4, 1, 5, 9, 2)]
    samples = [(text, number) for number, text in enumerate(texts)]
    for options in ({}, {"processes": True}):
        batches = list(BatchedLoader(samples, 3, place, [words, label], **options))
        assert [batch["words"].recursive_sequence_lengths() for batch in batches] == [[[3, 1, 4]], [[1, 5, 9]], [[2]]]
        assert [batch.size for batch in batches] == [3, 3, 1]
        for number, batch in enumerate(batches):
            wanted = [word for text in texts[3 * number : 3 * number + 3] for word in text]
            assert batch["words"].numpy().ravel().tolist() == wanted
            assert not batch["label"].lod()


def test_sequences_of_sequences_and_tensors_with_lod() -> None:
    nested = fluid.layers.data("nested", shape=[2], dtype="float32", lod_level=2)
    samples = [([[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]],), ([[[7.0, 8.0]]],)]
    (batch,) = BatchedLoader(samples, 2, names=[nested])
    assert batch["nested"].recursive_sequence_lengths() == [[2, 1], [1, 2, 1]]
    assert batch["nested"].numpy().tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]

    tensor = fluid.create_lod_tensor(np.arange(6, dtype=np.float32).reshape(6, 1), [[2, 4]], "cpu")
    (whole,) = BatchedLoader(lambda: iter([{"t": tensor}]), yields="batches")
    assert (whole.size, whole["t"].lod()) == (2, [[0, 2, 6]])


def test_the_same_loader_for_another_place(place: str) -> None:
    loader = BatchedLoader((X, Y), SIZE, "cpu", shuffle=True)
    loader.epoch = 3
    other = loader.on(place, names=declared())
    assert other.place == fluid.Place.parse(place)
    assert other.epoch == 3
    np.testing.assert_array_equal(collected(other)[2], collected(loader.on("cpu", ["x", "y"]))[2])
    assert FullLoader((X, Y)).on(place, ["x", "y"]).place == fluid.Place.parse(place)


def test_samples_of_one_field() -> None:
    for source in (X, list(X), lambda: iter(X)):
        (batch,) = BatchedLoader(source, SAMPLES, names="x")
        np.testing.assert_array_equal(batch["x"].numpy(), X)


def test_two_epochs_at_once() -> None:
    loader = BatchedLoader({"x": X, "y": Y}, SIZE)
    for a, b in zip(loader, loader, strict=True):
        np.testing.assert_array_equal(a["x"].numpy(), b["x"].numpy())
        assert b.epoch == a.epoch + 1


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("form", ["mapping", "sequence", "tensors"])
def test_a_source_may_refill_the_arrays_of_a_batch(workers: int, form: str) -> None:
    def source() -> Iterator[Any]:
        array = np.zeros((2, 2), "float32")
        for n in range(12):
            array[:] = n
            yield {"x": array} if form == "mapping" else [array] if form == "sequence" else {"x": tensor.set(array)}

    def slow(columns: Any) -> Any:
        sleep(0.002)
        return columns

    tensor = fluid.Tensor()
    loader = BatchedLoader(
        source,
        yields="batches",
        workers=workers,
        preload=4,
        batch_transform=slow,
        names=["x"] if form == "sequence" else None,
    )
    assert [float(batch["x"].numpy()[0, 0]) for batch in loader] == list(range(12))


def test_a_sample_of_other_dims_is_refused() -> None:
    """A flat row is reshaped, and dims of 1 come and go; another order of dims is not guessed."""
    image = fluid.layers.data("image", [3, 4])
    numbers = np.arange(24, dtype="float32")
    for dims in ((2, 3, 4), (2, 12), (2, 1, 12), (2, 3, 1, 4), (2, 1, 3, 4)):
        (batch,) = BatchedLoader({"image": numbers.reshape(dims)}, 2, names=[image])
        np.testing.assert_array_equal(batch["image"].numpy(), numbers.reshape(2, 3, 4))
        held = fluid.DataFeeder([image], "cpu").feed([(row,) for row in numbers.reshape(dims)])["image"]
        np.testing.assert_array_equal(np.asarray(held), numbers.reshape(2, 3, 4))
    for dims in ((2, 4, 3), (2, 2, 6), (2, 2, 2, 3), (2, 6, 1, 2)):
        with pytest.raises(FeedError, match="image"):
            list(BatchedLoader({"image": numbers.reshape(dims)}, 2, names=[image]))
        with pytest.raises(FeedError, match="image"):
            fluid.DataFeeder([image], "cpu").feed([(row,) for row in numbers.reshape(dims)])
