"""Proof of a memory plan: walks the steps, and sees that every value that is read is still where it was written.

It knows nothing of how live ranges were found or offsets were chosen: it writes each output into a model of the arenas,
in which a byte holds the value written there last, and raises where a step would read another one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence, Set as AbstractSet
from typing import TYPE_CHECKING

from fluidlite.base.errors import ProgramError
from fluidlite.compiler.planning.plan import Launch, Move, Plan, Step, step_name
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place

if TYPE_CHECKING:
    from fluidlite.compiler.memory.memory_plan import Buffer


class _Arena:
    """The bytes of one arena: disjoint ranges ``(start, end, value)`` in order; a value is a number."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int, int]] = []

    def write(self, start: int, end: int, value: int) -> None:
        first = bisect_right(self.ranges, start, key=lambda r: r[1])
        last = first
        kept: list[tuple[int, int, int]] = []
        while last < len(self.ranges) and self.ranges[last][0] < end:
            low, high, held = self.ranges[last]
            if low < start < high:
                kept.append((low, start, held))
            if low < end < high:
                kept.append((end, high, held))
            last += 1
        self.ranges[first:last] = sorted([*(r for r in kept if r[0] < r[1]), (start, end, value)])

    def holds(self, start: int, end: int, value: int) -> bool:
        at = start
        for low, high, held in self.ranges[bisect_right(self.ranges, start, key=lambda r: r[1]) :]:
            if low > at or held != value:
                return False
            at = high
            if at >= end:
                return True
        return at >= end


