"""Liveness analysis of a plan: the live range of each value, and which values alias the memory of others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fluidlite.compiler.planning.plan import Control, Launch, Move, Plan
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.tensor.layout import PLAIN
from fluidlite.tensor.tensor_spec import Spec

MAX_COPIED_FEED_BYTES = 65536
"""Maximum bytes of a host feed that is copied to a static address; larger feeds are read at the caller's address."""
MIN_DONATED_BYTES = 65536
"""Minimum bytes of a result on the host that is donated to the caller; smaller results are copied."""


@dataclass(eq=False)
class LiveRange:
    """The live range of a buffer, from the step that writes it to its last reader.

    ``keys``: the values in the buffer: several, if they are in-place results or views of each other.
    ``kind``: "value", "feed" (a copy of one), "state" (a new value that is copied to state after its operator),
    "workspace", or "earlier" (of an earlier stage).
    ``start``, ``end``: indices of steps; -1 is before the first, the number of steps is after the last.
    ``written``: the steps that write it in place.
    ``is_dynamic``: it is allocated at each call, outside the arena.
    ``is_donated``: the caller receives the memory as the result.
    """

    keys: list[str]
    place: Place
    nbytes: int
    start: int
    end: int
    kind: str = "value"
    written: list[int] = field(default_factory=list)
    is_dynamic: bool = False
    is_donated: bool = False


