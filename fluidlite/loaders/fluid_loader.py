"""Fluid's ``DataLoader``, ``PyReader`` and ``py_reader``: their names and rules over loaders of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fluidlite import unique_name
from fluidlite.base.arguments import as_whole, listed, truth
from fluidlite.base.errors import EOFException, FeedError, LoaderError, ProgramError
from fluidlite.loaders.batch import Batch
from fluidlite.loaders.loader import BatchedLoader, EpochIterator
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.program.variable import Variable

MAX_AHEAD = 8
"""Batches made ahead, however large ``capacity`` is: they lie on the place, and no loop needs more."""

Reader = Callable[[], Any]


class ReaderQueue:
    """The batches that a reader makes ahead, as Fluid's ``py_reader.queue`` shows them."""

    def __init__(self, loader: GeneratorLoader) -> None:
        self._loader = loader

    def size(self) -> int:
        """How many are made, or being made; 0 where no epoch feeds the program."""
        epoch = self._loader._epoch
        return 0 if epoch is None else epoch.ahead


class GeneratorLoader:
    """A loader that a generator function is set for; ``DataLoader.from_generator`` and ``PyReader`` make one.

    Iterable, it gives feeds: ``for data in loader(): exe.run(feed=data)``. Otherwise it feeds its program: ``start()``,
    runs without feed until EOFException, ``reset()``.

    Parameters
    ----------
    feed_list : list of Variable
        The fields of a sample.
    capacity : int
        Batches made ahead, at most 8 of them.
    use_double_buffer : bool
        False: one batch is made ahead.
    iterable, return_list : bool
        ``return_list``: batches are lists of Tensors, not mappings.
    use_multiprocess : bool
        The generator runs in a process of its own.
    drop_last : bool
        Of several places: leave out batches at the end that are fewer than places.
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
        variables = listed("feed_list", feed_list, "variables, one a field of a sample", LoaderError)
        for item in variables:
            if not isinstance(item, Variable):
                raise LoaderError(f"feed_list holds {item!r:.60}; expected variables, such as those of layers.data")
        if not variables:
            raise LoaderError("feed_list is empty; expected variables, one a field of a sample")
        found = as_whole(capacity)
        if found is None or found < 1:
            raise LoaderError(f"capacity is {capacity!r}; expected an int of 1 or more")
        flags = {
            "use_double_buffer": use_double_buffer,
            "iterable": iterable,
            "return_list": return_list,
            "use_multiprocess": use_multiprocess,
            "drop_last": drop_last,
        }
        told = {name: truth(name, value, LoaderError) for name, value in flags.items()}
        self.name = name or unique_name.generate("generator_loader")
        self.variables: list[Variable] = variables
        self.feed_names = [variable.name for variable in variables]
        self.iterable = told["iterable"]
        self._ahead = min(found, MAX_AHEAD) if told["use_double_buffer"] else 1
        self._return_list = told["return_list"]
        self._processes = told["use_multiprocess"]
        self._drop_last = told["drop_last"]
        self._source: Reader | None = None
        self._options: dict[str, Any] = {}
        self._places: list[Place] | None = None
        self._loader: BatchedLoader | None = None
        self._epoch: EpochIterator | None = None
        self._started = self._ended = False
        if not self.iterable:
            variables[0].block.program.readers.append(self)

    # What it reads

    def set_sample_generator(
        self, reader: Reader, batch_size: int, drop_last: bool = True, places: Any = None
    ) -> GeneratorLoader:
        """Read samples: ``reader()`` gives one after another, each with a field for each variable."""
        return self._set(reader, places, batch_size=batch_size, drop_last=drop_last)

    def set_sample_list_generator(self, reader: Reader, places: Any = None) -> GeneratorLoader:
        """Read lists of samples, such as ``fluid.batch(reader, 32)`` gives."""
        return self._set(reader, places, yields="sample lists")

    def set_batch_generator(self, reader: Reader, places: Any = None) -> GeneratorLoader:
        """Read batches: an array or a LoDTensor for each variable."""
        return self._set(reader, places, yields="batches")

    def _set(self, reader: Reader, places: Any, **options: Any) -> GeneratorLoader:
        if not callable(reader):
            raise LoaderError(f"the reader is {type(reader).__name__}; expected a function that makes a generator")
        if self._started:
            raise ProgramError(
                f"the reader {self.name!r} was started\n  Do: reset() it before it gets another generator"
            )
        found = _places(places) or self._places
        BatchedLoader(reader, names=self.variables, **options)  # what does not fit shows here
        self._source, self._options, self._places = reader, options, found
        if self._loader is not None:
            self._loader.close()
        self._loader = None
        return self

    def set_places(self, places: Any) -> None:
        """Say where batches are to lie, in place of what was said before."""
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
                preload=self._ahead,
                buffers=self._ahead + 2,
                processes=self._processes,
                **self._options,
            )
        return self._loader

    # Iterable

    def __call__(self) -> Iterator[Any]:
        """Begin an epoch."""
        return iter(self)

    def __iter__(self) -> Iterator[Any]:
        """Feeds, batch by batch: a list with one for each place."""
        if not self.iterable:
            raise ProgramError(
                f"the reader {self.name!r} is not iterable: it feeds its program\n  Do: start(), and run without feed"
            )
        places = self._places or [devices.host()]
        if len(places) == 1:
            return ([self._as_returned(batch)] for batch in self._on(places[0]))
        return self._groups(places)

    def _groups(self, places: list[Place]) -> Iterator[list[Any]]:
        group: list[Batch] = []
        for batch in self._on(devices.host()):
            place = places[len(group)]
            moved = {name: tensor.to(place) for name, tensor in batch.items()}
            group.append(Batch(moved, batch.number, batch.size, batch.epoch))
            if len(group) == len(places):
                yield [self._as_returned(each) for each in group]
                group = []
        if group and not self._drop_last:
            yield [self._as_returned(each) for each in group]

    def _as_returned(self, batch: Batch) -> Any:
        return [batch[name] for name in self.feed_names] if self._return_list else batch

    # Feeding its program

    @property
    def queue(self) -> ReaderQueue:
        """What is made ahead: ``reader.queue.size()``."""
        return ReaderQueue(self)

    @property
    def started(self) -> bool:
        """Whether ``start`` was called, and ``reset`` was not since."""
        return self._started

    def start(self) -> None:
        """Begin an epoch: runs of the program take its batches.

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
        known = self._places[0] if self._places else self._loader.place if self._loader is not None else None
        if known is not None:
            self._epoch = self._on(known).__iter__()
        elif self._source is None:
            self._on(devices.host())  # says that there is no generator
        self._started = True

    def reset(self) -> None:
        """End the epoch, whether its batches ended or not."""
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
        if self._epoch is None and not self._ended:  # started before anybody knew where it would run
            self._epoch = self._on(self._places[0] if self._places else place).__iter__()
        batch = next(self._epoch, None) if self._epoch is not None else None
        if batch is None:
            self._epoch, self._ended = None, True
            raise EOFException(
                f"the reader {self.name!r} has no more batches\n  Do: reset() it, and start() the next epoch"
            )
        return batch

    # Names of PyReader and of py_reader

    decorate_sample_generator = set_sample_generator
    decorate_sample_list_generator = decorate_paddle_reader = set_sample_list_generator
    decorate_batch_generator = decorate_tensor_provider = set_batch_generator


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
    """Fluid's ``fluid.io.DataLoader``: two functions that make loaders."""

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
        """A loader for a generator function, which one of its ``set_..._generator`` methods takes.

        Parameters
        ----------
        feed_list : list of Variable
            The fields of a sample.
        capacity : int, optional
            Batches made ahead, at most 8 of them; default: 2.
        use_double_buffer : bool
            False: one batch is made ahead.
        iterable : bool
            False: it feeds its program at each run, between ``start()`` and ``reset()``.
        return_list : bool
            Give lists of Tensors, not mappings.
        use_multiprocess : bool
            Let the generator run in a process of its own.
        drop_last : bool
            Of several places: leave out batches at the end that are fewer than places.
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
        """A loader for a dataset: any source of :class:`fluidlite.loaders.BatchedLoader`.

        Parameters
        ----------
        dataset : object
            Its attributes ``use_vars`` and ``batch_size`` say what its fields and batches are, where these are not
            given.
        places : Place, or list of them
        drop_last : bool
            Leave out a last batch that is smaller.
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
    """What ``DataLoader.from_dataset`` makes: an iterable loader of any source."""

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
    found: list[PlaceLike] = listed("places", places, "a place, or a list of them", FeedError, one=(str, Place))
    if not found:
        raise LoaderError("places is empty; expected a place, or a list of them")
    return [devices.unit(place).place for place in found]
