"""Collections of garbage, which go through all objects again and again while many are made that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from fluidlite.base.fork import first_in_child

_paused = False


@contextmanager
def paused() -> Iterator[None]:
    """Let the garbage collector wait while a program is compiled: graphs and plans are all kept.

    Who turned it off before finds it off afterwards. Other threads do without it for as long; one that turns it off
    meanwhile finds it on. A child that is forked meanwhile has it.
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
"""The phases that the garbage collector was in: the last key is the one of now."""

# Python handles a signal where Python code runs, and an exception of a callback is lost: a callback in Python would
# lose the interrupt that arrives during a collection. These are C functions.
gc.callbacks += [_phases.pop, _phases.__setitem__]


def collecting() -> bool:
    """Whether Python collects garbage now, in this thread or in another."""
    return [*_phases][-1:] == ["start"]


@first_in_child
def _resume() -> None:
    global _paused
    _phases.clear()  # the thread that collected may not be here
    if _paused:
        gc.enable()
        _paused = False
