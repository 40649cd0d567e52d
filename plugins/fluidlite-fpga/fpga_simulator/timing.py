"""The board's clock: when commands would run, by a model of two queues and two engines.

Commands take effect in the order of their arrival; how long they take is modelled, in cycles, and not measured. A
command starts when the one before it in its queue has ended, its engine is free, and all that it was told to wait for
has ended. So a copy in one queue overlaps a computation in the other, unless an event orders them.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict

COPY, COMPUTE = "copy", "compute"
START_CYCLES = 50
"""What every command takes to begin."""
COPY_BYTES_PER_CYCLE = 16
LANES = 16
"""Elements of one instruction that the vector unit computes in a cycle."""
MULTIPLIERS = 256
"""Products that the matrix unit adds up in a cycle."""
MAX_FENCES = 1 << 16


def copy_cycles(nbytes: int) -> int:
    """How long a copy takes."""
    return START_CYCLES + -(-nbytes // COPY_BYTES_PER_CYCLE)


class Timeline:
    """The clocks of queues and engines, in cycles since the board started."""

    def __init__(self) -> None:
        self._queues: defaultdict[int, int] = defaultdict(int)
        self._engines: defaultdict[str, int] = defaultdict(int)
        self._fences: OrderedDict[int, int] = OrderedDict()

    def run(self, queue: int, engine: str, cycles: int, after: int) -> tuple[int, int]:
        """Let a command of a queue occupy an engine; return when it starts, not before ``after``, and when it ends."""
        start = max(self._queues[queue], self._engines[engine], after)
        self._queues[queue] = self._engines[engine] = start + cycles
        return start, start + cycles

    def fence(self, queue: int, sequence: int, after: int) -> int:
        """Mark a point of a queue; return its time."""
        time = self._queues[queue] = max(self._queues[queue], after)
        self._fences[sequence] = time
        if len(self._fences) > MAX_FENCES:
            self._fences.popitem(last=False)
        return time

    def wait(self, queue: int, fence: int) -> None:
        """Let later commands of a queue start after a fence; after everything so far, if it is too old to be known."""
        time = self._fences.get(fence, max(self._queues.values(), default=0))
        self._queues[queue] = max(self._queues[queue], time)
