"""The CPU's command buffer: a sequence of launches at static addresses as one native call."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from .thread_pool import MIN_SHARED_ITEMS, ThreadPool, schedule

TIMED_RUNS = 2
"""Runs that are timed, before the number of threads and the lock are decided."""
MAX_LOCKED_SECONDS = 20e-6
"""Time of a chain up to which it keeps the interpreter's lock: releasing and acquiring it costs as much."""

_RECORD = struct.Struct("<QQqqq")
"""A launch: kernel, arguments, items, grain, width."""
_COUNT = struct.Struct("<q")


class CommandBuffer:
    """Runs launches in order, at static addresses.

    ``launches``: (kernel, items, args, group) of each.
    ``launch``: ``launch(context, kernel, items, packed, group)`` runs one of them.
    """

    def __init__(self, team: ThreadPool, context: Any, launches: Sequence[Any], launch: Callable[..., None]) -> None:
        self._pool, self._context, self._launch = team, context, launch
        self._launches = [each for each in launches if each[1] > 0]
        self._arguments = [ctypes.create_string_buffer(kernel.packed(args)) for kernel, _, args, _ in self._launches]
        self._serial = all(items < MIN_SHARED_ITEMS[group is not None] for _, items, _, group in self._launches)
        self._runs = 0
        self._compiled: dict[int | None, partial[Any]] = {}

    def run(self) -> None:
        """Run the launches. Look this method up at each call: the first runs are timed, and may replace it."""
        self._runs += 1
        if self._serial:
            self._run_timed()
        elif self._runs > TIMED_RUNS:
            self._native(self._context.threads)()
        else:  # one by one, which times each kernel
            for (kernel, items, _, group), arguments in zip(self._launches, self._arguments, strict=True):
                self._launch(self._context, kernel, items, arguments.raw, group)
            if self._runs == TIMED_RUNS and not any(
                kernel.should_share(items, g) for kernel, items, _, g in self._launches
            ):
                self._serial, self._runs = True, 0

    def _run_timed(self) -> None:
        """Run the launches on one thread and time them."""
        run = self._native(1)
        start = perf_counter()
        run()
        if self._runs >= TIMED_RUNS:
            is_short = perf_counter() - start < MAX_LOCKED_SECONDS
            self.run = run if not is_short else self._locked(run.args[0])  # type: ignore[method-assign]

    def _locked(self, pointer: Any) -> Callable[[], None]:
        """Return the native call that keeps the interpreter's lock."""
        return self._pool.entry(pointer.records) or partial(self._pool.locked_chain, pointer)

    def _native(self, threads: int | None) -> partial[Any]:
        """Return the native call that runs all launches, with as many threads as the context allows."""
        call = self._compiled.get(threads)
        if call is None:
            text = bytearray(_COUNT.pack(len(self._launches)))
            for (kernel, items, _, group), arguments in zip(self._launches, self._arguments, strict=True):
                serial = threads == 1 or not kernel.should_share(items, group)
                grain, width = (items, 0) if serial else schedule(self._pool, items, group, threads)
                text += _RECORD.pack(kernel.address, ctypes.addressof(arguments), items, grain, width)
            records: Any = ctypes.create_string_buffer(bytes(text))
            pointer = ctypes.c_void_p(ctypes.addressof(records))
            records.read = self._arguments, self._launches  # keeps alive the memory that the records point to
            pointer.records = records  # type: ignore[attr-defined]
            call = self._compiled[threads] = partial(self._pool.chain, pointer)
        return call
