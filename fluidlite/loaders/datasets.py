"""Fluid's datasets: text files of samples for ``Executor.train_from_dataset``."""

from __future__ import annotations

import random
import shlex
from array import array
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, NoReturn, TypeAlias

from fluidlite.base.absent import why_absent
from fluidlite.base.arguments import check_int, check_list
from fluidlite.base.errors import LoaderError
from fluidlite.loaders.loader import BatchedLoader, EpochIterator
from fluidlite.loaders.multi_slot import TextSlot, lines_of, sample_of
from fluidlite.platform.place import PlaceLike
from fluidlite.program.variable import Variable

Sample: TypeAlias = "tuple[array[Any], ...]"


class DatasetBase:
    """Text files with one sample a line: for each slot a count, and that many numbers.

    It iterates over samples, and can therefore be the source of a loader.

    Attributes
    ----------
    use_vars : list of Variable
        The slots, in the order of the files.
    batch_size, thread_num : int
    """

    feed_name: ClassVar[str]

    def __init__(self) -> None:
        self.use_vars: list[Variable] = []
        self.batch_size = 1
        self.thread_num = 1
        self._files: list[str] = []
        self._slots: list[TextSlot] = []
        self._command = "cat"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{why_absent(name)}")

    def set_pipe_command(self, pipe_command: str) -> None:
        """Set a command that converts each file from its standard input; "cat": the files are read directly.

        It runs without a shell, unless it uses shell syntax.
        """
        try:
            words = shlex.split(pipe_command)
        except (ValueError, TypeError, AttributeError) as exc:
            raise LoaderError(f"set_pipe_command: {pipe_command!r:.80} is no command: {exc}") from exc
        if not words:
            raise LoaderError(f"set_pipe_command: {pipe_command!r} is empty; expected a command, such as 'cat'")
        self._command = pipe_command.strip()

    def set_batch_size(self, batch_size: int) -> None:
        """Set the number of samples in a batch; the last batch may have fewer."""
        self.batch_size = _positive("set_batch_size", batch_size)

    def set_thread(self, thread_num: int) -> None:
        """Set the number of threads that assemble batches; it does not change batches or their order."""
        self.thread_num = _positive("set_thread", thread_num)

    def set_filelist(self, filelist: Sequence[str]) -> None:
        """Set the files, which are read in this order."""
        files = check_list("set_filelist: filelist", filelist, "a list of paths", LoaderError)
        self._files = [str(name) for name in files]

    def set_use_var(self, var_list: Sequence[Variable]) -> None:
        """Set the variables of the slots: float32 or int64, with a LoD level if the count varies."""
        variables = check_list("set_use_var: var_list", var_list, "a list of variables", LoaderError)
        self._slots = [TextSlot(variable) for variable in variables]
        self.use_vars = variables

    def desc(self) -> str:
        """The settings in Fluid's text format."""
        slots = "".join(
            f'  slots {{\n    name: "{slot.name}"\n    type: "{slot.type}"\n'
            f"    is_dense: {str(not slot.sparse).lower()}\n    is_used: true\n  }}\n"
            for slot in self._slots
        )
        return (
            f'name: "{self.feed_name}"\nbatch_size: {self.batch_size}\nmulti_slot_desc {{\n{slots}}}\n'
            f'pipe_command: "{self._command}"\n'
        )

    def epoch(self, place: PlaceLike, threads: int = 0) -> EpochIterator:
        """Start an epoch of batches on a place. ``threads``: maximum number; 0: that of ``set_thread``."""
        workers = min(self.thread_num, threads) if threads > 0 else self.thread_num
        return iter(self._loader(place, workers))

    def _loader(self, place: PlaceLike, workers: int) -> BatchedLoader:
        raise NotImplementedError

    def _check(self) -> None:
        for what, setting in (("set_filelist", self._files), ("set_use_var", self._slots)):
            if not setting:
                raise LoaderError(f"the {type(self).__name__} has nothing to read\n  Do: dataset.{what}([...]) first")


