"""Sources: whatever holds samples, seen as rows that can be asked for by number, or as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fluidlite.base.errors import LoaderError
from fluidlite.tensor.tensor import Tensor

Array = np.ndarray[Any, Any]
Numbers = range | np.ndarray[Any, np.dtype[np.int64]]
"""Of samples: consecutive ones, or any."""
Fields = dict[str, Any]
"""A batch by the names of its fields; of samples that are tuples, by "0", "1", ..."""


class Rows:
    """A source whose samples have numbers, from 0 to ``samples - 1``.

    ``named``: the fields' names, where the source has some.
    """

    samples: int
    named: tuple[str, ...] | None = None

    def columns(self, numbers: Numbers) -> Fields | None:
        """The fields of some samples as arrays; None: it has none, but single samples."""
        return None

    def fetch(self, numbers: Numbers) -> Sequence[Any]:
        """Some samples, in order."""
        raise NotImplementedError


class ArrayRows(Rows):
    """Arrays whose first dim counts the samples; memory-mapped ones are read batch by batch."""

    def __init__(self, arrays: Mapping[str, Array], named: bool) -> None:
        lengths = {name: len(array) if array.ndim else -1 for name, array in arrays.items()}
        if -1 in lengths.values() or len(set(lengths.values())) != 1:
            shown = ", ".join(f"{name}: {list(array.shape)}" for name, array in arrays.items())
            raise LoaderError(
                f"the arrays of a source have different numbers of rows ({shown}); expected one row a sample in each"
            )
        self.arrays = {name: array.view() for name, array in arrays.items()}
        for array in self.arrays.values():
            array.flags.writeable = False  # a transform that writes in place would change the dataset
        self.samples = next(iter(lengths.values()))
        self.named = tuple(arrays) if named else None

    def columns(self, numbers: Numbers) -> Fields:
        """Rows of every array; a view where they are consecutive."""
        chosen = slice(numbers.start, numbers.stop) if isinstance(numbers, range) else numbers
        return {name: array[chosen] for name, array in self.arrays.items()}

    def fetch(self, numbers: Numbers) -> Sequence[Any]:
        """Rows one by one."""
        keys = list(self.arrays)
        if self.named is not None:
            return [{key: self.arrays[key][i] for key in keys} for i in numbers]
        return [tuple(self.arrays[key][i] for key in keys) for i in numbers]


class DatasetRows(Rows):
    """What has ``len`` and ``[i]``: a list of samples, a torch Dataset, a Hugging Face dataset.

    A list of numbers is passed to ``__getitems__``, if it is there (torch's), or to ``[...]`` of what has
    ``column_names`` (Hugging Face's), so that it reads them at once.
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
        found = self.dataset[[int(number) for number in numbers]]
        if not isinstance(found, Mapping):
            raise LoaderError(
                f"the source {type(self.dataset).__name__} has column_names, so that [list of numbers] gives a mapping "
                f"of columns; got {type(found).__name__}"
            )
        return dict(found)

    def fetch(self, numbers: Numbers) -> Sequence[Any]:
        """Samples, all at once where the dataset can."""
        wanted = [int(number) for number in numbers]
        several = getattr(self.dataset, "__getitems__", None)
        if several is None or self.named is not None:
            return [self.dataset[number] for number in wanted]
        found = several(wanted)
        if not hasattr(found, "__len__") or len(found) != len(numbers):
            got = f"{len(found)} samples" if hasattr(found, "__len__") else type(found).__name__
            raise LoaderError(
                f"__getitems__ of the source {type(self.dataset).__name__} gave {got} for {len(numbers)} numbers"
            )
        return list(found)


class Stream:
    """A source that is read from its beginning each time: a reader (a callable), or an iterable.

    ``samples``: how many there are, where the iterable has a len.
    """

    def __init__(self, source: Any) -> None:
        self.source = source
        self.samples: int | None = None
        self._used = False
        self._once = not callable(source) and hasattr(source, "__next__")
        if not callable(source) and hasattr(source, "__len__"):
            self.samples = len(source)

    def open(self) -> Iterator[Any]:
        """Begin anew.

        Raises LoaderError if it is a generator or another iterator that was begun before, or a reader that gives
        nothing to iterate.
        """
        if self._once and self._used:
            raise LoaderError(
                f"the source is a {type(self.source).__name__}, which was read before and does not begin again"
                "\n  Do: give a function that makes one, such as the generator function itself"
            )
        self._used = True
        found = self.source() if callable(self.source) else self.source
        if not isinstance(found, Iterable) or isinstance(found, (str, bytes)):
            raise LoaderError(
                f"the reader {getattr(self.source, '__name__', self.source)!r:.60} gave {type(found).__name__}; "
                "expected something to iterate: samples, one after another"
            )
        return iter(found)


Source = Rows | Stream


def source_of(source: Any, whole_batches: bool = False) -> Source:
    """See what a source is.

    ``source``: an array, a tuple of arrays (or memory-mapped ones), a mapping of names to arrays, the path of a
    ``.npy`` file (or a mapping or tuple of such), a callable that makes an iterable (Fluid's reader), an object with
    ``len`` and ``[i]``, or an iterable.
    ``whole_batches``: what it gives are batches, so that it is read in its own order.
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
    found = {str(name): _array(value) for name, value in pairs}
    if not found or any(array is None for array in found.values()):
        return None
    return {name: array for name, array in found.items() if array is not None}


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
    """Samples of a stream in another order: each is drawn from the ``window`` that were read and not yet given."""
    held: list[Any] = []
    for sample in samples:
        if len(held) < window:
            held.append(sample)
            continue
        at = int(generator.integers(window))
        held[at], sample = sample, held[at]
        yield sample
    for at in generator.permutation(len(held)):
        yield held[at]


Transform = Callable[[Any], Any]
