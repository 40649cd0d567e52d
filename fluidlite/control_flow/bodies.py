"""Bodies: sub-blocks at a run. Each is a program with an executor and a scope of its own, kept with its operator."""

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
    """Holds what a body shares with the block around it; random numbers are counted in the run's scope.

    ``outer``: that of the run.
    ``runs``: the run numbers that random streams have next, where a step is computed once more.
    """

    outer: Scope | None = None
    runs: Runs | None = None

    def next_run(self, stream: int, seed: int) -> int:
        """How often a random stream ran in the scope of the run."""
        if self.runs is not None:
            number = self.runs.get((stream, seed), 0)
            self.runs[stream, seed] = number + 1
            return number
        return self.outer.next_run(stream, seed) if self.outer is not None else super().next_run(stream, seed)

    def random_runs(self) -> Runs:
        """How often each random stream has run."""
        return self.outer.random_runs() if self.outer is not None else super().random_runs()

    @property
    def random_key(self) -> int | None:  # type: ignore[override]
        """What random operators draw with."""
        return self.outer.random_key if self.outer is not None else None


UNKNOWN = object()


class Body:
    """A sub-block that can be run.

    ``inputs``: of the gradient of a step: the names whose gradients it makes.
    ``busy``: a run of it is under way.
    ``trips``: how a loop's number of iterations depends on counters, or None; UNKNOWN before somebody asked.
    """

    def __init__(self, program: Program, inputs: Sequence[str], executor: Any, context: Context) -> None:
        self.program = program
        self.inputs = inputs
        self.executor = executor
        self.context = context
        self.scope = BodyScope()
        self.busy = False
        self.trips: object = UNKNOWN
        self._lent: list[str] = []

    def lend(self, name: str, tensor: Tensor) -> None:
        """Let it read a tensor, where that lies."""
        if isinstance(tensor, TensorArray):  # a value, whose elements nobody changes
            self.scope.var(name).hold(tensor)
            return
        held = self.scope.var(name).tensor
        if tensor.allocation is None:
            tensor.allocate(self.context)
        same = held.allocation is tensor.allocation and held.spec == tensor.spec
        if not same or held.byte_offset != tensor.byte_offset:
            held.share_data_with(tensor)
        self._lent.append(name)

    def give(self, name: str, tensor: Tensor) -> None:
        """Give it a copy of a tensor, to be changed."""
        if isinstance(tensor, TensorArray):
            self.scope.var(name).hold(tensor)
            return
        held = self.scope.var(name).tensor
        if held.allocation is not None and held.contiguous and held.spec == tensor.spec:
            transfer.transfer(tensor, self.context, into=held)
        else:
            held.share_data_with(copied(tensor, self.context))

    def set_zeros(self, name: str, spec: Spec) -> None:
        self.give(name, zeros(spec, self.context))

    def take(self, name: str) -> Tensor | None:
        """A copy of what it has under a name; None: nothing."""
        held = self.value(name)
        return copied(held, self.context) if held is not None else None

    def value(self, name: str) -> Tensor | None:
        """What it has under a name, until its next run; None: nothing."""
        variable = self.scope.find_var(name)
        return variable.tensor if variable is not None and variable.tensor.allocation is not None else None

    def begin(self, frame: Frame) -> None:
        """Begin a run of it within another."""
        self.busy = True
        self.scope.outer = frame.scope

    def end(self) -> None:
        """End a run: what was lent goes back."""
        self.busy = False
        self.scope.outer = self.scope.runs = None
        for name in self._lent:
            held = self.scope.var(name).tensor
            held.allocation, held._array = None, None
        self._lent.clear()
        for name in self.scope.local_var_names():
            held = self.scope.var(name).tensor
            if isinstance(held, TensorArray):
                held.clear()


MAX_BODIES = 32
"""Programs that are kept for one operator."""
_bodies: WeakKeyDictionary[Operator, dict[Any, Body]] = WeakKeyDictionary()
_lock = new_lock()


@first_in_child
def _begin_anew() -> None:
    _bodies.clear()


def body_of(frame: Frame, op: Operator, index: int, make: Callable[[], tuple[Program, Sequence[str]]]) -> Body:
    """The body of an operator on the context of a run; made at its first run, and when its program was edited.

    ``make`` gives its program, and of the gradient of a step the names whose gradients that makes.
    """
    return _kept(frame, op, index, make)


def call_of(frame: Frame, op: Operator, key: Any, make: Callable[[], Program]) -> Body:
    """A program that an operator runs beside sub-blocks, as it is used for one ``key``; the last 32 are kept."""
    return _kept(frame, op, ("call", key), lambda: (make(), ()))


def _kept(frame: Frame, op: Operator, what: Any, make: Callable[[], tuple[Program, Sequence[str]]]) -> Body:
    context = frame.context
    program = op.block.program
    key = (what, context, frame.bodies, program.serial, program.edits)
    with _lock:
        known = _bodies.setdefault(op, {})
        found = known.get(key)
        for old in [each for each in known if each[1].closed or each[4] != program.edits]:
            del known[old]
        while len(known) > MAX_BODIES:
            del known[next(iter(known))]
    if found is None or found.busy:
        executor = (frame.bodies or default_executor)(frame.place)
        busy = found is not None
        found = Body(*make(), executor, context)
        if not busy:
            with _lock:
                known[key] = found
    return found


def copied(tensor: Tensor, context: Context) -> Tensor:
    if isinstance(tensor, TensorArray):
        return tensor.copy()
    return transfer.transfer(tensor, context)


def zeros(spec: Spec, context: Context) -> Tensor:
    """Zeros on a context's place; of an array, one without elements."""
    if spec.kind == TENSOR_ARRAY:
        return TensorArray(spec.dtype, context.place)
    return Tensor().set(np.zeros(spec.dims, NUMPY[spec.dtype]), context.place)


def empty(spec: Spec, context: Context) -> Tensor:
    """A tensor on a context's place whose elements are still to be written."""
    made = Tensor.of(spec, context.place)
    made.allocate(context)
    return made


def check_fits(name: str, tensor: Tensor, declared: Spec) -> None:
    """Raise ProgramError if what a sub-block left is not what the program was planned with."""
    spec = tensor.spec
    assert spec is not None
    fits = spec.dtype == declared.dtype and declared.with_(lod=()).fits(spec.with_(lod=()))
    open_lod = declared.lod_level and not declared.lod  # the rest of the run is planned with what there is then
    if not fits or (spec.lod and spec.lod != declared.lod and not open_lod):
        raise ProgramError(
            f"its sub-block left {spec!r} in {name!r}; expected {declared!r}"
            "\n  Do: declare the dims that change as -1, and lod_level where it has LoD, or keep them as they are"
        )


def is_random(program: Program) -> bool:
    """Whether a run of a program draws random numbers."""
    return any(op.definition.random for block in program.blocks for op in block.ops)


class Steps(Tensor):
    """What the gradient of an operator with sub-blocks needs: the values at the start of each step.

    ``started``: (block index, values by name, random run numbers or None) of each step.
    ``before``, ``after``: what it read, and what it wrote.
    """

    def __init__(self) -> None:
        super().__init__()
        self.started: list[tuple[int, dict[str, Tensor], Runs | None]] = []
        self.before: dict[str, Spec] = {}
        self.after: dict[str, Spec] = {}

    def keep(self, index: int, body: Body, names: Iterable[str], random: bool) -> None:
        """Keep copies of what the next step changes."""
        values = {name: value for name in names if (value := body.take(name)) is not None}
        self.started.append((index, values, body.scope.random_runs() if random else None))
