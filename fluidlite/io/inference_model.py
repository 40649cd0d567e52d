"""Inference models: the pruned program that computes some targets, with its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fluidlite.base.arguments import check_instance, check_list
from fluidlite.base.errors import ProgramError, SavedModelError
from fluidlite.io.commit import save_files
from fluidlite.io.paths import PathText, folder_of, inside
from fluidlite.io.snapshot import Snapshot, read_file, read_folder
from fluidlite.io.tensor_file import Stored
from fluidlite.io.variables import (
    check_format,
    is_persistable,
    place_of,
    read_values,
    selected_variables,
    set_values,
    value_writers,
)
from fluidlite.program.program import Program, default_main_program
from fluidlite.program.protobuf.writing import write_program
from fluidlite.program.variable import Variable

MODEL_FILE = "__model__"
MAX_PROGRAM_BYTES = 64 << 20
WHOLE_PROGRAM = ".main_program"
"""Fluid's suffix of a program that was not pruned for deployment."""


def save_inference_model(
    dirname: PathText,
    feeded_var_names: Sequence[str] | str,
    target_vars: Sequence[Variable] | Variable,
    executor: Any,
    main_program: Program | None = None,
    model_filename: PathText | None = None,
    params_filename: PathText | None = None,
    export_for_deployment: bool = True,
    program_only: bool = False,
    format: str = "fluidlite",
) -> list[str]:
    """Save the pruned test program of the targets as JSON, and its parameters.

    The save is atomic: after a kill at any moment the folder holds the old model or the new one.

    Parameters
    ----------
    dirname : path
        Created if it does not exist.
    feeded_var_names : list of str
        Names of the fed variables.
    target_vars : list of Variable
        The fetched variables.
    executor : Executor
    main_program : Program, optional
        The default main program if left out; it is not changed.
    model_filename, params_filename : path, optional
        The program's file (``__model__``), and one file for all parameters (else one each).
    export_for_deployment : bool
        False: save the whole program instead, unpruned, as ``__model__.main_program``, with all persistables; both
        lists may then be empty.
    program_only : bool
        Save the program without its parameters.
    format : str
        ``"paddle"``: the program as ``ProgramDesc`` and the parameters as binary files, as Paddle 1.x writes them, by
        the package protobuf.

    Returns
    -------
    list of str
        The names of the targets.

    Raises
    ------
    ProgramError
        The feeds do not suffice, or a parameter has no value.
    SavedModelError
        The folder or a file cannot be written, or is outside the folder; then the folder is unchanged.
    """
    model_name = inside(model_filename or MODEL_FILE, "model_filename")
    place_of(executor)
    program = (
        check_instance("main_program", main_program, Program) if main_program is not None else default_main_program()
    )
    feeds = check_list("feeded_var_names", feeded_var_names, "names", one=str)
    targets = check_list("target_vars", target_vars, "variables", one=Variable)
    if not all(isinstance(name, str) for name in feeds):
        raise ProgramError(f"feeded_var_names is {feeded_var_names!r}; expected names of variables")
    no_target = not targets and export_for_deployment
    if no_target or not all(isinstance(target, Variable) for target in targets):
        raise ProgramError(f"target_vars is {target_vars!r}; expected one Variable or more")
    for name in feeds:
        program.global_block().var(name)
    names = [target.name for target in targets]
    if export_for_deployment:
        pruned = program.clone(for_test=True).prune(targets, feeds)
        _check_feeds(pruned, feeds)
    else:
        pruned, model_name = program.clone(), model_name + WHOLE_PROGRAM
    pruned.feed_names, pruned.fetch_names = feeds, names
    check_format(format)
    writers = {} if program_only else value_writers(pruned, None, is_persistable, params_filename, format)
    if model_name in writers:
        raise SavedModelError(
            f"the program and its parameters are both to be saved as {model_name!r}\n  Do: choose another name for one"
        )
    text = write_program(pruned) if format == "paddle" else pruned.to_json().encode()
    if len(text) > MAX_PROGRAM_BYTES:
        raise SavedModelError(f"the program takes {len(text):,} bytes; a file holds at most {MAX_PROGRAM_BYTES:,}")
    save_files(dirname, {**writers, model_name: text})
    return names


