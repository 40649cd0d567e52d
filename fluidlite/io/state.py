"""``fluid.save`` and ``fluid.load``: a program and its state in three files of one folder."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fluidlite.base.array_pickle import load_arrays
from fluidlite.base.dtypes import NUMPY, dtype_name
from fluidlite.base.errors import DtypeError, ProgramError, SavedModelError
from fluidlite.io.commit import Writer, save_files
from fluidlite.io.paths import PathText, folder_of
from fluidlite.io.random_runs import Runs, read_runs, run_writers
from fluidlite.io.snapshot import SavedFile, Snapshot, read_folder
from fluidlite.io.tensor_file import MAX_HEADER_BYTES, Stored, check_fit
from fluidlite.io.variables import (
    Predicate,
    check_format,
    is_parameter,
    is_persistable,
    read_values,
    set_values,
    stored_values,
    value_writers,
)
from fluidlite.program.program import Program
from fluidlite.program.protobuf.writing import write_program
from fluidlite.program.scope import global_scope
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor_spec import Spec

_MAX_PICKLE_BYTES = 4 << 30
_PICKLE = b"\x80"
"""The first byte of pickles of protocol 2 and later."""


def is_belong_to_optimizer(var: Variable) -> bool:
    """Whether a variable is state of an optimiser or a schedule: persistable, and no parameter."""
    return is_persistable(var) and not is_parameter(var)


PARTS = ((".pdparams", is_parameter), (".pdopt", is_belong_to_optimizer))


def _split(program: Program, model_path: PathText, what: str) -> tuple[Path, str]:
    if not isinstance(program, Program):
        raise ProgramError(f"fluid.{what}: program is {type(program).__name__}; expected a Program")
    path = folder_of(model_path)
    if os.fspath(model_path).endswith(os.sep) or not path.name:
        raise ProgramError(
            f"fluid.{what}: model_path is {os.fspath(model_path)!r}; expected a folder and a file's stem"
        )
    return path.parent, path.name


def save(program: Program, model_path: PathText, format: str = "fluidlite") -> None:
    """Save a program's parameters, its other state, and itself: ``.pdparams``, ``.pdopt`` and ``.pdmodel``.

    The files are safetensors and JSON, saved atomically. If the program has a ``random_seed``, the file ``.random``
    records how often its random operators have drawn.

    Parameters
    ----------
    program : Program
    model_path : path
        A folder and the stem of the files, such as ``"saved/line"``.
    format : str
        ``"paddle"``: pickles of arrays and a ``ProgramDesc``, as Paddle 1.8 writes them, by the package protobuf.

    Raises
    ------
    ProgramError
        A variable has no value, or the path has no stem.
    SavedModelError
        The files cannot be written; then the folder is unchanged.
    """
    folder, stem = _split(program, model_path, "save")
    check_format(format)
    text = write_program(program) if format == "paddle" else program.to_json().encode()
    writers: dict[str, Writer] = {f"{stem}.pdmodel": text}
    for suffix, predicate in PARTS:
        if format == "paddle":
            values = stored_values(program, None, predicate)
            writers[stem + suffix] = partial(_pickle, arrays=_picklable(values))
        elif any(map(predicate, program.list_vars())):
            writers |= value_writers(program, None, predicate, stem + suffix)
    writers |= run_writers(program, global_scope(), stem)
    save_files(folder, writers)


def _picklable(values: dict[str, Stored]) -> dict[str, Any]:
    """The arrays of values. Raises SavedModelError for those that Paddle's pickles, which are NumPy's, cannot hold."""
    for name, (array, _) in values.items():
        if array.dtype == NUMPY["bfloat16"]:
            raise SavedModelError(
                f"{name!r} is bfloat16, which Paddle's format cannot hold\n  Do: save with format='fluidlite'"
            )
    return {name: array for name, (array, _) in values.items()}


def _pickle(path: str, arrays: dict[str, Any]) -> None:
    with open(path, "wb") as stream:
        pickle.dump(arrays, stream, protocol=2)


def load(
    program: Program, model_path: PathText, executor: Any = None, var_list: Sequence[Variable] | None = None
) -> None:
    """Load what :func:`save` saved, or Paddle's ``fluid.save``, into the global scope.

    Paddle's files are pickles; they are read as data, and anything but arrays is refused. Without such files
    ``model_path`` is a folder of :func:`fluidlite.io.save_persistables`, or one file of several variables.

    Parameters
    ----------
    program : Program
        The program whose persistable variables are loaded.
    model_path : path
        As for :func:`save`.
    executor : Executor, optional
        Values are loaded to its place; default: the place of the scope's tensors, or the host.
    var_list : list of Variable, optional
        Load only these of the program.

    Raises
    ------
    SavedModelError
        A file is missing or damaged, or a value has other dims or another dtype; then the scope is unchanged.
    """
    folder, stem = _split(program, model_path, "load")
    names = None
    if var_list is not None:
        names = {v.name for v in var_list} | {v.selected.rows for v in var_list if v.selected is not None}

    def matches(predicate: Predicate) -> list[Variable]:
        return [v for v in program.list_vars() if predicate(v) and (names is None or v.name in names)]

    def runs_of(snapshot: Snapshot, name: str | None) -> Runs:
        return read_runs(snapshot, program, name) if names is None else {}

    def read_parts(snapshot: Snapshot) -> dict[str, Stored]:
        values: dict[str, Stored] = {}
        for suffix, predicate in PARTS:
            variables = matches(predicate)
            if variables and snapshot.holds(stem + suffix):
                with snapshot.open(stem + suffix) as file:
                    pickled = read_pickle(file)
                    if pickled is not None:
                        values |= _fitting(file, pickled, variables)
                        continue
            values |= read_values(snapshot, variables, stem + suffix)
        return values

    path = folder / stem
    if os.path.lexists(f"{path}.pdparams") or not path.exists():
        values, runs = read_folder(folder, lambda at: (read_parts(at), runs_of(at, stem)))
    else:
        source, file = (path, None) if path.is_dir() else (folder, stem)
        values, runs = read_folder(
            source, lambda at: (read_values(at, matches(is_persistable), file), runs_of(at, file))
        )
    set_values(matches(is_persistable), values, None if executor is None else executor.place)
    global_scope().update_random_runs(runs)


def read_pickle(file: SavedFile) -> dict[str, Any] | None:
    """Read a file that is a pickled mapping of names to arrays; return None if it is no pickle."""
    begin = file.peek(8)  # in safetensors: the header's length, which may begin with the same byte
    if begin[:1] != _PICKLE or int.from_bytes(begin, "little") <= MAX_HEADER_BYTES:
        return None
    if file.size > _MAX_PICKLE_BYTES:
        raise SavedModelError(f"{file.path} has {file.size:,} bytes; of a pickle {_MAX_PICKLE_BYTES:,} are read")
    content = bytes(file.read(file.size))
    file.finish()
    try:
        arrays = load_arrays(content)
    except SavedModelError as exc:
        raise SavedModelError(f"{file.path}: {exc}\n  Do: save the model again") from None
    if not isinstance(arrays, dict):
        raise SavedModelError(f"{file.path} holds {type(arrays).__name__}; expected a mapping of names to arrays")
    return arrays


def _fitting(file: SavedFile, arrays: dict[str, Any], variables: Sequence[Variable]) -> dict[str, Stored]:
    """The values of variables, checked against their declarations."""
    values: dict[str, Stored] = {}
    for variable in variables:
        array = arrays.get(variable.name)
        if not isinstance(array, np.ndarray):
            raise SavedModelError(
                f"{file.path} holds no array {variable.name!r}\n  Do: load it with the program that it was saved with"
            )
        try:
            spec = Spec.of(array.shape, dtype_name(array.dtype))
        except DtypeError as exc:
            raise SavedModelError(f"{file.path}: {variable.name!r}: {exc}") from None
        check_fit(file, variable.name, variable.spec, spec)
        values[variable.name] = np.ascontiguousarray(array).reshape(array.shape).astype(NUMPY[spec.dtype]), ()
    return values
