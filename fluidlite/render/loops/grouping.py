"""Which of the tensors that are stored one nest computes, and that nest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from math import prod
from typing import NamedTuple

from fluidlite.expr.number import Number, number
from fluidlite.expr.tensor import Tensor, ordered
from fluidlite.render.loops.affine import with_axes
from fluidlite.render.loops.elements import Axis, Element, Source, elements_behind
from fluidlite.render.loops.in_order import in_order
from fluidlite.render.loops.indices import Index
from fluidlite.render.loops.nest import FEW, TILE, Nest, Store
from fluidlite.render.loops.rules import elements
from fluidlite.render.loops.sizes import Sizes, alike, size_of

NEAR, MEMBERS = 4, 8
"""With so many nests before a root is compared, and so many roots are one nest: of hundreds each costs the same."""
MUCH = 1 << 16
"""So much work is not shared by few items."""
PAGE, CACHED = 1 << 10, 1 << 22
"""Rows of so many elements lie on pages of their own, and no cache holds so many: columns of both are slow to store."""


class Part(NamedTuple):
    """A part of a concatenation, stored where it lies: the whole, its axis, where the part begins, its number."""

    whole: Tensor
    axis: int
    at: Number
    number: int


@dataclass(eq=False)
class Root:
    """A tensor that is stored.

    ``axes`` are those of its loops, ``index`` is that of an element, computed of them.
    """

    x: Tensor
    target: Source
    axes: tuple[Axis, ...]
    index: Index
    sizes: Mapping[str, int]
    places: Mapping[str, tuple[int, int]]  # of each axis the dim, and the part of it
    items: tuple[Axis, ...] = ()
    inlined: set[Tensor] = field(default_factory=set)
    reads: set[Tensor] = field(default_factory=set)
    part: Part | None = None

    @property
    def name(self) -> Source:
        """Of which there is one."""
        return name_of(self.target, self.part)

    def place(self, index: Index) -> tuple[Index, Tensor]:
        """The index of an element in the tensor of which the target holds all, and that tensor."""
        if self.part is None:
            return index, self.x
        whole, axis, at, _ = self.part
        return tuple(i + at if k == axis else i for k, i in enumerate(index)), whole


def name_of(target: Source, part: Part | None) -> Source:
    """The name of what is stored in a target, all of it or a part."""
    return (*target, part.number) if part is not None else target


class RootElements:
    """The elements of roots in the items of one of them, which is the first."""

    def __init__(self, main: Root, stored: Mapping[Tensor, Source], values: Sizes) -> None:
        self.main, self.elements = main, elements(stored, values)
        self._apart = _written_out(main, values)
        self._loads: dict[Source, set[Element]] = {}
        items = [axis for axis in main.items if axis.name not in self._apart]
        loops = [axis for axis in main.axes if axis not in main.items and axis.name not in self._apart]
        e = self.elements
        axes = {axis.name: e.extended(Axis(f"i{n}", e.sized(axis.size))) for n, axis in enumerate(items)}
        self.items = tuple(axes.values())
        around = [axis.leaf for axis in self.items]
        axes |= {axis.name: e.axis(axis.size, around, (), depth) for depth, axis in enumerate(loops)}
        self.loops = tuple(axes[axis.name] for axis in loops)
        self._leaves = {name: axis.leaf for name, axis in axes.items()}

    def stores(self, root: Root) -> list[Store]:
        """What is stored of a root: all that is written out."""
        main, found = self.main, list[Store]()
        whole = len(root.axes) == len(main.axes)
        theirs = main.axes if whole else main.items
        mine = [axis.name for axis in theirs if axis.name in self._apart]
        for at in product(*(range(self._apart[name]) for name in mine)):
            leaves = {**self._leaves, **{name: number(k) for name, k in zip(mine, at, strict=True)}}
            here = {axis.name: leaves[other.name] for axis, other in zip(root.axes, theirs, strict=True)}
            index = tuple(with_axes(i, here) for i in root.index)
            value = self.elements.at(root.x, index)
            there, tensor = root.place(index)
            place, loops = self.elements.linear(there, tensor), self.loops if whole else ()
            found.append(Store(root.target, tensor.dims, value, place, (), "", root.x.dtype, loops))
        return found

    def loads(self, root: Root) -> set[Element]:
        """What is loaded or drawn for a root, element by element."""
        if root.name not in self._loads:
            behind = (x for store in self.stores(root) for x in elements_behind(store.value, self.elements))
            self._loads[root.name] = {
                x for x in behind if x.op == "random" or (x.op == "load" and x.params[1].op != "const")
            }
        return self._loads[root.name]


@dataclass
class Group:
    """Roots that one nest computes.

    ``members``: the first one says what the items are.
    ``stored``: what nests before have stored.
    ``tried``: by the name of a root and those of its items.
    """

    members: list[Root]
    stored: dict[Tensor, Source]
    tried: dict[tuple[Source, tuple[str, ...]], RootElements] = field(default_factory=dict)

    def in_items_of(self, root: Root, values: Sizes) -> RootElements:
        """The elements in the items of a root."""
        key = root.name, tuple(axis.name for axis in root.items)
        if key not in self.tried:
            self.tried[key] = RootElements(root, self.stored, values)
        return self.tried[key]


def groups_of(roots: list[Root], stored: Mapping[Tensor, Source], values: Sizes) -> list[Group]:
    """The roots that one nest computes each, those that others read first.

    ``roots``: stored ones first, in the order in which they are made.
    ``stored``: all that is stored between nests.
    ``values``: the sizes at hand.
    """
    levels = _levels(roots, stored)
    found: list[tuple[int, Group]] = []
    for root, level in zip(roots, levels, strict=True):
        near = [group for mine, group in found if mine == level and len(group.members) < MEMBERS][-NEAR:]
        for group in near:
            ways = _ways([*group.members, root], values)
            members = next((each for each in ways if _fits(each, group, values)), None)
            if members is not None:
                group.members = members
                break
        else:
            before = {one.x for one, its in zip(roots, levels, strict=True) if its < level}
            found.append((level, Group([root], {x: source for x, source in stored.items() if x in before})))
    for _, group in found:
        group.members.sort(key=_extent, reverse=True)
    return [group for _, group in sorted(found, key=lambda pair: pair[0])]


def _levels(roots: list[Root], stored: Mapping[Tensor, Source]) -> list[int]:
    """By root, how many nests run before: of what it reads, one after the other."""
    made: dict[Tensor, int] = {}
    found = []
    for root in roots:
        behind = {x for x in ordered([root.x]) if x in stored}
        if root.target[0] == "made":
            behind.discard(root.x)
        found.append(max((made[x] + 1 for x in behind), default=0))
        if root.target[0] == "made":
            made[root.x] = found[-1]
    return found


def nest_of(group: Group, values: Sizes) -> Nest:
    """The nest of a group: its text depends on nothing that was tried before."""
    made = RootElements(group.members[0], group.stored, values)
    stores = [store for root in group.members for store in made.stores(root)]
    return Nest(made.items, tuple(stores), made.elements)


def _extent(root: Root) -> tuple[int, int]:
    """The root with the most axes, and the fewest items, says what the items of a nest are."""
    return len(root.axes), -len(root.items)


def _ways(members: list[Root], values: Sizes) -> Iterator[list[Root]]:
    """Roots as they are; then with items of fewer axes for those that reduce nothing, as the others have them: what is
    read for a sum of columns is stored as it goes by.
    """
    yield members
    thin = [each for each in members if len(each.axes) < max(len(each.axes) for each in members)]
    wide = [each for each in members if each not in thin]
    if not thin or any(each.items != each.axes for each in wide):
        return
    wanted, total = prod(thin[0].sizes.values()), prod(wide[0].sizes.values())
    if (wanted < FEW and total <= MUCH) or total < TILE * wanted:
        return
    last = len(wide[0].axes) - 1
    for positions in combinations(range(last + 1), len(thin[0].axes)):
        if last in positions and wanted >= PAGE and total >= CACHED:
            continue
        if _as_long([wide[0].axes[k] for k in positions], thin[0].axes, values):
            yield [replace(x, items=tuple(x.axes[k] for k in positions)) if x in wide else x for x in members]


def _as_long(mine: Sequence[Axis], other: Sequence[Axis], values: Sizes) -> bool:
    """Whether axes are as long as others, each as the one at its place."""
    return len(mine) == len(other) and all(alike(a.size, b.size, values) for a, b in zip(mine, other, strict=True))


def _fits(members: list[Root], group: Group, values: Sizes) -> bool:
    """Whether roots are computed in the items of one of them, and none reads another; the last one is new."""
    root = members[-1]
    if any(in_order(each.x, values) and (each.target[0] == "made" or each.x not in group.stored) for each in members):
        return False
    main = max(members, key=_extent)
    kept = [axis in main.items for axis in main.axes]
    if any(each.items != each.axes and [axis in each.items for axis in each.axes] != kept for each in members):
        return False
    if not all(any(_as_long(each.axes, axes, values) for axes in (main.axes, main.items)) for each in members):
        return False
    others = [each for each in members if each is not root]
    if not any(root.reads & each.reads for each in others):
        return False
    tried = group.in_items_of(main, values)
    shared = tried.loads(root) & set().union(*map(tried.loads, others))
    if any(each.items != each.axes and not each.inlined for each in members):  # it is the loops that are shared
        loops = {axis.name for axis in tried.loops}
        return any(loops <= tried.elements.needs(x) for x in shared)
    return bool(shared)


def _written_out(root: Root, values: Sizes) -> dict[str, int]:
    """The axes of which an item computes all, one after the other without a loop: so few that neighbours go side by
    side.
    """
    lengths = {axis.name: size_of(axis.size, values) for axis in root.axes}
    inner = [axis.name for axis in root.axes if axis not in root.items]
    if inner and 0 < prod(lengths[name] for name in inner) <= FEW:
        return {name: int(lengths[name]) for name in inner}
    return {}
