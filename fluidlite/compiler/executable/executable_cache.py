"""Programs that are bound: a bounded cache, the arenas that they share, and who runs a plan."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from time import perf_counter
from typing import Any
from weakref import proxy, ref

from fluidlite.base.collection import paused
from fluidlite.base.errors import ProgramError
from fluidlite.base.fork import first_in_child, holds, keep_for_ever, new_lock
from fluidlite.base.lru_cache import CacheInfo, count_cache, total
from fluidlite.base.weak_objects import WeakObjects
from fluidlite.compiler.body_executors import MakeExecutor
from fluidlite.compiler.executable.executable import Executable, Fetched, Latest
from fluidlite.compiler.executable.fast_path import Signature, fast_path_of
from fluidlite.compiler.executable.fast_path_cache import FastPathCache
from fluidlite.compiler.executable.linked_plan import arenas_of, refusal
from fluidlite.compiler.executable.linker import MakeTensor
from fluidlite.compiler.instrumentation import observers, timer
from fluidlite.compiler.interpreter import run_plan
from fluidlite.compiler.kernel_checks import one_by_one
from fluidlite.compiler.memory.storage import DeviceBufferStorage, DeviceTensor, allocate_buffers
from fluidlite.compiler.planning.plan import Plan
from fluidlite.memory import memory_of
from fluidlite.memory.arena import Arena, arenas_in_use, current_arena
from fluidlite.memory.sharing import held
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.program.scope import Scope
from fluidlite.tensor.tensor import Tensor

MOST_BOUND = 32
"""Executables that one cache keeps for each context; the one used longest ago goes first.

