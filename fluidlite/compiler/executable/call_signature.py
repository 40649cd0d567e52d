"""Code generation of fast paths: a Python function that checks guards, copies in, runs, and copies out.

The text depends only on the structure of a program, such as its number of arguments. Dims, arrays and callables are
globals of the function. So programs that differ only in sizes share one compiled text.
"""

from __future__ import annotations

import linecache
import re
from dataclasses import dataclass
from itertools import count
from types import CodeType

from fluidlite.base.lru_cache import LRUCache

MAX_CACHED_TEXTS = 256
"""Maximum number of compiled texts in the cache."""
MAX_UNROLLED_CHECKS = 32
"""Maximum number of state tensors, or of actions, that have lines of their own; more are handled by one call."""

COPIED, VIEWED, OWNED = "copied", "viewed", "owned"
"""Kinds of results: a copy of static memory, a view of static memory, or donated memory."""
CHAIN, MARKING, CALL = "chain", "marking chain", "call"
"""Kinds of actions: native launches, native launches that may set the status word, or any callable."""


@dataclass(frozen=True)
class CallSignature:
    """The inputs of the code generator, which are the key of a compiled text.

    ``feeds``: the arguments in order, and whether each is read at the caller's address.
    ``state``: variables, and whether each is written.
    ``fetched``: the fetched names of a function with the arguments of ``Executor.run``; None: it takes a tuple.
    ``alone``: the single result is returned without a list.
    ``locked``: the caller has a lock, which the function acquires.
    ``queued``: the queue is locked even if nothing is written, since its owner may reset the memory.
    ``timed``: a timer reads clocks between the actions.
    ``writes``: it writes state; feeds that alias this state are copied.
    """

    feeds: tuple[tuple[str, bool], ...]
    results: tuple[str, ...]
    state: tuple[tuple[str, bool], ...]
    actions: tuple[str, ...]
    fetched: tuple[str, ...] | None = None
    alone: bool = False
    locked: bool = False
    queued: bool = False
    timed: bool = False
    writes: bool = False

    @property
    def native(self) -> bool:
        """Whether all actions are native launches."""
        return CALL not in self.actions

    @property
    def has_dynamic_memory(self) -> bool:
        """Whether some value has a dynamic address."""
        return any(is_dynamic for _, is_dynamic in self.feeds) or OWNED in self.results

    def arguments(self) -> list[str]:
        """Return the names of the arguments as Python identifiers."""
        return [f"arg{i}_" + re.sub(r"\W", "_", name, flags=re.ASCII)[:40] for i, (name, _) in enumerate(self.feeds)]


def text_of(form: CallSignature) -> str:
    """Return the text of the function ``call``; it returns None without effects when a guard fails."""
    lines = _executor_head(form) if form.fetched is not None else _tuple_head(form)
    return "\n".join([*lines, *_locked_body(form), ""])


def _tuple_head(form: CallSignature) -> list[str]:
    names = form.arguments()
    if not names:
        return ["def call(args):", "    if args:", "        return None"]
    lines = [
        "def call(args):",
        "    try:",
        f"        {', '.join(names)}{',' if len(names) == 1 else ''} = args",
        "    except ValueError:  # another number of them",
        "        return None",
    ]
    return lines + _argument_guards(form)


def _executor_head(form: CallSignature) -> list[str]:
    assert form.fetched is not None
    lines = [
        "def call(program, feed, fetch_list, scope):",
        "    if scope_of() is not scope or program.edits != edits:",
        "        return None",
    ]
    if form.fetched:
        fetches = [f"fetch{i}" for i in range(len(form.fetched))]
        lines += [
            f"    if type(fetch_list) is not list or len(fetch_list) != {len(fetches)}:",
            "        return None",
            f"    {', '.join(fetches)}{',' if len(fetches) == 1 else ''} = fetch_list",
        ]
        for name, variable in zip(fetches, form.fetched, strict=True):
            lines += [
                f"    if {name} is not {name}_variable and name_of({name}) != {variable!r}:",
                "        return None",
            ]
    else:
        lines += ["    if fetch_list:", "        return None"]
    if not form.feeds:
        return [*lines, "    if feed:", "        return None"]
    lines += [f"    if not isinstance(feed, dict) or len(feed) != {len(form.feeds)}:", "        return None"]
    for name, (variable, _) in zip(form.arguments(), form.feeds, strict=True):
        lines.append(f"    {name} = feed.get({variable!r})")
    return lines + _argument_guards(form)


def _argument_guards(form: CallSignature) -> list[str]:
    lines = []
    for i, (name, (_, is_dynamic)) in enumerate(zip(form.arguments(), form.feeds, strict=True)):
        tests = [f"type({name}) is not ndarray", f"{name}.shape != arg{i}_dims", f"{name}.dtype is not arg{i}_dtype"]
        if is_dynamic:
            tests.append(f"not {name}.flags.c_contiguous")
        lines += [f"    if type({name}) is Tensor:", f"        {name} = host_array({name}, arg{i}_spec, context)"]
        lines += [f"    if {' or '.join(tests)}:", "        return None"]
    return lines


