"""Settings of a loader, validated at construction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fluidlite.base.arguments import as_int
from fluidlite.base.errors import LoaderError
from fluidlite.loaders.assembly import Field
from fluidlite.loaders.sources import Rows, Source, Transform

YIELDS = ("samples", "sample lists", "batches")
"""Kinds of items that a source yields."""


@dataclass(frozen=True)
class Settings:
    """The settings of a loader of batches; see :class:`fluidlite.loaders.BatchedLoader`."""

    source: Source
    fields: tuple[Field, ...] | None
    batch_size: int | None
    yields: str
    shuffle: bool | int
    seed: int
    drop_last: bool
    buffers: int
    preload: int
    workers: int
    processes: bool
    transform: Transform | None
    batch_transform: Transform | None
    persistent: bool = False
    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        self._check_ring()
        self._check_batches()
        self._check_order()
        for name in ("transform", "batch_transform"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise LoaderError(f"{name} is {value!r:.60}; expected a function")

    def _check_ring(self) -> None:
        for name in ("buffers", "preload", "workers"):
            _at_least_one(name, getattr(self, name))
        if self.preload > self.buffers:
            raise LoaderError(
                f"preload is {self.preload}, but there are {self.buffers} buffers: what is preloaded lies in one each"
                "\n  Do: more buffers, or preload fewer batches"
            )

        if self.persistent and not self.processes:
            raise LoaderError("persistent is True, but the workers are threads, which begin in microseconds\n"
                              "  Do: processes=True, or leave it out")  # fmt: skip

    def _check_batches(self) -> None:
        if self.yields not in YIELDS:
            raise LoaderError(f"yields is {self.yields!r}; expected one of {', '.join(map(repr, YIELDS))}")
        if self.yields == "samples":
            _at_least_one("batch_size", self.batch_size)
            return
        if self.batch_size is not None or self.drop_last:
            name, value = ("batch_size", self.batch_size) if self.batch_size is not None else ("drop_last", True)
            raise LoaderError(f"{name} is {value!r}, but the source yields {self.yields}: it says what is in a batch")
        if self.transform is not None and self.yields == "batches":
            raise LoaderError("transform takes a sample, but the source yields batches\n  Do: use batch_transform")

    def _check_order(self) -> None:
        if as_int(self.seed) is None or self.seed < 0:
            raise LoaderError(f"seed is {self.seed!r}; expected an int of 0 or more")
        if not isinstance(self.shuffle, bool):
            _at_least_one("shuffle", self.shuffle, "True, False, or the number of samples to draw from, 1 or more")
        streamed = not isinstance(self.source, Rows)
        if streamed and self.shuffle is True:
            raise LoaderError(
                "shuffle is True, but the source is read as a stream, which has no numbers to shuffle"
                "\n  Do: shuffle=1000, to draw each sample from the 1000 that were read ahead"
            )
        if self.shuffle and self.yields != "samples":
            raise LoaderError(
                f"shuffle is {self.shuffle!r}, but the source yields {self.yields}: their order is its own"
            )
        if streamed and self.processes and self.workers > 1:
            raise LoaderError(
                f"workers is {self.workers}, but the source is read as a stream: each process would read all of it"
                "\n  Do: workers=1, threads, or a source with len and [i]"
            )

    def share(self, samples: Any) -> Any:
        """Return this member's part of a batch's samples; the parts' sizes differ by at most one.

        Raises LoaderError if a batch has fewer samples than there are members.
        """
        if self.ranks == 1:
            return samples
        count = len(samples)
        if count < self.ranks:
            raise LoaderError(
                f"a batch of {count} samples is shared by {self.ranks} members, and each needs one"
                "\n  Do: drop_last=True, or another batch_size"
            )
        return samples[count * self.rank // self.ranks : count * (self.rank + 1) // self.ranks]

    @property
    def batches(self) -> int | None:
        """The number of batches in an epoch; None: unknown."""
        if self.source.samples is None or self.yields == "batches":
            return None
        if self.yields == "sample lists":
            return None
        assert self.batch_size is not None
        whole, rest = divmod(self.source.samples, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)


def _at_least_one(name: str, value: Any, expected: str = "an int of 1 or more") -> None:
    number = as_int(value)
    if number is None or number < 1:
        raise LoaderError(f"{name} is {value!r}; expected {expected}")
