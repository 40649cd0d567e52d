"""The memory manager of one place: a strategy, a lock, and statistics."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fluidlite.base.errors import AllocationError, OutOfMemoryError
from fluidlite.base.fork import never_finalize, new_rlock
from fluidlite.base.weak_objects import WeakObjects
from fluidlite.memory.allocation import NO_FINALIZER, Allocation, Block, DeadEntry
from fluidlite.memory.bump import BumpAllocation
from fluidlite.memory.strategies import RawMemory, Strategy, default_strategy, strategies
from fluidlite.platform.context import Context
from fluidlite.platform.device_registry import Unit
from fluidlite.platform.place import Place

MAX_CACHED_SIZES = 4096
"""Requested sizes whose rounded size is cached."""
MAX_CACHED_BYTES = 64 << 20
"""Free bytes that a strategy may cache, or the peak of used bytes, if that is more."""


@dataclass(frozen=True)
class MemoryStats:
    """Statistics of one place; sizes are in bytes.

    ``used``: requested and not yet freed. ``padding``: added to it by rounding. ``reserved``: allocated from the device
    (used + padding + cached). ``peak``: the maximum of ``used`` so far (see ``reset_peak``).
    """

    place: Place
    strategy: str
    used: int
    padding: int
    reserved: int
    peak: int
    live: int
    allocations: int
    frees: int


class PlaceMemory:
    """Allocates, frees and counts on one place. Thread-safe."""

    def __init__(self, unit: Unit, context: Context) -> None:
        self.unit = unit
        self.place = unit.place
        self.alignment = unit.info.alignment
        self.strategy: Strategy = default_strategy(unit, context)
        self._allocation_type = self.strategy.allocation
        self.lock = new_rlock()
        self.freed_entries: deque[DeadEntry] = deque()
        self.limit: int | None = None
        self.arena_source: Callable[[int], Any] | None = None
        """Allocates the arenas of compiled programs that other processes map."""
        self.contexts: WeakObjects[Context] = WeakObjects()
        self._deferred: list[tuple[Block, list[Any]]] = []
        self._sizes: dict[int, int] = {}
        self.used_bytes = 0
        self.held_bytes = 0
        self.peak = 0
        self.allocations = 0
        self.frees = 0

    def alloc(self, nbytes: int, context: Context) -> Allocation:
        """Return memory for ``nbytes`` (0 is fine) that belongs to ``context``.

        Raises OutOfMemoryError after the pool was emptied and the device allocation retried.
        """
        size = self._sizes.get(nbytes)
        if size is None:
            if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
                raise AllocationError(f"cannot allocate {nbytes!r} bytes on {self.place}")
            size = self.strategy.size_of(nbytes)
            if len(self._sizes) < MAX_CACHED_SIZES:
                self._sizes[nbytes] = size
        with self.lock:
            dead = self.freed_entries
            while dead:  # _settle, inlined for the common case
                block, freed, users, owner = entry = dead.popleft()
                free_list = block.free_list
                if free_list is None or users is not None or owner.closed:
                    self._settle(entry)
                    continue
                self.used_bytes -= freed
                self.held_bytes -= block.size
                self.frees += 1
                free_list.append(block)
            if self._deferred:
                self._poll_deferred()
            if self.limit is not None and self.held_bytes + size > self.limit:
                self._reclaim_all()
                if self.held_bytes + size > self.limit:
                    raise self._out_of_memory(nbytes, f"its limit is {self.limit:,}")
            spare_blocks = context.spare_blocks.get(size)
            if not spare_blocks and context.idle_count:
                self._reclaim(context)
                spare_blocks = context.spare_blocks.get(size)
            if spare_blocks:
                block = spare_blocks.pop()
            else:
                if self.strategy.caches and self.strategy.reserved - self.held_bytes > max(MAX_CACHED_BYTES, self.peak):
                    self.strategy.trim()  # many sizes, most of which do not recur
                try:
                    block = self.strategy.take(size, context)
                except MemoryError:
                    block = self._retry(nbytes, size, context)
            self.used_bytes += nbytes
            self.held_bytes += block.size
            self.allocations += 1
            if self.used_bytes - context.idle_bytes > self.peak:
                self.raise_peak()
            return self._allocation_type(self, block, nbytes, context, block.offset)

    def _reclaim(self, context: Context) -> None:
        """Reclaim the idle tensors of a context's runs."""
        context.drop_idle()
        self._drain()

    def _reclaim_all(self) -> None:
        """Reclaim the idle tensors of all contexts that are not running now."""
        for context in self.contexts:
            if context.idle_count and context.lock.acquire(blocking=False):
                try:
                    context.drop_idle()
                finally:
                    context.lock.release()
        self._drain()

    def _retry(self, nbytes: int, size: int, context: Context) -> Block:
        self._reclaim_all()
        self.strategy.trim()
        try:
            return self.strategy.take(size, context)
        except MemoryError as exc:
            raise self._out_of_memory(nbytes, str(exc.__cause__ or exc)) from exc

    def _out_of_memory(self, nbytes: int, why: str) -> OutOfMemoryError:
        return OutOfMemoryError(
            f"out of memory on {self.place}: asked for {nbytes:,} bytes, used {self.used_bytes:,}, "
            f"reserved {self.strategy.reserved:,}"
            + (f" ({why})" if why else "")
            + "\n  Do: use a smaller batch, or free what you hold; the process can go on"
        )

    def adopt(self, handle: Any, nbytes: int, context: Context, counted: bool = True) -> Allocation:
        """Wrap memory that was allocated elsewhere; with ``counted`` it counts as used until it is dropped."""
        block = Block(handle, nbytes, _Foreign(self.strategy), context)
        if counted:
            with self.lock:
                self.used_bytes += nbytes
                self.held_bytes += nbytes
                self.allocations += 1
                self.raise_peak()
        return Allocation(self, block, nbytes, context, owned=counted)

    def alloc_arena(self, nbytes: int, context: Context) -> Allocation:
        """Return memory for the arena of a compiled program, from ``arena_source`` if that has enough.

        Raises OutOfMemoryError.
        """
        source = self.arena_source
        if source is not None and (self.limit is None or self.held_bytes + nbytes <= self.limit):
            with suppress(MemoryError):
                return self.adopt(source(nbytes), nbytes, context)
        return self.alloc(nbytes, context)

    def free(self, allocation: Allocation) -> None:
        """Free an allocation, once."""
        with self.lock:
            block = allocation.block
            if block is None:
                if isinstance(allocation, BumpAllocation) and allocation.stale:
                    allocation.live_block()  # raises
                raise AllocationError(
                    f"double free: these {allocation.nbytes} bytes on {self.place} were freed before"
                    "\n  Do: free an allocation once; one that a tensor holds is freed with it"
                )
            if not allocation.owned:
                raise AllocationError(
                    f"foreign free: {allocation!r} is borrowed or part of an arena; it is not yours to free"
                )
            allocation.block = None
            allocation.finalizer()
            allocation.finalizer = NO_FINALIZER
            self._drain()

    def _drain(self) -> None:
        while self.freed_entries:
            self._settle(self.freed_entries.popleft())
        self._poll_deferred()

    def _settle(self, entry: DeadEntry) -> None:
        """Count a freed block, and return it to the strategy, now or after the work of other contexts on it."""
        block, nbytes, users, _ = entry
        self.used_bytes -= nbytes
        self.held_bytes -= block.size
        self.frees += 1
        if type(block.allocator) is _Foreign:
            return  # foreign memory: dropping the handle suffices
        events = [] if self.unit.lost else [user.record() for user in users or () if not user.closed]
        if all(event.done() for event in events):
            self.strategy.give(block)
        else:
            self._deferred.append((block, events))

    def _poll_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for block, events in deferred:
            if self.unit.lost or all(event.done() for event in events):
                self.strategy.give(block)
            else:
                self._deferred.append((block, events))

    def leave_to_parent(self) -> None:
        """In a forked child: never release memory of the parent's device."""
        never_finalize(self)
        never_finalize(self.freed_entries)  # finalizers append to it
        self.freed_entries = deque()

    def use_strategy(self, name: str, context: Context, options: dict[str, Any]) -> None:
        """Change the strategy, while nothing is allocated; on an error the current one stays."""
        with self.lock:
            self._reclaim_all()
            if self.live:
                raise AllocationError(
                    f"{self.place} has {self.live} live allocations; change the strategy before there are any"
                )
            self.strategy.trim()
            strategy = strategies.make(name, RawMemory(self.unit, context), options)
            self.strategy.close()
            self.strategy, self._allocation_type = strategy, strategy.allocation
            self._sizes.clear()

    def reset(self) -> None:
        """Invalidate all allocations at once; later uses of them raise."""
        bump = self.strategy.bump
        if bump is None:
            raise AllocationError(
                f"{self.place} uses the strategy {self.strategy.name!r}, which cannot be reset"
                f'\n  Do: memory.set_strategy("{self.place}", "arena", nbytes=...) before anything is allocated'
            )
        invalidated = bump.reset(self.contexts)  # without the lock, which runs of other threads may need to end
        with self.lock:
            for piece, block in invalidated:
                self.used_bytes -= piece.nbytes
                self.held_bytes -= block.size
                self.frees += 1

    def trim(self) -> None:
        with self.lock:
            self._reclaim_all()
            self.strategy.trim()

    def stats(self) -> MemoryStats:
        with self.lock:
            self._drain()
            return MemoryStats(
                self.place,
                self.strategy.name,
                self.used_bytes - self.idle_bytes,
                self.held_bytes - self.used_bytes,
                self.strategy.reserved,
                self.peak,
                self.live,
                self.allocations,
                self.frees,
            )

    @property
    def live(self) -> int:
        """The number of live allocations."""
        return self.allocations - self.frees - sum(context.idle_count for context in self.contexts)

    @property
    def idle_bytes(self) -> int:
        """Bytes of idle tensors, which runs reuse for later operators."""
        return sum(context.idle_bytes for context in self.contexts)

    def raise_peak(self) -> None:
        """Raise ``peak`` to the bytes used now; idle tensors do not count."""
        self.peak = max(self.peak, self.used_bytes - self.idle_bytes)

    def reset_peak(self) -> None:
        with self.lock:
            self._drain()
            self.peak = self.used_bytes - self.idle_bytes


class _Foreign:
    """The allocator of foreign memory: it only resolves addresses."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def address(self, handle: Any) -> int | None:
        find = getattr(self._strategy.raw.allocator(None), "address", None)
        address: int | None = find(handle) if find is not None else None
        return address
