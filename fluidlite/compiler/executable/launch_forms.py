"""What a kernel launches, as a form that is filled in with where its operands lie: noted once, not at each address.

A kernel is noted twice, on memory that nobody has: an argument that differs says where an operand lies, one that does
not is a constant. An argument that cannot be told, and a kernel that does more than launch, has no form.
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

Noted = list[tuple[Any, int, Sequence[Any], int | None]]
"""Launches: kernel, items, arguments, group."""
Note = Callable[[IO], Recorder | None]
"""``note(io)`` notes what a kernel launches; None: it does more."""

_APART, _ALIGN = 1 << 40, 256
"""Bytes between operands that nobody has; where they lie is irregular, so that no sum or multiple of one is another."""


class Spot(NamedTuple):
    """Where an operand lies: so many bytes behind the begin of a tensor.

    ``base``: (handle, offset, address) of the tensor's begin; without an address where the place has none.
    """

    base: tuple[Any, int, int]
    behind: int
    whole: Tensor

    @staticmethod
    def of(whole: Tensor) -> Spot:
        """The begin of a tensor."""
        allocation = whole.allocation
        assert allocation is not None
        block, begin = allocation.live_block(), allocation.offset + whole.byte_offset
        return Spot((block.handle, begin, block.address + begin if block.address is not None else -1), 0, whole)

    def after(self, nbytes: int) -> Spot:
        return Spot(self.base, self.behind + nbytes, self.whole)

    def span(self, nbytes: int) -> Span:
        handle, begin, _ = self.base
        return Span(handle, begin + self.behind, nbytes)

    def tensor(self, spec: Spec) -> Tensor:
        x = self.whole
        return Tensor.of(spec, x.place, x.allocation, x.byte_offset + self.behind)  # type: ignore[arg-type]


class _Nowhere:
    """Stands in for an allocation: an operand at an offset and an address that nobody has."""

    def __init__(self, number: int, anywhere: Random) -> None:
        self.handle = object()
        self.offset, self._address = (
            (number + at) * _APART + _ALIGN * anywhere.randrange(_APART // 4 // _ALIGN) for at in (1, 1 << 9)
        )

    def live_block(self) -> Any:
        """The block, of which the handle is asked."""
        return self

    def address(self) -> int:
        return self._address

    def __getattr__(self, name: str) -> Any:
        raise Unrecordable(name)


class LaunchForm:
    """The launches of one kernel; ``at(spots)`` are those on operands that lie there."""

    def __init__(
        self,
        launches: Sequence[tuple[Any, int, list[Any], int | None, list[tuple[int, int, int, int]]]],
        marks: bool,
        calls: int,
    ) -> None:
        self._launches, self.marks, self.calls = launches, marks, calls

    def at(self, spots: Sequence[Spot]) -> Noted:
        """The launches, on operands that lie there, the workspace behind the others."""
        found: Noted = []
        for kernel, items, args, group, places in self._launches:
            given = args.copy()
            for at, number, kind, add in places:
                base, behind, _ = spots[number]
                given[at] = base[kind] + behind + add if kind else base[0]
            found.append((kernel, items, given, group))
        return found


def form_of(call: Call, specs: Sequence[Spec], workspace: int, note: Note, context: Context) -> LaunchForm | None:
    """The form of a kernel's launches, or None.

    ``specs``: of its operands, outputs behind inputs.
    ``workspace``: bytes, or 0; it is the operand behind the others.
    """
    count = len(specs) + (workspace > 0)
    both = []
    for op_id, random in ((0, (0, 0, 0, 0)), (1, (1, 2, 3, 4))):  # it may depend on neither
        anywhere = Random(op_id)
        lie = [_Nowhere(number, anywhere) for number in range(count)]
        tensors = [Tensor.of(spec, context.place, held) for spec, held in zip(specs, lie, strict=False)]  # type: ignore[arg-type]
        space = Tensor.of(Spec.of((workspace,), "uint8"), context.place, lie[-1]) if workspace else None  # type: ignore[arg-type]
        recorder = note(IO(call, tensors, context, op_id, random, space))
        if recorder is None:
            return None
        both.append((lie, recorder))
    (lie, first), (other, second) = both
    if len(first.launches) != len(second.launches):
        return None
    nbytes = [*(spec.nbytes for spec in specs), *((workspace,) if workspace else ())]
    launches = []
    for one, two in zip(first.launches, second.launches, strict=True):
        if one[0] is not two[0] or one[1] != two[1] or one[3] != two[3] or len(one[2]) != len(two[2]):
            return None
        places = []
        for at, (a, b) in enumerate(zip(one[2], two[2], strict=True)):
            found = _told(a, b, lie, other, nbytes)
            if found is None:
                return None
            places += [(at, *place) for place in found]
        launches.append((one[0], one[1], list(one[2]), one[3], places))
    return LaunchForm(launches, first.marks, first.calls)


def _told(
    a: Any, b: Any, lie: Sequence[_Nowhere], other: Sequence[_Nowhere], nbytes: Sequence[int]
) -> list[tuple[int, int, int]] | None:
    """Which operand an argument depends on, by handle (0), offset (1) or address (2), and what is added.

    One, or none for a constant; None: it cannot be told.
    """
    if a is b and not isinstance(a, int):
        return []
    found = []
    for number, (x, y) in enumerate(zip(lie, other, strict=True)):
        if a is x.handle and b is y.handle:
            found.append((number, 0, 0))
        elif type(a) is int and type(b) is int:
            for kind, p, q in ((1, x.offset, y.offset), (2, x.address(), y.address())):
                if a - p == b - q and 0 <= a - p <= nbytes[number]:
                    found.append((number, kind, a - p))
    if found:
        return found if len(found) == 1 else None
    inside = type(a) is int and any(
        0 <= a - at <= size
        for lies in (lie, other)
        for x, size in zip(lies, nbytes, strict=True)
        for at in (x.offset, x.address())
    )
    return [] if type(a) is type(b) and a == b and not inside else None
