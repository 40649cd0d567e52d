"""Save and restore how often each random stream was drawn from, so that a resumed training continues its streams."""

from __future__ import annotations

import json
from typing import Any

from fluidlite.base.errors import SavedModelError
from fluidlite.io.commit import Writer
from fluidlite.io.manifest import parse_record
from fluidlite.io.snapshot import Snapshot
from fluidlite.program.program import Program
from fluidlite.program.scope import Scope

Runs = dict[tuple[int, int], int]
"""How often each random stream has run, by stream and seed."""

_FORMAT, _VERSION = "fluidlite.random", 1
_MAX_BYTES = 16 << 20
SEEDS = range(-(1 << 63), 1 << 64)
_LIMITS = (range(1 << 32), SEEDS, range(1 << 63))


def _file(name: str | None) -> str:
    """The name of the file, next to the file ``name`` of values, or in the folder of one file a variable."""
    return "__random__" if name is None else f"{name}.random"


def _has_seeded_draws(program: Program) -> bool:
    """Whether a program draws reproducible random numbers: it has a seed and random operators."""
    return program.random_seed != 0 and any(op.definition.random for block in program.blocks for op in block.ops)


def run_writers(program: Program, scope: Scope, name: str | None) -> dict[str, Writer]:
    """The writer of a scope's counts of draws; empty for a program without seeded draws.

    Counts of other programs' seeds are included: several programs may be saved into one folder.
    """
    if not _has_seeded_draws(program):
        return {}
    runs = [[stream, seed, count] for (stream, seed), count in sorted(scope.random_runs().items()) if seed]
    return {_file(name): json.dumps({"format": _FORMAT, "version": _VERSION, "runs": runs}).encode()}


def read_runs(snapshot: Snapshot, program: Program, name: str | None) -> Runs:
    """Read how often a program's seed was drawn from; empty if that was not saved.

    Raises
    ------
    SavedModelError
        The file is malformed, or of a newer version.
    """
    file = _file(name)
    if not _has_seeded_draws(program) or not snapshot.holds(file):
        return {}
    path, do = snapshot.folder / file, "\n  Do: save the model again, or remove the file to begin random numbers anew"
    text = snapshot.read(file, _MAX_BYTES)
    record = parse_record(text, path, _FORMAT, _VERSION, "file of random numbers' positions", do)
    try:
        runs = parse_runs(record.get("runs"))
    except ValueError as exc:
        raise SavedModelError(f"{path} is malformed: {exc}{do}") from None
    return {key: count for key, count in runs.items() if key[1] == program.random_seed}


def parse_runs(rows: Any) -> Runs:
    """Return the counts of rows ``[stream, seed, count]``. Raises ValueError if a row is something else."""
    runs: Runs = {}
    for row in rows if isinstance(rows, list) else [rows]:
        if not isinstance(row, list) or [type(each) for each in row] != [int] * 3:
            raise ValueError(f"it says {row!r:.60}; expected [stream, seed, count]")
        if any(number not in limits for number, limits in zip(row, _LIMITS, strict=True)):
            raise ValueError(f"{row!r:.60} are no stream, seed and count")
        runs[row[0], row[1]] = row[2]
    return runs
