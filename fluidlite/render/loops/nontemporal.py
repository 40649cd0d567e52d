"""Nontemporal stores, which bypass the caches: when they are used, and their text."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from fluidlite.base.dtypes import ITEMSIZE
from fluidlite.program.op_call import Call
from fluidlite.render.loops.affine import is_contiguous
from fluidlite.render.loops.merging import elements_of
from fluidlite.render.loops.nest import Nest
from fluidlite.render.loops.schedule import Schedule
from fluidlite.render.loops.sizes import Sizes, size_of

MIN_NONTEMPORAL_BYTES = 32 << 20
"""Bytes of an output from which no cache holds it until its next reader."""
TILE_LANES = 128
"""Elements of a tile: a multiple of the cache line for every dtype."""
LINE_BYTES = 64
"""Bytes of a cache line; a nontemporal store of a whole line does not read it first."""


def exceeds_caches(call: Call) -> bool:
    """Whether all results of a call, of equal dims, are larger than the caches."""
    if call.largest * 8 < MIN_NONTEMPORAL_BYTES or call.op.random:
        return False
    specs = [spec for specs in call.outs.values() for spec in specs]
    return len({spec.dims for spec in specs}) == 1 and min([spec.nbytes for spec in specs]) >= MIN_NONTEMPORAL_BYTES


def with_nontemporal(nest: Nest, schedule: Schedule, dtypes: dict[tuple[object, ...], str], values: Sizes) -> Schedule:
    """The schedule with nontemporal stores, if all outputs exceed the caches and are contiguous along the tile."""
    reduces = any(x.op in ("reduce", "arg", "running") for x in elements_of(nest))
    if not schedule.lane or schedule.whole or schedule.square or reduces:
        return schedule
    for store in nest.stores:
        if store.loops or store.conditions or store.combine or not is_contiguous(store.offset, schedule.lane):
            return schedule
    count = prod(size_of(axis.size, values) for axis in nest.items)
    if count * min(ITEMSIZE[dtypes[store.target]] for store in nest.stores) < MIN_NONTEMPORAL_BYTES:
        return schedule
    return replace(schedule, lanes=TILE_LANES, nontemporal=True)


def nontemporal_tile_store(
    array: str, target: tuple[str, str], offset: str, operand: str, language: tuple[str, str]
) -> list[str]:
    """The text that stores a tile by nontemporal stores, if it is aligned to cache lines and overwrites no operand.

    An operand that the target aliases is in the caches already.

    ``array``: the name of the work-item's array with the tile.
    ``target``: the name and dtype of the target buffer.
    ``offset``: the offset of the first tile in the target.
    ``operand``: the name of the operand that the target may alias; ``""``: none.
    ``language``: (stream, word), the keyword of the store, and the integer type of an address.
    """
    (name, dtype), (stream, address_type) = target, language
    at = f"{name} + {offset} + first"
    conditions = [f"@W@ == {TILE_LANES}", f"(({address_type})({at}) & {LINE_BYTES - 1}) == 0"]
    conditions += [f"({address_type}){name} != ({address_type}){operand}"] if operand else []
    return [
        f"if ({' && '.join(conditions)}) {{",
        *(f"{stream}({at} + {k}, {array} + {k});" for k in range(0, TILE_LANES, LINE_BYTES // ITEMSIZE[dtype])),
        "} else {",
        f"for (int v = 0; v < @W@; ++v) {name}[{offset} + first + v] = {array}[v];",
        "}",
    ]
