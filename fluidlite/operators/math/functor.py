"""Functor: a named function with one implementation per kind of context, which kernels call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fluidlite.base.errors import KernelNotFoundError, RegistryError

F = TypeVar("F", bound=Callable[..., Any])


class Functor:
    """A function that several kernels share, implemented once for each kind of context.

    The operator's kernels are then alike: each gets the implementation for its context from the functor.

    Parameters
    ----------
    name : str
        Shown in errors.
    doc : str
        What an implementation computes, and its arguments after ``context``.
    """

    def __init__(self, name: str, doc: str = "") -> None:
        self.name = name
        self.doc = doc
        self._implementations: dict[str, Callable[..., Any]] = {}

    def implement(self, *kinds: str, override: bool = False) -> Callable[[F], F]:
        """Decorate the implementation for place kinds (``"cpu"``) or capabilities (``"array"``, ``"language"``).

        Raises
        ------
        RegistryError
            If the kind has another implementation already (unless ``override``).
        """
        if not kinds:
            raise RegistryError(f"functor {self.name!r}: name at least one place kind, or 'array' or 'language'")

        def decorate(function: F) -> F:
            for kind in kinds:
                other = self._implementations.get(kind)
                if other is not None and not override and _identity(other) != _identity(function):
                    raise RegistryError(
                        f"functor {self.name!r} has two implementations for {kind!r}: {_identity(other)} and "
                        f"{_identity(function)}.\n  Do: say override=True"
                    )
                self._implementations[kind] = function
            return function

        return decorate

    def on(self, context: Any, *capabilities: str) -> Callable[..., Any]:
        """Return the implementation for a context: of its place's kind, else of a capability that it has.

        Parameters
        ----------
        context : Context
        *capabilities : str
            Capabilities to look for, in order; default "array", "language". A kernel written for one of them names it,
            since a context may have both.

        Raises
        ------
        KernelNotFoundError
            If there is none; the message lists what exists.
        """
        implementation = self._implementations.get(context.place.kind)
        if implementation is not None:
            return implementation
        for capability in capabilities or ("array", "language"):
            if capability in self._implementations and getattr(context, capability, None) is not None:
                return self._implementations[capability]
        available = ", ".join(sorted(self._implementations)) or "nothing"
        raise KernelNotFoundError(
            f"functor {self.name!r} has no implementation for {context.place}; there is one for: {available}.\n"
            f"  Do: decorate one with @functor.implement({context.place.kind!r})"
        )

    @property
    def kinds(self) -> tuple[str, ...]:
        """Place kinds and capabilities that have an implementation."""
        return tuple(sorted(self._implementations))

    def __repr__(self) -> str:
        return f"Functor({self.name!r}, {', '.join(self.kinds) or 'no implementation'})"


def _identity(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"
