"""The CPU's thread pool: threads share the work-items of one kernel. It is written in LLVM IR, like the kernels.

The caller posts a job and works on it too; idle threads join, and repeatedly take the next ``grain`` items. A thread
that wakes up too late finds the job closed, so the caller waits only for threads that took items. The pool runs one
job at a time; a caller that finds it busy computes alone.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import finalize

from fluidlite.kernel_support import available_processors, first_in_child, new_lock

MAX_THREADS = 64
"""Threads of the pool at most, the caller included."""
ENTRY_SLOTS = 32
"""Chains of a process that have an entry point without arguments."""
CHUNKS_PER_THREAD = 4
"""Chunks of items for each thread, so that other threads take the chunks of a late one."""
GRAIN_MULTIPLE = 256
"""The grain size of short items is a multiple of this: whole vectors, and no cache line shared by two threads."""
MIN_SHARED_ITEMS = 2 * GRAIN_MULTIPLE, 2
"""Items from which a launch may use several threads: short items, and items in work-groups."""
SPIN_ITERATIONS = 2000
"""Polls for the next job before a thread sleeps: about ten microseconds."""

# The pool's state is global, since a process has one pool. No variable is internal: LLVM would assume that pthread
# functions do not write it, and read it only once. Variables that many threads write have a cache line of their own.
POSIX_SOURCE = f"""
@team_generation = global i64 0, align 128
@team_open = global i64 0
@team_active = global i64 0
@team_items = global i64 0
@team_grain = global i64 0
@team_kernel = global ptr null
@team_arguments = global ptr null
@team_width = global i64 0
@team_next = global i64 0, align 128
@team_busy = global i64 0, align 128
@team_mutex = global [128 x i8] zeroinitializer, align 128
@team_work = global [128 x i8] zeroinitializer, align 128
@team_done = global [128 x i8] zeroinitializer, align 128
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)

define i32 @fl_team_begin(i64 %workers) nounwind {{
entry:
  %thread = alloca i64
  %m = call i32 @pthread_mutex_init(ptr @team_mutex, ptr null)
  %w = call i32 @pthread_cond_init(ptr @team_work, ptr null)
  %d = call i32 @pthread_cond_init(ptr @team_done, ptr null)
  br label %test
test:
  %made = phi i64 [ 0, %entry ], [ %more, %each ]
  %enough = icmp sge i64 %made, %workers
  br i1 %enough, label %end, label %each
each:
  %failed = call i32 @pthread_create(ptr %thread, ptr null, ptr @fl_worker, ptr null)
  %more = add i64 %made, 1
  %good = icmp eq i32 %failed, 0
  br i1 %good, label %test, label %end
end:
  %count = phi i64 [ %made, %test ], [ %made, %each ]
  %result = trunc i64 %count to i32
  ret i32 %result
}}

define void @fl_team_leave() nounwind {{
entry:
  store atomic i64 1, ptr @team_busy seq_cst, align 8
  ret void
}}

define internal void @fl_share(ptr %kernel, ptr %arguments, i64 %items, i64 %grain) nounwind {{
entry:
  br label %take
take:
  %first = atomicrmw add ptr @team_next, i64 %grain seq_cst
  %left = icmp slt i64 %first, %items
  br i1 %left, label %run, label %end
run:
  %stop = add i64 %first, %grain
  %over = icmp sgt i64 %stop, %items
  %last = select i1 %over, i64 %items, i64 %stop
  call void %kernel(i64 %first, i64 %last, ptr %arguments)
  br label %take
end:
  ret void
}}

