"""A bounded, thread-safe LRU cache, and statistics of all caches of the process."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter
from types import CodeType
from typing import Any, Generic, TypeVar

from fluidlite.base.fork import new_lock
from fluidlite.base.text_table import table
from fluidlite.base.weak_objects import WeakObjects

Value = TypeVar("Value")


@dataclass(frozen=True)
class CacheInfo:
    """Statistics of a cache.

    Attributes
    ----------
    entries : int
        The current number of entries.
    most : int or None
        The maximum number of entries; None: the bound is in bytes, or entries end with the objects that they describe.
    hits, misses : int
        Look-ups that found a value, and those that computed one.
    seconds : float
        Time spent on computing missing values.
    nbytes, most_bytes : int or None
        The current and the maximum size, where it is counted.
    """

    entries: int
    most: int | None
    hits: int
    misses: int
    seconds: float = 0.0
    nbytes: int | None = None
    most_bytes: int | None = None


class CacheReport(dict[str, CacheInfo]):
    """Statistics of several caches, by name; its text is a table."""

    def __str__(self) -> str:
        heads = ("cache", "entries", "of at most", "hits", "misses", "seconds")
        rows = [heads]
        for name, info in self.items():
            size = f"{info.entries:,}" + (f", {info.nbytes:,} bytes" if info.nbytes is not None else "")
            bounds = [f"{info.most:,}"] if info.most is not None else []
            bounds += [f"{info.most_bytes:,} bytes"] if info.most_bytes is not None else []
            most = ", ".join(bounds)
            rows.append((name, size, most, f"{info.hits:,}", f"{info.misses:,}", f"{info.seconds:.3f}"))
        return "\n".join(table(rows, range(1, len(heads))))


def total(infos: Iterable[CacheInfo]) -> CacheInfo:
    """The sum of the statistics of several caches."""
    sum_info = CacheInfo(0, 0, 0, 0)
    for info in infos:
        sum_info = CacheInfo(
            sum_info.entries + info.entries,
            (sum_info.most or 0) + (info.most or 0),
            sum_info.hits + info.hits,
            sum_info.misses + info.misses,
            sum_info.seconds + info.seconds,
            (sum_info.nbytes or 0) + (info.nbytes or 0),
            (sum_info.most_bytes or 0) + (info.most_bytes or 0),
        )
    return sum_info


_SCALARS = frozenset({int, float, bool, type(None)})
LONG_SEQUENCE = 64
"""Elements above which a sequence that begins with a number counts as numbers: an attribute may have millions."""


def weight_of(*values: Any) -> int:
    """Estimate the bytes of a cache entry: those of its texts, arrays and containers.

    An object with a ``weight`` attribute counts as that many bytes. Objects that several entries share are counted for
    each of them: the estimate is an upper bound.
    """
    nbytes_total, pending = 0, [*values]
    for value in pending:  # the types of keys come first: every cache miss measures one
        kind = type(value)
        if kind is str:
            nbytes_total += 64 + len(value)
        elif kind in _SCALARS:
            nbytes_total += 100
        elif isinstance(value, (tuple, list, set, frozenset)):
            nbytes_total += 64 + 8 * len(value)
            if len(value) > LONG_SEQUENCE and isinstance(value, (tuple, list)) and type(value[0]) in _SCALARS:
                nbytes_total += 32 * len(value)
            else:
                pending += value
        elif type(weight := getattr(value, "weight", None)) is int:
            nbytes_total += weight
        elif isinstance(value, (str, bytes, bytearray)):
            nbytes_total += 64 + len(value)
        elif hasattr(kind, "keys") and isinstance(value, Mapping):  # the look-up is faster than the abstract class
            nbytes_total += 64 + 100 * len(value)
            pending += (*value, *value.values())
        elif type(nbytes := getattr(value, "nbytes", None)) is int:
            nbytes_total += 128 + nbytes
        elif isinstance(value, CodeType):
            nbytes_total += 500 + 3 * len(value.co_code)
            pending.append(value.co_consts)
        else:
            nbytes_total += 100
    return nbytes_total


class LRUCache(Generic[Value]):
    """An LRU cache with a maximum number of entries and of bytes; the newest entry is never evicted.

    Parameters
    ----------
    most : int
        The maximum number of entries.
    name : str
        The name in :func:`all_caches`, which sums up all caches of one name.
    most_bytes : int
        The maximum size of keys and values, as :func:`weight_of` estimates it.
    evicted : callable, optional
        Called with each evicted value.

    Attributes
    ----------
    hits, misses : int
    seconds : float
        Time spent in ``make``.
    nbytes : int
        The estimated size of the entries.
    """

    def __init__(
        self, most: int, name: str, most_bytes: int = 16 << 20, evicted: Callable[[Value], object] | None = None
    ) -> None:
        self.most = most
        self.most_bytes = most_bytes
        self.hits = self.misses = self.nbytes = 0
        self.seconds = 0.0
        self._evicted = evicted
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._lock = new_lock()
        _named[name].add(self)

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of a key; compute it with ``make`` at a miss."""
        with self._lock:
            hit = self._values.get(key)
            if hit is not None:
                self._values.move_to_end(key)
                self.hits += 1
                return hit[0]
            misses_before = self.misses
        began = perf_counter()
        value = make()
        weight = weight_of(key, value)
        evicted: list[Value] = []
        with self._lock:
            entry = value, weight
            stored = self._values.get(key, entry) if self.misses != misses_before else entry
            self.misses += 1
            self.seconds += perf_counter() - began
            if stored is not entry:  # another thread was faster: all callers share one value
                evicted.append(value)
                value = stored[0]
            else:
                self._values[key] = entry
                self.nbytes += weight
            while len(self._values) > self.most or (self.nbytes > self.most_bytes and len(self._values) > 1):
                _, (oldest, weight) = self._values.popitem(last=False)
                self.nbytes -= weight
                evicted.append(oldest)
        if self._evicted is not None:
            for oldest in evicted:
                self._evicted(oldest)
        return value

    def clear(self) -> None:
        """Remove all entries; the counts stay."""
        with self._lock:
            self._values, gone = OrderedDict(), self._values
            self.nbytes = 0
        gone.clear()  # without the lock: finalizers of the values may use the cache

    def info(self) -> CacheInfo:
        return CacheInfo(
            len(self._values), self.most, self.hits, self.misses, self.seconds, self.nbytes, self.most_bytes
        )

    def __len__(self) -> int:
        return len(self._values)


_named: defaultdict[str, WeakObjects[Any]] = defaultdict(WeakObjects)
_external: dict[str, Callable[[], CacheInfo]] = {}


def count_cache(name: str, info: Callable[[], CacheInfo]) -> None:
    """Add a cache that is no :class:`LRUCache` to :func:`all_caches`, with the function that returns its statistics."""
    _external[name] = info


def all_caches() -> CacheReport:
    """Statistics of all caches of the process by name; those of one name, such as of contexts, are summed up."""
    report = CacheReport({name: total(cache.info() for cache in caches) for name, caches in list(_named.items())})
    report.update({name: info() for name, info in list(_external.items())})
    return report
