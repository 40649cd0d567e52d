"""Facts about the processes of one machine: whether processors are free, and whether memory can be shared."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from fluidlite.base.log import logger
from fluidlite.distributed.shared_memory import MappedFile, SharedHeap, available, open_mapping
from fluidlite.distributed.shared_reduction import SharedReductions


def free_processors(local: Any) -> bool:
    """Whether each process of this machine has a second processor, for communication during computation.

    ``local``: the processes of this machine.
    """
    try:
        own = sorted(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        own = list(range(os.cpu_count() or 1))
    union = {number for numbers in local.allgather(own) for number in numbers}
    size: int = local.Get_size()
    return len(union) >= 2 * size


def shared_reductions(everyone: Any, local: Any, wait: Callable[[Any, str], None]) -> SharedReductions | None:
    """Return reductions through shared memory, or None if the processes are on several machines or cannot share it.

    The result is the same for all processes.

    ``wait``: see :class:`SharedReductions`.
    """
    heap: SharedHeap | None = None
    if available() and local.Get_size() == everyone.Get_size():
        with contextlib.suppress(OSError, ValueError, MemoryError):
            heap = SharedHeap()
    own_facts = (os.getpid(), heap.file, heap.nbytes, heap.token) if heap is not None else None
    rank, facts = everyone.Get_rank(), everyone.allgather(own_facts)
    maps: list[MappedFile] = []
    if all(fact is not None for fact in facts):
        try:
            for other, fact in enumerate(facts):
                maps.append(heap if other == rank and heap is not None else open_mapping(*fact))
        except (OSError, ValueError) as exc:
            logger.debug("process %d shares no memory with the others: %s", rank, exc)
            maps = []
    if not all(everyone.allgather(bool(maps))):
        return None
    return SharedReductions(rank, maps, wait)
