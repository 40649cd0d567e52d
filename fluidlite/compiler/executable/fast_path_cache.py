"""The fast paths of an executable cache, by call signature."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from fluidlite.base.fork import new_rlock
from fluidlite.compiler.executable.fast_path import NO_FAST_PATH, FastPath


class FastPathEntry:
    """Fast paths with the same key.

    ``first``: the one used last: try it before the others.
    ``fast_paths``: all, the one used last first.
    """

    __slots__ = ("fast_paths", "first", "kept")

    def __init__(self, kept: bool = False) -> None:
        self.first: FastPath = NO_FAST_PATH
        self.fast_paths: tuple[FastPath, ...] = ()
        self.kept = kept

    def set(self, fast_paths: tuple[FastPath, ...]) -> None:
        self.fast_paths = fast_paths
        self.first = fast_paths[0] if fast_paths else NO_FAST_PATH

    def others(self, *given: Any) -> Any:
        """Try the fast paths behind the first; the one whose guards hold becomes the first. None: no guard held."""
        for fast_path in self.fast_paths[1:]:
            found = fast_path.call(*given)
            if found is not None:
                self.set((fast_path, *(other for other in self.fast_paths if other is not fast_path)))
                return found
        return None


class FastPathCache:
    def __init__(self) -> None:
        self._entries: dict[Hashable, FastPathEntry] = {}
        self._lock = new_rlock()  # scopes that end while it is held come back here
        self.get = self._entries.get

    def entry(self, key: Hashable) -> FastPathEntry:
        """The entry of a key, for a caller that keeps it."""
        with self._lock:
            entry = self._entries.setdefault(key, FastPathEntry(kept=True))
            entry.kept = True
            return entry

    def put(self, fast_path: FastPath) -> None:
        """Insert a fast path as the first of its key. Executables are bounded in number, so these are."""
        with self._lock:
            entry = self._entries.setdefault(fast_path.key, FastPathEntry())
            entry.set((fast_path, *(other for other in entry.fast_paths if other.open)))

    def sweep(self) -> None:
        """Drop fast paths whose memory is gone."""
        with self._lock:
            for key, entry in list(self._entries.items()):
                if not all(fast_path.open for fast_path in entry.fast_paths):
                    entry.set(tuple([fast_path for fast_path in entry.fast_paths if fast_path.open]))
                if not entry.fast_paths and not entry.kept:
                    del self._entries[key]

    def close(self) -> None:
        with self._lock:
            for entry in self._entries.values():
                for fast_path in entry.fast_paths:
                    fast_path.executable.close_fast_path()
            self.sweep()

    def all(self) -> list[FastPath]:
        """Every open fast path."""
        return [fast_path for entry in list(self._entries.values()) for fast_path in entry.fast_paths if fast_path.open]
