"""The Executor: feeds, a plan from the cache, a run, fetches."""

from __future__ import annotations

import difflib
import threading
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fluidlite.base.errors import FallbackWarning, FetchError, ProgramError
from fluidlite.executor.feeds import feed_tensors
from fluidlite.framework.choose import generation
from fluidlite.framework.explain import Report
from fluidlite.framework.interpreter import run_plan
from fluidlite.framework.observe import observers
from fluidlite.framework.opdef import GRAD
from fluidlite.framework.plan import Plan
from fluidlite.framework.planner import plan_block
from fluidlite.framework.policy import FALLBACKS, Policy, check_libraries, policy
from fluidlite.framework.program import Program, default_main_program
from fluidlite.framework.scope import Scope, global_scope
from fluidlite.framework.spec import Spec
from fluidlite.framework.tensor import Tensor
from fluidlite.framework.transfer import borrow, contiguous
from fluidlite.framework.variable import Variable
from fluidlite.platform.devices import devices
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.platform.pool import get_context

if TYPE_CHECKING:  # imported when an executor needs them: they are a fifth of the time of the import
    from fluidlite.transformers.bound import Fetched
    from fluidlite.transformers.compiled import CompiledPrograms
    from fluidlite.transformers.passes import GraphPass
    from fluidlite.transformers.replay import Replay

