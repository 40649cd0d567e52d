"""Programs that are bound: a bounded cache, the arenas that they share, and who runs a plan."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from time import perf_counter
from typing import Any
from weakref import proxy, ref

from fluidlite.base.bounded import CacheInfo
from fluidlite.base.errors import ProgramError
from fluidlite.framework.interpreter import run_plan
from fluidlite.framework.observe import observers
from fluidlite.framework.plan import Plan
from fluidlite.framework.program import Program
from fluidlite.framework.scope import Scope
from fluidlite.framework.tensor import Tensor
from fluidlite.platform.context import Context
from fluidlite.platform.pool import get_context
from fluidlite.transformers.bind import MakeTensor
from fluidlite.transformers.bound import Bound, Fetched, refusal
from fluidlite.transformers.direct import Latest, Signature, direct
from fluidlite.transformers.storage import DeviceBufferStorage, DeviceTensor
from fluidlite.transformers.ways import Ways

MOST_BOUND = 32
"""Bound programs that are kept by one replay; the one used longest ago goes first."""


MOST_KEYS = 1024
"""Keys of earlier runs that are kept."""

_Key = tuple[Plan, "ref[Scope]", Context]
Sign = Callable[[], Signature]


class Replay:
    """Runs plans: bound where they can be, by the interpreter where they cannot or where somebody observes.

    All that is bound here on one context lies in one arena, as large as the largest needs: one runs at a time.

    Attributes
    ----------
    copy : bool
        Results are copies. False: those on the host are views of where they were computed, where that stays.
    binds : int
        How often a plan was bound.
    hits : int
        How often a bound one was found.
    seconds : float
        Spent on binding, without memory.
    ways : Ways
        The shortest ways through what is bound, by how they are called.
    """

    def __init__(
        self,
        make_storage: Callable[[Context], DeviceBufferStorage] = DeviceBufferStorage,
        make_tensor: MakeTensor = DeviceTensor.at,
        copy: bool = True,
    ) -> None:
        self.copy = copy
        self._latest = Latest()
        self._ended_plan: Plan | None = None
        self.binds = self.hits = 0
        self.seconds = 0.0
        self.ways = Ways()
        self._make_storage = make_storage
        self._make_tensor = make_tensor
        self._bound: OrderedDict[_Key, Bound | None] = OrderedDict()
        self._quick: dict[Hashable, tuple[Any, _Key]] = {}
        self._storages: dict[tuple[Context, int], DeviceBufferStorage] = {}
        self._lock = threading.Lock()
        mine = ref(self)

        def ended(_: ref[Scope]) -> None:
            """Let go of the state of a scope: now, or at the next binding, if that would disturb somebody."""
            replay = mine()
            if replay is not None and replay._lock.acquire(blocking=False):
                try:
                    replay._drop_ended()
                finally:
                    replay._lock.release()

        self._ended = ended

    def run(
        self, plan: Plan, program: Program, feeds: Mapping[str, Tensor], scope: Scope, sign: Sign | None = None
    ) -> tuple[Fetched, Plan]:
        """Run a plan once; arguments and results are those of the interpreter's ``run_plan``.

        Parameters
        ----------
        sign : callable, optional
            Returns the signature of a straight way that later calls may take.
        """
        if observers():
            return run_plan(plan, program, feeds, scope)
        bound = self._find(plan, program, feeds, scope)
        if bound is None or bound.busy or not bound.ready(scope):
            return run_plan(plan, program, feeds, scope)
        return self._run(bound, feeds, scope, sign)

    @property
    def last(self) -> Bound | None:
        """What ran last."""
        return self._latest.bound

    @last.setter
    def last(self, bound: Bound | None) -> None:
        if bound is None and self._latest.bound is not None:  # its scope ended: what it did is still to be told
            self._ended_plan = self._latest.bound.plan
        self._latest.bound = bound

    @property
    def last_plan(self) -> Plan | None:
        """The plan of what ran last, though it may be bound no more."""
        return self._latest.bound.plan if self._latest.bound is not None else self._ended_plan

    def remember(self, key: Hashable, stamp: Any, plan: Plan, scope: Scope) -> None:
        """Note under which key a plan ran, so that :meth:`again` needs no plan.

        Parameters
        ----------
        key : hashable
            All that chose the plan, but ``scope``, its state, and ``stamp``.
        stamp : object
            What must be equal, and seldom changes: the registry's generation, the policy.
        """
        if len(self._quick) > MOST_KEYS:
            self._quick.clear()
        self._quick[key, id(scope)] = stamp, (plan, ref(scope), get_context(plan.place))

    def again(
        self, key: Hashable, stamp: Any, feeds: Mapping[str, Tensor], scope: Scope, sign: Sign | None = None
    ) -> tuple[Fetched, Plan] | None:
        """Run what ran under a key before, if its state is where it was; None: it has to be planned."""
        found = self._quick.get((key, id(scope)))
        if found is None or found[0] != stamp or observers():
            return None
        plan, where, context = found[1]
        if where() is not scope:
            return None
        with self._lock:
            bound = self._bound.get(found[1])
            if bound is None or context is not get_context(plan.place):
                return None
            self._bound.move_to_end(found[1])
            self.hits += 1
        if bound.busy or not bound.ready(scope):
            return None
        return self._run(bound, feeds, scope, sign)

    def _run(self, bound: Bound, feeds: Mapping[str, Tensor], scope: Scope, sign: Sign | None) -> tuple[Fetched, Plan]:
        self.last = bound
        found = bound.run(feeds, scope)
        if sign is not None and bound.tried != bound.attached and not observers():
            bound.tried = bound.attached
            way = direct(bound, scope, sign(), self._latest, self.copy)
            if way is not None:
                self.ways.put(way)
        return found

    def _find(self, plan: Plan, program: Program, feeds: Mapping[str, Tensor], scope: Scope) -> Bound | None:
        key = (plan, ref(scope), get_context(plan.place))
        with self._lock:
            if key in self._bound:
                self._bound.move_to_end(key)
                self.hits += self._bound[key] is not None
                return self._bound[key]
        bound = None
        if refusal(plan, scope) is None:
            began = perf_counter()
            bound = Bound(plan, program, feeds, proxy(self), self._make_tensor)  # no circle: memory goes at once
            self.binds += 1
            self.seconds += perf_counter() - began
        with self._lock:
            self._bound[plan, ref(scope, self._ended), key[2]] = bound
            self._drop_ended()
            if len(self._bound) > MOST_BOUND:
                _, old = self._bound.popitem(last=False)
                if old is not None:
                    old.block_way()
                    self.ways.sweep()
                self._drop_keys()
                self._shrink()
        return bound

    def _drop_ended(self) -> None:
        for old in [old for old in self._bound if old[1]() is None or old[2].closed]:
            bound = self._bound.pop(old)
            if bound is self.last:
                self.last = None
            if bound is not None:
                bound.detach()
            self._drop_keys()
        self.ways.sweep()

    def _drop_keys(self) -> None:
        """Forget keys of what is bound no more: they hold its plan, and by that its program."""
        kept = {}
        for key, found in self._quick.items():
            if found[1][1]() is not None and found[1] in self._bound:  # a reference to what ended has no hash
                kept[key] = found
        self._quick = kept

    # Memory

    def of(self, context: Context, stage: int = 0) -> DeviceBufferStorage:
        """The storage of a context, for a stage of programs."""
        with self._lock:
            for closed in [known for known in self._storages if known[0].closed]:
                self._storages.pop(closed).release()
            found = self._storages.get((context, stage))
            if found is None:
                found = self._make_storage(context)
                if not isinstance(found, DeviceBufferStorage):
                    raise ProgramError(f"device_buffer_storage gave {found!r}; expected a DeviceBufferStorage")
                self._storages[context, stage] = found
            return found

    def _shrink(self) -> None:
        """Give back arenas that are larger than what is still bound needs; the next call allocates anew."""
        for (context, stage), storage in self._storages.items():
            kept = [b for b in self._bound.values() if b is not None and b.frame.contexts.get(context.place) is context]
            needed = max((b.memory.arenas.get(context.place, 0) for b in kept), default=0)
            if stage or storage.nbytes <= needed or not context.lock.acquire(blocking=False):
                continue
            try:  # a run of another thread holds the queue while it uses the arena
                if not storage.busy:
                    storage.release()
            finally:
                context.lock.release()

    def clear(self) -> None:
        """Let go of everything."""
        with self._lock:
            self.ways.close()
            self._bound.clear()
            self._quick.clear()
            for storage in self._storages.values():
                storage.release()
            self._storages.clear()
            self.last = None

    def info(self) -> CacheInfo:
        """What the cache of bound programs tells of itself."""
        return CacheInfo(len(self), MOST_BOUND, self.hits, self.binds, self.seconds)

    def __len__(self) -> int:
        return sum(bound is not None for bound in self._bound.values())