def _state_guard(form: CallSignature) -> list[str]:
    """Return the lines that check that state has not moved."""
    if len(form.state) > MAX_UNROLLED_CHECKS:
        return ["        if not watch.valid():", "            return None"]
    lines = []
    for i, (variable, _) in enumerate(form.state):
        name = f"state{i}"
        lines += [
            f"        if ({name}.allocation is not {name}_allocation or {name}_allocation.block is not {name}_block",
            f"                or {name}.spec is not {name}_spec or {name}._byte_offset != {name}_offset",
            f"                or {name}._strides is not None):  # {variable!r}",
            "            return None",
        ]
    return lines


def _locked_body(form: CallSignature) -> list[str]:
    """Return the lines that acquire locks, check the guards and run."""
    locks = ["mine"] if form.locked else []
    if not form.locked or form.state or not form.native or form.queued:  # other users of the state lock the queue
        locks.append("queue")
    lines = ["    if get_ident() != thread:", "        return None", *(f"    acquire_{name}()" for name in locks)]
    lines += [
        "    try:",
        "        if storage.busy or cache_version.current is not watch.version and not watch.unchanged():",
        "            return None",
        *_state_guard(form),
        "        storage.busy = True",
        "        latest.executable = executable",
        "        at = -1",
        "        try:",
        *[f"            {line}" for line in _timed_run(form)],
        "        except BaseException as error:",
        "            watch.fail(error, at)",
        "            raise",
        "        finally:",
        "            storage.busy = False",
        *[f"            {line}" for line in _end_of_run(form)],
        "    finally:",
    ]
    return [*lines, *(f"        release_{name}()" for name in reversed(locks))]


def _timed_run(form: CallSignature) -> list[str]:
    lines = _run(form)
    return ["with timed_run():", *(f"    {line}" for line in lines)] if form.timed else lines


def _run(form: CallSignature) -> list[str]:
    lines = [] if form.native else ["frame.scope = scope" if form.fetched is not None else "frame.scope = scope_of()"]
    for i, (name, (variable, is_dynamic)) in enumerate(zip(form.arguments(), form.feeds, strict=True)):
        if is_dynamic:
            fed = f"borrow({name}, arg{i}_spec, context)"
            lines.append(f"frame.values[{variable!r}] = " + (f"apart({fed})" if form.writes else fed))
        else:
            lines.append(f"arg{i}_at[...] = {name}")
    work = _actions(form)
    lines += work if form.native else ["with activate():", *[f"    {line}" for line in work]]
    if not form.native or MARKING in form.actions:
        lines += ["at = -1", "if context.may_have_error:", "    watch.raise_late()"]
    return lines + _results(form)


def _actions(form: CallSignature) -> list[str]:
    if len(form.actions) > MAX_UNROLLED_CHECKS or form.timed:
        return ["act()"]
    lines = []
    for i, action in enumerate(form.actions):
        lines.append(f"at = {i}")
        if action == MARKING:
            lines.append("mark()")
        lines.append(f"action{i}()" if action == CALL else f"chain{i}.run()")
    if any(action != CALL for action in form.actions):
        lines.append("counts.launches += launches")
    return lines or ["pass"]


def _results(form: CallSignature) -> list[str]:
    exprs = {COPIED: "result{}_at.copy()", VIEWED: "result{}_at.view()", OWNED: "frame.values[result{}_key].numpy()"}
    results = [exprs[kind].format(i) for i, kind in enumerate(form.results)]
    counts = ["counts.copy_out += copies", "counts.bytes_out += copied"] if results else []
    return [*counts, f"return {results[0]}" if form.alone else f"return [{', '.join(results)}]"]


def _end_of_run(form: CallSignature) -> list[str]:
    if len(form.state) > MAX_UNROLLED_CHECKS or form.has_dynamic_memory or not form.native:
        return ["executable.end((executable,))"]
    return [f"state{i}_allocation.version += 1" for i, (_, written) in enumerate(form.state) if written]


class Texts:
    """A cache of compiled texts, each with a file name by which tracebacks show its lines."""

    _numbers = count(1)  # shared: the file names are unique in the process

    def __init__(self, max_entries: int = MAX_CACHED_TEXTS) -> None:
        self._codes: LRUCache[tuple[str, CodeType]] = LRUCache(max_entries, "fast paths", 16 << 20, self._forget)

    def of(self, form: CallSignature) -> tuple[str, CodeType]:
        return self._codes.get(form, lambda: self._make(form))

    def _make(self, form: CallSignature) -> tuple[str, CodeType]:
        text, name = text_of(form), f"<fluidlite fast path {next(self._numbers)}>"
        code = compile(text, name, "exec")
        linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
        return text, code

    @staticmethod
    def _forget(evicted: tuple[str, CodeType]) -> None:
        linecache.cache.pop(evicted[1].co_filename, None)


texts = Texts()
