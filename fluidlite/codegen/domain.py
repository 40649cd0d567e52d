"""The index domain of an elementwise call: its iteration space and the axes that it reduces.

The domain is derived from the dims of operands and outputs, never from the loads of generated code: a constant, or
an intermediate value of a fused operator, may be the only one that has a dim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod

from fluidlite.codegen.lower import typed_of
from fluidlite.codegen.typed import EVERYWHERE
from fluidlite.program.op_call import Call, cached_in_call
from fluidlite.tensor.tensor_spec import Dims


@dataclass(frozen=True)
class Domain:
    """The index domain of an elementwise call.

    ``dims``: broadcast of all operands and outputs.
    ``placed``: by slot, the dims of operands and outputs aligned with the domain: the same rank, 1 where broadcast.
    ``sums``: by output slot, for outputs that are sums, the axes of the domain that are reduced.
    """

    dims: Dims
    placed: Mapping[str, Dims]
    sums: Mapping[str, tuple[int, ...]]


@cached_in_call
def domain_of(call: Call) -> Domain:
    """Return the index domain of a call with known dims; computed once for each call.

    Raises ShapeError if an operand does not broadcast with the others.
    """
    rule = call.op.scalar
    assert rule is not None
    if rule.domain is not None:
        own_domain: Domain = rule.domain(call)
        return own_domain
    spans = typed_of(call).spans
    specs = {**call.ins, **call.outs}
    slots = {slot: specs[slot][0].dims for slot in (*chain.from_iterable(spans.values()), *spans) if slot != EVERYWHERE}
    if len(set(slots.values())) == 1:
        return Domain(next(iter(slots.values())), slots, {})
    placed = placed_dims(call, slots)
    dims = broadcast(placed.values())
    if dims is None:
        call.fail(next(iter(slots)), "dims that broadcast with " + ", ".join(call.describe(slot) for slot in slots))
    sums = {}
    for slot, span in spans.items():
        shape = dims if EVERYWHERE in span else broadcast([placed[each] for each in span])
        assert shape is not None
        axes = tuple([k for k, (size, out) in enumerate(zip(shape, placed[slot], strict=False)) if out == 1 != size])
        if axes:
            sums[slot] = axes
    return Domain(dims, placed, sums)


def aligned_dims(dims: Dims, rank: int, axis: int) -> Dims | None:
    """Align an operand's dims with ``rank`` dims by Fluid's ``axis`` rule, 1 where broadcast; None if they do not fit.

    Fewer dims start at ``axis`` (-1: they are the last dims); trailing dims of 1 are then ignored.
    """
    if len(dims) == rank:
        return dims
    if prod(dims) == 1:
        return (1,) * rank
    if len(dims) > rank:
        return None
    start = rank - len(dims) if axis == -1 else axis
    core = dims
    while core and core[-1] == 1:
        core = core[:-1]
    if start < 0 or start + len(core) > rank:
        return None
    return (1,) * start + core + (1,) * (rank - start - len(core))


def broadcast(shapes: Iterable[Dims]) -> Dims | None:
    """The dims to which shapes of equal rank broadcast; None if they do not."""
    result: list[int] = []
    for sizes in zip(*shapes, strict=True):
        distinct = {*sizes} - {1}
        if len(distinct) > 1:
            return None
        result.append(distinct.pop() if distinct else 1)
    return tuple(result)


def placed_dims(call: Call, dims: Mapping[str, Dims]) -> dict[str, Dims]:
    """Align the dims of a call's operands with the operand of the highest rank, 1 where they broadcast.

    An operator with its own rule of alignment determines the rank.

    Raises ShapeError if an operand does not fit.
    """
    axis = call.attrs.get("axis", -1)
    axis = axis if isinstance(axis, int) else -1
    rule = call.op.scalar
    own = rule.placed(call) if rule is not None and rule.placed is not None else {}
    ranks = {len(each) for each in own.values()} or {len(each) for each in dims.values() if prod(each) != 1}
    rank = max(ranks or map(len, dims.values()))
    placed: dict[str, Dims] = {}
    for slot, each in dims.items():
        aligned = own[slot] if slot in own else aligned_dims(each, rank, axis)
        if aligned is None or len(aligned) != rank:
            call.fail(slot, f"dims that broadcast to {rank} dims from axis {axis}")
        placed[slot] = aligned
    return placed
