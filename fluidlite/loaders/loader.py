"""BatchedLoader: batches of a source on a place, prefetched in the background."""

from __future__ import annotations

import os
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet, finalize

from fluidlite.base.arguments import as_int
from fluidlite.base.errors import LoaderError
from fluidlite.loaders.assembly import Field, fields_of
from fluidlite.loaders.batch import Batch
from fluidlite.loaders.epoch import EpochRun
from fluidlite.loaders.producer import Producer, producer_of
from fluidlite.loaders.ring import Ring, copy_queue
from fluidlite.loaders.settings import Settings
from fluidlite.loaders.sources import Rows, Transform, source_of
from fluidlite.loaders.trace import Span
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place, PlaceLike

if TYPE_CHECKING:  # multiprocessing takes as long to import as NumPy
    from fluidlite.loaders.processes import ProcessProducer


@dataclass
class Position:
    """The position of a loop within an epoch.

    ``batches``: number of batches that the loop has received, including those of a resumed, stopped run.
    ``ended``: whether the epoch has ended.
    """

    epoch: int
    batches: int
    ended: bool = False


class Loader:
    """The base class of loaders.

    Attributes
    ----------
    place : Place
        The place of the batches.
    epoch : int
        The number of the next epoch; set it to resume a stopped run.
    """

    def __init__(self, settings: Settings, place: PlaceLike | None) -> None:
        self._settings = settings
        self.place: Place = devices.unit(place if place is not None else devices.host()).place
        self._epoch = 0
        self._first = 0
        self._position: Position | None = None
        self._reset()

    def _reset(self) -> None:
        """Create the state that a copy of the loader, for another place or member, does not share."""
        raise NotImplementedError

    @property
    def epoch(self) -> int:
        """The number of the next epoch."""
        return self._epoch

    @epoch.setter
    def epoch(self, number: int) -> None:
        index = as_int(number)
        if index is None or index < 0:
            raise LoaderError(f"epoch is {number!r}; expected an int of 0 or more")
        self._epoch, self._first, self._position = index, 0, None

    def state(self) -> dict[str, int]:
        """Return the position for JSON: the epoch, and the number of its batches that the loop has received.

        Within the loop the current batch is counted; prefetched batches are not. After a loop that was left early it is
        the position where the loop was left.
        """
        position = self._position
        if position is not None and not position.ended:
            return {"epoch": position.epoch, "batches": position.batches}
        return {"epoch": self._epoch, "batches": self._first}

    def load_state(self, state: Any) -> None:
        """Resume the next iteration at the position of :meth:`state`: at the same batch, in the same order.

        Raises
        ------
        LoaderError
            The argument is no state of a loader.
        """
        counts = [as_int(state.get(name)) for name in ("epoch", "batches")] if isinstance(state, dict) else [None]
        if any(number is None or number < 0 for number in counts):
            raise LoaderError(f"the state is {state!r:.80}; expected what a loader's state() gave")
        self.epoch = counts[0] or 0
        self._first = counts[1] or 0

    @property
    def names(self) -> tuple[str, ...] | None:
        """The fields' names; None if the samples are mappings, whose keys are the names."""
        if self._settings.fields is not None:
            return tuple(field.name for field in self._settings.fields)
        source = self._settings.source
        return source.named if isinstance(source, Rows) else None

    @property
    def samples(self) -> int | None:
        """The number of samples in an epoch; None: unknown."""
        return self._settings.source.samples

    @property
    def batch_size(self) -> int | None:
        """The number of samples in a batch; None if the source determines it."""
        return self._settings.batch_size

    def close(self) -> None:
        """Release all resources; a later iteration starts again."""

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Batch]:
        raise NotImplementedError

    def on(self, place: PlaceLike, names: Any = None) -> Self:
        """Return the same loader for another place.

        Parameters
        ----------
        place : Place or str
        names : list of str or Variable, optional
            Names of the fields, instead of the loader's own.
        """
        settings = self._settings if names is None else replace(self._settings, fields=fields_of(names))
        return self._with(settings, place)

    def shard(self, rank: int, ranks: int) -> Self:
        """Return the same loader for one of several members, which gets its part of each batch.

        Parameters
        ----------
        rank, ranks : int
            The number of the member and of all members: of B samples it gets those from B * rank // ranks on.

        Raises
        ------
        LoaderError
            The source yields whole batches; while iterating, a batch has fewer samples than members.
        """
        if as_int(ranks) is None or as_int(rank) is None or not 0 <= rank < ranks:
            raise LoaderError(f"shard({rank!r}, {ranks!r}): expected a rank from 0 to ranks - 1")
        if self._settings.yields == "batches":
            raise LoaderError(
                "the source yields batches, which a loader does not split\n  Do: let it yield samples, or the part of "
                f"member {rank}"
            )
        return self._with(replace(self._settings, rank=rank, ranks=ranks), self.place)

    def _with(self, settings: Settings, place: PlaceLike) -> Self:
        loader = copy(self)
        loader._settings, loader.place, loader._position = settings, devices.unit(place).place, None
        loader._reset()
        return loader