def get_inference_program(target_vars: Sequence[Variable] | Variable, main_program: Program | None = None) -> Program:
    """Return the pruned test program of the targets; a metric stands for its states.

    Parameters
    ----------
    target_vars : Variable or list of them
    main_program : Program, optional
        The default main program if left out; it is not changed.
    """
    program = main_program if main_program is not None else default_main_program()
    items = list(target_vars) if isinstance(target_vars, (list, tuple)) else [target_vars]
    targets = [var for item in items for var in (getattr(item, "states", None) or [item])]
    if not targets or not all(isinstance(target, Variable) for target in targets):
        raise ProgramError(f"target_vars is {target_vars!r}; expected one Variable or more")
    return program.clone(for_test=True).prune(targets)


def prepend_feed_ops(
    inference_program: Program, feed_target_names: Sequence[str], feed_holder_name: str = "feed"
) -> None:
    """Set the names of a program's feeds; Fluid inserts operators for that."""
    if not feed_target_names:
        return
    for name in feed_target_names:
        inference_program.global_block().var(name)
    inference_program.feed_names = list(feed_target_names)


def append_fetch_ops(
    inference_program: Program, fetch_target_names: Sequence[str], fetch_holder_name: str = "fetch"
) -> None:
    """Set the names of a program's fetches; Fluid inserts operators for that."""
    for name in fetch_target_names:
        inference_program.global_block().var(name)
    inference_program.fetch_names = list(fetch_target_names)


def _check_feeds(program: Program, feeds: Sequence[str]) -> None:
    """Raise ProgramError if the pruned program reads data variables that are not fed."""
    block = program.global_block()
    read = {name for op in block.ops for name in op.input_arg_names}
    missing = sorted(n for n in read if (v := block.find_var(n)) is not None and v.is_data and n not in feeds)
    if missing:
        raise ProgramError(
            f"the targets need {', '.join(map(repr, missing))} to be fed too"
            "\n  Do: add to feeded_var_names, or choose other targets"
        )


def load_inference_model(
    dirname: PathText,
    executor: Any,
    model_filename: PathText | None = None,
    params_filename: PathText | None = None,
    pserver_endpoints: None = None,
    follow_links: bool = False,
) -> tuple[Program, list[str], list[Variable]]:
    """Load a model of :func:`save_inference_model` or of Paddle 1.x; parameters go to the global scope.

    Models of Paddle are recognized by their content, and need the package protobuf.

    Parameters
    ----------
    dirname, executor, model_filename, params_filename
        As in :func:`save_inference_model`.
    follow_links : bool
        Also read symbolic links that lead out of the folder.

    Returns
    -------
    program, names to feed, variables to fetch

    Raises
    ------
    SavedModelError
        A file is missing, truncated, malformed or of a newer version, is no regular file or is outside the folder,
        or was not saved together with the others; then the scope is unchanged.
    """
    place = place_of(executor)
    model_name = inside(model_filename or MODEL_FILE, "model_filename")
    params_name = inside(params_filename, "params_filename") if params_filename is not None else None

    def read(snapshot: Snapshot) -> tuple[Program, list[Variable], dict[str, Stored]]:
        program = _program(snapshot.read(model_name, MAX_PROGRAM_BYTES), snapshot.folder / model_name)
        variables = selected_variables(program, None, is_persistable)
        return program, variables, read_values(snapshot, variables, params_name)

    program, variables, values = read_folder(folder_of(dirname), read, follow_links)
    set_values(variables, values, place)
    block = program.global_block()
    return program, list(program.feed_names), [block.var(name) for name in program.fetch_names]


def _program(text: bytes, path: Path) -> Program:
    """Read an inference program; errors name its file."""
    try:
        program = Program.parse_from_string(text)
    except SavedModelError as exc:
        do = "" if "\n  Do: " in str(exc) else "\n  Do: save the model again"
        raise SavedModelError(f"{path}: {exc}{do}") from exc
    block = program.global_block()
    for name in (*program.feed_names, *program.fetch_names):
        if not block.has_var(name):
            raise SavedModelError(f"{path}: the program is to feed or fetch {name!r}, which it does not have")
    if not program.fetch_names:
        raise SavedModelError(f"{path} is a program, but no inference model: it names nothing to fetch")
    return program


def read_program(path: Path) -> Program:
    """Read the program of a folder of :func:`save_inference_model`, or of a JSON file, without its parameters."""
    if path.is_dir():
        text = read_folder(path, lambda snapshot: snapshot.read(MODEL_FILE, MAX_PROGRAM_BYTES))
    else:
        text = read_file(path, MAX_PROGRAM_BYTES)
    return Program.parse_from_string(text)
