"""Launches that follow each other, on memory that stays, as one native call."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from .thread_pool import FEWEST, ThreadPool, shared

TRIALS = 2
"""Calls of a chain that measure."""
BRIEF = 20e-6
"""Seconds of a chain up to which it keeps the interpreter's lock: passing that on and back costs as much."""

_RECORD = struct.Struct("<QQqqq")
"""A launch: kernel, arguments, items, grain, width."""
_COUNT = struct.Struct("<q")


class CommandBuffer:
    """Does launches in order, at addresses that do not change.

    ``launches``: (kernel, items, args, group) of each.
    ``launch``: ``launch(context, kernel, items, packed, group)`` does one of them.
    """

    def __init__(self, team: ThreadPool, context: Any, launches: Sequence[Any], launch: Callable[..., None]) -> None:
        self._team, self._context, self._launch = team, context, launch
        self._launches = [each for each in launches if each[1] > 0]
        self._arguments = [ctypes.create_string_buffer(kernel.packed(args)) for kernel, _, args, _ in self._launches]
        self._alone = all(items < FEWEST[group is not None] for _, items, _, group in self._launches)
        self._trials = 0
        self._compiled: dict[int | None, partial[Any]] = {}

    def run(self) -> None:
        """Do them. Look it up at each call: the first calls measure, and may put a shorter way in its place."""
        self._trials += 1
        if self._alone:
            self._timed()
        elif self._trials > TRIALS:
            self._native(self._context.threads)()
        else:  # one by one, which tells what is worth sharing
            for (kernel, items, _, group), given in zip(self._launches, self._arguments, strict=True):
                self._launch(self._context, kernel, items, given.raw, group)
            if self._trials == TRIALS and not any(kernel.shares(items, g) for kernel, items, _, g in self._launches):
                self._alone, self._trials = True, 0

    def _timed(self) -> None:
        """Do what threads will not share, and see how long it takes."""
        run = self._native(1)
        start = perf_counter()
        run()
        if self._trials >= TRIALS:
            brief = perf_counter() - start < BRIEF
            self.run = run if not brief else self._brief(run.args[0])  # type: ignore[method-assign]

    def _brief(self, pointer: Any) -> Callable[[], None]:
        """The same without passing the interpreter's lock on."""
        return self._team.entry(pointer.records) or partial(self._team.brief_chain, pointer)

    def _native(self, threads: int | None) -> partial[Any]:
        """The call that does all, with as many threads as the context allows."""
        found = self._compiled.get(threads)
        if found is None:
            text = bytearray(_COUNT.pack(len(self._launches)))
            for (kernel, items, _, group), given in zip(self._launches, self._arguments, strict=True):
                alone = threads == 1 or not kernel.shares(items, group)
                grain, width = (items, 0) if alone else shared(self._team, items, group, threads)
                text += _RECORD.pack(kernel.address, ctypes.addressof(given), items, grain, width)
            records: Any = ctypes.create_string_buffer(bytes(text))
            pointer = ctypes.c_void_p(ctypes.addressof(records))
            records.read = self._arguments, self._launches  # what they point to lives as long as they do
            pointer.records = records  # type: ignore[attr-defined]
            found = self._compiled[threads] = partial(self._team.chain, pointer)
        return found
