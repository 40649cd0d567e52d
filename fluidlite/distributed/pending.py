"""Pending operations of a group of processes: queued for the group's thread, or started by the waiting thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol


class Finisher(Protocol):
    """A group that can wait for started work."""

    def finish(self, work: StartedWork) -> None:
        """Wait for it."""
        ...


class QueuedWork:
    """One operation for the group's thread, and its error."""

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


class StartedWork:
    """An operation that the waiting thread itself started.

    ``request``: None: it has ended.
    ``start``: the function that started it; it keeps the memory alive.
    """

    __slots__ = ("_group", "error", "request", "start", "start_time", "what")

    def __init__(self, group: Finisher, what: str, start: Callable[[], Any]) -> None:
        self._group, self.what, self.start = group, what, start
        self.start_time = time.perf_counter()
        self.request: Any = None
        self.error: BaseException | None = None

    def wait(self) -> None:
        self._group.finish(self)
        if self.error is not None:
            raise self.error
