"""The metadata of a scope's state for plans: specs and places of its variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from fluidlite.platform.place import Place
from fluidlite.program.scope import Scope
from fluidlite.tensor.tensor_spec import Spec
from fluidlite.tensor.transfer import contiguous


def state_of(scope: Scope, names: Iterable[str]) -> dict[str, tuple[Spec, Place]]:
    """Return the Spec and Place of the variables of a scope that have memory.

    A tensor that is a strided view is replaced by a contiguous copy first, because kernels need contiguous state.
    Another thread may replace a variable afterwards, which the run checks itself.
    """
    specs_and_places: dict[str, tuple[Spec, Place]] = {}
    for name in names:
        variable = scope.find_var(name)
        if variable is None or variable.tensor.allocation is None:
            continue
        tensor = variable.tensor
        if not tensor.contiguous:
            tensor._replace(partial(contiguous, tensor))
        spec, place = tensor.spec, tensor.place
        if spec is not None and place is not None:
            specs_and_places[name] = spec, place
    return specs_and_places


def share_written_memory(scope: Scope, state: Mapping[str, bool]) -> bool:
    """Whether variables of a scope share an allocation that is written; ``state``: whether each variable is written."""
    writes_of: dict[int, bool] = {}
    for name, writes in state.items():
        variable = scope.find_var(name)
        if variable is not None and variable.tensor.allocation is not None:
            allocation_id = id(variable.tensor.allocation)
            earlier_writes = writes_of.get(allocation_id)
            if earlier_writes is not None and (earlier_writes or writes):
                return True
            writes_of[allocation_id] = writes
    return False
