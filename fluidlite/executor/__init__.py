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
    """The numbers of a LoDTensor without LoD, or of each of a list of them.

    Raises
    ------
    ProgramError
        It has LoD: ``numpy.array(tensor)`` gives the numbers without that.
    """
    if isinstance(tensor, (list, tuple)):
        return [as_numpy(each) for each in tensor]
    if not isinstance(tensor, Tensor):
        raise ProgramError(f"as_numpy got {type(tensor).__name__}; expected a LoDTensor, or a list of them")
    if tensor.lod():
        raise ProgramError("as_numpy: the tensor has LoD\n  Do: run with return_numpy=False, and numpy.array(tensor)")
    return tensor.numpy()


def fetch_var(name: str, scope: Scope | None = None, return_numpy: bool = True) -> Any:
    """A variable of a scope, as an array or as it is.

    Parameters
    ----------
    name : str
    scope : Scope, optional
        Default: the global scope.
    return_numpy : bool

    Raises
    ------
    ProgramError
        The scope has none of that name with a value: only persistable variables stay in it.
    """
    found = (scope if scope is not None else global_scope()).find_var(name) if isinstance(name, str) else None
    if found is None or not found.get_tensor().initialized:
        raise ProgramError(
            f"the scope has no value of {name!r}\n  Do: make it persistable, or fetch it in the run: fetch_list=[...]"
        )
    return as_numpy(found.get_tensor()) if return_numpy else found.get_tensor()
