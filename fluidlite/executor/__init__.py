"""Executor: runs a program on a place."""

from __future__ import annotations

from typing import Any

from fluidlite.base.errors import ProgramError
from fluidlite.executor.dataset_runs import FetchHandler
from fluidlite.executor.executor import Executor
from fluidlite.program.scope import Scope, global_scope, scope_guard, switch_scope
from fluidlite.tensor.tensor import Tensor

__all__ = ["Executor", "FetchHandler", "Scope", "as_numpy", "fetch_var", "global_scope", "scope_guard"]

_switch_scope = switch_scope


def as_numpy(tensor: Any) -> Any:
    """Return a LoDTensor without LoD as an array; for a list, a list of arrays.

    Raises
    ------
    ProgramError
        If it has LoD; ``numpy.array(tensor)`` returns the values without LoD.
    """
    if isinstance(tensor, (list, tuple)):
        return [as_numpy(each) for each in tensor]
    if not isinstance(tensor, Tensor):
        raise ProgramError(f"as_numpy got {type(tensor).__name__}; expected a LoDTensor, or a list of them")
    if tensor.lod():
        raise ProgramError("as_numpy: the tensor has LoD\n  Do: run with return_numpy=False, and numpy.array(tensor)")
    return tensor.numpy()


def fetch_var(name: str, scope: Scope | None = None, return_numpy: bool = True) -> Any:
    """Return the value of a variable of a scope, as an array or as a tensor.

    Parameters
    ----------
    name : str
    scope : Scope, optional
        Default: the global scope.
    return_numpy : bool

    Raises
    ------
    ProgramError
        If the scope has no variable of that name with a value; only persistable variables stay in a scope.
    """
    variable = (scope if scope is not None else global_scope()).find_var(name) if isinstance(name, str) else None
    if variable is None or not variable.get_tensor().initialized:
        raise ProgramError(
            f"the scope has no value of {name!r}\n  Do: make it persistable, or fetch it in the run: fetch_list=[...]"
        )
    return as_numpy(variable.get_tensor()) if return_numpy else variable.get_tensor()
