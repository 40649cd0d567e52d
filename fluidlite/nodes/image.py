"""RoutineImage: what a routine launches, so that it can be done at any addresses, with others in one native call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fluidlite.compiler.executable.command_buffer import recorded
from fluidlite.compiler.kernel_runs import NO_RANDOM, prepare_step, relaid
from fluidlite.compiler.sources.wording import stand_in
from fluidlite.platform.context import Context
from fluidlite.program.kernel_io import IO
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec

if TYPE_CHECKING:
    from fluidlite.nodes.routine import Routine

_NUMBERS = 0x2EED1234, 0x2EED4321
"""What operators are called in the two recordings: where a word is one of them, it names the operator in an error."""


@dataclass(frozen=True, slots=True)
class RoutineImage:
    """A routine that was linked.

    Its registers are where each of its results lies, and the inputs; if it is not ``plain``, then the operator's number
    in errors, and where what is forgotten lies.

    ``address``: of the image.
    ``sizes``: bytes of its results: of the memory that they have of their own.
    ``rooms``: the same, up to the device's alignment.
    ``nbytes``, ``room``: the sums of both.
    ``fetches``: for each result that has memory of its own, the number of what is fetched that lies there.
    ``scratch``: bytes of what lies between operators, and of workspaces.
    ``outs``: for each thing fetched, the input in whose memory it lies, or -1, and then the number of the result.
    ``single``: whether there is one result, which is what is fetched.
    ``marks``: whether a kernel may set the status word.
    ``plain``: whether it neither forgets anything nor marks.
    ``brief``: its address, room, nbytes and launches, if it is single and plain.
    ``keep``: what owns the image's memory.
    """

    address: int
    sizes: tuple[int, ...]
    rooms: tuple[int, ...]
    nbytes: int
    room: int
    fetches: tuple[int, ...]
    scratch: int
    outs: tuple[tuple[int, int], ...]
    single: bool
    marks: bool
    launches: int
    plain: bool
    brief: tuple[int, int, int, int] | None
    keep: Any


class _Recording:
    """A routine's launches on memory of their own."""

    def __init__(self, routine: Routine, context: Context, number: int) -> None:
        assert routine.steps is not None
        owned = [out for step in routine.steps for out in step.outs if out[2] != -1 and out[3] < 0]
        self.results = len(owned)
        number_register = 1 + self.results + len(routine.feed_specs)
        self._scratch = number_register + 1
        self.launches: list[Any] = []
        self.marks = False
        self.counted = 0
        self.memory: list[tuple[int, int, int, int]] = [(number_register, 0, number, 1)]
        self.sizes: list[int] = []
        self.fetches: list[int] = []
        self.scratch = 0
        self._context = context
        self._alive: list[Tensor] = []
        """All memory: as long as it lives, the other recording's lies elsewhere."""
        registers: list[Any] = []
        roots: dict[int, tuple[int, int]] = {}
        for at, spec in enumerate(routine.feed_specs):
            registers.append(self._register(spec, 1 + self.results + at, 0))
            roots[at] = at, 0
        registers += routine.spare
        for step in routine.steps:
            given: list[Tensor] = [registers[i] for i in step.ins]
            for spec, register, fetched, shares in step.outs:
                if shares >= 0:
                    tensor, roots[register] = relaid(given[shares], spec), roots[step.ins[shares]]
                else:  # what a view of it is fetched of is a result
                    tensor, roots[register] = self._own(spec, fetched) if fetched != -1 else self._forgotten(spec)
                registers[register] = tensor
                given.append(tensor)
            if not step.skip:
                self._launch(step, given, number)
        self.outs = tuple(roots[register] for register in routine.results)

    def _register(self, spec: Spec, register: int, offset: int) -> Tensor:
        tensor = stand_in(spec, self._context)
        self._alive.append(tensor)
        self.memory.append((register, offset, tensor.address(), spec.nbytes))
        return tensor

    def _own(self, spec: Spec, fetched: int) -> tuple[Tensor, tuple[int, int]]:
        at = len(self.sizes)
        self.sizes.append(spec.nbytes)
        self.fetches.append(fetched if fetched >= 0 else -2 - fetched)
        return self._register(spec, 1 + at, 0), (-1, at)

    def _forgotten(self, spec: Spec) -> tuple[Tensor, tuple[int, int]]:
        at = self.scratch
        self.scratch = at + _aligned(max(spec.nbytes, 1), self._context)
        return self._register(spec, self._scratch, at), (-2, at)

    def _launch(self, step: Any, tensors: list[Tensor], number: int) -> None:
        launch, context = step.launch, self._context
        if launch.random is not None:
            raise _Unlinkable
        _, space, prepared = launch.runs.get(context) or prepare_step(launch, context)
        workspace = self._forgotten(space)[0] if space is not None else None
        found = recorded(
            launch, prepared, context, IO(launch.call, tensors, context, number, NO_RANDOM, workspace), False
        )
        if found is None:
            raise _Unlinkable
        self.launches += found.launches
        self.marks = self.marks or found.marks
        self.counted += found.counted


class _Unlinkable(Exception):
    """A kernel does more than launch."""


def image_of(routine: Routine, context: Context) -> RoutineImage | None:
    """Link a routine; None where its kernels do more than launch, or threads may share one."""
    make = getattr(context.language, "image", None)
    if make is None or routine.steps is None:
        return None
    try:
        one, other = [_Recording(routine, context, number) for number in _NUMBERS]
    except _Unlinkable:
        return None
    memory = [
        (register, offset, start, there, nbytes)
        for (register, offset, start, nbytes), (_, _, there, _) in zip(one.memory, other.memory, strict=True)
    ]
    plain = not one.scratch and not one.marks
    found = make((one.launches, other.launches), memory, one.results + len(routine.feed_specs) + (0 if plain else 2))
    if found is None or any(source < -1 for source, _ in one.outs):
        return None
    rooms = tuple(_aligned(size, context) for size in one.sizes)
    single = one.outs == ((-1, 0),) and one.results == 1
    return RoutineImage(
        found.address,
        tuple(one.sizes),
        rooms,
        sum(one.sizes),
        sum(rooms),
        tuple(one.fetches),
        one.scratch,
        one.outs,
        single,
        one.marks,
        one.counted,
        plain,
        (found.address, rooms[0], one.sizes[0], one.counted) if single and plain else None,
        found,
    )


def _aligned(nbytes: int, context: Context) -> int:
    alignment = context.unit.info.alignment
    return -(-nbytes // alignment) * alignment
