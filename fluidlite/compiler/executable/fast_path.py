"""The fast path of an executable: arguments of a known signature are copied in, and results out."""

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
from fluidlite.compiler.run_errors import fail, raise_late
from fluidlite.compiler.selection.choice_cache import generation
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.program.program import Program
from fluidlite.program.scope import Scope
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec
from fluidlite.tensor.transfer import borrow


class Guards:
    """What a fast path asks where a look at the cache version is not enough.

    ``version``: in which all was seen to be as it was when the fast path was made.
    """

    def __init__(self, executable: Executable, scope: Scope) -> None:
        self.version = cache_version.current  # before the look
        self.executable = executable
        (self._context,) = executable.contexts
        self._scope = ref(scope)
        self._world = generation(), policy()

    def unchanged(self) -> bool:
        """Look at registries, policy, observers, the device and the scope."""
        now, executable, scope = cache_version.current, self.executable, self._scope()
        if scope is None or self._world != (generation(), policy()) or observers():
            return False
        if executable.timed is not (timer() is not None):
            return False
        if arenas_of(executable.plan.places) != executable.arenas:
            return False
        if self._context.closed or self._context is not get_context(executable.plan.place):
            return False
        if not executable.in_turn(scope) or not executable.valid(scope):  # once it has its turn, memory stays
            return False
        self.version = now
        return True

    def valid(self) -> bool:
        """Look at state, tensor by tensor."""
        scope = self._scope()
        return scope is not None and self.executable.valid(scope)

    def raise_late(self) -> None:
        """Raise what kernels have recorded, if they have."""
        raise_late(self.executable.frame, [self._context])

    def fail(self, error: BaseException, at: int) -> None:
        """Forget what a failed run recorded; name the operator of the action that failed, if one did."""
        self._context.forget_late()
        if at >= 0 and isinstance(error, Exception):
            fail(error, self.executable.owners[at], self.executable.frame)


class FastPath:
    """A function made for one executable on the host's memory, which looks at nothing that did not change.

    ``executable``: one for which :func:`fast_path_of` has no objection.
    ``call``: runs it; returns None, and has done nothing, where a guard fails; the caller takes the slow path.
    """

    def __init__(self, executable: Executable, form: CallSignature, names: dict[str, Any], key: Any) -> None:
        self.executable = executable
        self.form = form
        self.key = key
        self.source, code = texts.of(form)
        exec(code, names)
        self.call: Callable[..., Any] = names.pop("call")

    @property
    def open(self) -> bool:
        """Whether it can be used."""
        return self.call is not _gone

    def close(self) -> None:
        """Let go of the memory, which is another's now: calls take the slow path."""
        self.call = _gone


def _gone(*args: Any) -> None:
    """A fast path whose memory is gone: its guard always fails, and the caller takes the slow path."""


class _NoFastPath(FastPath):
    def __init__(self) -> None:
        self.source, self.key, self.call = "", None, _gone


NO_FAST_PATH: FastPath = _NoFastPath()
"""Stands where there is none: its guard always fails."""


@dataclass(frozen=True)
class Signature:
    """How a fast path is called, and what it gives.

    ``key``: under which fast paths that are called alike are kept.
    ``arguments``: the feeds, in the order of a call's arguments.
    ``program``: an executor's, before passes: it is called with a program, feed, fetch_list and scope. Without one it
    is called with a tuple of arguments.
    """

    key: Any
    arguments: tuple[str, ...]
    lock: Any = None
    alone: bool = False
    program: Program | None = None
    fetches: tuple[str, ...] = ()


