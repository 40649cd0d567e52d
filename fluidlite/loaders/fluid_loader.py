"""Fluid's ``DataLoader``, ``PyReader`` and ``py_reader``, implemented by batched loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from fluidlite import unique_name
from fluidlite.base.arguments import as_int, check_bool, check_list
from fluidlite.base.errors import EOFException, FeedError, LoaderError, ProgramError
from fluidlite.base.fork import new_lock
from fluidlite.loaders.batch import Batch
from fluidlite.loaders.loader import BatchedLoader, EpochIterator
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.program.variable import Variable

MAX_PREFETCHED_BATCHES = 8
"""Limit of prefetched batches, which ``capacity`` cannot exceed: they take memory of the place."""

Reader = Callable[[], Any]


class ReaderQueue:
    """The prefetched batches of a reader, as Fluid's ``py_reader.queue``."""

    def __init__(self, loader: GeneratorLoader) -> None:
        self._loader = loader

    def size(self) -> int:
        """The number of batches that are prefetched or in progress; 0 if no epoch is running."""
        epoch = self._loader._epoch
        return 0 if epoch is None else epoch.ahead


class GeneratorLoader:
    """A loader of a generator function, created by ``DataLoader.from_generator`` and ``PyReader``.

    If iterable, it yields feeds: ``for data in loader(): exe.run(feed=data)``. Otherwise it feeds its program:
    ``start()``, runs without feed until EOFException, ``reset()``.

    Parameters
    ----------
    feed_list : list of Variable
        The fields of a sample.
    capacity : int
        Number of prefetched batches, at most 8.
    use_double_buffer : bool
        False: prefetch one batch only.
    iterable, return_list : bool
        ``return_list``: batches are lists of Tensors, not mappings.
    use_multiprocess : bool
        The generator runs in a separate process.
    drop_last : bool
        For several places: drop the last batches if they are fewer than the places.
    """

    def __init__(
        self,
        feed_list: Sequence[Variable],
        capacity: int,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
        drop_last: bool = True,
        name: str | None = None,
    ) -> None:
        variables = check_list("feed_list", feed_list, "variables, one a field of a sample", LoaderError)
        for item in variables:
            if not isinstance(item, Variable):
                raise LoaderError(f"feed_list holds {item!r:.60}; expected variables, such as those of layers.data")
        if not variables:
            raise LoaderError("feed_list is empty; expected variables, one a field of a sample")
        batches = as_int(capacity)
        if batches is None or batches < 1:
            raise LoaderError(f"capacity is {capacity!r}; expected an int of 1 or more")
        flags = {
            "use_double_buffer": use_double_buffer,
            "iterable": iterable,
            "return_list": return_list,
            "use_multiprocess": use_multiprocess,
            "drop_last": drop_last,
        }
        options = {name: check_bool(name, value, LoaderError) for name, value in flags.items()}
        self.name = name or unique_name.generate("generator_loader")
        self.variables: list[Variable] = variables
        self.feed_names = [variable.name for variable in variables]
        self.iterable = options["iterable"]
        self._prefetched = min(batches, MAX_PREFETCHED_BATCHES) if options["use_double_buffer"] else 1
        self._return_list = options["return_list"]
        self._processes = options["use_multiprocess"]
        self._drop_last = options["drop_last"]
        self._source: Reader | None = None
        self._options: dict[str, Any] = {}
        self._places: list[Place] | None = None
        self._loader: BatchedLoader | None = None
        self._epoch: EpochIterator | None = None
        self._started = self._ended = False
        self._taking = new_lock()  # several threads may run the program
        if not self.iterable:
            variables[0].block.program.readers.append(self)

    # Source

    def set_sample_generator(
        self, reader: Reader, batch_size: int, drop_last: bool = True, places: Any = None
    ) -> GeneratorLoader:
        """Set a reader of samples: ``reader()`` yields samples with a field for each variable."""
        return self._set(reader, places, batch_size=batch_size, drop_last=drop_last)

    def set_sample_list_generator(self, reader: Reader, places: Any = None) -> GeneratorLoader:
        """Set a reader of lists of samples, such as ``fluid.batch(reader, 32)``."""
        return self._set(reader, places, yields="sample lists")

    def set_batch_generator(self, reader: Reader, places: Any = None) -> GeneratorLoader:
        """Set a reader of batches: an array or a LoDTensor for each variable."""
        return self._set(reader, places, yields="batches")

    def _set(self, reader: Reader, places: Any, **options: Any) -> GeneratorLoader:
        if not callable(reader):
            raise LoaderError(f"the reader is {type(reader).__name__}; expected a function that makes a generator")
        if self._started:
            raise ProgramError(
                f"the reader {self.name!r} was started\n  Do: reset() it before it gets another generator"
            )
        new_places = _places(places) or self._places
        BatchedLoader(reader, names=self.variables, **options)  # validates the options
        self._source, self._options, self._places = reader, options, new_places
        if self._loader is not None:
            self._loader.close()
        self._loader = None
        return self

    def set_places(self, places: Any) -> None:
        """Set the places of the batches."""
        self._places = _places(places)

    def _on(self, place: Place) -> BatchedLoader:
        """The loader for a place."""
        if self._source is None:
            raise ProgramError(
                f"the reader {self.name!r} has no generator"
                "\n  Do: set_sample_generator, set_sample_list_generator or set_batch_generator first"
            )
        if self._loader is None or self._loader.place != place:
            if self._loader is not None:
                self._loader.close()
            self._loader = BatchedLoader(
                self._source,
                place=place,
                names=self.variables,
                preload=self._prefetched,
                buffers=self._prefetched + 2,
                processes=self._processes,
                **self._options,
            )
        return self._loader

    # Iterable

    def __call__(self) -> Iterator[Any]:
        """Begin an epoch."""
        return iter(self)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over lists of feeds, with one for each place."""
        if not self.iterable:
            raise ProgramError(
                f"the reader {self.name!r} is not iterable: it feeds its program\n  Do: start(), and run without feed"
            )
        places = self._places or [devices.host()]
        batches = iter(self._on(places[0] if len(places) == 1 else devices.host()))
        return _Groups(batches, places, self._drop_last, self._as_returned)

    def _as_returned(self, batch: Batch) -> Any:
        return [batch[name] for name in self.feed_names] if self._return_list else batch

    # Feeding its program

    @property
    def queue(self) -> ReaderQueue:
        """The prefetched batches: ``reader.queue.size()``."""
        return ReaderQueue(self)

    @property
    def started(self) -> bool:
        """Whether ``start`` was called, without ``reset`` since."""
        return self._started

    def start(self) -> None:
        """Start an epoch, whose batches feed the runs of the program.

        Raises
        ------
        ProgramError
            If it is iterable, has no generator, or was started and not reset.
        """
        if self.iterable:
            raise ProgramError(
                f"the reader {self.name!r} is iterable\n  Do: iterate over it, or make it iterable=False"
            )
        if self._started:
            raise ProgramError(f"the reader {self.name!r} was started before\n  Do: reset() it when its batches ended")
        place = self._places[0] if self._places else self._loader.place if self._loader is not None else None
        if place is not None:
            self._epoch = self._on(place).__iter__()
        elif self._source is None:
            self._on(devices.host())  # raises: there is no generator
        self._started = True

    def reset(self) -> None:
        """End the epoch, even if it has more batches."""
        epoch, self._epoch = self._epoch, None
        self._started = self._ended = False
        if epoch is not None:
            epoch.close()

    def next_feed(self, place: Place) -> Mapping[str, Any]:
        """The next batch, for a run of its program on a place; see ProgramReader."""
        if not self._started:
            raise ProgramError(
                f"the reader {self.name!r} feeds {', '.join(self.feed_names)}, and was not started"
                f"\n  Do: start() it before the run, or feed {', '.join(self.feed_names)}"
            )
        with self._taking:
            if self._epoch is None and not self._ended:  # started before the place was known
                self._epoch = self._on(self._places[0] if self._places else place).__iter__()
            epoch = self._epoch
            batch = next(epoch, None) if epoch is not None else None
            if batch is None and self._epoch is epoch:  # else it was reset meanwhile
                self._epoch, self._ended = None, True
        if batch is None:
            raise EOFException(
                f"the reader {self.name!r} has no more batches\n  Do: reset() it, and start() the next epoch"
            )
        return batch

    # Names of PyReader and of py_reader

    decorate_sample_generator = set_sample_generator
    decorate_sample_list_generator = decorate_paddle_reader = set_sample_list_generator
    decorate_batch_generator = decorate_tensor_provider = set_batch_generator


class _Groups(Iterator[list[Any]]):
    """Lists of a batch for each place. Several threads may share it: each list is of consecutive batches."""

    def __init__(
        self, batches: Iterator[Batch], places: Sequence[Place], drop_last: bool, as_returned: Callable[[Batch], Any]
    ) -> None:
        self._batches, self._places, self._drop_last, self._as_returned = batches, places, drop_last, as_returned
        self._taking = new_lock()

    def __next__(self) -> list[Any]:
        """The next list; at the end it may be shorter, unless the last batches are dropped."""
        places = self._places
        with self._taking:
            group = list(islice(self._batches, len(places)))
        if not group or (self._drop_last and len(group) < len(places)):
            raise StopIteration
        if len(places) > 1:
            group = [
                Batch({name: tensor.to(place) for name, tensor in batch.items()}, batch.number, batch.size, batch.epoch)
                for place, batch in zip(places, group, strict=False)
            ]
        return list(map(self._as_returned, group))


class PyReader(GeneratorLoader):
    """Fluid's ``fluid.io.PyReader``; see :class:`GeneratorLoader`."""

    def __init__(
        self,
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
    ) -> None:
        super().__init__(feed_list or [], 2 if capacity is None else capacity, use_double_buffer, iterable, return_list)


