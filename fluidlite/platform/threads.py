"""Parts of one large problem on several threads: NumPy lets go of the interpreter's lock inside its loops."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from fluidlite.base.fork import new_lock

MOST = 8
"""Threads that share memory's bandwidth with profit."""

_lock = new_lock()
_pools: list[ThreadPoolExecutor] = []


def _pool() -> ThreadPoolExecutor:
    """The threads beside the caller's, made when they are first needed."""
    with _lock:
        if not _pools:
            _pools.append(ThreadPoolExecutor(MOST - 1, "fluidlite-array"))
        return _pools[0]


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_pools.clear)


def available_processors() -> int:
    """How many threads the process may run at once."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def each_part(context: Any, parts: int, worker: Callable[[], Callable[[int], None]]) -> None:
    """Call ``worker()(part)`` for every part.

    ``context``: its ``threads`` limits how many take part.
    ``parts``: what a part is does not depend on the number of threads: results repeat bit for bit.
    ``worker``: makes one thread's function, with scratch memory of its own.
    """
    count = min(parts, context.threads or available_processors(), MOST) if parts > 1 else parts

    def share(first: int) -> None:
        work = worker()
        for part in range(first, parts, count):
            work(part)

    if count <= 1:
        if parts:
            share(0)
        return
    others = [_pool().submit(copy_context().run, share, first) for first in range(1, count)]
    try:
        share(0)
    finally:  # memory of the call must not be written once this returns
        errors = [other.exception() for other in others]
    for error in errors:
        if error is not None:
            raise error
