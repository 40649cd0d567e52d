"""Fusion of stored tensors: which of them one nest computes, and that nest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from math import prod
from typing import NamedTuple

from fluidlite.expr.number import Number, number
from fluidlite.expr.tensor import Tensor, topological_order
from fluidlite.render.loops.affine import with_axes
from fluidlite.render.loops.elements import Axis, BufferKey, Element, dependencies
from fluidlite.render.loops.indices import Index
from fluidlite.render.loops.nest import MAX_UNROLLED, MIN_ITEMS, TILE, Nest, Store
from fluidlite.render.loops.rules import elements
from fluidlite.render.loops.sequential import is_sequential
from fluidlite.render.loops.sizes import Sizes, is_equal_size, size_of

MAX_COMPARED, MAX_ROOTS = 4, 8
"""Previous groups that a root is compared with, and roots of a group: compile time grows linearly with roots."""
MAX_SERIAL_ELEMENTS = 1 << 16
"""Elements that fewer than MIN_ITEMS work-items may compute; more need more parallelism."""
PAGE_ELEMENTS, CACHE_ELEMENTS = 1 << 10, 1 << 22
"""Elements of a row from which each row has pages of its own, and of a tensor from which no cache holds it: storing
columns is slow from both on."""


class ConcatPart(NamedTuple):
    """A part of a concatenation, stored in place: the result, its axis, where the part begins, its number."""

    whole: Tensor
    axis: int
    at: Number
    number: int


@dataclass(eq=False)
class Root:
    """A tensor that a nest stores.

    ``axes``: the axes of its loops, of which ``items`` are those of the work-items.
    ``index``: the index of an element, computed of the axes.
    ``sizes``: the lengths of the axes in the call.
    ``dim_parts``: by axis, the dim that it iterates over, and the part of that dim.
    ``inlined``: the reductions that its work-items compute for themselves.
    ``reads``: the operands, materialized tensors and random numbers that it reads.
    """

    x: Tensor
    target: BufferKey
    axes: tuple[Axis, ...]
    index: Index
    sizes: Mapping[str, int]
    dim_parts: Mapping[str, tuple[int, int]]
    items: tuple[Axis, ...] = ()
    inlined: set[Tensor] = field(default_factory=set)
    reads: set[Tensor] = field(default_factory=set)
    part: ConcatPart | None = None

    @property
    def name(self) -> BufferKey:
        """A unique key."""
        return root_key(self.target, self.part)

    def index_in_result(self, index: Index) -> tuple[Index, Tensor]:
        """The index of an element in the stored tensor, and that tensor: the whole concatenation of a part."""
        if self.part is None:
            return index, self.x
        whole, axis, begin, _ = self.part
        return tuple(i + begin if k == axis else i for k, i in enumerate(index)), whole


def root_key(target: BufferKey, part: ConcatPart | None) -> BufferKey:
    """The unique key of a target, or of a part of it."""
    return (*target, part.number) if part is not None else target


class RootElements:
    """The elements of roots within the work-items of the main root."""

    def __init__(self, main: Root, stored: Mapping[Tensor, BufferKey], values: Sizes) -> None:
        self.main, self.elements = main, elements(stored, values)
        self._unrolled = _unrolled_axes(main, values)
        self._loads: dict[BufferKey, set[Element]] = {}
        items = [axis for axis in main.items if axis.name not in self._unrolled]
        loops = [axis for axis in main.axes if axis not in main.items and axis.name not in self._unrolled]
        e = self.elements
        axes = {axis.name: e.add_axis(Axis(f"i{n}", e.canonical(axis.size))) for n, axis in enumerate(items)}
        self.items = tuple(axes.values())
        item_leaves = [axis.leaf for axis in self.items]
        axes |= {axis.name: e.axis(axis.size, item_leaves, (), depth) for depth, axis in enumerate(loops)}
        self.loops = tuple(axes[axis.name] for axis in loops)
        self._leaves = {name: axis.leaf for name, axis in axes.items()}

    def stores(self, root: Root) -> list[Store]:
        """The stores of a root, one for each iteration of the unrolled axes."""
        main, stores = self.main, list[Store]()
        has_loops = len(root.axes) == len(main.axes)
        main_axes = main.axes if has_loops else main.items
        unrolled_names = [axis.name for axis in main_axes if axis.name in self._unrolled]
        for position in product(*(range(self._unrolled[name]) for name in unrolled_names)):
            leaves = {**self._leaves, **{name: number(k) for name, k in zip(unrolled_names, position, strict=True)}}
            leaf_of = {axis.name: leaves[other.name] for axis, other in zip(root.axes, main_axes, strict=True)}
            index = tuple(with_axes(i, leaf_of) for i in root.index)
            value = self.elements.at(root.x, index)
            result_index, tensor = root.index_in_result(index)
            offset, loops = self.elements.linear(result_index, tensor), self.loops if has_loops else ()
            stores.append(Store(root.target, tensor.dims, value, offset, (), "", root.x.dtype, loops))
        return stores

    def loads(self, root: Root) -> set[Element]:
        """The loads and random numbers of a root."""
        if root.name not in self._loads:
            elements_read = (x for store in self.stores(root) for x in dependencies(store.value, self.elements))
            self._loads[root.name] = {
                x for x in elements_read if x.op == "random" or (x.op == "load" and x.params[1].op != "const")
            }
        return self._loads[root.name]


@dataclass
class RootGroup:
    """Roots that one nest computes.

    ``members``: the first one is the main root, which determines the work-items.
    ``stored``: the tensors that earlier nests have materialized.
    ``cache``: elements by main root and work-item axes.
    """

    members: list[Root]
    stored: dict[Tensor, BufferKey]
    cache: dict[tuple[BufferKey, tuple[str, ...]], RootElements] = field(default_factory=dict)

    def elements_in_items_of(self, root: Root, values: Sizes) -> RootElements:
        """The elements within the work-items of a root."""
        key = root.name, tuple(axis.name for axis in root.items)
        if key not in self.cache:
            self.cache[key] = RootElements(root, self.stored, values)
        return self.cache[key]


def groups_of(roots: list[Root], stored: Mapping[Tensor, BufferKey], values: Sizes) -> list[RootGroup]:
    """Fuse roots into groups, in topological order.

    ``roots``: the materialized ones first, in topological order.
    ``stored``: all materialized tensors.
    ``values``: the sizes of the call.
    """
    levels = _levels(roots, stored)
    groups: list[tuple[int, RootGroup]] = []
    for root, level in zip(roots, levels, strict=True):
        near = [group for other, group in groups if other == level and len(group.members) < MAX_ROOTS][-MAX_COMPARED:]
        for group in near:
            choices = _item_choices([*group.members, root], values)
            members = next((each for each in choices if _can_fuse(each, group, values)), None)
            if members is not None:
                group.members = members
                break
        else:
            materialized = {one.x for one, other in zip(roots, levels, strict=True) if other < level}
            groups.append((level, RootGroup([root], {x: source for x, source in stored.items() if x in materialized})))
    for _, group in groups:
        group.members.sort(key=_main_root_key, reverse=True)
    return [group for _, group in sorted(groups, key=lambda pair: pair[0])]


def _levels(roots: list[Root], stored: Mapping[Tensor, BufferKey]) -> list[int]:
    """By root, the length of the longest chain of nests that must run before it."""
    stored_levels: dict[Tensor, int] = {}
    levels = []
    for root in roots:
        inputs = {x for x in topological_order([root.x]) if x in stored}
        if root.target[0] == "made":
            inputs.discard(root.x)
        levels.append(max((stored_levels[x] + 1 for x in inputs), default=0))
        if root.target[0] == "made":
            stored_levels[root.x] = levels[-1]
    return levels


def nest_of(group: RootGroup, values: Sizes) -> Nest:
    """The nest of a group, built anew: its text must not depend on groups that were tried."""
    root_elements = RootElements(group.members[0], group.stored, values)
    stores = [store for root in group.members for store in root_elements.stores(root)]
    return Nest(root_elements.items, tuple(stores), root_elements.elements)


def _main_root_key(root: Root) -> tuple[int, int]:
    """Sort key of the main root: most axes first, then fewest work-item axes."""
    return len(root.axes), -len(root.items)


def _item_choices(members: list[Root], values: Sizes) -> Iterator[list[Root]]:
    """The roots unchanged, then with elementwise roots looping over the axes that the other roots reduce.

    So a sum of columns and a store of the summed elements share one pass.
    """
    yield members
    narrow = [each for each in members if len(each.axes) < max(len(each.axes) for each in members)]
    wide = [each for each in members if each not in narrow]
    if not narrow or any(each.items != each.axes for each in wide):
        return
    narrow_items, wide_items = prod(narrow[0].sizes.values()), prod(wide[0].sizes.values())
    if (narrow_items < MIN_ITEMS and wide_items <= MAX_SERIAL_ELEMENTS) or wide_items < TILE * narrow_items:
        return
    last = len(wide[0].axes) - 1
    for positions in combinations(range(last + 1), len(narrow[0].axes)):
        if last in positions and narrow_items >= PAGE_ELEMENTS and wide_items >= CACHE_ELEMENTS:
            continue
        if _equal_lengths([wide[0].axes[k] for k in positions], narrow[0].axes, values):
            yield [replace(x, items=tuple(x.axes[k] for k in positions)) if x in wide else x for x in members]


def _equal_lengths(mine: Sequence[Axis], other: Sequence[Axis], values: Sizes) -> bool:
    """Whether two lists of axes have pairwise equal lengths."""
    return len(mine) == len(other) and all(
        is_equal_size(a.size, b.size, values) for a, b in zip(mine, other, strict=True)
    )


def _can_fuse(members: list[Root], group: RootGroup, values: Sizes) -> bool:
    """Whether one nest can compute the roots, and the last one, which is new, shares loads with the others."""
    root = members[-1]
    if any(
        is_sequential(each.x, values) and (each.target[0] == "made" or each.x not in group.stored) for each in members
    ):
        return False
    main = max(members, key=_main_root_key)
    pattern = [axis in main.items for axis in main.axes]
    if any(each.items != each.axes and [axis in each.items for axis in each.axes] != pattern for each in members):
        return False
    if not all(any(_equal_lengths(each.axes, axes, values) for axes in (main.axes, main.items)) for each in members):
        return False
    earlier = [each for each in members if each is not root]
    if not any(root.reads & each.reads for each in earlier):
        return False
    elements_of_main = group.elements_in_items_of(main, values)
    shared = elements_of_main.loads(root) & set().union(*map(elements_of_main.loads, earlier))
    if any(each.items != each.axes and not each.inlined for each in members):  # the loops of work-items are shared
        loops = {axis.name for axis in elements_of_main.loops}
        return any(loops <= elements_of_main.elements.free_axes(x) for x in shared)
    return bool(shared)


def _unrolled_axes(root: Root, values: Sizes) -> dict[str, int]:
    """The lengths of the axes within a work-item, if they are so short that they are unrolled."""
    lengths = {axis.name: size_of(axis.size, values) for axis in root.axes}
    inner = [axis.name for axis in root.axes if axis not in root.items]
    if inner and 0 < prod(lengths[name] for name in inner) <= MAX_UNROLLED:
        return {name: int(lengths[name]) for name in inner}
    return {}
