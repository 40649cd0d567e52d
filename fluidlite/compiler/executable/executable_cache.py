"""The executable cache: an LRU cache of linked plans, with the arenas that they share; runs plans."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from time import perf_counter
from typing import Any
from weakref import proxy, ref

from fluidlite.base.collection import gc_paused
from fluidlite.base.errors import ProgramError
from fluidlite.base.fork import first_in_child, is_held, never_finalize, new_lock
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
from fluidlite.compiler.kernel_checks import needs_interpreter
from fluidlite.compiler.memory.storage import DeviceBufferStorage, DeviceTensor, allocate_buffers
from fluidlite.compiler.planning.plan import Plan
from fluidlite.memory import memory_of
from fluidlite.memory.arena import Arena, arenas_in_use, current_arena
from fluidlite.memory.sharing import lock_contexts
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.program.scope import Scope
from fluidlite.tensor.tensor import Tensor

MAX_EXECUTABLES = 32
"""Maximum number of executables that one cache holds for each context; the least recently used is evicted first.

The count is for each context, so that threads do not evict executables of other threads.
"""

MAX_PLAN_BYTES = 32 << 20
"""Maximum bytes of the plans of these executables, estimated by ``Plan.weight``."""

MAX_KEYS = 1024
"""Maximum number of keys of earlier runs in one cache; at the maximum, all are dropped."""

_Environment = tuple[tuple[Arena | None, ...], tuple[Context, ...]]
_Key = tuple[Plan, "ref[Scope]", Context, _Environment, bool]
"""The last item: whether the executable is linked for a timer."""
Signer = Callable[[], Signature]


def _binding_environment(plan: Plan) -> _Environment:
    """Return the arenas and the contexts of other places that a plan is linked to in this thread."""
    contexts = [get_context(place) for place in plan.places if place != plan.place] if len(plan.places) > 1 else ()
    return arenas_of(plan.places), tuple(contexts)


class ExecutableCache:
    """Runs plans: as linked executables, or by the interpreter if a plan cannot be linked or an observer is active.

    All executables of one context share one arena, which has the size of the largest memory plan: one runs at a time.

    ``copy``: results are copies. If False, results on the host at static addresses are views.
    ``allocate``: allocates the bytes that each of some storages needs.
    ``seconds``: time spent on linking, without allocation.
    ``bodies``: makes the executors of sub-blocks; None: the default executors.
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
        self._keys: dict[Hashable, tuple[Any, _Key]] = {}
        self._storages: dict[tuple[Context, int, Arena | None], DeviceBufferStorage] = {}
        self._lock = new_lock()
        this = ref(self)

        def on_scope_end(_: ref[Scope]) -> None:
            """Drop executables of a scope that ended: now, or at the next insertion if the lock is taken."""
            cache = this()
            if cache is not None and cache._lock.acquire(blocking=False):
                try:
                    cache._drop_ended()
                finally:
                    cache._lock.release()

        self._on_scope_end = on_scope_end
        _caches.add(self)

    def run(
        self, plan: Plan, feeds: Mapping[str, Tensor], scope: Scope, signer: Signer | None = None
    ) -> tuple[Fetched, Plan]:
        """Run a plan once; arguments and results are those of the interpreter's ``run_plan``."""
        if observers():
            return self._run_observed(plan, feeds, scope)
        executable = self._executable_of(plan, feeds, scope)
        is_reused = executable is not None and executable.attached  # a plan that runs once needs no fast path
        result = self._run(executable, feeds, scope, signer if is_reused else None) if executable is not None else None
        return result if result is not None else run_plan(plan, feeds, scope, self.bodies)

    def _run_observed(self, plan: Plan, feeds: Mapping[str, Tensor], scope: Scope) -> tuple[Fetched, Plan]:
        """Run a plan for observers: by the interpreter, or as an uncached executable if only kernels are checked."""
        if needs_interpreter() or refusal(plan, scope) is not None:
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
        # its scope ended; explain still reports its plan
        if executable is None and self._latest.executable is not None:
            self._ended_plan = self._latest.executable.plan
        self._latest.executable = executable

    def last_executable(self) -> Executable:
        """Return the executable that ran last; raise ProgramError if it no longer exists."""
        if self.last is None:
            raise ProgramError(
                "there is nothing to show: nothing of it was bound to memory yet; dims are known at the first run"
                "\n  Do: run it once"
            )
        return self.last

    @property
    def last_plan(self) -> Plan | None:
        """The plan that ran last, even if its executable was dropped."""
        return self._latest.executable.plan if self._latest.executable is not None else self._ended_plan

    def insert_key(self, key: Hashable, stamp: Any, plan: Plan, scope: Scope) -> None:
        """Insert the key of a run, so that :meth:`run_cached` needs no plan.

        ``key``: everything that the plan depends on, except ``scope``, its state and ``stamp``.
        ``stamp``: must be equal for a hit and seldom changes: the registry's generation, the policy.
        """
        timed = timer() is not None
        entry = stamp, (plan, ref(scope), get_context(plan.place), _binding_environment(plan), timed)
        with self._lock:
            if len(self._keys) > MAX_KEYS:
                self._keys.clear()
            self._keys[key, id(scope), timed] = entry

    def run_cached(
        self, key: Hashable, stamp: Any, feeds: Mapping[str, Tensor], scope: Scope, signer: Signer | None = None
    ) -> tuple[Fetched, Plan] | None:
        """Run the executable that is cached for a key; None at a cache miss: the caller has to plan."""
        entry = self._keys.get((key, id(scope), timer() is not None))
        if entry is None or entry[0] != stamp or observers():
            return None
        plan, scope_reference, context, environment, _ = entry[1]
        if scope_reference() is not scope or environment != _binding_environment(plan):
            return None
        with self._lock:
            executable = self._executables.get(entry[1])
            if executable is None or context is not get_context(plan.place):
                return None
            self._executables.move_to_end(entry[1])
            self.hits += 1
        return self._run(executable, feeds, scope, signer)

    def _run(
        self, executable: Executable, feeds: Mapping[str, Tensor], scope: Scope, signer: Signer | None
    ) -> tuple[Fetched, Plan] | None:
        result = executable.run(feeds, scope, self._latest)
        if result is not None and signer is not None and executable.attempt != executable.attached and not observers():
            self._make_fast_path(executable, scope, signer())
        return result

    def _make_fast_path(self, executable: Executable, scope: Scope, signature: Signature) -> None:
        """Make the fast path of an executable, unless another thread took its memory or evicted it meanwhile."""
        with lock_contexts(executable.contexts):
            if not executable.can_use_state(scope) or not executable.valid(scope):
                return
            executable.attempt = executable.attached
            fast_path = fast_path_of(executable, scope, signature, self._latest, self.copy)
            if fast_path is None:
                return
            with self._lock:
                if any(cached is executable for cached in self._executables.values()):
                    self.fast_paths.put(fast_path)

    def _executable_of(self, plan: Plan, feeds: Mapping[str, Tensor], scope: Scope) -> Executable | None:
        key = (plan, ref(scope), get_context(plan.place), _binding_environment(plan), timer() is not None)
        with self._lock:
            if key in self._executables:
                self._executables.move_to_end(key)
                self.hits += self._executables[key] is not None
                return self._executables[key]
        executable = None
        if refusal(plan, scope) is None:
            began = perf_counter()
            with gc_paused():
                executable = Executable(
                    plan, feeds, proxy(self), self._make_tensor, timed=key[4]
                )  # no reference cycle: memory is freed at once
            self.binds += 1
            self.seconds += perf_counter() - began
        with self._lock:
            self._executables[plan, ref(scope, self._on_scope_end), key[2], key[3], key[4]] = executable
            self._drop_ended()
            self._evict([each for each in self._executables if each[2] is key[2]])
        return executable

    def _evict(self, keys: list[_Key]) -> None:
        """Evict the least recently used executables of one context beyond the maximums, except the newest."""
        weight = sum([key[0].weight for key in keys])
        evicted = 0
        while evicted < len(keys) - 1 and (len(keys) - evicted > MAX_EXECUTABLES or weight > MAX_PLAN_BYTES):
            old = self._executables.pop(keys[evicted])
            weight -= keys[evicted][0].weight
            evicted += 1
            if old is not None:
                old.close_fast_path()
        if evicted:
            self.fast_paths.sweep()
            self._drop_keys()
            self._shrink()

    def _drop_ended(self) -> None:
        for key in [
            key for key in self._executables if key[1]() is None or any(c.closed for c in (key[2], *key[3][1]))
        ]:
            executable = self._executables.pop(key)
            if executable is self.last:
                self.last = None
            if executable is not None:
                executable.detach()
            self._drop_keys()
        self.fast_paths.sweep()

    def _drop_keys(self) -> None:
        """Drop keys of evicted executables: a key holds a plan, which holds its program."""
        valid_entries = {}
        for key, entry in self._keys.items():
            if entry[1][1]() is not None and entry[1] in self._executables:  # a dead reference has no hash
                valid_entries[key] = entry
        self._keys = valid_entries

    # Memory

    def of(self, context: Context, stage: int = 0) -> DeviceBufferStorage:
        """Return the storage of a context for a stage of executables, in the arena that this thread allocates from."""
        arena = current_arena(memory_of(context.place, context)) if arenas_in_use() else None
        with self._lock:
            for closed in [key for key in self._storages if key[0].closed]:
                self._storages.pop(closed).release()
            storage = self._storages.get((context, stage, arena))
            if storage is None:
                storage = self._make_storage(context)
                if not isinstance(storage, DeviceBufferStorage):
                    raise ProgramError(f"device_buffer_storage gave {storage!r}; expected a DeviceBufferStorage")
                storage.arena = arena
                self._storages[context, stage, arena] = storage
            return storage

    def _shrink(self) -> None:
        """Free arenas that are larger than the remaining executables need; the next call allocates smaller ones."""
        for (context, stage, arena), storage in self._storages.items():
            executables = [
                b
                for b in self._executables.values()
                if b is not None and b.frame.contexts.get(context.place) is context
            ]
            needed = max((b.memory.arenas.get(context.place, 0) for b in executables), default=0)
            if stage or arena is not None or storage.nbytes <= needed or not context.lock.acquire(blocking=False):
                continue
            try:  # a run of another thread holds the queue while it uses the arena
                if not storage.busy:
                    storage.release()
            finally:
                context.lock.release()

    def clear(self) -> None:
        """Drop all entries and free their arenas; an arena in use by another thread is freed when its run has ended."""
        with self._lock:
            self.fast_paths.close()
            self._executables.clear()
            self._keys.clear()
            storages, self._storages = self._storages, {}
            self.last = None
        for (context, *_), storage in storages.items():  # without the lock of the cache: a run may wait for that
            with context.lock:
                storage.release()

    def reset_after_fork(self) -> None:
        """Drop all executables in a forked child: runs of other threads were cut off, native threads do not exist.

        Memory that a run of this thread uses stays, as does memory of a device that belongs to the parent.
        """
        self.fast_paths.close()
        self._keys.clear()
        for key, executable in list(self._executables.items()):
            if executable is not None and any(context.unit.inherited for context in executable.contexts):
                never_finalize(executable)
            elif executable is not None and not any(is_held(context.lock) for context in executable.contexts):
                executable.detach()
            del self._executables[key]
        for (context, *_), storage in self._storages.items():
            if not is_held(context.lock) and not context.unit.inherited:
                storage.busy = False
                storage.release()

    def info(self) -> CacheInfo:
        keys = list(self._executables)
        contexts = max(len({key[2] for key in keys}), 1)
        return CacheInfo(
            len(self),
            contexts * MAX_EXECUTABLES,
            self.hits,
            self.binds,
            self.seconds,
            sum([key[0].weight for key in keys]),
            contexts * MAX_PLAN_BYTES,
        )

    def __len__(self) -> int:
        return sum(executable is not None for executable in self._executables.values())


_caches: WeakObjects[ExecutableCache] = WeakObjects()


count_cache("executables", lambda: total(cache.info() for cache in _caches))
count_cache("keys of executables", lambda: total(CacheInfo(len(cache._keys), MAX_KEYS, 0, 0) for cache in _caches))


@first_in_child
def _reset_after_fork() -> None:
    for cache in _caches:
        cache.reset_after_fork()
