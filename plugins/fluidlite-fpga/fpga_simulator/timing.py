"""The board's clock: start and end times of commands, by a model of two queues and two engines.

Commands take effect in the order of arrival; their durations are modelled, in cycles, and not measured. A
command starts when the previous one of its queue has ended, its engine is free, and all events that it waits for
have ended. So a copy in one queue overlaps a computation in the other, unless an event orders them.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict

COPY, COMPUTE = "copy", "compute"
START_CYCLES = 50
"""Start-up cycles of every command."""
COPY_BYTES_PER_CYCLE = 16
LANES = 16
"""Elements of one instruction that the vector unit computes per cycle."""
MULTIPLIERS = 256
"""Multiply-adds of the matrix unit per cycle."""
MAX_FENCES = 1 << 16  # fences whose times are stored


def copy_cycles(nbytes: int) -> int:
    """The duration of a copy."""
    return START_CYCLES + -(-nbytes // COPY_BYTES_PER_CYCLE)


class Timeline:
    """The clocks of queues and engines, in cycles since the board started."""

    def __init__(self) -> None:
        self._queues: defaultdict[int, int] = defaultdict(int)
        self._engines: defaultdict[str, int] = defaultdict(int)
        self._fences: OrderedDict[int, int] = OrderedDict()

    def run(self, queue: int, engine: str, cycles: int, not_before: int) -> tuple[int, int]:
        """Schedule a command of a queue on an engine, not before ``not_before``; return its start and end."""
        start = max(self._queues[queue], self._engines[engine], not_before)
        self._queues[queue] = self._engines[engine] = start + cycles
        return start, start + cycles

    def fence(self, queue: int, sequence: int, not_before: int) -> int:
        """Mark a point of a queue; return its time."""
        time = self._queues[queue] = max(self._queues[queue], not_before)
        self._fences[sequence] = time
        if len(self._fences) > MAX_FENCES:
            self._fences.popitem(last=False)
        return time

    def wait(self, queue: int, fence: int) -> None:
        """Start later commands of a queue after a fence; after all commands so far if its time is no longer stored."""
        time = self._fences.get(fence, max(self._queues.values(), default=0))
        self._queues[queue] = max(self._queues[queue], time)
