"""``context_value``: replace a context variable, which a thread or asyncio task has for itself, in a ``with`` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")


@contextmanager
def context_value(variable: ContextVar[Any], value: T) -> Iterator[T]:
    """Give the variable a value, which the block gets, in this thread or asyncio task inside the block."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


def switch_context_value(variable: ContextVar[T], value: T) -> T:
    """Give the variable a value in this thread or asyncio task; return the one before."""
    before = variable.get()
    variable.set(value)
    return before
