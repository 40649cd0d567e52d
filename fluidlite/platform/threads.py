"""The number of processors available for threads."""

from __future__ import annotations

import os


def available_processors() -> int:
    """Return the number of processors that the process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1
