"""Producers: read samples from a source and assemble them to host batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fluidlite.base.errors import FeedError, LoaderError
from fluidlite.loaders.assembly import Assembler, Field, HostBatch
from fluidlite.loaders.settings import Settings
from fluidlite.loaders.sources import Numbers, Rows, Stream, shuffled
from fluidlite.tensor.tensor import Tensor

END = "end"
"""A request, or its result, at the end of a source."""


class Producer:
    """One epoch of a source.

    ``request`` determines the samples of the next batch; one thread at a time may call it. ``produce`` assembles the
    batch, and may run on several threads.

    ``local``: a request must be produced in the same process.
    """

    local = True

    def __init__(self, settings: Settings, epoch: int) -> None:
        self.settings = settings
        fields = settings.fields
        self._assembler = Assembler(fields)
        self._raw = self._assembler
        if settings.batch_transform is not None and fields is not None:  # declarations apply to the transform's results
            self._raw = Assembler(tuple(Field(f.name, f.spec if f.spec and f.spec.lod_level else None) for f in fields))
        self.epoch = epoch
        self.first = 0
        """Number of batches to skip: a stopped run has processed them."""

    def request(self) -> Any:
        """The samples of the next batch, or END."""
        raise NotImplementedError

    def produce(self, request: Any) -> Any:
        """Assemble a HostBatch; return END if the source has ended only now."""
        raise NotImplementedError

    def request_end(self) -> None:
        """Request the producer to end after the current batch."""

    def kill(self) -> None:
        """Abort the current batch at once, without waiting for a lock."""

    def stop(self) -> None:
        """Abort the current batch, if possible."""

    def close(self) -> None:
        """Release the source."""

    def _assembled(self, samples: Sequence[Any]) -> HostBatch:
        transform = self.settings.transform
        if transform is not None:
            samples = [transform(sample) for sample in samples]
        return self._transformed(self._raw.from_samples(samples))

    def _transformed(self, batch: HostBatch) -> HostBatch:
        transform = self.settings.batch_transform
        if transform is None:
            return batch
        lods = {field.name: field.lod for field in batch.fields}
        columns = transform({field.name: field.array for field in batch.fields})
        if not isinstance(columns, Mapping) or not columns:
            raise FeedError(f"batch_transform gave {type(columns).__name__}; expected a mapping of names to arrays")
        return self._assembler.from_columns(columns, batch.size, lods)


class RowsProducer(Producer):
    """The producer of Rows: a batch is a range of the epoch's order, which may be shuffled."""

    local = False

    def __init__(self, settings: Settings, epoch: int) -> None:
        super().__init__(settings, epoch)
        source = settings.source
        assert isinstance(source, Rows) and settings.batch_size is not None and settings.batches is not None
        self._rows = source
        self._order: Numbers = range(source.samples)
        if settings.shuffle:
            self._order = np.random.default_rng([settings.seed, epoch]).permutation(source.samples)
        self._size, self._batches = settings.batch_size, settings.batches
        self._next = 0
        if not source.samples:
            kind = type(getattr(source, "dataset", source)).__name__
            raise LoaderError(f"the source {kind} is empty: there is no batch to make")
        if not self._batches:
            raise LoaderError(
                f"the source has {source.samples} samples, fewer than batch_size={self._size}, and drop_last=True "
                "leaves out what is smaller: there is no batch"
            )

    def request(self) -> Any:
        self._next = max(self._next, self.first)
        if self._next >= self._batches:
            return END
        first = self._next * self._size
        self._next += 1
        return self.settings.share(self._order[first : first + self._size])

    def produce(self, request: Any) -> HostBatch:
        """Read samples, as whole columns if the source supports that."""
        if self.settings.transform is None:
            columns = self._rows.columns(request)
            if columns is not None:
                values: Any = columns if self._rows.named is not None else list(columns.values())
                return self._transformed(self._raw.from_columns(values, len(request)))
        return self._assembled(self._rows.fetch(request))


def _copied(columns: Any) -> Any:
    """A batch of the source with arrays and tensors of its own."""
    if isinstance(columns, Mapping):
        return {name: _copied(column) for name, column in columns.items()}
    if isinstance(columns, (list, tuple)):
        return [_copied(column) for column in columns]
    if isinstance(columns, Tensor):
        return Tensor().set(columns)
    return columns.copy() if isinstance(columns, np.ndarray) else columns


class StreamProducer(Producer):
    """The producer of a Stream: a request contains the samples themselves."""

    def __init__(self, settings: Settings, epoch: int) -> None:
        super().__init__(settings, epoch)
        assert isinstance(settings.source, Stream)
        self._stream = settings.source
        self._samples: Iterator[Any] | None = None
        self._opened: Iterator[Any] | None = None
        self._items = 0
        self._batches = 0

    def request(self) -> Any:
        """Read the samples of the next batch."""
        while self._batches < self.first:  # skipped batches are read too
            if isinstance(self._read_batch(), str):
                return END
        samples = self._read_batch()
        if isinstance(samples, str):
            return samples
        samples = self.settings.share(samples)
        if self.settings.yields == "batches" and self.settings.workers > 1:
            return _copied(samples)  # another thread may read on before these are used, and the source may refill them
        return samples

    def _read_batch(self) -> Any:
        settings = self.settings
        if self._samples is None:
            self._opened = self._samples = self._stream.open()
            if settings.shuffle:
                generator = np.random.default_rng([settings.seed, self.epoch])
                self._samples = shuffled(self._samples, int(settings.shuffle), generator)
        if settings.batch_size is None:
            samples = next(self._samples, END)
            if samples is END:
                return self._end()
            self._items += 1
        else:
            samples = list(itertools.islice(self._samples, settings.batch_size))
            self._items += len(samples)
            if not samples or (settings.drop_last and len(samples) < settings.batch_size):
                return self._end()
        self._batches += 1
        return samples

    def _end(self) -> Any:
        settings, items = self.settings, self._items
        if not items:
            raise LoaderError("the source is empty: it ended before its first sample")
        if self._stream.samples is not None and items < self._stream.samples and settings.yields == "samples":
            raise LoaderError(f"the source ended after {items} samples; its len says {self._stream.samples}")
        if not self._batches:
            raise LoaderError(
                f"the source has {items} samples, fewer than batch_size={settings.batch_size}, and drop_last=True "
                "leaves out what is smaller: there is no batch"
            )
        return END

    def produce(self, request: Any) -> HostBatch:
        if self.settings.yields == "batches":
            return self._transformed(self._raw.from_columns(request))
        if isinstance(request, (str, bytes)) or not hasattr(request, "__len__") or not len(request):
            raise FeedError(f"the source yields sample lists, but one is {type(request).__name__} {request!r:.60}")
        return self._assembled(request)

    def close(self) -> None:
        """Close a generator, so that its ``finally`` runs now."""
        opened, self._samples, self._opened = self._opened, None, None
        close = getattr(opened, "close", None)
        if close is not None and hasattr(opened, "__next__"):
            close()


def producer_of(settings: Settings, epoch: int) -> Producer:
    return (RowsProducer if isinstance(settings.source, Rows) else StreamProducer)(settings, epoch)
