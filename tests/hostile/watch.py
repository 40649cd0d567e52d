"""Watches one case of hostile input: its errors, its time and its memory."""

from __future__ import annotations

import faulthandler
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from fluidlite.base.errors import FluidError

MAX_SECONDS = 2.0
MAX_EXTRA_BYTES = 100 << 20
_MAX_WAIT_SECONDS = 20.0
"""Of the clock: the processor may be busy with others, so that only what waits takes so long."""
_DEAD_SECONDS = 120


class Hang(BaseException):
    """A case that used the processor for more than MAX_SECONDS."""


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) << 10
    raise KeyError(key)


class Watch:
    """Runs cases, and keeps what they did wrong.

    Attributes
    ----------
    counts : Counter
        How cases ended.
    findings : list of str
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.findings: list[str] = []
        self.peak_bytes = 0
        self.slowest = 0.0

    def case(self, label: str, run: Callable[[], str], own_bytes: int, where: str) -> None:
        """Run one case: it returns how it ended, or raises a FluidError; all else is a finding."""

        def late(signum: int, frame: FrameType | None) -> None:
            raise Hang

        Path("/proc/self/clear_refs").write_text("5")  # the peak of resident memory begins anew
        before = _status("VmRSS")
        signal.signal(signal.SIGPROF, late)
        signal.signal(signal.SIGALRM, late)
        faulthandler.dump_traceback_later(_DEAD_SECONDS, exit=True)  # C code that does not come back
        began = time.process_time()
        error = ""
        try:
            signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
            signal.setitimer(signal.ITIMER_REAL, _MAX_WAIT_SECONDS)
            try:
                self.counts[run()] += 1
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
                signal.setitimer(signal.ITIMER_REAL, 0)
        except FluidError as exc:
            self.counts[f"{label}: {type(exc).__name__}"] += 1
        except Hang:
            error = "hang: " + "".join(traceback.format_exc().splitlines(keepends=True)[-14:])
        except Exception as exc:
            error = f"foreign {type(exc).__name__}: {exc!s:.200}\n" + traceback.format_exc()[-1500:]
        faulthandler.cancel_dump_traceback_later()
        self.slowest = max(self.slowest, time.process_time() - began)
        extra = _status("VmHWM") - before - own_bytes
        self.peak_bytes = max(self.peak_bytes, extra)
        if extra > MAX_EXTRA_BYTES and not error:
            error = f"memory: {extra >> 20} MB"
        if error:
            self.counts["FINDING"] += 1
            self.findings.append(f"{label} {where}: {error}")
            print(self.findings[-1], file=sys.stderr, flush=True)

    def report(self) -> str:
        """A summary of all cases."""
        total = sum(self.counts.values())
        lines = [f"{count:8,}  {what}" for what, count in self.counts.most_common()]
        lines.append(
            f"{total:,} cases: {len(self.findings)} findings, slowest {self.slowest:.2f} s of processor time, "
            f"peak {max(self.peak_bytes, 0) >> 20} MB above the model"
        )
        return "\n".join(lines)
