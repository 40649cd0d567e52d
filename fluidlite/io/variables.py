"""Saving and loading the variables of a program: one file each, or all in one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fluidlite.base.errors import ProgramError, SavedModelError, TensorError
from fluidlite.framework.lod import lod_from_offsets
from fluidlite.framework.program import Program, default_main_program
from fluidlite.framework.scope import global_scope
from fluidlite.framework.spec import Spec
from fluidlite.framework.variable import Parameter, Variable
from fluidlite.framework.vartype import VarType, dtype_of
from fluidlite.io.files import Stored, file_of, read_tensors, write_tensors

PathText = str | os.PathLike[str]
Predicate = Callable[[Variable], bool]


def is_parameter(var: Variable) -> bool:
    """Whether a variable is a parameter."""
    return isinstance(var, Parameter)


def is_persistable(var: Variable) -> bool:
    """Whether a variable is a tensor that lives from run to run."""
    return var.persistable and var.type == VarType.LOD_TENSOR


def _selected(
    main_program: Program | None, vars: Iterable[Variable | str] | None, predicate: Predicate | None
) -> list[Variable]:
    program = main_program if main_program is not None else default_main_program()
    if not isinstance(program, Program):
        raise ProgramError(f"main_program is {type(program).__name__}; expected a Program")
    if vars is not None:
        found = [program.global_block().var(v) if isinstance(v, str) else v for v in vars]
    else:
        found = [variable for variable in program.list_vars() if predicate is None or predicate(variable)]
    unique = {variable.name: variable for variable in found}
    return [unique[name] for name in sorted(unique)]


def save_vars(
    executor: Any,
    dirname: PathText,
    main_program: Program | None = None,
    vars: Iterable[Variable | str] | None = None,
    predicate: Predicate | None = None,
    filename: PathText | None = None,
) -> None:
    """Save variables of the global scope.

    Parameters
    ----------
    executor : Executor
        Not used to save; there for Fluid's sake.
    dirname : path
        Made if it does not exist.
    main_program : Program, optional
        Whose variables; the default main program if left out.
    vars : list of Variable or name, optional
    predicate : callable, optional
        Chooses variables of the program where ``vars`` is left out.
    filename : path, optional
        One safetensors file for all, inside ``dirname``; else one file each, named after the variable.

    Raises
    ------
    ProgramError
        A variable has no value yet; then nothing is written.
    """
    scope = global_scope()
    values: dict[str, Stored] = {}
    for variable in _selected(main_program, vars, predicate):
        holder = scope.find_var(variable.name)
        tensor = holder.get_tensor() if holder is not None else None
        if tensor is None or not tensor.initialized:
            raise ProgramError(f"variable {variable.name!r} has no value to save\n  Do: run the startup program first")
        lod = tuple(tuple(level) for level in tensor.lod())
        values[variable.name] = (np.ascontiguousarray(tensor.numpy()).reshape(tensor.dims), lod)
    folder = Path(dirname)
    folder.mkdir(parents=True, exist_ok=True)
    if filename is not None:
        write_tensors(folder / filename, values)
        return
    for name, value in values.items():
        write_tensors(file_of(folder, name), {name: value})


def save_params(
    executor: Any, dirname: PathText, main_program: Program | None = None, filename: PathText | None = None
) -> None:
    """Save the parameters of a program; see :func:`save_vars`."""
    save_vars(executor, dirname, main_program, predicate=is_parameter, filename=filename)


def save_persistables(
    executor: Any, dirname: PathText, main_program: Program | None = None, filename: PathText | None = None
) -> None:
    """Save all state of a program, that of optimisers too; see :func:`save_vars`."""
    save_vars(executor, dirname, main_program, predicate=is_persistable, filename=filename)


def load_vars(
    executor: Any,
    dirname: PathText,
    main_program: Program | None = None,
    vars: Iterable[Variable | str] | None = None,
    predicate: Predicate | None = None,
    filename: PathText | None = None,
) -> None:
    """Load variables into the global scope, onto the executor's place.

    Everything is read and checked against the program before the first variable is set.

    Raises
    ------
    SavedModelError
        A file is missing, truncated or malformed, or a value has other dims or another dtype than declared.
    """
    variables = _selected(main_program, vars, predicate)
    values = _read(Path(dirname), variables, filename)
    for variable in variables:
        _check(variable, *values[variable.name])
    scope = global_scope()
    for variable in variables:
        array, lod = values[variable.name]
        scope.var(variable.name).get_tensor().set(array, executor.place, [list(level) for level in lod] or None)


def _read(folder: Path, variables: list[Variable], filename: PathText | None) -> Mapping[str, Stored]:
    if not folder.is_dir():
        raise SavedModelError(f"there is no directory {folder}")
    if filename is None:
        files = {variable.name: file_of(folder, variable.name) for variable in variables}
        values = {name: read_tensors(path).get(name) for name, path in files.items()}
    elif variables:
        path = folder / filename
        content = read_tensors(path)
        files = dict.fromkeys((variable.name for variable in variables), path)
        values = {name: content.get(name) for name in files}
    else:
        return {}
    for name, value in values.items():
        if value is None:
            raise SavedModelError(f"{files[name]} holds no variable {name!r}")
    return {name: value for name, value in values.items() if value is not None}


def _check(variable: Variable, array: Any, lod: Any) -> None:
    try:
        lod_from_offsets(lod, array.shape[0] if array.ndim else None)
    except TensorError as exc:
        raise SavedModelError(f"the saved LoD of {variable.name!r} is malformed: {exc}") from None
    saved = Spec.of(array.shape, dtype_of(array.dtype))
    if variable.spec is not None and not variable.spec.fits(saved):
        raise SavedModelError(
            f"variable {variable.name!r} is {variable.spec!r} in the program, but {saved!r} in the file"
        )


def load_params(
    executor: Any, dirname: PathText, main_program: Program | None = None, filename: PathText | None = None
) -> None:
    """Load the parameters of a program; see :func:`load_vars`."""
    load_vars(executor, dirname, main_program, predicate=is_parameter, filename=filename)


def load_persistables(
    executor: Any, dirname: PathText, main_program: Program | None = None, filename: PathText | None = None
) -> None:
    """Load all state of a program; see :func:`load_vars`."""
    load_vars(executor, dirname, main_program, predicate=is_persistable, filename=filename)


def get_parameter_value(para: Parameter, executor: Any = None) -> Any:
    """The value of a parameter in the global scope, as an array."""
    return get_parameter_value_by_name(para.name, executor)


def get_parameter_value_by_name(name: str, executor: Any = None, program: Program | None = None) -> Any:
    """The value of the parameter of that name in the global scope, as an array."""
    holder = global_scope().find_var(name)
    if holder is None or not holder.get_tensor().initialized:
        raise ProgramError(f"parameter {name!r} has no value in the scope")
    return holder.get_tensor().numpy().copy()
