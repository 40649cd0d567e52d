"""The offset allocator: gives each buffer an offset in an arena; buffers with overlapping live ranges are disjoint."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence

from fluidlite.platform.device_memory import aligned

BufferRequest = tuple[int, int, int]
"""A buffer to allocate: bytes, first step, last step."""
Strategy = Callable[[Sequence[BufferRequest], int], tuple[list[int], int]]
"""``strategy(spans, alignment)`` returns the offset of each buffer, and the bytes of the arena."""

MAX_COMPARED_PAIRS = 250_000
"""Maximum number of pairs of buffers for which :func:`by_size`, which compares all pairs, is tried too."""


def by_size(spans: Sequence[BufferRequest], alignment: int) -> tuple[list[int], int]:
    """Best fit, largest buffer first: each gets the smallest gap between the buffers that are live with it."""
    offsets = [0] * len(spans)
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first step, last step; by offset
    top = 0
    for number in sorted(range(len(spans)), key=lambda n: (-spans[n][0], spans[n][1])):
        nbytes, start, end = spans[number]
        size = aligned(nbytes, alignment)
        best_offset, best_gap, gap_start = -1, -1, 0
        for offset, stop, first, last in placed:
            if last < start or end < first:
                continue
            gap = offset - gap_start
            if gap >= size and (best_offset < 0 or gap < best_gap):
                best_offset, best_gap = gap_start, gap
            gap_start = max(gap_start, stop)
        if best_offset < 0:
            best_offset = gap_start
        offsets[number] = best_offset
        insort(placed, (best_offset, best_offset + size, start, end))
        top = max(top, best_offset + size)
    return offsets, top


def by_time(spans: Sequence[BufferRequest], alignment: int) -> tuple[list[int], int]:
    """Best fit in the order of starts: each gets the smallest free range; the arena grows if none is large enough."""
    offsets = [0] * len(spans)
    sizes = [aligned(nbytes, alignment) for nbytes, _, _ in spans]
    starts, ends = [(start, -nbytes) for nbytes, start, _ in spans], [end for _, _, end in spans]
    order = sorted(range(len(spans)), key=starts.__getitem__)
    endings = sorted(order, key=ends.__getitem__)
    free: list[tuple[int, int]] = []  # (offset, size), by offset, no two of them touching
    top = num_ended = 0
    for number in order:
        size, start = sizes[number], starts[number][0]
        while ends[endings[num_ended]] < start:
            done = endings[num_ended]
            _free_range(free, offsets[done], sizes[done])
            num_ended += 1
        fitting = [(gap, at) for at, gap in free if gap >= size]
        if fitting:
            gap, at = min(fitting)
            position = bisect_left(free, (at, gap))
            free[position : position + 1] = [(at + size, gap - size)] if gap > size else []
        elif free and sum(free[-1]) == top:  # extend the last free range at the end of the arena
            at, _ = free.pop()
            top = at + size
        else:
            at, top = top, top + size
        offsets[number] = at
    return offsets, top


def _free_range(free: list[tuple[int, int]], at: int, size: int) -> None:
    if not size:
        return
    position = bisect_left(free, (at, size))
    if position < len(free) and free[position][0] == at + size:
        size += free.pop(position)[1]
    if position and sum(free[position - 1]) == at:
        at, size_before = free.pop(position - 1)
        size += size_before
        position -= 1
    free.insert(position, (at, size))


def allocate_offsets(spans: Sequence[BufferRequest], alignment: int) -> tuple[list[int], int]:
    """Return the smaller plan of both strategies (docs/memory_plan.md compares them); for many buffers, by time."""
    plan = by_time(spans, alignment)
    if plan[1] > lower_bound(spans, alignment) and len(spans) ** 2 <= MAX_COMPARED_PAIRS:
        other = by_size(spans, alignment)
        plan = min(plan, other, key=lambda candidate: candidate[1])
    return plan


def lower_bound(spans: Sequence[BufferRequest], alignment: int = 1) -> int:
    """Return the maximum over steps of the bytes that are live: no plan needs less."""
    changes: dict[int, int] = {}
    for nbytes, start, end in spans:
        size = aligned(nbytes, alignment)
        changes[start] = changes.get(start, 0) + size
        changes[end + 1] = changes.get(end + 1, 0) - size
    live = maximum = 0
    for step in sorted(changes):
        live += changes[step]
        maximum = max(maximum, live)
    return maximum
