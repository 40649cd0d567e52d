"""Synchronization of contexts that share memory: each allocation records its last writer and the readers since.

The last writer may write without synchronization if there are no other readers. The last writer and the recorded
readers may read without it: all of their work is in their own queues. Any other context takes the turn first. It locks
the conflicting contexts for a moment, so that none of them runs, and its later work waits, on the device, for the work
that they have enqueued. These contexts find out at their next run that they must take the turn again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from sys import exc_info
from typing import Any, NamedTuple

from fluidlite.base.invalidation import cache_version
from fluidlite.memory.allocation import NO_CONTEXTS, Allocation, Sharing
from fluidlite.platform.context import Context
from fluidlite.platform.device_context import ContextBase


class Use(NamedTuple):
    """A read or a write of memory by a context."""

    allocation: Allocation
    context: Context
    writes: bool

    def sharing(self) -> Sharing:
        """The last writer and the readers so far; at first the owning context is the writer."""
        return self.allocation.sharing or Sharing(self.allocation.context, NO_CONTEXTS)

    def conflicting_contexts(self) -> set[Context]:
        """The conflicting contexts, whose work must come first; empty if it is the context's turn."""
        writer, readers = self.sharing()
        if self.writes:
            return {writer, *readers} - {self.context}
        return set() if writer is self.context or self.context in readers else {writer}

    def take(self) -> None:
        """Take the turn; the caller holds the locks of all conflicting contexts and of its own."""
        concerned = self.conflicting_contexts()
        if not concerned:
            return
        context, allocation = self.context, self.allocation
        writer, readers = self.sharing()
        for conflicting in concerned:
            if not conflicting.closed:  # else its work is done
                context.wait_for(conflicting.record())
        allocation.used_by(context)
        is_recorded = allocation.sharing is not None
        if self.writes:
            allocation.sharing = Sharing(context, NO_CONTEXTS)
        else:
            allocation.sharing = Sharing(writer, frozenset(each for each in readers if not each.closed) | {context})
        if is_recorded:
            cache_version.invalidate()

    def note(self) -> bool:
        """Whether it is the context's turn; if so, the next context to take it invalidates caches.

        The caller holds the context's lock.
        """
        if self.allocation.sharing is None and self.allocation.context is self.context:
            self.allocation.sharing = Sharing(self.context, NO_CONTEXTS)
            return True
        return not self.conflicting_contexts()


def hold(contexts: Collection[Context], uses: Callable[[], Iterable[Use]]) -> None:
    """Lock contexts, as a run does, and take the turn of all uses; other contexts are locked only meanwhile.

    The caller releases the locks of ``contexts``.

    ``uses``: is called anew after locking, since memory may have been replaced before.
    """
    own = set(contexts)
    conflicting: set[Context] = set()
    while True:
        lock_all(own | conflicting)
        is_done = False
        try:
            requested = list(uses())
            new_conflicts = {other for use in requested for other in use.conflicting_contexts()} - own
            if new_conflicts <= conflicting:
                for use in requested:
                    use.take()
                is_done = True
        finally:
            for context in conflicting if is_done else own | conflicting:
                context.lock.release()
        if is_done:
            return
        conflicting = new_conflicts


def lock_all(contexts: Iterable[Context]) -> None:
    """Lock several contexts without deadlock: no lock is held while waiting for another."""
    pending = list(contexts)
    while pending:
        locked: list[Context] = []
        for context in pending:
            if not context.lock.acquire(blocking=not locked):
                break
            locked.append(context)
        if len(locked) == len(pending):
            return
        for context in locked:
            context.lock.release()
        pending = pending[len(locked) :] + pending[: len(locked)]


class turn:
    """A context manager that locks contexts and takes the turn of all uses: see :func:`hold`."""

    __slots__ = "_contexts", "_uses"

    def __init__(self, contexts: Collection[Context], uses: Callable[[], Iterable[Use]]) -> None:
        self._contexts, self._uses = contexts, uses

    def __enter__(self) -> None:
        hold(self._contexts, self._uses)

    def __exit__(self, *error: object) -> None:
        for context in self._contexts:
            context.lock.release()


class lock_contexts(turn):
    """A :class:`turn` as a run takes it: the contexts are also activated in their libraries."""

    __slots__ = ("_active",)

    def __init__(self, contexts: Collection[Context], uses: Callable[[], Iterable[Use]] = tuple) -> None:
        super().__init__(contexts, uses)
        self._active: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> None:
        super().__enter__()
        try:
            for context in self._contexts:
                if type(context.raw).activate is not ContextBase.activate:
                    activation = context.raw.activate()
                    activation.__enter__()
                    self._active.append(activation)
        except BaseException:
            self.__exit__(*exc_info())
            raise

    def __exit__(self, *error: Any) -> None:
        try:
            if self._active:
                self._active.pop().__exit__(*error)
        finally:  # also after an error of a library
            if self._active:
                self.__exit__(*error)
            else:
                super().__exit__(*error)
