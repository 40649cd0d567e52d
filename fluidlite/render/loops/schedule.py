"""Schedules of nests: tiles, vector axes, partial results. They depend on sizes, never on the number of threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from fluidlite.base.dtypes import ITEMSIZE
from fluidlite.expr.number import lowest
from fluidlite.render.loops.affine import is_contiguous, stride_of
from fluidlite.render.loops.elements import Axis, Element
from fluidlite.render.loops.merging import elements_of
from fluidlite.render.loops.nest import MIN_ITEMS, TILE, Nest
from fluidlite.render.loops.sizes import Sizes, size_of

ITEM_ELEMENTS = 2048
"""Elements of a work-item that reduces nothing: the grain size."""
SQUARE = 16
"""Rows and columns of a square tile, for nests whose loads are contiguous along another axis than their stores."""
HEAVY_ITEM_STEPS = 2048
"""Iterations of a work-item from which its grain size is 1: threads fetch work-items one by one."""
MAX_PLAIN_SUM = 512
"""Terms of a sum: longer ones are sums of sums of blocks, which keeps rounding errors small."""
MAX_VECTOR_STRIDE = 4
"""Elements between neighbours: loads with a larger stride are no vector loads with shuffles."""
SCAN_ROWS = 4
"""Rows that a work-item scans at once, since each step of one row waits for the step before."""
MAX_WIDE_ELEMENTS = 16
"""Elements computed by a nest: larger nests get narrower tiles, since code size and registers grow with both."""
MAX_BARE_ELEMENTS = 4
"""Elements computed by a nest: smaller nests, and scans, get tiles of twice the width for longer contiguous loads."""
MIN_BUSY_ITEMS = 4096
"""Work-items that keep a device busy without work-groups that cooperate on one row."""
MAX_GROUP_REDUCTIONS = 8
"""Reductions whose partial results fit into the local memory of a work-group."""
MIN_TILED_LENGTH = 8
"""Length of an axis: a shorter one is not vectorized."""


@dataclass(frozen=True)
class Schedule:
    """The schedule of a nest.

    ``lane``: the work-item axis that is tiled and vectorized; ``""``: none.
    ``lanes``: elements of a tile.
    ``partial``: reduced axes along which a work-item keeps :data:`TILE` partial results.
    ``blocked``: the innermost axes of sums that are summed by blocks.
    ``square``: whether tiles are square; transposed loads of a tile are staged in an array.
    ``whole``: whether one tile covers the axis, whose short length is then a constant of the text.
    ``members``: work-items of a work-group that cooperate on the innermost loops of one nest item.
    ``nontemporal``: whether tiles are stored by nontemporal stores, past the caches.
    """

    lane: str = ""
    lanes: int = 1
    partial: frozenset[str] = frozenset()
    blocked: frozenset[str] = frozenset()
    square: bool = False
    whole: bool = False
    members: int = 1
    nontemporal: bool = False


def has_heavy_items(nest: Nest, schedule: Schedule, values: Sizes) -> bool:
    """Whether the grain size is 1: a work-item takes so long that threads fetch them one by one."""
    loops = [store.loops for store in nest.stores] + [
        x.params[1] for x in elements_of(nest) if x.op in ("reduce", "arg")
    ]
    longest = max((prod(size_of(axis.size, values) for axis in axes) for axes in loops), default=1)
    return longest * schedule.lanes >= HEAVY_ITEM_STEPS


def tiled(nest: Nest, values: Sizes) -> Nest:
    """Tile a nest without reductions: by squares if it transposes, else by runs of about ITEM_ELEMENTS."""
    elements = elements_of(nest)
    if any(x.op in ("reduce", "arg", "running") for x in elements) or any(store.loops for store in nest.stores):
        return nest
    sizes = {axis.name: size_of(axis.size, values) for axis in nest.items}
    lane = next((name for name in sizes for store in nest.stores if is_contiguous(store.offset, name)), "")
    transposed_axes = [
        axis
        for axis in nest.items
        if any(is_transposed_load(x, axis.name, lane) for x in elements)
        and not any(is_contiguous(store.offset, axis.name) for store in nest.stores)
        and sizes[axis.name] >= MIN_TILED_LENGTH
    ]
    if not lane or sizes[lane] < MIN_TILED_LENGTH or not transposed_axes:
        return _coarsened(nest, sizes)
    axis = max(transposed_axes, key=lambda axis: sizes[axis.name])
    blocks = Axis(f"{axis.name}_block", (axis.size + (SQUARE - 1)) // SQUARE)
    begin = blocks.leaf * SQUARE
    within = replace(axis, begin=begin, end=lowest(begin + SQUARE, axis.size))
    items = tuple(blocks if each == axis else each for each in nest.items)
    return Nest(items, tuple(replace(store, loops=(within,)) for store in nest.stores), nest.elements, True)


def is_transposed_load(x: Element, axis: str, lane: str) -> bool:
    """Whether an element is a load that is contiguous along ``axis``, and depends on ``lane`` with another stride."""
    if x.op != "load" or not is_contiguous(x.params[1], axis):
        return False
    step = stride_of(x.params[1], lane)
    return step is None or step.key != "0"


def lockstep_schedule(nest: Nest, values: Sizes, group: tuple[int, int]) -> Schedule:
    """Choose a schedule for devices on which neighbouring work-items run in lockstep.

    A work-item has one element or one row, so that neighbouring work-items make coalesced loads. A work-group
    cooperates on a row if the row is contiguous in memory, or if there are few rows.
    """
    elements, items = elements_of(nest), {axis.name for axis in nest.items}
    reduces = [x for x in elements if x.op in ("reduce", "arg")]
    loop_nests = [x.params[1] for x in reduces if nest.elements.free_axes(x) <= items]
    loop_nests += [store.loops for store in nest.stores if store.loops]
    independent = Schedule("", 1, frozenset(), _blocked_sums(reduces, values))
    if not loop_nests or any(x.op == "running" for x in elements) or any(store.ordered for store in nest.stores):
        return independent
    minimum, members = group
    longest = max(size_of(axes[-1].size, values) for axes in loop_nests)
    while members > minimum and members > longest:
        members //= 2
    loads = [x for x in elements if x.op == "load" and not items.isdisjoint(nest.elements.free_axes(x))]
    offsets = [x.params[1] for x in loads] + [store.offset for store in nest.stores]
    has_contiguous_row = any(is_contiguous(place, axes[-1].name) for place in offsets for axes in loop_nests)
    has_few_items = prod(size_of(axis.size, values) for axis in nest.items) < MIN_BUSY_ITEMS
    if members > longest or not (has_contiguous_row or has_few_items) or len(reduces) > MAX_GROUP_REDUCTIONS:
        return independent
    return replace(independent, members=members)


def _blocked_sums(reduces: Sequence[Element], values: Sizes, partial: frozenset[str] = frozenset()) -> frozenset[str]:
    """The innermost axes of the sums that are summed by blocks."""
    axis_lists = [x.params[1] for x in reduces]
    return frozenset(
        axes[-1].name
        for axes in axis_lists
        if prod(size_of(axis.size, values) for axis in axes) > MAX_PLAIN_SUM * (TILE if axes[-1].name in partial else 1)
    )


def _coarsened(nest: Nest, sizes: dict[str, int]) -> Nest:
    """Coarsen work-items: move some of the last axes into loops if one axis alone is short."""
    if len(sizes) < 2 or prod(sizes.values()) <= ITEM_ELEMENTS:
        return nest
    items, loops = list(nest.items), list[Axis]()
    last = items.pop() if sizes[items[-1].name] >= MIN_TILED_LENGTH else None
    elements = sizes[last.name] if last is not None else 1
    while items and elements * 2 <= ITEM_ELEMENTS:
        axis = items.pop()
        block = 1
        while block * 2 * elements <= ITEM_ELEMENTS:
            block *= 2
        if sizes[axis.name] <= block:
            loops.insert(0, axis)
            elements *= sizes[axis.name]
            continue
        blocks = Axis(f"{axis.name}_block", (axis.size + (block - 1)) // block)
        begin = blocks.leaf * block
        loops.insert(0, replace(axis, begin=begin, end=lowest(begin + block, axis.size)))
        items.append(blocks)
        break
    if not loops:
        return nest
    items += [] if last is None else [last]
    return Nest(tuple(items), tuple(replace(store, loops=tuple(loops)) for store in nest.stores), nest.elements)


def schedule_of(
    nest: Nest, dtypes: dict[tuple[object, ...], str], values: Sizes, group: tuple[int, int] | None = None
) -> Schedule:
    """Choose the schedule of a nest.

    Parameters
    ----------
    group : (int, int), optional
        The minimum and maximum size of a work-group with local memory, for devices that run work-items in lockstep.
    """
    if group is not None:
        return lockstep_schedule(nest, values, group)
    elements = elements_of(nest)
    accesses = [(x.params[1], x.params[0]) for x in elements if x.op == "load"]
    accesses += [(store.offset, store.target) for store in nest.stores]
    sizes = {axis.name: size_of(axis.size, values) for axis in nest.items}
    reduces = [x for x in elements if x.op in ("reduce", "arg")]
    inner = {axis.name: size_of(axis.size, values) for x in reduces for axis in x.params[1]}
    inner |= {axis.name: size_of(axis.size, values) for store in nest.stores for axis in store.loops}
    lengths = {**sizes, **inner}
    contiguous: Counter[str] = Counter()  # by axis, the elements accessed contiguously along it
    for offset, _ in accesses:
        steps = {name: stride_of(offset, name) for name in (*sizes, *inner)}
        count = prod(lengths[name] for name, step in steps.items() if step is None or step.key != "0")
        for name, step in steps.items():
            if step is not None and step.op == "const" and 1 <= step.value <= MAX_VECTOR_STRIDE:
                contiguous[name] += count // int(step.value)
    best = max(
        lengths,
        key=lambda name: (contiguous[name] > 0 and lengths[name] >= MIN_TILED_LENGTH, contiguous[name], name in inner),
        default="",
    )
    partial = frozenset(
        name
        for x in reduces
        for name in [x.params[1][-1].name]
        if inner[name] >= TILE and nest.elements.number_axes(x.params[1][-1].bounds) <= {"p"}  # windows are short
    )
    blocked = _blocked_sums(reduces, values)
    bounds = nest.elements.number_axes(each for x in reduces for axis in x.params[1] for each in axis.bounds)
    if nest.square:
        best = next(name for name in sizes if any(is_contiguous(store.offset, name) for store in nest.stores))
        return Schedule(best, SQUARE, square=True)
    is_scan = any(x.op == "running" for x in elements)
    if best not in sizes and is_scan and nest.items:  # interleave rows to hide the latency of each step
        last = nest.items[-1].name
        if sizes[last] >= SCAN_ROWS:
            return Schedule(last, SCAN_ROWS, frozenset(), blocked)
    if best not in sizes or sizes[best] < MIN_TILED_LENGTH or not contiguous[best] or best in bounds:
        return Schedule("", 1, partial, _blocked_sums(reduces, values, partial))
    other_items = prod(size for name, size in sizes.items() if name != best)
    size = sizes[best]
    if size <= TILE:
        return Schedule(best, int(size), frozenset(), blocked, whole=True)
    if not reduces and not is_scan:
        total = other_items * size * prod(inner.values())
        ordered = any(store.ordered for store in nest.stores)
        wanted_lanes, lanes = min(ITEM_ELEMENTS // 4 if ordered else max(total // 64, 128), ITEM_ELEMENTS, size), TILE
        while lanes < wanted_lanes:  # powers of two, so that other sizes share the text
            lanes *= 2
    else:
        itemsize = min((ITEMSIZE[dtypes[source]] for _, source in accesses if source in dtypes), default=4)
        lanes = TILE * max(1, 4 // itemsize)
        if other_items * (size // (4 * lanes)) >= MIN_ITEMS and len(elements) <= MAX_WIDE_ELEMENTS:
            is_bare = is_scan or len(elements) <= MAX_BARE_ELEMENTS
            lanes *= 8 if is_bare and other_items * (size // (8 * lanes)) >= MIN_ITEMS else 4
    return Schedule(best, lanes, frozenset(), blocked)
