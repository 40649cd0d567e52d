"""Device memory by place: alloc, free, used (Fluid's three functions), statistics, limits, strategies and arenas."""

from __future__ import annotations

from typing import Any

from fluidlite.base.errors import AllocationError
from fluidlite.base.fork import first_in_child, new_rlock
from fluidlite.memory.allocation import Allocation
from fluidlite.memory.arena import Arena as _Arena
from fluidlite.memory.place_memory import MemoryStats, PlaceMemory
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_registry import Unit
from fluidlite.platform.place import Place, PlaceLike

__all__ = [
    "Allocation",
    "MemoryStats",
    "alloc",
    "arena",
    "free",
    "leaks",
    "peak",
    "reserved",
    "reset",
    "reset_peak",
    "set_limit",
    "set_strategy",
    "stats",
    "trim",
    "used",
]

_memories: dict[Unit, PlaceMemory] = {}
_lock = new_rlock()


def memory_of(place: PlaceLike, context: Context | None = None) -> PlaceMemory:
    """The memory manager of a place, which is created at its first use."""
    context = context or get_context(place)
    if context.memory is None:
        with _lock:
            place_memory = _memories.get(context.unit)
            if place_memory is None:
                place_memory = _memories[context.unit] = PlaceMemory(context.unit, context)
            place_memory.contexts.add(context)
            context.memory = place_memory
    memory: PlaceMemory = context.memory
    return memory


@first_in_child
def _leave_to_parent() -> None:
    for unit, memory in _memories.items():
        if unit.inherited:
            memory.leave_to_parent()


def alloc(place: PlaceLike, nbytes: int, context: Context | None = None) -> Allocation:
    """Allocate ``nbytes`` on a place.

    Parameters
    ----------
    place : Place or str
    nbytes : int
        0 or more.
    context : Context, optional
        The context whose work will use it; default: the thread's default context of the place.

    Raises
    ------
    OutOfMemoryError
        It names place, requested, used and reserved bytes; the process can go on.
    """
    context = context or get_context(place)
    return memory_of(place, context).alloc(nbytes, context)


def free(allocation: Allocation, place: PlaceLike | None = None) -> None:
    """Free an allocation.

    Raises
    ------
    AllocationError
        On a double free, on an object that is no allocation, and if ``place`` is not the allocation's place.
    """
    if not isinstance(allocation, Allocation):
        raise AllocationError(f"foreign free: {allocation!r} was not made by memory.alloc")
    if place is not None and Place.parse(place) != allocation.place:
        raise AllocationError(f"foreign free: the allocation is on {allocation.place}, not on {Place.parse(place)}")
    allocation.memory.free(allocation)


def used(place: PlaceLike) -> int:
    """Requested bytes on a place that are not yet freed."""
    return memory_of(place).stats().used


def reserved(place: PlaceLike) -> int:
    """Bytes reserved on the device: used, padding and cached."""
    return memory_of(place).stats().reserved


def peak(place: PlaceLike) -> int:
    """The maximum of :func:`used` so far."""
    return memory_of(place).stats().peak


def reset_peak(place: PlaceLike) -> None:
    """Reset :func:`peak` to the bytes used now."""
    memory_of(place).reset_peak()


def stats(place: PlaceLike) -> MemoryStats:
    """All statistics of a place."""
    return memory_of(place).stats()


def leaks(place: PlaceLike) -> str:
    """One line about the live allocations on a place; "" if there are none."""
    current = stats(place)
    if not current.live:
        return ""
    live = f"{current.live} allocations of {current.used:,} bytes are still held"
    return f"{current.place}: {live} ({current.allocations} made, {current.frees} freed)"


def trim(place: PlaceLike) -> None:
    """Release cached blocks to the device."""
    memory_of(place).trim()


def set_limit(place: PlaceLike, nbytes: int | None) -> None:
    """Limit the used bytes of a place, padding included, to ``nbytes``; None removes the limit."""
    if nbytes is not None and (isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0):
        raise AllocationError(f"the limit is {nbytes!r}; expected a number of bytes, or None")
    memory_of(place).limit = nbytes


def set_strategy(place: PlaceLike, name: str, **options: Any) -> None:
    """Choose the allocation strategy of a place.

    Parameters
    ----------
    place : Place or str
    name : str
        ``"pool"``, ``"stream"``, ``"direct"``, ``"arena"``, or one that a plugin registered.
    **options
        Options of the strategy: ``nbytes`` of an arena.

    Raises
    ------
    AllocationError
        If there is no such strategy, it does not take the options, or something is allocated on the place.
    OutOfMemoryError
        If the device has less memory than the strategy requests. The place keeps its previous strategy.
    """
    context = get_context(place)
    memory_of(place, context).use_strategy(name, context, options)


def reset(place: PlaceLike) -> None:
    """Invalidate all allocations of a place whose strategy is ``"arena"``; later uses of them raise.

    Runs of other threads end first; later work of other contexts waits, on the device, for work in flight.

    Raises
    ------
    AllocationError
        If the place has another strategy, or this thread is in the middle of a run.
    """
    memory_of(place).reset()


def arena(place: PlaceLike, nbytes: int, context: Context | None = None) -> _Arena:
    """Preallocate ``nbytes`` on a place; see :class:`fluidlite.memory.arena.Arena`."""
    context = context or get_context(place)
    return _Arena(memory_of(place, context), nbytes, context)
