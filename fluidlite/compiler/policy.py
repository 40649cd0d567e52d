"""The policy of kernel selection: the user's preferences of fallback, libraries and code generators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from fluidlite.base.arguments import check_list
from fluidlite.base.errors import RegistryError
from fluidlite.base.fork import new_lock
from fluidlite.base.invalidation import cache_version

FALLBACKS = ("error", "warn", "allow")
"""Modes of :func:`set_fallback`."""
KERNEL_KINDS = ("native", "generated", "generic", "decomposed", "widened", "fallback", "pinned")
"""Kinds of kernels, in the order of preference; pinned is a property of the operator."""


@dataclass(frozen=True)
class Policy:
    """Preferences, as a hashable value.

    Attributes
    ----------
    fallback : {"error", "warn", "allow"}
        If a place has no kernel for an operator: raise, run it on the fallback place with one warning for each
        program, or run it there without a warning.
    libraries : tuple of (place kind, names)
        Preferred libraries, first to last; others follow by rank.
    exclude : tuple of str
        Kinds of kernels, or capabilities ("array", "language"), not to use; tests compare kinds with it.
    codegen : tuple of (place kind, capability)
        The capability whose generated and generic kernels a kind of places uses; default: the best of each.
    repeated : bool
        The program is linked and runs many times. Compiled kernels are then preferred for small calls: in a sequence of
        launches they cost less than calls of the array namespace.
    """

    fallback: str = "warn"
    libraries: tuple[tuple[str, tuple[str, ...]], ...] = ()
    exclude: tuple[str, ...] = ()
    codegen: tuple[tuple[str, str], ...] = ()
    repeated: bool = False

    def preferred(self, kind: str) -> tuple[str, ...]:
        """Return the preferred libraries of a kind of places."""
        return dict(self.libraries).get(kind, ())

    def with_libraries(self, libraries: Mapping[str, Sequence[str]]) -> Policy:
        """Return a policy with other preferred libraries."""
        preferred = dict(self.libraries) | {kind: tuple(names) for kind, names in libraries.items()}
        return replace(self, libraries=tuple(sorted(preferred.items())))

    def with_first(self, kind: str, library: object) -> Policy:
        """Return a policy that prefers a library on a kind of places; unchanged if ``library`` is no name."""
        if not isinstance(library, str):
            return self
        return self.with_libraries({kind: (library, *(name for name in self.preferred(kind) if name != library))})

    def capability(self, kind: str) -> str | None:
        """Return the capability whose kernels a kind of places uses; None: the best of each."""
        return dict(self.codegen).get(kind)

    def with_codegen(self, kind: str, capability: str) -> Policy:
        """Return a policy that uses the kernels of a capability on a kind of places."""
        return replace(self, codegen=tuple(sorted({**dict(self.codegen), kind: capability}.items())))


_current = Policy()
_lock = new_lock()
"""Protects the process-wide policy, so that concurrent changes are not lost."""


def policy() -> Policy:
    """Return the process-wide policy."""
    return _current


@contextmanager
def policy_guard() -> Iterator[None]:
    """Restore the process-wide policy on exit, including changes by other threads."""
    global _current
    previous = _current
    try:
        yield
    finally:
        with _lock:
            if _current != previous:
                _current = previous
                cache_version.invalidate()


def set_fallback(mode: str) -> None:
    """Set the mode for operators without a kernel on their place: ``"error"``, ``"warn"`` (default) or ``"allow"``."""
    global _current
    if mode not in FALLBACKS:
        raise RegistryError(f"fallback is {mode!r}; expected one of {', '.join(FALLBACKS)}")
    with _lock:
        _current = replace(_current, fallback=mode)
        cache_version.invalidate()


def get_fallback() -> str:
    """Return the current fallback mode."""
    return _current.fallback


def set_libraries(kind: str, names: Sequence[str]) -> None:
    """Prefer libraries on a kind of places, in this order; ``[]`` restores the order by ranks.

    Raises
    ------
    RegistryError
        If no such library is declared.
    """
    global _current
    check_libraries(names)
    with _lock:
        _current = _current.with_libraries({kind: names})
        cache_version.invalidate()


def check_libraries(names: Iterable[str]) -> None:
    """Raise RegistryError for a library that is not declared."""
    from fluidlite.program.kernel_registry import kernels

    declared = {library.name for library in kernels.libraries()} | {kernel.library for kernel in kernels}
    for name in check_list("the libraries of a kind of place", names, "a list of names"):
        if name not in declared:
            raise RegistryError(f"no library is called {name!r}; there are {', '.join(sorted(declared))}")
