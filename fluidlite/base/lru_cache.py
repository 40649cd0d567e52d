"""A bounded cache that several threads may use, and what it tells of itself."""

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
    """What a cache tells of itself.

    Attributes
    ----------
    entries : int
        What it holds now.
    most : int or None
        How many it keeps; None: the bound is in bytes, or they go with what they are of.
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
            size = f"{info.entries:,}" + (f", {info.nbytes:,} bytes" if info.nbytes is not None else "")
            bounds = [f"{info.most:,}"] if info.most is not None else []
            bounds += [f"{info.most_bytes:,} bytes"] if info.most_bytes is not None else []
            most = ", ".join(bounds)
            rows.append((name, size, most, f"{info.hits:,}", f"{info.misses:,}", f"{info.seconds:.3f}"))
        return "\n".join(table(rows, range(1, len(heads))))


def total(infos: Iterable[CacheInfo]) -> CacheInfo:
    """Several caches as one."""
    found = CacheInfo(0, 0, 0, 0)
    for info in infos:
        found = CacheInfo(
            found.entries + info.entries,
            (found.most or 0) + (info.most or 0),
            found.hits + info.hits,
            found.misses + info.misses,
            found.seconds + info.seconds,
            (found.nbytes or 0) + (info.nbytes or 0),
            (found.most_bytes or 0) + (info.most_bytes or 0),
        )
    return found


_NUMBERS = frozenset({int, float, bool, type(None)})


def weight_of(*things: Any) -> int:
    """Estimate the bytes that an entry of a cache holds alone: of texts, arrays and containers; what else says it.

    A ``weight`` attribute is taken as it is. What several entries share is counted for each of them, so that the
    estimate is high rather than low.
    """
    found, waiting = 0, [*things]
    while waiting:
        thing = waiting.pop()
        if type(thing) in _NUMBERS:
            found += 100
            continue
        weight = getattr(thing, "weight", None)
        if type(weight) is int:
            found += weight
        elif isinstance(thing, (str, bytes, bytearray)):
            found += 64 + len(thing)
        elif isinstance(thing, (tuple, list, set, frozenset)):
            if thing and isinstance(thing, (tuple, list)) and isinstance(thing[0], (int, float)):
                found += 64 + 40 * len(thing)
            else:
                found += 64 + 8 * len(thing)
                waiting += thing
        elif isinstance(thing, Mapping):
            found += 64 + 100 * len(thing)
            waiting += (*thing, *thing.values())
        elif type(nbytes := getattr(thing, "nbytes", None)) is int:
            found += 128 + nbytes
        elif isinstance(thing, CodeType):
            found += 500 + 3 * len(thing.co_code)
            waiting.append(thing.co_consts)
        else:
            found += 100
    return found


class LRUCache(Generic[Value]):
    """The values used last, by key: at most so many, of at most so many bytes; the newest stays in any case.

    Parameters
    ----------
    most : int
    name : str
        Under which :func:`all_caches` counts it, together with others of that name.
    most_bytes : int
        Of keys and values, as :func:`weight_of` estimates them.
    evicted : callable, optional
        Is given each value that goes.

    Attributes
    ----------
    hits, misses : int
    seconds : float
        Spent in ``make``.
    nbytes : int
        The estimate of what it holds.
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
        """Return the value of a key; make it if it is not there."""
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
                self.hits += 1
                return found[0]
            before = self.misses
        began = perf_counter()
        made = make()
        weight = weight_of(key, made)
        gone: list[Value] = []
        with self._lock:
            entry = made, weight
            kept = self._values.get(key, entry) if self.misses != before else entry
            self.misses += 1
            self.seconds += perf_counter() - began
            if kept is not entry:  # another thread was faster: one value is everybody's
                gone.append(made)
                made = kept[0]
            else:
                self._values[key] = entry
                self.nbytes += weight
            while len(self._values) > self.most or (self.nbytes > self.most_bytes and len(self._values) > 1):
                _, (old, weight) = self._values.popitem(last=False)
                self.nbytes -= weight
                gone.append(old)
        if self._evicted is not None:
            for old in gone:
                self._evicted(old)
        return made

    def clear(self) -> None:
        """Forget all; the counts stay."""
        with self._lock:
            self._values, gone = OrderedDict(), self._values
            self.nbytes = 0
        gone.clear()  # without the lock: what goes may come back here

    def info(self) -> CacheInfo:
        return CacheInfo(
            len(self._values), self.most, self.hits, self.misses, self.seconds, self.nbytes, self.most_bytes
        )

    def __len__(self) -> int:
        return len(self._values)


_named: defaultdict[str, WeakObjects[Any]] = defaultdict(WeakObjects)
_others: dict[str, Callable[[], CacheInfo]] = {}


def count_cache(name: str, info: Callable[[], CacheInfo]) -> None:
    """Let :func:`all_caches` ask a cache that is no :class:`LRUCache` what it holds."""
    _others[name] = info


def all_caches() -> CacheReport:
    """What all caches of the process tell of themselves, by name; those of one name, such as of contexts, together."""
    found = CacheReport({name: total(cache.info() for cache in caches) for name, caches in list(_named.items())})
    found.update({name: info() for name, info in list(_others.items())})
    return found
