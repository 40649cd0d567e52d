"""Linked plans: the steps of a plan, linked to arenas and to the state of a scope, and the guards of that link."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self
from weakref import ref

from fluidlite.base.errors import OutOfMemoryError, ProgramError
from fluidlite.base.forwarded import forwarded
from fluidlite.base.invalidation import cache_version
from fluidlite.compiler.executable.command_buffer import Action
from fluidlite.compiler.executable.linker import Linker, MakeTensor
from fluidlite.compiler.executable.state_binding import StateBinding
from fluidlite.compiler.frame import Frame, uses_of_state, written_state
from fluidlite.compiler.kernel_runs import prepare_step
from fluidlite.compiler.memory.live_ranges import LiveRanges
from fluidlite.compiler.memory.memory_plan import MemoryPlan
from fluidlite.compiler.memory.storage import DeviceBufferStorage, DeviceTensor
from fluidlite.compiler.planning.plan import Launch, Move, Plan, Step
from fluidlite.compiler.run_errors import fail, step_text
from fluidlite.memory import memory_of
from fluidlite.memory.arena import Arena, arenas_in_use, current_arena
from fluidlite.memory.bump import BumpAllocation
from fluidlite.memory.sharing import Use, lock_contexts
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.place import Place
from fluidlite.program.prepared import Prepared
from fluidlite.program.scope import Scope
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import TENSOR_ARRAY
from fluidlite.tensor.written import Written

if TYPE_CHECKING:
    from fluidlite.compiler.executable.executable_cache import ExecutableCache

NO_SCOPE = Scope()
"""The scope of a frame between runs."""


def arenas_of(places: Iterable[Place]) -> tuple[Arena | None, ...]:
    """Return the arenas that this thread allocates from, one for each place; () if no arena is in use."""
    return tuple([current_arena(memory_of(place)) for place in places]) if arenas_in_use() else ()


def refusal(plan: Plan, scope: Scope) -> str | None:
    """Return why a plan cannot be linked, or None. A plan that creates state, such as a startup program, runs once."""
    for name in plan.written:
        variable = scope.find_var(name)
        if variable is None or variable.tensor.allocation is None:
            return f"it makes state {name!r}"
    for step in plan.steps:
        if isinstance(step, Move):
            if step.why == "state":
                return f"state {step.name!r} moves to its place"
        elif not isinstance(step, Launch) and any(
            out.state and out.spec.kind != TENSOR_ARRAY for outs in step.outs.values() for out in outs
        ):
            return f"{step.op} makes state"
    return None


class LinkedPlan:
    """A plan that is linked to arenas, to the state of a scope and to the contexts of this thread.

    ``feeds``: feeds of the first call; those of later calls have equal specs and places.
    ``storages``: the cache that provides its storages.
    ``make_tensor``: ``make_tensor(storage, spec, offset)``.
    ``before``: the previous stage.
    ``timed``: it is linked for a timer: each operator is one call between two reads of a clock.
    ``attached``: number of times that its steps were linked: once, and again whenever memory of state or of an arena
    changed.
    ``arenas``: the result of :func:`arenas_of` for its places when it was linked; they have its memory.
    ``main_storage``: the storage that is marked busy while it runs.
    ``attempt``: the value of ``attached`` when a fast path was last attempted.
    ``written``: the memory of the state that it writes.
    """

    def __init__(
        self,
        plan: Plan,
        feeds: Mapping[str, Tensor],
        storages: ExecutableCache,
        make_tensor: MakeTensor = DeviceTensor.at,
        before: LinkedPlan | None = None,
        timed: bool = False,
    ) -> None:
        self.plan = plan
        self.timed = timed
        self.make_tensor = make_tensor
        self.storages = storages
        self.before = before
        self.stage: int = before.stage + 1 if before is not None else 0
        self.frame: Frame = before.frame if before is not None else Frame(plan, NO_SCOPE, {})
        if before is None:
            self.frame.bodies = storages.bodies
            self.frame.contexts = {place: get_context(place) for place in plan.places}
        self.contexts: list[Context] = list(self.frame.contexts.values())
        dynamic_keys = before.dynamic_keys() if before is not None else {}
        self.arenas = arenas_of(plan.places)
        self.main_storage = storages.of(self.frame.contexts[plan.place])
        self.fast_path: ref[Any] | None = None
        self.attempt = 0
        self.prepared: dict[int, Prepared] = {}
        self.fed = {name: tensor.place for name, tensor in feeds.items() if tensor.place is not None}
        with lock_contexts(self.contexts):
            self.live_ranges = LiveRanges(plan, self._prepare(), self.fed, dynamic_keys, storages.copy)
        self.memory = MemoryPlan(plan, self.live_ranges)
        self.buffers = {place: storages.of(self.frame.contexts[place], self.stage) for place in self.memory.arenas}
        self._allocate = storages.allocate
        self._written = plan.written
        self.binding = StateBinding(sorted(self.live_ranges.state), self._written, plan.state_specs)
        self._next: OrderedDict[Plan, Self | None] = OrderedDict()
        self._stamps: list[tuple[DeviceBufferStorage, int]] = []
        self.earlier: Mapping[str, Tensor] = {}
        self.attached = 0
        self._linked = False
        self._turn_version: object = None
        """The cache version at which no other user of the memory of its state was pending."""
        self._uses: list[Use] = []
        self._touched = plan.state_uses
        self._changed: list[Tensor] = []
        self.written = Written(())
        self.actions: list[Action] = []
        self.owners: list[Step] = []
        self.fixed: dict[str, Tensor] = {}
        self._copies: list[tuple[str, Any]] = []
        self._dynamic_feeds: list[tuple[str, str]] = []

    def _prepare(self) -> dict[int, int]:
        """Prepare the kernels; return the bytes of workspace by step."""
        workspaces: dict[int, int] = {}
        for index, step in enumerate(self.plan.steps):
            if isinstance(step, Launch) and not step.skip:
                try:
                    self.prepared[index] = prepare_step(step, self.frame.contexts[step.choice.place])
                except Exception as exc:
                    fail(exc, step, self.frame)
                workspaces[index] = self.prepared[index].workspace
        return workspaces

    def dynamic_keys(self) -> dict[str, bool]:
        """Return for each value whether its address is dynamic; a later stage reads the values."""
        return {key: live_range.is_dynamic for key, live_range in self.live_ranges.of.items()}

    def ensure_linked(self, scope: Scope) -> bool:
        """Link it again unless it is valid; return False if the interpreter has to run it.

        The caller holds its contexts. It stays unlinked, hence invalid, while another user of its state is pending.
        """
        if self.valid(scope):
            return True
        self._linked, self._turn_version = False, None
        if not self.binding.look_up(scope):
            return False
        self._uses = list(self._uses_of_state(scope))
        self.written = written_state(self.plan, scope)
        if self.can_use_state(scope):
            self._attach()
        return True

    def _uses_of_state(self, scope: Scope) -> Iterator[Use]:
        return uses_of_state(self._touched, scope, self.frame.contexts)

    def can_use_state(self, scope: Scope) -> bool:
        """Whether it may use the memory of its state without waiting; the caller holds its contexts."""
        now = cache_version.current  # before the check
        if self._turn_version is now:
            return True
        uses = self._uses if self.plan.pending is None else list(self._uses_of_state(scope))
        if not all([use.note() for use in uses]):
            return False
        if self.plan.pending is None:
            self._turn_version = now
        return True

    @property
    def has_dynamic_memory(self) -> bool:
        """Whether some value has a dynamic address."""
        return any([live_range.is_dynamic for live_range in self.live_ranges.of.values()])

    @property
    def uses_arena(self) -> bool:
        """Whether some of its memory is part of an arena, which its owner may reset."""
        allocations = [storage.allocation for storage in self.buffers.values()]
        allocations += [tensor.allocation for tensor in self.binding.tensors.values()]
        return any([isinstance(each, BumpAllocation) for each in allocations])

    busy: bool = forwarded("main_storage.busy", "Whether a run is in progress; True if an operator calls back.")

    def valid(self, scope: Scope) -> bool:
        """Whether it is linked to the memory that its state and temporaries have now."""
        if not self._linked:
            return False
        for storage, generation in self._stamps:
            if storage.generation != generation:
                return False
        if self.before is not None and self.earlier is not self.before.fixed:
            return False
        return self.binding.valid(scope)

    def _attach(self) -> None:
        self.close_fast_path()
        self._linked = False
        for place, storage in self.buffers.items():
            storage.needed = self.memory.arenas[place]
        try:
            self._allocate(tuple(self.buffers.values()))
        except OutOfMemoryError as exc:
            small = next((p for p, storage in self.buffers.items() if storage.nbytes < storage.needed), self.plan.place)
            step = self.plan.steps[min(self.memory.peak_step(small), len(self.plan.steps) - 1)]
            raise OutOfMemoryError(f"temporaries of the program, most of them at {step_text(step)}: {exc}") from exc
        for storage in self.buffers.values():
            if storage.nbytes < storage.needed:
                raise ProgramError(
                    f"{storage!r} was not allocated; expected {storage.needed} bytes"
                    "\n  Do: allocate it in transform_allocate"
                )
            storage.users.add(self)
        self._stamps = [(storage, storage.generation) for storage in self.buffers.values()]
        self.earlier = self.before.fixed if self.before is not None else {}
        linker = Linker(self)
        self.actions, self.owners, self.fixed = linker.actions, linker.owners, linker.fixed
        self._changed = [self.binding.tensors[name] for name in self._written]
        self._turn_version = None
        keys = [(name, self.plan.feed_keys[name]) for name in self.fed]
        self._copies = [(name, self.fixed[key].native()) for name, key in keys if key in self.fixed]
        self._dynamic_feeds = [(name, key) for name, key in keys if key not in self.fixed]
        self._is_repeatable = self.plan.pending is None and not self.has_dynamic_memory
        if self.before is None:
            self.frame.values = dict(self.fixed)
        self.attached += 1
        self._linked = True

    def detach(self) -> None:
        """Drop references to memory; the next call links again."""
        self.close_fast_path()
        self._linked = False
        self.actions, self.owners, self.fixed = [], [], {}
        self._copies = []
        if self.before is None:
            self.frame.values = {}

    def close_fast_path(self) -> None:
        fast_path = self.fast_path() if self.fast_path is not None else None
        if fast_path is not None:
            fast_path.close()
        self.fast_path = None

    @property
    def dynamic_feeds(self) -> Sequence[str]:
        """Feeds that are read at the caller's address, not copied into an arena."""
        return [name for name, _ in self._dynamic_feeds]

    @property
    def state(self) -> list[tuple[str, Tensor, bool]]:
        """The tensors of the scope that it reads or writes, by name, and whether it writes them."""
        return [(name, tensor, name in self._written) for name, tensor in self.binding.tensors.items()]
