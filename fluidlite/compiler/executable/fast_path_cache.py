"""The fast paths of an executable cache, by call signature."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from fluidlite.base.fork import new_rlock
from fluidlite.compiler.executable.fast_path import NO_FAST_PATH, FastPath


class FastPathEntry:
    """Fast paths with the same key.

    ``first``: the most recently used one, which callers try before the rest.
    ``fast_paths``: all, most recently used first.
    ``is_referenced``: a caller holds the entry; it stays in the cache when it is empty.
    """

    __slots__ = ("fast_paths", "first", "is_referenced")

    def __init__(self, is_referenced: bool = False) -> None:
        self.first: FastPath = NO_FAST_PATH
        self.fast_paths: tuple[FastPath, ...] = ()
        self.is_referenced = is_referenced

    def set(self, fast_paths: tuple[FastPath, ...]) -> None:
        self.fast_paths = fast_paths
        self.first = fast_paths[0] if fast_paths else NO_FAST_PATH

    def call_rest(self, *args: Any) -> Any:
        """Try the fast paths after the first; the one whose guards hold becomes the first. None if no guard holds."""
        for fast_path in self.fast_paths[1:]:
            result = fast_path.call(*args)
            if result is not None:
                self.set((fast_path, *(other for other in self.fast_paths if other is not fast_path)))
                return result
        return None


class FastPathCache:
    def __init__(self) -> None:
        self._entries: dict[Hashable, FastPathEntry] = {}
        self._lock = new_rlock()  # reentrant: scopes may end while it is locked
        self.get = self._entries.get

    def entry(self, key: Hashable) -> FastPathEntry:
        """Return the entry of a key, for a caller that holds a reference to it."""
        with self._lock:
            entry = self._entries.setdefault(key, FastPathEntry(is_referenced=True))
            entry.is_referenced = True
            return entry

    def put(self, fast_path: FastPath) -> None:
        """Insert a fast path as the first of its key. The executable cache bounds their number."""
        with self._lock:
            entry = self._entries.setdefault(fast_path.key, FastPathEntry())
            entry.set((fast_path, *(other for other in entry.fast_paths if other.is_open)))

    def sweep(self) -> None:
        """Drop closed fast paths."""
        with self._lock:
            for key, entry in list(self._entries.items()):
                if not all(fast_path.is_open for fast_path in entry.fast_paths):
                    entry.set(tuple([fast_path for fast_path in entry.fast_paths if fast_path.is_open]))
                if not entry.fast_paths and not entry.is_referenced:
                    del self._entries[key]

    def close(self) -> None:
        with self._lock:
            for entry in self._entries.values():
                for fast_path in entry.fast_paths:
                    fast_path.executable.close_fast_path()
            self.sweep()

    def all(self) -> list[FastPath]:
        """Return all open fast paths."""
        return [
            fast_path for entry in list(self._entries.values()) for fast_path in entry.fast_paths if fast_path.is_open
        ]