class QueueDataset(DatasetBase):
    """Files that are read as a stream, from the beginning in each epoch."""

    feed_name = "MultiSlotDataFeed"

    def _lines(self) -> Iterator[Any]:
        self._check()
        return lines_of(self._files, self._command)

    def __iter__(self) -> Iterator[Sample]:
        return map(partial(sample_of, self._slots), self._lines())

    def _loader(self, place: PlaceLike, workers: int) -> BatchedLoader:
        transform = partial(sample_of, self._slots)
        self._check()
        return BatchedLoader(self._lines, self.batch_size, place, self.use_vars, workers=workers, transform=transform)

    def local_shuffle(self) -> NoReturn:
        """Raise LoaderError: a stream cannot be shuffled."""
        raise LoaderError(
            "a QueueDataset is read as a stream, which is not shuffled"
            '\n  Do: DatasetFactory().create_dataset("InMemoryDataset")'
        )

    def global_shuffle(self, fleet: Any = None) -> NoReturn:
        """Raise LoaderError: a stream cannot be shuffled."""
        self.local_shuffle()


class InMemoryDataset(DatasetBase):
    """Files whose samples are loaded into memory, and may be shuffled."""

    feed_name = "MultiSlotInMemoryDataFeed"

    def __init__(self) -> None:
        super().__init__()
        self._samples: list[Sample] | None = None

    def load_into_memory(self) -> None:
        """Read the files."""
        self._check()
        self._samples = [sample_of(self._slots, line) for line in lines_of(self._files, self._command)]

    def preload_into_memory(self, thread_num: int | None = None) -> None:
        """Read the files, synchronously like ``load_into_memory``."""
        self.load_into_memory()

    def wait_preload_done(self) -> None:
        """Do nothing: preloading is synchronous."""

    def local_shuffle(self) -> None:
        """Shuffle the samples, by Python's ``random``."""
        random.shuffle(self._loaded())

    def global_shuffle(self, fleet: Any = None, thread_num: int = 12) -> None:
        """Shuffle the samples of all processes of a fleet; without one, of this process."""
        if fleet is not None:
            raise LoaderError(f"global_shuffle: fleet is {type(fleet).__name__}; expected None{why_absent('fleet')}")
        self.local_shuffle()

    def release_memory(self) -> None:
        """Release the samples."""
        self._samples = None

    def get_memory_data_size(self, fleet: Any = None) -> int:
        """The number of loaded samples."""
        return len(self._samples or ())

    get_shuffle_data_size = get_memory_data_size

    def set_queue_num(self, queue_num: int) -> None:
        """Do nothing: there is one queue of batches."""

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._loaded())

    def _loader(self, place: PlaceLike, workers: int) -> BatchedLoader:
        return BatchedLoader(self._loaded(), self.batch_size, place, self.use_vars, workers=workers)

    def _loaded(self) -> list[Sample]:
        if self._samples is None:
            raise LoaderError("the InMemoryDataset has no samples\n  Do: dataset.load_into_memory() first")
        if not self._samples:
            raise LoaderError(f"the InMemoryDataset has no samples: there is no line in {', '.join(self._files):.200}")
        return self._samples


class DatasetFactory:
    """Creates datasets by name."""

    @staticmethod
    def create_dataset(datafeed_class: str = "QueueDataset") -> Any:
        """Return a dataset.

        Parameters
        ----------
        datafeed_class : {"QueueDataset", "InMemoryDataset"}
        """
        for kind in (QueueDataset, InMemoryDataset):
            if datafeed_class == kind.__name__:
                return kind()
        raise LoaderError(f"create_dataset: {datafeed_class!r}; expected 'QueueDataset' or 'InMemoryDataset'")


def _positive(method: str, value: Any) -> int:
    number = check_int(method, value, LoaderError)
    if number < 1:
        raise LoaderError(f"{method}: {number}; expected an int of 1 or more")
    return number
