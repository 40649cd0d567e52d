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
    """All that a program keeps from run to run."""
    return [variable for variable in program.list_vars() if is_persistable(variable)]


def load_program_state(model_path: PathText, var_list: Iterable[Variable | str] | None = None) -> Arrays:
    """Read saved state as arrays, without a program.

    Parameters
    ----------
    model_path : path
        What ``fluid.save`` was given; or a folder with one file a variable.
    var_list : list of Variable or name, optional
        Only these; needed for one file of several tensors that Paddle saved, which holds no names.

    Returns
    -------
    dict
        Arrays by name.

    Raises
    ------
    SavedModelError
        Files are missing or damaged, or hold none of ``var_list``.
    """
    path = folder_of(model_path)
    wanted = None if var_list is None else [v if isinstance(v, str) else v.name for v in var_list]
    if os.path.lexists(f"{path}.pdparams"):
        found = read_folder(path.parent, lambda snapshot: _parts(snapshot, path.name), False)
    elif path.is_dir():
        found = read_folder(path, lambda snapshot: _folder(snapshot, wanted), False)
    else:
        raise SavedModelError(f"there is no file {path}.pdparams, and no folder {path}\n  Do: check the name")
    if wanted is not None:
        missing = [name for name in wanted if name not in found]
        if missing:
            raise SavedModelError(f"{path} holds no variable {missing[0]!r}\n  Do: check the names of var_list")
        found = {name: found[name] for name in wanted}
    return found


def _parts(snapshot: Snapshot, stem: str) -> Arrays:
    found: Arrays = {}
    for suffix, _ in PARTS:
        if snapshot.holds(stem + suffix):
            with snapshot.open(stem + suffix) as file:
                pickled = read_pickle(file)
            if pickled is None:
                with snapshot.open(stem + suffix) as file:
                    pickled = _all(file)
            found |= pickled
    return found


def _all(file: SavedFile) -> Arrays:
    wanted: dict[str, Spec | None] = dict.fromkeys(names_in(file))
    file.rewind()
    return {name: array for name, (array, _) in read_tensors(file, wanted).items()}


def _folder(snapshot: Snapshot, wanted: list[str] | None) -> Arrays:
    """The tensors of a folder's files, by their names, those in its folders included."""
    found: Arrays = {}
    for path in sorted(snapshot.folder.rglob("*")):
        name = path.relative_to(snapshot.folder).as_posix()
        if name == MANIFEST or name.startswith(".save-") or not path.is_file() or path.is_symlink():
            continue
        if name.endswith(SUFFIX):
            with snapshot.open(name) as file:
                found |= _all(file)
        elif wanted is None or unquote(name) in wanted or name in wanted:
            with snapshot.open(name) as file:
                theirs = is_lod_tensors(file.peek(4))
            if theirs:
                found[name] = read_one(Path(path), name, None)[0]
    return found


def set_program_state(program: Program, state_dict: Mapping[str, Any]) -> None:
    """Give what a program keeps the values of :func:`load_program_state`.

    Parameters
    ----------
    program : Program
        Run its startup program first: values go where its tensors are.
    state_dict : mapping of name to array
        All that the program keeps and that is named here is set; other names are an error.

    Raises
    ------
    ProgramError
        A value of other dims or another dtype than declared, or of no variable of the program; then nothing is set.
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
        given = Spec.of(array.shape, dtype_name(array.dtype))
        if declared is not None and not declared.fits(given):
            raise ProgramError(f"set_program_state: {name!r} is {declared!r} in the program, and {given!r} was given")
        arrays[name] = array
    scope = global_scope()
    for name, array in arrays.items():
        (scope.find_var(name) or scope.var(name)).get_tensor().set(array)
