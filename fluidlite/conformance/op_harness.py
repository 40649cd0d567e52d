"""Running one operator as a program on a place."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, NUMPY, dtype_name
from fluidlite.base.errors import FallbackWarning
from fluidlite.compiler.kernel_checks import debug
from fluidlite.compiler.planning.plan import Launch, Plan
from fluidlite.compiler.planning.plan_liveness import MIN_INPLACE_BYTES, min_inplace_bytes
from fluidlite.conformance.cases import Array, Case
from fluidlite.platform.place import Place
from fluidlite.program.block import Block
from fluidlite.program.program import Program
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor import Tensor

Named = dict[str, list[Variable]]


@dataclass
class OneOperator:
    """A program of one operator, and what is fed to it."""

    program: Program
    inputs: Named = field(default_factory=dict)
    outputs: Named = field(default_factory=dict)
    feed: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Array] = field(default_factory=dict)
    least: int = MIN_INPLACE_BYTES
    """Bytes from which outputs take the memory of inputs."""
    plan: Plan | None = None
    """What ran last."""

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

    def computed(self, block: Block, given: Variable, array: Array, lod: Any = ()) -> Variable:
        """Compute a variable of the numbers of one that is fed with an array; outputs take the memory of small ones."""
        self.least = 1
        zeros = self.data(block, f"{given.name}.zeros", np.zeros_like(array), lod, dims=given.shape)
        made = block.create_var(f"{given.name}.computed")
        block.append_op("elementwise_sub", {"X": given, "Y": zeros}, {"Out": made})
        return made


def build(
    case: Case, counts: Mapping[str, int], computed: Collection[str] = (), held: Collection[str] = ()
) -> OneOperator:
    """Make the program of a case.

    Inputs that an output updates in place (``must_alias``) are state of the scope, since a feed is read-only.

    ``counts``: numbers of variables by output slot; the outputs that are asked for.
    ``computed``: input slots that another operator computes, so that outputs may have their memory.
    ``held``: input slots that are state of the scope, of which kernels may ask for another form.
    """
    one = OneOperator(Program())
    block = one.program.global_block()
    updated = {given: out for out, given in case.op.must_alias.items()}
    for slot, arrays in case.inputs().items():
        lod = case.sample.lod.get(slot, ())
        one.inputs[slot] = []
        for i, array in enumerate(arrays):
            name = f"{slot}.{i}"
            if slot in updated or slot in held:
                variable = block.create_var(name, array.shape, dtype_name(array.dtype), persistable=True)
                one.state[name] = array
            else:
                fixed = dtype_name(array.dtype) not in ALL_FLOATS
                variable = one.data(block, name, array, lod, stop_gradient=fixed)
                if slot in computed and not fixed:
                    variable = one.computed(block, variable, array, lod)
            one.inputs[slot].append(variable)
    for slot, count in counts.items():
        source = case.op.must_alias.get(slot)
        if source is not None:
            one.outputs[slot] = one.inputs[source]
        else:
            one.outputs[slot] = [block.create_var(f"{slot}.{i}") for i in range(count)]
    block.append_op(case.op.type, one.inputs, one.outputs, case.sample.attrs)
    return one


MODES = ("interpreted", "compiled")
"""How a program can run: a place must be right both ways."""


Use = tuple[str, str, str]
_uses: ContextVar[list[Use] | None] = ContextVar("uses", default=None)


@contextmanager
def recorded_kernels() -> Iterator[list[Use]]:
    """Record how operators got their kernels in interpreted runs: operator type, how, library."""
    found: list[Use] = []
    token = _uses.set(found)
    try:
        yield found
    finally:
        _uses.reset(token)


@contextmanager
def _sharing_from(least: int) -> Iterator[None]:
    token = min_inplace_bytes.set(least)
    try:
        yield
    finally:
        min_inplace_bytes.reset(token)


def run(one: OneOperator, place: Place, fetch: Iterable[Variable], mode: str) -> list[Tensor]:
    """Run the program on a place; operators without a kernel there fall back.

    It runs a second time, with the outputs of its kernels and what becomes of their inputs watched.

    Raises KernelError if a kernel leaves an element of an output unwritten, or writes anything else.
    """
    from fluidlite.executor import Executor
    from fluidlite.program.scope import Scope

    scope = Scope()
    for name, array in one.state.items():
        scope.var(name).get_tensor().set(array, place)
    with warnings.catch_warnings(), _sharing_from(one.least):
        warnings.simplefilter("ignore", FallbackWarning)
        executor = Executor(place, mode=mode)
        results: list[Tensor] = executor.run(
            one.program, feed=one.feed, fetch_list=list(fetch), scope=scope, return_numpy=False
        )
        with debug(check_kernels=True):
            executor.run(one.program, feed=one.feed, fetch_list=list(fetch), scope=scope, return_numpy=False)
    one.plan = executor.explain_last().plan
    found = _uses.get()
    if found is not None and mode == "interpreted":
        for line in one.plan.lines:
            if line.choice is not None:
                parts = line.choice.part_choices or (line.choice,)
                libraries = dict.fromkeys(part.library for part in parts if part.library)
                found.append((line.op.type, line.how, " ".join(libraries)))
    return results


def other_ways(one: OneOperator) -> Iterator[tuple[str, set[str]]]:
    """How else to :func:`build` what has run compiled: the parameter and slots, for what its kernels may do besides."""
    for step in one.plan.steps if one.plan is not None else ():
        if isinstance(step, Launch) and step.choice.kernel is not None:
            op = step.call.op
            if step.choice.kernel.inplace and op.may_alias:
                yield "computed", set(op.may_alias.values())
            packed = {slot for ready in step.runs.values() for slot in ready.prepared.packed}
            if packed:
                yield "held", packed


def start_gradients(
    one: OneOperator, weights: Mapping[str, list[Array]], computed: bool = False
) -> tuple[list[Variable], list[Variable]]:
    """Feed the gradients of outputs, or compute them; return the outputs and those gradients, in the same order."""
    block = one.program.global_block()
    targets: list[Variable] = []
    starts: list[Variable] = []
    for slot, arrays in weights.items():
        for i, (variable, array) in enumerate(zip(one.outputs[slot], arrays, strict=True)):
            targets.append(variable)
            start = array.astype(NUMPY[variable.dtype])
            fed = one.data(block, f"{slot}.{i}.start", start, dims=variable.shape)
            starts.append(one.computed(block, fed, start) if computed else fed)
    return targets, starts
