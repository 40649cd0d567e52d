"""``fluid.profiler``: what each operator and kernel costs on its place, as a table and as a trace.

Fluid's functions (``python/paddle/fluid/profiler.py``, 1.1 to 1.8), and :func:`recorded`, which gives the profile.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType

from fluidlite.base.errors import ProgramError
from fluidlite.base.fork import first_in_child, new_lock
from fluidlite.compiler.instrumentation import set_timer
from fluidlite.profiler.profile import SORTED_KEYS, Profile
from fluidlite.profiler.recording import Recording

__all__ = [
    "Profile",
    "RecordEvent",
    "cuda_profiler",
    "profiler",
    "recorded",
    "reset_profiler",
    "start_profiler",
    "stop_profiler",
]

STATES = ("CPU", "GPU", "All")
TRACER_OPTIONS = ("Default", "Serial", "OpDetail", "AllOpDetail")
OUTPUT_MODES = ("kvp", "csv")


class _Current:
    """The profile that is being recorded."""

    def __init__(self) -> None:
        self.lock = new_lock()
        self.recording: Recording | None = None
        self.profile: Profile | None = None

    def start(self, state: str) -> Profile:
        check_state(state)
        with self.lock:
            if self.profile is not None:
                raise ProgramError(
                    f"a profiler is on already, in state {self.profile.state!r}; there is one at a time"
                    "\n  Do: stop it first (fluid.profiler.stop_profiler()), or name a part of it by RecordEvent"
                )
            self.recording = Recording(host_only=state == "CPU")
            self.profile = Profile(self.recording, state)
            set_timer(self.recording)
            return self.profile

    def stop(self, profile: Profile | None = None) -> Profile | None:
        """End the profile that is on; with an argument, only if it is that one."""
        with self.lock:
            found = self.profile
            if found is None or (profile is not None and found is not profile):
                return None
            set_timer(None)
            self.recording = self.profile = None
        found.end()
        return found


_current = _Current()


@first_in_child
def _begin_anew() -> None:
    _current.recording = _current.profile = None


def check_state(state: str) -> None:
    """Raise ProgramError unless it is one of ``start_profiler``'s."""
    if state not in STATES:
        raise ProgramError(f"the state of a profiler is {state!r}; expected one of {', '.join(STATES)}")


def check_sorted_key(sorted_key: str | None) -> None:
    """Raise ProgramError unless it is one of ``stop_profiler``'s."""
    if sorted_key not in (None, "default", *SORTED_KEYS):
        raise ProgramError(
            f"the sorted_key of a profiler is {sorted_key!r}; expected None or one of default, {', '.join(SORTED_KEYS)}"
        )


def start_profiler(state: str, tracer_option: str = "Default") -> None:
    """Begin to profile the runs of all threads.

    Parameters
    ----------
    state : {"CPU", "GPU", "All"}
        "All" and "GPU": the time that operators take on their places, whatever these are. "CPU": the time for which
        their calls keep the host; queues are not waited for.
    tracer_option : {"Default", "Serial", "OpDetail", "AllOpDetail"}
        Fluid's levels of detail; each operator is always recorded here.

    Raises
    ------
    ProgramError
        A ValueError, as Fluid's: another state or option; or a profiler is on already.
    """
    if tracer_option not in TRACER_OPTIONS:
        raise ProgramError(f"tracer_option is {tracer_option!r}; expected one of {', '.join(TRACER_OPTIONS)}")
    _current.start(state)


def stop_profiler(sorted_key: str | None = None, profile_path: str | Path | None = "/tmp/profile") -> None:
    """End profiling, print the table, and write the trace; does nothing if no profiler is on.

    Parameters
    ----------
    sorted_key : {None, "default", "calls", "total", "max", "min", "ave"}
        By what the table is sorted, the largest first; default: the order of first calls.
    profile_path : str, Path or None
        Where the trace goes, as JSON for chrome://tracing and Perfetto. (Fluid's was a protobuf of its own, for its
        ``tools/timeline.py``, which made this JSON of it.) None: no file.

    Raises
    ------
    ProgramError
        Another sorted_key; the profiler stays on. Or the trace cannot be written; the table is printed, and the
        profiler is off.
    """
    check_sorted_key(sorted_key)
    profile = _current.stop()
    if profile is not None:
        _report(profile, sorted_key, profile_path)


def _report(profile: Profile, sorted_key: str | None, profile_path: str | Path | None) -> None:
    sys.stdout.write(f"\n{profile.text(sorted_key)}\n")
    if profile_path is not None:
        profile.write_trace(profile_path)


def reset_profiler() -> None:
    """Forget what was recorded until now; a profiler that is on goes on."""
    recording = _current.recording
    if recording is not None:
        recording.reset()


@contextmanager
def profiler(
    state: str,
    sorted_key: str | None = None,
    profile_path: str | Path | None = "/tmp/profile",
    tracer_option: str = "Default",
) -> Iterator[None]:
    """Profile a block: :func:`start_profiler` before it and :func:`stop_profiler` behind it, after an error too.

    Raises
    ------
    ProgramError
        Before the block runs: another state, sorted_key or option; or a profiler is on already, which goes on.
        After it: the trace cannot be written; the table is printed.
    """
    check_sorted_key(sorted_key)
    start_profiler(state, tracer_option)
    mine = _current.profile
    try:
        yield
    finally:
        found = _current.stop(mine)
        if found is not None:
            _report(found, sorted_key, profile_path)


@contextmanager
def recorded(state: str = "All") -> Iterator[Profile]:
    """Profile a block; the profile's rows, table and trace are read from what it gives.

    Yields
    ------
    Profile

    Raises
    ------
    ProgramError
        Another state, or a profiler is on already, which goes on.
    """
    profile = _current.start(state)
    try:
        yield profile
    finally:
        _current.stop(profile)


@contextmanager
def cuda_profiler(output_file: str | Path, output_mode: str | None = None, config: object = None) -> Iterator[None]:
    """Profile a block as :func:`profiler` does, on any place; the trace goes to ``output_file``.

    Fluid's switched NVIDIA's command-line profiler on, which is no more; its ``config`` and the format ``output_mode``
    ("kvp" or "csv") mean nothing here: the file is JSON for chrome://tracing and Perfetto. Nothing is printed.

    Raises
    ------
    ProgramError
        Another output_mode; or a profiler is on already.
    """
    if output_mode not in (None, *OUTPUT_MODES):
        raise ProgramError(f"output_mode is {output_mode!r}; expected None or one of {', '.join(OUTPUT_MODES)}")
    with recorded("All") as profile:
        yield
    profile.write_trace(output_file)


class RecordEvent:
    """Names what a block of the user's code does, in the table and in the trace; without a profiler it does nothing.

    Parameters
    ----------
    name : str
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise ProgramError(f"the name of an event is {name!r}; expected a text")
        self.name = name
        self._began: list[tuple[Recording | None, int]] = []

    def __enter__(self) -> RecordEvent:
        self._began.append((_current.recording, perf_counter_ns()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        recording, began = self._began.pop()
        if recording is not None and recording is _current.recording:
            recording.add_span("event", self.name, began, perf_counter_ns())
