"""Writers of samples in the format of ``fluid.DatasetFactory``'s datasets, also for ``set_pipe_command``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import numpy as np

from fluidlite.base.arguments import check_int
from fluidlite.base.errors import LoaderError

__all__ = ["DataGenerator", "MultiSlotDataGenerator", "MultiSlotStringDataGenerator"]

Samples = Callable[[], Iterable[Any]]


class DataGenerator:
    """A writer of samples; a subclass defines ``generate_sample`` of a line, and optionally ``generate_batch``.

    A sample is a list or tuple of slots, each a name and a list of numbers: ``[("words", [17, 4]), ("label", [1])]``.
    """

    def __init__(self) -> None:
        self.batch_size_ = 32

    def set_batch(self, batch_size: int) -> None:
        """Set the number of samples in a call of ``generate_batch``."""
        if check_int("set_batch: batch_size", batch_size, LoaderError) < 1:
            raise LoaderError(f"set_batch: batch_size is {batch_size}; expected an int of 1 or more")
        self.batch_size_ = batch_size

    def generate_sample(self, line: str | None) -> Samples:
        """Return a function that yields the samples of a line; ``None`` is skipped."""
        raise NotImplementedError(f"{type(self).__name__} has no generate_sample")

    def generate_batch(self, samples: list[Any]) -> Samples:
        """Return a function that yields the samples to write for a batch. Here: all of them."""
        return lambda: samples

    def run_from_stdin(self) -> None:
        """Write the samples of the lines of standard input to standard output."""
        self._write(sample for line in sys.stdin for sample in self.generate_sample(line)())

    def run_from_memory(self) -> None:
        """Write the samples of ``generate_sample(None)`` to standard output."""
        self._write(self.generate_sample(None)())

    def _write(self, samples: Iterable[Any]) -> None:
        non_empty = (sample for sample in samples if sample is not None)
        while batch := list(islice(non_empty, self.batch_size_)):
            sys.stdout.writelines(map(self._gen_str, self.generate_batch(batch)()))

    def _gen_str(self, line: Any) -> str:
        """The line of a sample."""
        return " ".join(f"{len(words)} {' '.join(words)}" for _, words in self._slots(line)) + "\n"

    def _slots(self, line: Any) -> list[tuple[str, list[str]]]:
        """The slots of a sample, with the texts of their numbers."""
        slots = []
        for item in _sequence("a sample", line, "a list of slots"):
            if len(_sequence("a slot", item, "a name and a list")) != 2 or not isinstance(item[0], str):
                raise LoaderError(f"a slot is {item!r:.80}; expected a name and a list of numbers")
            name, values = item
            if not _sequence(f"slot {name!r}", values, "a list of numbers"):
                raise LoaderError(f"slot {name!r} is empty\n  Do: pad it, such as by one 0")
            slots.append((name, [self._text(name, value) for value in values]))
        return slots

    def _text(self, name: str, value: Any) -> str:
        raise NotImplementedError(f"{type(self).__name__} writes no slots; derive from MultiSlotDataGenerator")


def _sequence(what: str, value: Any, expected: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise LoaderError(f"{what} is {type(value).__name__} {value!r:.80}; expected {expected}")
    return value


class MultiSlotStringDataGenerator(DataGenerator):
    """A writer of samples whose numbers are texts, which are not checked."""

    def _text(self, name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise LoaderError(f"slot {name!r} holds {type(value).__name__} {value!r:.40}; expected texts")
        return value


class MultiSlotDataGenerator(DataGenerator):
    """A writer of samples of ints and floats, whose slots have the same names in each."""

    def __init__(self) -> None:
        super().__init__()
        self._proto_info: list[tuple[str, str]] | None = None

    def _slots(self, line: Any) -> list[tuple[str, list[str]]]:
        slots = super()._slots(line)
        names, first_names = [name for name, _ in slots], [name for name, _ in self._proto_info or ()]
        if self._proto_info is not None and names != first_names:
            raise LoaderError(f"a sample has the slots {names}; the first one had {first_names}")
        floats = {name for (name, kind) in self._proto_info or () if kind == "float"}
        floats.update(
            name for name, values in line if any(not isinstance(value, (int, np.integer)) for value in values)
        )
        self._proto_info = [(name, "float" if name in floats else "uint64") for name in names]
        return slots

    def _text(self, name: str, value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise LoaderError(f"slot {name!r} holds {type(value).__name__} {value!r:.40}; expected ints and floats")
        return str(value)
