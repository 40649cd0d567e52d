"""State that an executable depends on: the tensors of a scope, and where they lay when it was bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from fluidlite.platform.place import Place
from fluidlite.program.scope import Scope
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec

_memory = attrgetter("allocation.block", "allocation", "_byte_offset", "_strides", "spec")
"""What a bound step depends on, of a tensor of the scope."""


class StateBinding:
    """The tensors of a scope that an executable reads and writes, and how they were when it was bound."""

    def __init__(
        self,
        names: Sequence[str],
        written: Mapping[str, tuple[Spec, Place]],
        facts: Mapping[str, tuple[Spec, Place]],
    ) -> None:
        self.names = names
        self.written = written
        self.tensors: dict[str, Tensor] = {}
        self._list: list[Tensor] = []
        self._facts: dict[str, tuple[Spec | None, Place | None]] = dict(facts)
        self._expected: list[Any] = []
        self._scopes: tuple[int, ...] = ()

    def valid(self, scope: Scope) -> bool:
        """Whether all of it is where it was."""
        if self._scopes != _generations(scope):
            return False
        try:
            return [_memory(tensor) for tensor in self._list] == self._expected
        except AttributeError:  # it has no memory any more
            return False

    def look_up(self, scope: Scope) -> bool:
        """Find it in the scope; False if something has no memory that fits, or shares some that is written."""
        tensors: dict[str, Tensor] = {}
        holders: dict[int, list[str]] = {}
        for name in self.names:
            variable = scope.find_var(name)
            tensor = variable.tensor if variable is not None else None
            if tensor is None or tensor.allocation is None or tensor.allocation.block is None:
                return False
            if not tensor.contiguous:
                return False
            facts = tensor.spec, tensor.place
            if self.written.get(name, facts) != facts or self._facts.get(name, facts) != facts:
                return False  # another plan is for that
            tensors[name] = tensor
            holders.setdefault(id(tensor.allocation), []).append(name)
        if any(len(names) > 1 and not self.written.keys().isdisjoint(names) for names in holders.values()):
            return False
        self._facts |= {name: (tensor.spec, tensor.place) for name, tensor in tensors.items()}
        self.tensors, self._list = tensors, list(tensors.values())
        self._scopes = _generations(scope)
        self._expected = [_memory(tensor) for tensor in self._list]
        return True


def _generations(scope: Scope) -> tuple[int, ...]:
    found = [scope.generation]
    while scope.parent is not None:
        scope = scope.parent
        found.append(scope.generation)
    return tuple(found)
