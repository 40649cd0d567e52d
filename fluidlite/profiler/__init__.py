"""``fluid.profiler``: measures the time of each operator and kernel on its place, as a table and as a trace.

Fluid's functions (``python/paddle/fluid/profiler.py``, 1.1 to 1.8), and :func:`recorded`, which yields the profile.
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
    """The profile in progress."""

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
        """End the current profile and return it; with an argument, only if it is that one."""
        with self.lock:
            current = self.profile
            if current is None or (profile is not None and current is not profile):
                return None
            set_timer(None)
            self.recording = self.profile = None
        current.end()
        return current


_current = _Current()


@first_in_child
def _reset_after_fork() -> None:
    _current.recording = _current.profile = None


def check_state(state: str) -> None:
    """Raise ProgramError unless it is a state of :func:`start_profiler`."""
    if state not in STATES:
        raise ProgramError(f"the state of a profiler is {state!r}; expected one of {', '.join(STATES)}")


def check_sorted_key(sorted_key: str | None) -> None:
    """Raise ProgramError unless it is a key of :func:`stop_profiler`."""
    if sorted_key not in (None, "default", *SORTED_KEYS):
        raise ProgramError(
            f"the sorted_key of a profiler is {sorted_key!r}; expected None or one of default, {', '.join(SORTED_KEYS)}"
        )


def start_profiler(state: str, tracer_option: str = "Default") -> None:
    """Start profiling the runs of all threads.

    Parameters
    ----------
    state : {"CPU", "GPU", "All"}
        "All" and "GPU": the time of operators on their places, of any kind. "CPU": the time of their calls on the
        host, without waits for queues.
    tracer_option : {"Default", "Serial", "OpDetail", "AllOpDetail"}
        Fluid's levels of detail; here all of them record every operator.

    Raises
    ------
    ProgramError
        For another state or option, or if a profiler is running. It is a ValueError, as in Fluid.
    """
    if tracer_option not in TRACER_OPTIONS:
        raise ProgramError(f"tracer_option is {tracer_option!r}; expected one of {', '.join(TRACER_OPTIONS)}")
    _current.start(state)


def stop_profiler(sorted_key: str | None = None, profile_path: str | Path | None = "/tmp/profile") -> None:
    """Stop profiling, print the table, and write the trace; does nothing if no profiler is running.

    Parameters
    ----------
    sorted_key : {None, "default", "calls", "total", "max", "min", "ave"}
        The column by which the table is sorted, in descending order; default: the order of first calls.
    profile_path : str, Path or None
        Path of the trace, as JSON for chrome://tracing and Perfetto. (Fluid wrote a protobuf, which its
        ``tools/timeline.py`` converted to this JSON.) None: no file.

    Raises
    ------
    ProgramError
        For another sorted_key; the profiler keeps running. Or if the trace cannot be written; the table is printed,
        and the profiler is stopped.
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
    """Discard all records so far; a running profiler keeps running."""
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
    """Profile a block: :func:`start_profiler` before and :func:`stop_profiler` after it, also after an error.

    Raises
    ------
    ProgramError
        Before the block: for another state, sorted_key or option, or if a profiler is running, which keeps running.
        After it: if the trace cannot be written; the table is printed.
    """
    check_sorted_key(sorted_key)
    start_profiler(state, tracer_option)
    profile = _current.profile
    try:
        yield
    finally:
        stopped = _current.stop(profile)
        if stopped is not None:
            _report(stopped, sorted_key, profile_path)


@contextmanager
def recorded(state: str = "All") -> Iterator[Profile]:
    """Profile a block; rows, table and trace are read from the profile that it yields.

    Yields
    ------
    Profile

    Raises
    ------
    ProgramError
        For another state, or if a profiler is running, which keeps running.
    """
    profile = _current.start(state)
    try:
        yield profile
    finally:
        _current.stop(profile)


@contextmanager
def cuda_profiler(output_file: str | Path, output_mode: str | None = None, config: object = None) -> Iterator[None]:
    """Profile a block as :func:`profiler` does, on any place; the trace goes to ``output_file``.

    Fluid started NVIDIA's command-line profiler, which no longer exists. Its ``config`` and the format ``output_mode``
    ("kvp" or "csv") have no effect: the file is JSON for chrome://tracing and Perfetto. Nothing is printed.

    Raises
    ------
    ProgramError
        For another output_mode, or if a profiler is running.
    """
    if output_mode not in (None, *OUTPUT_MODES):
        raise ProgramError(f"output_mode is {output_mode!r}; expected None or one of {', '.join(OUTPUT_MODES)}")
    with recorded("All") as profile:
        yield
    profile.write_trace(output_file)


class RecordEvent:
    """Records a block of the user's code under a name, in table and trace; without a profiler it does nothing.

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