class BatchedLoader(Loader):
    """Batches of a source on a place, prefetched into buffers in the background.

    Parameters
    ----------
    source : object
        Arrays whose first dim is the number of samples (one, a tuple, or a mapping of names; memory-mapped, or paths of
        ``.npy`` files), a callable that returns an iterable (Fluid's readers), an object with ``len`` and ``[i]``
        (lists, torch's and Hugging Face's datasets), or an iterable of samples. A sample is a mapping of names to
        fields, a tuple of fields, or one array.
    batch_size : int, optional
        Samples in a batch; None if the source yields whole batches.
    place : Place or str, optional
        Default: the host.
    names : list of str or Variable, optional
        The fields of a sample, in order. Variables also declare dtype, dims and LoD levels, which are checked. Not
        needed if samples are mappings.
    yields : {"samples", "sample lists", "batches"}
        The items of the source; batches are mappings or sequences of arrays, or of Tensors.
    shuffle : bool or int
        True: each epoch has its own order, which ``seed`` and the epoch's number determine. A number: samples of a
        stream are drawn from a shuffle buffer of this size.
    seed : int
    drop_last : bool
        Drop a last batch that is smaller.
    buffers : int
        Number of batches on the place, including those that the caller holds.
    preload : int
        Number of prefetched batches; at most ``buffers``.
    workers : int
        Number of threads or processes that assemble batches.
    processes : bool
        Assemble batches in processes (forked when an epoch begins), without sharing Python's lock with the loop.
    persistent : bool
        Keep the processes for later epochs, until the loader is closed: they use the source and transforms as of the
        time of the fork.
    transform : callable, optional
        Applied to each sample, by the workers.
    batch_transform : callable, optional
        Applied to a mapping of names to arrays, the whole batch, by the workers.

    Raises
    ------
    LoaderError
        The settings do not fit each other or the source; while iterating, the source is empty or exhausted.
    FeedError
        While iterating, samples cannot form a batch.
    """

    def __init__(
        self,
        source: Any,
        batch_size: int | None = None,
        place: PlaceLike | None = None,
        names: Any = None,
        *,
        yields: str = "samples",
        shuffle: bool | int = False,
        seed: int = 0,
        drop_last: bool = False,
        buffers: int = 4,
        preload: int = 2,
        workers: int = 1,
        processes: bool = False,
        transform: Transform | None = None,
        batch_transform: Transform | None = None,
        persistent: bool = False,
    ) -> None:
        settings = Settings(
            source_of(source, yields != "samples"),
            fields_of(names),
            batch_size,
            yields,
            shuffle,
            seed,
            drop_last,
            buffers,
            preload,
            workers,
            processes,
            transform,
            batch_transform,
            persistent,
        )
        super().__init__(settings, place)
        self.trace: list[Span] | None = None
        """Set it to a list to record the work of the workers; None: nothing is recorded."""

    def _reset(self) -> None:
        self._runs: WeakSet[EpochRun] = WeakSet()
        self._idle: list[ProcessProducer] = []
        """Persistent processes that wait for the next epoch."""
        finalize(self, _end_idle, self._idle, os.getpid()).atexit = False

    def __len__(self) -> int:
        """The number of batches in an epoch.

        Raises
        ------
        TypeError
            The number is unknown.
        """
        count = self._settings.batches
        if count is None:
            raise TypeError("a loader of a stream has no len: it is known when the stream ends")
        return count

    def __iter__(self) -> EpochIterator:
        """Start an epoch and its workers."""
        number, self._epoch = self._epoch, self._epoch + 1
        first, self._first = self._first, 0
        settings = self._settings
        requests = producer_of(settings, number)
        requests.first = first
        producers: list[Producer] = [requests] * settings.workers
        if settings.processes:
            from fluidlite.loaders.processes import ProcessProducer

            processes: list[ProcessProducer] = []
            try:
                while self._idle and len(processes) < settings.workers:
                    if (idle := self._idle.pop()).begin(number, first):
                        processes.append(idle)
                while len(processes) < settings.workers:
                    processes.append(ProcessProducer(requests, processes, self._idle if settings.persistent else None))
            except BaseException:
                for process in processes:
                    process.close()
                raise
            producers = list(processes)
            if requests.local:
                requests = processes[0]
        ring = Ring(copy_queue(self.place))
        run = EpochRun(producers, requests, ring, settings.buffers, settings.preload, self.trace)
        self._runs.add(run)
        self._position = Position(number, first)
        return EpochIterator(self, run, self._position)

    def close(self) -> None:
        """End all running epochs."""
        for run in list(self._runs):
            run.close()
        while self._idle:
            self._idle.pop().end()


def _end_idle(idle: list[ProcessProducer], process: int) -> None:
    """End the processes of an unreferenced loader, without waiting for them."""
    if os.getpid() == process:
        while idle:
            idle.pop().abandon()


class EpochIterator(Iterator[Batch]):
    """The batches of one epoch. Its workers end when it is closed or no longer referenced."""

    def __init__(self, loader: BatchedLoader, run: EpochRun, position: Position) -> None:
        self._loader = loader
        self._run = run
        self._position = position
        self._first = position.batches
        self._finalizer = finalize(self, run.abandon)

    def __next__(self) -> Batch:
        """The next batch.

        Raises
        ------
        Exception
            The exception that a worker raised while it assembled this batch.
        """
        item = self._run.next()
        if item is None:
            self._position.ended = True
            raise StopIteration
        number, size, tensors = item
        self._position.batches += 1
        return Batch(tensors, self._first + number, size, self._position.epoch)

    @property
    def ahead(self) -> int:
        """The number of batches that are prefetched or in progress."""
        return self._run.ahead

    def close(self) -> None:
        """End the workers and release the buffers, except those of batches that are still referenced."""
        self._run.close()


__all__ = ["BatchedLoader", "EpochIterator", "Field", "Loader"]
