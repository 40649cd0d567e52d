"""In which pieces the loops of a nest are gone through: chosen of sizes, never of how many threads there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from fluidlite.base.dtypes import ITEMSIZE
from fluidlite.expr.number import lowest
from fluidlite.render.loops.affine import step_is_one, step_of
from fluidlite.render.loops.elements import Axis, Element
from fluidlite.render.loops.merging import elements_of
from fluidlite.render.loops.nest import FEW, TILE, Nest
from fluidlite.render.loops.sizes import Sizes, size_of

LINE = 2048
"""Neighbours that an item goes through where it reduces nothing."""
SQUARE = 16
"""Rows and columns that one item goes through where what is read and what is written lie across."""
HEAVY = 2048
"""So many steps of loops are worth a turn of their own where threads share items."""
LONG = 512
"""Sums of more numbers are put together of sums of blocks."""
NEAR = 4
"""Elements no further apart lie in vectors with those between them."""
SEVERAL = 4
"""So many lines an item goes through at once, where what is computed along one waits for what was before."""
MAX_WIDE_ELEMENTS = 16
"""Nests that compute more elements go through fewer neighbours: text and registers grow with both."""
MAX_BARE_ELEMENTS = 4
"""Of nests that compute no more, and of scans, twice as many results stay in registers: what is read is longer runs."""
MANY_ROWS = 4096
"""So many items keep a device busy, each with a row of its own."""
MAX_TOGETHER = 8
"""So many reductions have room in a group's local memory."""
FEWEST = 8
"""Axes that are shorter are not gone through side by side."""


@dataclass(frozen=True)
class Schedule:
    """How a nest is gone through.

    ``lane``: the axis of items that is cut in tiles, whose elements one item computes side by side; ``""``: none.
    ``lanes``: how many these are.
    ``partial``: axes of reductions along which an item keeps :data:`TILE` partial results.
    ``long``: the innermost axes of sums that are put together of sums of blocks.
    ``square``: whether an item goes through a square, of which it reads what lies across at first.
    ``whole``: whether a tile is all of the axis: a short one, whose length the text knows.
    ``members``: how many work-items of a group go through the innermost loops of one item together.
    ``past``: whether what is stored goes past the caches, a tile at a time.
    """

    lane: str = ""
    lanes: int = 1
    partial: frozenset[str] = frozenset()
    long: frozenset[str] = frozenset()
    square: bool = False
    whole: bool = False
    members: int = 1
    past: bool = False


def heavy(nest: Nest, schedule: Schedule, values: Sizes) -> bool:
    """Whether an item is worth a turn of its own."""
    loops = [store.loops for store in nest.stores] + [
        x.params[1] for x in elements_of(nest) if x.op in ("reduce", "arg")
    ]
    longest = max((prod(size_of(axis.size, values) for axis in axes) for axes in loops), default=1)
    return longest * schedule.lanes >= HEAVY


