"""The processors that there are for threads."""

from __future__ import annotations

import os


def available_processors() -> int:
    """How many threads the process may run at once."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1
