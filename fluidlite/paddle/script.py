"""Runs a script in which ``import paddle`` imports fluidlite; other code is not affected."""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
import traceback
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fluidlite.base.absent import why_absent
from fluidlite.base.errors import FluidError, ProgramError
from fluidlite.executor.executor import Executor

_ROOTS = {"paddle.fluid": "fluidlite", "paddle": "fluidlite.paddle"}
"""The module imported for each name of Paddle; the longest name first."""


class ScriptError(FluidError):
    """A script raised ``error``, whose traceback begins in the script."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"the script raised {type(error).__name__}: {error}")
        self.error = error


class _SameModule(importlib.abc.Loader):
    """Loader that imports an existing module under a second name, and leaves the module unchanged."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module = module
        self.spec = module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self.module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self.spec  # import has replaced it by the spec of the second name


class _Finder(importlib.abc.MetaPathFinder):
    """Finds ``paddle.fluid.X`` at ``fluidlite.X`` and ``paddle.X`` at ``fluidlite.paddle.X``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("paddle."):
            return None
        prefix = next(name for name in _ROOTS if fullname == name or fullname.startswith(name + "."))
        module_name = _ROOTS[prefix] + fullname[len(prefix) :]
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as exc:
            if exc.name is None or not (module_name == exc.name or module_name.startswith(exc.name + ".")):
                raise  # a library that the module needs
            reason = why_absent(module_name.rpartition(".")[2])
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: fluidlite has no such part of Paddle{reason}", name=fullname
            ) from None
        return importlib.machinery.ModuleSpec(fullname, _SameModule(module), is_package=hasattr(module, "__path__"))


def _paddle_modules() -> list[str]:
    return [name for name in sys.modules if name == "paddle" or name.startswith("paddle.")]


@contextmanager
def paddle_modules() -> Iterator[None]:
    """Context manager: ``import paddle`` imports ``fluidlite.paddle`` inside the block.

    Afterwards the name means an installed or previously imported Paddle again.
    """
    previous_modules = {name: sys.modules.pop(name) for name in _paddle_modules()}
    finder = _Finder()
    for name, module_name in _ROOTS.items():
        sys.modules[name] = importlib.import_module(module_name)
        # imported submodules too: importing them again would overwrite functions of the parent, such as layers.rnn
        submodules = [submodule for submodule in sys.modules if submodule.startswith(module_name + ".")]
        sys.modules.update({name + submodule[len(module_name) :]: sys.modules[submodule] for submodule in submodules})
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in _paddle_modules():
            del sys.modules[name]
        sys.modules.update(previous_modules)


def run_script(path: str | Path, arguments: Sequence[str] = ()) -> dict[str, object]:
    """Run a Python file that imports ``paddle.fluid``, like ``python file``.

    Parameters
    ----------
    path : str or Path
    arguments : sequence of str
        The script's ``sys.argv[1:]``.

    Returns
    -------
    dict
        The script's global names.

    Raises
    ------
    ProgramError
        The file cannot be read.
    ScriptError
        The script raised. Its ``SystemExit`` and ``KeyboardInterrupt`` are not wrapped.
    """
    file = Path(path)
    try:
        source = file.read_bytes()
    except OSError as exc:
        raise ProgramError(f"the script {str(path)!r} cannot be read: {exc.strerror or exc}") from None
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=str(path), __builtins__=__builtins__)
    previous_main, previous_argv, previous_path = sys.modules.get("__main__"), sys.argv, sys.path
    sys.argv = [str(path), *arguments]
    sys.path = [str(file.resolve().parent), *previous_path]
    sys.modules["__main__"] = module  # pickle and unittest look up the script's names there
    try:
        with paddle_modules(), old_arrays():
            exec(compile(source, str(path), "exec"), module.__dict__)
    except Exception as exc:
        raise ScriptError(_in_script(exc)) from None
    finally:
        sys.argv, sys.path = previous_argv, previous_path
        if previous_main is not None:
            sys.modules["__main__"] = previous_main
    return module.__dict__


def _in_script(error: Exception) -> Exception:
    """Remove the frames of this file from the top of the error's traceback."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename == __file__:
        frame = frame.tb_next
    return error.with_traceback(frame)


def report(error: BaseException) -> None:
    """Print an error with its traceback on stderr."""
    traceback.print_exception(error, file=sys.stderr)


class OldArray(np.ndarray[Any, Any]):
    """An array that ``float``, ``int`` and ``"%f"`` accept if it has one element, of any rank.

    NumPy accepted it before version 2.4, and scripts of Fluid rely on it: their losses have the dims [1].
    """

    def __float__(self) -> float:
        return float(self._number())

    def __int__(self) -> int:
        return int(self._number())

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """Return NumPy scalars where NumPy does; for a subclass ``numpy.mean`` would return an array of rank 0."""
        return array[()] if return_scalar else super().__array_wrap__(array, context, return_scalar)

    def _number(self) -> Any:
        if self.size != 1:
            raise TypeError(f"an array of {self.size} elements is no number; expected one of one element")
        return self.item()


@contextmanager
def old_arrays() -> Iterator[None]:
    """Context manager: executors return :class:`OldArray` inside the block."""
    original_run = Executor.run

    @functools.wraps(original_run)
    def run(*args: Any, **kwargs: Any) -> list[Any]:
        return [array.view(OldArray) if type(array) is np.ndarray else array for array in original_run(*args, **kwargs)]

    setattr(Executor, "run", run)  # noqa: B010
    try:
        yield
    finally:
        setattr(Executor, "run", original_run)  # noqa: B010
