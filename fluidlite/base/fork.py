"""What a forked child needs: locks that are free there, a place for what starts anew, and objects that stay for ever.

Only the thread that forks goes on in the child. What other threads held stays locked, what they computed stays half
done, and a driver whose threads and connections are the parent's may wait for them for ever when it is asked to let go.
Locks of libraries (BLAS, LLVM) cannot be freed: a fork waits until no other thread is in them.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any

from fluidlite.base.weak_objects import WeakObjects

_locks: WeakObjects[Any] = WeakObjects()
_first: list[Callable[[], object]] = []
_process = os.getpid()
_holding: list[Callable[[], Iterable[Any]]] = []
_forking: Any = threading.RLock()
_held = threading.local()
_PATIENCE_SECONDS = 5.0
"""For which a fork waits at most: a thread that holds a lock for longer may wait for the one that forks."""


def new_lock() -> threading.Lock:
    """Return a lock that is free in a forked child, whoever held it."""
    made = threading.Lock()
    _locks.add(made)
    return made


def new_rlock() -> Any:
    """Return a re-entrant lock that is free in a forked child, but where the thread that forked holds it itself."""
    made = threading.RLock()
    _locks.add(made)
    return made


def holds(lock: Any) -> bool:
    """Whether this thread holds a re-entrant lock."""
    found: bool = lock._is_owned()
    return found


def first_in_child(function: Callable[[], object]) -> Callable[[], object]:
    """Call ``function`` first of all in each forked child, in the order in which functions were given."""
    _first.append(function)
    return function


def hold_at_fork(locks: Callable[[], Iterable[Any]]) -> None:
    """Let whoever forks hold some locks of `new_rlock`, so that what other threads do under them is done.

    Parameters
    ----------
    locks : callable
        Returns the locks, at each fork. Those of an earlier function are taken first. A fork waits for all of them
        5 seconds at most.
    """
    _holding.append(locks)


def is_new_child() -> bool:
    """Whether this is a forked child in which no function of `first_in_child` was called yet.

    Python lets go of what is local to the other threads before that: what their locals collect runs in this state, in
    which locks of other threads are held for ever.
    """
    return os.getpid() != _process


def keep_for_ever(thing: object) -> None:
    """Never collect an object, not even when the process ends: what it would call then may wait for ever."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _before() -> None:
    end = monotonic() + _PATIENCE_SECONDS
    _held.locks = taken = []
    for locks in (lambda: (_forking,), *_holding):  # one fork at a time: two would wait for each other
        for lock in locks():
            if lock.acquire(timeout=max(end - monotonic(), 0)):
                taken.append(lock)


def _after() -> None:
    while _held.locks:
        _held.locks.pop().release()


def _in_child() -> None:
    global _process
    _process = os.getpid()
    for lock in _locks:
        if not (hasattr(lock, "_is_owned") and lock._is_owned()):
            lock._at_fork_reinit()
    _after()  # before the functions, which ask what a run of this thread holds
    for function in _first:
        function()


_locks.add(_forking)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
