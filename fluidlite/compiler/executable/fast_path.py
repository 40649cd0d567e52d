"""The fast path of an executable: copies arguments of one call signature in, runs the actions, copies results out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import Any
from weakref import ref

import numpy as np

from fluidlite.base.arguments import name_of
from fluidlite.base.dtypes import NUMPY
from fluidlite.base.invalidation import cache_version
from fluidlite.compiler.executable.call_signature import (
    CALL,
    CHAIN,
    COPIED,
    MARKING,
    OWNED,
    VIEWED,
    CallSignature,
    texts,
)
from fluidlite.compiler.executable.command_buffer import Launches
from fluidlite.compiler.executable.executable import Executable, Latest
from fluidlite.compiler.executable.linked_plan import arenas_of
from fluidlite.compiler.instrumentation import observers, timer
from fluidlite.compiler.planning.plan import Control
from fluidlite.compiler.policy import policy
from fluidlite.compiler.run_errors import fail, raise_deferred_errors
from fluidlite.compiler.selection.choice_cache import registry_versions
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.program.program import Program
from fluidlite.program.scope import Scope
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec
from fluidlite.tensor.transfer import borrow


class FastPathGuards:
    """The guards that a fast path checks if the cache version has changed.

    ``version``: the cache version at which all guards last held.
    """

    def __init__(self, executable: Executable, scope: Scope) -> None:
        self.version = cache_version.current  # before the checks
        self.executable = executable
        (self._context,) = executable.contexts
        self._scope = ref(scope)
        self._settings = registry_versions(), policy()

    def unchanged(self) -> bool:
        """Whether registries, policy, observers, timer, arenas, context and state are those that it was made for."""
        now, executable, scope = cache_version.current, self.executable, self._scope()
        if scope is None or self._settings != (registry_versions(), policy()) or observers():
            return False
        if executable.timed is not (timer() is not None):
            return False
        if arenas_of(executable.plan.places) != executable.arenas:
            return False
        if self._context.closed or self._context is not get_context(executable.plan.place):
            return False
        if not executable.can_use_state(scope) or not executable.valid(scope):  # in this order: then it stays valid
            return False
        self.version = now
        return True

    def valid(self) -> bool:
        """Whether the state of the scope is valid; checks every tensor."""
        scope = self._scope()
        return scope is not None and self.executable.valid(scope)

    def raise_late(self) -> None:
        """Raise a deferred error that kernels have recorded, if any."""
        raise_deferred_errors(self.executable.frame, [self._context])

    def fail(self, error: BaseException, at: int) -> None:
        """Drop deferred errors of a failed run; raise the error with the operator of action ``at``, if it is one."""
        self._context.drop_deferred_errors()
        if at >= 0 and isinstance(error, Exception):
            fail(error, self.executable.owners[at], self.executable.frame)


class FastPath:
    """A generated function that runs one executable on the host.

    ``executable``: one that :func:`fast_path_of` accepts.
    ``call``: runs it; returns None without effects when a guard fails; the caller then takes the slow path.
    """

    def __init__(self, executable: Executable, form: CallSignature, names: dict[str, Any], key: Any) -> None:
        self.executable = executable
        self.form = form
        self.key = key
        self.source, code = texts.of(form)
        exec(code, names)
        self.call: Callable[..., Any] = names.pop("call")

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return self.call is not _closed_call

    def close(self) -> None:
        """Drop references to memory that is freed: calls take the slow path from now on."""
        self.call = _closed_call


def _closed_call(*args: Any) -> None:
    """The call of a closed fast path: its guard always fails, and the caller takes the slow path."""


@dataclass(frozen=True)
class Signature:
    """How a fast path is called, and what it returns.

    ``key``: the key of its entry in the cache.
    ``arguments``: the feeds, in the order of a call's arguments.
    ``alone``: a single result is returned without a list.
    ``program``: the program of an executor, before passes: the fast path is called with program, feed, fetch_list and
    scope. None: it is called with a tuple of arguments.
    """

    key: Any
    arguments: tuple[str, ...]
    lock: Any = None
    alone: bool = False
    program: Program | None = None
    fetches: tuple[str, ...] = ()


def fast_path_of(
    executable: Executable, scope: Scope, signature: Signature, latest: Latest, copy: bool = True
) -> FastPath | None:
    """Return the fast path of an executable, or None if it does not fit a fast path.

    ``latest``: its ``executable`` is set when the fast path runs.
    """
    plan, program = executable.plan, signature.program
    if executable.stage or plan.pending is not None or len(executable.contexts) != 1 or not executable.attached:
        return None
    (context,) = executable.contexts
    if not context.unit.info.host or context.xp is None or not context.array.eager:
        return None
    if any([isinstance(step, Control) for step in plan.steps]):  # its body may call back
        return None
    if set(signature.arguments) != set(plan.feeds) or any(spec.lod for spec in plan.feeds.values()):
        return None
    if any([key != name for name, key in plan.feed_keys.items()]):
        return None  # a feed that replaces state: the text does not distinguish the two
    if any(name not in executable.fixed and name not in executable.dynamic_feeds for name in signature.arguments):
        return None
    result_kinds = tuple([_result_kind(executable, key, copy) for _, key, _, spec in plan.fetches if not spec.lod])
    if "" in result_kinds or len(result_kinds) != len(plan.fetches):
        return None
    form = CallSignature(
        tuple([(name, name not in executable.fixed) for name in signature.arguments]),
        result_kinds,
        tuple([(name, written) for name, _, written in _shared_state(executable, scope)]),
        tuple([_kind(action) for action in executable.actions]),
        signature.fetches if program is not None else None,
        signature.alone and len(result_kinds) == 1,
        signature.lock is not None,
        executable.uses_arena,
        executable.timed,
        bool(executable.written),
    )
    names = _names_of_run(executable, scope, latest)
    if signature.lock is not None:
        names |= {"acquire_mine": signature.lock.acquire, "release_mine": signature.lock.release}
    if program is not None:
        names |= _names_of_program(program, signature.fetches)
    _name_arguments(names, executable, signature.arguments)
    _name_state(names, _shared_state(executable, scope))
    _name_actions(names, executable)
    _name_results(names, executable, result_kinds)
    fast_path = FastPath(executable, form, names, signature.key)
    executable.fast_path = ref(fast_path)
    return fast_path


def host_array(tensor: Tensor, spec: Spec, context: Context) -> Any:
    """Return the array of a tensor if a run can read it in place, without waiting; else None."""
    allocation = tensor.allocation
    if tensor.spec is not spec or not tensor.contiguous or allocation is None or allocation.block is None:
        return None
    if allocation.context is not context or allocation.sharing is not None or not allocation.is_permanent:
        return None
    return tensor.native()


def _names_of_run(executable: Executable, scope: Scope, latest: Latest) -> dict[str, Any]:
    (context,) = executable.contexts
    return {
        "act": executable.act,
        "apart": executable.written.without_alias,
        "acquire_queue": context.lock.acquire,
        "activate": context.raw.activate,
        "borrow": borrow,
        "executable": executable,
        "context": context,
        "counts": context.counts,
        "cache_version": cache_version,
        "frame": executable.frame,
        "get_ident": get_ident,
        "host_array": host_array,
        "latest": latest,
        "mark": context.status_span,
        "ndarray": np.ndarray,
        "release_queue": context.lock.release,
        "scope_of": ref(scope),
        "storage": executable.main_storage,
        "thread": get_ident(),
        "timed_run": executable.timed_run,
        "Tensor": Tensor,
        "watch": FastPathGuards(executable, scope),
    }


def _names_of_program(program: Program, fetches: Sequence[str]) -> dict[str, Any]:
    block = program.global_block()
    return {
        "edits": program.edits,
        "name_of": name_of,
        **{f"fetch{i}_variable": block.find_var(name) for i, name in enumerate(fetches)},
    }


def _result_kind(executable: Executable, key: str, copy: bool) -> str:
    """Return COPIED, VIEWED or OWNED for a result; "" if that differs from call to call."""
    if key in executable.fixed:
        return "" if not executable.fixed[key].contiguous else COPIED if copy else VIEWED
    live_range = executable.live_ranges.of.get(key)
    return OWNED if live_range is not None and live_range.is_donated else ""


def _kind(action: Any) -> str:
    if not isinstance(action, Launches):
        return CALL
    return MARKING if action.marks else CHAIN


def _name_arguments(names: dict[str, Any], executable: Executable, arguments: Sequence[str]) -> None:
    for i, name in enumerate(arguments):
        spec = executable.plan.feeds[name]
        names |= {f"arg{i}_dims": spec.dims, f"arg{i}_dtype": np.dtype(NUMPY[spec.dtype]), f"arg{i}_spec": spec}
        if name in executable.fixed:
            names[f"arg{i}_at"] = executable.fixed[name].native()


def _shared_state(executable: Executable, scope: Scope) -> list[tuple[str, Tensor, bool]]:
    """Return the state that others may replace, which each call checks."""
    return [each for each in executable.state if each[0] not in scope.private]


def _name_state(names: dict[str, Any], state: Sequence[tuple[str, Tensor, bool]]) -> None:
    for i, (_, tensor, _) in enumerate(state):
        assert tensor.allocation is not None
        names[f"state{i}"] = tensor
        names |= {f"state{i}_allocation": tensor.allocation, f"state{i}_spec": tensor.spec}
        names |= {f"state{i}_block": tensor.allocation.block, f"state{i}_offset": tensor.byte_offset}


def _name_actions(names: dict[str, Any], executable: Executable) -> None:
    launches = 0
    for i, action in enumerate(executable.actions):
        names[f"action{i}"] = action
        if isinstance(action, Launches):
            names[f"chain{i}"] = action.chain
            launches += action.counted
    names["launches"] = launches


def _name_results(names: dict[str, Any], executable: Executable, result_kinds: Sequence[str]) -> None:
    num_copies = copied_bytes = 0
    for i, ((_, key, _, spec), result_kind) in enumerate(zip(executable.plan.fetches, result_kinds, strict=True)):
        if result_kind == OWNED:
            names[f"result{i}_key"] = key
        else:
            array = names[f"result{i}_at"] = executable.fixed[key].native().view()
            if result_kind == VIEWED:
                array.flags.writeable = False
        if result_kind != VIEWED:
            num_copies += spec.nbytes > 0
            copied_bytes += spec.nbytes
    names |= {"copies": num_copies, "copied": copied_bytes}
