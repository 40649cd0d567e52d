"""Readers: functions that make an iterable of samples each time they are called, and ways to join them."""

from __future__ import annotations

import itertools
import queue
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fluidlite.base.errors import FeedError

Reader = Callable[[], Iterable[Any]]

__all__ = ["ComposeNotAligned", "buffered", "cache", "chain", "compose", "firstn", "map_readers", "shuffle"]


class ComposeNotAligned(FeedError):
    """Readers that are composed end at different samples."""


def map_readers(func: Callable[..., Any], *readers: Reader) -> Reader:
    """A reader of ``func(sample of the first, sample of the second, ...)``."""

    def reader() -> Iterator[Any]:
        return map(func, *(each() for each in readers))

    return reader


def shuffle(reader: Reader, buf_size: int) -> Reader:
    """A reader that shuffles within a buffer of ``buf_size`` samples (by Python's ``random``)."""

    def shuffled() -> Iterator[Any]:
        samples = iter(reader())
        while held := list(itertools.islice(samples, buf_size)):
            random.shuffle(held)
            yield from held

    return shuffled


def chain(*readers: Reader) -> Reader:
    """A reader of all samples of the first, then of the second, ..."""

    def reader() -> Iterator[Any]:
        return itertools.chain.from_iterable(each() for each in readers)

    return reader


def compose(*readers: Reader, check_alignment: bool = True) -> Reader:
    """A reader of tuples: the fields of one sample of each reader, joined.

    Raises
    ------
    ComposeNotAligned
        While reading, if one reader ends before another and ``check_alignment`` is true.
    """
    missing = object()

    def fields(sample: Any) -> tuple[Any, ...]:
        return sample if isinstance(sample, tuple) else (sample,)

    def reader() -> Iterator[Any]:
        for samples in itertools.zip_longest(*(each() for each in readers), fillvalue=missing):
            if any(sample is missing for sample in samples):
                if check_alignment:
                    raise ComposeNotAligned("the composed readers have different numbers of samples")
                return
            yield tuple(itertools.chain.from_iterable(map(fields, samples)))

    return reader


def firstn(reader: Reader, n: int) -> Reader:
    """A reader of the first ``n`` samples."""

    def first() -> Iterator[Any]:
        return itertools.islice(reader(), n)

    return first


def cache(reader: Reader) -> Reader:
    """A reader that reads once and keeps all samples in memory."""
    samples = tuple(reader())
    return lambda: samples


def buffered(reader: Reader, size: int) -> Reader:
    """A reader whose samples are read ahead by a thread, at most ``size`` of them."""
    end = object()

    def ahead() -> Iterator[Any]:
        ready: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(max(size, 1))
        stopped = threading.Event()

        def put(item: tuple[Any, BaseException | None]) -> bool:
            while not stopped.is_set():
                try:
                    ready.put(item, timeout=0.1)
                except queue.Full:
                    continue
                return True
            return False

        def work() -> None:
            try:
                for sample in reader():
                    if not put((sample, None)):
                        return
                put((end, None))
            except BaseException as exc:
                put((end, exc))

        threading.Thread(target=work, daemon=True).start()
        try:
            while True:
                sample, error = ready.get()
                if error is not None:
                    raise error
                if sample is end:
                    return
                yield sample
        finally:
            stopped.set()

    return ahead
