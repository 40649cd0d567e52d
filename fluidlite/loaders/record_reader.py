"""Readers that start automatically: Fluid's ``open_files``, ``shuffle``, ``batch`` and ``random_data_generator``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from fluidlite.base.errors import LoaderError, ProgramError
from fluidlite.loaders.fluid_loader import GeneratorLoader
from fluidlite.loaders.record_file import Value, read_records
from fluidlite.platform.device_registry import devices
from fluidlite.program.variable import Variable
from fluidlite.tensor.lod import concatenated_lod
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec

Records = Callable[[], Iterable[list[Value]]]


class RecordReader:
    """A reader of records of tensors with declared shapes; ``read_file`` creates variables for them.

    ``specs``: the declared fields of a record.
    """

    def __init__(self, records: Records, specs: Sequence[Spec]) -> None:
        self.records, self.specs = records, list(specs)
        self.loader: StartedLoader | None = None
        self.place: Any = None

    def set_places(self, place: Any) -> None:
        self.place = place
        if self.loader is not None:
            self.loader.set_places(place)

    def over(self, change: Callable[..., Records], *arguments: Any) -> RecordReader:
        """Return a reader of the records ``change(records, *arguments)``."""
        if self.loader is not None:
            raise ProgramError("read_file was called for the reader before\n  Do: shuffle and batch it before that")
        return RecordReader(change(self.records, *arguments), self.specs)

    def reset(self) -> None:
        """Begin a new epoch with the next run."""
        if self.loader is not None:
            self.loader.reset()


class StartedLoader(GeneratorLoader):
    """Feeds its program from the first run on, until EOFException; after ``reset`` the next run starts a new epoch."""

    def __init__(self, variables: Sequence[Variable], reader: RecordReader, capacity: int, name: str) -> None:
        super().__init__(variables, capacity, iterable=False, name=name)
        records = reader.records  # not `reader`, which references this loader: the thread would keep both alive
        self.set_batch_generator(lambda: (tuple(map(tensor_of, record)) for record in records()))
        self._started = True

    def reset(self) -> None:
        super().reset()
        self._started = True


def tensor_of(value: Value) -> Any:
    """Convert a field for a batch: an array, or a LoDTensor."""
    array, lod = value
    return Tensor().set(array, devices.host(), [list(level) for level in lod]) if lod else array


def records_of_files(filenames: Sequence[str], specs: Sequence[Spec], pass_num: int) -> Records:
    """The records of files, in order, repeated ``pass_num`` times."""

    def records() -> Iterator[list[Value]]:
        for _ in range(pass_num):
            for name in filenames:
                for number, record in enumerate(read_records(name)):
                    _check(record, specs, f"{name}: record {number}")
                    yield record

    return records


def _check(record: list[Value], specs: Sequence[Spec], where: str) -> None:
    record_specs = [Spec.of(array.shape, array.dtype.name, lod=lod) for array, lod in record]
    do = "\n  Do: open it with the shapes, dtypes and lod_levels that it was written with"
    if len(record_specs) != len(specs):
        raise LoaderError(f"{where} has {len(record_specs)} fields; {len(specs)} shapes were given{do}")
    for number, (declared, spec) in enumerate(zip(specs, record_specs, strict=True)):
        if not declared.fits(spec) or declared.lod_level != spec.lod_level:
            raise LoaderError(f"{where}: field {number} is {spec!r}; expected {declared!r}{do}")


def concatenated(records: Sequence[list[Value]]) -> list[Value]:
    """Concatenate records along the first dims of their fields."""
    return [_joined(fields) for fields in zip(*records, strict=True)]


def _joined(fields: Sequence[Value]) -> Value:
    arrays = [array for array, _ in fields]
    if any(array.ndim == 0 or array.shape[1:] != arrays[0].shape[1:] for array in arrays):
        shapes = ", ".join(str(list(array.shape)) for array in arrays[:8])
        raise LoaderError(f"batch: records of {shapes} differ in more than their first dim")
    return np.concatenate(arrays), concatenated_lod(lod for _, lod in fields)


def random_records(low: float, high: float, specs: Sequence[Spec], seed: int | None) -> Records:
    """An infinite stream of records of uniform float32 numbers."""

    def records() -> Iterator[list[Value]]:
        draw = np.random.default_rng(seed)
        while True:
            yield [(draw.uniform(low, high, spec.dims).astype("float32"), ()) for spec in specs]

    return records
