"""Readers: functions that make an iterable of samples each time they are called, and ways to join them."""

from __future__ import annotations

import itertools
import queue
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fluidlite.base.arguments import listed, whole
from fluidlite.base.errors import FeedError
from fluidlite.layer_helper import check_bool, check_function
from fluidlite.loaders.fluid_loader import DataLoader as DataLoader, PyReader as PyReader

Reader = Callable[[], Iterable[Any]]

__all__ = [
    "ComposeNotAligned",
    "buffered",
    "cache",
    "chain",
    "compose",
    "firstn",
    "map_readers",
    "multiprocess_reader",
    "shuffle",
    "xmap_readers",
]


def _readers(*given: Reader) -> tuple[Reader, ...]:
    return tuple([check_function("reader", each, error=FeedError) for each in given])


class ComposeNotAligned(FeedError):
    """Readers that are composed end at different samples."""


def map_readers(func: Callable[..., Any], *readers: Reader) -> Reader:
    """A reader of ``func(sample of the first, sample of the second, ...)``."""
    check_function("func", func, error=FeedError)
    made = _readers(*readers)

    def reader() -> Iterator[Any]:
        return map(func, *(each() for each in made))

    return reader


def shuffle(reader: Reader, buf_size: int) -> Reader:
    """A reader that shuffles within a buffer of ``buf_size`` samples (by Python's ``random``)."""
    (made,), size = _readers(reader), whole("buf_size of shuffle", buf_size, FeedError, 0)

    def shuffled() -> Iterator[Any]:
        samples = iter(made())
        while held := list(itertools.islice(samples, size)):
            random.shuffle(held)
            yield from held

    return shuffled


def chain(*readers: Reader) -> Reader:
    """A reader of all samples of the first, then of the second, ..."""
    made = _readers(*readers)

    def reader() -> Iterator[Any]:
        return itertools.chain.from_iterable(each() for each in made)

    return reader


def compose(*readers: Reader, check_alignment: bool = True) -> Reader:
    """A reader of tuples: the fields of one sample of each reader, joined.

    Raises
    ------
    ComposeNotAligned
        While reading, if one reader ends before another and ``check_alignment`` is true.
    """
    missing, made, aligned = object(), _readers(*readers), check_bool("check_alignment", check_alignment)

    def fields(sample: Any) -> tuple[Any, ...]:
        return sample if isinstance(sample, tuple) else (sample,)

    def reader() -> Iterator[Any]:
        for samples in itertools.zip_longest(*(each() for each in made), fillvalue=missing):
            if any(sample is missing for sample in samples):
                if aligned:
                    raise ComposeNotAligned("the composed readers have different numbers of samples")
                return
            yield tuple(itertools.chain.from_iterable(map(fields, samples)))

    return reader


def firstn(reader: Reader, n: int) -> Reader:
    """A reader of the first ``n`` samples."""
    (made,), count = _readers(reader), whole("n of firstn", n, FeedError, 0)

    def first() -> Iterator[Any]:
        return itertools.islice(made(), count)

    return first


def cache(reader: Reader) -> Reader:
    """A reader that reads once and keeps all samples in memory."""
    samples = tuple(*(each() for each in _readers(reader)))
    return lambda: samples


def buffered(reader: Reader, size: int) -> Reader:
    """A reader whose samples are read ahead by a thread, at most ``size`` of them."""
    end, (made,), most = object(), _readers(reader), whole("size of buffered", size, FeedError, 0)

    def ahead() -> Iterator[Any]:
        ready: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(max(most, 1))
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
                for sample in made():
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


def xmap_readers(
    mapper: Callable[[Any], Any], reader: Reader, process_num: int, buffer_size: int, order: bool = False
) -> Reader:
    """A reader of ``mapper(sample)``, computed ahead by threads.

    Parameters
    ----------
    mapper : callable
    reader : callable
    process_num : int
        Number of threads, 1 or more.
    buffer_size : int
        How many samples are read ahead at most, 1 or more.
    order : bool
        Fluid promises the reader's order only where this is true; here it is kept in any case.

    Raises
    ------
    FeedError
        A number below 1. What the reader or the mapper raises comes out where the sample would.
    """
    threads, ahead = whole("process_num", process_num, FeedError), whole("buffer_size", buffer_size, FeedError)
    if threads < 1 or ahead < 1:
        raise FeedError(f"xmap_readers: process_num is {threads} and buffer_size {ahead}; expected 1 or more")
    check_function("mapper", mapper, error=FeedError)
    (made,) = _readers(reader)

    def mapped() -> Iterator[Any]:
        pool = ThreadPoolExecutor(threads)
        pending: deque[Future[Any]] = deque()
        try:
            for sample in made():
                pending.append(pool.submit(mapper, sample))
                if len(pending) >= ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    return mapped


def multiprocess_reader(readers: Sequence[Reader], use_pipe: bool = True, queue_size: int = 1000) -> Reader:
    """A reader of the samples of several readers, each read ahead by a thread, one sample of each in turn.

    Fluid uses processes; :mod:`fluidlite.loaders` has those.
    """
    made = _readers(*listed("readers", readers, "a list of readers", FeedError))
    if not made:
        raise FeedError("multiprocess_reader got no readers")
    most = whole("queue_size of multiprocess_reader", queue_size, FeedError, 0)

    def merged() -> Iterator[Any]:
        running = [iter(buffered(reader, most)()) for reader in made]
        end = object()
        while running:
            for samples in list(running):
                sample = next(samples, end)
                if sample is end:
                    running.remove(samples)
                else:
                    yield sample

    return merged
