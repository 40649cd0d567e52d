"""A run of a plan: its values by key, the contexts of its places, and the state that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from sys import getrefcount

from fluidlite.base.errors import ProgramError
from fluidlite.compiler.body_executors import MakeExecutor
from fluidlite.compiler.planning.plan import Control, Plan
from fluidlite.memory.sharing import Use
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.program.scope import Scope
from fluidlite.tensor import tensor_cache as recycle
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec
from fluidlite.tensor.transfer import copy_into, transfer
from fluidlite.tensor.written import Written


class StateMovedError(ProgramError):
    """State that a plan was made for is another when it is the plan's turn: it has to be planned again."""


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
        """What makes the executors of sub-blocks; None: such as executors are by default."""

    def fetched(self) -> Iterator[tuple[str, Context, Tensor, Spec]]:
        """What the plan's fetches are when its steps are done: key, context, value, and metadata of each."""
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
        """What the variables of an output slot of the operator that runs were planned as."""
        assert self.step is not None
        return [out.spec for out in self.step.outs.get(slot, ())]

    def read(self, slot: str) -> list[Tensor]:
        """Values of an input slot of the operator that runs; an absent slot has none."""
        assert self.step is not None
        return [self.values[key] for key in self.step.ins.get(slot, ())]

    def wants(self, slot: str) -> int:
        """How many variables an output slot of it has."""
        assert self.step is not None
        return len(self.step.outs.get(slot, ()))

    def write(self, slot: str, tensors: Sequence[Tensor]) -> None:
        """Give the variables of an output slot their values, which lie where the plan expects them.

        What lies in the memory of an input is copied: a later operator may write over one of the two.
        """
        assert self.step is not None
        wanted = self._place_of(self.step, slot)
        keys = [key for keys in self.step.ins.values() for key in keys if key in self.values]
        given = {id(self.values[key].allocation) for key in keys}
        for out, tensor in zip(self.step.outs[slot], tensors, strict=True):
            if tensor.place is not None and tensor.place != wanted:
                raise ProgramError(
                    f"{self.step.op} wrote {slot} on {tensor.place}; it belongs on {wanted}"
                    "\n  Do: set the tensor there, or declare the slot with on_host=True"
                )
            alone = tensor.allocation is None or id(tensor.allocation) not in given
            if out.state or not alone:
                context = self.contexts.get(wanted) or get_context(wanted)
                tensor = self.store(out.key, tensor, context, alone) if out.state else transfer(tensor, context)
            self.values[out.key] = tensor

    def store(self, key: str, value: Tensor, context: Context, alone: bool = True, exchange: bool = False) -> Tensor:
        """Store a value as state: copy it into the memory of the state if that fits; else take the value's memory.

        An array of tensors is held as it is. ``alone``: nobody else holds the value's memory, so the state may take it.
        ``exchange``: take it instead of a copy where nobody else holds the memory of the state either; executables
        whose addresses are static would be linked again.
        """
        variable = self.scope.find_var(key) or self.scope.var(key)
        state, spec = variable.tensor, value.spec
        memory = state.allocation
        fits = memory is not None and memory.block is not None and state.contiguous and state.place == context.place
        if fits and spec is not None and state.spec == spec and value.allocation is not None:
            # 3 references: of the tensor, of the local variable, and of getrefcount's argument
            if exchange and alone and memory is not None and memory.is_private and getrefcount(memory) == 3:
                spare = Tensor.of(spec, context.place, memory)
                del memory
                state.share_data_with(value)
                recycle.give(context, spare)
            else:
                copy_into(state, value)
            return state
        return variable.hold(value if alone else transfer(value, context))

    def _place_of(self, step: Control, slot: str) -> Place:
        """Where an output slot lies: on the host, if it says so; else where the first input does."""
        declared = step.op.definition.output(slot)
        if declared is not None and declared.on_host:
            return devices.host()
        if declared is not None and declared.run_place:
            return self.place
        first = step.ins.get(step.op.definition.inputs[0].name) if step.op.definition.inputs else None
        return (self.values[first[0]].place if first else None) or self.place


def uses_of_state(
    touched: Mapping[str, bool], scope: Scope, contexts: Mapping[Place, Context], alone: bool = True
) -> Iterator[Use]:
    """What a run does to the memory that state has now.

    ``touched`` says of each name whether it is written; without ``alone``, memory that its context alone has used is
    left out: it is that context's turn anyway.
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
    """The memory of the state that a run may write, and of what follows it."""
    variables = [scope.find_var(name) for name, writes in plan.touched.items() if writes]
    return Written([variable.tensor for variable in variables if variable is not None])


def take_state(plan: Plan, scope: Scope, values: dict[str, Tensor]) -> None:
    """Take the state that a plan reads, while it is the run's turn.

    Raises StateMovedError if it is not as the plan was told: another thread has moved it since, set it to other dims or
    to a strided view.
    """
    for name, read in plan.state.items():
        if not read:
            continue
        variable = scope.find_var(name)
        tensor = variable.tensor if variable is not None else None
        there = tensor is not None and tensor.allocation is not None and tensor.contiguous
        if tensor is None or not there or plan.state_specs[name] != (tensor.spec, tensor.place):
            raise StateMovedError(f"state {name!r} became another while a run of it was planned")
        values[name] = tensor
