"""Which operand lies where in an elementwise problem, in as few dims as say it.

Generated code depends on the pattern alone; sizes are arguments.
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
    """An elementwise problem.

    ``domain``: broadcast of all operands.
    ``dims``: the domain in collapsed dims: at least one.
    ``flags``: by slot, for each collapsed dim whether the operand has it.
    ``sums``: by output slot, of outputs that are sums, for each collapsed dim whether it is added up, which the output
    lacks then.
    ``natural``: whether NumPy's own broadcasting of the operands' dims gives this, and every output has the domain's
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
        """How many of its elements one step along each collapsed dim skips, 0 where it is broadcast."""
        steps, step = [0] * len(self.dims), 1
        for k in range(len(steps) - 1, -1, -1):
            if self.flags[slot][k]:
                steps[k] = step
                step *= self.dims[k]
        return steps


def pattern_of(call: Call, also: Iterable[str] = ()) -> Pattern:
    """Return the pattern of a call with exact dims, of the slots that are read and written, and of ``also``."""
    code, domain = typed_of(call), domain_of(call)
    outputs = [slot for slot, _, _ in code.outputs]
    slots = {slot: call.dims(slot) for slot in (*code.inputs, *also, *outputs)}
    dims = domain.dims
    if not domain.sums and {*slots.values()} <= {dims}:
        return Pattern(dims, (prod(dims),), dict.fromkeys(slots, (True,)), {}, bool(dims))
    placed = {slot: domain.placed[slot] for slot in slots}
    rank = len(dims)
    natural = bool(dims) and {*map(slots.__getitem__, outputs)} <= {dims}
    for slot, each in slots.items():
        natural &= len(each) <= rank and (1,) * (rank - len(each)) + each == placed[slot]
    # a value that is made of one operand may take the place of another's, so what is placed alike must be alike
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


def value_flags(instrs: Sequence[Instr], given: Mapping[str, Flags]) -> list[Flags]:
    """Which collapsed dims each value has in memory: those of all inputs that it loads.

    It may be equal along dims that it lacks; what a sum adds up is said by the pattern.
    """
    rank = len(next(iter(given.values())))
    found: list[Flags] = []
    for instr in instrs:
        flags: Flags = (instr.op in ("uniform", "gaussian"),) * rank
        if instr.op == "input":
            flags = given[instr.value]
        for arg in instr.args:
            flags = tuple(map(or_, flags, found[arg]))
        found.append(flags)
    return found