class MemoryVerifier:
    """Walks a plan over its buffers.

    ``arenas``: bytes by place.
    ``views``: steps that are not run, since their output is the memory of an input.
    """

    def __init__(
        self, plan: Plan, buffers: Sequence[Buffer], arenas: dict[Place, int], views: AbstractSet[int]
    ) -> None:
        self.plan, self.arenas, self.views = plan, arenas, views
        self._of: dict[str, Buffer] = {}
        self._aside: dict[tuple[int, str], Buffer] = {}
        self._workspaces: dict[int, Buffer] = {}
        for buffer in buffers:
            self._place(buffer)
        self._bytes = {place: _Arena() for place in arenas}
        self._value: dict[str, int] = {}
        self._writer: dict[int, str] = {}

    def _place(self, buffer: Buffer) -> None:
        """Note where its values are, and see that it lies in its arena."""
        alignment = devices.unit(buffer.place).info.alignment
        if buffer.offset < 0 or buffer.offset + buffer.nbytes > self.arenas.get(buffer.place, -1):
            raise ProgramError(
                f"memory plan: {buffer.name} has bytes {buffer.offset} to {buffer.offset + buffer.nbytes}, but the "
                f"arena of {buffer.place} has {self.arenas.get(buffer.place, 0)}"
            )
        if buffer.offset % alignment:
            raise ProgramError(f"memory plan: {buffer.name} is at {buffer.offset}, no multiple of {alignment}")
        if buffer.kind == "workspace":
            self._workspaces[buffer.start] = buffer
        elif buffer.kind == "state":
            self._aside[buffer.start, buffer.names[0]] = buffer
        else:
            for name in buffer.names:
                if name in self._of:
                    raise ProgramError(f"memory plan: {name!r} has two buffers")
                self._of[name] = buffer

    def verify(self) -> None:
        """Walk all steps.

        Raises ProgramError at the first step that would read what another value was written over, or write where it
        reads.
        """
        for key in self.plan.feed_keys.values():
            self._write(key, "the feed")
        for index, step in enumerate(self.plan.steps):
            if isinstance(step, Launch):
                self._launch(index, step)
            elif isinstance(step, Move):
                self._read(step.from_key, index, step)
                if not step.into_state:
                    self._write(step.to_key, _text(index, step))
            else:
                for keys in step.ins.values():
                    for key in keys:
                        self._read(key, index, step)
        end = len(self.plan.steps)
        later = [key for key, last in self.plan.last_use.items() if last >= end]
        for key in (*(fetch[1] for fetch in self.plan.fetches), *later):
            self._read(key, end, None)

    def _launch(self, index: int, step: Launch) -> None:
        reads = [key for key in step.ins if key is not None]
        for key in reads:
            self._read(key, index, step)
        if step.skip or index in self.views:
            for out in step.outs:
                source = (
                    step.ins[out.shares]
                    if out.shares >= 0
                    else next((k for k in reads if self._same(k, out.key)), None)
                )
                if source is not None:
                    self._alias(out.key, source, index, step)
            return
        writer = _text(index, step)
        written = [self._workspaces[index]] if index in self._workspaces else []
        for out in step.outs:
            target = self._aside.get((index, out.key)) if out.state else self._of.get(out.key)
            if target is None:
                continue
            over = step.ins[out.shares] if out.shares >= 0 else None
            for other in written:
                if _overlap(target, other):
                    raise ProgramError(f"memory plan: {writer} writes {out.key!r} where it writes {other.name} too")
            for key in reads:
                read = self._of.get(key)
                if key != over and read is not None and _overlap(target, read) and not self._aliased(key, over):
                    raise ProgramError(f"memory plan: {writer} writes {out.key!r} over {key!r}, which it reads")
            written.append(target)
        for buffer in written:
            value = self._fill(buffer, writer)
            for out in step.outs:
                if not out.state and self._of.get(out.key) is buffer:
                    self._value[out.key] = value

    def _same(self, key: str, other: str) -> bool:
        return key in self._of and self._of[key] is self._of.get(other)

    def _aliased(self, key: str, other: str | None) -> bool:
        """Whether two names are one value, as a view and what it is a view of."""
        return other is not None and self._value.get(key) is not None and self._value.get(key) == self._value.get(other)

    def _alias(self, key: str, source: str, index: int, step: Step) -> None:
        if key not in self._of:
            return
        if not self._same(key, source):
            raise ProgramError(
                f"memory plan: {_text(index, step)} is not run, but {key!r} has not the memory of {source!r}"
            )
        self._value[key] = self._value[source]

    def _fill(self, buffer: Buffer, writer: str) -> int:
        value = len(self._writer)
        self._writer[value] = f"{writer} ({buffer.name})"
        if buffer.nbytes:
            self._bytes[buffer.place].write(buffer.offset, buffer.offset + buffer.nbytes, value)
        return value

    def _write(self, key: str, writer: str) -> None:
        buffer = self._of.get(key)
        if buffer is not None:
            self._value[key] = self._fill(buffer, writer)

    def _read(self, key: str, index: int, step: Step | None) -> None:
        buffer = self._of.get(key)
        if buffer is None or not buffer.nbytes:  # state, or memory of its own
            return
        value = self._value.get(key)
        reader = _text(index, step)
        if value is None:
            raise ProgramError(f"memory plan: {reader} reads {key!r}, which nothing has written")
        start, end = buffer.offset, buffer.offset + buffer.nbytes
        if not self._bytes[buffer.place].holds(start, end, value):
            over = [
                self._writer[held]
                for low, high, held in self._bytes[buffer.place].ranges
                if held != value and low < end and start < high
            ]
            raise ProgramError(
                f"memory plan: {reader} reads {key!r} at bytes {start} to {end} of {buffer.place}, "
                f"over which {', '.join(over) or 'nothing'} was written since"
            )


def _overlap(one: Buffer, other: Buffer) -> bool:
    return (
        one.place == other.place
        and bool(one.nbytes and other.nbytes)
        and one.offset < other.offset + other.nbytes
        and other.offset < one.offset + one.nbytes
    )


def _text(index: int, step: Step | None) -> str:
    return f"step {index}, {step_name(step)}" if step is not None else "the end of the run"
