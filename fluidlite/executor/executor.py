"""The Executor: feeds, a plan from the cache, a run, fetches."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluidlite.base.arguments import listed
from fluidlite.base.bounded import Bounded, CacheReport
from fluidlite.base.errors import FallbackWarning, FetchError, PlaceError, ProgramError
from fluidlite.base.fork import new_lock
from fluidlite.base.weak_objects import WeakObjects
from fluidlite.executor.feeds import feed_tensors
from fluidlite.executor.unread_feeds import check_read
from fluidlite.framework.choose import generation
from fluidlite.framework.explain import Report
from fluidlite.framework.generators import generator_capability
from fluidlite.framework.interpreter import MOST_TRIES, StateMovedError, run_plan
from fluidlite.framework.kernel_checks import one_by_one
from fluidlite.framework.observe import observers
from fluidlite.framework.opdef import GRAD
from fluidlite.framework.plan import Plan
from fluidlite.framework.planner import plan_block, updates
from fluidlite.framework.policy import FALLBACKS, Policy, check_libraries, policy
from fluidlite.framework.program import Program, default_main_program
from fluidlite.framework.scope import Scope, global_scope
from fluidlite.framework.spec import Spec
from fluidlite.framework.state import state_of
from fluidlite.framework.tensor import Tensor
from fluidlite.framework.transfer import borrow
from fluidlite.framework.variable import Variable
from fluidlite.platform.context import Context
from fluidlite.platform.devices import devices
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.platform.pool import get_context, new_context, using

if TYPE_CHECKING:  # imported when an executor needs them: they are a fifth of the time of the import
    from fluidlite.transformers.bound import Fetched
    from fluidlite.transformers.compiled import CompiledPrograms
    from fluidlite.transformers.direct import Signature
    from fluidlite.transformers.memory_plan import MemoryPlan
    from fluidlite.transformers.passes import GraphPass
    from fluidlite.transformers.replay import Replay
    from fluidlite.transformers.ways import Ways

MODES = ("interpreted", "compiled")
DEFAULT_MODE = "compiled"
"""The mode of executors that are not told one."""
_MOST_PLANS = 64


class Executor:
    """Runs programs on a place.

    Parameters
    ----------
    place : Place or str
        ``"cpu"``, ``fluid.CUDAPlace(0)``, ``"opencl:0"``, a plugin's ...
    libraries : mapping of place kind to library names, optional
        Preferred libraries of this executor.
    fallback : {"error", "warn", "allow"}, optional
        This executor's own fallback policy.
    mode : {"interpreted", "compiled"}, optional
        Operator by operator as the program says, or after the passes of transformers, bound to memory and replayed.
        Both give the same, to rounding. While somebody observes, operators run one by one in both.
    passes : iterable of GraphPass, optional
        What changes programs in mode "compiled"; default: the passes of transformers. ``()``: nothing does.
    codegen : str, optional
        Which generator's kernels the place uses: one of ``codegen_choices(place)``. Default: the best of each.
    context : Context or int, optional
        What its runs go through, whichever thread runs them: a context of the place, or the number of the device's
        queue, on which the executor then has one of its own. Runs of executors on different queues overlap, where the
        device has several. Default: the context of the thread.

    Raises
    ------
    PlaceError, DeviceUnavailable
        With the root cause, if the place cannot be used, or has no such generator or queue.
    """

    def __init__(
        self,
        place: PlaceLike = "cpu",
        libraries: Mapping[str, Sequence[str]] | None = None,
        fallback: str | None = None,
        mode: str | None = None,
        passes: Iterable[GraphPass] | None = None,
        codegen: str | None = None,
        context: Context | int | None = None,
    ) -> None:
        unit = devices.unit(place)
        self.place: Place = unit.place
        self.codegen = codegen
        self._capability = None if codegen is None else generator_capability(unit, codegen)
        get_context(self.place)
        self._owns_context = isinstance(context, int)
        self._context = _context_of(self.place, context)
        self._host = devices.host()
        mode = DEFAULT_MODE if mode is None else mode
        if mode not in MODES:
            raise ProgramError(f"mode is {mode!r}; expected one of {', '.join(MODES)}")
        if fallback is not None and fallback not in FALLBACKS:
            raise ProgramError(f"fallback is {fallback!r}; expected one of {', '.join(FALLBACKS)}")
        check_libraries(name for names in (libraries or {}).values() for name in names)
        self.mode = mode
        self._replay: Replay | None = None
        self._ways: Ways | None = None  # those of the replay, where a run needs nothing before them
        self._compiled: CompiledPrograms | None = None
        if mode == "compiled":
            from fluidlite.transformers.compiled import CompiledPrograms
            from fluidlite.transformers.passes import PassList, default_passes
            from fluidlite.transformers.replay import Replay

            self._replay = Replay()
            self._ways = self._replay.ways if self._context is None else None
            given = None if passes is None else PassList(passes)
            self._compiled = CompiledPrograms(default_passes if given is None else lambda: given, self.place)
        self._libraries = dict(libraries or {})
        self._fallback = fallback
        self._policies: tuple[Policy, Policy] | None = None  # the process's, and this executor's made of it
        self._plans: Bounded[Plan] = Bounded(_MOST_PLANS, "plans", 8 << 20)
        self._generation: tuple[int, ...] = ()
        self._warned: WeakObjects[Program] = WeakObjects()
        self._last: Plan | None = None
        self._state: Bounded[tuple[tuple[str, ...], bool]] = Bounded(_MOST_PLANS, "state of programs")
        self._lock = new_lock()
        self.closed = False

    def _policy(self) -> Policy:
        found = policy()
        if self._policies is None or found is not self._policies[0]:
            self._policies = found, self._preferences(found)
        return self._policies[1]

    def _preferences(self, base: Policy) -> Policy:
        if self._libraries:
            base = base.with_libraries(self._libraries)
        if self._fallback is not None:
            base = replace(base, fallback=self._fallback)
        if self._capability is not None:
            base = base.with_codegen(self.place.kind, self._capability)
        return base

    def run(
        self,
        program: Program | None = None,
        feed: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        fetch_list: Sequence[Variable | str] | Variable | str | None = None,
        feed_var_name: str = "feed",
        fetch_var_name: str = "fetch",
        scope: Scope | None = None,
        return_numpy: bool = True,
        use_program_cache: bool = True,
    ) -> list[Any]:
        """Run a program once.

        Parameters
        ----------
        program : Program, optional
            Default: the main program.
        feed : mapping of name to array or Tensor, optional
            Borrowed, and only read, until the run returns.
        fetch_list : variables or names, optional
        scope : Scope, optional
            Where state lives; default: the global scope.
        return_numpy : bool
            NumPy arrays, or (False) tensors with their LoD. Both own their memory.

        Returns
        -------
        list
            One value a fetched variable.

        Raises
        ------
        FluidError
            One clear error with the operator and the user's line; the next run works.
        """
        if program is None:
            program = default_main_program()
        if scope is None:
            scope = global_scope()
        if self._ways is not None and return_numpy and type(program) is Program:
            lane = self._ways.get(program.serial)
            if lane is not None:
                found: list[Any] | None = lane.first.call(program, feed, fetch_list, scope)
                if found is None:
                    found = lane.others(program, feed, fetch_list, scope)
                if found is not None:
                    self._last = None
                    return found
        if self._context is None or self.closed:
            return self._checked(program, feed, fetch_list, scope, return_numpy)
        if self._context.closed:
            raise ProgramError(f"the context of the executor on {self.place} is closed")
        with using(self._context):
            return self._checked(program, feed, fetch_list, scope, return_numpy)

    def _checked(self, program: Any, feed: Any, fetch_list: Any, scope: Scope, return_numpy: bool) -> list[Any]:
        """Run a program that has no straight way yet, or an executor that has a context."""
        if self.closed:
            raise ProgramError("the executor is closed")
        if not isinstance(program, Program):
            raise ProgramError(f"Executor.run takes a Program, got {type(program).__name__}")
        if not isinstance(scope, Scope):
            raise ProgramError(f"scope is {type(scope).__name__}; expected a Scope\n  Do: scope=fluid.Scope()")
        if isinstance(feed, (list, tuple)):
            if len(feed) > 1:
                raise ProgramError(
                    f"the feed is a list of {len(feed)} mappings; an Executor has one place, give one mapping"
                )
            feed = feed[0] if feed else None
        if feed is not None and not isinstance(feed, Mapping):
            raise ProgramError(f"the feed is {type(feed).__name__}; expected a mapping of names to arrays")
        names = _fetch_names(program, fetch_list)
        block = program.global_block()
        tensors = feed_tensors(block, feed, get_context(self._host)) if feed else {}
        fetched = self._run(program, tensors, names, scope)
        if return_numpy:
            for name, (_, spec) in zip(names, fetched, strict=True):
                if spec.lod:
                    raise FetchError(
                        f"variable {name!r} holds LoD of {spec.lod_level} level(s), {len(spec.lod[-1]) - 1} sequences, "
                        "which a NumPy array cannot"
                        "\n  Do: exe.run(..., return_numpy=False)"
                    )
            return [array for array, _ in fetched]
        host = get_context(self._host)
        return [borrow(array, spec, host) for array, spec in fetched]

    def _run(self, program: Program, feeds: dict[str, Tensor], names: tuple[str, ...], scope: Scope) -> Fetched:
        """Run it as the mode says."""
        key: Any = None
        given_program, given_names = program, names

        def sign() -> Signature:
            from fluidlite.transformers.direct import Signature

            return Signature(given_program.serial, tuple(feeds), program=given_program, fetches=given_names)

        if self._replay is not None and not observers():
            given = tuple([(name, tensor.spec, tensor.place) for name, tensor in feeds.items()])
            key = (program.serial, program.edits, _sizes(program), program.random_seed, given, names,
                   get_context(self.place))  # fmt: skip
            stamp = generation(), self._policy()
            way = sign if self._ways is not None else None
            again = self._replay.again(key, stamp, feeds, scope, way)
            if again is not None:
                fetched, self._last = again
                return fetched
        for left in reversed(range(MOST_TRIES)):
            with self._lock:
                if self._compiled is not None and (key is not None or not one_by_one()):
                    program, names = self._compiled.get(given_program, given_names, self._policy())
                read, trains = self._state.get((program.serial, program.edits), partial(_state_of, program))
            fetched_state = [name for name in names if program.global_block().var(name).persistable]
            state = state_of(scope, dict.fromkeys((*read, *fetched_state)))  # may wait for a run: the lock is free
            with self._lock:
                plan = self._plan(
                    program, feeds, names, state, trains, partial(check_read, given_program, feeds, given_names)
                )
            self._last = plan
            try:
                if self._replay is None:
                    fetched, last = run_plan(plan, program, feeds, scope)
                else:
                    fetched, last = self._replay.run(plan, program, feeds, scope, way if key is not None else None)
                break
            except StateMovedError:
                if not left:
                    raise
        self._last = last
        if self._replay is not None and key is not None:
            self._replay.remember(key, stamp, plan, scope)
        if last is not plan:  # its rest was planned on the way
            self._warn(program, last, self._policy())
        return fetched

    def _plan(
        self, program: Program, feeds: dict[str, Tensor], fetches: tuple[str, ...],
        state: dict[str, tuple[Spec, Place]], trains: bool, check: Callable[[], None],
    ) -> Plan:  # fmt: skip
        now = generation()
        if now != self._generation:
            self._plans.clear()
            self._generation = now
        wanted = self._policy()
        if self._replay is not None and not one_by_one() and trains:
            wanted = replace(wanted, repeated=True)
        given = tuple((name, tensor.spec, tensor.place) for name, tensor in feeds.items())
        inplace = not one_by_one()
        key = (program.serial, program.edits, _sizes(program), given, fetches, tuple(state.items()), wanted, inplace)

        def make() -> Plan:
            check()
            return plan_block(
                program, self.place, {name: (spec, place) for name, spec, place in given},  # type: ignore[misc]
                state, fetches, wanted, inplace=inplace,
            )  # fmt: skip

        before = self._plans.misses
        plan = self._plans.get(key, make)
        if self._plans.misses != before:
            self._warn(program, plan, wanted)
        return plan

    def _warn(self, program: Program, plan: Plan, wanted: Policy) -> None:
        if wanted.fallback != "warn" or program in self._warned:
            return
        fallen = [line.op.type for line in plan.lines if line.lacks_kernel]
        if fallen:
            self._warned.add(program)
            kinds = ", ".join(sorted(set(fallen)))
            warnings.warn(
                f"{len(fallen)} of {len(plan.lines)} operators have no kernel for {self.place} "
                f"and run on {self._host}: {kinds}. "
                "fluid.explain shows why; fluid.set_fallback('allow') silences this, 'error' forbids it",
                FallbackWarning,
                stacklevel=6,
            )

    def explain_last(self) -> Report:
        """What the last run did: the plan that it ran.

        Raises
        ------
        ProgramError
            If nothing was run yet.
        """
        plan = self._last
        if plan is None and self._replay is not None:
            plan = self._replay.last_plan
        if plan is None:
            raise ProgramError("this executor has run nothing yet")
        bound = self._replay.last if self._replay is not None else None
        memory = bound.memory if bound is not None and bound.plan is plan else None
        return Report(plan, lambda: memory)

    @property
    def memory_plan(self) -> MemoryPlan:
        """Where the temporaries of the last run lie: bytes, live ranges, offsets, and a picture.

        Raises
        ------
        ProgramError
            If nothing was bound to memory yet, or the executor is interpreted.
        """
        if self._replay is None:
            raise ProgramError("an interpreted executor has no memory plan: it runs operator by operator")
        if self._replay.last is None:
            raise ProgramError(
                "there is no memory plan yet: nothing of it was bound to memory yet, as dims are known at the first run"
                "\n  Do: run it once"
            )
        return self._replay.last.memory

    def sources(self) -> dict[str, str]:
        """Return the texts of all that the last run ran, by the names of their files.

        As ``Computation.sources``: ``steps.txt``, ``call.py``, ``program.py`` on the host, and ``kernels/``.

        Raises
        ------
        ProgramError
            If nothing was run yet, or all of it ran by the interpreter, as startup programs do.
        """
        from fluidlite.transformers.sources import sources_of

        last = self._replay.last if self._replay is not None else None
        return sources_of(last, list(last.plan.feeds) if last is not None else ())

    def write_sources(self, folder: str | Path) -> list[Path]:
        """Write :meth:`sources` to files in a folder, which is made if it is not there; return their paths."""
        from fluidlite.transformers.sources import write

        return write(self.sources(), folder)

    def cache_info(self) -> CacheReport:
        """What the caches tell of themselves: this executor's, and those of its place, which others share.

        From the outside in, "bound programs" (programs with their memory), "plans", "programs" (after passes),
        "prepared kernels" and "compiled kernels" of this thread's context, and what the device keeps itself
        ("kernels on disk"). What is found in one is not looked for in the next; a call of what ran last asks none.
        """
        found = CacheReport()
        if self._replay is not None and self._compiled is not None:
            found["bound programs"] = self._replay.info()
            found["plans"] = self._plans.info()
            found["programs"] = self._compiled.info()
        else:
            found["plans"] = self._plans.info()
        found.update((self._context or get_context(self.place)).cache_info())
        return found

    def close(self) -> None:
        """Let go of cached plans and their memory; runs raise afterwards."""
        self._plans.clear()
        if self._replay is not None:
            self._replay.clear()
        if self._compiled is not None:
            self._compiled.clear()
        self.closed = True
        if self._owns_context and self._context is not None:
            self._context.close()


def _context_of(place: Place, context: Context | int | None) -> Context | None:
    """The context that an executor is given, or that it has on a queue of its place."""
    if context is None or (isinstance(context, Context) and context.place == place and not context.closed):
        return context
    if not isinstance(context, Context):
        return new_context(place, context)
    why = "it is closed" if context.place == place else f"it is one of {context.place}"
    raise PlaceError(f"an executor on {place} cannot use {context!r}: {why}")


def _state_of(program: Program) -> tuple[tuple[str, ...], bool]:
    """Names of the persistable variables that a program uses, and whether it writes over some."""
    used = {n for block in program.blocks for op in block.ops for n in (*op.input_arg_names, *op.output_arg_names)}
    return tuple(v.name for v in program.list_vars() if v.persistable and v.name in used), updates(program)


def _sizes(program: Program) -> tuple[int, ...]:
    """Operators of each block: they tell of edits of ``block.ops`` itself."""
    return tuple([len(block.ops) for block in program.blocks])


def _hint(program: Program, name: str) -> str:
    base = program.global_block().find_var(name.removesuffix(GRAD))
    if name.endswith(GRAD) and base is not None and base.stop_gradient:
        return f"; {base.name!r} has stop_gradient=True"
    near = difflib.get_close_matches(name, program.global_block().vars, n=2)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _fetch_names(program: Program, fetch_list: Any) -> tuple[str, ...]:
    if fetch_list is None:
        return ()
    items = (
        [fetch_list]
        if isinstance(fetch_list, (str, Variable))
        else listed("fetch_list", fetch_list, "variables or names", FetchError)
    )
    names = []
    for item in items:
        name = item if isinstance(item, str) else getattr(item, "name", None)
        if not isinstance(name, str):
            equal = " (== on variables is Python's; use layers.equal)" if isinstance(item, bool) else ""
            raise FetchError(f"fetch_list holds {item!r}; expected variables or names{equal}")
        if program.global_block().find_var(name) is None:
            raise FetchError(f"fetch_list names {name!r}, which the program does not have{_hint(program, name)}")
        names.append(name)
    return tuple(names)
