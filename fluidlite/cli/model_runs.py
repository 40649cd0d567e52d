"""Running saved programs without data: feeds of zeros, and state of zeros where no values were saved; their sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fluidlite.base.dtypes import NUMPY
from fluidlite.base.errors import FeedError, FetchError
from fluidlite.executor import Executor
from fluidlite.platform.place import Place
from fluidlite.program.operator import EMPTY
from fluidlite.program.program import Program
from fluidlite.program.scope import Scope


def fetched_names(program: Program, fetches: Sequence[str]) -> list[str]:
    """What is fetched: what is asked for, else what the program names, else what no operator reads.

    Raises FetchError if there is no such variable.
    """
    names = list(fetches) or list(program.fetch_names) or leaves(program)
    for name in names:
        if program.global_block().find_var(name) is None:
            raise FetchError(f"the program has no variable {name!r} to fetch")
    return names


def leaves(program: Program) -> list[str]:
    """What no operator reads, state and what exists for gradients apart."""
    block = program.global_block()
    read = {name for op in block.ops for name in op.input_arg_names}
    found: dict[str, None] = {}
    for op in block.ops:
        for slot in op.definition.outputs:
            for name in op.outputs.get(slot.name, ()) if not slot.intermediate else ():
                if name != EMPTY and name not in read and not block.var(name).persistable:
                    found[name] = None
    return list(found)


def zero_feeds(program: Program, feeds: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray[Any, Any]]:
    """Zeros for all that a program is fed; ``feeds`` has the dims that it leaves open.

    Raises FeedError if a feed has open dims, or there is no such feed.
    """
    data = {variable.name: variable for variable in program.global_block().vars.values() if variable.is_data}
    unknown = [name for name in feeds if name not in data]
    if unknown:
        raise FeedError(f"the program is not fed {unknown[0]!r}; it takes {', '.join(data) or 'nothing'}")
    given = {}
    for name, variable in data.items():
        spec = variable._spec()
        dims = tuple(feeds.get(name, spec.dims))
        if -1 in dims:
            raise FeedError(f"the dims of {name!r} are {list(dims)}\n  Do: --feed {name}=4x8 says what -1 is")
        given[name] = np.zeros(dims, NUMPY[spec.dtype])
    return given


def set_zero_state(program: Program, scope: Scope, place: Place) -> None:
    """Give state that has no value zeros."""
    for variable in program.list_vars():
        held = scope.find_var(variable.name)
        if not variable.persistable or (held is not None and held.get_tensor().initialized):
            continue
        if variable.spec is not None and variable.spec.known:
            scope.var(variable.name).get_tensor().set(np.zeros(variable.spec.dims, NUMPY[variable.dtype]), place)


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
