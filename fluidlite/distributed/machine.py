"""What processes of one machine find out together: whether processors are free, and whether they can share memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from fluidlite.base.log import logger
from fluidlite.distributed.shared_memory import Mapping, SharedHeap, available, opened
from fluidlite.distributed.shared_reduction import SharedReductions


def free_processors(local: Any) -> bool:
    """Whether each process of this machine has a second processor, for what goes on beside computing.

    ``local``: the processes of this machine.
    """
    try:
        mine = sorted(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        mine = list(range(os.cpu_count() or 1))
    union = {number for numbers in local.allgather(mine) for number in numbers}
    size: int = local.Get_size()
    return len(union) >= 2 * size


def shared_reductions(everyone: Any, local: Any, wait: Callable[[Any, str], None]) -> SharedReductions | None:
    """Reductions through memory, if all processes are on this machine and can map each other's; else None.

    All processes come to the same.

    ``wait``: as of :class:`SharedReductions`.
    """
    heap: SharedHeap | None = None
    if available() and local.Get_size() == everyone.Get_size():
        with contextlib.suppress(OSError, ValueError, MemoryError):
            heap = SharedHeap()
    mine = (os.getpid(), heap.file, heap.nbytes, heap.token) if heap is not None else None
    rank, facts = everyone.Get_rank(), everyone.allgather(mine)
    maps: list[Mapping] = []
    if all(fact is not None for fact in facts):
        try:
            for other, fact in enumerate(facts):
                maps.append(heap if other == rank and heap is not None else opened(*fact))
        except (OSError, ValueError) as exc:
            logger.debug("process %d shares no memory with the others: %s", rank, exc)
            maps = []
    if not all(everyone.allgather(bool(maps))):
        return None
    return SharedReductions(rank, maps, wait)
