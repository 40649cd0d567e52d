"""The broadcast pattern of an elementwise call, with adjacent dims collapsed.

Generated code depends on the pattern only; sizes are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from operator import or_

from fluidlite.codegen.domain import Domain, domain_of
from fluidlite.codegen.lower import typed_of
from fluidlite.codegen.typed import Instr
from fluidlite.program.op_call import Call
from fluidlite.tensor.tensor_spec import Dims

Flags = tuple[bool, ...]


@dataclass(frozen=True)
class Pattern:
    """The broadcast pattern of an elementwise call.

    ``domain``: broadcast of all operands.
    ``dims``: the domain in collapsed dims: at least one.
    ``flags``: by slot, for each collapsed dim whether the operand has it; else it broadcasts.
    ``sums``: by output slot, for outputs that are sums, for each collapsed dim whether it is reduced; the output lacks
    it.
    ``natural``: whether NumPy's broadcasting of the operands' dims computes this, and all outputs have the domain's
    dims.
    """

    domain: Dims
    dims: Dims
    flags: Mapping[str, Flags]
    sums: Mapping[str, Flags]
    natural: bool

    @property
    def size(self) -> int:
        """Number of elements of the domain."""
        return prod(self.dims)

    def shape(self, slot: str) -> Dims:
        """The operand's collapsed dims, 1 where it is broadcast."""
        return tuple([d if f else 1 for d, f in zip(self.dims, self.flags[slot], strict=True)])

    def strides(self, slot: str) -> list[int]:
        """The operand's stride in elements along each collapsed dim, 0 where it broadcasts."""
        strides, stride = [0] * len(self.dims), 1
        for k in range(len(strides) - 1, -1, -1):
            if self.flags[slot][k]:
                strides[k] = stride
                stride *= self.dims[k]
        return strides


def pattern_of(call: Call, extra_slots: Iterable[str] = ()) -> Pattern:
    """Return the pattern of a call with known dims, for the slots that are read and written, and ``extra_slots``."""
    code, domain = typed_of(call), domain_of(call)
    outputs = [slot for slot, _, _ in code.outputs]
    slots = {slot: call.dims(slot) for slot in (*code.inputs, *extra_slots, *outputs)}
    dims = domain.dims
    if not domain.sums and {*slots.values()} <= {dims}:
        return Pattern(dims, (prod(dims),), dict.fromkeys(slots, (True,)), {}, bool(dims))
    placed = {slot: domain.placed[slot] for slot in slots}
    rank = len(dims)
    natural = bool(dims) and {*map(slots.__getitem__, outputs)} <= {dims}
    for slot, each in slots.items():
        natural &= len(each) <= rank and (1,) * (rank - len(each)) + each == placed[slot]
    # a value of one operand may replace a value of another, so operands with equal aligned dims must have equal dims
    natural &= len({*slots.values()}) == len({*placed.values()})
    return _collapse(domain, placed, natural)


def _collapse(domain: Domain, placed: Mapping[str, Dims], natural: bool) -> Pattern:
    dims: list[int] = []
    columns: list[tuple[Flags, Flags]] = []
    for i, size in enumerate(domain.dims):
        if size == 1:
            continue
        column = (
            tuple([shape[i] != 1 for shape in placed.values()]),
            tuple([i in axes for axes in domain.sums.values()]),
        )
        if columns and columns[-1] == column:
            dims[-1] *= size
        else:
            dims.append(size)
            columns.append(column)
    if not dims:
        return Pattern(domain.dims, (1,), dict.fromkeys(placed, (True,)), {}, natural)
    flags, sums = (zip(*each, strict=True) for each in zip(*columns, strict=True))  # by slot, not by collapsed dim
    return Pattern(
        domain.dims,
        tuple(dims),
        dict(zip(placed, flags, strict=True)),
        dict(zip(domain.sums, sums, strict=True)),
        natural,
    )


def value_flags(instrs: Sequence[Instr], input_flags: Mapping[str, Flags]) -> list[Flags]:
    """For each value the collapsed dims that it has in memory: those of all inputs that it loads.

    It is constant along other dims; the pattern determines what a sum reduces.
    """
    rank = len(next(iter(input_flags.values())))
    all_flags: list[Flags] = []
    for instr in instrs:
        flags: Flags = (instr.op in ("uniform", "gaussian"),) * rank
        if instr.op == "input":
            flags = input_flags[instr.value]
        for arg in instr.args:
            flags = tuple(map(or_, flags, all_flags[arg]))
        all_flags.append(flags)
    return all_flags
