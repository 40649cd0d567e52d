"""Fluid's functions for a thread's current scope, and for entering and leaving local scopes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from fluidlite.base.errors import ProgramError
from fluidlite.program.scope import Scope, ScopeVariable

__all__ = ["enter_local_scope", "find_var", "get_cur_scope", "leave_local_scope", "scoped_function", "var"]
_local = threading.local()


def _stack() -> list[Scope]:
    stack: list[Scope] = _local.__dict__.setdefault("stack", [])
    if not stack:
        stack.append(Scope())
    return stack


def get_cur_scope() -> Scope:
    """The current scope."""
    return _stack()[-1]


def enter_local_scope() -> None:
    """Create a child of the current scope, and make it the current one."""
    stack = _stack()
    stack.append(stack[-1].new_scope())


def leave_local_scope() -> None:
    """Return to the previous scope; raise ProgramError if no local scope was entered."""
    stack = _stack()
    if len(stack) < 2:
        raise ProgramError("leave_local_scope: no local scope was entered")
    stack.pop()
    stack[-1].drop_kids()


def var(name: str) -> ScopeVariable:
    """The variable of that name in the current scope; created if it does not exist."""
    return get_cur_scope().var(name)


def find_var(name: str) -> ScopeVariable | None:
    """The variable of that name in the current scope or an outer one, or None."""
    return get_cur_scope().find_var(name)


def scoped_function(func: Callable[[], Any]) -> None:
    """Call a function within a local scope."""
    enter_local_scope()
    try:
        func()
    finally:
        leave_local_scope()