class DataLoader:
    """Fluid's ``fluid.io.DataLoader``: two functions that create loaders."""

    @staticmethod
    def from_generator(
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
        drop_last: bool = True,
    ) -> GeneratorLoader:
        """Create a loader for a generator function, which is passed to one of its ``set_..._generator`` methods.

        Parameters
        ----------
        feed_list : list of Variable
            The fields of a sample.
        capacity : int, optional
            Number of prefetched batches, at most 8; default: 2.
        use_double_buffer : bool
            False: prefetch one batch only.
        iterable : bool
            False: it feeds its program at each run, between ``start()`` and ``reset()``.
        return_list : bool
            Yield lists of Tensors, not mappings.
        use_multiprocess : bool
            Run the generator in a separate process.
        drop_last : bool
            For several places: drop the last batches if they are fewer than the places.
        """
        return GeneratorLoader(
            feed_list or [],
            2 if capacity is None else capacity,
            use_double_buffer,
            iterable,
            return_list,
            use_multiprocess,
            drop_last,
        )

    @staticmethod
    def from_dataset(
        dataset: Any,
        places: Any,
        drop_last: bool = True,
        use_vars: Sequence[Variable] | None = None,
        batch_size: int | None = None,
    ) -> GeneratorLoader:
        """Create a loader for a dataset: any source of :class:`fluidlite.loaders.BatchedLoader`.

        Parameters
        ----------
        dataset : object
            Its attributes ``use_vars`` and ``batch_size`` are the defaults of these arguments.
        places : Place, or list of them
        drop_last : bool
            Drop a last batch that is smaller.
        use_vars : list of Variable, optional
        batch_size : int, optional
        """
        variables = use_vars if use_vars is not None else getattr(dataset, "use_vars", None)
        size = batch_size if batch_size is not None else getattr(dataset, "batch_size", None)
        if variables is None or size is None:
            lacking = "use_vars" if variables is None else "batch_size"
            raise LoaderError(
                f"the dataset {type(dataset).__name__} has no {lacking}\n  Do: from_dataset(..., {lacking}=...)"
            )
        return DatasetLoader(dataset, variables, size, drop_last, places)


class DatasetLoader(GeneratorLoader):
    """The iterable loader of ``DataLoader.from_dataset``, for any source."""

    def __init__(
        self, dataset: Any, variables: Sequence[Variable], batch_size: int, drop_last: bool, places: Any
    ) -> None:
        super().__init__(variables, 2, drop_last=drop_last)
        BatchedLoader(dataset, batch_size, names=self.variables, drop_last=drop_last)
        self._source = dataset
        self._options = {"batch_size": batch_size, "drop_last": drop_last}
        self._places = _places(places)

    def _set(self, reader: Reader, places: Any, **options: Any) -> GeneratorLoader:
        raise ProgramError("a loader of a dataset takes no generator\n  Do: DataLoader.from_generator")


def _places(places: Any) -> list[Place] | None:
    if places is None:
        return None
    items: list[PlaceLike] = check_list("places", places, "a place, or a list of them", FeedError, one=(str, Place))
    if not items:
        raise LoaderError("places is empty; expected a place, or a list of them")
    return [devices.unit(place).place for place in items]