define internal ptr @fl_worker(ptr %unused) nounwind {{
entry:
  br label %look
look:
  %seen = phi i64 [ 0, %entry ], [ %now, %joined ], [ %now, %late ]
  br label %spin
spin:
  %spun = phi i64 [ 0, %look ], [ %spins, %idle ]
  %peek = load atomic i64, ptr @team_generation seq_cst, align 8
  %posted = icmp ne i64 %peek, %seen
  br i1 %posted, label %lock, label %idle
idle:
  fence seq_cst
  %spins = add i64 %spun, 1
  %tired = icmp sgt i64 %spins, {SPIN_ITERATIONS}
  br i1 %tired, label %lock, label %spin
lock:
  %l = call i32 @pthread_mutex_lock(ptr @team_mutex)
  br label %check
check:
  %now = load atomic i64, ptr @team_generation seq_cst, align 8
  %same = icmp eq i64 %now, %seen
  br i1 %same, label %sleep, label %awake
sleep:
  %s = call i32 @pthread_cond_wait(ptr @team_work, ptr @team_mutex)
  br label %check
awake:
  %is_open = load i64, ptr @team_open
  %taking = load i64, ptr @team_active
  %width = load i64, ptr @team_width
  %shut = icmp eq i64 %is_open, 0
  %full = icmp sge i64 %taking, %width
  %out = or i1 %shut, %full
  br i1 %out, label %late, label %join
late:
  %u0 = call i32 @pthread_mutex_unlock(ptr @team_mutex)
  br label %look
join:
  %taken = add i64 %taking, 1
  store i64 %taken, ptr @team_active
  %kernel = load ptr, ptr @team_kernel
  %arguments = load ptr, ptr @team_arguments
  %items = load i64, ptr @team_items
  %grain = load i64, ptr @team_grain
  %u1 = call i32 @pthread_mutex_unlock(ptr @team_mutex)
  call void @fl_share(ptr %kernel, ptr %arguments, i64 %items, i64 %grain)
  %l2 = call i32 @pthread_mutex_lock(ptr @team_mutex)
  %there = load i64, ptr @team_active
  %fewer = sub i64 %there, 1
  store i64 %fewer, ptr @team_active
  %c = call i32 @pthread_cond_broadcast(ptr @team_done)
  %u2 = call i32 @pthread_mutex_unlock(ptr @team_mutex)
  br label %joined
joined:
  br label %look
}}

define void @fl_run(ptr %kernel, ptr %arguments, i64 %items, i64 %grain, i64 %width) nounwind {{
entry:
  %alone = icmp sle i64 %width, 0
  %few = icmp sle i64 %items, %grain
  %serial = or i1 %alone, %few
  br i1 %serial, label %single, label %ask
ask:
  %asked = cmpxchg ptr @team_busy, i64 0, i64 1 seq_cst seq_cst
  %got = extractvalue {{ i64, i1 }} %asked, 1
  br i1 %got, label %post, label %single
single:
  call void %kernel(i64 0, i64 %items, ptr %arguments)
  ret void
post:
  %l = call i32 @pthread_mutex_lock(ptr @team_mutex)
  store i64 1, ptr @team_open
  store i64 0, ptr @team_next
  store i64 %items, ptr @team_items
  store i64 %grain, ptr @team_grain
  store ptr %kernel, ptr @team_kernel
  store ptr %arguments, ptr @team_arguments
  store i64 %width, ptr @team_width
  %g = atomicrmw add ptr @team_generation, i64 1 seq_cst
  %b = call i32 @pthread_cond_broadcast(ptr @team_work)
  %u = call i32 @pthread_mutex_unlock(ptr @team_mutex)
  call void @fl_share(ptr %kernel, ptr %arguments, i64 %items, i64 %grain)
  %l2 = call i32 @pthread_mutex_lock(ptr @team_mutex)
  store i64 0, ptr @team_open
  br label %check
check:
  %there = load i64, ptr @team_active
  %all = icmp eq i64 %there, 0
  br i1 %all, label %end, label %wait
wait:
  %w = call i32 @pthread_cond_wait(ptr @team_done, ptr @team_mutex)
  br label %check
end:
  %u2 = call i32 @pthread_mutex_unlock(ptr @team_mutex)
  store atomic i64 0, ptr @team_busy seq_cst, align 8
  ret void
}}
"""


CHAIN_SOURCE = """
%record = type { ptr, ptr, i64, i64, i64 }

