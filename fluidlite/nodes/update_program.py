"""UpdateProgram: an optimiser's update for weights of given metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fluidlite import unique_name
from fluidlite.base.errors import NodeError
from fluidlite.executor import Executor
from fluidlite.layers import concat, data, isfinite
from fluidlite.nodes.tensor import Tensor
from fluidlite.optimizer import Optimizer
from fluidlite.platform.place import Place
from fluidlite.program.program import Program, program_guard
from fluidlite.program.scope import Scope
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor import Tensor as PlacedTensor
from fluidlite.tensor.tensor_spec import Spec

State = Mapping[str, PlacedTensor]
"""The state of an optimiser for one weight, by name."""


class UpdateProgram:
    """Programs that update one weight for each spec, and that check gradients for infinite or NaN elements.

    ``specs``: of the weights.
    ``optimizer``: an unused optimiser.
    """

    def __init__(self, place: Place, specs: Sequence[Spec], optimizer: Optimizer) -> None:
        self.weight = 60_000 * len(specs)  # an estimate in bytes: operators and their plans
        self.place = place
        self._names = [f"w{i}" for i in range(len(specs))]
        self._update, self._startup, self._check = Program(), Program(), Program()
        with unique_name.guard(), program_guard(self._update, self._startup):
            pairs = []
            for name, spec in zip(self._names, specs, strict=True):
                param = self._update.global_block().create_parameter(name, spec.dims, spec.dtype)
                pairs.append((param, _gradient(name, spec)))
            optimizer.apply_gradients(pairs)  # type: ignore[arg-type]  # pairs with no None
            rate = optimizer._global_learning_rate(self._update)
        if rate is None:
            raise NodeError(f"{type(optimizer).__name__} has no learning rate that could be set; use another optimiser")
        self._rate_name, self._rate_dtype = rate.name, rate.dtype
        with unique_name.guard(), program_guard(self._check, Program()):
            flags = [isfinite(_gradient(name, spec)) for name, spec in zip(self._names, specs, strict=True)]
            self._finite = concat(flags, axis=0)
        self._executor = Executor(place)
        self._scope = Scope()
        self._rate: float | None = None
        started = list(self._startup.global_block().vars)
        self._state_names = [[each for each in started if each.startswith(f"{name}_")] for name in self._names]

    def first_states(self) -> list[State]:
        """The initial state of the optimiser for each weight."""
        fresh = Scope()
        self._executor.run(self._startup, scope=fresh)
        states: list[State] = []
        for name, state_names in zip(self._names, self._state_names, strict=True):
            states.append({variable[len(name) :]: fresh.var(variable).get_tensor() for variable in state_names})
        return states

    def are_finite(self, gradients: Sequence[Tensor]) -> list[bool]:
        """Whether each gradient has no element that is infinite or NaN."""
        (flags,) = self._executor.run(self._check, self._feed(gradients), [self._finite], scope=self._scope)
        return [bool(flag) for flag in flags]

    def run(self, values: Sequence[Tensor], states: Sequence[State], gradients: Sequence[Tensor], rate: float) -> None:
        """Update the weights and their states."""
        if rate != self._rate:
            self._scope.var(self._rate_name).get_tensor().set(np.array([rate], self._rate_dtype), self.place)
            self._rate = rate
        bindings: list[tuple[PlacedTensor, PlacedTensor]] = []
        for name, value, state in zip(self._names, values, states, strict=True):
            bindings.append((value, self._bind(name, value)))
            bindings += [(tensor, self._bind(name + suffix, tensor)) for suffix, tensor in state.items()]
        self._executor.run(self._update, self._feed(gradients), [], scope=self._scope)
        for tensor, variable in bindings:
            if variable.allocation is not tensor.allocation:  # the run has replaced the memory
                tensor.assign(variable)

    def _bind(self, name: str, tensor: PlacedTensor) -> PlacedTensor:
        """Bind the scope's variable to a tensor's memory."""
        variable = self._scope.var(name).get_tensor()
        if variable.allocation is not tensor.allocation or variable.byte_offset != tensor.byte_offset:
            variable.share_data_with(tensor)
        return variable

    def _feed(self, gradients: Sequence[Tensor]) -> dict[str, Tensor]:
        return {f"{name}_grad": tensor for name, tensor in zip(self._names, gradients, strict=True)}


def _gradient(name: str, spec: Spec) -> Variable:
    return data(f"{name}_grad", list(spec.dims), append_batch_size=False, dtype=spec.dtype)
