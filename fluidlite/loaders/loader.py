"""BatchedLoader: batches of a source on a place, made ahead of the loop that uses them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet, finalize

from fluidlite.base.arguments import as_whole
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
    """How far the loop of an epoch came.

    ``batches``: batches that it has been given, those of a run before that was stopped included.
    ``ended``: whether there are no more.
    """

    epoch: int
    batches: int
    ended: bool = False


class Loader:
    """What loaders have in common.

    Attributes
    ----------
    place : Place
        Where batches lie.
    epoch : int
        The number of the next epoch; set it to go on where a run was stopped.
    """

    def __init__(self, settings: Settings, place: PlaceLike | None) -> None:
        self._settings = settings
        self.place: Place = devices.unit(place if place is not None else devices.host()).place
        self._epoch = 0
        self._first = 0
        self._position: Position | None = None
        self._begin()

    def _begin(self) -> None:
        """Make what a loader does not share with the same for another place or member."""
        raise NotImplementedError

    @property
    def epoch(self) -> int:
        """The number of the next epoch."""
        return self._epoch

    @epoch.setter
    def epoch(self, number: int) -> None:
        found = as_whole(number)
        if found is None or found < 0:
            raise LoaderError(f"epoch is {number!r}; expected an int of 0 or more")
        self._epoch, self._first, self._position = found, 0, None

    def state(self) -> dict[str, int]:
        """Where the loader stands, as JSON can hold it: the epoch, and how many of its batches the loop has been given.

        Within the loop the batch that it holds counts; what was made ahead does not. After a loop that was left early
        it is where that was left.
        """
        position = self._position
        if position is not None and not position.ended:
            return {"epoch": position.epoch, "batches": position.batches}
        return {"epoch": self._epoch, "batches": self._first}

    def load_state(self, state: Any) -> None:
        """Let the next iteration go on where :meth:`state` was asked: at the same batch, in the same order.

        Raises
        ------
        LoaderError
            It is no state of a loader.
        """
        found = [as_whole(state.get(name)) for name in ("epoch", "batches")] if isinstance(state, dict) else [None]
        if any(number is None or number < 0 for number in found):
            raise LoaderError(f"the state is {state!r:.80}; expected what a loader's state() gave")
        self.epoch = found[0] or 0
        self._first = found[1] or 0

    @property
    def names(self) -> tuple[str, ...] | None:
        """The fields' names; None where the samples, which are mappings, have them."""
        if self._settings.fields is not None:
            return tuple(field.name for field in self._settings.fields)
        source = self._settings.source
        return source.named if isinstance(source, Rows) else None

    @property
    def samples(self) -> int | None:
        """How many samples an epoch has; None: nobody knows before."""
        return self._settings.source.samples

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch; None where the source says."""
        return self._settings.batch_size

    def close(self) -> None:
        """Let go of all that it has; iterating once more begins anew."""

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Batch]:
        raise NotImplementedError

    def on(self, place: PlaceLike, names: Any = None) -> Self:
        """The same loader for another place.

        Parameters
        ----------
        place : Place or str
        names : list of str or Variable, optional
            Names of the fields, in place of those that the loader has.
        """
        settings = self._settings if names is None else replace(self._settings, fields=fields_of(names))
        return self._with(settings, place)

    def shard(self, rank: int, ranks: int) -> Self:
        """The same loader for one of several members: of each batch it gets its part, in the same order as the others.

        Parameters
        ----------
        rank, ranks : int
            Which member, and how many: of B samples it gets those from B * rank // ranks on.

        Raises
        ------
        LoaderError
            The source yields whole batches; while iterating, for a batch of fewer samples than members.
        """
        if as_whole(ranks) is None or as_whole(rank) is None or not 0 <= rank < ranks:
            raise LoaderError(f"shard({rank!r}, {ranks!r}): expected a rank from 0 to ranks - 1")
        if self._settings.yields == "batches":
            raise LoaderError(
                "the source yields batches, which a loader does not split\n  Do: let it yield samples, or the part of "
                f"member {rank}"
            )
        return self._with(replace(self._settings, rank=rank, ranks=ranks), self.place)

    def _with(self, settings: Settings, place: PlaceLike) -> Self:
        made = copy(self)
        made._settings, made.place, made._position = settings, devices.unit(place).place, None
        made._begin()
        return made


class BatchedLoader(Loader):
    """Batches of a source on a place, in buffers that are filled in the background.

    Parameters
    ----------
    source : object
        Arrays whose first dim counts the samples (one, a tuple, or a mapping of names; memory-mapped, or paths of
        ``.npy`` files), a callable that makes an iterable (Fluid's readers), an object with ``len`` and ``[i]`` (lists,
        torch's and Hugging Face's datasets), or an iterable of samples. A sample is a mapping of names to fields, a
        tuple of fields, or one array.
    batch_size : int, optional
        Samples a batch; None where the source yields whole batches.
    place : Place or str, optional
        Default: the host.
    names : list of str or Variable, optional
        The fields of a sample, in order. Variables say dtype, dims and LoD levels too, which are checked. They may be
        left out where samples are mappings.
    yields : {"samples", "sample lists", "batches"}
        What the source gives: batches are mappings or sequences of arrays, or of Tensors.
    shuffle : bool or int
        True: each epoch has an order of its own, which ``seed`` and the epoch's number give. A number: samples of a
        stream are drawn from so many that were read ahead.
    seed : int
    drop_last : bool
        Leave out a last batch that is smaller.
    buffers : int
        Batches on the place, those that the caller holds included.
    preload : int
        Batches that are made ahead; at most ``buffers``.
    workers : int
        Threads that make batches, or processes.
    processes : bool
        Make batches in processes (forked when an epoch begins), which do not share Python's lock with the loop.
    persistent : bool
        The processes stay for the next epochs, until the loader is closed: they see source and transforms as these were
        when they were forked.
    transform : callable, optional
        Applied to each sample, by the workers.
    batch_transform : callable, optional
        Applied to a mapping of names to arrays, the whole batch, by the workers.

    Raises
    ------
    LoaderError
        For settings that do not fit each other or the source; while iterating, for a source that is empty or used up.
    FeedError
        While iterating, for samples that do not make a batch, at that batch.
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
        """What workers did and when, if somebody set it to a list; None: nothing is noted."""

    def _begin(self) -> None:
        self._runs: WeakSet[EpochRun] = WeakSet()
        self._idle: list[ProcessProducer] = []
        """Processes that wait for the next epoch."""
        finalize(self, _end_idle, self._idle, os.getpid()).atexit = False

    def __len__(self) -> int:
        """Batches an epoch.

        Raises
        ------
        TypeError
            If nobody knows before.
        """
        found = self._settings.batches
        if found is None:
            raise TypeError("a loader of a stream has no len: it is known when the stream ends")
        return found

    def __iter__(self) -> EpochIterator:
        """Begin an epoch: workers start now."""
        number, self._epoch = self._epoch, self._epoch + 1
        first, self._first = self._first, 0
        settings = self._settings
        requests = producer_of(settings, number)
        requests.first = first
        producers: list[Producer] = [requests] * settings.workers
        if settings.processes:
            from fluidlite.loaders.processes import ProcessProducer

            made: list[ProcessProducer] = []
            try:
                while self._idle and len(made) < settings.workers:
                    if (found := self._idle.pop()).begin(number, first):
                        made.append(found)
                while len(made) < settings.workers:
                    made.append(ProcessProducer(requests, made, self._idle if settings.persistent else None))
            except BaseException:
                for process in made:
                    process.close()
                raise
            producers = list(made)
            if requests.local:
                requests = made[0]
        ring = Ring(copy_queue(self.place))
        run = EpochRun(producers, requests, ring, settings.buffers, settings.preload, self.trace)
        self._runs.add(run)
        self._position = Position(number, first)
        return EpochIterator(self, run, self._position)

    def close(self) -> None:
        """End the epochs that are under way."""
        for run in list(self._runs):
            run.close()
        while self._idle:
            self._idle.pop().end()


def _end_idle(idle: list[ProcessProducer], process: int) -> None:
    """End the processes of a loader that nobody holds any more, without waiting for them."""
    if os.getpid() == process:
        while idle:
            idle.pop().abandon()


class EpochIterator(Iterator[Batch]):
    """The batches of one epoch. Dropping it ends its workers, as ``close`` does at once."""

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
            Whatever was raised in a worker while it made this batch.
        """
        found = self._run.next()
        if found is None:
            self._position.ended = True
            raise StopIteration
        number, size, tensors = found
        self._position.batches += 1
        return Batch(tensors, self._first + number, size, self._position.epoch)

    @property
    def ahead(self) -> int:
        """How many batches are made, or being made, that the loop has not been given."""
        return self._run.ahead

    def close(self) -> None:
        """End the workers and let go of the buffers, but for batches that somebody holds."""
        self._run.close()


__all__ = ["BatchedLoader", "EpochIterator", "Field", "Loader"]
