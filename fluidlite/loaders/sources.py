"""Sources of samples: adapters to rows (random access by number) or to a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fluidlite.base.errors import LoaderError
from fluidlite.tensor.tensor import Tensor

Array = np.ndarray[Any, Any]
Numbers = range | np.ndarray[Any, np.dtype[np.int64]]
"""Numbers of samples: consecutive or arbitrary ones."""
Fields = dict[str, Any]
"""A batch by field names; for samples that are tuples, by "0", "1", ..."""


class Rows:
    """A source with random access to its samples by number, from 0 to ``samples - 1``.

    ``named``: the fields' names, if the source has names.
    """

    samples: int
    named: tuple[str, ...] | None = None

    def columns(self, numbers: Numbers) -> Fields | None:
        """The fields of some samples as arrays; None: the source has no columns."""
        return None

    def fetch(self, numbers: Numbers) -> Sequence[Any]:
        """Some samples, in order."""
        raise NotImplementedError


class ArrayRows(Rows):
    """Arrays whose first dim is the number of samples; memory-mapped ones are read batch by batch."""

    def __init__(self, arrays: Mapping[str, Array], named: bool) -> None:
        lengths = {name: len(array) if array.ndim else -1 for name, array in arrays.items()}
        if -1 in lengths.values() or len(set(lengths.values())) != 1:
            shapes = ", ".join(f"{name}: {list(array.shape)}" for name, array in arrays.items())
            raise LoaderError(
                f"the arrays of a source have different numbers of rows ({shapes}); expected one row a sample in each"
            )
        self.arrays = {name: array.view() for name, array in arrays.items()}
        for array in self.arrays.values():
            array.flags.writeable = False  # a transform that writes in place would change the dataset
        self.samples = next(iter(lengths.values()))
        self.named = tuple(arrays) if named else None

    def columns(self, numbers: Numbers) -> Fields:
        """Rows of every array; a view if they are consecutive."""
        selection = slice(numbers.start, numbers.stop) if isinstance(numbers, range) else numbers
        return {name: array[selection] for name, array in self.arrays.items()}

    def fetch(self, numbers: Numbers) -> Sequence[Any]:
        """Rows one by one."""
        keys = list(self.arrays)
        if self.named is not None:
            return [{key: self.arrays[key][i] for key in keys} for i in numbers]
        return [tuple(self.arrays[key][i] for key in keys) for i in numbers]


class DatasetRows(Rows):
    """An object with ``len`` and ``[i]``: a list of samples, a torch Dataset, a Hugging Face dataset.

    A whole batch is read by one call: ``__getitems__`` (torch) with a list of numbers, or ``[...]`` of a dataset with
    ``column_names`` (Hugging Face).
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        try:
            self.samples = len(dataset)
        except TypeError as exc:
            raise LoaderError(f"the source {type(dataset).__name__} has no len: {exc}") from exc
        names = getattr(dataset, "column_names", None)
        listed = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
        self.named = tuple(names) if listed and names is not None else None

    def columns(self, numbers: Numbers) -> Fields | None:
        """The columns of a Hugging Face dataset; others have none."""
        if self.named is None:
            return None
        fields = self.dataset[[int(number) for number in numbers]]
        if not isinstance(fields, Mapping):
            raise LoaderError(
                f"the source {type(self.dataset).__name__} has column_names, so that [list of numbers] gives a mapping "
                f"of columns; got {type(fields).__name__}"
            )
        return dict(fields)

    def fetch(self, numbers: Numbers) -> Sequence[Any]:
        """Read samples, by one call if the dataset supports that."""
        indices = [int(number) for number in numbers]
        get_items = getattr(self.dataset, "__getitems__", None)
        if get_items is None or self.named is not None:
            return [self.dataset[number] for number in indices]
        samples = get_items(indices)
        if not hasattr(samples, "__len__") or len(samples) != len(numbers):
            got = f"{len(samples)} samples" if hasattr(samples, "__len__") else type(samples).__name__
            raise LoaderError(
                f"__getitems__ of the source {type(self.dataset).__name__} gave {got} for {len(numbers)} numbers"
            )
        return list(samples)


