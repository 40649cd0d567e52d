"""Distribute checks to worker processes; a process that dies or hangs fails its check, and a new one continues."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from fluidlite.base.errors import FluidError
from fluidlite.conformance.certificate import FAILED, CheckOutcome
from fluidlite.conformance.worker import LOST

_WORKER_SOURCE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from fluidlite.conformance.worker import main; sys.exit(main())"
)
_POLL_SECONDS = 0.5
"""Interval between tests for overdue checks."""
_EXIT_TIMEOUT_SECONDS = 10.0
"""Time for a process to exit before it is killed."""
_MAX_DEATHS = 3
"""Maximum number of processes that may die between checks."""
_STDERR_TAIL_CHARS = 2000
"""Characters of standard error in the message of a dead process."""
_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class _Worker:
    """A worker process; replies go to a queue shared by all."""

    def __init__(self, setup: dict[str, Any], jobs: int, replies: queue.Queue[tuple[_Worker, Any]]) -> None:
        self.chunk: deque[str] = deque()
        self.running = ""
        self.started_at = 0.0
        self.ready = False
        self._why = ""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        threads = str(max(1, (os.cpu_count() or 1) // jobs))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WORKER_SOURCE, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            encoding="utf-8",
            env={**dict.fromkeys(_BLAS_THREADS, threads), **os.environ},
        )
        self._send(setup)
        self._listener = threading.Thread(target=self._listen, args=(replies,), daemon=True)
        self._listener.start()

    def _send(self, message: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # the process has died; the end of its replies reports it

    def _listen(self, replies: queue.Queue[tuple[_Worker, Any]]) -> None:
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                replies.put((self, json.loads(line)))
        except (OSError, ValueError):
            pass  # an incomplete line of a killed process
        replies.put((self, None))

    def send_chunk(self, chunk: Sequence[str]) -> None:
        self.chunk = deque(chunk)
        self._send(list(chunk))

    def mark_started(self, id: str) -> None:
        self.chunk.remove(id)
        self.running, self.started_at = id, time.monotonic()

    def is_overdue(self, timeout: float) -> bool:
        return bool(self.running) and time.monotonic() - self.started_at > timeout

    def kill(self, why: str) -> None:
        """Kill the process; ``why`` is the error of its check."""
        self._why = why
        self.process.kill()

    def describe_exit(self) -> str:
        """Describe how the process exited, with the tail of its standard error, once its replies have ended."""
        try:
            code = self.process.wait(_EXIT_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:  # it closed its output, but still runs
            self.process.kill()
            code = self.process.wait()
        self._stderr.seek(0)
        tail = self._stderr.read().decode(errors="replace").strip()[-_STDERR_TAIL_CHARS:]
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return (self._why or f"the process that ran it was {how}") + (f"; it wrote: {tail}" if tail else "")

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()
            self.process.wait(_EXIT_TIMEOUT_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self._listener.join()
        self.process.stdout.close()
        self._stderr.close()


def run_in_processes(
    chunks: Sequence[Sequence[str]], jobs: int, setup: dict[str, Any], timeout: float
) -> Iterator[CheckOutcome]:
    """Run checks by id, and yield their outcomes as they come.

    ``chunks``: lists of ids that one process runs in sequence; the longest are started first.
    ``jobs``: number of processes.
    ``setup``: ``place`` and ``plugins``, for each process.
    ``timeout``: seconds that one check may take; its process is then ended.
    Raises FluidError if a process ends before it is ready, or if several end between checks.
    """
    waiting = deque(sorted(chunks, key=len, reverse=True))
    replies: queue.Queue[tuple[_Worker, Any]] = queue.Queue()
    jobs = min(jobs, len(waiting))
    workers = [_Worker(setup, jobs, replies) for _ in range(jobs)]
    busy = set(workers)
    deaths = 0
    try:
        while busy:
            for worker in busy if replies.empty() else ():  # a pending reply may report that the check is done
                if worker.is_overdue(timeout):
                    worker.kill(f"took longer than {timeout:g} s, and its process was ended")
            try:
                worker, message = replies.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            if message is None:
                busy.discard(worker)
                ending = worker.describe_exit()
                if not worker.ready:
                    raise FluidError(f"a process for checks did not start: {ending}")
                if worker.running:
                    yield CheckOutcome(worker.running, FAILED, time.monotonic() - worker.started_at, ending)
                elif worker.process.returncode != LOST:
                    deaths += 1
                    if deaths > _MAX_DEATHS:
                        raise FluidError(f"processes for checks end between checks: {ending}")
                if worker.chunk:
                    waiting.appendleft(list(worker.chunk))
                if waiting:
                    workers.append(_Worker(setup, jobs, replies))
                    busy.add(workers[-1])
            elif "started" in message:
                worker.mark_started(message["started"])
            elif "outcome" in message:
                worker.running = ""
                outcome = message["outcome"]
                yield CheckOutcome(
                    **{**outcome, "uses": tuple((type, how, library) for type, how, library in outcome["uses"])}
                )
            else:
                worker.ready = True
                if waiting:
                    worker.send_chunk(waiting.popleft())
                else:
                    busy.discard(worker)
    except BaseException:
        for worker in workers:
            worker.process.kill()
        raise
    finally:
        for worker in workers:
            worker.close()
