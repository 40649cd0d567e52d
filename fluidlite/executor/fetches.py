"""Fetches: the names of a fetch list, and the conversion of fetched values for the user."""

from __future__ import annotations

from typing import Any

from fluidlite.base.arguments import check_list, did_you_mean, name_of
from fluidlite.base.errors import FetchError
from fluidlite.platform.context import Context
from fluidlite.program.opdef import GRAD
from fluidlite.program.program import Program
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_array import TensorArray
from fluidlite.tensor.tensor_spec import TENSOR_ARRAY, Spec
from fluidlite.tensor.transfer import borrow
from fluidlite.tensor.var_type import VarType


def _hint(program: Program, name: str, item: Any) -> str:
    if isinstance(item, Variable) and item.block.program is not program and not program.global_block().ops:
        return (
            "; it is of another program\n  Do: pass that one to run; a thread does not see a program_guard of another"
        )
    base = program.global_block().find_var(name.removesuffix(GRAD))
    if name.endswith(GRAD) and base is not None and base.stop_gradient:
        return f"; {base.name!r} has stop_gradient=True"
    return did_you_mean(name, program.global_block().vars)


def fetched_arrays(name: str, value: Any, spec: Spec) -> Any:
    """Return a fetched value as a NumPy array; a tensor array as a list of them."""
    if spec.kind != TENSOR_ARRAY:
        return value
    if any(each.lod for _, each in value):
        raise FetchError(
            f"elements of the tensor array {name!r} hold LoD, which a NumPy array cannot"
            "\n  Do: exe.run(..., return_numpy=False)"
        )
    return [array for array, _ in value]


def fetched_tensor(value: Any, spec: Spec, host: Context) -> Tensor:
    """Return a fetched value as a tensor or a tensor array."""
    if spec.kind != TENSOR_ARRAY:
        return borrow(value, spec, host)
    array_of_tensors = TensorArray(spec.dtype, host.place)
    for array, each in value:
        array_of_tensors.append(borrow(array, each, host))
    return array_of_tensors


def fetch_names(program: Program, fetch_list: Any) -> tuple[str, ...]:
    """Return the names of a fetch list; raise FetchError for unknown names, with similar ones."""
    if fetch_list is None:
        return ()
    names = []
    for item in check_list("fetch_list", fetch_list, "variables or names", FetchError, one=(str, Variable)):
        name = name_of(item)
        if name is None:
            equal = " (== on variables is Python's; use layers.equal)" if isinstance(item, bool) else ""
            raise FetchError(f"fetch_list holds {item!r}; expected variables or names{equal}")
        variable = program.global_block().find_var(name)
        if variable is None:
            raise FetchError(f"fetch_list names {name!r}, which the program does not have{_hint(program, name, item)}")
        if variable.type == VarType.STEP_SCOPES:
            raise FetchError(
                f"fetch_list names {name!r}, which holds the step scopes of a loop for its gradient, not numbers"
            )
        names.append(name)
    return tuple(names)
