"""Inference models: the part of a program that targets need, with its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fluidlite.base.errors import ProgramError, SavedModelError
from fluidlite.framework.program import Program, default_main_program
from fluidlite.framework.variable import Variable
from fluidlite.io.files import read_bytes, write_atomically
from fluidlite.io.variables import PathText, is_persistable, load_vars, save_vars

MODEL_FILE = "__model__"


def save_inference_model(
    dirname: PathText,
    feeded_var_names: Sequence[str] | str,
    target_vars: Sequence[Variable] | Variable,
    executor: Any,
    main_program: Program | None = None,
    model_filename: PathText | None = None,
    params_filename: PathText | None = None,
    export_for_deployment: bool = True,
) -> list[str]:
    """Save what the targets need: the pruned test program as JSON, and its parameters.

    Parameters
    ----------
    dirname : path
        Made if it does not exist.
    feeded_var_names : list of str
        Names that will be fed.
    target_vars : list of Variable
        What will be fetched.
    executor : Executor
    main_program : Program, optional
        The default main program if left out; it is not changed.
    model_filename, params_filename : path, optional
        The program's file (``__model__``), and one file for all parameters (else one each).

    Returns
    -------
    list of str
        The names of the targets.
    """
    program = main_program if main_program is not None else default_main_program()
    feeds = [feeded_var_names] if isinstance(feeded_var_names, str) else list(feeded_var_names)
    targets = [target_vars] if isinstance(target_vars, Variable) else list(target_vars)
    if not all(isinstance(name, str) for name in feeds):
        raise ProgramError(f"feeded_var_names is {feeded_var_names!r}; expected names of variables")
    if not targets or not all(isinstance(target, Variable) for target in targets):
        raise ProgramError(f"target_vars is {target_vars!r}; expected one Variable or more")
    for name in feeds:
        program.global_block().var(name)
    pruned = program.clone(for_test=True).prune(targets, feeds)
    names = [target.name for target in targets]
    pruned.feed_names, pruned.fetch_names = feeds, names
    _check_feeds(pruned, feeds)
    save_vars(executor, dirname, pruned, predicate=is_persistable, filename=params_filename)
    text = pruned.to_json().encode()
    path = Path(dirname) / (model_filename or MODEL_FILE)
    write_atomically(path, lambda temporary: _write(temporary, text))
    return names


def get_inference_program(
    target_vars: Sequence[Variable] | Variable, main_program: Program | None = None
) -> Program:  # fmt: skip
    """Return the test program of what the targets need; metrics stand for their states.

    Parameters
    ----------
    target_vars : Variable or list of them
    main_program : Program, optional
        The default main program if left out; it is not changed.
    """
    program = main_program if main_program is not None else default_main_program()
    given = list(target_vars) if isinstance(target_vars, (list, tuple)) else [target_vars]
    targets = [var for item in given for var in (getattr(item, "states", None) or [item])]
    if not targets or not all(isinstance(target, Variable) for target in targets):
        raise ProgramError(f"target_vars is {target_vars!r}; expected one Variable or more")
    return program.clone(for_test=True).prune(targets)


def _write(path: str, content: bytes) -> None:
    Path(path).write_bytes(content)


def _check_feeds(program: Program, feeds: Sequence[str]) -> None:
    """Raise unless everything that the pruned program must be fed is among the feeds."""
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
) -> tuple[Program, list[str], list[Variable]]:
    """Load what :func:`save_inference_model` saved; parameters go to the global scope.

    Returns
    -------
    program, names to feed, variables to fetch

    Raises
    ------
    SavedModelError
        A file is missing, truncated, malformed or of a newer version; then the scope is as it was.
    """
    path = Path(dirname) / (model_filename or MODEL_FILE)
    program = Program.from_json(read_bytes(path))
    block = program.global_block()
    for name in (*program.feed_names, *program.fetch_names):
        if not block.has_var(name):
            raise SavedModelError(f"{path}: the program is to feed or fetch {name!r}, which it does not have")
    if not program.fetch_names:
        raise SavedModelError(f"{path} is a program, but no inference model: it names nothing to fetch")
    load_vars(executor, dirname, program, predicate=is_persistable, filename=params_filename)
    return program, list(program.feed_names), [block.var(name) for name in program.fetch_names]
