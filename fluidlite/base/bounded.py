"""A bounded cache that several threads may use, and what it tells of itself."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class CacheInfo:
    """What a cache tells of itself.

    Attributes
    ----------
    entries : int
        What it holds now.
    most : int or None
        How many it keeps; None: the bound is in bytes.
    hits, misses : int
        Questions that it answered, and those for which something was made.
    seconds : float
        Spent on making what was missing.
    nbytes, most_bytes : int or None
        Its size and the bound of it, where that is counted.
    """

    entries: int
    most: int | None
    hits: int
    misses: int
    seconds: float = 0.0
    nbytes: int | None = None
    most_bytes: int | None = None


class CacheReport(dict[str, CacheInfo]):
    """What several caches tell of themselves, by name; its text is a table."""

    def __str__(self) -> str:
        heads = ("cache", "entries", "of at most", "hits", "misses", "seconds")
        rows = [heads]
        for name, info in self.items():
            bytes_ = info.most_bytes is not None
            size = f"{info.entries:,}" + (f", {info.nbytes:,} bytes" if info.nbytes is not None else "")
            most = f"{info.most_bytes:,} bytes" if bytes_ else f"{info.most:,}" if info.most is not None else ""
            rows.append((name, size, most, f"{info.hits:,}", f"{info.misses:,}", f"{info.seconds:.3f}"))
        wide = [max(len(row[k]) for row in rows) for k in range(len(heads))]
        lines = []
        for first, *rest in rows:
            cells = [first.ljust(wide[0]), *(cell.rjust(width) for cell, width in zip(rest, wide[1:], strict=True))]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)


def total(infos: Iterable[CacheInfo]) -> CacheInfo:
    """Several caches as one."""
    found = CacheInfo(0, 0, 0, 0)
    for info in infos:
        found = CacheInfo(
            found.entries + info.entries, (found.most or 0) + (info.most or 0), found.hits + info.hits,
            found.misses + info.misses, found.seconds + info.seconds,
        )  # fmt: skip
    return found


class Bounded(Generic[Value]):
    """The ``most`` values used last, by key.

    Attributes
    ----------
    most : int
    hits, misses : int
    seconds : float
        Spent in ``make``.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.hits = self.misses = 0
        self.seconds = 0.0
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of a key; make it if it is not there."""
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
                self.hits += 1
                return found
        began = perf_counter()
        made = make()
        with self._lock:
            self.misses += 1
            self.seconds += perf_counter() - began
            self._values[key] = made
            while len(self._values) > self.most:
                self._values.popitem(last=False)
        return made

    def clear(self) -> None:
        """Forget all; the counts stay."""
        with self._lock:
            self._values.clear()

    def info(self) -> CacheInfo:
        """What it holds, and how often it was asked."""
        return CacheInfo(len(self._values), self.most, self.hits, self.misses, self.seconds)

    def __len__(self) -> int:
        return len(self._values)
