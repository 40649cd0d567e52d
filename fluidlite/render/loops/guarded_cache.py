"""Guarded cache of answers about nests (texts, estimates, aliases), in memory and on disk: a cache hit lowers nothing.

An answer is valid for all calls of a trace whose sizes satisfy its guards. Its key on disk is a digest of everything
that it depends on: the trace, the facts of the call, and the source files of the code generator.
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
from fluidlite.expr.number import Number, Values
from fluidlite.expr.number_table import Comparison, NumberTable, first_mismatch
from fluidlite.expr.traced import Traced
from fluidlite.program.op_call import Call
from fluidlite.render.loops.sizes import Guards

Answer = TypeVar("Answer")

_MAX_ANSWERS = 16
"""Cached answers of a key, each valid for other sizes, and keys of a trace."""
_PACKAGES = ("base", "codegen", "expr", "platform", "program", "render")
"""Packages whose source files determine the answers."""
_IMPORTED = time()
_PLAIN = frozenset({str, int, float, bool, type(None)})
_UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError)
"""Exceptions that reading a damaged file may raise."""

_disk = DiskCache(name="loops")


class _CachedAnswer(Generic[Answer]):
    """A cached answer, decoded or as read from a file, with its guards: comparisons of a table's rows."""

    def __init__(self, table: NumberTable, comparisons: Sequence[Comparison]) -> None:
        self.table = table
        self.comparisons = comparisons
        self.encoded: Any = None
        self.answer: Answer | None = None
        self.is_decoded = False


class GuardedCache(Generic[Answer]):
    """A cache of answers of one kind.

    ``encode(answer, table)`` converts an answer to JSON values, with numbers as indices into a table;
    ``decode(value, table)`` is its inverse.
    """

    def __init__(
        self, name: str, encode: Callable[[Answer, NumberTable], Any], decode: Callable[[Any, NumberTable], Answer]
    ) -> None:
        self.name, self._encode, self._decode = name, encode, decode
        self._caches: WeakKeyDictionary[Traced, LRUCache[list[_CachedAnswer[Answer]]]] = WeakKeyDictionary()

    def get(self, call: Call, facts: str, compute: Callable[[], tuple[Guards, Answer]]) -> Answer:
        """The cached answer for a call, or a new one.

        ``facts``: all facts that the answer depends on, besides the trace and the sizes of the call.
        ``compute``: computes the guards and the answer on a cache miss.
        """
        traced, values = traced_of(call), leaves(call)
        cache = self._caches.get(traced)
        if cache is None:
            cache = self._caches.setdefault(traced, LRUCache(_MAX_ANSWERS, "answers about loops"))
        candidates = cache.get(facts, lambda: self._load(traced, facts, values))
        evaluated: dict[NumberTable, list[Any]] = {}
        for cached in [*candidates]:
            numbers = evaluated.get(cached.table)
            if numbers is None:
                numbers = evaluated[cached.table] = cached.table.evaluate(values)
            if first_mismatch(cached.comparisons, numbers, lambda k: True) < 0:
                with suppress(*_UNREADABLE):
                    return self._answer(cached)
        guards, answer = compute()
        candidates.append(_cached_answer(guards, answer))
        del candidates[:-_MAX_ANSWERS]
        self._save(traced, facts, candidates)
        return answer

    def _answer(self, cached: _CachedAnswer[Answer]) -> Answer:
        if not cached.is_decoded:
            cached.answer, cached.is_decoded = self._decode(cached.encoded, cached.table), True
        return cast(Answer, cached.answer)

    def _load(self, traced: Traced, facts: str, values: Values) -> list[_CachedAnswer[Answer]]:
        text, sources = _text_of(traced), _sources()
        content = _disk.get(self.name, sources, text, facts) if sources and text else None
        try:
            return [] if content is None else _decoded_answers(json.loads(content), values)
        except _UNREADABLE:  # a cache miss
            return []

    def _save(self, traced: Traced, facts: str, answers: Sequence[_CachedAnswer[Answer]]) -> None:
        text, sources = _text_of(traced), _sources()
        if not sources or not text:
            return
        table, entries = NumberTable(), []
        for cached in answers:
            with suppress(*_UNREADABLE):
                answer, number = self._answer(cached), cached.table.number
                comparisons = [
                    (op, table.place(number(a)), table.place(number(b)), r) for op, a, b, r in cached.comparisons
                ]
                entries.append((comparisons, self._encode(answer, table)))
        _disk.put(json.dumps([table.rows, entries]).encode(), self.name, sources, text, facts)


def _cached_answer(guards: Guards, answer: Answer) -> _CachedAnswer[Answer]:
    """A cached answer with a copy of the guards, which later answers may extend."""
    table = NumberTable()
    conditions = [(c, result) for c, result in guards.comparisons.values() if c.a.key != c.b.key or not c.a.whole]
    cached = _CachedAnswer[Answer](table, [table.comparison(*each) for each in conditions])
    cached.answer, cached.is_decoded = answer, True
    return cached


def _decoded_answers(content: Any, values: Values) -> list[_CachedAnswer[Any]]:
    rows, entries = content
    table = NumberTable(rows)
    table.check(values)
    answers = []
    for comparisons, encoded in entries:
        table.check_comparisons(comparisons)
        answers.append(_CachedAnswer[Any](table, [(op, a, b, result is True) for op, a, b, result in comparisons]))
        answers[-1].encoded = encoded
    return answers


def cache_info() -> CacheInfo:
    """The statistics of the cache on disk."""
    return _disk.info()


@cache
def _sources() -> str:
    """A digest of the source files; ``""`` if there are none.

    It is ``""``, too, if a file was modified after this process imported it: another version runs.
    """
    root, files = Path(__file__).parents[2], []
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
                        files.append((os.path.relpath(entry.path, root), Path(entry.path).read_bytes()))
    except OSError:
        return ""
    return sha256(repr(sorted(files)).encode()).hexdigest() if files else ""


_texts: WeakKeyDictionary[Traced, str] = WeakKeyDictionary()


def _text_of(traced: Traced) -> str:
    """A digest of a trace and its generic sizes; ``""`` if a parameter of a primitive has no plain value."""
    digest = _texts.get(traced)
    if digest is None:
        try:
            digest = sha256(repr(list(_trace_facts(traced))).encode()).hexdigest()
        except TypeError:
            digest = ""
        _texts[traced] = digest
    return digest


def _trace_facts(traced: Traced) -> Iterator[Any]:
    places = {x: k for k, x in enumerate(traced.every)}
    for x in traced.every:
        yield x.op, [places[arg] for arg in x.args], [_plain_value(param) for param in x.params], x.sizes, x.dtype
    for slot, tensors in traced.outputs.items():
        yield slot, [places[x] for x in tensors]
    for slot, tensors in traced.inputs.items():
        yield slot, [(x.sizes, x.dtype) for x in tensors]
    yield sorted(traced.generic_sizes.items())


def _plain_value(param: Any) -> Any:
    """A parameter of a primitive as plain values.

    Raises TypeError if it is an object, which may be another one under the same text.
    """
    if isinstance(param, Number):
        return param.op, param.key, param.whole
    if isinstance(param, tuple):
        return tuple([_plain_value(each) for each in param])
    if type(param) not in _PLAIN:
        raise TypeError(f"{type(param).__name__} is no plain value")
    return param
