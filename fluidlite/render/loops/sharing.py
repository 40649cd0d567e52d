"""Outputs that lie on operands: in which order nests read all of an operand before they write over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fluidlite.render.loops.elements import Source
from fluidlite.render.loops.merging import elements_of
from fluidlite.render.loops.nest import Nest


def in_turn(nests: Sequence[Nest], shared: Mapping[Source, Source]) -> tuple[Nest, ...] | None:
    """The nests in an order in which none reads what one before it wrote over; None if there is none.

    ``nests``: those that others read first.
    ``shared``: by output, the operand on which it lies.
    """
    if not shared:
        return tuple(nests)
    reads = {id(nest): {x.params[0] for x in elements_of(nest) if x.op == "load"} for nest in nests}
    waiting, found = list(nests), list[Nest]()
    while waiting:
        made = {store.target for nest in waiting for store in nest.stores if store.target[0] == "made"}
        ready = next((nest for nest in waiting if _may_run(nest, waiting, made, reads, shared)), None)
        if ready is None:
            return None
        waiting.remove(ready)
        found.append(ready)
    return tuple(found)


def _may_run(
    nest: Nest,
    waiting: Sequence[Nest],
    made: set[Source],
    reads: Mapping[int, set[Source]],
    shared: Mapping[Source, Source],
) -> bool:
    mine = {store.target for store in nest.stores}
    if (reads[id(nest)] & made) - mine:
        return False
    over = {shared[target] for target in mine if target in shared}
    if any(over & reads[id(other)] for other in waiting if other is not nest):
        return False
    # within the nest, each element is read at the place where it is written, by the item that writes it
    for store in nest.stores:
        given = shared.get(store.target)
        for x in elements_of(nest) if given is not None else ():
            if x.op == "load" and x.params[0] == given and x.params[1].key != store.place.key:
                return False
    return True
