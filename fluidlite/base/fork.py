"""Fork safety: locks that are released in a forked child, callbacks that run first there, objects never finalized.

Only the thread that forks exists in the child. Locks of other threads stay locked there and their work stays
incomplete; a driver that depends on threads and connections of the parent may wait for ever when it is closed.
Locks of libraries (BLAS, LLVM) cannot be released: a fork waits until no other thread is inside them.
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
_child_callbacks: list[Callable[[], object]] = []
_process = os.getpid()
_lock_providers: list[Callable[[], Iterable[Any]]] = []
_forking: Any = threading.RLock()
_acquired = threading.local()
_PATIENCE_SECONDS = 5.0
"""Longest wait of a fork: a thread that holds a lock for longer may itself wait for the thread that forks."""


def new_lock() -> threading.Lock:
    """Return a lock that is unlocked in a forked child, whichever thread held it."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def new_rlock() -> Any:
    """Return a re-entrant lock that is unlocked in a forked child, unless the thread that forked holds it."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def is_held(lock: Any) -> bool:
    """Whether this thread holds a re-entrant lock."""
    owned: bool = lock._is_owned()
    return owned


def first_in_child(function: Callable[[], object]) -> Callable[[], object]:
    """Register ``function`` to run in each forked child before anything else, in the order of registration."""
    _child_callbacks.append(function)
    return function


def acquire_at_fork(locks: Callable[[], Iterable[Any]]) -> None:
    """Acquire some locks of `new_rlock` before each fork, so that the work of other threads under them is complete.

    Parameters
    ----------
    locks : callable
        Returns the locks, at each fork. Locks of functions registered earlier are acquired first. A fork waits for all
        of them 5 seconds at most.
    """
    _lock_providers.append(locks)


def is_new_child() -> bool:
    """Whether this is a forked child that has not yet called the functions of `first_in_child`.

    Python destroys the thread-local objects of the other threads before that. Their finalizers run in this state, in
    which locks of other threads are never released.
    """
    return os.getpid() != _process


def never_finalize(value: object) -> None:
    """Never finalize an object, not even at the end of the process: its finalizer might wait for ever."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _before() -> None:
    end = monotonic() + _PATIENCE_SECONDS
    _acquired.locks = acquired = []
    for locks in (lambda: (_forking,), *_lock_providers):  # one fork at a time: two would wait for each other
        for lock in locks():
            if lock.acquire(timeout=max(end - monotonic(), 0)):
                acquired.append(lock)


def _after() -> None:
    while _acquired.locks:
        _acquired.locks.pop().release()


def _in_child() -> None:
    global _process
    _process = os.getpid()
    for lock in _locks:
        if not (hasattr(lock, "_is_owned") and lock._is_owned()):
            lock._at_fork_reinit()
    _after()  # before the callbacks, which check the locks that a run of this thread holds
    for callback in _child_callbacks:
        callback()


_locks.add(_forking)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
