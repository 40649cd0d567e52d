"""What was asked of the nests of calls, kept on disk: a process that asks the same again lays nothing out.

An answer serves all calls of a trace whose sizes answer alike what was asked to find it. On disk it lies under all on
which it depends: what the trace computes, what the question says, and the source files that lay out and write.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Any, Generic, TypeVar, cast
from weakref import WeakKeyDictionary

from fluidlite.base.disk_cache import DiskCache
from fluidlite.base.lru_cache import CacheInfo, LRUCache
from fluidlite.expr.calls import leaves, traced_of
from fluidlite.expr.number import FUNCTIONS, Number, Values
from fluidlite.expr.number_table import NumberTable
from fluidlite.expr.traced import Traced
from fluidlite.program.op_call import Call
from fluidlite.render.loops.sizes import Guards

Answer = TypeVar("Answer")

_MOST = 16
"""So many answers are kept of a question, for sizes of which different things hold; so many questions of a trace."""
_PACKAGES = ("base", "codegen", "expr", "platform", "program", "render")
"""Those whose source files say what the answers are."""
_IMPORTED = time()
_PLAIN = frozenset({str, int, float, bool, type(None)})
_UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError)
"""What a file may raise that says something else than was written."""

_disk = DiskCache(name="loops")


class _Kept(Generic[Answer]):
    """An answer, or what a file says of it, and the comparisons of sizes that were asked to find it."""

    def __init__(self, table: NumberTable, asked: Sequence[tuple[str, int, int, bool]]) -> None:
        self.table = table
        self.asked = asked
        """What compares, the places of what is compared, and the result."""
        self.encoded: Any = None
        self.answer: Answer | None = None
        self.made = False

    def serves(self, numbers: Sequence[Any]) -> bool:
        """Whether comparisons give the same where the numbers of the table are these."""
        for op, a, b, truth in self.asked:
            one, other = numbers[a], numbers[b]
            if one is None or other is None or FUNCTIONS[op](one, other) != truth:
                return False
        return True


class Question(Generic[Answer]):
    """One kind of question, and how its answers are written as plain values.

    ``encode(answer, table)`` gives what JSON holds, with numbers as their places in a table; ``decode(value, table)``
    makes the answer of that.
    """

    def __init__(
        self,
        name: str,
        encode: Callable[[Answer, NumberTable], Any],
        decode: Callable[[Any, NumberTable], Answer],
    ) -> None:
        self.name, self._encode, self._decode = name, encode, decode
        self._known: WeakKeyDictionary[Traced, LRUCache[list[_Kept[Answer]]]] = WeakKeyDictionary()

    def ask(self, call: Call, about: str, find: Callable[[], tuple[Guards, Answer]]) -> Answer:
        """The answer for a call.

        ``about``: all on which the answer depends beside the trace and the sizes of the call.
        ``find``: answers it, and gives what was asked of sizes for that.
        """
        traced, values = traced_of(call), leaves(call)
        known = self._known.get(traced)
        if known is None:
            known = self._known.setdefault(traced, LRUCache(_MOST, "answers about loops"))
        answers = known.get(about, lambda: self._read(traced, about, values))
        evaluated: dict[NumberTable, list[Any]] = {}
        for kept in [*answers]:
            numbers = evaluated.get(kept.table)
            if numbers is None:
                numbers = evaluated[kept.table] = kept.table.evaluate(values)
            if kept.serves(numbers):
                with suppress(*_UNREADABLE):
                    return self._answer(kept)
        guards, answer = find()
        answers.append(_kept(guards, answer))
        del answers[:-_MOST]
        self._write(traced, about, answers)
        return answer

    def _answer(self, kept: _Kept[Answer]) -> Answer:
        if not kept.made:
            kept.answer, kept.made = self._decode(kept.encoded, kept.table), True
        return cast(Answer, kept.answer)

    def _read(self, traced: Traced, about: str, values: Values) -> list[_Kept[Answer]]:
        text, sources = _text_of(traced), _sources()
        content = _disk.get(self.name, sources, text, about) if sources and text else None
        try:
            return [] if content is None else _read(json.loads(content), values)
        except _UNREADABLE:  # as good as none
            return []

    def _write(self, traced: Traced, about: str, answers: Sequence[_Kept[Answer]]) -> None:
        text, sources = _text_of(traced), _sources()
        if not sources or not text:
            return
        table, found = NumberTable(), []
        for kept in answers:
            with suppress(*_UNREADABLE):
                answer, number = self._answer(kept), kept.table.number
                asked = [(op, table.place(number(a)), table.place(number(b)), truth) for op, a, b, truth in kept.asked]
                found.append((asked, self._encode(answer, table)))
        _disk.put(json.dumps([table.rows, found]).encode(), self.name, sources, text, about)


def _kept(guards: Guards, answer: Answer) -> _Kept[Answer]:
    """An answer with what was asked so far: more may be asked later, for another question."""
    table = NumberTable()
    asked = [(c, truth) for c, truth in guards.asked.values() if c.a.key != c.b.key or not c.a.whole]
    kept = _Kept[Answer](table, [(*table.comparison(c), truth) for c, truth in asked])
    kept.answer, kept.made = answer, True
    return kept


def _read(content: Any, values: Values) -> list[_Kept[Any]]:
    rows, every = content
    table = NumberTable(rows)
    table.check(values)
    found = []
    for asked, encoded in every:
        table.check_comparisons(asked)
        found.append(_Kept[Any](table, [(op, a, b, truth is True) for op, a, b, truth in asked]))
        found[-1].encoded = encoded
    return found


def cache_info() -> CacheInfo:
    """What the folder of answers tells; its misses are what was laid out, or is asked for the first time."""
    return _disk.info()


@cache
def _sources() -> str:
    """What tells the source files from others: all that they say; ``""`` where there are none.

    It is ``""``, too, where one was written since they were imported: it is not what runs.
    """
    root, found = Path(__file__).parents[2], []
    pending = [os.path.join(root, package) for package in _PACKAGES]
    try:
        for at in pending:
            with os.scandir(at) as entries:
                for entry in entries:
                    if entry.is_dir():
                        pending.append(entry.path)
                    elif entry.name.endswith(".py"):
                        if entry.stat().st_mtime > _IMPORTED:
                            return ""
                        found.append((os.path.relpath(entry.path, root), Path(entry.path).read_bytes()))
    except OSError:
        return ""
    return sha256(repr(sorted(found)).encode()).hexdigest() if found else ""


_texts: WeakKeyDictionary[Traced, str] = WeakKeyDictionary()


def _text_of(traced: Traced) -> str:
    """What stands for all that a trace computes, and for the sizes that are equal in all of its calls.

    ``""`` if text cannot say it all.
    """
    found = _texts.get(traced)
    if found is None:
        try:
            found = sha256(repr(list(_facts(traced))).encode()).hexdigest()
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

    Raises TypeError if it is an object, which may be another one under the same text.
    """
    if isinstance(param, Number):
        return param.op, param.key, param.whole
    if isinstance(param, tuple):
        return tuple([_plain(each) for each in param])
    if type(param) not in _PLAIN:
        raise TypeError(f"{type(param).__name__} is no plain value")
    return param
