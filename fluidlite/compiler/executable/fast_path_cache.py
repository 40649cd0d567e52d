"""The fast paths of an executable cache, by call signature."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from fluidlite.base.fork import new_rlock
from fluidlite.compiler.executable.fast_path import FastPath


class FastPathEntry:
    """Fast paths with the same key, most recently used first."""

    __slots__ = ("fast_paths",)

    def __init__(self) -> None:
        self.fast_paths: tuple[FastPath, ...] = ()

    def call(self, *args: Any) -> Any:
        """Return the result of the fast path whose guards hold, which becomes the first; None if no guard holds."""
        fast_paths = self.fast_paths
        for fast_path in fast_paths:
            result = fast_path.call(*args)
            if result is not None:
                if fast_path is not fast_paths[0]:
                    self.fast_paths = (fast_path, *(other for other in fast_paths if other is not fast_path))
                return result
        return None


class FastPathCache:
    """Entries by key; that of the key None, which a computation holds, stays when it is empty."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, FastPathEntry] = {}
        self._lock = new_rlock()  # reentrant: scopes may end while it is locked
        self.get = self._entries.get

    def entry(self, key: Hashable) -> FastPathEntry:
        with self._lock:
            return self._entries.setdefault(key, FastPathEntry())

    def put(self, fast_path: FastPath) -> None:
        """Insert a fast path as the first of its key. The executable cache bounds their number."""
        with self._lock:
            entry = self.entry(fast_path.key)
            entry.fast_paths = (fast_path, *(other for other in entry.fast_paths if other.is_open))

    def sweep(self) -> None:
        """Drop closed fast paths."""
        with self._lock:
            for key, entry in list(self._entries.items()):
                if not all(fast_path.is_open for fast_path in entry.fast_paths):
                    entry.fast_paths = tuple([fast_path for fast_path in entry.fast_paths if fast_path.is_open])
                if not entry.fast_paths and key is not None:
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
