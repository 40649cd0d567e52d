"""Scope: where state lives, by name."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fluidlite.base.epoch import epoch
from fluidlite.base.errors import ProgramError
from fluidlite.base.fork import new_lock
from fluidlite.base.weak_objects import WeakObjects
from fluidlite.framework.tensor import Tensor


class ScopeVariable:
    """A named holder of a tensor."""

    __slots__ = ("name", "tensor")

    def __init__(self, name: str) -> None:
        self.name = name
        self.tensor = Tensor()

    def get_tensor(self) -> Tensor:
        """The tensor; setting it is seen by the next run."""
        return self.tensor

    def __repr__(self) -> str:
        return f"ScopeVariable({self.name!r}, {self.tensor!r})"


class Scope:
    """Variables by name, with a chain of outer scopes. One scope (or child scope) a thread.

    Attributes
    ----------
    generation : int
        Rises when a variable is made or forgotten: who keeps variables looks them up again.
    """

    def __init__(self, parent: Scope | None = None) -> None:
        self.parent = parent
        self._vars: dict[str, ScopeVariable] = {}
        self._kids: WeakObjects[Scope] = WeakObjects()
        self._runs: dict[tuple[int, int], int] = {}
        self._lock = new_lock()
        self.generation = 0

    def var(self, name: str) -> ScopeVariable:
        """The variable of that name in this scope; made if there is none."""
        found = self._vars.get(name)
        if found is None:
            found = self._vars.setdefault(name, ScopeVariable(name))  # another thread may be first
            self.generation += 1
            epoch.begin()
        return found

    def find_var(self, name: str) -> ScopeVariable | None:
        """The variable of that name here or in an outer scope, or None."""
        scope: Scope | None = self
        while scope is not None:
            found = scope._vars.get(name)
            if found is not None:
                return found
            scope = scope.parent
        return None

    def new_scope(self) -> Scope:
        """A child: it sees this scope's variables and keeps its own."""
        child = Scope(self)
        self._kids.add(child)
        return child

    new_child = new_scope

    def drop_kids(self) -> None:
        """Forget the children, which live as long as somebody uses them."""
        self._kids = WeakObjects()

    def erase(self, names: list[str]) -> None:
        """Forget variables of this scope."""
        self.generation += 1
        epoch.begin()
        for name in names:
            self._vars.pop(name, None)

    def local_var_names(self) -> list[str]:
        """Names of this scope's own variables."""
        return list(self._vars)

    def next_run(self, stream: int, seed: int) -> int:
        """How often the random stream ran in this scope (its children count on their own)."""
        key = (stream, seed)
        with self._lock:
            number = self._runs.get(key, 0)
            self._runs[key] = number + 1
        return number

    def __repr__(self) -> str:
        return f"Scope({len(self._vars)} variables)"


_global = Scope()
_local = threading.local()


def global_scope() -> Scope:
    """The scope that runs use when none is given."""
    stack: list[Scope] = getattr(_local, "stack", [])
    return stack[-1] if stack else _global


@contextmanager
def scope_guard(scope: Scope) -> Iterator[None]:
    """Make ``scope`` the global scope of this thread inside the block."""
    if not isinstance(scope, Scope):
        raise ProgramError(f"scope_guard takes a Scope, got {type(scope).__name__}")
    stack: list[Any] = _local.__dict__.setdefault("stack", [])
    stack.append(scope)
    try:
        yield
    finally:
        stack.pop()
