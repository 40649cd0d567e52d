"""Where in an arena each buffer lies: two that live at the same time never overlap."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence

from fluidlite.platform.device_memory import aligned

Span = tuple[int, int, int]
"""Bytes, first step, last step."""
Strategy = Callable[[Sequence[Span], int], tuple[list[int], int]]
"""``strategy(spans, alignment)`` returns the offset of each, and the bytes of the arena."""

MOST_PAIRS = 250_000
"""Pairs of buffers up to which both strategies are tried."""


def by_size(spans: Sequence[Span], alignment: int) -> tuple[list[int], int]:
    """Largest first, each into the smallest gap between those that live with it."""
    offsets = [0] * len(spans)
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first step, last step; by offset
    top = 0
    for number in sorted(range(len(spans)), key=lambda n: (-spans[n][0], spans[n][1])):
        nbytes, start, end = spans[number]
        size = aligned(nbytes, alignment)
        best, best_gap, behind = -1, -1, 0
        for offset, until, first, last in placed:
            if last < start or end < first:
                continue
            gap = offset - behind
            if gap >= size and (best < 0 or gap < best_gap):
                best, best_gap = behind, gap
            behind = max(behind, until)
        if best < 0:
            best = behind
        offsets[number] = best
        insort(placed, (best, best + size, start, end))
        top = max(top, best + size)
    return offsets, top


def by_time(spans: Sequence[Span], alignment: int) -> tuple[list[int], int]:
    """First come first, each into the smallest free piece; the arena grows at its end where none is large enough."""
    offsets = [0] * len(spans)
    sizes = [aligned(nbytes, alignment) for nbytes, _, _ in spans]
    starts, ends = [(start, -nbytes) for nbytes, start, _ in spans], [end for _, _, end in spans]
    order = sorted(range(len(spans)), key=starts.__getitem__)
    endings = sorted(order, key=ends.__getitem__)
    free: list[tuple[int, int]] = []  # (offset, size), by offset, no two of them touching
    top = ended = 0
    for number in order:
        size, start = sizes[number], starts[number][0]
        while ends[endings[ended]] < start:
            done = endings[ended]
            _give_back(free, offsets[done], sizes[done])
            ended += 1
        fitting = [(room, at) for at, room in free if room >= size]
        if fitting:
            room, at = min(fitting)
            place = bisect_left(free, (at, room))
            free[place : place + 1] = [(at + size, room - size)] if room > size else []
        elif free and sum(free[-1]) == top:  # the last piece reaches to the end: make it longer
            at, _ = free.pop()
            top = at + size
        else:
            at, top = top, top + size
        offsets[number] = at
    return offsets, top


def _give_back(free: list[tuple[int, int]], at: int, size: int) -> None:
    if not size:
        return
    place = bisect_left(free, (at, size))
    if place < len(free) and free[place][0] == at + size:
        size += free.pop(place)[1]
    if place and sum(free[place - 1]) == at:
        at, before = free.pop(place - 1)
        size += before
        place -= 1
    free.insert(place, (at, size))


def best(spans: Sequence[Span], alignment: int) -> tuple[list[int], int]:
    """The better of both: neither is always (docs/memory_plan.md has figures); of very many, by time alone."""
    found = by_time(spans, alignment)
    if found[1] > lower_bound(spans, alignment) and len(spans) ** 2 <= MOST_PAIRS:
        other = by_size(spans, alignment)
        found = min(found, other, key=lambda result: result[1])
    return found


def lower_bound(spans: Sequence[Span], alignment: int = 1) -> int:
    """The most bytes that live at one step: no plan can do with less."""
    changes: dict[int, int] = {}
    for nbytes, start, end in spans:
        size = aligned(nbytes, alignment)
        changes[start] = changes.get(start, 0) + size
        changes[end + 1] = changes.get(end + 1, 0) - size
    live = most = 0
    for step in sorted(changes):
        live += changes[step]
        most = max(most, live)
    return most
