"""Memory of a place: alloc, free, used (Fluid's three), and what one wants to know beside them."""

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
    """The memory of a place (made at its first use)."""
    context = context or get_context(place)
    if context.memory is None:
        with _lock:
            found = _memories.get(context.unit)
            if found is None:
                found = _memories[context.unit] = PlaceMemory(context.unit, context)
            found.contexts.add(context)
            context.memory = found
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
        Whose work will use it; the thread's default context of the place if left out.

    Raises
    ------
    OutOfMemoryError
        Names place, asked, used and reserved; the process can go on.
    """
    context = context or get_context(place)
    return memory_of(place, context).alloc(nbytes, context)


def free(allocation: Allocation, place: PlaceLike | None = None) -> None:
    """Give an allocation back.

    Raises
    ------
    AllocationError
        On a double free, on something that is no allocation, and when ``place`` is another place than its own.
    """
    if not isinstance(allocation, Allocation):
        raise AllocationError(f"foreign free: {allocation!r} was not made by memory.alloc")
    if place is not None and Place.parse(place) != allocation.place:
        raise AllocationError(f"foreign free: the allocation is on {allocation.place}, not on {Place.parse(place)}")
    allocation.memory.free(allocation)


def used(place: PlaceLike) -> int:
    """Bytes asked for on a place and not yet freed."""
    return memory_of(place).stats().used


def reserved(place: PlaceLike) -> int:
    """Bytes held from the device: used, padding and cached."""
    return memory_of(place).stats().reserved


def peak(place: PlaceLike) -> int:
    """The highest :func:`used` so far."""
    return memory_of(place).stats().peak


def reset_peak(place: PlaceLike) -> None:
    """Let :func:`peak` start again from what is used now."""
    memory_of(place).reset_peak()


def stats(place: PlaceLike) -> MemoryStats:
    """All numbers of a place."""
    return memory_of(place).stats()


def leaks(place: PlaceLike) -> str:
    """One line on what is still allocated on a place; "" if nothing is."""
    now = stats(place)
    if not now.live:
        return ""
    held = f"{now.live} allocations of {now.used:,} bytes are still held"
    return f"{now.place}: {held} ({now.allocations} made, {now.frees} freed)"


def trim(place: PlaceLike) -> None:
    """Give cached blocks back to the device."""
    memory_of(place).trim()


def set_limit(place: PlaceLike, nbytes: int | None) -> None:
    """Let a place hold at most ``nbytes`` (used and padding); None lifts the limit."""
    if nbytes is not None and (isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0):
        raise AllocationError(f"the limit is {nbytes!r}; expected a number of bytes, or None")
    memory_of(place).limit = nbytes


def set_strategy(place: PlaceLike, name: str, **options: Any) -> None:
    """Choose how a place allocates.

    Parameters
    ----------
    place : Place or str
    name : str
        ``"pool"``, ``"stream"``, ``"direct"``, ``"arena"``, or one that a plugin registered.
    **options
        What the strategy takes: ``nbytes`` of an arena.

    Raises
    ------
    AllocationError
        If there is no such strategy, it does not take the options, or something is allocated on the place.
    OutOfMemoryError
        If the strategy asks for more than there is. The place keeps the strategy that it had.
    """
    context = get_context(place)
    memory_of(place, context).use_strategy(name, context, options)


def reset(place: PlaceLike) -> None:
    """Take back all memory of a place whose strategy is ``"arena"``: what had some raises when it is used.

    Runs of other threads end first; another context's work waits, on the device, for what was under way.

    Raises
    ------
    AllocationError
        If the strategy is another, or this thread is in the middle of a run.
    """
    memory_of(place).reset()


def arena(place: PlaceLike, nbytes: int, context: Context | None = None) -> _Arena:
    """Preallocate ``nbytes`` on a place; see :class:`fluidlite.memory.arena.Arena`."""
    context = context or get_context(place)
    return _Arena(memory_of(place, context), nbytes, context)
