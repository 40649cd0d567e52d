"""The state of programs as mappings of names to arrays: Fluid's ``load_program_state`` and ``set_program_state``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from fluidlite.base.dtypes import dtype_name
from fluidlite.base.errors import ProgramError, SavedModelError
from fluidlite.io.load_operator import read_one
from fluidlite.io.lod_tensor_file import is_lod_tensors
from fluidlite.io.paths import MANIFEST, SUFFIX, PathText, folder_of
from fluidlite.io.snapshot import SavedFile, Snapshot, read_folder
from fluidlite.io.state import PARTS, read_pickle
from fluidlite.io.tensor_file import names_in, read_tensors
from fluidlite.io.variables import is_parameter, is_persistable
from fluidlite.program.program import Program
from fluidlite.program.scope import global_scope
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor_spec import Spec

Arrays = dict[str, np.ndarray[Any, Any]]


def get_program_parameter(program: Program) -> list[Variable]:
    """The parameters of a program."""
    return [variable for variable in program.list_vars() if is_parameter(variable)]


def get_program_persistable_vars(program: Program) -> list[Variable]:
    """The persistable variables of a program."""
    return [variable for variable in program.list_vars() if is_persistable(variable)]


def load_program_state(model_path: PathText, var_list: Iterable[Variable | str] | None = None) -> Arrays:
    """Read saved state as arrays, without a program.

    Parameters
    ----------
    model_path : path
        The path of ``fluid.save``; or a folder with one file a variable.
    var_list : list of Variable or name, optional
        Load only these; needed for Paddle's files of several tensors, which contain no names.

    Returns
    -------
    dict
        Arrays by name.

    Raises
    ------
    SavedModelError
        Files are missing or damaged, or lack a variable of ``var_list``.
    """
    path = folder_of(model_path)
    names = None if var_list is None else [v if isinstance(v, str) else v.name for v in var_list]
    if os.path.lexists(f"{path}.pdparams"):
        arrays = read_folder(path.parent, lambda snapshot: _parts(snapshot, path.name), False)
    elif path.is_dir():
        arrays = read_folder(path, lambda snapshot: _folder(snapshot, names), False)
    else:
        raise SavedModelError(f"there is no file {path}.pdparams, and no folder {path}\n  Do: check the name")
    if names is not None:
        missing = [name for name in names if name not in arrays]
        if missing:
            raise SavedModelError(f"{path} holds no variable {missing[0]!r}\n  Do: check the names of var_list")
        arrays = {name: arrays[name] for name in names}
    return arrays


def _parts(snapshot: Snapshot, stem: str) -> Arrays:
    arrays: Arrays = {}
    for suffix, _ in PARTS:
        if snapshot.holds(stem + suffix):
            with snapshot.open(stem + suffix) as file:
                pickled = read_pickle(file)
            if pickled is None:
                with snapshot.open(stem + suffix) as file:
                    pickled = _all(file)
            arrays |= pickled
    return arrays


def _all(file: SavedFile) -> Arrays:
    declared: dict[str, Spec | None] = dict.fromkeys(names_in(file))
    file.rewind()
    return {name: array for name, (array, _) in read_tensors(file, declared).items()}


def _folder(snapshot: Snapshot, names: list[str] | None) -> Arrays:
    """The tensors of the files in a folder and its subfolders, by name."""
    arrays: Arrays = {}
    for path in sorted(snapshot.folder.rglob("*")):
        name = path.relative_to(snapshot.folder).as_posix()
        if name == MANIFEST or name.startswith(".save-") or not path.is_file() or path.is_symlink():
            continue
        if name.endswith(SUFFIX):
            with snapshot.open(name) as file:
                arrays |= _all(file)
        elif names is None or unquote(name) in names or name in names:
            with snapshot.open(name) as file:
                is_paddle = is_lod_tensors(file.peek(4))
            if is_paddle:
                arrays[name] = read_one(Path(path), name, None)[0]
    return arrays


def set_program_state(program: Program, state_dict: Mapping[str, Any]) -> None:
    """Set a program's persistable variables to the values of :func:`load_program_state`.

    Parameters
    ----------
    program : Program
        Run its startup program first: values are copied to the places of its tensors.
    state_dict : mapping of name to array
        The values by name; a name of no persistable variable is an error.

    Raises
    ------
    ProgramError
        A value has other dims or another dtype than declared, or an unknown name; then nothing is set.
    """
    variables = {variable.name: variable for variable in get_program_persistable_vars(program)}
    unknown = [name for name in state_dict if name not in variables]
    if unknown:
        raise ProgramError(
            f"set_program_state: {unknown[0]!r} is nothing that the program keeps"
            "\n  Do: leave out names of other programs"
        )
    arrays: Arrays = {}
    for name, value in state_dict.items():
        array, declared = np.asarray(value), variables[name].spec
        spec = Spec.of(array.shape, dtype_name(array.dtype))
        if declared is not None and not declared.fits(spec):
            raise ProgramError(f"set_program_state: {name!r} is {declared!r} in the program, and {spec!r} was given")
        arrays[name] = np.array(array)  # it may be a view of state that is set before it
    scope = global_scope()
    for name, array in arrays.items():
        (scope.find_var(name) or scope.var(name)).get_tensor().set(array)
