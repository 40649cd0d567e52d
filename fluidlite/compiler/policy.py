"""What the user prefers when kernels are chosen: fallback, and libraries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from fluidlite.base.arguments import listed
from fluidlite.base.errors import RegistryError
from fluidlite.base.fork import new_lock
from fluidlite.base.invalidation import cache_version

FALLBACKS = ("error", "warn", "allow")
HOWS = ("native", "generated", "generic", "decomposed", "widened", "fallback", "pinned")
"""The words for how an operator gets its kernel, in the order in which they are tried (pinned stands beside)."""


@dataclass(frozen=True)
class Policy:
    """Preferences, as a hashable value.

    Attributes
    ----------
    fallback : {"error", "warn", "allow"}
        What happens when a place has no kernel for an operator: raise, run it on the fallback place with one
        warning a program, or do that without a word.
    libraries : tuple of (place kind, names)
        Preferred libraries, first to last; others follow by rank.
    exclude : tuple of str
        Ways not to use, or capabilities ("array", "language"): tests hold one against another by it.
    codegen : tuple of (place kind, capability)
        Whose generated and generic kernels a kind of places uses; without one, the best of each.
    repeated : bool
        The program will be bound and run again and again: small calls are worth a compiled kernel, for one costs less
        than a call of the array namespace where launches follow each other.
    """

    fallback: str = "warn"
    libraries: tuple[tuple[str, tuple[str, ...]], ...] = ()
    exclude: tuple[str, ...] = ()
    codegen: tuple[tuple[str, str], ...] = ()
    repeated: bool = False

    def preferred(self, kind: str) -> tuple[str, ...]:
        """The preferred libraries of a place kind."""
        return dict(self.libraries).get(kind, ())

    def with_libraries(self, libraries: Mapping[str, Sequence[str]]) -> Policy:
        """The same with other preferences."""
        merged = dict(self.libraries) | {kind: tuple(names) for kind, names in libraries.items()}
        return replace(self, libraries=tuple(sorted(merged.items())))

    def with_first(self, kind: str, library: object) -> Policy:
        """The same with a library before all others on a kind of places; None: as it is."""
        if not isinstance(library, str):
            return self
        return self.with_libraries({kind: (library, *(name for name in self.preferred(kind) if name != library))})

    def capability(self, kind: str) -> str | None:
        """The capability whose kernels a kind of places uses; None: the best of each."""
        return dict(self.codegen).get(kind)

    def with_codegen(self, kind: str, capability: str) -> Policy:
        """The same with the kernels of a capability on a kind of places."""
        return replace(self, codegen=tuple(sorted({**dict(self.codegen), kind: capability}.items())))


_current = Policy()
_changing = new_lock()
"""Held while the process-wide preferences are changed: what two threads set is kept, both."""


def policy() -> Policy:
    """The process-wide preferences."""
    return _current


@contextmanager
def policy_guard() -> Iterator[None]:
    """Take back on leaving what was set inside, by any thread: preferences are the process's."""
    global _current
    before = _current
    try:
        yield
    finally:
        with _changing:
            if _current != before:
                _current = before
                cache_version.invalidate()


def set_fallback(mode: str) -> None:
    """Say what happens when a place has no kernel for an operator: ``"error"``, ``"warn"`` (default) or ``"allow"``."""
    global _current
    if mode not in FALLBACKS:
        raise RegistryError(f"fallback is {mode!r}; expected one of {', '.join(FALLBACKS)}")
    with _changing:
        _current = replace(_current, fallback=mode)
        cache_version.invalidate()


def get_fallback() -> str:
    """The present fallback mode."""
    return _current.fallback


def set_libraries(kind: str, names: Sequence[str]) -> None:
    """Prefer libraries on a kind of place, first to last; ``[]`` goes back to ranks.

    Raises
    ------
    RegistryError
        If no such library is declared.
    """
    global _current
    check_libraries(names)
    with _changing:
        _current = _current.with_libraries({kind: names})
        cache_version.invalidate()


def check_libraries(names: Iterable[str]) -> None:
    """Raise RegistryError for a library that nobody declared."""
    from fluidlite.program.kernel_registry import kernels

    known = {library.name for library in kernels.libraries()} | {kernel.library for kernel in kernels}
    for name in listed("the libraries of a kind of place", names, "a list of names"):
        if name not in known:
            raise RegistryError(f"no library is called {name!r}; there are {', '.join(sorted(known))}")