def tiled(nest: Nest, values: Sizes) -> Nest:
    """The nest in which an item goes through a square, where what is read and what is written lie across."""
    every = elements_of(nest)
    if any(x.op in ("reduce", "arg", "running") for x in every) or any(store.loops for store in nest.stores):
        return nest
    sizes = {axis.name: size_of(axis.size, values) for axis in nest.items}
    lane = next((name for name in sizes for store in nest.stores if step_is_one(store.place, name)), "")
    across = [
        axis
        for axis in nest.items
        if any(lies_across(x, axis.name, lane) for x in every)
        and not any(step_is_one(store.place, axis.name) for store in nest.stores)
        and sizes[axis.name] >= FEWEST
    ]
    if not lane or sizes[lane] < FEWEST or not across:
        return _coarse(nest, sizes)
    axis = max(across, key=lambda axis: sizes[axis.name])
    blocks = Axis(f"{axis.name}_block", (axis.size + (SQUARE - 1)) // SQUARE)
    begin = blocks.leaf * SQUARE
    within = replace(axis, begin=begin, end=lowest(begin + SQUARE, axis.size))
    items = tuple(blocks if each == axis else each for each in nest.items)
    return Nest(items, tuple(replace(store, loops=(within,)) for store in nest.stores), nest.elements, True)


def lies_across(x: Element, axis: str, lane: str) -> bool:
    """Whether what is loaded lies side by side along one axis, and apart along another."""
    if x.op != "load" or not step_is_one(x.params[1], axis):
        return False
    step = step_of(x.params[1], lane)
    return step is None or step.key != "0"


def side_by_side(nest: Nest, values: Sizes, group: tuple[int, int]) -> Schedule:
    """Choose how a nest is gone through where neighbouring work-items run side by side.

    An item has one element or one row, so that neighbouring items read neighbouring elements. A group goes through the
    rows of one item together where a row of its own lies side by side in memory, or where there are few of them.
    """
    every, items = elements_of(nest), {axis.name for axis in nest.items}
    reduces = [x for x in every if x.op in ("reduce", "arg")]
    outer = [x.params[1] for x in reduces if nest.elements.needs(x) <= items]
    outer += [store.loops for store in nest.stores if store.loops]
    alone = Schedule("", 1, frozenset(), _long(reduces, values))
    if not outer or any(x.op == "running" for x in every) or any(store.ordered for store in nest.stores):
        return alone
    fewest, members = group
    longest = max(size_of(axes[-1].size, values) for axes in outer)
    while members > fewest and members > longest:
        members //= 2
    own = [x for x in every if x.op == "load" and not items.isdisjoint(nest.elements.needs(x))]
    places = [x.params[1] for x in own] + [store.place for store in nest.stores]
    rows = any(step_is_one(place, axes[-1].name) for place in places for axes in outer)
    few = prod(size_of(axis.size, values) for axis in nest.items) < MANY_ROWS
    if members > longest or not (rows or few) or len(reduces) > MAX_TOGETHER:
        return alone
    return replace(alone, members=members)


def _long(reduces: Sequence[Element], values: Sizes, partial: frozenset[str] = frozenset()) -> frozenset[str]:
    """The innermost axes of sums of more numbers than one result is added up of."""
    every = [x.params[1] for x in reduces]
    return frozenset(
        axes[-1].name
        for axes in every
        if prod(size_of(axis.size, values) for axis in axes) > LONG * (TILE if axes[-1].name in partial else 1)
    )


def _coarse(nest: Nest, sizes: dict[str, int]) -> Nest:
    """The nest in which an item goes through some of the last axes, where one alone is short."""
    if len(sizes) < 2 or prod(sizes.values()) <= LINE:
        return nest
    items, loops = list(nest.items), list[Axis]()
    last = items.pop() if sizes[items[-1].name] >= FEWEST else None
    count = sizes[last.name] if last is not None else 1
    while items and count * 2 <= LINE:
        axis = items.pop()
        room = 1
        while room * 2 * count <= LINE:
            room *= 2
        if sizes[axis.name] <= room:
            loops.insert(0, axis)
            count *= sizes[axis.name]
            continue
        blocks = Axis(f"{axis.name}_block", (axis.size + (room - 1)) // room)
        begin = blocks.leaf * room
        loops.insert(0, replace(axis, begin=begin, end=lowest(begin + room, axis.size)))
        items.append(blocks)
        break
    if not loops:
        return nest
    items += [] if last is None else [last]
    return Nest(tuple(items), tuple(replace(store, loops=tuple(loops)) for store in nest.stores), nest.elements)


def schedule_of(
    nest: Nest, dtypes: dict[tuple[object, ...], str], values: Sizes, group: tuple[int, int] | None = None
) -> Schedule:
    """Choose how a nest is gone through.

    Parameters
    ----------
    group : (int, int), optional
        The fewest and the most work-items of a group that share local memory, of a device that runs them side by side.
    """
    if group is not None:
        return side_by_side(nest, values, group)
    every = elements_of(nest)
    accesses = [(x.params[1], x.params[0]) for x in every if x.op == "load"]
    accesses += [(store.place, store.target) for store in nest.stores]
    sizes = {axis.name: size_of(axis.size, values) for axis in nest.items}
    reduces = [x for x in every if x.op in ("reduce", "arg")]
    inner = {axis.name: size_of(axis.size, values) for x in reduces for axis in x.params[1]}
    inner |= {axis.name: size_of(axis.size, values) for store in nest.stores for axis in store.loops}
    lengths = {**sizes, **inner}
    along: Counter[str] = Counter()  # how many elements lie side by side along an axis
    for place, _ in accesses:
        steps = {name: step_of(place, name) for name in (*sizes, *inner)}
        count = prod(lengths[name] for name, step in steps.items() if step is None or step.key != "0")
        for name, step in steps.items():
            if step is not None and step.op == "const" and 1 <= step.value <= NEAR:
                along[name] += count // int(step.value)
    best = max(
        lengths, key=lambda name: (along[name] > 0 and lengths[name] >= FEWEST, along[name], name in inner), default=""
    )
    partial = frozenset(
        name
        for x in reduces
        for name in [x.params[1][-1].name]
        if inner[name] >= TILE and nest.elements.needs_of(x.params[1][-1].bounds) <= {"p"}  # windows are short
    )
    long = _long(reduces, values)
    bounds = nest.elements.needs_of(each for x in reduces for axis in x.params[1] for each in axis.bounds)
    if nest.square:
        best = next(name for name in sizes if any(step_is_one(store.place, name) for store in nest.stores))
        return Schedule(best, SQUARE, square=True)
    runs = any(x.op == "running" for x in every)
    if best not in sizes and runs and nest.items:  # each step waits for the one before
        last = nest.items[-1].name
        if sizes[last] >= SEVERAL:
            return Schedule(last, SEVERAL, frozenset(), long)
    if best not in sizes or sizes[best] < FEWEST or not along[best] or best in bounds:
        return Schedule("", 1, partial, _long(reduces, values, partial))
    others = prod(size for name, size in sizes.items() if name != best)
    size = sizes[best]
    if size <= TILE:
        return Schedule(best, int(size), frozenset(), long, whole=True)
    if not reduces and not runs:
        total = others * size * prod(inner.values())
        ordered = any(store.ordered for store in nest.stores)
        wanted, lanes = min(LINE // 4 if ordered else max(total // 64, 128), LINE, size), TILE
        while lanes < wanted:  # few widths, so that other sizes have the same text
            lanes *= 2
    else:
        itemsize = min((ITEMSIZE[dtypes[source]] for _, source in accesses if source in dtypes), default=4)
        lanes = TILE * max(1, 4 // itemsize)
        if others * (size // (4 * lanes)) >= FEW and len(every) <= MAX_WIDE_ELEMENTS:
            bare = runs or len(every) <= MAX_BARE_ELEMENTS
            lanes *= 8 if bare and others * (size // (8 * lanes)) >= FEW else 4
    return Schedule(best, lanes, frozenset(), long)
