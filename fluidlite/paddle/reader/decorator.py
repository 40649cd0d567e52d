"""``paddle.reader.decorator``: the readers of :mod:`fluidlite.reader`, and ``Fake``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fluidlite import reader as _reader
from fluidlite.base.errors import FeedError
from fluidlite.reader import *  # noqa: F403
from fluidlite.reader import Reader

__all__ = ["Fake"]
__all__ += _reader.__all__


class Fake:
    """Repeats a reader's first sample, to measure training without reading: ``Fake()(reader, count)``."""

    def __call__(self, reader: Reader, length: int) -> Reader:
        def repeated() -> Iterator[Any]:
            try:
                sample = next(iter(reader()))
            except StopIteration:
                raise FeedError("reader.Fake: the reader has no sample; expected one or more") from None
            for _ in range(length):
                yield sample

        return repeated
