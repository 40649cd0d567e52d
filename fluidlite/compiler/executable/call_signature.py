"""The text of a fast path through an executable: a Python function that looks, copies in, runs, copies out.

Only the form of a program is in the text, such as how many arguments it has; dims, arrays and callables are names that
get their values beside it. So programs that differ in sizes share one compiled text.
"""

from __future__ import annotations

import linecache
import re
from dataclasses import dataclass
from itertools import count
from types import CodeType

from fluidlite.base.lru_cache import LRUCache

MOST_TEXTS = 256
"""Compiled texts that are kept."""
MOST_LINES = 32
"""Tensors of state that are looked at, or actions that are called, each by a line of its own."""

COPIED, VIEWED, OWNED = "copied", "viewed", "owned"
"""How a result leaves: copied from its place, as a view of that, or as memory that it alone has."""
CHAIN, MARKING, CALL = "chain", "marking chain", "call"
"""What an action is: native launches, such that may set the status word, or any callable."""


@dataclass(frozen=True)
class CallSignature:
    """What the text depends on.

    ``feeds``: the arguments in order, and whether each is read where the caller has it.
    ``state``: variables, and whether each is written.
    ``fetched``: None: the function takes a tuple of arguments. Else it takes what ``Executor.run`` does, and these are
    the names that are fetched.
    ``alone``: the one result comes by itself, not in a list.
    ``locked``: the caller has a lock of its own.
    ``queued``: the queue is held though nothing is written: memory may be taken back by who holds it.
    ``timed``: a timer reads clocks between the actions.
    ``writes``: it writes state, so that what is fed from that is copied.
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
        """Whether nothing runs but native launches."""
        return CALL not in self.actions

    @property
    def loose(self) -> bool:
        """Whether memory of some value is another at each call."""
        return any(loose for _, loose in self.feeds) or OWNED in self.results

    def arguments(self) -> list[str]:
        """Names of the arguments that Python takes."""
        return [f"arg{i}_" + re.sub(r"\W", "_", name, flags=re.ASCII)[:40] for i, (name, _) in enumerate(self.feeds)]


def text_of(form: CallSignature) -> str:
    """Write the function ``call``, which does nothing and returns None where a guard fails: the slow path is next."""
    lines = _executor_head(form) if form.fetched is not None else _head(form)
    return "\n".join([*lines, *_locked(form), ""])


def _head(form: CallSignature) -> list[str]:
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
    return lines + _looks(form)


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
    return lines + _looks(form)


def _looks(form: CallSignature) -> list[str]:
    lines = []
    for i, (name, (_, loose)) in enumerate(zip(form.arguments(), form.feeds, strict=True)):
        tests = [f"type({name}) is not ndarray", f"{name}.shape != arg{i}_dims", f"{name}.dtype is not arg{i}_dtype"]
        if loose:
            tests.append(f"not {name}.flags.c_contiguous")
        lines += [f"    if type({name}) is Tensor:", f"        {name} = host_array({name}, arg{i}_spec, context)"]
        lines += [f"    if {' or '.join(tests)}:", "        return None"]
    return lines


def _state_guard(form: CallSignature) -> list[str]:
    """Look whether state is where it was."""
    if len(form.state) > MOST_LINES:
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


def _locked(form: CallSignature) -> list[str]:
    """Hold what a run holds, look at the world, run."""
    locks = ["mine"] if form.locked else []
    if not form.locked or form.state or not form.native or form.queued:  # others hold the queue to take their turn
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
        *[f"            {line}" for line in _ended(form)],
        "    finally:",
    ]
    return [*lines, *(f"        release_{name}()" for name in reversed(locks))]


def _timed_run(form: CallSignature) -> list[str]:
    lines = _run(form)
    return ["with timed_run():", *(f"    {line}" for line in lines)] if form.timed else lines


def _run(form: CallSignature) -> list[str]:
    lines = [] if form.native else ["frame.scope = scope" if form.fetched is not None else "frame.scope = scope_of()"]
    for i, (name, (variable, loose)) in enumerate(zip(form.arguments(), form.feeds, strict=True)):
        if loose:
            fed = f"borrow({name}, arg{i}_spec, context)"
            lines.append(f"frame.values[{variable!r}] = " + (f"apart({fed})" if form.writes else fed))
        else:
            lines.append(f"arg{i}_at[...] = {name}")
    work = _actions(form)
    lines += work if form.native else ["with activate():", *[f"    {line}" for line in work]]
    if not form.native or MARKING in form.actions:
        lines += ["at = -1", "if context.suspect:", "    watch.raise_late()"]
    return lines + _results(form)


def _actions(form: CallSignature) -> list[str]:
    if len(form.actions) > MOST_LINES or form.timed:
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
    ways = {COPIED: "result{}_at.copy()", VIEWED: "result{}_at.view()", OWNED: "frame.values[result{}_key].numpy()"}
    found = [ways[how].format(i) for i, how in enumerate(form.results)]
    counts = ["counts.copy_out += copies", "counts.bytes_out += copied"] if found else []
    return [*counts, f"return {found[0]}" if form.alone else f"return [{', '.join(found)}]"]


def _ended(form: CallSignature) -> list[str]:
    if len(form.state) > MOST_LINES or form.loose or not form.native:
        return ["executable.end((executable,))"]
    return [f"state{i}_allocation.version += 1" for i, (_, written) in enumerate(form.state) if written]


class Texts:
    """Texts that were compiled, each with a name that tracebacks find it by."""

    _numbers = count(1)  # of all: the names are known in the whole process

    def __init__(self, most: int = MOST_TEXTS) -> None:
        self._codes: LRUCache[tuple[str, CodeType]] = LRUCache(most, "fast paths", 16 << 20, self._forget)

    def of(self, form: CallSignature) -> tuple[str, CodeType]:
        return self._codes.get(form, lambda: self._make(form))

    def _make(self, form: CallSignature) -> tuple[str, CodeType]:
        text, name = text_of(form), f"<fluidlite fast path {next(self._numbers)}>"
        code = compile(text, name, "exec")
        linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
        return text, code

    @staticmethod
    def _forget(old: tuple[str, CodeType]) -> None:
        linecache.cache.pop(old[1].co_filename, None)


texts = Texts()
