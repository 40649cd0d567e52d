"""The compile queue: helper processes compile LLVM modules in parallel; a thread that needs one first compiles it here.

llvmlite compiles one module at a time in a process. A program has tens of independent modules, whose addresses are not
needed before it runs.
"""

from __future__ import annotations

import json
import marshal
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import count
from time import perf_counter
from weakref import WeakValueDictionary

from fluidlite.kernel_support import available_processors, first_in_child, new_lock
from fluidlite.plugin import DeviceError

from . import object_code

VARIABLE = "FLUIDLITE_COMPILE_PROCESSES"
MAX_PROCESSES = 4
"""Default limit of helper processes, if there are so many other processors. More would be idle: planning and
translating in this process take a third of LLVM's time."""
MIN_JOBS_PER_PROCESS = 3
"""Waiting modules for each helper process: starting a process takes as long as compiling so many."""
IDLE_SECONDS = 10.0
"""Seconds without a job after which a helper process ends."""
PATIENCE_SECONDS = 30.0
"""Seconds without an answer after which this process compiles the jobs that helper processes took."""
_BEGIN = "import json, runpy, sys; sys.path[:] = json.loads(sys.argv[2]); runpy.run_path(sys.argv[1], None, '__main__')"


def max_processes() -> int:
    """Return the maximum number of helper processes: ``FLUIDLITE_COMPILE_PROCESSES``, or a default.

    Raises DeviceError if the variable is no number.
    """
    setting = os.environ.get(VARIABLE)
    if setting:
        if not setting.isdecimal():
            raise DeviceError(f"{VARIABLE} is {setting!r}; expected a number\n  Do: unset it, or set 0 for none")
        return int(setting)
    if not sys.executable or getattr(sys, "frozen", False):  # no Python interpreter to start
        return 0
    return min(available_processors() - 1, MAX_PROCESSES)


class Job:
    """A module to compile.

    ``request``: (text, level, cpu, features).
    ``reason``: LLVM's reason, if it refused the module.
    ``seconds``: the time of its compilation.
    """

    __slots__ = ("__weakref__", "claimed_in", "code", "number", "reason", "request", "seconds")

    def __init__(self, number: int, request: tuple[str, int, str, str]) -> None:
        self.number = number
        self.request = request
        self.code: bytes | None = None
        self.reason = ""
        self.seconds = 0.0
        self.claimed_in = -1
        """The generation of the queue in which a thread or process took the job; -1: none did."""


class CompileQueue:
    """Waiting jobs, and the helper processes that compile them.

    ``compile``: ``compile(text, level, cpu, features)`` makes machine code in this process.
    """

    def __init__(self, compile: Callable[[str, int, str, str], bytes]) -> None:
        self._compile = compile
        self._numbers = count()
        self._waiting: WeakValueDictionary[int, Job] = WeakValueDictionary()
        """By number: jobs that nobody has taken and whose code is still referenced."""
        self._changed = threading.Condition(new_lock())
        self._processes = 0
        self._usable = True
        """Whether helper processes can be used: none failed to start."""
        self._generation = 0
        """Increases when helpers are given up, or do not exist (in a forked child): jobs of earlier ones wait again."""

    def put(self, text: str, level: int, cpu: str, features: str) -> Job:
        """Add a module; start a helper process if enough modules wait.

        Raises DeviceError if ``FLUIDLITE_COMPILE_PROCESSES`` is no number.
        """
        limit, job = max_processes(), Job(next(self._numbers), (text, level, cpu, features))
        with self._changed:
            self._waiting[job.number] = job
            self._changed.notify()
            has_backlog = len(self._waiting) > MIN_JOBS_PER_PROCESS * (self._processes + 1)
            start_process = self._usable and has_backlog and self._processes < limit
            self._processes += start_process
        if start_process:
            try:
                threading.Thread(target=self._run_process, name="fluidlite compiler", daemon=True).start()
            except RuntimeError:  # no more threads, or Python ends
                self._process_ended(False)
        return job

    def result(self, job: Job) -> bytes:
        """Return the machine code of a module. Until it is compiled, this thread compiles it, or other waiting modules.

        Raises RuntimeError with LLVM's reason if it refuses the text.
        """
        while job.code is None and not job.reason:
            claimed, began = None, perf_counter()
            try:
                with self._changed:
                    if job.code is not None or job.reason:
                        break
                    claimed = job if job.claimed_in != self._generation else self._next()
                    if claimed is None:
                        if not self._changed.wait(PATIENCE_SECONDS):  # the helper hangs, and may have more
                            self._generation, self._usable = self._generation + 1, False
                        continue
                    self._waiting.pop(claimed.number, None)
                    claimed.claimed_in = self._generation
                self._finish(claimed, self._compile(*claimed.request), "", perf_counter() - began)
            except RuntimeError as exc:
                assert claimed is not None
                self._finish(claimed, None, str(exc) or "no reason", perf_counter() - began)
            except BaseException:  # an interrupt
                if claimed is not None:
                    self._give_back(claimed)
                raise
        if job.code is None:
            raise RuntimeError(job.reason)
        return job.code

    def _finish(self, job: Job, code: bytes | None, reason: str, seconds: float) -> None:
        with self._changed:
            job.code, job.reason, job.seconds = code, reason, seconds
            self._changed.notify_all()

    def _give_back(self, job: Job) -> None:
        with self._changed:
            job.claimed_in = -1
            self._waiting[job.number] = job
            self._changed.notify_all()

    def _next(self) -> Job | None:
        """The job that has waited longest, or None."""
        return next(iter([*self._waiting.values()]), None)

    def _take(self) -> Job | None:
        """Take a job; None if none arrives within ``IDLE_SECONDS``."""
        with self._changed:
            job: Job | None = self._changed.wait_for(self._next, IDLE_SECONDS)
            if job is not None:
                del self._waiting[job.number]
                job.claimed_in = self._generation
            return job

    def _run_process(self) -> None:
        """Run a helper process until it is idle. A job that it does not finish waits again."""
        command = [sys.executable, "-I", "-S", "-c", _BEGIN, object_code.__file__, json.dumps(sys.path)]
        job, ready = None, False
        try:
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                start_new_session=True,  # interrupts of the terminal do not reach it
            ) as process:  # fmt: skip
                assert process.stdin is not None and process.stdout is not None
                ready = marshal.load(process.stdout) == object_code.READY
                while ready and (job := self._take()) is not None:
                    began = perf_counter()
                    marshal.dump(job.request, process.stdin)
                    process.stdin.flush()
                    code, reason = marshal.load(process.stdout)
                    self._finish(job, code or None, reason, perf_counter() - began)
        except (OSError, EOFError, ValueError, TypeError):  # it died, or its answer is malformed
            pass
        finally:
            if job is not None and job.code is None and not job.reason:
                self._give_back(job)
            self._process_ended(ready)

    def _process_ended(self, usable: bool) -> None:
        with self._changed:
            self._processes -= 1
            self._usable = self._usable and usable

    def begin_anew(self) -> None:
        """In a forked child: drop the parent's threads and helpers; threads that need their jobs compile them."""
        self._generation += 1
        self._processes = 0
        self._waiting = WeakValueDictionary()
        self._changed = threading.Condition(new_lock())


def queue(compile: Callable[[str, int, str, str], bytes]) -> CompileQueue:
    """Return a queue that is reset in forked children."""
    compile_queue = CompileQueue(compile)
    first_in_child(compile_queue.begin_anew)
    return compile_queue
