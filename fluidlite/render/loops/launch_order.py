"""Aliasing: a launch order in which nests read all of an operand before an output overwrites it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fluidlite.render.loops.elements import BufferKey
from fluidlite.render.loops.merging import elements_of
from fluidlite.render.loops.nest import Nest


def alias_safe_order(nests: Sequence[Nest], shared: Mapping[BufferKey, BufferKey]) -> tuple[Nest, ...] | None:
    """Order nests so that none reads an operand that an earlier one has overwritten; None if that is impossible.

    ``nests``: in topological order.
    ``shared``: by output, the operand that it aliases.
    """
    if not shared:
        return tuple(nests)
    reads = {id(nest): {x.params[0] for x in elements_of(nest) if x.op == "load"} for nest in nests}
    pending, order = list(nests), list[Nest]()
    while pending:
        unwritten = {store.target for nest in pending for store in nest.stores if store.target[0] == "made"}
        next_nest = next((nest for nest in pending if _can_run(nest, pending, unwritten, reads, shared)), None)
        if next_nest is None:
            return None
        pending.remove(next_nest)
        order.append(next_nest)
    return tuple(order)


def _can_run(
    nest: Nest,
    pending: Sequence[Nest],
    unwritten: set[BufferKey],
    reads: Mapping[int, set[BufferKey]],
    shared: Mapping[BufferKey, BufferKey],
) -> bool:
    targets = {store.target for store in nest.stores}
    if (reads[id(nest)] & unwritten) - targets:
        return False
    overwritten = {shared[target] for target in targets if target in shared}
    if any(overwritten & reads[id(later)] for later in pending if later is not nest):
        return False
    # within the nest, only the work-item that overwrites an element may read it
    for store in nest.stores:
        operand = shared.get(store.target)
        for x in elements_of(nest) if operand is not None else ():
            if x.op == "load" and x.params[0] == operand and x.params[1].key != store.offset.key:
                return False
    return True
