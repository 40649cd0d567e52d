"""Saving and loading the variables of a program: one file each, or one file for all."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from fluidlite.base.arguments import check_instance, check_list
from fluidlite.base.errors import ProgramError, SavedModelError
from fluidlite.io.commit import Writer, save_files
from fluidlite.io.lod_tensor_file import is_lod_tensors, read_lod_tensors, write_lod_tensors
from fluidlite.io.paths import SUFFIX, PathText, file_of, folder_of, inside
from fluidlite.io.random_runs import Runs, read_runs, run_writers
from fluidlite.io.snapshot import Snapshot, read_folder
from fluidlite.io.tensor_file import Stored, read_tensors, write_tensors
from fluidlite.layer_helper import check_function
from fluidlite.platform.place import Place
from fluidlite.program.program import Program, default_main_program
from fluidlite.program.scope import global_scope
from fluidlite.program.variable import Parameter, Variable
from fluidlite.program.variable_metadata import SelectedRowsOf
from fluidlite.tensor.tensor_spec import Spec
from fluidlite.tensor.var_type import VarType

Predicate = Callable[[Variable], bool]
FORMATS = ("fluidlite", "paddle")


def check_format(format: str) -> None:
    """Raise ProgramError unless ``format`` is a format of saved files."""
    if format not in FORMATS:
        raise ProgramError(f"format is {format!r:.60}; expected one of {', '.join(map(repr, FORMATS))}")


def is_parameter(var: Variable) -> bool:
    """Whether a variable is a parameter."""
    return isinstance(var, Parameter)


def is_persistable(var: Variable) -> bool:
    """Whether a variable is a persistable tensor, or sparse rows of one."""
    return var.persistable and (var.type == VarType.LOD_TENSOR or var.selected is not None)


def place_of(executor: Any) -> Place:
    """Return the place of an executor; raise ProgramError if it is no executor."""
    place = getattr(executor, "place", None)
    if not isinstance(place, (Place, str)):
        raise ProgramError(f"executor is {type(executor).__name__} {executor!r:.80}; expected a fluid.Executor")
    return Place.parse(place)


def selected_variables(
    main_program: Program | None, vars: Iterable[Variable | str] | None, predicate: Predicate | None
) -> list[Variable]:
    """Return variables of a program sorted by name, without duplicates: ``vars``, or those that match ``predicate``."""
    program = (
        check_instance("main_program", main_program, Program) if main_program is not None else default_main_program()
    )
    if vars is not None:
        requested = check_list("vars", vars, "a list of variables or names")
        variables = [program.global_block().var(v) if isinstance(v, str) else v for v in requested]
        for variable in variables:
            if not isinstance(variable, Variable):
                raise ProgramError(f"vars holds {variable!r:.60}; expected variables or names")
    else:
        matches = check_function("predicate", predicate, "a function, or None")
        variables = [candidate for candidate in program.list_vars() if matches is None or matches(candidate)]
    variables += [v.block.var(v.selected.rows) for v in variables if v.selected is not None]
    unique = {candidate.name: candidate for candidate in variables}
    return [unique[name] for name in sorted(unique)]


def save_vars(
    executor: Any,
    dirname: PathText,
    main_program: Program | None = None,
    vars: Iterable[Variable | str] | None = None,
    predicate: Predicate | None = None,
    filename: PathText | None = None,
    format: str = "fluidlite",
) -> None:
    """Save variables of the global scope.

    The save is atomic: after a kill at any moment the folder holds all old values or all new ones. Values that other
    calls saved into it stay. A manifest in the folder records which files belong together.

    Parameters
    ----------
    executor : Executor
        Not used; Fluid has the argument.
    dirname : path
        Created if it does not exist.
    main_program : Program, optional
        The program of the variables; default: the default main program.
    vars : list of Variable or name, optional
    predicate : callable, optional
        Selects variables of the program if ``vars`` is None.
    filename : path, optional
        One safetensors file for all, inside ``dirname``; else one file each, named after the variable.
    format : str
        ``"paddle"``: binary files as Paddle 1.x writes them, by the package protobuf.

    Raises
    ------
    ProgramError
        A variable has no value yet; then nothing is written.
    SavedModelError
        The folder or the file cannot be written, or is outside the folder; then the folder is unchanged.
    """
    place_of(executor)
    save_files(dirname, value_writers(main_program, vars, predicate, filename, format))


def stored_values(
    main_program: Program | None, vars: Iterable[Variable | str] | None, predicate: Predicate | None
) -> dict[str, Stored]:
    """The values of variables in the global scope.

    Raises ProgramError if a variable has no value.
    """
    scope = global_scope()
    values: dict[str, Stored] = {}
    for variable in selected_variables(main_program, vars, predicate):
        holder = scope.find_var(variable.name)
        tensor = holder.get_tensor() if holder is not None else None
        if tensor is None or not tensor.initialized:
            raise ProgramError(f"variable {variable.name!r} has no value to save\n  Do: run the startup program first")
        lod = tuple(tuple(level) for level in tensor.lod())
        values[variable.name] = (np.ascontiguousarray(tensor.numpy()).reshape(tensor.dims), lod)
    return values


def value_writers(
    main_program: Program | None,
    vars: Iterable[Variable | str] | None = None,
    predicate: Predicate | None = None,
    filename: PathText | None = None,
    format: str = "fluidlite",
) -> dict[str, Writer]:
    """The writers of values of the global scope, by file name; see :func:`save_vars`."""
    check_format(format)
    target = inside(filename, "filename") if filename is not None else None
    values = stored_values(main_program, vars, predicate)
    write = write_lod_tensors if format == "paddle" else write_tensors
    if target is not None:
        return {target: partial(write, values=values)}
    named = _file_of_paddle if format == "paddle" else file_of
    return {named(name): partial(write, values={name: value}) for name, value in values.items()}


def save_params(
    executor: Any,
    dirname: PathText,
    main_program: Program | None = None,
    filename: PathText | None = None,
    format: str = "fluidlite",
) -> None:
    """Save the parameters of a program; see :func:`save_vars`."""
    save_vars(executor, dirname, main_program, predicate=is_parameter, filename=filename, format=format)


def save_persistables(
    executor: Any,
    dirname: PathText,
    main_program: Program | None = None,
    filename: PathText | None = None,
    format: str = "fluidlite",
) -> None:
    """Save all state of a program, including that of optimisers; see :func:`save_vars`.

    With a ``random_seed``, the state includes how often the program's random operators have drawn.
    """
    place_of(executor)
    save_files(dirname, persistable_writers(main_program, filename, format))


def persistable_writers(
    main_program: Program | None, filename: PathText | None = None, format: str = "fluidlite"
) -> dict[str, Writer]:
    """The writers of all state of a program; see :func:`save_persistables`."""
    writers = value_writers(main_program, None, is_persistable, filename, format)
    program = main_program if main_program is not None else default_main_program()
    runs = run_writers(program, global_scope(), None if filename is None else inside(filename, "filename"))
    for name in writers.keys() & runs.keys():
        raise SavedModelError(
            f"a variable is called {name!r}, a name that saved models use\n  Do: give it another name"
        )
    return writers | runs


def load_vars(
    executor: Any,
    dirname: PathText,
    main_program: Program | None = None,
    vars: Iterable[Variable | str] | None = None,
    predicate: Predicate | None = None,
    filename: PathText | None = None,
    follow_links: bool = False,
) -> None:
    """Load variables into the global scope, onto the executor's place.

    Everything is read and checked against the program before the first variable is set. Files that Paddle 1.x saved are
    recognized by their content; they need the package protobuf.

    Parameters
    ----------
    executor : Executor
    dirname, main_program, vars, predicate, filename
        As in :func:`save_vars`.
    follow_links : bool
        Also read symbolic links that lead out of the folder.

    Raises
    ------
    SavedModelError
        A file is missing, truncated or malformed, is no regular file or is outside the folder, was not saved
        together with the others, or a value has other dims or another dtype than declared.
    """
    _load(executor, dirname, main_program, vars, predicate, filename, follow_links)


def _load(
    executor: Any,
    dirname: PathText,
    main_program: Program | None,
    vars: Iterable[Variable | str] | None,
    predicate: Predicate | None,
    filename: PathText | None,
    follow_links: bool,
    whole: bool = False,
) -> None:
    """Load variables; ``whole``: they are all state of the program, and random numbers continue as saved."""
    place = place_of(executor)
    variables = selected_variables(main_program, vars, predicate)
    program = main_program if main_program is not None else default_main_program()
    if predicate is not None and not variables:
        _warn_of_names(dirname, program)
    target = inside(filename, "filename") if filename is not None else None

    def read(snapshot: Snapshot) -> tuple[dict[str, Stored], Runs]:
        return read_values(snapshot, variables, target), read_runs(snapshot, program, target) if whole else {}

    values, runs = read_folder(folder_of(dirname), read, follow_links)
    set_values(variables, values, place)
    global_scope().update_random_runs(runs)


def _warn_of_names(dirname: PathText, program: Program) -> None:
    """Warn if a predicate selected no variable of a folder: it may test for files of other names."""
    folder = folder_of(dirname)
    names = [v.name for v in program.list_vars() if is_persistable(v) and (folder / file_of(v.name)).exists()]
    if names:
        warnings.warn(
            f"load_vars loads nothing: {folder} holds {len(names)} of these variables, and the predicate chose none"
            f"\n  Do: if it tests for files, {names[0]!r} is {file_of(names[0])!r}; or save with format='paddle'",
            UserWarning,
            stacklevel=4,
        )


def read_values(snapshot: Snapshot, variables: Iterable[Variable], filename: str | None) -> dict[str, Stored]:
    """Read the values of variables and check them against the declarations."""
    declared: dict[str, Spec | None] = {variable.name: variable.spec for variable in variables}
    values: dict[str, Stored] = {}
    if not declared:
        return values
    if filename is not None:
        with snapshot.open(filename) as file:
            is_paddle = not filename.endswith(SUFFIX) and is_lod_tensors(file.peek(4))
            values = read_lod_tensors(file, declared) if is_paddle else read_tensors(file, declared)
    else:
        for name, spec in declared.items():
            own_file = file_of(name)
            is_paddle = _names_file(name) and snapshot.holds(name)
            if is_paddle and snapshot.holds(own_file):
                raise SavedModelError(
                    f"{snapshot.folder} holds {name!r} twice, in Paddle's format and in ours ({own_file})"
                    "\n  Do: remove the one that is not meant, or save into folders of their own"
                )
            with snapshot.open(name if is_paddle else own_file) as file:
                values |= read_lod_tensors(file, {name: spec}) if is_paddle else read_tensors(file, {name: spec})
    for variable in variables:
        if variable.selected is not None and variable.selected.rows in values:
            _check_rows(variable.name, variable.selected, values)
    return values


def _check_rows(name: str, selected: SelectedRowsOf, values: Mapping[str, Stored]) -> None:
    """Raise SavedModelError unless the row indices of sparse rows are valid, one for each row of values."""
    rows, count = values[selected.rows][0], values[name][0].shape[:1]
    if rows.shape != count:
        raise SavedModelError(
            f"{name!r} was saved with {list(rows.shape)} numbers of rows and values of {list(count)} rows; "
            "expected one for each"
        )
    if rows.size and not 0 <= rows.min() <= rows.max() < selected.height:
        bad = rows.min() if rows.min() < 0 else rows.max()
        raise SavedModelError(f"{name!r} was saved with row {bad}; expected 0 to {selected.height - 1}")
    if selected.merged and len(np.unique(rows)) != rows.size:
        raise SavedModelError(f"{name!r} was saved with a row that comes twice; its rows are different ones")


def _file_of_paddle(name: str) -> str:
    """The file of a variable in Paddle's format: its name. Raises SavedModelError if another variable may have it."""
    path = inside(name, "the name")
    if path != name:
        raise SavedModelError(
            f"variable {name!r:.80} is of file {path!r:.80}, which is another variable's in Paddle's format"
            "\n  Do: save all variables into one file, by filename"
        )
    return path


