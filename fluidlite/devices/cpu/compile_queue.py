"""Modules that wait to become machine code: processes beside this one compile them, and who needs one first itself.

llvmlite does one thing at a time in a process. A program has tens of modules that do not depend on each other, and
nobody asks for an address before it runs.
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
MOST = 4
"""Processes, where nothing is said: as many as other processors are there. More would find nothing to do: planning and
translating take this process a third as long as LLVM takes."""
EACH = 3
"""Modules that wait for each process: a process takes as long to begin as it does to compile them."""
IDLE_SECONDS = 1.0
"""A process that finds nothing to do for so long ends."""
PATIENCE_SECONDS = 30.0
"""After so long without an answer what processes have taken is compiled here."""
_BEGIN = "import json, runpy, sys; sys.path[:] = json.loads(sys.argv[2]); runpy.run_path(sys.argv[1], None, '__main__')"


def most_processes() -> int:
    """How many processes may compile beside this one: what ``FLUIDLITE_COMPILE_PROCESSES`` says.

    Raises DeviceError if it says something else.
    """
    said = os.environ.get(VARIABLE)
    if said:
        if not said.isdecimal():
            raise DeviceError(f"{VARIABLE} is {said!r}; expected a number\n  Do: unset it, or set 0 for none")
        return int(said)
    if not sys.executable or getattr(sys, "frozen", False):  # no Python that could be started
        return 0
    return min(available_processors() - 1, MOST)


class Job:
    """A module on its way to machine code.

    ``request``: (text, level, cpu, features).
    ``reason``: why there is none, if LLVM refused it.
    ``seconds``: that it took.
    """

    __slots__ = ("__weakref__", "code", "number", "reason", "request", "seconds", "taken")

    def __init__(self, number: int, request: tuple[str, int, str, str]) -> None:
        self.number = number
        self.request = request
        self.code: bytes | None = None
        self.reason = ""
        self.seconds = 0.0
        self.taken = -1
        """The generation of the queue in which somebody took it."""


class CompileQueue:
    """Jobs that nobody has taken, and the processes that take them.

    ``compile``: ``compile(text, level, cpu, features)`` makes machine code in this process.
    """

    def __init__(self, compile: Callable[[str, int, str, str], bytes]) -> None:
        self._compile = compile
        self._numbers = count()
        self._waiting: WeakValueDictionary[int, Job] = WeakValueDictionary()
        """By number: those that nobody has taken, and somebody may still ask for."""
        self._changed = threading.Condition(new_lock())
        self._processes = 0
        self._usable = True
        """Whether no process failed to begin."""
        self._generation = 0
        """It becomes another where those who took jobs are given up, or are not here, as in a forked child."""

    def put(self, text: str, level: int, cpu: str, features: str) -> Job:
        """Add a module; a process begins if many wait.

        Raises DeviceError if ``FLUIDLITE_COMPILE_PROCESSES`` says no number.
        """
        most, job = most_processes(), Job(next(self._numbers), (text, level, cpu, features))
        with self._changed:
            self._waiting[job.number] = job
            self._changed.notify()
            enough = len(self._waiting) > EACH * (self._processes + 1)
            begin = self._usable and enough and self._processes < most
            self._processes += begin
        if begin:
            try:
                threading.Thread(target=self._run_process, name="fluidlite compiler", daemon=True).start()
            except RuntimeError:  # no more threads, or Python ends
                self._ended(False)
        return job

    def result(self, job: Job) -> bytes:
        """Return the machine code of a module. Until it is there, this thread compiles it, or others that wait.

        Raises RuntimeError with LLVM's reason, if it refuses the text.
        """
        while job.code is None and not job.reason:
            mine, began = None, perf_counter()
            try:
                with self._changed:
                    if job.code is not None or job.reason:
                        break
                    mine = job if job.taken != self._generation else self._next()
                    if mine is None:
                        if not self._changed.wait(PATIENCE_SECONDS):  # who has it hangs, and may have more
                            self._generation, self._usable = self._generation + 1, False
                        continue
                    self._waiting.pop(mine.number, None)
                    mine.taken = self._generation
                self._done(mine, self._compile(*mine.request), "", perf_counter() - began)
            except RuntimeError as exc:
                assert mine is not None
                self._done(mine, None, str(exc) or "no reason", perf_counter() - began)
            except BaseException:  # an interrupt
                if mine is not None:
                    self._give_back(mine)
                raise
        if job.code is None:
            raise RuntimeError(job.reason)
        return job.code

    def _done(self, job: Job, code: bytes | None, reason: str, seconds: float) -> None:
        with self._changed:
            job.code, job.reason, job.seconds = code, reason, seconds
            self._changed.notify_all()

    def _give_back(self, job: Job) -> None:
        with self._changed:
            job.taken = -1
            self._waiting[job.number] = job
            self._changed.notify_all()

    def _next(self) -> Job | None:
        """The job that waits longest."""
        return next(iter([*self._waiting.values()]), None)

    def _take(self) -> Job | None:
        """Take a job; None if none comes for a while."""
        with self._changed:
            job: Job | None = self._changed.wait_for(self._next, IDLE_SECONDS)
            if job is not None:
                del self._waiting[job.number]
                job.taken = self._generation
            return job

    def _run_process(self) -> None:
        """Let a process compile what waits, until nothing does. What one leaves undone waits again."""
        command = [sys.executable, "-I", "-S", "-c", _BEGIN, object_code.__file__, json.dumps(sys.path)]
        job, ready = None, False
        try:
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt is not for it
            ) as process:  # fmt: skip
                assert process.stdin is not None and process.stdout is not None
                ready = marshal.load(process.stdout) == object_code.READY
                while ready and (job := self._take()) is not None:
                    began = perf_counter()
                    marshal.dump(job.request, process.stdin)
                    process.stdin.flush()
                    code, reason = marshal.load(process.stdout)
                    self._done(job, code or None, reason, perf_counter() - began)
        except (OSError, EOFError, ValueError, TypeError):  # it is gone, or says something else
            pass
        finally:
            if job is not None and job.code is None and not job.reason:
                self._give_back(job)
            self._ended(ready)

    def _ended(self, usable: bool) -> None:
        with self._changed:
            self._processes -= 1
            self._usable = self._usable and usable

    def begin_anew(self) -> None:
        """In a forked child: the threads and processes are the parent's, and what they took is compiled by who asks."""
        self._generation += 1
        self._processes = 0
        self._waiting = WeakValueDictionary()
        self._changed = threading.Condition(new_lock())


def queue(compile: Callable[[str, int, str, str], bytes]) -> CompileQueue:
    """Return a queue that forked children begin anew."""
    made = CompileQueue(compile)
    first_in_child(made.begin_anew)
    return made
