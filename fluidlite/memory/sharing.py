"""Sharing: which context wrote memory last, which have read it since, and how another one takes its turn.

Whoever is the last writer with no other reader may write, and whoever is the last writer or a known reader may read,
without asking anybody: all of that work is in its own queue. Everybody else takes a turn first: the queues of those
that are concerned are held for a moment, so that no run of theirs is under way, and later work of the new one waits on
the device for what they have enqueued. Those that were concerned see at their next run that it is no longer their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from fluidlite.base.invalidation import cache_version
from fluidlite.memory.allocation import NOBODY, Allocation, Sharing
from fluidlite.platform.context import Context
from fluidlite.platform.device_context import ContextBase


class Use(NamedTuple):
    """That a context reads memory, or writes it."""

    allocation: Allocation
    context: Context
    writes: bool

    def sharing(self) -> Sharing:
        """Who has used the memory so far; to begin with, its owner has written it."""
        return self.allocation.sharing or Sharing(self.allocation.context, NOBODY)

    def concerned(self) -> set[Context]:
        """The contexts whose work has to come before; nobody, if it is the context's turn."""
        writer, readers = self.sharing()
        if self.writes:
            return {writer, *readers} - {self.context}
        return set() if writer is self.context or self.context in readers else {writer}

    def take(self) -> None:
        """Take the turn; the queues of all that are concerned are held, and the context's own."""
        concerned = self.concerned()
        if not concerned:
            return
        context, allocation = self.context, self.allocation
        writer, readers = self.sharing()
        for other in concerned:
            if not other.closed:  # else its work is done
                context.wait_for(other.record())
        allocation.used_by(context)
        noted = allocation.sharing is not None
        if self.writes:
            allocation.sharing = Sharing(context, NOBODY)
        else:
            allocation.sharing = Sharing(writer, frozenset(each for each in readers if not each.closed) | {context})
        if noted:
            cache_version.invalidate()

    def note(self) -> bool:
        """Whether it is the context's turn; if so, whoever takes it away invalidates caches. Its queue is held."""
        if self.allocation.sharing is None and self.allocation.context is self.context:
            self.allocation.sharing = Sharing(self.context, NOBODY)
            return True
        return not self.concerned()


def hold(contexts: Collection[Context], uses: Callable[[], Iterable[Use]]) -> None:
    """Hold queues, as a run does, and have the turn of all that is used; other queues are held meanwhile only.

    The caller lets go of the locks of ``contexts``.

    ``uses``: asked again once the queues are held: memory may have been replaced before.
    """
    mine = set(contexts)
    others: set[Context] = set()
    while True:
        hold_all(mine | others)
        done = False
        try:
            wanted = list(uses())
            concerned = {other for use in wanted for other in use.concerned()} - mine
            if concerned <= others:
                for use in wanted:
                    use.take()
                done = True
        finally:
            for context in others if done else mine | others:
                context.lock.release()
        if done:
            return
        others = concerned


def hold_all(contexts: Iterable[Context]) -> None:
    """Hold several queues; while one of them is waited for, none is held, so that nobody waits for ever."""
    wanted = list(contexts)
    while wanted:
        taken: list[Context] = []
        for context in wanted:
            if not context.lock.acquire(blocking=not taken):
                break
            taken.append(context)
        if len(taken) == len(wanted):
            return
        for context in taken:
            context.lock.release()
        wanted = wanted[len(taken) :] + wanted[: len(taken)]


class turn:
    """Hold queues, and have the turn of all that is used, inside the block: see :func:`hold`."""

    __slots__ = "_contexts", "_uses"

    def __init__(self, contexts: Collection[Context], uses: Callable[[], Iterable[Use]]) -> None:
        self._contexts, self._uses = contexts, uses

    def __enter__(self) -> None:
        hold(self._contexts, self._uses)

    def __exit__(self, *error: object) -> None:
        for context in self._contexts:
            context.lock.release()


@contextmanager
def held(contexts: Collection[Context], uses: Callable[[], Iterable[Use]] = lambda: ()) -> Iterator[None]:
    """Hold queues, as a run does, and have the turn of what is used; they are the current ones of their libraries."""
    with ExitStack() as stack:
        stack.enter_context(turn(contexts, uses))
        for context in contexts:
            if type(context.raw).activate is not ContextBase.activate:
                stack.enter_context(context.raw.activate())
        yield
