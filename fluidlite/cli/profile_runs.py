"""Profile a script, or runs of a saved model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fluidlite.cli.model_runs import fetched_names, set_zero_state, zero_feeds
from fluidlite.cli.terminal import print_json
from fluidlite.executor import Executor
from fluidlite.executor.default_place import host_runs_on
from fluidlite.io.inference_model import load_inference_model, read_program
from fluidlite.paddle.script import ScriptError, report, run_script
from fluidlite.profiler import Profile, check_sorted_key, check_state, recorded
from fluidlite.program.scope import Scope, scope_guard

WARM_UP_RUNS = 3
"""Runs of a model before the profiled ones, for planning, linking and compiling."""


@dataclass(frozen=True)
class ModelRuns:
    """Runs of a saved model, on zeros.

    ``path``: a folder of ``save_inference_model``, whose parameters are loaded; or a program's JSON file, run with
    state of zeros.
    ``feeds``: dims of feeds with open dims, by name.
    ``fetches``: default: see :func:`fetched_names`.
    ``runs``: the number of profiled runs.
    ``mode``: "compiled" or "interpreted".
    """

    path: Path
    place: str
    feeds: Mapping[str, Sequence[int]]
    fetches: Sequence[str]
    runs: int
    mode: str

    def profile(self, state: str) -> Profile:
        """Run and profile the model; ``state``: see ``fluid.profiler.start_profiler``.

        Raises FeedError, FetchError, PlaceError, ProgramError, SavedModelError.
        """
        scope = Scope()
        exe = Executor(self.place, mode=self.mode)
        try:
            with scope_guard(scope):
                folder = self.path.is_dir()
                program = load_inference_model(self.path, exe)[0] if folder else read_program(self.path)
            names, feed = fetched_names(program, self.fetches), zero_feeds(program, self.feeds)
            set_zero_state(program, scope, exe.place)
            for _ in range(WARM_UP_RUNS):
                exe.run(program, feed, names, scope=scope)
            with recorded(state) as profile:
                for _ in range(self.runs):
                    exe.run(program, feed, names, scope=scope)
            return profile
        finally:
            exe.close()


def profile_script(
    path: Path, arguments: Sequence[str], place: str | None, state: str
) -> tuple[Profile, ScriptError | SystemExit | None]:
    """Run and profile a script; return the profile, and the script's exception (also of ``sys.exit``) or None.

    ``path``: a script that imports ``fluidlite`` or ``paddle.fluid``.
    ``arguments``: the script's.
    ``place``: the place of executors that the script creates for the host; others are not changed.
    Raises PlaceError, DeviceUnavailable, ProgramError: before the script runs.
    """
    error: ScriptError | SystemExit | None = None
    with host_runs_on(place or "cpu"), recorded(state) as profile:
        try:
            run_script(str(path), list(arguments))
        except (ScriptError, SystemExit) as exc:
            error = exc
    return profile, error


def show(
    out: Console,
    model: ModelRuns,
    script: bool,
    arguments: Sequence[str],
    place: str | None,
    sort: str,
    trace: Path | None,
    state: str,
    as_json: bool,
) -> int:
    """Profile a script or a model, print the table or JSON, and write the trace; return the exit code.

    A script that raises is profiled up to the exception, which is printed; the exit code is then 1. Where it calls
    ``sys.exit``, its SystemExit is raised at the end.
    """
    check_sorted_key(sort)
    check_state(state)
    error: ScriptError | SystemExit | None = None
    if script:
        profile, error = profile_script(model.path, arguments, place, state)
    else:
        profile = model.profile(state)
    if trace is not None:
        profile.write_trace(trace)
    if as_json:
        print_json(profile.data(sort))
    else:
        out.print(profile.text(sort), soft_wrap=True)
    if isinstance(error, SystemExit):
        raise error
    if error is not None:
        report(error.error)
        return 1
    return 0
