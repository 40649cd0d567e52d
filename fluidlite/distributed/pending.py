"""Operations of a group of processes that are under way: on the group's thread, or begun by the one that waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol


class Finisher(Protocol):
    """Who can end what was begun."""

    def finish(self, begun: Begun) -> None:
        """Wait for it."""
        ...


class Queued:
    """One operation for the group's thread: what does it, and what became of it."""

    __slots__ = ("_done", "_error", "start", "what")

    def __init__(self, what: str, start: Callable[[], Any]) -> None:
        self.what, self.start = what, start
        self._done = threading.Event()
        self._error: BaseException | None = None

    def finish(self, error: BaseException | None = None) -> None:
        self._error = error
        self._done.set()

    def wait(self) -> None:
        self._done.wait()
        if self._error is not None:
            raise self._error


class Begun:
    """An operation that its own thread began, and that waits for it.

    ``request``: None: it has ended.
    ``start``: what began it: it holds the memory.
    """

    __slots__ = ("_group", "began", "error", "request", "start", "what")

    def __init__(self, group: Finisher, what: str, start: Callable[[], Any]) -> None:
        self._group, self.what, self.start = group, what, start
        self.began = time.perf_counter()
        self.request: Any = None
        self.error: BaseException | None = None

    def wait(self) -> None:
        self._group.finish(self)
        if self.error is not None:
            raise self.error
