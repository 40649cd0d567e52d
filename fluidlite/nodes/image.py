"""RoutineImage: the launches of a routine, linked so that one native call runs many images at any addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fluidlite.compiler.executable.command_buffer import record_step
from fluidlite.compiler.kernel_runs import NO_RANDOM, prepare_step, with_spec
from fluidlite.compiler.sources.wording import stand_in
from fluidlite.platform.context import Context
from fluidlite.program.kernel_io import IO
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec

if TYPE_CHECKING:
    from fluidlite.nodes.routine import Routine

_MARKER_NUMBERS = 0x2EED1234, 0x2EED4321
"""The operator numbers of the two recordings: a word equal to one of them is the operator's number in an error."""


@dataclass(frozen=True, slots=True)
class RoutineImage:
    """A linked routine.

    Its registers are the addresses of its results and of its inputs. If it is not ``is_plain``, the operator's number
    for errors and the address of its scratch memory follow.

    ``address``: of the image.
    ``sizes``: bytes of each result that has memory of its own.
    ``aligned_sizes``: the same, rounded up to the device's alignment.
    ``nbytes``, ``aligned_bytes``: the sums of both.
    ``fetches``: for each result that has memory of its own, the number of the fetch stored in it.
    ``scratch``: bytes of intermediate values and workspaces.
    ``outs``: for each fetch, the input that it aliases, or -1 and the number of the result.
    ``has_single_result``: whether there is one result, which is the only fetch.
    ``may_fail``: whether a kernel may set the status word.
    ``is_plain``: whether it has no scratch memory and cannot fail.
    ``fast_words``: its address, aligned_bytes, nbytes and launches, if it is plain with a single result; else None.
    ``owner``: the object that owns the image's memory.
    """

    address: int
    sizes: tuple[int, ...]
    aligned_sizes: tuple[int, ...]
    nbytes: int
    aligned_bytes: int
    fetches: tuple[int, ...]
    scratch: int
    outs: tuple[tuple[int, int], ...]
    has_single_result: bool
    may_fail: bool
    launches: int
    is_plain: bool
    fast_words: tuple[int, int, int, int] | None
    owner: Any


class _Recording:
    """The launches of a routine on stand-in memory."""

    def __init__(self, routine: Routine, context: Context, number: int) -> None:
        assert routine.steps is not None
        owned = [out for step in routine.steps for out in step.outs if out[2] != -1 and out[3] < 0]
        self.results = len(owned)
        number_register = 1 + self.results + len(routine.feed_specs)
        self._scratch = number_register + 1
        self.launches: list[Any] = []
        self.may_fail = False
        self.counted = 0
        self.memory: list[tuple[int, int, int, int]] = [(number_register, 0, number, 1)]
        self.sizes: list[int] = []
        self.fetches: list[int] = []
        self.scratch = 0
        self._context = context
        self._alive: list[Tensor] = []
        """Keeps the memory alive, so that the second recording has other addresses."""
        registers: list[Any] = []
        roots: dict[int, tuple[int, int]] = {}
        for at, spec in enumerate(routine.feed_specs):
            registers.append(self._register(spec, 1 + self.results + at, 0))
            roots[at] = at, 0
        registers += routine.spare
        for step in routine.steps:
            operands: list[Tensor] = [registers[i] for i in step.ins]
            for spec, register, fetched, shares in step.outs:
                if shares >= 0:
                    tensor, roots[register] = with_spec(operands[shares], spec), roots[step.ins[shares]]
                else:  # a value is a result if it or a view of it is fetched
                    tensor, roots[register] = (
                        self._result(spec, fetched) if fetched != -1 else self._scratch_tensor(spec)
                    )
                registers[register] = tensor
                operands.append(tensor)
            if not step.skip:
                self._launch(step, operands, number)
        self.outs = tuple(roots[register] for register in routine.results)

    def _register(self, spec: Spec, register: int, offset: int) -> Tensor:
        tensor = stand_in(spec, self._context)
        self._alive.append(tensor)
        self.memory.append((register, offset, tensor.address(), spec.nbytes))
        return tensor

    def _result(self, spec: Spec, fetched: int) -> tuple[Tensor, tuple[int, int]]:
        at = len(self.sizes)
        self.sizes.append(spec.nbytes)
        self.fetches.append(fetched if fetched >= 0 else -2 - fetched)
        return self._register(spec, 1 + at, 0), (-1, at)

    def _scratch_tensor(self, spec: Spec) -> tuple[Tensor, tuple[int, int]]:
        at = self.scratch
        self.scratch = at + _align_up(max(spec.nbytes, 1), self._context)
        return self._register(spec, self._scratch, at), (-2, at)

    def _launch(self, step: Any, tensors: list[Tensor], number: int) -> None:
        launch, context = step.launch, self._context
        if launch.random is not None:
            raise _NotLinkable
        prepared = launch.runs.get(context) or prepare_step(launch, context)
        nbytes = prepared.workspace
        workspace = self._scratch_tensor(Spec.of((nbytes,), "uint8"))[0] if nbytes else None
        recording = record_step(
            launch, prepared, context, IO(launch.call, tensors, context, number, NO_RANDOM, workspace), False
        )
        if recording is None:
            raise _NotLinkable
        self.launches += recording.launches
        self.may_fail = self.may_fail or recording.marks
        self.counted += recording.counted


class _NotLinkable(Exception):
    """A kernel runs host code besides launches."""


def image_of(routine: Routine, context: Context) -> RoutineImage | None:
    """Link a routine; None if a kernel runs host code besides launches, or the work needs several threads."""
    make_image = getattr(context.language, "image", None)
    if make_image is None or routine.steps is None:
        return None
    try:
        first, second = [_Recording(routine, context, number) for number in _MARKER_NUMBERS]
    except _NotLinkable:
        return None
    memory = [
        (register, offset, start, second_start, nbytes)
        for (register, offset, start, nbytes), (_, _, second_start, _) in zip(first.memory, second.memory, strict=True)
    ]
    is_plain = not first.scratch and not first.may_fail
    registers = first.results + len(routine.feed_specs) + (0 if is_plain else 2)
    image = make_image((first.launches, second.launches), memory, registers)
    if image is None or any(source < -1 for source, _ in first.outs):
        return None
    aligned_sizes = tuple(_align_up(size, context) for size in first.sizes)
    has_single_result = first.outs == ((-1, 0),) and first.results == 1
    return RoutineImage(
        image.address,
        tuple(first.sizes),
        aligned_sizes,
        sum(first.sizes),
        sum(aligned_sizes),
        tuple(first.fetches),
        first.scratch,
        first.outs,
        has_single_result,
        first.may_fail,
        first.counted,
        is_plain,
        (image.address, aligned_sizes[0], first.sizes[0], first.counted) if has_single_result and is_plain else None,
        image,
    )


def _align_up(nbytes: int, context: Context) -> int:
    alignment = context.unit.info.alignment
    return -(-nbytes // alignment) * alignment
