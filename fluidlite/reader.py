"""Readers: functions that return an iterable of samples at each call, and decorators that combine them."""

from __future__ import annotations

import itertools
import queue
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fluidlite.base.arguments import check_int, check_list
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


def _readers(*readers: Reader) -> tuple[Reader, ...]:
    return tuple([check_function("reader", reader, error=FeedError) for reader in readers])


class ComposeNotAligned(FeedError):
    """Composed readers have different numbers of samples."""


def map_readers(func: Callable[..., Any], *readers: Reader) -> Reader:
    """A reader of ``func(sample of the first, sample of the second, ...)``."""
    check_function("func", func, error=FeedError)
    checked = _readers(*readers)

    def reader() -> Iterator[Any]:
        return map(func, *(each() for each in checked))

    return reader


def shuffle(reader: Reader, buf_size: int) -> Reader:
    """A reader that shuffles within a buffer of ``buf_size`` samples (by Python's ``random``)."""
    (source,), size = _readers(reader), check_int("buf_size of shuffle", buf_size, FeedError, 1)

    def shuffled() -> Iterator[Any]:
        samples = iter(source())
        while buffer := list(itertools.islice(samples, size)):
            random.shuffle(buffer)
            yield from buffer

    return shuffled


def chain(*readers: Reader) -> Reader:
    """A reader of all samples of the first, then of the second, ..."""
    checked = _readers(*readers)

    def reader() -> Iterator[Any]:
        return itertools.chain.from_iterable(each() for each in checked)

    return reader


def compose(*readers: Reader, check_alignment: bool = True) -> Reader:
    """A reader of tuples: the fields of one sample of each reader, joined.

    Raises
    ------
    ComposeNotAligned
        While reading, if one reader ends before another and ``check_alignment`` is true.
    """
    missing, checked, must_align = object(), _readers(*readers), check_bool("check_alignment", check_alignment)

    def fields(sample: Any) -> tuple[Any, ...]:
        return sample if isinstance(sample, tuple) else (sample,)

    def reader() -> Iterator[Any]:
        for samples in itertools.zip_longest(*(each() for each in checked), fillvalue=missing):
            if any(sample is missing for sample in samples):
                if must_align:
                    raise ComposeNotAligned("the composed readers have different numbers of samples")
                return
            yield tuple(itertools.chain.from_iterable(map(fields, samples)))

    return reader


def firstn(reader: Reader, n: int) -> Reader:
    """A reader of the first ``n`` samples."""
    (source,), count = _readers(reader), check_int("n of firstn", n, FeedError, 0)

    def first() -> Iterator[Any]:
        return itertools.islice(source(), count)

    return first


def cache(reader: Reader) -> Reader:
    """A reader that reads once and keeps all samples in memory."""
    samples = tuple(*(each() for each in _readers(reader)))
    return lambda: samples


def buffered(reader: Reader, size: int) -> Reader:
    """A reader that prefetches at most ``size`` samples in a thread."""
    end, (source,), max_size = object(), _readers(reader), check_int("size of buffered", size, FeedError, 0)

    def ahead() -> Iterator[Any]:
        ready: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(max(max_size, 1))
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
                for sample in source():
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
    """A reader of ``mapper(sample)``, computed in advance by threads.

    Parameters
    ----------
    mapper : callable
    reader : callable
    process_num : int
        Number of threads, 1 or more.
    buffer_size : int
        Maximum number of prefetched samples, 1 or more.
    order : bool
        Fluid keeps the reader's order only if this is true; here it is always kept.

    Raises
    ------
    FeedError
        A number is below 1. Exceptions of the reader or the mapper are raised in place of the sample.
    """
    threads, max_pending = (
        check_int("process_num", process_num, FeedError),
        check_int("buffer_size", buffer_size, FeedError),
    )
    if threads < 1 or max_pending < 1:
        raise FeedError(f"xmap_readers: process_num is {threads} and buffer_size {max_pending}; expected 1 or more")
    check_function("mapper", mapper, error=FeedError)
    (source,) = _readers(reader)

    def mapped() -> Iterator[Any]:
        pool = ThreadPoolExecutor(threads)
        pending: deque[Future[Any]] = deque()
        error: Exception | None = None
        try:
            samples = iter(source())
            while True:
                try:
                    sample = next(samples)
                except StopIteration:
                    break
                except Exception as exc:
                    error = exc
                    break
                pending.append(pool.submit(mapper, sample))
                if len(pending) >= max_pending:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
            if error is not None:
                raise error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    return mapped


def multiprocess_reader(readers: Sequence[Reader], use_pipe: bool = True, queue_size: int = 1000) -> Reader:
    """A reader of several readers' samples, round-robin, each prefetched by a thread.

    Fluid uses processes; :mod:`fluidlite.loaders` has those.
    """
    checked = _readers(*check_list("readers", readers, "a list of readers", FeedError))
    if not checked:
        raise FeedError("multiprocess_reader got no readers")
    max_size = check_int("queue_size of multiprocess_reader", queue_size, FeedError, 0)

    def merged() -> Iterator[Any]:
        running = [iter(buffered(reader, max_size)()) for reader in checked]
        end = object()
        while running:
            for samples in list(running):
                sample = next(samples, end)
                if sample is end:
                    running.remove(samples)
                else:
                    yield sample

    return merged
