"""From which step to which the values of a plan live, and which of them share memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fluidlite.compiler.planning.plan import Control, Launch, Move, Plan
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.tensor.layout import PLAIN
from fluidlite.tensor.tensor_spec import Spec

SMALL_FEED = 65536
"""Bytes up to which a feed is copied to where its readers are bound; larger ones are read where the caller has them."""
LARGE_FETCH = 65536
"""Bytes from which a fetched value on the host gets memory of its own, which the caller then has, without a copy."""


@dataclass(eq=False)
class LiveRange:
    """Memory of a value, and of those that share it, from the step that makes it to the one that reads it last.

    ``keys``: the values: several, where one is written over another or is a view of it.
    ``kind``: "value", "feed" (a copy of one), "state" (what becomes state when its operator is done), "workspace", or
    "earlier" (by the stage before).
    ``start``, ``end``: steps; -1 is before the first, and the number of steps behind the last.
    ``written``: the steps that write it in place.
    ``loose``: its memory is another at each call: no part of the arena.
    ``handed_over``: nothing else has that memory: the caller gets it as the result.
    """

    keys: list[str]
    place: Place
    nbytes: int
    start: int
    end: int
    kind: str = "value"
    written: list[int] = field(default_factory=list)
    loose: bool = False
    handed_over: bool = False


class LiveRanges:
    """The lives of one plan.

    ``workspaces``: bytes by step.
    ``fed``: where feeds are; empty for a later stage.
    ``earlier``: values of earlier stages; whether their memory is another at each call.
    ``hand_over``: large results on the host get memory of their own at each call, which the caller then has.
    ``lives``: those in the arenas, in the order in which they begin.
    ``of``: of every value that is no state.
    ``state``: keys of state variables.
    ``copied``: by (step, output): state outputs that are written aside, since their operator reads
    the old value, and copied then.
    ``views``: steps with nothing to do: their outputs are views of what they read.
    """

    def __init__(
        self,
        plan: Plan,
        workspaces: Mapping[int, int],
        fed: Mapping[str, Place],
        earlier: Mapping[str, bool],
        hand_over: bool = True,
    ) -> None:
        self.plan = plan
        self.of: dict[str, LiveRange] = {}
        self.copied: dict[tuple[int, int], LiveRange] = {}
        self.workspaces: dict[int, LiveRange] = {}
        self.views: set[int] = set()
        self.state = set(plan.state)
        self._end = len(plan.steps)
        self._all: list[LiveRange] = []
        for key, loose in earlier.items():
            self.of[key] = LiveRange([key], plan.place, 0, -1, self._last(key, -1), "earlier", loose=loose)
        for name, place in fed.items():
            self._begin(plan.feed_keys[name], plan.feeds[name], place, -1).kind = "feed"
        for index, step in enumerate(plan.steps):
            if isinstance(step, Launch):
                self._launch(index, step, workspaces.get(index, 0))
            elif isinstance(step, Move):
                self._move(index, step)
            else:
                self._control(index, step)
        if hand_over:
            self._hand_over()
        self._feeds(fed)
        self._merge_views()
        self.lives = [life for life in self._all if not life.loose]

    # Steps

    def _last(self, key: str, index: int) -> int:
        """The step that uses a value last, as the planner has found; what is used later than the last one survives."""
        return max(index, min(self.plan.last_use.get(key, index), self._end))

    def _begin(self, key: str, spec: Spec, place: Place, index: int) -> LiveRange:
        life = LiveRange([key], place, max(spec.nbytes, 0), index, self._last(key, index))
        earlier = self.of.get(key)
        if earlier is not None:  # a part of a decomposition writes it again: the two are told apart by the call alone
            earlier.loose = life.loose = True
        life.loose = life.loose or not spec.known
        self.of[key] = life
        self._all.append(life)
        return life

    def _launch(self, index: int, step: Launch, workspace: int) -> None:
        place = step.choice.place
        for position, out in enumerate(step.outs):
            if out.state:
                self.state.add(out.key)
                if out.shares < 0 and (out.key in step.ins or step.blind):
                    life = LiveRange([out.key], place, out.spec.nbytes, index, index, "state")
                    self.copied[index, position] = life
                    self._all.append(life)
            elif out.shares >= 0:
                self._share(out.key, step.ins[out.shares], out.spec, place, index)
            else:
                self._begin(out.key, out.spec, place, index)
        if workspace and not step.skip:
            life = self.workspaces[index] = LiveRange([], place, workspace, index, index, "workspace")
            self._all.append(life)

    def _share(self, key: str, source: str | None, spec: Spec, place: Place, index: int) -> None:
        life = self.of.get(source) if source is not None else None
        if life is None:  # memory of state under another name
            self._begin(key, spec, place, index).loose = True
            return
        life.end = max(life.end, self._last(key, index))
        life.written.append(index)
        if key not in life.keys:
            life.keys.append(key)
        self.of[key] = life

    def _move(self, index: int, step: Move) -> None:
        if step.into_state:
            self.state.add(step.to_key)
        else:
            self._begin(step.to_key, step.spec, step.target, index)

    def _control(self, index: int, step: Control) -> None:
        """Let what an operator that runs itself may keep have memory of its own at each call."""
        for keys in step.ins.values():
            for key in keys:
                life = self.of.get(key)
                if life is not None:
                    life.loose = True
        for outs in step.outs.values():
            for out in outs:
                if out.state:
                    self.state.add(out.key)
                else:
                    self._begin(out.key, out.spec, self.plan.place, index).loose = True

    # All that is known at the end

    def _hand_over(self) -> None:
        """Let large results on the host have memory of their own, which the caller then has."""
        fetched = [key for _, key, _, _ in self.plan.fetches]
        for key in fetched:
            life = self.of.get(key)
            if life is None or life.nbytes < LARGE_FETCH or life.kind != "value" or life.loose:
                continue
            if len(life.keys) == 1 and fetched.count(key) == 1 and devices.unit(life.place).info.host:
                life.loose = life.handed_over = True

    def _feeds(self, fed: Iterable[str]) -> None:
        """Copy small feeds of the host to the arena; others stay where they are."""
        read = {key for step in self.plan.steps if isinstance(step, Launch) for key in step.ins}
        for name in fed:
            key = self.plan.feed_keys[name]
            life = self.of[key]
            small = life.nbytes <= SMALL_FEED and devices.unit(life.place).info.host
            life.loose = life.loose or not small or key not in read

    def _merge_views(self) -> None:
        """Let outputs that have the bytes of an input under other dims be views of it, where nobody writes between."""
        for index, step in enumerate(self.plan.steps):
            if not isinstance(step, Launch) or step.blind or step.skip or not step.choice.inplace:
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
            if source is not result and not self._may_merge(source, result, index):
                continue
            if source is not result:
                self._merge(source, result)
            if all(other is out or not other.spec.size for other in step.outs):
                self.views.add(index)

    def _may_merge(self, source: LiveRange, result: LiveRange, index: int) -> bool:
        if source.loose or result.loose or source.kind != "value" or source.place != result.place:
            return False
        if self.plan.pending is not None and self._end in (source.end, result.end):
            return False  # what follows may write to either
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