def _names_file(name: str) -> bool:
    """Whether a variable's name is a valid file name, as Paddle uses it."""
    try:
        return _file_of_paddle(name) == name
    except SavedModelError:
        return False


def set_values(variables: Iterable[Variable], values: dict[str, Stored], place: Place | None) -> None:
    """Move ``values`` (emptied by this) into the global scope, to a place (None: the places of the tensors)."""
    scope = global_scope()
    for variable in variables:
        if variable.selected is not None:
            scope.var(variable.selected.rows).set_int(variable.selected.height)
        array, lod = values.pop(variable.name)
        scope.var(variable.name).get_tensor().set(array, place, [list(level) for level in lod] or None)


def load_params(
    executor: Any,
    dirname: PathText,
    main_program: Program | None = None,
    filename: PathText | None = None,
    follow_links: bool = False,
) -> None:
    """Load the parameters of a program; see :func:`load_vars`."""
    load_vars(executor, dirname, main_program, None, is_parameter, filename, follow_links)


def load_persistables(
    executor: Any,
    dirname: PathText,
    main_program: Program | None = None,
    filename: PathText | None = None,
    follow_links: bool = False,
) -> None:
    """Load all state of a program; see :func:`load_vars`. Its random operators continue as saved."""
    _load(executor, dirname, main_program, None, is_persistable, filename, follow_links, whole=True)


def get_parameter_value(para: Parameter, executor: Any = None) -> Any:
    """The value of a parameter in the global scope, as an array."""
    return get_parameter_value_by_name(para.name, executor)


def get_parameter_value_by_name(name: str, executor: Any = None, program: Program | None = None) -> Any:
    """The value of the parameter of that name in the global scope, as an array."""
    holder = global_scope().find_var(name)
    if holder is None or not holder.get_tensor().initialized:
        raise ProgramError(f"parameter {name!r} has no value in the scope")
    return holder.get_tensor().numpy().copy()