def fast_path_of(
    executable: Executable, scope: Scope, called: Signature, latest: Latest, copy: bool = True
) -> FastPath | None:
    """Return the fast path of an executable, or None where each call has to look something up.

    ``latest``: is told when it runs.
    """
    plan, program = executable.plan, called.program
    if executable.stage or plan.pending is not None or len(executable.contexts) != 1 or not executable.attached:
        return None
    (context,) = executable.contexts
    if not context.unit.info.host or context.xp is None or not context.array.eager:
        return None
    if any([isinstance(step, Control) for step in plan.steps]):  # it may call back
        return None
    if set(called.arguments) != set(plan.feeds) or any(spec.lod for spec in plan.feeds.values()):
        return None
    if any([key != name for name, key in plan.feed_keys.items()]):
        return None  # fed in place of state: the text would have to tell the two apart
    if any(name not in executable.fixed and name not in executable.loose_feeds for name in called.arguments):
        return None
    ways = tuple([_leaves(executable, key, copy) for _, key, _, spec in plan.fetches if not spec.lod])
    if "" in ways or len(ways) != len(plan.fetches):
        return None
    form = CallSignature(
        tuple([(name, name not in executable.fixed) for name in called.arguments]),
        ways,
        tuple([(name, written) for name, _, written in _watched(executable, scope)]),
        tuple([_kind(action) for action in executable.actions]),
        called.fetches if program is not None else None,
        called.alone and len(ways) == 1,
        called.lock is not None,
        executable.resettable,
        executable.timed,
        bool(executable.written),
    )
    names = _names_of_run(executable, scope, latest)
    if called.lock is not None:
        names |= {"acquire_mine": called.lock.acquire, "release_mine": called.lock.release}
    if program is not None:
        names |= _names_of_program(program, called.fetches)
    _name_arguments(names, executable, called.arguments)
    _name_state(names, _watched(executable, scope))
    _name_actions(names, executable)
    _name_results(names, executable, ways)
    made = FastPath(executable, form, names, called.key)
    executable.fast_path = ref(made)
    return made


def host_array(tensor: Tensor, spec: Spec, context: Context) -> Any:
    """The array of a tensor that a run can read as it is, without waiting for anybody; None: it cannot."""
    allocation = tensor.allocation
    if tensor.spec is not spec or not tensor.contiguous or allocation is None or allocation.block is None:
        return None
    if allocation.context is not context or allocation.sharing is not None or not allocation.lasting:
        return None
    return tensor.native()


def _names_of_run(executable: Executable, scope: Scope, latest: Latest) -> dict[str, Any]:
    (context,) = executable.contexts
    return {
        "act": executable.act,
        "apart": executable.written.apart,
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
        "storage": executable.begun,
        "thread": get_ident(),
        "timed_run": executable.timed_run,
        "Tensor": Tensor,
        "watch": Guards(executable, scope),
    }


def _names_of_program(program: Program, fetches: Sequence[str]) -> dict[str, Any]:
    block = program.global_block()
    return {
        "edits": program.edits,
        "name_of": name_of,
        **{f"fetch{i}_variable": block.find_var(name) for i, name in enumerate(fetches)},
    }


def _leaves(executable: Executable, key: str, copy: bool) -> str:
    """How a result leaves; "" if that is not known before."""
    if key in executable.fixed:
        return "" if not executable.fixed[key].contiguous else COPIED if copy else VIEWED
    life = executable.live_ranges.of.get(key)
    return OWNED if life is not None and life.handed_over else ""


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


def _watched(executable: Executable, scope: Scope) -> list[tuple[str, Tensor, bool]]:
    """The state that others may change: it is looked at in each call."""
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


def _name_results(names: dict[str, Any], executable: Executable, ways: Sequence[str]) -> None:
    copies = copied = 0
    for i, ((_, key, _, spec), passing) in enumerate(zip(executable.plan.fetches, ways, strict=True)):
        if passing == OWNED:
            names[f"result{i}_key"] = key
        else:
            array = names[f"result{i}_at"] = executable.fixed[key].native().view()
            if passing == VIEWED:
                array.flags.writeable = False
        if passing != VIEWED:
            copies += spec.nbytes > 0
            copied += spec.nbytes
    names |= {"copies": copies, "copied": copied}
