"""Settings, sources and samples that do not fit are clear errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import FeedError, LoaderError, PlaceError
from fluidlite.loaders import BatchedLoader, FullLoader

X = np.arange(40, dtype=np.float32).reshape(20, 2)


class Rows:
    """A dataset that raises at one sample."""

    def __init__(self, at: int, error: BaseException, samples: int = 20) -> None:
        self.at, self.error, self.samples = at, error, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.at:
            raise self.error
        return {"x": np.full(2, index, np.float32)}


# Settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buffers": 0}, r"buffers is 0; expected an int of 1 or more"),
        ({"buffers": 1.5}, r"buffers is 1.5"),
        ({"preload": 0}, r"preload is 0"),
        ({"preload": 5}, r"preload is 5, but there are 4 buffers.*\n.*Do: more buffers"),
        ({"workers": 0}, r"workers is 0"),
        ({"workers": True}, r"workers is True"),
        ({"batch_size": 0}, r"batch_size is 0"),
        ({"batch_size": None}, r"batch_size is None"),
        ({"batch_size": "8"}, r"batch_size is '8'"),
        ({"yields": "rows"}, r"yields is 'rows'; expected one of 'samples', 'sample lists', 'batches'"),
        ({"yields": "batches"}, r"batch_size is 4, but the source yields batches"),
        ({"yields": "sample lists", "batch_size": None, "drop_last": True}, r"drop_last is True, but"),
        ({"yields": "batches", "batch_size": None, "transform": id}, r"Do: use batch_transform"),
        ({"persistent": True}, r"persistent is True, but the workers are threads.*\n.*Do: processes=True"),
        ({"seed": -1}, r"seed is -1"),
        ({"seed": "a"}, r"seed is 'a'"),
        ({"shuffle": 0.5}, r"shuffle is 0.5"),
        ({"transform": 3}, r"transform is 3; expected a function"),
        ({"batch_transform": "x"}, r"batch_transform is 'x'; expected a function"),
        ({"names": {"x": 1}}, r"names is {'x': 1}; expected a list"),
        ({"names": []}, r"names is \[\]"),
        ({"names": [1]}, r"names holds 1"),
        ({"names": ["x", "x"]}, r"names has a name twice: x, x"),
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    source: Any = (lambda: iter([])) if "yields" in options else {"x": X}
    with pytest.raises(LoaderError, match=message):
        BatchedLoader(source, **{"batch_size": 4, **options})


def test_settings_that_streams_do_not_take() -> None:
    with pytest.raises(LoaderError, match=r"shuffle is True, but the source is read as a stream.*\n.*shuffle=1000"):
        BatchedLoader(lambda: iter([]), 4, shuffle=True)
    with pytest.raises(LoaderError, match=r"workers is 2.*each process would read all of it"):
        BatchedLoader(lambda: iter([]), 4, workers=2, processes=True)
    with pytest.raises(LoaderError, match=r"shuffle is 9, but the source yields batches"):
        BatchedLoader(lambda: iter([]), yields="batches", shuffle=9)
    with pytest.raises(LoaderError, match=r"epoch is -1"):
        BatchedLoader({"x": X}, 4).epoch = -1
    with pytest.raises(PlaceError):
        BatchedLoader({"x": X}, 4, "abacus:0")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (3, "the source is int 3"),
        ("text", "the source is str 'text'"),
        (None, "the source is NoneType"),
        ({"x": X, "y": X[:3]}, r"different numbers of rows \(x: \[20, 2\], y: \[3, 2\]\)"),
        (np.ones(()), r"different numbers of rows \(0: \[\]\)"),
        ({"x": [1, 2]}, "the source is dict"),
        ("/nowhere/x.npy", "cannot be memory-mapped"),
        ({1, 2}, "the source is set"),
        (type("NoLen", (), {"__getitem__": lambda self, i: i})(), r"Do: define __len__"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_sources_that_are_none(source: Any, message: str) -> None:
    with pytest.raises(LoaderError, match=message):
        BatchedLoader(source, 4, names="x")


def test_a_file_that_is_no_array(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(b"not an array")
    with pytest.raises(LoaderError, match="cannot be memory-mapped"):
        BatchedLoader(path, 4, names="x")
    np.save(path, np.array([{}, {}], object), allow_pickle=True)
    with pytest.raises(LoaderError, match="cannot be memory-mapped"):
        BatchedLoader(path, 4, names="x")


# Samples


@pytest.mark.parametrize("how", [{}, {"processes": True}], ids=str)
@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        ([], {}, LoaderError, "is empty"),
        (np.zeros((0, 2), np.float32), {"names": "x"}, LoaderError, "is empty"),
        (lambda: iter([]), {}, LoaderError, "is empty"),
        (X[:3], {"names": "x", "drop_last": True}, LoaderError, "has 3 samples, fewer than batch_size=4"),
        (lambda: iter(X[:3]), {"names": "x", "drop_last": True}, LoaderError, "has 3 samples, fewer than batch_size=4"),
        (lambda: 3, {}, LoaderError, "gave int; expected something to iterate"),
        (lambda: None, {}, LoaderError, "gave NoneType"),
        (lambda: iter([(1, 2)] * 4), {}, LoaderError, r"does not name its fields\n.*names="),
        (lambda: iter([(1, 2)] * 4), {"names": ["a"]}, FeedError, "sample 0 has 2 fields; expected 1: a"),
        (lambda: iter([(1, 2)] * 4), {"names": ["a", "b", "c"]}, FeedError, "sample 0 has 2 fields; expected 3: a, b"),
        (lambda: iter([{"a": 1}, {"b": 1}]), {}, FeedError, "sample 1 has no field 'a'; its fields are b"),
        (lambda: iter([1, 2]), {"names": ["a", "b"]}, FeedError, "sample 0 is int 1; expected a field each for a, b"),
        (lambda: iter([{"a": [1, 2]}, {"a": [3]}]), {}, FeedError, r"row 0 has dims \[2\], row 1 has \[1\]\n.*pad"),
        (lambda: iter([{"a": "text"}]), {}, FeedError, "something else than numbers"),
        (lambda: iter([{"a": np.complex64(1)}]), {}, FeedError, "something else than numbers"),
        ({"a": np.zeros((4, 2), np.complex64)}, {}, FeedError, "complex64, which is no data type"),
        ({"a": np.zeros((4, 2), np.uint64)}, {}, FeedError, "uint64, which is no data type"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value))[:24],
)  # fmt: skip
def test_samples_that_make_no_batch(
    source: Any, options: dict[str, Any], error: Any, message: str, how: dict[str, Any]
) -> None:
    with pytest.raises(error, match=message):
        list(BatchedLoader(source, 4, **options, **how))
    if "drop_last" not in options:
        with pytest.raises(error, match=message):
            list(FullLoader(source, **options))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((20, 3), np.float32), r"declared float32\[-1, 2\].*has dims \[4, 3\]"),
        (np.full((20, 2), 1 << 40), None),
    ],
)
def test_what_does_not_fit_its_declaration(value: Any, message: str | None) -> None:
    x = fluid.layers.data("x", shape=[2])
    small = fluid.layers.data("small", shape=[2], dtype="int32")
    if message is not None:
        with pytest.raises(FeedError, match=message):
            list(BatchedLoader(value, 4, names=[x]))
    else:
        with pytest.raises(FeedError, match="'small' is int32, which goes from"):
            list(BatchedLoader(value, 4, names=[small]))
        assert next(iter(BatchedLoader(value, 4, names=[x])))["x"].dtype == "float32"
    with pytest.raises(FeedError, match="'small' is int32, but it is fed float32 numbers"):
        list(BatchedLoader(X + 0.5, 4, names=[small]))


def test_what_is_not_declared_is_checked_by_the_run() -> None:
    x = fluid.layers.data("x", shape=[2])
    with pytest.raises(FeedError, match=r"float64\[4, 2\].*declares float32"):
        for batch in BatchedLoader({"x": X.astype(np.float64)}, 4):
            fluid.Executor().run(feed=batch, fetch_list=[x])


def test_batches_that_do_not_fit() -> None:
    def reader(*batches: Any) -> Any:
        return lambda: iter(batches)

    def read(source: Any, **options: Any) -> Any:
        return list(BatchedLoader(source, yields="batches", **options))

    assert read(reader({"a": X[:4], "b": X[:3]}))[0].size == 4
    with pytest.raises(FeedError, match="lacks the field b; its fields are a"):
        read(reader({"a": X}), names=["a", "b"])
    with pytest.raises(FeedError, match="a batch is 1 fields; expected an array each for a, b"):
        read(reader((X,)), names=["a", "b"])
    with pytest.raises(FeedError, match="'a' of a batch is no array but"):
        read(reader({"a": np.float32(3) * np.ones(())}))
    words = fluid.layers.data("words", shape=[1], lod_level=1)
    with pytest.raises(FeedError, match=r"has 1 LoD level\(s\); an array does not tell them\n.*create_lod_tensor"):
        read(reader({"words": X[:, :1]}), names=[words])
    with pytest.raises(FeedError, match="yields sample lists, but one is int 3"):
        list(BatchedLoader(lambda: iter([3]), names="x", yields="sample lists"))
    with pytest.raises(FeedError, match="yields sample lists, but one is list"):
        list(BatchedLoader(lambda: iter([[]]), names="x", yields="sample lists"))


def test_results_of_transforms_that_do_not_fit() -> None:
    with pytest.raises(FeedError, match="batch_transform gave NoneType"):
        list(BatchedLoader({"x": X}, 4, batch_transform=lambda batch: None))
    with pytest.raises(FeedError, match="a batch has x: 3 samples; expected 4 in each field"):
        list(BatchedLoader({"x": X}, 4, batch_transform=lambda batch: {"x": batch["x"][:3]}))
    words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
    with pytest.raises(FeedError, match="'words' has 2 rows, but its LoD covers 3"):
        rows = [([1, 2],), ([3],)]
        list(BatchedLoader(rows, 2, names=[words], batch_transform=lambda batch: {"words": batch["words"][:2]}))


def test_sources_that_are_shorter_than_they_say() -> None:
    class Short(Rows):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if index >= 7:
                raise IndexError(f"no sample {index}")
            return super().__getitem__(index)

    got = 0
    with pytest.raises(IndexError, match="no sample 7"):
        for _ in BatchedLoader(Short(-1, OSError()), 3):
            got += 1
    assert got == 2

    class ShortStream:
        def __len__(self) -> int:
            return 9

        def __iter__(self) -> Iterator[Any]:
            return iter([{"x": 1}] * 7)

    with pytest.raises(LoaderError, match="ended after 7 samples; its len says 9"):
        list(BatchedLoader(ShortStream(), 3))

    class Few(Rows):
        def __getitems__(self, numbers: list[int]) -> list[Any]:
            return [self[0]]

    with pytest.raises(LoaderError, match="gave 1 samples for 3 numbers"):
        list(BatchedLoader(Few(-1, OSError()), 3))

    class NoColumns(Rows):
        column_names = ("x",)

        def __getitem__(self, key: Any) -> Any:
            return 3

    with pytest.raises(LoaderError, match="gives a mapping of columns; got int"):
        list(BatchedLoader(NoColumns(-1, OSError()), 3))


def test_a_generator_is_read_once() -> None:
    loader = BatchedLoader(({"x": x} for x in X), 4)
    assert len(list(loader)) == 5
    with pytest.raises(LoaderError, match=r"is a generator, which was read before.*\n.*the generator function"):
        list(loader)
