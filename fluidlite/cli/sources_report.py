"""The sources of a saved program, written to files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fluidlite.cli.model_runs import fetched_names, set_zero_state, zero_feeds
from fluidlite.executor import Executor
from fluidlite.program.program import Program
from fluidlite.program.scope import Scope


def write_sources(
    program: Program,
    place: str,
    codegen: str | None,
    feeds: Mapping[str, Sequence[int]],
    fetches: Sequence[str],
    folder: Path,
) -> list[Path]:
    """Run a program once, on zeros and with state of zeros, and write the sources of what ran.

    ``feeds``: dims by name; of what the program leaves open; others are as declared.
    ``fetches``: default: what the program names, else what no operator reads.
    Raises FeedError, FetchError, PlaceError if a feed has open dims or there is no such feed, variable, place or
    generator.
    """
    names, given = fetched_names(program, fetches), zero_feeds(program, feeds)
    scope = Scope()
    exe = Executor(place, codegen=codegen, mode="compiled")
    try:
        set_zero_state(program, scope, exe.place)
        for _ in range(2):  # the second run makes the fast path
            exe.run(program, given, names, scope=scope)
        return exe.write_sources(folder)
    finally:
        exe.close()
