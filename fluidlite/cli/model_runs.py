"""Run saved programs without data (zeros as feeds and missing state), and write the sources of their kernels."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from fluidlite.base.dtypes import NUMPY
from fluidlite.base.errors import FeedError, FetchError, OutOfMemoryError
from fluidlite.executor import Executor
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.program.operator import EMPTY
from fluidlite.program.program import Program
from fluidlite.program.scope import Scope


def check_fits(what: str, dims: Sequence[int], dtype: np.dtype[Any]) -> None:
    """Raise OutOfMemoryError, before an array is allocated, if it is larger than the host's memory."""
    nbytes, memory = prod(dims) * dtype.itemsize, devices.unit(devices.host()).info.memory
    # NumPy has a limit of its own, also for arrays of no elements.
    limit = sys.maxsize if memory is None else memory
    if nbytes > limit or prod(max(dim, 1) for dim in dims) * dtype.itemsize > sys.maxsize:
        raise OutOfMemoryError(
            f"{what} of dims {list(dims)} is too large; the host has {limit:,} bytes\n  Do: give it smaller dims"
        )


def _zeros(what: str, dims: Sequence[int], dtype: str) -> np.ndarray[Any, Any]:
    check_fits(what, dims, NUMPY[dtype])
    return np.zeros(dims, NUMPY[dtype])


def fetched_names(program: Program, fetches: Sequence[str]) -> list[str]:
    """The names to fetch: ``fetches``, else those of the program, else the outputs that no operator reads.

    Raises FetchError if there is no such variable.
    """
    names = list(fetches) or list(program.fetch_names) or leaves(program)
    for name in names:
        if program.global_block().find_var(name) is None:
            raise FetchError(f"the program has no variable {name!r} to fetch")
    return names


def leaves(program: Program) -> list[str]:
    """Outputs that no operator reads, without state and intermediate outputs for gradients."""
    block = program.global_block()
    read = {name for op in block.ops for name in op.input_arg_names}
    names: dict[str, None] = {}
    for op in block.ops:
        for slot in op.definition.outputs:
            for name in op.outputs.get(slot.name, ()) if not slot.intermediate else ():
                if name != EMPTY and name not in read and not block.var(name).persistable:
                    names[name] = None
    return list(names)


def zero_feeds(program: Program, feeds: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray[Any, Any]]:
    """Zeros for all feeds of a program; ``feeds`` has the dims of feeds with open dims.

    Raises FeedError if a feed has open dims, or there is no such feed; OutOfMemoryError if one is too large.
    """
    data = {variable.name: variable for variable in program.global_block().vars.values() if variable.is_data}
    unknown = [name for name in feeds if name not in data]
    if unknown:
        raise FeedError(f"the program is not fed {unknown[0]!r}; it takes {', '.join(data) or 'nothing'}")
    arrays = {}
    for name, variable in data.items():
        spec = variable._spec()
        dims = tuple(feeds.get(name, spec.dims))
        if -1 in dims:
            raise FeedError(f"the dims of {name!r} are {list(dims)}\n  Do: --feed {name}=4x8 says what -1 is")
        arrays[name] = _zeros(f"{name!r}", dims, spec.dtype)
    return arrays


def set_zero_state(program: Program, scope: Scope, place: Place) -> None:
    """Set uninitialised state to zeros."""
    for variable in program.list_vars():
        holder = scope.find_var(variable.name)
        if not variable.persistable or (holder is not None and holder.get_tensor().initialized):
            continue
        if variable.spec is not None and variable.spec.is_static:
            zeros = _zeros(f"{variable.name!r}", variable.spec.dims, variable.dtype)
            scope.var(variable.name).get_tensor().set(zeros, place)


def write_sources(
    program: Program,
    place: str,
    codegen: str | None,
    feeds: Mapping[str, Sequence[int]],
    fetches: Sequence[str],
    folder: Path,
) -> list[Path]:
    """Run a program on zeros, with state of zeros, and write the sources of its kernels.

    ``feeds``: dims of feeds with open dims, by name.
    ``fetches``: default: see :func:`fetched_names`.
    Raises FeedError, FetchError, PlaceError if a feed has open dims or there is no such feed, variable, place or
    generator.
    """
    names, feed = fetched_names(program, fetches), zero_feeds(program, feeds)
    scope = Scope()
    exe = Executor(place, codegen=codegen, mode="compiled")
    try:
        set_zero_state(program, scope, exe.place)
        for _ in range(2):  # the second run builds the fast path
            exe.run(program, feed, names, scope=scope)
        return exe.write_sources(folder)
    finally:
        exe.close()
