"""The memory of one place: one strategy, one lock, one set of counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fluidlite.base.errors import AllocationError, OutOfMemoryError
from fluidlite.base.fork import keep_for_ever, new_rlock
from fluidlite.base.weak_objects import WeakObjects
from fluidlite.memory.allocation import NOTHING, Allocation, Block, DeadEntry
from fluidlite.memory.bump import Piece
from fluidlite.memory.strategies import RawMemory, Strategy, default_strategy, strategies
from fluidlite.platform.context import Context
from fluidlite.platform.device_registry import Unit
from fluidlite.platform.place import Place

MOST_SIZES = 4096
"""Numbers of bytes of which the rounded size is kept."""
KEPT = 64 << 20
"""Bytes that a strategy may keep for later, or as many as were used at once, if that is more."""


@dataclass(frozen=True)
class MemoryStats:
    """Numbers of one place, in bytes where they are sizes.

    ``used`` is what was asked for and not yet freed, ``padding`` what rounding adds to it, ``reserved`` what is
    held from the device (used + padding + cached), ``peak`` the highest ``used`` so far (see ``reset_peak``).
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
        self._hold = self.strategy.allocation
        self.lock = new_rlock()
        self.dead: deque[DeadEntry] = deque()
        self.limit: int | None = None
        self.arena_source: Callable[[int], Any] | None = None
        """Makes the handles of arenas of compiled programs, where others are to see them."""
        self.contexts: WeakObjects[Context] = WeakObjects()
        self._waiting: list[tuple[Block, list[Any]]] = []
        self._sizes: dict[int, int] = {}
        self.used_bytes = 0
        self.held_bytes = 0
        self.peak = 0
        self.allocations = 0
        self.frees = 0

    def alloc(self, nbytes: int, context: Context) -> Allocation:
        """Return memory for ``nbytes`` (0 is fine) that belongs to ``context``.

        Raises OutOfMemoryError after the pool was emptied and the device asked once more.
        """
        size = self._sizes.get(nbytes)
        if size is None:
            if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
                raise AllocationError(f"cannot allocate {nbytes!r} bytes on {self.place}")
            size = self.strategy.size_of(nbytes)
            if len(self._sizes) < MOST_SIZES:
                self._sizes[nbytes] = size
        with self.lock:
            dead = self.dead
            while dead:  # _settle, spelled out for the common case
                block, freed, users, owner = entry = dead.popleft()
                home = block.home
                if home is None or users is not None or owner.closed:
                    self._settle(entry)
                    continue
                self.used_bytes -= freed
                self.held_bytes -= block.size
                self.frees += 1
                home.append(block)
            if self._waiting:
                self._look_again()
            if self.limit is not None and self.held_bytes + size > self.limit:
                self._reclaim(context)
                if self.held_bytes + size > self.limit:
                    raise self._out_of_memory(nbytes, f"its limit is {self.limit:,}")
            ready = context.spare_blocks.get(size)
            if not ready and context.idle_count:
                self._reclaim(context)
                ready = context.spare_blocks.get(size)
            if ready:
                block = ready.pop()
            else:
                if self.strategy.caches and self.strategy.reserved - self.held_bytes > max(KEPT, self.peak):
                    self.strategy.trim()  # a storm of sizes, most of which do not come again
                try:
                    block = self.strategy.take(size, context)
                except MemoryError:
                    block = self._retry(nbytes, size, context)
            self.used_bytes += nbytes
            self.held_bytes += block.size
            self.allocations += 1
            if self.used_bytes - context.idle_bytes > self.peak:
                self.raise_peak()
            return self._hold(self, block, nbytes, context, block.offset)

    def _reclaim(self, context: Context) -> None:
        """Take back what the context's runs keep for later."""
        context.drop_idle()
        self._drain()

    def _reclaim_all(self) -> None:
        """Take back what runs keep for later on every context that is not running now."""
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
        """Hold memory that somebody else allocated; with ``counted`` it counts as used until it is dropped."""
        block = Block(handle, nbytes, _Foreign(self.strategy), context)
        if counted:
            with self.lock:
                self.used_bytes += nbytes
                self.held_bytes += nbytes
                self.allocations += 1
                self.raise_peak()
        return Allocation(self, block, nbytes, context, owned=counted)

    def alloc_arena(self, nbytes: int, context: Context) -> Allocation:
        """Return memory for the arena of a compiled program; from ``arena_source``, where there is one that has it.

        Raises OutOfMemoryError.
        """
        source = self.arena_source
        if source is not None and (self.limit is None or self.held_bytes + nbytes <= self.limit):
            with suppress(MemoryError):
                return self.adopt(source(nbytes), nbytes, context)
        return self.alloc(nbytes, context)

    def free(self, allocation: Allocation) -> None:
        """Give an allocation back, once."""
        with self.lock:
            block = allocation.block
            if block is None:
                if isinstance(allocation, Piece) and allocation.stale:
                    allocation.live_block()  # says so
                raise AllocationError(
                    f"double free: these {allocation.nbytes} bytes on {self.place} were freed before"
                    "\n  Do: free an allocation once; one that a tensor holds is freed with it"
                )
            if not allocation.owned:
                raise AllocationError(
                    f"foreign free: {allocation!r} is borrowed or part of an arena; it is not yours to free"
                )
            allocation.block = None
            allocation.at_end()
            allocation.at_end = NOTHING
            self._drain()

    def _drain(self) -> None:
        while self.dead:
            self._settle(self.dead.popleft())
        self._look_again()

    def _settle(self, entry: DeadEntry) -> None:
        """Count a freed block, and give it back now, or once the other contexts that used it are done."""
        block, nbytes, users, _ = entry
        self.used_bytes -= nbytes
        self.held_bytes -= block.size
        self.frees += 1
        if type(block.allocator) is _Foreign:
            return  # somebody else's memory: dropping the handle is all
        events = [] if self.unit.lost else [user.record() for user in users or () if not user.closed]
        if all(event.done() for event in events):
            self.strategy.give(block)
        else:
            self._waiting.append((block, events))

    def _look_again(self) -> None:
        waiting, self._waiting = self._waiting, []
        for block, events in waiting:
            if self.unit.lost or all(event.done() for event in events):
                self.strategy.give(block)
            else:
                self._waiting.append((block, events))

    def leave_to_parent(self) -> None:
        """In a forked child: nothing that belongs to the parent's device is given back here, now or later."""
        keep_for_ever(self)
        keep_for_ever(self.dead)  # what the allocations go into
        self.dead = deque()

    def use_strategy(self, name: str, context: Context, options: dict[str, Any]) -> None:
        """Change the strategy, while nothing is allocated; on an error the present one stays."""
        with self.lock:
            self._reclaim_all()
            if self.live:
                raise AllocationError(
                    f"{self.place} has {self.live} live allocations; change the strategy before there are any"
                )
            self.strategy.trim()
            made = strategies.make(name, RawMemory(self.unit, context), options)
            self.strategy.close()
            self.strategy, self._hold = made, made.allocation
            self._sizes.clear()

    def reset(self) -> None:
        """Take back all memory at once; what still had some raises when it is used."""
        bump = self.strategy.bump
        if bump is None:
            raise AllocationError(
                f"{self.place} uses the strategy {self.strategy.name!r}, which cannot be reset"
                f'\n  Do: memory.set_strategy("{self.place}", "arena", nbytes=...) before anything is allocated'
            )
        taken = bump.reset(self.contexts)  # without our lock: runs of other threads end first, and may want it
        with self.lock:
            for piece, block in taken:
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
        """Allocations that somebody holds."""
        return self.allocations - self.frees - sum(context.idle_count for context in self.contexts)

    @property
    def idle_bytes(self) -> int:
        """Bytes of tensors that runs keep for their next operators."""
        return sum(context.idle_bytes for context in self.contexts)

    def raise_peak(self) -> None:
        """Let ``peak`` be at least what is used now; what any context keeps for later is not used."""
        self.peak = max(self.peak, self.used_bytes - self.idle_bytes)

    def reset_peak(self) -> None:
        with self.lock:
            self._drain()
            self.peak = self.used_bytes - self.idle_bytes


class _Foreign:
    """Stands for the allocator of memory that is not ours."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def address(self, handle: Any) -> int | None:
        find = getattr(self._strategy.raw.allocator(None), "address", None)
        found: int | None = find(handle) if find is not None else None
        return found