class LiveRanges:
    """The live ranges of one plan.

    ``workspaces``: bytes of workspace by step.
    ``fed``: places of the feeds; empty for a later stage.
    ``earlier``: values of earlier stages, and whether their addresses are dynamic.
    ``donate_results``: large results on the host are allocated at each call and donated to the caller.
    ``planned``: the live ranges in arenas, ordered by start.
    ``of``: the live range of each value that is not state.
    ``state``: keys of state variables.
    ``copied``: live ranges of state outputs whose operator reads the old value, by (step, output); they are written to
    the arena, then copied.
    ``views``: steps that are not run, since their outputs are views of their inputs.
    """

    def __init__(
        self,
        plan: Plan,
        workspaces: Mapping[int, int],
        fed: Mapping[str, Place],
        earlier: Mapping[str, bool],
        donate_results: bool = True,
    ) -> None:
        self.plan = plan
        self.of: dict[str, LiveRange] = {}
        self.copied: dict[tuple[int, int], LiveRange] = {}
        self.workspaces: dict[int, LiveRange] = {}
        self.views: set[int] = set()
        self.state = set(plan.state)
        self._end = len(plan.steps)
        self._all: list[LiveRange] = []
        for key, is_dynamic in earlier.items():
            self.of[key] = LiveRange(
                [key], plan.place, 0, -1, self._last_use(key, -1), "earlier", is_dynamic=is_dynamic
            )
        for name, place in fed.items():
            self._begin(plan.feed_keys[name], plan.feeds[name], place, -1).kind = "feed"
        for index, step in enumerate(plan.steps):
            if isinstance(step, Launch):
                self._launch(index, step, workspaces.get(index, 0))
            elif isinstance(step, Move):
                self._move(index, step)
            else:
                self._control(index, step)
        if donate_results:
            self._donate_results()
        self._set_feed_addresses(fed)
        self._merge_views()
        self.planned = [live_range for live_range in self._all if not live_range.is_dynamic]

    # Steps

    def _last_use(self, key: str, index: int) -> int:
        """Return the step that uses a value last, at least ``index``; the number of steps if a later stage uses it."""
        return max(index, min(self.plan.last_use.get(key, index), self._end))

    def _begin(self, key: str, spec: Spec, place: Place, index: int) -> LiveRange:
        live_range = LiveRange([key], place, max(spec.nbytes, 0), index, self._last_use(key, index))
        previous = self.of.get(key)
        if previous is not None:  # written twice by parts of a decomposition: one key, two buffers
            previous.is_dynamic = live_range.is_dynamic = True
        live_range.is_dynamic = live_range.is_dynamic or not spec.is_static
        self.of[key] = live_range
        self._all.append(live_range)
        return live_range

    def _launch(self, index: int, step: Launch, workspace: int) -> None:
        place = step.choice.place
        for position, out in enumerate(step.outs):
            if out.state:
                self.state.add(out.key)
                if out.shares < 0 and (out.key in step.ins or step.layout_agnostic):
                    live_range = LiveRange([out.key], place, out.spec.nbytes, index, index, "state")
                    self.copied[index, position] = live_range
                    self._all.append(live_range)
            elif out.shares >= 0:
                self._share(out.key, step.ins[out.shares], out.spec, place, index)
            else:
                self._begin(out.key, out.spec, place, index)
        if workspace and not step.skip:
            live_range = self.workspaces[index] = LiveRange([], place, workspace, index, index, "workspace")
            self._all.append(live_range)

    def _share(self, key: str, source: str | None, spec: Spec, place: Place, index: int) -> None:
        live_range = self.of.get(source) if source is not None else None
        if live_range is None:  # aliases state
            self._begin(key, spec, place, index).is_dynamic = True
            return
        live_range.end = max(live_range.end, self._last_use(key, index))
        live_range.written.append(index)
        if key not in live_range.keys:
            live_range.keys.append(key)
        self.of[key] = live_range

    def _move(self, index: int, step: Move) -> None:
        if step.into_state:
            self.state.add(step.to_key)
        else:
            self._begin(step.to_key, step.spec, step.target, index)

    def _control(self, index: int, step: Control) -> None:
        """Give operands of control-flow and host-callback operators dynamic addresses: their bodies may hold them."""
        for keys in step.ins.values():
            for key in keys:
                live_range = self.of.get(key)
                if live_range is not None:
                    live_range.is_dynamic = True
        for outs in step.outs.values():
            for out in outs:
                if out.state:
                    self.state.add(out.key)
                else:
                    self._begin(out.key, out.spec, self.plan.place, index).is_dynamic = True

    # Passes over all live ranges

    def _donate_results(self) -> None:
        """Mark large results on the host as donated to the caller."""
        fetched = [key for _, key, _, _ in self.plan.fetches]
        for key in fetched:
            live_range = self.of.get(key)
            if (
                live_range is None
                or live_range.nbytes < MIN_DONATED_BYTES
                or live_range.kind != "value"
                or live_range.is_dynamic
            ):
                continue
            if len(live_range.keys) == 1 and fetched.count(key) == 1 and devices.unit(live_range.place).info.host:
                live_range.is_dynamic = live_range.is_donated = True

    def _set_feed_addresses(self, fed: Iterable[str]) -> None:
        """Give small host feeds that kernels read a static address; all others are dynamic."""
        read = {key for step in self.plan.steps if isinstance(step, Launch) for key in step.ins}
        for name in fed:
            key = self.plan.feed_keys[name]
            live_range = self.of[key]
            small = live_range.nbytes <= MAX_COPIED_FEED_BYTES and devices.unit(live_range.place).info.host
            live_range.is_dynamic = live_range.is_dynamic or not small or key not in read

    def _merge_views(self) -> None:
        """Make outputs of reshaping operators views of their inputs, if no step writes to either while both live."""
        for index, step in enumerate(self.plan.steps):
            if not isinstance(step, Launch) or step.layout_agnostic or step.skip or not step.choice.inplace:
                continue
            view = step.call.op.view
            if view is None or not all(step.call.has(slot) for slot in view):
                continue
            outs = [slot for slot, specs in step.call.outs.items() for _ in specs]
            out = step.outs[outs.index(view[0])]
            key = step.ins[step.call.index[view[1]]]
            if key is None or out.state or key in self.state or out.spec.layout is not PLAIN:
                continue
            source, result = self.of[key], self.of[out.key]
            if source is not result and not self._can_merge_view(source, result, index):
                continue
            if source is not result:
                self._merge(source, result)
            if all(other is out or not other.spec.size for other in step.outs):
                self.views.add(index)

    def _can_merge_view(self, source: LiveRange, result: LiveRange, index: int) -> bool:
        if source.is_dynamic or result.is_dynamic or source.kind != "value" or source.place != result.place:
            return False
        if self.plan.pending is not None and self._end in (source.end, result.end):
            return False  # a later stage may write to either
        if source.nbytes != result.nbytes:
            return False
        return all(result.end < at for at in source.written if at > index) and all(
            source.end < at for at in result.written
        )

    def _merge(self, source: LiveRange, result: LiveRange) -> None:
        source.keys += [key for key in result.keys if key not in source.keys]
        source.end = max(source.end, result.end)
        source.written += result.written
        for key in result.keys:
            self.of[key] = source
        self._all.remove(result)
