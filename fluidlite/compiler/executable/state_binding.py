"""State bindings: the tensors of a scope that an executable is linked to, and the guard that they have not moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from fluidlite.platform.place import Place
from fluidlite.program.scope import Scope
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec

_memory = attrgetter("allocation.block", "allocation", "_byte_offset", "_strides", "spec")
"""Returns the properties of a tensor of the scope that a linked step depends on."""


class StateBinding:
    """The tensors of a scope that an executable reads and writes, with their properties when it was linked."""

    def __init__(
        self,
        names: Sequence[str],
        written: Mapping[str, tuple[Spec, Place]],
        specs: Mapping[str, tuple[Spec, Place]],
    ) -> None:
        self.names = names
        self.written = written
        self.tensors: dict[str, Tensor] = {}
        self._tensor_list: list[Tensor] = []
        self._required: dict[str, tuple[Spec | None, Place | None]] = dict(specs)
        self._expected: list[Any] = []
        self._scope_generations: tuple[int, ...] = ()

    def valid(self, scope: Scope) -> bool:
        """Whether no tensor has moved or changed its spec."""
        if self._scope_generations != _generations(scope):
            return False
        try:
            return [_memory(tensor) for tensor in self._tensor_list] == self._expected
        except AttributeError:  # a tensor has no memory any more
            return False

    def look_up(self, scope: Scope) -> bool:
        """Look the state up in the scope; False if a tensor has no fitting memory, or shares memory that is written."""
        tensors: dict[str, Tensor] = {}
        names_by_allocation: dict[int, list[str]] = {}
        for name in self.names:
            variable = scope.find_var(name)
            tensor = variable.tensor if variable is not None else None
            if tensor is None or tensor.allocation is None or tensor.allocation.block is None:
                return False
            if not tensor.contiguous:
                return False
            properties = tensor.spec, tensor.place
            if self.written.get(name, properties) != properties or self._required.get(name, properties) != properties:
                return False  # needs another plan
            tensors[name] = tensor
            names_by_allocation.setdefault(id(tensor.allocation), []).append(name)
        if any(len(names) > 1 and not self.written.keys().isdisjoint(names) for names in names_by_allocation.values()):
            return False
        self._required |= {name: (tensor.spec, tensor.place) for name, tensor in tensors.items()}
        self.tensors, self._tensor_list = tensors, list(tensors.values())
        self._scope_generations = _generations(scope)
        self._expected = [_memory(tensor) for tensor in self._tensor_list]
        return True


def _generations(scope: Scope) -> tuple[int, ...]:
    generations = [scope.generation]
    while scope.parent is not None:
        scope = scope.parent
        generations.append(scope.generation)
    return tuple(generations)