Counted by context, threads do not evict what others run.
"""

MOST_BYTES = 32 << 20
"""Of the plans of those, by their weight."""

MOST_KEYS = 1024
"""Keys of earlier runs that are kept."""

_Around = tuple[tuple[Arena | None, ...], tuple[Context, ...]]
_Key = tuple[Plan, "ref[Scope]", Context, _Around, bool]
"""The last says whether it is linked for a timer."""
Sign = Callable[[], Signature]


def _around(plan: Plan) -> _Around:
    """What a plan is bound to beside its context: arenas, and the contexts that this thread has of its other places."""
    others = [get_context(place) for place in plan.places if place != plan.place] if len(plan.places) > 1 else ()
    return arenas_of(plan.places), tuple(others)


class ExecutableCache:
    """Runs plans: bound where they can be, by the interpreter where they cannot or where somebody observes.

    All that is bound here on one context lies in one arena, as large as the largest needs: one runs at a time.

    ``copy``: results are copies. False: those on the host are views of where they were computed, where that stays.
    ``allocate``: has room for what each of some buffers needs.
    ``seconds``: spent on binding, without memory.
    ``bodies``: what makes the executors of sub-blocks; None: such as executors are by default.
    """

    def __init__(
        self,
        make_storage: Callable[[Context], DeviceBufferStorage] = DeviceBufferStorage,
        make_tensor: MakeTensor = DeviceTensor.at,
        copy: bool = True,
        allocate: Callable[[Sequence[DeviceBufferStorage]], None] = allocate_buffers,
    ) -> None:
        self.copy = copy
        self.allocate = allocate
        self._latest = Latest()
        self._ended_plan: Plan | None = None
        self.binds = self.hits = 0
        self.seconds = 0.0
        self.fast_paths = FastPathCache()
        self.bodies: MakeExecutor | None = None
        self._make_storage = make_storage
        self._make_tensor = make_tensor
        self._executables: OrderedDict[_Key, Executable | None] = OrderedDict()
        self._quick: dict[Hashable, tuple[Any, _Key]] = {}
        self._storages: dict[tuple[Context, int, Arena | None], DeviceBufferStorage] = {}
        self._lock = new_lock()
        mine = ref(self)

        def ended(_: ref[Scope]) -> None:
            """Let go of the state of a scope: now, or at the next binding, if that would disturb somebody."""
            cache = mine()
            if cache is not None and cache._lock.acquire(blocking=False):
                try:
                    cache._drop_ended()
                finally:
                    cache._lock.release()

        self._ended = ended
        _caches.add(self)

    def run(
        self, plan: Plan, feeds: Mapping[str, Tensor], scope: Scope, sign: Sign | None = None
    ) -> tuple[Fetched, Plan]:
        """Run a plan once; arguments and results are those of the interpreter's ``run_plan``."""
        if observers():
            return self._watched(plan, feeds, scope)
        executable = self._find(plan, feeds, scope)
        again = executable is not None and executable.attached  # what runs once needs no fast path
        found = self._run(executable, feeds, scope, sign if again else None) if executable is not None else None
        return found if found is not None else run_plan(plan, feeds, scope, self.bodies)

    def _watched(self, plan: Plan, feeds: Mapping[str, Tensor], scope: Scope) -> tuple[Fetched, Plan]:
        """Run a plan for observers: one operator after another; bound, for once, where only kernels are checked."""
        if one_by_one() or refusal(plan, scope) is not None:
            return run_plan(plan, feeds, scope, self.bodies)
        executable = Executable(plan, feeds, self, self._make_tensor, timed=timer() is not None)
        try:
            return executable.run(feeds, scope) or run_plan(plan, feeds, scope, self.bodies)
        finally:
            executable.detach()

    @property
    def last(self) -> Executable | None:
        return self._latest.executable

    @last.setter
    def last(self, executable: Executable | None) -> None:
        # its scope ended: what it did is still to be told
        if executable is None and self._latest.executable is not None:
            self._ended_plan = self._latest.executable.plan
        self._latest.executable = executable

    def bound(self) -> Executable:
        """What ran last; raises ProgramError if nothing is bound."""
        if self.last is None:
            raise ProgramError(
                "there is nothing to show: nothing of it was bound to memory yet; dims are known at the first run"
                "\n  Do: run it once"
            )
        return self.last

    @property
    def last_plan(self) -> Plan | None:
        """The plan of what ran last, though it may be bound no more."""
        return self._latest.executable.plan if self._latest.executable is not None else self._ended_plan

    def remember(self, key: Hashable, stamp: Any, plan: Plan, scope: Scope) -> None:
        """Note under which key a plan ran, so that :meth:`again` needs no plan.

        ``key``: all that chose the plan, but ``scope``, its state, and ``stamp``.
        ``stamp``: what must be equal, and seldom changes: the registry's generation, the policy.
        """
        timed = timer() is not None
        entry = stamp, (plan, ref(scope), get_context(plan.place), _around(plan), timed)
        with self._lock:
            if len(self._quick) > MOST_KEYS:
                self._quick.clear()
            self._quick[key, id(scope), timed] = entry

    def again(
        self, key: Hashable, stamp: Any, feeds: Mapping[str, Tensor], scope: Scope, sign: Sign | None = None
    ) -> tuple[Fetched, Plan] | None:
        """Run what ran under a key before, if its state is where it was; None: it has to be planned."""
        found = self._quick.get((key, id(scope), timer() is not None))
        if found is None or found[0] != stamp or observers():
            return None
        plan, where, context, around, _ = found[1]
        if where() is not scope or around != _around(plan):
            return None
        with self._lock:
            executable = self._executables.get(found[1])
            if executable is None or context is not get_context(plan.place):
                return None
            self._executables.move_to_end(found[1])
            self.hits += 1
        return self._run(executable, feeds, scope, sign)

    def _run(
        self, executable: Executable, feeds: Mapping[str, Tensor], scope: Scope, sign: Sign | None
    ) -> tuple[Fetched, Plan] | None:
        found = executable.run(feeds, scope, self._latest)
        if found is not None and sign is not None and executable.tried != executable.attached and not observers():
            self._make_fast_path(executable, scope, sign())
        return found

    def _make_fast_path(self, executable: Executable, scope: Scope, called: Signature) -> None:
        """Link a fast path, unless another thread took the memory or the place in the cache meanwhile."""
        with held(executable.contexts):
            if not executable.in_turn(scope) or not executable.valid(scope):
                return
            executable.tried = executable.attached
            fast_path = fast_path_of(executable, scope, called, self._latest, self.copy)
            if fast_path is None:
                return
            with self._lock:
                if any(kept is executable for kept in self._executables.values()):
                    self.fast_paths.put(fast_path)

    def _find(self, plan: Plan, feeds: Mapping[str, Tensor], scope: Scope) -> Executable | None:
        key = (plan, ref(scope), get_context(plan.place), _around(plan), timer() is not None)
        with self._lock:
            if key in self._executables:
                self._executables.move_to_end(key)
                self.hits += self._executables[key] is not None
                return self._executables[key]
        executable = None
        if refusal(plan, scope) is None:
            began = perf_counter()
            with paused():
                executable = Executable(
                    plan, feeds, proxy(self), self._make_tensor, timed=key[4]
                )  # no circle: memory goes at once
            self.binds += 1
            self.seconds += perf_counter() - began
        with self._lock:
            self._executables[plan, ref(scope, self._ended), key[2], key[3], key[4]] = executable
            self._drop_ended()
            self._evict([each for each in self._executables if each[2] is key[2]])
        return executable

    def _evict(self, mine: list[_Key]) -> None:
        """Drop what one context used longest ago, beyond the bounds; the newest stays."""
        weight = sum([key[0].weight for key in mine])
        gone = 0
        while gone < len(mine) - 1 and (len(mine) - gone > MOST_BOUND or weight > MOST_BYTES):
            old = self._executables.pop(mine[gone])
            weight -= mine[gone][0].weight
            gone += 1
            if old is not None:
                old.close_fast_path()
        if gone:
            self.fast_paths.sweep()
            self._drop_keys()
            self._shrink()

    def _drop_ended(self) -> None:
        for old in [
            old for old in self._executables if old[1]() is None or any(c.closed for c in (old[2], *old[3][1]))
        ]:
            executable = self._executables.pop(old)
            if executable is self.last:
                self.last = None
            if executable is not None:
                executable.detach()
            self._drop_keys()
        self.fast_paths.sweep()

    def _drop_keys(self) -> None:
        """Forget keys of what is bound no more: they hold its plan, and by that its program."""
        kept = {}
        for key, found in self._quick.items():
            if found[1][1]() is not None and found[1] in self._executables:  # a reference to what ended has no hash
                kept[key] = found
        self._quick = kept

    # Memory

    def of(self, context: Context, stage: int = 0) -> DeviceBufferStorage:
        """The storage of a context, for a stage of programs; in the arena that this thread allocates from there."""
        arena = current_arena(memory_of(context.place, context)) if arenas_in_use() else None
        with self._lock:
            for closed in [known for known in self._storages if known[0].closed]:
                self._storages.pop(closed).release()
            found = self._storages.get((context, stage, arena))
            if found is None:
                found = self._make_storage(context)
                if not isinstance(found, DeviceBufferStorage):
                    raise ProgramError(f"device_buffer_storage gave {found!r}; expected a DeviceBufferStorage")
                found.arena = arena
                self._storages[context, stage, arena] = found
            return found

    def _shrink(self) -> None:
        """Give back arenas that are larger than what is still bound needs; the next call allocates anew."""
        for (context, stage, arena), storage in self._storages.items():
            kept = [
                b
                for b in self._executables.values()
                if b is not None and b.frame.contexts.get(context.place) is context
            ]
            needed = max((b.memory.arenas.get(context.place, 0) for b in kept), default=0)
            if stage or arena is not None or storage.nbytes <= needed or not context.lock.acquire(blocking=False):
                continue
            try:  # a run of another thread holds the queue while it uses the arena
                if not storage.busy:
                    storage.release()
            finally:
                context.lock.release()

    def clear(self) -> None:
        """Let go of everything; memory that another thread's run uses goes when that run has ended."""
        with self._lock:
            self.fast_paths.close()
            self._executables.clear()
            self._quick.clear()
            storages, self._storages = self._storages, {}
            self.last = None
        for (context, *_), storage in storages.items():  # without our lock: a run may wait for it
            with context.lock:
                storage.release()

    def begin_anew(self) -> None:
        """In a forked child: drop what is bound, for other threads' runs were cut off, and native threads are gone.

        What a run of this thread uses stays, as does what belongs to a device that is the parent's.
        """
        self.fast_paths.close()
        self._quick.clear()
        for key, executable in list(self._executables.items()):
            if executable is not None and any(context.unit.inherited for context in executable.contexts):
                keep_for_ever(executable)
            elif executable is not None and not any(holds(context.lock) for context in executable.contexts):
                executable.detach()
            del self._executables[key]
        for (context, *_), storage in self._storages.items():
            if not holds(context.lock) and not context.unit.inherited:
                storage.busy = False
                storage.release()

    def info(self) -> CacheInfo:
        keys = list(self._executables)
        contexts = max(len({key[2] for key in keys}), 1)
        return CacheInfo(
            len(self),
            contexts * MOST_BOUND,
            self.hits,
            self.binds,
            self.seconds,
            sum([key[0].weight for key in keys]),
            contexts * MOST_BYTES,
        )

    def __len__(self) -> int:
        return sum(executable is not None for executable in self._executables.values())


_caches: WeakObjects[ExecutableCache] = WeakObjects()


count_cache("executables", lambda: total(cache.info() for cache in _caches))
count_cache("keys of executables", lambda: total(CacheInfo(len(cache._quick), MOST_KEYS, 0, 0) for cache in _caches))


@first_in_child
def _begin_anew() -> None:
    for cache in _caches:
        cache.begin_anew()
