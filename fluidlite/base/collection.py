"""Pausing the garbage collector: it would traverse all objects repeatedly while many lasting ones are created."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from fluidlite.base.fork import first_in_child

_paused = False


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable the garbage collector while a program is compiled: the graphs and plans created then are all kept.

    A collector that was disabled before stays disabled. The pause holds for all threads; a thread that disables the
    collector meanwhile finds it enabled afterwards. In a child that is forked meanwhile it is enabled.
    """
    global _paused
    if not gc.isenabled():
        yield
        return
    try:
        _paused = True
        gc.disable()
        yield
    finally:
        gc.enable()
        _paused = False


_phases: dict[str, object] = {}
"""The phases of the garbage collector, in order; the last key is the current one."""

# Python handles a signal where Python code runs, and an exception of a callback is lost: a callback in Python would
# lose the interrupt that arrives during a collection. These are C functions.
gc.callbacks += [_phases.pop, _phases.__setitem__]


def is_collecting() -> bool:
    """Whether a garbage collection runs, in this thread or in another."""
    return [*_phases][-1:] == ["start"]


@first_in_child
def _resume() -> None:
    global _paused
    _phases.clear()  # the thread that collected may not exist in the child
    if _paused:
        gc.enable()
        _paused = False
