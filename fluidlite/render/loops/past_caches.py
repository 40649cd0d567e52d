"""Stores past the caches: which nests have them, and what a tile is then."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from fluidlite.base.dtypes import ITEMSIZE
from fluidlite.program.op_call import Call
from fluidlite.render.loops.affine import step_is_one
from fluidlite.render.loops.merging import elements_of
from fluidlite.render.loops.nest import Nest
from fluidlite.render.loops.schedule import Schedule
from fluidlite.render.loops.sizes import Sizes, size_of

LARGE = 32 << 20
"""Bytes of an output that no cache holds till its next reader comes."""
BLOCK = 128
"""Elements of an item: whole lines of every dtype."""
LINE = 64
"""Bytes; one that is overwritten whole need not be read first."""


def beyond_caches(call: Call) -> bool:
    """Whether all results of a call, of equal dims, are larger than the caches."""
    if call.largest * 8 < LARGE or call.op.random:
        return False
    made = [spec for specs in call.outs.values() for spec in specs]
    return len({spec.dims for spec in made}) == 1 and min([spec.nbytes for spec in made]) >= LARGE


def past_caches(nest: Nest, schedule: Schedule, dtypes: dict[tuple[object, ...], str], values: Sizes) -> Schedule:
    """The schedule with stores past the caches, where all outputs are larger than these, and lie along the tile."""
    reduces = any(x.op in ("reduce", "arg", "running") for x in elements_of(nest))
    if not schedule.lane or schedule.whole or schedule.square or reduces:
        return schedule
    for store in nest.stores:
        if store.loops or store.there or store.combine or not step_is_one(store.place, schedule.lane):
            return schedule
    count = prod(size_of(axis.size, values) for axis in nest.items)
    if count * min(ITEMSIZE[dtypes[store.target]] for store in nest.stores) < LARGE:
        return schedule
    return replace(schedule, lanes=BLOCK, past=True)


def tile_past_caches(
    array: str, target: tuple[str, str], place: str, given: str, language: tuple[str, str]
) -> list[str]:
    """Write a tile past the caches: whole lines that begin where lines do, and on no operand, which is in them.

    ``array``: the item's own array, which holds the tile.
    ``target``: its name and dtype.
    ``place``: where the first tile would be stored.
    ``given``: the operand on which the target may lie; ``""``: none.
    ``language``: (stream, word), the words that store a line, and that an address fits in.
    """
    (name, dtype), (stream, word) = target, language
    at = f"{name} + {place} + first"
    tests = [f"@W@ == {BLOCK}", f"(({word})({at}) & {LINE - 1}) == 0"]
    tests += [f"({word}){name} != ({word}){given}"] if given else []
    return [
        f"if ({' && '.join(tests)}) {{",
        *(f"{stream}({at} + {k}, {array} + {k});" for k in range(0, BLOCK, LINE // ITEMSIZE[dtype])),
        "} else {",
        f"for (int v = 0; v < @W@; ++v) {name}[{place} + first + v] = {array}[v];",
        "}",
    ]
