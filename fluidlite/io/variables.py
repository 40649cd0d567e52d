"""Saving and loading the variables of a program: one file each, or all in one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from fluidlite.base.arguments import instance, listed
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
    """Raise ProgramError unless files can be written in that format."""
    if format not in FORMATS:
        raise ProgramError(f"format is {format!r:.60}; expected one of {', '.join(map(repr, FORMATS))}")


def is_parameter(var: Variable) -> bool:
    """Whether a variable is a parameter."""
    return isinstance(var, Parameter)


def is_persistable(var: Variable) -> bool:
    """Whether a variable is a tensor, or sparse rows of one, that lives from run to run."""
    return var.persistable and (var.type == VarType.LOD_TENSOR or var.selected is not None)


def place_of(executor: Any) -> Place:
    """The place of an executor; or ProgramError, if it is none."""
    place = getattr(executor, "place", None)
    if not isinstance(place, (Place, str)):
        raise ProgramError(f"executor is {type(executor).__name__} {executor!r:.80}; expected a fluid.Executor")
    return Place.parse(place)


def selected_variables(
    main_program: Program | None, vars: Iterable[Variable | str] | None, predicate: Predicate | None
) -> list[Variable]:
    """Variables of a program by name, each once: those given, else those that the predicate chooses."""
    program = instance("main_program", main_program, Program) if main_program is not None else default_main_program()
    if vars is not None:
        given = listed("vars", vars, "a list of variables or names")
        found = [program.global_block().var(v) if isinstance(v, str) else v for v in given]
        for each in found:
            if not isinstance(each, Variable):
                raise ProgramError(f"vars holds {each!r:.60}; expected variables or names")
    else:
        wanted = check_function("predicate", predicate, "a function, or None")
        found = [variable for variable in program.list_vars() if wanted is None or wanted(variable)]
    found += [v.block.var(v.selected.rows) for v in found if v.selected is not None]
    unique = {variable.name: variable for variable in found}
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

    After a kill at any moment the folder holds all old values or all new ones; values that other calls saved into it
    stay. A manifest beside the files lets loading see which belong together.

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
    format : str
        ``"paddle"``: binary files as Paddle 1.x writes them, by the package protobuf.

    Raises
    ------
    ProgramError
        A variable has no value yet; then nothing is written.
    SavedModelError
        The folder or the file cannot be written, or lies elsewhere; then the folder is as it was.
    """
    place_of(executor)
    save_files(dirname, value_writers(main_program, vars, predicate, filename, format))


def stored_values(
    main_program: Program | None, vars: Iterable[Variable | str] | None, predicate: Predicate | None
) -> dict[str, Stored]:
    """The values of variables in the global scope.

    Raises ProgramError: a variable has no value.
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
    """What writes the values of the global scope, by the names of the files; see :func:`save_vars`."""
    check_format(format)
    target = inside(filename, "filename") if filename is not None else None
    values = stored_values(main_program, vars, predicate)
    write = write_lod_tensors if format == "paddle" else write_tensors
    if target is not None:
        return {target: partial(write, values=values)}
    named = partial(inside, what="the name") if format == "paddle" else file_of
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
    """Save all state of a program, that of optimisers too; see :func:`save_vars`.

    Of a program with a ``random_seed`` this is also how often its random operators have drawn.
    """
    place_of(executor)
    save_files(dirname, persistable_writers(main_program, filename, format))


def persistable_writers(
    main_program: Program | None, filename: PathText | None = None, format: str = "fluidlite"
) -> dict[str, Writer]:
    """What writes all state of a program; see :func:`save_persistables`."""
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
    known by their content; they need the package protobuf.

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
        A file is missing, truncated or malformed, is no regular file or lies outside the folder, was not saved
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
    """Load variables; ``whole``: they are all state of the program, random numbers go on where that was saved."""
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
    """Warn where a predicate chose nothing of what a folder holds: it may look for files of other names."""
    folder = folder_of(dirname)
    held = [v.name for v in program.list_vars() if is_persistable(v) and (folder / file_of(v.name)).exists()]
    if held:
        warnings.warn(
            f"load_vars loads nothing: {folder} holds {len(held)} of these variables, and the predicate chose none"
            f"\n  Do: if it looks for files, that of {held[0]!r} is {file_of(held[0])!r}; or save with format='paddle'",
            UserWarning,
            stacklevel=4,
        )


def read_values(snapshot: Snapshot, variables: Iterable[Variable], filename: str | None) -> dict[str, Stored]:
    """Read the values of variables, which are checked against their declarations."""
    wanted: dict[str, Spec | None] = {variable.name: variable.spec for variable in variables}
    found: dict[str, Stored] = {}
    if not wanted:
        return found
    if filename is not None:
        with snapshot.open(filename) as file:
            theirs = not filename.endswith(SUFFIX) and is_lod_tensors(file.peek(4))
            found = read_lod_tensors(file, wanted) if theirs else read_tensors(file, wanted)
    else:
        for name, spec in wanted.items():
            ours = file_of(name)
            theirs = _names_file(name) and snapshot.holds(name)
            if theirs and snapshot.holds(ours):
                raise SavedModelError(
                    f"{snapshot.folder} holds {name!r} twice, in Paddle's format and in ours ({ours})"
                    "\n  Do: remove the one that is not meant, or save into folders of their own"
                )
            with snapshot.open(name if theirs else ours) as file:
                found |= read_lod_tensors(file, {name: spec}) if theirs else read_tensors(file, {name: spec})
    for variable in variables:
        if variable.selected is not None and variable.selected.rows in found:
            _check_rows(variable.name, variable.selected, found)
    return found


def _check_rows(name: str, selected: SelectedRowsOf, values: Mapping[str, Stored]) -> None:
    """Raise SavedModelError unless numbers of rows are those of a tensor so tall, one for each value."""
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


def _names_file(name: str) -> bool:
    """Whether a variable's name can be that of its file, as in Paddle."""
    try:
        return inside(name, "the name") == name
    except SavedModelError:
        return False


def set_values(variables: Iterable[Variable], values: dict[str, Stored], place: Place | None) -> None:
    """Move values into the global scope, onto a place (None: where tensors are); what is set leaves ``values``."""
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
    """Load all state of a program; see :func:`load_vars`. Its random operators go on drawing where it was saved."""
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
