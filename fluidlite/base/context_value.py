"""Values that a ``with`` block replaces for its thread or asyncio task only, on :mod:`contextvars`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@contextmanager
def context_value(variable: ContextVar[Any], value: T) -> Iterator[T]:
    """Give the variable a value, which the block gets, in this thread or asyncio task inside the block."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


class ContextDefault(Generic[T]):
    """A default of the process, and the variable that replaces it in a context: ``variable.get(process_value)``."""

    def __init__(self, name: str, value: T) -> None:
        self.process_value = value
        self.variable: ContextVar[T] = ContextVar(name)

    def guard(self, value: T) -> AbstractContextManager[T]:
        """Replace the default in this thread or asyncio task inside the block."""
        return context_value(self.variable, value)

    def switch(self, value: T) -> T:
        """Replace the value of this context's innermost guard, outside of guards the process's; return the one before.

        The value of a context would be lost where each cell of a notebook has a context of its own.
        """
        before = self.variable.get(self.process_value)
        if before is self.variable.get(None):
            self.variable.set(value)
        else:
            self.process_value = value
        return before
