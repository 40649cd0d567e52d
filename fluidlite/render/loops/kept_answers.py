"""What was asked of the nests of calls, kept on disk: a process that asks the same again lays nothing out.

An answer serves all calls of a trace whose sizes answer alike what was asked to find it. On disk it lies under all on
which it depends: what the trace computes, what the question says, and the source files that lay out and write.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from fluidlite.base.disk_cache import DiskCache
from fluidlite.base.lru_cache import CacheInfo
from fluidlite.expr.calls import leaves, traced_of
from fluidlite.expr.number import Number
from fluidlite.expr.number_table import NumberTable, condition_of, numbers_of
from fluidlite.expr.traced import Traced
from fluidlite.program.op_call import Call
from fluidlite.render.loops.sizes import Guards

Answer = TypeVar("Answer")

_MOST = 16
"""So many answers are kept of a question, for sizes of which different things hold; so many questions of a trace."""
_PACKAGES = ("base", "codegen", "expr", "platform", "program", "render")
"""Those whose source files say what the answers are."""
_PLAIN = frozenset({str, int, float, bool, type(None)})

_disk = DiskCache(name="loops")


class Question(Generic[Answer]):
    """One kind of question, and how its answers are written as plain values.

    Parameters
    ----------
    name : str
    encode, decode : callable
        ``encode(answer, table)`` gives what JSON holds, with numbers as their places in a table; ``decode(value,
        numbers)`` makes the answer of that.
    """

    def __init__(
        self,
        name: str,
        encode: Callable[[Answer, NumberTable], Any],
        decode: Callable[[Any, list[Number]], Answer],
    ) -> None:
        self.name, self._encode, self._decode = name, encode, decode
        self._known: WeakKeyDictionary[Traced, dict[str, list[tuple[Guards, Answer]]]] = WeakKeyDictionary()

    def ask(self, call: Call, about: str, find: Callable[[], tuple[Guards, Answer]]) -> Answer:
        """The answer for a call.

        Parameters
        ----------
        call : Call
        about : str
            All on which the answer depends beside the trace and the sizes of the call.
        find : callable
            Answers it, and gives what was asked of sizes for that.
        """
        traced, values = traced_of(call), leaves(call)
        known = self._known.setdefault(traced, {})
        answers = known.get(about)
        if answers is None:
            while len(known) >= _MOST:
                known.pop(next(iter(known)), None)
            answers = known[about] = self._read(traced, about)
        for guards, answer in answers:
            if guards.hold(values):
                return answer
        guards, answer = find()
        answers.append((Guards(dict(guards.asked)), answer))  # more may be asked later, for another question
        del answers[:-_MOST]
        self._write(traced, about, answers)
        return answer

    def _read(self, traced: Traced, about: str) -> list[tuple[Guards, Answer]]:
        text = _text_of(traced)
        content = _disk.get(self.name, _SOURCES, text, about) if _SOURCES and text else None
        try:
            return [] if content is None else list(self._decoded(*json.loads(content)))
        except (ValueError, TypeError, KeyError, IndexError):  # as good as none
            return []

    def _decoded(self, rows: Any, kept: Any) -> Iterator[tuple[Guards, Answer]]:
        numbers = numbers_of(rows)
        for asked, value in kept:
            guards = Guards()
            for op, a, b, truth in asked:
                condition = condition_of(numbers, op, a, b)
                guards.note(op, condition.a, condition.b, truth is True)
            yield guards, self._decode(value, numbers)

    def _write(self, traced: Traced, about: str, answers: list[tuple[Guards, Answer]]) -> None:
        text = _text_of(traced)
        if not _SOURCES or not text:
            return
        table = NumberTable()
        kept = [
            ([(*table.condition(c), truth) for c, truth in guards.asked.values()], self._encode(answer, table))
            for guards, answer in answers
        ]
        _disk.put(json.dumps([table.rows, kept]).encode(), self.name, _SOURCES, text, about)


def cache_info() -> CacheInfo:
    """What the folder of answers tells; its misses are what was laid out, or is asked for the first time."""
    return _disk.info()


def _sources() -> str:
    """What tells the source files from others, as Python itself does: where they lie, their sizes and times.

    ``""`` where there are no files.
    """
    root, found = Path(__file__).parents[2], list[str]()
    pending = [os.path.join(root, package) for package in _PACKAGES]
    try:
        for at in pending:
            with os.scandir(at) as entries:
                for entry in entries:
                    if entry.name.endswith(".py"):
                        facts = entry.stat()
                        found.append(f"{entry.path} {facts.st_size} {facts.st_mtime_ns}")
                    elif entry.is_dir():
                        pending.append(entry.path)
    except OSError:
        return ""
    return sha256("\n".join(sorted(found)).encode()).hexdigest()


_SOURCES = _sources()
"""Looked at now, when they are imported: who edits them later has other ones."""

_texts: WeakKeyDictionary[Traced, str] = WeakKeyDictionary()


def _text_of(traced: Traced) -> str:
    """All that a trace computes, and which sizes are equal in all of its calls; ``""`` if text cannot say it all."""
    found = _texts.get(traced)
    if found is None:
        try:
            found = repr(list(_facts(traced)))
        except TypeError:
            found = ""
        _texts[traced] = found
    return found


def _facts(traced: Traced) -> Iterator[Any]:
    places = {x: k for k, x in enumerate(traced.every)}
    for x in traced.every:
        yield x.op, [places[arg] for arg in x.args], [_plain(param) for param in x.params], x.sizes, x.dtype
    for slot, found in traced.outputs.items():
        yield slot, [places[x] for x in found]
    for slot, found in traced.inputs.items():
        yield slot, [(x.sizes, x.dtype) for x in found]
    yield sorted(traced.generic_sizes.items())


def _plain(param: Any) -> Any:
    """A parameter of a primitive as plain values.

    Raises
    ------
    TypeError
        If it is an object, which may be another one under the same text.
    """
    if isinstance(param, Number):
        return param.op, param.key
    if isinstance(param, tuple):
        return tuple([_plain(each) for each in param])
    if type(param) not in _PLAIN:
        raise TypeError(f"{type(param).__name__} is no plain value")
    return param
