"""The verifier of memory plans: proves that every value is intact in its buffer whenever a step reads it.

It does not use live ranges, nor the method that chose the offsets. It walks the steps and writes each output into a
model of the arenas, in which each byte holds the value written last, and raises if a step would read another value.
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
    from fluidlite.compiler.memory.memory_plan import PlannedBuffer


class _ArenaModel:
    """A model of one arena: sorted disjoint ranges ``(start, end, value)``; values are numbered."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int, int]] = []

    def write(self, start: int, end: int, value: int) -> None:
        first = bisect_right(self.ranges, start, key=lambda r: r[1])
        last = first
        remainders: list[tuple[int, int, int]] = []
        while last < len(self.ranges) and self.ranges[last][0] < end:
            low, high, content = self.ranges[last]
            if low < start < high:
                remainders.append((low, start, content))
            if low < end < high:
                remainders.append((end, high, content))
            last += 1
        self.ranges[first:last] = sorted([*(r for r in remainders if r[0] < r[1]), (start, end, value)])

    def holds(self, start: int, end: int, value: int) -> bool:
        at = start
        for low, high, content in self.ranges[bisect_right(self.ranges, start, key=lambda r: r[1]) :]:
            if low > at or content != value:
                return False
            at = high
            if at >= end:
                return True
        return at >= end


class MemoryVerifier:
    """Checks a plan and its buffers.

    ``arenas``: bytes by place.
    ``views``: steps that are not run, since their outputs are views of their inputs.
    """

    def __init__(
        self, plan: Plan, buffers: Sequence[PlannedBuffer], arenas: dict[Place, int], views: AbstractSet[int]
    ) -> None:
        self.plan, self.arenas, self.views = plan, arenas, views
        self._buffers: dict[str, PlannedBuffer] = {}
        self._state_copies: dict[tuple[int, str], PlannedBuffer] = {}
        self._workspaces: dict[int, PlannedBuffer] = {}
        for buffer in buffers:
            self._add_buffer(buffer)
        self._arenas = {place: _ArenaModel() for place in arenas}
        self._ids: dict[str, int] = {}
        self._writers: dict[int, str] = {}

    def _add_buffer(self, buffer: PlannedBuffer) -> None:
        """Register the values of a buffer, and check that it is inside its arena and aligned."""
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
            self._state_copies[buffer.start, buffer.names[0]] = buffer
        else:
            for name in buffer.names:
                if name in self._buffers:
                    raise ProgramError(f"memory plan: {name!r} has two buffers")
                self._buffers[name] = buffer

    def verify(self) -> None:
        """Walk all steps.

        Raises ProgramError at the first step that would read an overwritten value, or overwrite one of its inputs.
        """
        for key in self.plan.feed_keys.values():
            self._write(key, "the feed")
        for index, step in enumerate(self.plan.steps):
            if isinstance(step, Launch):
                self._launch(index, step)
            elif isinstance(step, Move):
                self._read(step.from_key, index, step)
                if not step.into_state:
                    self._write(step.to_key, _step_text(index, step))
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
                    else next((k for k in reads if self._has_same_buffer(k, out.key)), None)
                )
                if source is not None:
                    self._alias(out.key, source, index, step)
            return
        writer = _step_text(index, step)
        written = [self._workspaces[index]] if index in self._workspaces else []
        for out in step.outs:
            target = self._state_copies.get((index, out.key)) if out.state else self._buffers.get(out.key)
            if target is None:
                continue
            alias = step.ins[out.shares] if out.shares >= 0 else None
            for prior in written:
                if _overlap(target, prior):
                    raise ProgramError(f"memory plan: {writer} writes {out.key!r} where it writes {prior.name} too")
            for key in reads:
                read = self._buffers.get(key)
                if key != alias and read is not None and _overlap(target, read) and not self._is_alias(key, alias):
                    raise ProgramError(f"memory plan: {writer} writes {out.key!r} over {key!r}, which it reads")
            written.append(target)
        for buffer in written:
            value = self._fill(buffer, writer)
            for out in step.outs:
                if not out.state and self._buffers.get(out.key) is buffer:
                    self._ids[out.key] = value

    def _has_same_buffer(self, key: str, other: str) -> bool:
        return key in self._buffers and self._buffers[key] is self._buffers.get(other)

    def _is_alias(self, key: str, other: str | None) -> bool:
        """Whether two keys name one value, such as a view and its source."""
        return other is not None and self._ids.get(key) is not None and self._ids.get(key) == self._ids.get(other)

    def _alias(self, key: str, source: str, index: int, step: Step) -> None:
        if key not in self._buffers:
            return
        if not self._has_same_buffer(key, source):
            raise ProgramError(
                f"memory plan: {_step_text(index, step)} is not run, but {key!r} has not the memory of {source!r}"
            )
        if self._buffers[key].nbytes:  # else nothing has written it
            self._ids[key] = self._ids[source]

    def _fill(self, buffer: PlannedBuffer, writer: str) -> int:
        value = len(self._writers)
        self._writers[value] = f"{writer} ({buffer.name})"
        if buffer.nbytes:
            self._arenas[buffer.place].write(buffer.offset, buffer.offset + buffer.nbytes, value)
        return value

    def _write(self, key: str, writer: str) -> None:
        buffer = self._buffers.get(key)
        if buffer is not None:
            self._ids[key] = self._fill(buffer, writer)

    def _read(self, key: str, index: int, step: Step | None) -> None:
        buffer = self._buffers.get(key)
        if buffer is None or not buffer.nbytes:  # state, or memory of its own
            return
        value = self._ids.get(key)
        reader = _step_text(index, step)
        if value is None:
            raise ProgramError(f"memory plan: {reader} reads {key!r}, which nothing has written")
        start, end = buffer.offset, buffer.offset + buffer.nbytes
        if not self._arenas[buffer.place].holds(start, end, value):
            writers = [
                self._writers[content]
                for low, high, content in self._arenas[buffer.place].ranges
                if content != value and low < end and start < high
            ]
            raise ProgramError(
                f"memory plan: {reader} reads {key!r} at bytes {start} to {end} of {buffer.place}, "
                f"over which {', '.join(writers) or 'nothing'} was written since"
            )


def _overlap(one: PlannedBuffer, other: PlannedBuffer) -> bool:
    return (
        one.place == other.place
        and bool(one.nbytes and other.nbytes)
        and one.offset < other.offset + other.nbytes
        and other.offset < one.offset + one.nbytes
    )


def _step_text(index: int, step: Step | None) -> str:
    return f"step {index}, {step_name(step)}" if step is not None else "the end of the run"