MODES = ("interpreted", "compiled")
DEFAULT_MODE = "interpreted"
"""The mode of executors that are not told one."""
_MOST_PLANS = 256


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

    Raises
    ------
    PlaceError, DeviceUnavailable
        With the root cause, if the place cannot be used.
    """

    def __init__(
        self,
        place: PlaceLike = "cpu",
        libraries: Mapping[str, Sequence[str]] | None = None,
        fallback: str | None = None,
        mode: str | None = None,
        passes: Iterable[GraphPass] | None = None,
    ) -> None:
        self.place: Place = devices.unit(place).place
        get_context(self.place)
        self._host = devices.host()
        mode = DEFAULT_MODE if mode is None else mode
        if mode not in MODES:
            raise ProgramError(f"mode is {mode!r}; expected one of {', '.join(MODES)}")
        if fallback is not None and fallback not in FALLBACKS:
            raise ProgramError(f"fallback is {fallback!r}; expected one of {', '.join(FALLBACKS)}")
        check_libraries(name for names in (libraries or {}).values() for name in names)
        self.mode = mode
        self._replay: Replay | None = None
        self._compiled: CompiledPrograms | None = None
        if mode == "compiled":
            from fluidlite.transformers.compiled import CompiledPrograms
            from fluidlite.transformers.passes import PassList, default_passes
            from fluidlite.transformers.replay import Replay

            self._replay = Replay()
            given = None if passes is None else PassList(passes)
            self._compiled = CompiledPrograms(default_passes if given is None else lambda: given, self.place)
        self._libraries = dict(libraries or {})
        self._fallback = fallback
        self._plans: OrderedDict[tuple[Any, ...], Plan] = OrderedDict()
        self._generation: tuple[int, ...] = ()
        self._warned: set[int] = set()
        self._last: Plan | None = None
        self._state_names: dict[tuple[int, int], tuple[str, ...]] = {}
        self._lock = threading.Lock()
        self.closed = False

    def _policy(self) -> Policy:
        base = policy()
        if self._libraries:
            base = base.with_libraries(self._libraries)
        if self._fallback is not None:
            base = Policy(self._fallback, base.libraries, base.exclude)
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
        if self.closed:
            raise ProgramError("the executor is closed")
        program = program if program is not None else default_main_program()
        if not isinstance(program, Program):
            raise ProgramError(f"Executor.run takes a Program, got {type(program).__name__}")
        if isinstance(feed, (list, tuple)):
            if len(feed) > 1:
                raise ProgramError(
                    f"the feed is a list of {len(feed)} mappings; an Executor has one place, give one mapping"
                )
            feed = feed[0] if feed else None
        if feed is not None and not isinstance(feed, Mapping):
            raise ProgramError(f"the feed is {type(feed).__name__}; expected a mapping of names to arrays")
        scope = scope if scope is not None else global_scope()
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
        if self._replay is not None and not observers():
            given = tuple([(name, tensor.spec, tensor.place) for name, tensor in feeds.items()])
            key = (program.serial, program.edits, _sizes(program), program.random_seed, given, names,
                   get_context(self.place))  # fmt: skip
            stamp = generation(), self._policy()
            again = self._replay.again(key, stamp, feeds, scope)
            if again is not None:
                fetched, self._last = again
                return fetched
        with self._lock:
            if self._compiled is not None and key is not None:
                program, names = self._compiled.get(program, names)
            plan = self._plan(program, feeds, names, scope)
        self._last = plan
        if self._replay is None:
            fetched, self._last = run_plan(plan, program, feeds, scope)
        else:
            fetched, self._last = self._replay.run(plan, program, feeds, scope)
            if key is not None:
                self._replay.remember(key, stamp, plan, scope)
        if self._last is not plan:  # its rest was planned on the way
            self._warn(program, self._last, self._policy())
        return fetched

    def _plan(self, program: Program, feeds: dict[str, Tensor], fetches: tuple[str, ...], scope: Scope) -> Plan:
        now = generation()
        if now != self._generation:
            self._plans.clear()
            self._generation = now
        wanted = self._policy()
        state: list[tuple[str, Spec, Place]] = []
        names = self._persistables(program)
        for name in dict.fromkeys((*names, *fetches)):
            if name in fetches and name not in names and not program.global_block().var(name).persistable:
                continue
            variable = scope.find_var(name)
            if variable is not None and variable.tensor.allocation is not None:
                tensor = variable.tensor
                if not tensor.contiguous:
                    tensor.share_data_with(contiguous(tensor))
                state.append((name, tensor.spec, tensor.place))  # type: ignore[arg-type]
        given = tuple((name, tensor.spec, tensor.place) for name, tensor in feeds.items())
        inplace = not observers()
        key = (program.serial, program.edits, _sizes(program), given, fetches, tuple(state), wanted, inplace)
        plan = self._plans.get(key)
        if plan is None:
            plan = plan_block(
                program, self.place, {name: (spec, place) for name, spec, place in given},  # type: ignore[misc]
                {name: (spec, place) for name, spec, place in state}, fetches, wanted, inplace=inplace,
            )  # fmt: skip
            self._plans[key] = plan
            if len(self._plans) > _MOST_PLANS:
                self._plans.popitem(last=False)
            self._warn(program, plan, wanted)
        else:
            self._plans.move_to_end(key)
        return plan

    def _persistables(self, program: Program) -> tuple[str, ...]:
        key = (program.serial, program.edits)
        names = self._state_names.get(key)
        if names is None:
            if len(self._state_names) > _MOST_PLANS:
                self._state_names.clear()
            used = {
                n for block in program.blocks for op in block.ops for n in (*op.input_arg_names, *op.output_arg_names)
            }
            names = tuple(v.name for v in program.list_vars() if v.persistable)
            self._state_names[key] = names = tuple(n for n in names if n in used)
        return names

    def _warn(self, program: Program, plan: Plan, wanted: Policy) -> None:
        if wanted.fallback != "warn" or program.serial in self._warned:
            return
        fallen = [line.op.type for line in plan.lines if line.how == "fallback"]
        if fallen:
            self._warned.add(program.serial)
            kinds = ", ".join(sorted(set(fallen)))
            warnings.warn(
                f"{len(fallen)} of {len(plan.lines)} operators have no kernel for {self.place} "
                f"and run on {self._host}: {kinds}. "
                "fluid.explain shows why; fluid.set_fallback('allow') silences this, 'error' forbids it",
                FallbackWarning,
                stacklevel=5,
            )

    def explain_last(self) -> Report:
        """What the last run did: the plan that it ran.

        Raises
        ------
        ProgramError
            If nothing was run yet.
        """
        if self._last is None:
            raise ProgramError("this executor has run nothing yet")
        return Report(self._last)

    def close(self) -> None:
        """Let go of cached plans and their memory; runs raise afterwards."""
        self._plans.clear()
        if self._replay is not None:
            self._replay.clear()
        if self._compiled is not None:
            self._compiled.clear()
        self.closed = True


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
    items = [fetch_list] if isinstance(fetch_list, (str, Variable)) else list(fetch_list)
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
