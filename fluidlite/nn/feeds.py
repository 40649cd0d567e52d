"""Convert batches of a loader to feeds, by the names of a network's variables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fluidlite.base.dtypes import NUMPY
from fluidlite.base.errors import NetworkError
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor import Tensor

Feed = dict[str, Any]


def feed_of(batch: Any, variables: Sequence[Variable], what: str) -> Feed:
    """Convert a batch, a mapping by name or a sequence in order, to a feed of the variables.

    Raises NetworkError if it lacks a field, or the fields differ in their number of rows.
    """
    names = [variable.name for variable in variables]
    if isinstance(batch, Mapping):
        missing = [name for name in names if name not in batch]
        if missing:
            raise NetworkError(
                f"{what} has no {missing[0]!r}; it has {', '.join(map(str, batch)) or 'nothing'}, and the network "
                f"takes {', '.join(names)}\n  Do: let the loader name its fields so"
            )
        values = [batch[name] for name in names]
    elif isinstance(batch, (tuple, list)):
        if len(batch) != len(names):
            raise NetworkError(f"{what} has {len(batch)} fields; expected {len(names)}: {', '.join(names)}")
        values = list(batch)
    elif len(names) == 1:
        values = [batch]
    else:
        raise NetworkError(f"{what} is {type(batch).__name__}; expected {', '.join(names)}, as a mapping or a tuple")
    feed = {name: _fitted(value, variable) for name, value, variable in zip(names, values, variables, strict=True)}
    rows_of(feed, what)
    return feed


def _fitted(value: Any, variable: Variable) -> Any:
    """Convert a value to an array; a vector of labels gets the trailing dim of 1 that operators expect."""
    if isinstance(value, Tensor):
        return value
    array = np.asarray(value)
    dims = variable.shape
    if array.ndim == len(dims) - 1 and dims[-1] == 1:
        array = array[..., None]
    if array.dtype != variable.dtype and array.dtype.kind in "iufb" and np.can_cast(array.dtype, variable.dtype):
        array = array.astype(variable.dtype)
    return array


def rows_of(feed: Mapping[str, Any], what: str) -> int:
    """Return the number of rows of a feed; raise NetworkError if its fields differ."""
    counts = {name: _rows(value) for name, value in feed.items()}
    if len(set(counts.values())) > 1:
        raise NetworkError(
            f"{what} has {', '.join(f'{count} rows of {name!r}' for name, count in counts.items())}; expected as many"
        )
    return int(next(iter(counts.values())))


def _rows(value: Any) -> int:
    if not (value.dims if isinstance(value, Tensor) else value.shape):
        raise NetworkError(f"got the number {value!r:.60}; expected an array whose first dim counts the rows")
    return int(value.dims[0] if isinstance(value, Tensor) else value.shape[0])


def shard_of(feed: Feed, rank: int, ranks: int, what: str) -> Feed:
    """Return the rows of process ``rank``; the parts differ by at most one row."""
    if ranks == 1:
        return feed
    rows = rows_of(feed, what)
    if rows < ranks:
        raise NetworkError(
            f"{what} has {rows} rows for {ranks} processes; each needs one\n  Do: drop_last=True, or another batch size"
        )
    first, last = rows * rank // ranks, rows * (rank + 1) // ranks
    return {name: value[first:last] for name, value in feed.items()}


def batches(
    source: Iterable[Any], variables: Sequence[Variable], what: str, skip: int = 0, rank: int = 0, ranks: int = 1
) -> Iterator[tuple[int, Feed, int]]:
    """Yield for each batch of a loader its number, its feed and its number of rows.

    ``skip``: the number of batches to skip.
    ``rank``, ``ranks``: of each batch, yield the part of one of several processes.
    """
    if isinstance(source, (str, bytes, Mapping)) or not isinstance(source, Iterable):
        raise NetworkError(f"{what} is {type(source).__name__}; expected a loader: an iterable of batches")
    fast = FastFeeds(variables)
    for number, batch in enumerate(source):
        if number < skip:
            continue
        feed = fast.feed(batch)
        if feed is not None and ranks == 1:
            yield number, feed, fast.rows
            continue
        if feed is None:
            feed = feed_of(batch, variables, f"batch {number} of {what}")
        feed = shard_of(feed, rank, ranks, f"batch {number}")
        yield number, feed, _rows(next(iter(feed.values())))


class FastFeeds:
    """The fast path of :func:`feed_of`, for batches that match the variables' declarations.

    :func:`feed_of` takes as long for a batch as a small network for a step.

    ``variables``: input and label; with another number of variables, all batches take the slow path.
    ``rows``: the number of rows of the last feed.
    """

    def __init__(self, variables: Sequence[Variable]) -> None:
        self._variables = list(variables)
        self._first, self._second = (v.name for v in variables) if len(self._variables) == 2 else ("", "")
        self._key: Any = None
        self.rows = 0

    def feed(self, batch: Any) -> Feed | None:
        """Return the batch as a feed; None: take the slow path."""
        kind = type(batch)
        if kind is tuple or kind is list:
            if len(batch) != 2:
                return None
            x, y = batch
            feed = {self._first: x, self._second: y}
        elif isinstance(batch, dict) and len(batch) == 2:
            x, y = batch.get(self._first), batch.get(self._second)
            feed = batch
        else:
            return None
        key: Any
        if type(x) is np.ndarray and type(y) is np.ndarray:
            key = x.shape, y.shape, x.dtype, y.dtype
        elif type(x) is Tensor and type(y) is Tensor:
            key = x.spec, y.spec
        else:
            return None
        if key != self._key:  # dims and dtypes of the last batch are not checked again
            if not self._fit((x, y)):
                return None
            self._key, self.rows = key, _rows(x)
        return feed

    def _fit(self, values: Sequence[Any]) -> bool:
        if len(self._variables) != 2 or not all(
            value.ndim if isinstance(value, np.ndarray) else value.spec and value.dims for value in values
        ):
            return False
        if _rows(values[0]) != _rows(values[1]):
            return False
        return all(
            isinstance(value, Tensor) or (value.ndim == len(variable.shape) and value.dtype == NUMPY[variable.dtype])
            for value, variable in zip(values, self._variables, strict=True)
        )
