"""State as plans are made for it: where the variables of a scope lie, and what they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from fluidlite.platform.place import Place
from fluidlite.program.scope import Scope
from fluidlite.tensor.tensor_spec import Spec
from fluidlite.tensor.transfer import contiguous


def state_of(scope: Scope, names: Iterable[str]) -> dict[str, tuple[Spec, Place]]:
    """Return the Spec and Place of those variables of a scope that have memory.

    A variable whose tensor is a strided view gets a copy of its own first: kernels take state whose elements lie side
    by side. Another thread may replace a variable afterwards, which a run sees when it is its turn.
    """
    found: dict[str, tuple[Spec, Place]] = {}
    for name in names:
        variable = scope.find_var(name)
        if variable is None or variable.tensor.allocation is None:
            continue
        tensor = variable.tensor
        if not tensor.contiguous:
            tensor._replace(partial(contiguous, tensor))
        spec, place = tensor.spec, tensor.place
        if spec is not None and place is not None:
            found[name] = spec, place
    return found


def written_together(scope: Scope, state: Mapping[str, bool]) -> bool:
    """Whether variables of a scope lie in one allocation that is written; ``state`` says of each whether it is."""
    writes_of: dict[int, bool] = {}
    for name, writes in state.items():
        variable = scope.find_var(name)
        if variable is not None and variable.tensor.allocation is not None:
            held = id(variable.tensor.allocation)
            before = writes_of.get(held)
            if before is not None and (before or writes):
                return True
            writes_of[held] = writes
    return False
