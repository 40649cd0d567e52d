"""The index domain of an elementwise call: the elements that it works on, and what it adds up.

The domain belongs to the operator. It is said here once, from the dims of operands and outputs, and never taken from
what generated code loads: a constant, or a value that a fused operator keeps to itself, may alone give a dim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod

from fluidlite.codegen.lower import typed_of
from fluidlite.codegen.typed import EVERYWHERE
from fluidlite.program.op_call import Call, once
from fluidlite.tensor.tensor_spec import Dims


@dataclass(frozen=True)
class Domain:
    """What an elementwise call works on.

    ``dims``: broadcast of all operands and outputs.
    ``placed``: by slot, where operands and outputs lie in it: as many dims, 1 where they are broadcast.
    ``sums``: by output slot, of outputs that are sums, the axes of the domain that each adds up.
    """

    dims: Dims
    placed: Mapping[str, Dims]
    sums: Mapping[str, tuple[int, ...]]


@once
def domain_of(call: Call) -> Domain:
    """Return the index domain of a call whose dims are known; asked once a call.

    Raises ShapeError if an operand has no place among the others.
    """
    rule = call.op.scalar
    assert rule is not None
    if rule.domain is not None:
        said: Domain = rule.domain(call)
        return said
    spans = typed_of(call).spans
    specs = {**call.ins, **call.outs}
    slots = {slot: specs[slot][0].dims for slot in (*chain.from_iterable(spans.values()), *spans) if slot != EVERYWHERE}
    if len(set(slots.values())) == 1:
        return Domain(next(iter(slots.values())), slots, {})
    placed = placed_dims(call, slots)
    dims = broadcast(placed.values())
    if dims is None:
        call.fail(next(iter(slots)), "dims that broadcast with " + ", ".join(call.shown(slot) for slot in slots))
    sums = {}
    for slot, span in spans.items():
        has = dims if EVERYWHERE in span else broadcast([placed[each] for each in span])
        assert has is not None
        axes = tuple([k for k, (there, kept) in enumerate(zip(has, placed[slot], strict=False)) if kept == 1 != there])
        if axes:
            sums[slot] = axes
    return Domain(dims, placed, sums)


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
        several = {*sizes} - {1}
        if len(several) > 1:
            return None
        result.append(several.pop() if several else 1)
    return tuple(result)


def placed_dims(call: Call, dims: Mapping[str, Dims]) -> dict[str, Dims]:
    """Dims of a call's operands as they lie among those of the largest, 1 where they are broadcast.

    The largest is the one of the highest rank; where the operator says itself where operands lie, it says the rank.

    Raises ShapeError if one has no place there.
    """
    axis = call.attrs.get("axis", -1)
    axis = axis if isinstance(axis, int) else -1
    rule = call.op.scalar
    said = rule.placed(call) if rule is not None and rule.placed is not None else {}
    ranks = {len(each) for each in said.values()} or {len(each) for each in dims.values() if prod(each) != 1}
    rank = max(ranks or map(len, dims.values()))
    placed: dict[str, Dims] = {}
    for slot, each in dims.items():
        found = said[slot] if slot in said else place(each, rank, axis)
        if found is None or len(found) != rank:
            call.fail(slot, f"dims that broadcast to {rank} dims from axis {axis}")
        placed[slot] = found
    return placed
