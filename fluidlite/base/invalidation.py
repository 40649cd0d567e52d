"""The cache version: a guard of cached calls, which skip all look-ups while the version is unchanged.

Code that changes something that a cached call depends on and does not check itself (registries, policies, observers,
devices and contexts, scopes, storages) invalidates **after** the change. Code that caches the result of look-ups reads
the version **before** the look-ups, and repeats them when the version differs.
"""

from __future__ import annotations


class CacheVersion:
    """The current version of the process state that cached calls depend on.

    ``current``: a new object for each version. Unlike a counter, it is replaced without a lock, and an old version
    that is still referenced is never equal to a later one.
    """

    __slots__ = ("current",)

    def __init__(self) -> None:
        self.current = object()

    def invalidate(self) -> None:
        """Begin a new version: something that cached calls depend on has changed."""
        self.current = object()


cache_version = CacheVersion()
