"""Which operand lies where in an elementwise problem, in as few dims as say it.

Generated code depends on the pattern alone; sizes are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from fluidlite.framework.call import Call
from fluidlite.framework.spec import Dims

Flags = tuple[bool, ...]


@dataclass(frozen=True)
class Pattern:
    """An elementwise problem.

    Attributes
    ----------
    domain : tuple of int
        Broadcast of all operands.
    dims : tuple of int
        The domain in collapsed dims: at least one.
    flags : mapping of slot to tuple of bool
        For each collapsed dim whether the operand has it; an output that lacks one is the sum over it.
    natural : bool
        Whether NumPy's own broadcasting of the operands' dims gives this, and every output has the domain's dims.
    """

    domain: Dims
    dims: Dims
    flags: Mapping[str, Flags]
    natural: bool

    @property
    def size(self) -> int:
        """Number of elements of the domain."""
        return prod(self.dims)

    def shape(self, slot: str) -> Dims:
        """The operand's collapsed dims, 1 where it is broadcast."""
        return tuple(d if f else 1 for d, f in zip(self.dims, self.flags[slot], strict=True))


def place(dims: Dims, rank: int, axis: int) -> Dims | None:
    """Dims of an operand among ``rank`` dims by Fluid's rule, 1 where it is broadcast; None if it has no place.

    Fewer dims start at ``axis`` (-1: they end where the others end); trailing ones do not count then.
    """
    if len(dims) == rank:
        return dims
    if prod(dims) == 1:
        return (1,) * rank
    if len(dims) > rank:
        return None
    start = rank - len(dims) if axis == -1 else axis
    kept = dims
    while kept and kept[-1] == 1:
        kept = kept[:-1]
    if start < 0 or start + len(kept) > rank:
        return None
    return (1,) * start + kept + (1,) * (rank - start - len(kept))


def broadcast(shapes: Iterable[Dims]) -> Dims | None:
    """Dims that all of these, of one rank, broadcast to; None if two differ."""
    result: list[int] = []
    for sizes in zip(*shapes, strict=True):
        several = {size for size in sizes if size != 1}
        if len(several) > 1:
            return None
        result.append(several.pop() if several else 1)
    return tuple(result)


def placed_dims(call: Call, slots: Iterable[str]) -> dict[str, Dims]:
    """Dims of a call's operands as they lie among those of the largest, 1 where they are broadcast.

    Raises
    ------
    ShapeError
        If one has no place there.
    """
    dims = {slot: call.dims(slot) for slot in slots}
    if len(set(dims.values())) == 1:
        return dims
    axis = call.attrs.get("axis", -1)
    axis = axis if isinstance(axis, int) else -1
    rank = max((len(each) for each in dims.values() if prod(each) != 1), default=max(map(len, dims.values())))
    rule = call.op.scalar
    said = rule.placed(call) if rule is not None and rule.placed is not None else {}
    placed: dict[str, Dims] = {}
    for slot, each in dims.items():
        found = said[slot] if slot in said else place(each, rank, axis)
        if found is None:
            call.fail(slot, f"dims that broadcast to {rank} dims from axis {axis}")
        placed[slot] = found
    return placed


def pattern_of(call: Call, inputs: Iterable[str], outputs: Iterable[str]) -> Pattern:
    """Return the pattern of a call with exact dims, of the slots that are read and written."""
    outputs = tuple(outputs)
    slots = {slot: call.dims(slot) for slot in (*inputs, *outputs)}
    if len(set(slots.values())) == 1:
        domain = next(iter(slots.values()))
        return Pattern(domain, (prod(domain),), {slot: (True,) for slot in slots}, bool(domain))
    placed = placed_dims(call, slots)
    rank = len(next(iter(placed.values())))
    shared = broadcast(placed.values())
    if shared is None:
        call.fail(next(iter(slots)), "dims that broadcast with " + ", ".join(call.shown(slot) for slot in slots))
    natural = bool(shared) and all(slots[slot] == shared for slot in outputs)
    for slot, dims in slots.items():
        natural &= len(dims) <= rank and (1,) * (rank - len(dims)) + dims == placed[slot]
    # a value that is made of one operand may take the place of another's, so what is placed alike must be alike
    natural &= len({*slots.values()}) == len({*placed.values()})
    return _collapse(shared, placed, natural)


def _collapse(domain: Dims, placed: Mapping[str, Dims], natural: bool) -> Pattern:
    dims: list[int] = []
    columns: list[Flags] = []
    for i, size in enumerate(domain):
        if size == 1:
            continue
        column = tuple(shape[i] != 1 for shape in placed.values())
        if columns and columns[-1] == column:
            dims[-1] *= size
        else:
            dims.append(size)
            columns.append(column)
    if not dims:
        return Pattern(domain, (1,), dict.fromkeys(placed, (True,)), natural)
    flags = {slot: tuple(column[k] for column in columns) for k, slot in enumerate(placed)}
    return Pattern(domain, tuple(dims), flags, natural)