define void @fl_chain(ptr %chain) noinline nounwind {
entry:
  %count = load i64, ptr %chain
  %records = getelementptr i64, ptr %chain, i64 1
  br label %test
test:
  %i = phi i64 [ 0, %entry ], [ %next, %each ]
  %left = icmp slt i64 %i, %count
  br i1 %left, label %each, label %end
each:
  %at = getelementptr %record, ptr %records, i64 %i
  %record = load %record, ptr %at
  %kernel = extractvalue %record %record, 0
  %arguments = extractvalue %record %record, 1
  %items = extractvalue %record %record, 2
  %grain = extractvalue %record %record, 3
  %width = extractvalue %record %record, 4
  call void @fl_run(ptr %kernel, ptr %arguments, i64 %items, i64 %grain, i64 %width)
  %next = add i64 %i, 1
  br label %test
end:
  ret void
}
"""


def entries() -> str:
    """LLVM IR of functions that run the chain in their slot; without arguments, ctypes has nothing to convert."""
    names = ", ".join([f"ptr @fl_entry_{i}" for i in range(ENTRY_SLOTS)])
    lines = [f"@fl_slots = global [{ENTRY_SLOTS} x ptr] zeroinitializer"]
    lines += [f"@fl_entries = global [{ENTRY_SLOTS} x ptr] [{names}]"]
    for i in range(ENTRY_SLOTS):
        lines += [
            f"define void @fl_entry_{i}() nounwind {{",
            f"  %chain = load ptr, ptr getelementptr ([{ENTRY_SLOTS} x ptr], ptr @fl_slots, i64 0, i64 {i})",
            "  call void @fl_chain(ptr %chain)",
            "  ret void",
            "}",
        ]
    return "\n".join([*lines, ""])


SERIAL_SOURCE = """
define i32 @fl_team_begin(i64 %workers) nounwind {
  ret i32 0
}

define void @fl_team_leave() nounwind {
  ret void
}

define void @fl_run(ptr %kernel, ptr %arguments, i64 %items, i64 %grain, i64 %width) nounwind {
  call void %kernel(i64 0, i64 %items, ptr %arguments)
  ret void
}
"""
"""The replacement on systems without POSIX threads."""


class ThreadPool:
    """The threads of this process; started when first needed, and again after a fork.

    ``run``: ``run(kernel, arguments, items, grain, width)``, where ``kernel(begin, end, arguments)`` computes items and
    ``width`` is the number of threads that may join the caller.
    ``chain``, ``locked_chain``: ``chain(records)`` does so for each of some records of those five, in order;
    their number comes first. ``locked_chain`` keeps the interpreter's lock.
    ``leave``: make each caller compute alone from now on: a forked child has no threads of the pool, and a thread of
    the parent may hold the mutex.
    ``workers``: the number of threads without the caller.
    """

    def __init__(self, load: Any) -> None:
        text = (POSIX_SOURCE if os.name == "posix" else SERIAL_SOURCE) + CHAIN_SOURCE + entries()
        names = ("fl_team_begin", "fl_team_leave", "fl_chain", "fl_run", "fl_entries", "fl_slots")
        code = load(text, names, text)
        begin = code.function("fl_team_begin", "int32", ("int64",))
        self.workers: int = begin(min(available_processors(), MAX_THREADS) - 1)
        self.leave = code.function("fl_team_leave", None, (), keep_lock=True)
        self.chain = code.function("fl_chain", None, ("pointer",))
        self.locked_chain = code.function("fl_chain", None, ("pointer",), keep_lock=True)
        self.run = code.function("fl_run", None, ("pointer", "pointer", "int64", "int64", "int64"))
        table = ctypes.c_size_t * ENTRY_SLOTS
        self._entries = table.from_address(code.address("fl_entries"))
        self._slots = table.from_address(code.address("fl_slots"))
        self._free = deque(range(ENTRY_SLOTS))
        code.keep()  # threads wait in this code until the process ends

    def entry(self, records: Any) -> Callable[[], None] | None:
        """Return a function that runs ``locked_chain(records)``, or None if all slots are in use."""
        try:
            slot = self._free.popleft()
        except IndexError:
            return None
        self._slots[slot] = ctypes.addressof(records)
        function: Any = ctypes.PYFUNCTYPE(None)(self._entries[slot])
        function.records = records
        finalize(function, self._free.append, slot).atexit = False
        return function  # type: ignore[no-any-return]


def schedule(pool: ThreadPool, items: int, group: int | None, threads: int | None) -> tuple[int, int]:
    """Return the grain size (items that a thread takes at a time), and how many threads may join the caller."""
    width = pool.workers if threads is None else min(pool.workers, threads - 1)
    grain = -(-items // ((width + 1) * CHUNKS_PER_THREAD))
    return (-(-grain // GRAIN_MULTIPLE) * GRAIN_MULTIPLE if group is None else grain), width


_lock = new_lock()
_pools: list[ThreadPool] = []


def thread_pool(load: Any) -> ThreadPool:
    with _lock:
        if not _pools:
            _pools.append(ThreadPool(load))
        return _pools[0]


@first_in_child
def _leave_to_parent() -> None:
    """In a forked child, which has no threads: earlier command buffers compute alone, later ones get a new pool."""
    for pool in _pools:
        pool.leave()
    _pools.clear()
