"""A worker process that runs checks: it reads ids from standard input and writes outcomes to standard output, in JSON.

A device that crashes, hangs or is lost only affects this process.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from dataclasses import asdict
from typing import Any

from fluidlite.base.errors import DeviceLost, PluginWarning
from fluidlite.conformance.certificate import FAILED, PASSED, CheckOutcome
from fluidlite.conformance.checks import Check, checks
from fluidlite.conformance.op_harness import recorded_kernels
from fluidlite.conformance.plugin_modules import load_plugin_modules

LOST = 3
"""Exit code after the place was lost: this process can run no more checks."""


def main() -> int:
    """Run checks until standard input ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # output of plugins and libraries must not mix with replies

    def reply(**message: Any) -> None:
        replies.write(json.dumps(message) + "\n")

    setup = json.loads(sys.stdin.readline())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)  # the parent process has warned
        load_plugin_modules(setup["plugins"])
    checks_by_id = {check.id: check for check in checks()}
    reply(ready=True)
    for line in sys.stdin:
        for id in json.loads(line):
            reply(started=id)
            outcome, lost = run_check(checks_by_id[id], setup["place"])
            reply(outcome=asdict(outcome))
            if lost:
                return LOST
        reply(idle=True)
    return 0


def run_check(check: Check, place: str) -> tuple[CheckOutcome, bool]:
    """Run one check; return its outcome, and whether the place is lost."""
    start = time.perf_counter()
    lost = False
    error = details = ""
    with recorded_kernels() as uses:
        try:
            check(place)
        except Exception as exc:
            error = f"{type(exc).__name__}: {exc}"
            details = traceback.format_exc()
            lost = isinstance(exc, DeviceLost)
    state = FAILED if error else PASSED
    return CheckOutcome(check.id, state, time.perf_counter() - start, error, details, tuple(dict.fromkeys(uses))), lost
