"""Bodies: runnable sub-blocks. Each has a program, an executor and a scope, and is cached for its operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from fluidlite.base.dtypes import NUMPY
from fluidlite.base.errors import ProgramError
from fluidlite.base.fork import first_in_child, new_lock
from fluidlite.compiler.body_executors import default_executor
from fluidlite.compiler.frame import Frame
from fluidlite.platform.context import Context
from fluidlite.program.operator import Operator
from fluidlite.program.program import Program
from fluidlite.program.scope import Scope
from fluidlite.tensor import transfer
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_array import TensorArray
from fluidlite.tensor.tensor_spec import TENSOR_ARRAY, Spec

Runs = dict[tuple[int, int], int]


class BodyScope(Scope):
    """The scope of a body: variables shared with the enclosing block. Random streams are counted in the run's scope.

    ``outer``: the scope of the run.
    ``runs``: the next run numbers of random streams, when a step is recomputed.
    """

    outer: Scope | None = None
    runs: Runs | None = None

    def next_run(self, stream: int, seed: int) -> int:
        """The run number of a random stream in the scope of the run; counts it up."""
        if self.runs is not None:
            number = self.runs.get((stream, seed), 0)
            self.runs[stream, seed] = number + 1
            return number
        return self.outer.next_run(stream, seed) if self.outer is not None else super().next_run(stream, seed)

    def random_runs(self) -> Runs:
        """The run number of each random stream: those of the forward run, while a step is recomputed."""
        if self.runs is not None:
            return dict(self.runs)
        return self.outer.random_runs() if self.outer is not None else super().random_runs()

    @property
    def random_key(self) -> int | None:  # type: ignore[override]
        """The key of random operators."""
        return self.outer.random_key if self.outer is not None else None


UNKNOWN = object()  # a trip count not computed yet


class BlockBody:
    """A sub-block that can be run.

    ``inputs``: for the gradient of a step, the names whose gradients it computes.
    ``busy``: whether it is running.
    ``trips``: a loop's trip count as a function of counters, or None; UNKNOWN before it is computed.
    """

    def __init__(self, program: Program, inputs: Sequence[str], executor: Any, context: Context) -> None:
        self.program = program
        self.inputs = inputs
        self.executor = executor
        self.context = context
        self.scope = BodyScope()
        self.busy = False
        self.trips: object = UNKNOWN
        self._shared: list[str] = []

    def share(self, name: str, tensor: Tensor) -> None:
        """Let the body read a tensor in place."""
        if isinstance(tensor, TensorArray):  # immutable
            self.scope.var(name).hold(tensor)
            return
        variable = self.scope.var(name).tensor
        if tensor.allocation is None:
            tensor.allocate(self.context)
        is_shared = variable.allocation is tensor.allocation and variable.spec == tensor.spec
        if not is_shared or variable.byte_offset != tensor.byte_offset:
            variable.share_data_with(tensor)
        self._shared.append(name)

    def copy_in(self, name: str, tensor: Tensor) -> None:
        """Copy a tensor into a variable that the body may change."""
        if isinstance(tensor, TensorArray):
            self.scope.var(name).hold(tensor)
            return
        target = self.scope.var(name).tensor
        if target.allocation is not None and target.contiguous and target.spec == tensor.spec:
            transfer.transfer(tensor, self.context, into=target)
        else:
            target.share_data_with(copy_of(tensor, self.context))

    def set_zeros(self, name: str, spec: Spec) -> None:
        self.copy_in(name, zeros(spec, self.context))

    def copy_out(self, name: str) -> Tensor | None:
        """A copy of a variable's value; None if it has none."""
        source = self.value(name)
        return copy_of(source, self.context) if source is not None else None

    def value(self, name: str) -> Tensor | None:
        """A variable's value, valid until the next run; None if it has none."""
        variable = self.scope.find_var(name)
        return variable.tensor if variable is not None and variable.tensor.allocation is not None else None

    def begin(self, frame: Frame) -> None:
        """Begin a run inside the run of a frame."""
        self.busy = True
        self.scope.outer = frame.scope

    def end(self) -> None:
        """End a run, and release shared tensors."""
        self.busy = False
        self.scope.outer = self.scope.runs = None
        for name in self._shared:
            tensor = self.scope.var(name).tensor
            tensor.allocation, tensor._array = None, None
        self._shared.clear()
        for name in self.scope.local_var_names():
            tensor = self.scope.var(name).tensor
            if isinstance(tensor, TensorArray):
                tensor.clear()