class Stream:
    """A source that each epoch reads from the beginning: a reader (a callable), or an iterable.

    ``samples``: the number of samples, if the iterable has a len.
    """

    def __init__(self, source: Any) -> None:
        self.source = source
        self.samples: int | None = None
        self._used = False
        self._once = not callable(source) and hasattr(source, "__next__")
        if not callable(source) and hasattr(source, "__len__"):
            self.samples = len(source)

    def open(self) -> Iterator[Any]:
        """Start reading from the beginning.

        Raises LoaderError if the source is an iterator that was read before, or a reader that returns no iterable.
        """
        if self._once and self._used:
            raise LoaderError(
                f"the source is a {type(self.source).__name__}, which was read before and does not begin again"
                "\n  Do: give a function that makes one, such as the generator function itself"
            )
        self._used = True
        items = self.source() if callable(self.source) else self.source
        if not isinstance(items, Iterable) or isinstance(items, (str, bytes)):
            raise LoaderError(
                f"the reader {getattr(self.source, '__name__', self.source)!r:.60} gave {type(items).__name__}; "
                "expected something to iterate: samples, one after another"
            )
        return iter(items)


Source = Rows | Stream


def source_of(source: Any, whole_batches: bool = False) -> Source:
    """Adapt a source to Rows or Stream.

    ``source``: an array, a tuple of arrays (or memory-mapped ones), a mapping of names to arrays, the path of a
    ``.npy`` file (or a mapping or tuple of such), a callable that returns an iterable (Fluid's reader), an object with
    ``len`` and ``[i]``, or an iterable.
    ``whole_batches``: its items are batches, so that it is read in its own order.
    Raises LoaderError if it is none of these, or arrays differ in their numbers of rows.
    """
    if isinstance(source, (Rows, Stream)):
        return source
    arrays = None if whole_batches else _arrays(source)
    if arrays is not None:
        return ArrayRows(arrays, isinstance(source, Mapping))
    if isinstance(source, (str, bytes, Path, Mapping, set, frozenset)):
        raise LoaderError(
            f"the source is {type(source).__name__} {source!r:.60}; expected arrays, the path of a .npy file, "
            "a reader, a dataset with len and [i], or an iterable of samples"
        )
    if not whole_batches and not callable(source) and hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        return DatasetRows(source)
    if callable(source) or hasattr(source, "__iter__"):
        return Stream(source)
    do = "\n  Do: define __len__" if hasattr(source, "__getitem__") else ""
    raise LoaderError(
        f"the source is {type(source).__name__} {source!r:.60}, which is no array, no reader, and has neither len and "
        f"[i] nor iter{do}"
    )


def _arrays(source: Any) -> dict[str, Array] | None:
    """The arrays of a source by name, or None if it holds something else."""
    single = _array(source)
    if single is not None:
        return {"0": single}
    if isinstance(source, Mapping):
        pairs: list[tuple[Any, Any]] = list(source.items())
    elif isinstance(source, tuple):
        pairs = list(enumerate(source))
    else:
        return None
    arrays = {str(name): _array(value) for name, value in pairs}
    if not arrays or any(array is None for array in arrays.values()):
        return None
    return {name: array for name, array in arrays.items() if array is not None}


def _array(value: Any) -> Array | None:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, Tensor):
        return value.numpy()
    if isinstance(value, (str, Path)) and str(value).endswith(".npy"):
        try:
            return np.load(value, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
        except (OSError, ValueError) as exc:
            raise LoaderError(f"the source {str(value)!r} cannot be memory-mapped: {exc}") from exc
    return None


def shuffled(samples: Iterator[Any], window: int, generator: np.random.Generator) -> Iterator[Any]:
    """Shuffle a stream: each sample is drawn from a buffer of ``window`` samples."""
    buffer: list[Any] = []
    for sample in samples:
        if len(buffer) < window:
            buffer.append(sample)
            continue
        index = int(generator.integers(window))
        buffer[index], sample = sample, buffer[index]
        yield sample
    for index in generator.permutation(len(buffer)):
        yield buffer[index]


Transform = Callable[[Any], Any]
