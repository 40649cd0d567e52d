"""Run one operator as a program on a place."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fluidlite.base.context_value import context_value
from fluidlite.base.dtypes import ALL_FLOATS, NUMPY, dtype_name
from fluidlite.base.errors import FallbackWarning, FluidError, KernelError
from fluidlite.compiler.kernel_checks import debug
from fluidlite.compiler.planning.plan import Launch, Plan
from fluidlite.compiler.planning.plan_liveness import MIN_INPLACE_BYTES, min_inplace_bytes
from fluidlite.conformance.cases import Array, Case
from fluidlite.conformance.certificate import Use
from fluidlite.platform.place import Place
from fluidlite.program.block import Block
from fluidlite.program.program import Program
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor import Tensor

Named = dict[str, list[Variable]]


@dataclass
class OperatorProgram:
    """A program of one operator, with its feeds and state."""

    program: Program
    inputs: Named = field(default_factory=dict)
    outputs: Named = field(default_factory=dict)
    feed: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Array] = field(default_factory=dict)
    min_shared_bytes: int = MIN_INPLACE_BYTES
    """Minimum size in bytes of an output that takes the memory of an input."""
    plan: Plan | None = None
    """The plan of the last run."""

    def data(
        self, block: Block, name: str, array: Array, lod: Any = (), stop_gradient: bool = True, dims: Any = None
    ) -> Variable:
        """Declare a variable (with ``dims`` instead of the array's own) that is fed with an array."""
        variable = block.create_var(
            name,
            array.shape if dims is None else dims,
            dtype_name(array.dtype),
            lod_level=len(lod),
            stop_gradient=stop_gradient,
            is_data=True,
        )
        self.feed[name] = Tensor().set(array, None, [list(level) for level in lod]) if lod else array
        return variable

    def computed(self, block: Block, fed: Variable, array: Array, lod: Any = ()) -> Variable:
        """Compute a copy of a fed variable, whose memory an output may take, however small it is."""
        self.min_shared_bytes = 1
        zeros = self.data(block, f"{fed.name}.zeros", np.zeros_like(array), lod, dims=fed.shape)
        result = block.create_var(f"{fed.name}.computed")
        block.append_op("elementwise_sub", {"X": fed, "Y": zeros}, {"Out": result})
        return result


def build(
    case: Case, counts: Mapping[str, int], computed: Collection[str] = (), persistent: Collection[str] = ()
) -> OperatorProgram:
    """Build the program of a case.

    Inputs that an output updates in place (``must_alias``) are state of the scope, since a feed is read-only.

    ``counts``: numbers of variables by requested output slot.
    ``computed``: input slots that another operator computes, so that outputs may take their memory.
    ``persistent``: input slots that are state of the scope, of which kernels may cache a packed form.
    """
    one = OperatorProgram(Program())
    block = one.program.global_block()
    updated = {source: out for out, source in case.op.must_alias.items()}
    for slot, arrays in case.inputs().items():
        lod = case.sample.lod.get(slot, ())
        one.inputs[slot] = []
        for i, array in enumerate(arrays):
            name = f"{slot}.{i}"
            if slot in updated or slot in persistent:
                variable = block.create_var(name, array.shape, dtype_name(array.dtype), persistable=True)
                one.state[name] = array
            else:
                is_exact = dtype_name(array.dtype) not in ALL_FLOATS
                variable = one.data(block, name, array, lod, stop_gradient=is_exact)
                if slot in computed and not is_exact:
                    variable = one.computed(block, variable, array, lod)
            one.inputs[slot].append(variable)
    for slot, count in counts.items():
        alias = case.op.must_alias.get(slot)
        if alias is not None:
            one.outputs[slot] = one.inputs[alias]
        else:
            one.outputs[slot] = [block.create_var(f"{slot}.{i}") for i in range(count)]
    block.append_op(case.op.type, one.inputs, one.outputs, case.sample.attrs)
    return one


MODES = ("interpreted", "compiled")
"""The executor's modes; a place must be correct in both."""


_uses: ContextVar[list[Use] | None] = ContextVar("uses", default=None)


def recorded_kernels() -> AbstractContextManager[list[Use]]:
    """Record how kernels are selected in interpreted runs: operator type, kind of selection, library."""
    return context_value(_uses, list[Use]())


def run(one: OperatorProgram, place: Place, fetch: Iterable[Variable], mode: str) -> list[Tensor]:
    """Run the program on a place; operators without a kernel there fall back.

    A run before it checks that kernels write all of their outputs and nothing else; it has other values if the operator
    takes them, which a kernel must not keep.

    Raises KernelError if a kernel leaves an element of an output unwritten, or writes anything else.
    """
    from fluidlite.executor import Executor
    from fluidlite.program.scope import Scope

    def scope_of(state: Mapping[str, Any]) -> Scope:
        scope = Scope()
        for name, array in state.items():
            scope.var(name).get_tensor().set(array, place)
        return scope

    def run_with(feed: Mapping[str, Any], state: Mapping[str, Any]) -> list[Tensor]:
        return executor.run(one.program, dict(feed), fetches, scope=scope_of(state), return_numpy=False)

    fetches = list(fetch)
    with warnings.catch_warnings(), context_value(min_inplace_bytes, one.min_shared_bytes):
        warnings.simplefilter("ignore", FallbackWarning)
        executor = Executor(place, mode=mode)
        with debug(check_kernels=True):
            try:
                run_with(_halved(one.feed), _halved(one.state))
            except KernelError:
                raise
            except FluidError:  # the operator refuses them, such as half a scale, which gives other dims
                run_with(one.feed, one.state)
        results = run_with(one.feed, one.state)
    one.plan = executor.explain_last().plan
    uses = _uses.get()
    if uses is not None and mode == "interpreted":
        for line in one.plan.lines:
            if line.choice is not None:
                parts = line.choice.part_choices or (line.choice,)
                libraries = dict.fromkeys(part.library for part in parts if part.library)
                uses.append((line.op.type, line.how, " ".join(libraries)))
    return results


def _halved(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Half of the numbers of floating-point arrays; other values unchanged."""
    return {
        name: np.asarray(array / 2, array.dtype) if isinstance(array, np.ndarray) and array.dtype.kind == "f" else array
        for name, array in arrays.items()
    }


def other_builds(one: OperatorProgram) -> Iterator[tuple[str, set[str]]]:
    """Parameters of :func:`build`, with slots, that make compiled kernels run in place or on packed inputs."""
    for step in one.plan.steps if one.plan is not None else ():
        if isinstance(step, Launch) and step.choice.kernel is not None:
            op = step.call.op
            if step.choice.kernel.inplace and op.may_alias:
                yield "computed", set(op.may_alias.values())
            packed_slots = {slot for ready in step.runs.values() for slot in ready.packed}
            if packed_slots:
                yield "persistent", packed_slots


def feed_output_gradients(
    one: OperatorProgram, weights: Mapping[str, list[Array]], computed: bool = False
) -> tuple[list[Variable], list[Variable]]:
    """Feed the gradients of outputs, or compute them; return the outputs and their gradients."""
    block = one.program.global_block()
    targets: list[Variable] = []
    gradients: list[Variable] = []
    for slot, arrays in weights.items():
        for i, (variable, array) in enumerate(zip(one.outputs[slot], arrays, strict=True)):
            targets.append(variable)
            gradient = array.astype(NUMPY[variable.dtype])
            fed = one.data(block, f"{slot}.{i}.start", gradient, dims=variable.shape)
            gradients.append(one.computed(block, fed, gradient) if computed else fed)
    return targets, gradients
