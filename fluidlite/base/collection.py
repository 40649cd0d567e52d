"""Collections of garbage, which go through all objects again and again while many are made that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Let the garbage collector wait while a program is compiled: graphs and plans are all kept.

    Who turned it off before finds it off afterwards. Other threads do without it for as long.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
