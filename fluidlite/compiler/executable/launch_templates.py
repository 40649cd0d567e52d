"""Launch templates: the recorded launches of a kernel, whose addresses are filled in for each set of operands.

A kernel is recorded twice, on fake allocations at different addresses: an argument that differs is the address of an
operand, one that does not is a constant. A kernel with an ambiguous argument, or that does more than launch, has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from fluidlite.compiler.executable.command_buffer import Recorder, Unrecordable
from fluidlite.platform.context import Context
from fluidlite.platform.device_memory import Span
from fluidlite.program.kernel_io import IO
from fluidlite.program.op_call import Call
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec

LaunchList = list[tuple[Any, int, Sequence[Any], int | None]]
"""Launches: kernel, work-items, arguments, work-group size."""
Capture = Callable[[IO], Recorder | None]
"""Records the launches of a kernel on the operands of an IO; None: the kernel does more than launch."""

_DISTANCE, _ALIGN = 1 << 40, 256
"""Bytes between fake operands. Their addresses are random, so that no sum or multiple of one equals another."""


class Spot(NamedTuple):
    """The location of an operand: ``delta`` bytes after the begin of the tensor ``base_tensor``.

    ``base``: (handle, offset, address) of the begin of the tensor; the address is -1 if the place has none.
    """

    base: tuple[Any, int, int]
    delta: int
    base_tensor: Tensor

    @staticmethod
    def of(base_tensor: Tensor) -> Spot:
        """Return the location of the begin of a tensor."""
        allocation = base_tensor.allocation
        assert allocation is not None
        block, begin = allocation.live_block(), allocation.offset + base_tensor.byte_offset
        return Spot((block.handle, begin, block.address + begin if block.address is not None else -1), 0, base_tensor)

    def after(self, nbytes: int) -> Spot:
        return Spot(self.base, self.delta + nbytes, self.base_tensor)

    def span(self, nbytes: int) -> Span:
        handle, begin, _ = self.base
        return Span(handle, begin + self.delta, nbytes)

    def tensor(self, spec: Spec) -> Tensor:
        x = self.base_tensor
        return Tensor.of(spec, x.place, x.allocation, x.byte_offset + self.delta)  # type: ignore[arg-type]


class _FakeOperand:
    """A substitute for an allocation, at an offset and an address that are not in use."""

    def __init__(self, number: int, generator: Random) -> None:
        self.handle = object()
        self.offset, self._address = (
            (number + at) * _DISTANCE + _ALIGN * generator.randrange(_DISTANCE // 4 // _ALIGN) for at in (1, 1 << 9)
        )

    def live_block(self) -> Any:
        """Return itself, which has the ``handle`` of a block."""
        return self

    def address(self) -> int:
        return self._address

    def __getattr__(self, name: str) -> Any:
        raise Unrecordable(name)


class LaunchTemplate:
    """The template of the launches of one kernel; ``at(spots)`` fills in the locations of operands."""

    def __init__(
        self,
        launches: Sequence[tuple[Any, int, list[Any], int | None, list[tuple[int, int, int, int]]]],
        marks: bool,
        calls: int,
    ) -> None:
        self._launches, self.marks, self.calls = launches, marks, calls

    def at(self, spots: Sequence[Spot]) -> LaunchList:
        """Return the launches on operands at some locations; the workspace is the last operand."""
        launches: LaunchList = []
        for kernel, items, args, group, patches in self._launches:
            launch_args = args.copy()
            for at, number, kind, offset in patches:
                base, delta, _ = spots[number]
                launch_args[at] = base[kind] + delta + offset if kind else base[0]
            launches.append((kernel, items, launch_args, group))
        return launches


def launch_template(
    call: Call, specs: Sequence[Spec], workspace: int, capture: Capture, context: Context
) -> LaunchTemplate | None:
    """Return the template of a kernel's launches, or None.

    ``specs``: specs of its inputs and outputs, in this order.
    ``workspace``: bytes, or 0; the workspace is the last operand.
    """
    count = len(specs) + (workspace > 0)
    recordings = []
    for op_id, random in ((0, (0, 0, 0, 0)), (1, (1, 2, 3, 4))):  # its launches must depend on neither
        generator = Random(op_id)
        fakes = [_FakeOperand(number, generator) for number in range(count)]
        tensors = [Tensor.of(spec, context.place, fake) for spec, fake in zip(specs, fakes, strict=False)]  # type: ignore[arg-type]
        space = Tensor.of(Spec.of((workspace,), "uint8"), context.place, fakes[-1]) if workspace else None  # type: ignore[arg-type]
        recorder = capture(IO(call, tensors, context, op_id, random, space))
        if recorder is None:
            return None
        recordings.append((fakes, recorder))
    (fakes, first), (other_fakes, second) = recordings
    if len(first.launches) != len(second.launches):
        return None
    nbytes = [*(spec.nbytes for spec in specs), *((workspace,) if workspace else ())]
    launches = []
    for one, two in zip(first.launches, second.launches, strict=True):
        if one[0] is not two[0] or one[1] != two[1] or one[3] != two[3] or len(one[2]) != len(two[2]):
            return None
        patches = []
        for at, (a, b) in enumerate(zip(one[2], two[2], strict=True)):
            matches = _operand_of(a, b, fakes, other_fakes, nbytes)
            if matches is None:
                return None
            patches += [(at, *match) for match in matches]
        launches.append((one[0], one[1], list(one[2]), one[3], patches))
    return LaunchTemplate(launches, first.marks, first.calls)


def _operand_of(
    a: Any, b: Any, fakes: Sequence[_FakeOperand], other_fakes: Sequence[_FakeOperand], nbytes: Sequence[int]
) -> list[tuple[int, int, int]] | None:
    """Return (operand, kind, bytes added) of an argument; kinds are handle (0), offset (1) and address (2).

    The list is empty for a constant. Returns None if the argument is ambiguous.
    """
    if a is b and not isinstance(a, int):
        return []
    matches = []
    for number, (x, y) in enumerate(zip(fakes, other_fakes, strict=True)):
        if a is x.handle and b is y.handle:
            matches.append((number, 0, 0))
        elif type(a) is int and type(b) is int:
            for kind, p, q in ((1, x.offset, y.offset), (2, x.address(), y.address())):
                if a - p == b - q and 0 <= a - p <= nbytes[number]:
                    matches.append((number, kind, a - p))
    if matches:
        return matches if len(matches) == 1 else None
    is_inside = type(a) is int and any(
        0 <= a - at <= size
        for group in (fakes, other_fakes)
        for x, size in zip(group, nbytes, strict=True)
        for at in (x.offset, x.address())
    )
    return [] if type(a) is type(b) and a == b and not is_inside else None
