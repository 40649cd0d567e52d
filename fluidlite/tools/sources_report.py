"""The sources of a saved program, written to files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fluidlite.base.dtypes import NUMPY
from fluidlite.base.errors import FeedError, FetchError
from fluidlite.executor import Executor
from fluidlite.framework.program import Program
from fluidlite.framework.scope import Scope
from fluidlite.tools.passes_report import leaves


def write_sources(
    program: Program,
    place: str,
    codegen: str | None,
    feeds: Mapping[str, Sequence[int]],
    fetches: Sequence[str],
    folder: Path,
) -> list[Path]:
    """Run a program once, on zeros and with state of zeros, and write the sources of what ran.

    Parameters
    ----------
    program : Program
    place : str
    codegen : str or None
    feeds : mapping of name to dims
        Of what the program leaves open; others are as declared.
    fetches : sequence of str
        Default: what the program names, else what no operator reads.

    Raises
    ------
    FeedError, FetchError, PlaceError
        If a feed has open dims or there is no such feed, variable, place or generator.
    """
    block = program.global_block()
    names = list(fetches) or list(program.fetch_names) or leaves(program)
    for name in names:
        if block.find_var(name) is None:
            raise FetchError(f"the program has no variable {name!r} to fetch")
    data = {variable.name: variable for variable in block.vars.values() if variable.is_data}
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
    scope = Scope()
    exe = Executor(place, codegen=codegen, mode="compiled")
    try:
        for variable in program.list_vars():
            if variable.persistable and variable.spec is not None and variable.spec.known:
                scope.var(variable.name).tensor.set(np.zeros(variable.spec.dims, NUMPY[variable.dtype]), exe.place)
        exe.run(program, given, names, scope=scope)
        return exe.write_sources(folder)
    finally:
        exe.close()