MAX_BODIES = 32
"""Bodies cached for one operator."""
_bodies: WeakKeyDictionary[Operator, dict[Any, BlockBody]] = WeakKeyDictionary()
_lock = new_lock()


@first_in_child
def _clear_bodies() -> None:
    _bodies.clear()


def body_of(frame: Frame, op: Operator, call: Any, make: Callable[[], tuple[Program, Sequence[str]]]) -> BlockBody:
    """The body of an operator on the context of a run; made at the first run, and again after an edit of its program.

    ``call``: which of them: the index of the sub-block, or a key of another program that it runs; see MAX_BODIES.
    ``make`` returns its program, and for the gradient of a step the names whose gradients it computes.
    """
    context = frame.context
    program = op.block.program
    key = (call, context, frame.bodies, program.serial, program.edits)
    with _lock:
        bodies = _bodies.setdefault(op, {})
        body = bodies.get(key)
        for old in [each for each in bodies if each[1].closed or each[4] != program.edits]:
            del bodies[old]
        while len(bodies) > MAX_BODIES:
            del bodies[next(iter(bodies))]
    if body is None or body.busy:
        executor = (frame.bodies or default_executor)(frame.place)
        busy = body is not None
        body = BlockBody(*make(), executor, context)
        if not busy:
            with _lock:
                bodies[key] = body
    return body


def copy_of(tensor: Tensor, context: Context) -> Tensor:
    if isinstance(tensor, TensorArray):
        return tensor.copy()
    return transfer.transfer(tensor, context)


def zeros(spec: Spec, context: Context) -> Tensor:
    """Zeros on a context's place; for an array spec, an empty array."""
    if spec.kind == TENSOR_ARRAY:
        return TensorArray(spec.dtype, context.place)
    return Tensor().set(np.zeros(spec.dims, NUMPY[spec.dtype]), context.place)


def empty(spec: Spec, context: Context) -> Tensor:
    """An uninitialised tensor on a context's place."""
    tensor = Tensor.of(spec, context.place)
    tensor.allocate(context)
    return tensor


def check_fits(name: str, tensor: Tensor, declared: Spec) -> None:
    """Raise ProgramError if a value of a sub-block does not fit the spec that the program was planned with."""
    spec = tensor.spec
    assert spec is not None
    fits = spec.dtype == declared.dtype and declared.with_(lod=()).fits(spec.with_(lod=()))
    open_lod = declared.lod_level and not declared.lod  # the rest of the run is planned with the actual LoD
    if not fits or (spec.lod and spec.lod != declared.lod and not open_lod):
        raise ProgramError(
            f"its sub-block left {spec!r} in {name!r}; expected {declared!r}"
            "\n  Do: declare the dims that change as -1, and lod_level where it has LoD, or keep them as they are"
        )


def is_random(program: Program) -> bool:
    """Whether a run of a program draws random numbers."""
    return any(op.definition.random for block in program.blocks for op in block.ops)


class StepRecords(Tensor):
    """The values at the start of each step, recorded for the gradient of an operator with sub-blocks.

    ``records``: (block index, values by name, random run numbers or None) of each step.
    ``before``, ``after``: specs of the values that the operator read, and wrote.
    ``recording``: whether a gradient will read them.
    """

    def __init__(self, recording: bool) -> None:
        super().__init__()
        self.recording = recording
        self.records: list[tuple[int, dict[str, Tensor], Runs | None]] = []
        self.before: dict[str, Spec] = {}
        self.after: dict[str, Spec] = {}

    def record(self, index: int, body: BlockBody, names: Iterable[str], random: bool) -> None:
        """Record copies of the values that the next step changes."""
        if not self.recording:
            return
        values = {name: value for name in names if (value := body.copy_out(name)) is not None}
        self.records.append((index, values, body.scope.random_runs() if random else None))
