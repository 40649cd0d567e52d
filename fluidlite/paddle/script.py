"""Running a script with ``paddle`` among its modules, and only there."""

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
"""Which module stands under which name; the longest name comes first."""


class ScriptError(FluidError):
    """A script raised; ``error`` is what it raised, with a traceback that begins in the script."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"the script raised {type(error).__name__}: {error}")
        self.error = error


class _SameModule(importlib.abc.Loader):
    """Gives an imported module a second name; the module itself stays as it is."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module = module
        self.spec = module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self.module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self.spec  # import has put the second name there


class _Finder(importlib.abc.MetaPathFinder):
    """Finds ``paddle.fluid.X`` at ``fluidlite.X`` and ``paddle.X`` at ``fluidlite.paddle.X``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("paddle."):
            return None
        root = next(name for name in _ROOTS if fullname == name or fullname.startswith(name + "."))
        real = _ROOTS[root] + fullname[len(root) :]
        try:
            module = importlib.import_module(real)
        except ModuleNotFoundError as exc:
            if exc.name is None or not (real == exc.name or real.startswith(exc.name + ".")):
                raise  # a library that the module needs
            why = why_absent(real.rpartition(".")[2])
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: fluidlite has no such part of Paddle{why}", name=fullname
            ) from None
        return importlib.machinery.ModuleSpec(fullname, _SameModule(module), is_package=hasattr(module, "__path__"))


def _paddle_modules() -> list[str]:
    return [name for name in sys.modules if name == "paddle" or name.startswith("paddle.")]


@contextmanager
def paddle_modules() -> Iterator[None]:
    """Make ``import paddle`` find ``fluidlite.paddle`` inside the block.

    A Paddle that is installed, or was imported before, is what the name means again afterwards.
    """
    before = {name: sys.modules.pop(name) for name in _paddle_modules()}
    finder = _Finder()
    for name, real in _ROOTS.items():
        sys.modules[name] = importlib.import_module(real)
        # what is imported already: its import would put the module in its parent, where layers.rnn is a function
        known = [each for each in sys.modules if each.startswith(real + ".")]
        sys.modules.update({name + each[len(real) :]: sys.modules[each] for each in known})
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in _paddle_modules():
            del sys.modules[name]
        sys.modules.update(before)


def run_script(path: str | Path, arguments: Sequence[str] = ()) -> dict[str, object]:
    """Run a Python file that imports ``paddle.fluid`` as ``python file`` would.

    Parameters
    ----------
    path : str or Path
    arguments : sequence of str
        What the script finds in ``sys.argv[1:]``.

    Returns
    -------
    dict
        The script's global names.

    Raises
    ------
    ProgramError
        The file cannot be read.
    ScriptError
        The script raised. Its ``SystemExit`` and ``KeyboardInterrupt`` pass as they are.
    """
    file = Path(path)
    try:
        source = file.read_bytes()
    except OSError as exc:
        raise ProgramError(f"the script {str(path)!r} cannot be read: {exc.strerror or exc}") from None
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=str(path), __builtins__=__builtins__)
    main, argv, folders = sys.modules.get("__main__"), sys.argv, sys.path
    sys.argv = [str(path), *arguments]
    sys.path = [str(file.resolve().parent), *folders]
    sys.modules["__main__"] = module  # where pickle and unittest look for the script's names
    try:
        with paddle_modules(), old_arrays():
            exec(compile(source, str(path), "exec"), module.__dict__)
    except Exception as exc:
        raise ScriptError(_in_script(exc)) from None
    finally:
        sys.argv, sys.path = argv, folders
        if main is not None:
            sys.modules["__main__"] = main
    return module.__dict__


def _in_script(error: Exception) -> Exception:
    """The error with the frames of this file taken off the top of its traceback."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename == __file__:
        frame = frame.tb_next
    return error.with_traceback(frame)


def report(error: BaseException) -> None:
    """Print an error as Python does, on stderr."""
    traceback.print_exception(error, file=sys.stderr)


class OldArray(np.ndarray[Any, Any]):
    """An array that ``float``, ``int`` and ``"%f"`` take if it has one element, of whatever rank.

    NumPy took it until its release 2.4, and scripts of Fluid rely on it: their losses have the dims [1].
    """

    def __float__(self) -> float:
        return float(self._number())

    def __int__(self) -> int:
        return int(self._number())

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """NumPy's numbers where it returns such: ``numpy.mean`` of another array's kind is an array of no dims."""
        return array[()] if return_scalar else super().__array_wrap__(array, context, return_scalar)

    def _number(self) -> Any:
        if self.size != 1:
            raise TypeError(f"an array of {self.size} elements is no number; expected one of one element")
        return self.item()


@contextmanager
def old_arrays() -> Iterator[None]:
    """Let executors return :class:`OldArray` inside the block."""
    plain = Executor.run

    @functools.wraps(plain)
    def run(*args: Any, **kwargs: Any) -> list[Any]:
        return [each.view(OldArray) if type(each) is np.ndarray else each for each in plain(*args, **kwargs)]

    setattr(Executor, "run", run)  # noqa: B010
    try:
        yield
    finally:
        setattr(Executor, "run", plain)  # noqa: B010
