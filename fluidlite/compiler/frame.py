"""Frames: the values, contexts and scope of one run of a plan, and the state that the run reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from sys import getrefcount

from fluidlite.base.errors import ProgramError
from fluidlite.compiler.body_executors import MakeExecutor
from fluidlite.compiler.planning.plan import Control, Plan
from fluidlite.memory.sharing import Use
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.place import Place
from fluidlite.program.scope import Scope
from fluidlite.tensor import tensor_cache
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_array import TensorArray
from fluidlite.tensor.tensor_spec import Spec
from fluidlite.tensor.transfer import copy_into, transfer
from fluidlite.tensor.written import Written


class StateMovedError(ProgramError):
    """State has changed since the plan was made; it has to be planned again."""


class Frame:
    """One run: values by key, the contexts of its places, and the scope."""

    __slots__ = ("bodies", "contexts", "place", "plan", "program", "scope", "step", "values")

    def __init__(self, plan: Plan, scope: Scope, values: dict[str, Tensor]) -> None:
        self.plan = plan
        self.program = plan.program
        self.scope = scope
        self.place = plan.place
        self.values = values
        self.contexts: dict[Place, Context] = {}
        self.step: Control | None = None
        self.bodies: MakeExecutor | None = None
        """Makes the executors of sub-blocks; None: the default executors."""

    def fetched(self) -> Iterator[tuple[str, Context, Tensor, Spec]]:
        """Yield key, context, value and metadata of each fetch, after all steps have run."""
        for name, key, place, spec in self.plan.fetches:
            tensor = self.values.get(key)
            if tensor is None:
                raise ProgramError(f"variable {name!r} was fetched, but the run made no value of it")
            yield key, self.contexts[place], tensor, spec

    # For control-flow and host-callback operators

    @property
    def context(self) -> Context:
        return self.contexts[self.place]

    def planned(self, slot: str) -> list[Spec]:
        """Return the planned specs of an output slot of the current operator."""
        assert self.step is not None
        return [out.spec for out in self.step.outs.get(slot, ())]

    def read(self, slot: str) -> list[Tensor]:
        """Return the values of an input slot of the current operator; [] if the slot is absent."""
        assert self.step is not None
        return [self.values[key] for key in self.step.ins.get(slot, ())]

    def output_count(self, slot: str) -> int:
        """Return the number of variables of an output slot."""
        assert self.step is not None
        return len(self.step.outs.get(slot, ()))

    def write(self, slot: str, tensors: Sequence[Tensor]) -> None:
        """Set the values of an output slot; they must be on the place that the plan expects.

        A value that shares memory with an input is copied, since a later operator may overwrite one of the two.
        """
        assert self.step is not None
        target_place = self.step.places[slot]
        keys = [key for keys in self.step.ins.values() for key in keys if key in self.values]
        input_allocations = {id(self.values[key].allocation) for key in keys}
        for out, tensor in zip(self.step.outs[slot], tensors, strict=True):
            if tensor.place is not None and tensor.place != target_place:
                raise ProgramError(
                    f"{self.step.op} wrote {slot} on {tensor.place}; it belongs on {target_place}"
                    "\n  Do: set the tensor there, or declare the slot with on_host=True"
                )
            is_value = isinstance(tensor, TensorArray)  # its memory of no bytes only identifies state
            is_owned = is_value or tensor.allocation is None or id(tensor.allocation) not in input_allocations
            if out.state or not is_owned:
                context = self.contexts.get(target_place) or get_context(target_place)
                tensor = self.store(out.key, tensor, context, is_owned) if out.state else transfer(tensor, context)
            self.values[out.key] = tensor

    def store(self, key: str, value: Tensor, context: Context, alone: bool = True, exchange: bool = False) -> Tensor:
        """Store a value as state: copy it into the memory of the state if that fits; else take the value's memory.

        A tensor array is not copied. ``alone``: the value owns its memory, which the state may take.
        ``exchange``: take it instead of a copy if the state owns its memory too; executables with static addresses
        would be linked again.
        """
        variable = self.scope.find_var(key) or self.scope.var(key)
        state, spec = variable.tensor, value.spec
        memory = state.allocation
        fits = memory is not None and memory.block is not None and state.contiguous and state.place == context.place
        if fits and spec is not None and state.spec == spec and value.allocation is not None:
            # 3 references: by the tensor, by the local variable, and by getrefcount's argument
            if exchange and alone and memory is not None and memory.is_private and getrefcount(memory) == 3:
                spare = Tensor.of(spec, context.place, memory)
                del memory
                state.share_data_with(value)
                tensor_cache.give(context, spare)
            else:
                copy_into(state, value)
            return state
        return variable.hold(value if alone else transfer(value, context))


def uses_of_state(
    touched: Mapping[str, bool], scope: Scope, contexts: Mapping[Place, Context], alone: bool = True
) -> Iterator[Use]:
    """Yield the reads and writes of a run to the present memory of its state.

    ``touched``: names of state, and whether each is written.
    ``alone``: include memory that only its own context has used, for which a run on that context never waits.
    """
    for name, writes in touched.items():
        variable = scope.find_var(name)
        tensor = variable.tensor if variable is not None else None
        if tensor is None or tensor.allocation is None or tensor.place is None:
            continue
        allocation, context = tensor.allocation, contexts.get(tensor.place)
        if context is not None and (alone or allocation.sharing is not None or allocation.context is not context):
            yield Use(allocation, context, writes)


def written_state(plan: Plan, scope: Scope) -> Written:
    """Return the memory of all state that a run, or a later stage of it, may write."""
    variables = [scope.find_var(name) for name, writes in plan.state_uses.items() if writes]
    return Written([variable.tensor for variable in variables if variable is not None])


def take_state(plan: Plan, scope: Scope, values: dict[str, Tensor]) -> None:
    """Add the state that a plan reads to ``values``; the caller holds the contexts.

    Raises StateMovedError if another thread has moved it since it was planned, or set it to other dims or to a strided
    view.
    """
    for name, read in plan.state.items():
        if not read:
            continue
        variable = scope.find_var(name)
        tensor = variable.tensor if variable is not None else None
        has_memory = tensor is not None and tensor.allocation is not None and tensor.contiguous
        if tensor is None or not has_memory or plan.state_specs[name] != (tensor.spec, tensor.place):
            raise StateMovedError(f"state {name!r} became another while a run of it was planned")
        values[name] = tensor
