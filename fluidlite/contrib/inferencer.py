"""Fluid's Inferencer: runs a program built by a function, with parameters saved by a Trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fluidlite import unique_name
from fluidlite.base.arguments import check_mapping
from fluidlite.base.errors import FeedError, ProgramError
from fluidlite.executor import Executor
from fluidlite.io.variables import load_params
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import PlaceLike
from fluidlite.program.program import Program, program_guard
from fluidlite.program.scope import Scope, scope_guard
from fluidlite.program.variable import Variable

__all__ = ["Inferencer"]


class Inferencer:
    """Runs the program that a function builds, with parameters of :meth:`Trainer.save_params`.

    Parameters
    ----------
    infer_func : callable
        Builds the same network as the Trainer's function; returns the output variable.
    param_path : path
    place : Place or str, optional
        Default: the host.
    parallel : bool
        Not supported.
    """

    def __init__(
        self, infer_func: Callable[[], Any], param_path: str, place: PlaceLike | None = None, parallel: bool = False
    ) -> None:
        if parallel:
            raise ProgramError("Inferencer: parallel is True; an Inferencer runs on one place")
        self.scope = Scope()
        program = Program()
        with program_guard(program, Program()), unique_name.guard():
            self.predict_var = infer_func()
        if not isinstance(self.predict_var, Variable):
            raise ProgramError(f"Inferencer: infer_func returned {self.predict_var!r:.80}; expected a Variable")
        self.exe = Executor(devices.host() if place is None else place)
        with scope_guard(self.scope):
            load_params(self.exe, param_path, program)
        self.inference_program = program.clone(for_test=True)

    def infer(self, inputs: Mapping[str, Any], return_numpy: bool = True) -> list[Any]:
        """Return the value, in a list of one.

        Parameters
        ----------
        inputs : mapping of name to array or tensor
        return_numpy : bool
            False: a tensor, which keeps its LoD.
        """
        feed = check_mapping("Inferencer.infer: inputs", inputs, "a mapping of names to arrays", FeedError)
        with scope_guard(self.scope):
            return self.exe.run(self.inference_program, feed, [self.predict_var.name], return_numpy=return_numpy)
