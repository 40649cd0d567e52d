"""The cache version: what tells calls that skip every look-up that nothing has changed on which they depend.

Whoever changes something that such a call depends on, and that it does not look at itself, invalidates after the
change: registries, policies, observers, devices and contexts, scopes, storages. Whoever keeps a result of
look-ups notes the version **before** looking things up, and looks again when it is another.
"""

from __future__ import annotations


class CacheVersion:
    """The present version of all that calls depend on, in this process.

    ``current``: another object in each version. An object, not a number: making a new one needs no lock, and who kept
    an old one never takes a later one for it.
    """

    __slots__ = ("current",)

    def __init__(self) -> None:
        self.current = object()

    def invalidate(self) -> None:
        """Begin another version: something changed that calls depend on."""
        self.current = object()


cache_version = CacheVersion()
