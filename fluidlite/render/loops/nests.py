"""The nests of an expression: what is stored between loops, and which loops compute it together.

A reduction that is read for many elements is computed once: in the item that computes these elements, where its index
says that they are all of one item, and else in a nest before, in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from math import prod
from typing import NamedTuple

from fluidlite.base.dtypes import INTS, ITEMSIZE
from fluidlite.expr.number import Number, number
from fluidlite.expr.tensor import Tensor, ordered
from fluidlite.expr.traced import Traced
from fluidlite.render.loops.affine import axis_to_split, quotients_in, with_axes
from fluidlite.render.loops.elements import Axis, Source, elements_behind
from fluidlite.render.loops.functions import POLYNOMIALS, SLOW
from fluidlite.render.loops.in_order import SCATTERING, base_of, chain_of, in_order, running, scattered
from fluidlite.render.loops.indices import Index
from fluidlite.render.loops.nest import FEW, TILE, Nest, Store
from fluidlite.render.loops.rules import elements
from fluidlite.render.loops.sizes import Sizes, alike, size_of

REDUCING = frozenset({"reduce", "arg", "contract", "unwindow", "scan", "segment", "segment_of"})
"""Primitives of which an element costs a loop."""
REPEATING = frozenset({"broadcast", "window", "take", "pick", "put", "unwindow", "contract", "scan", "segment"})
"""Primitives that read an element more than once, or for elements of which it is none."""
TABULAR = frozenset({"map", "cast", "reshape", "broadcast", "concat", "transpose", "slice"})
"""Primitives of which tables of numbers are computed."""
STEPS, MANY_STEPS, READ, WORTH = 4, 12, 32, 1 << 14
"""What costs so many steps an element is stored where each is read so often, and all that is computed is worth it."""
POLYNOMIALS_READ = 4
"""So often polynomials are read that are stored."""
NEAR, MEMBERS = 4, 8
"""With so many nests before a root is compared, and so many roots are one nest: of hundreds each costs the same."""
SHORT, NARROW = 256, 8
"""The elements of a row that lies in few lines of memory, and which part of it narrow borders are."""
MUCH = 1 << 16
"""So much work is not shared by few items."""


class _Part(NamedTuple):
    """A part of a concatenation, stored where it lies: the whole, its axis, where the part begins, its number."""

    whole: Tensor
    axis: int
    at: Number
    number: int


@dataclass(eq=False)
class _Root:
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
    part: _Part | None = None

    def place(self, index: Index) -> tuple[Index, Tensor]:
        """The index of an element in the tensor of which the target holds all, and that tensor."""
        if self.part is None:
            return index, self.x
        whole, axis, at, _ = self.part
        return tuple(i + at if k == axis else i for k, i in enumerate(index)), whole


def _as_long(mine: Sequence[Axis], other: Sequence[Axis], values: Sizes) -> bool:
    """Whether axes are as long as others, each as the one at its place."""
    return len(mine) == len(other) and all(alike(a.size, b.size, values) for a, b in zip(mine, other, strict=True))


def nests_of(
    traced: Traced, dtypes: Mapping[tuple[str, int], str], values: Sizes, side_by_side: bool = False
) -> tuple[Nest, ...]:
    """The nests of an expression, those that others read first.

    Parameters
    ----------
    traced : Traced
    dtypes : mapping of (slot, number) to dtype
        The outputs that are wanted, and as what they are stored.
    values : mapping
        The sizes at hand.
    side_by_side : bool
        Whether the device runs work-items side by side.
    """
    results = [(slot, i, _as_it_lies(traced.outputs[slot][i], values)) for slot, i in dtypes]
    rounded = {id(x) for slot, i, x in results if x.dtype != dtypes[slot, i]}
    every = [x for _, _, x in results]
    tables = _tables(every, values) | _indices(every, values)
    keep = tables.union(_kept(every, rounded, values))
    kept = [x for x in ordered(every) if x in keep]
    stored = {x: ("made", k) for k, x in enumerate(kept) if in_order(x, values) or x in tables}
    splits: dict[tuple[Source, int], tuple[Number, ...]] = {}
    while True:
        roots = [_root(x, source, values, splits) for x, source in stored.items()]
        for slot, i, x in results:
            parts = _parts_of(x, values) if x not in stored else [(x, None)]
            roots += [_root(each, ("out", slot, i), values, splits, part) for each, part in parts]
        known = sum(map(len, splits.values()))
        more = _costly(roots, kept, stored, values, splits)
        if sum(map(len, splits.values())) > known:
            continue
        groups = _groups(roots, stored, values) if not more else []
        homes = Counter(x for group in groups for x in set().union(*(root.inlined for root in group)))
        more |= {x for x, count in homes.items() if count > 1}
        if not more:
            return tuple(nest for group in groups for nest in _nests(group, stored, values, side_by_side))
        stored = {x: ("made", k) for k, x in enumerate(kept) if x in stored or x in more}


def _as_it_lies(x: Tensor, values: Sizes) -> Tensor:
    """What an output is under other dims, if loops of its own compute that: its elements lie the same way."""
    base = x
    while base.op == "reshape":
        (base,) = base.args
    return base if in_order(base, values) else x


def _parts_of(x: Tensor, values: Sizes) -> list[tuple[Tensor, _Part | None]]:
    """A result, or the parts of a concatenation, each a loop without conditions: those of rows, whose elements would be
    chosen one by one, unless they are short and have narrow borders; and parts that are computed, and alike in dims.
    """
    if x.op != "concat" or len(x.args) > MEMBERS or any(in_order(arg, values) for arg in x.args):
        return [(x, None)]
    (axis,), at = x.params, number(0)
    if not (_goes_by_parts(x, axis, values) or _are_alike(x.args, axis, values)):
        return [(x, None)]
    found: list[tuple[Tensor, _Part | None]] = []
    for k, arg in enumerate(x.args):
        found.append((arg, _Part(x, axis, at, k)))
        at = at + arg.dims[axis]
    return found


def _goes_by_parts(x: Tensor, axis: int, values: Sizes) -> bool:
    """Whether elements that lie side by side are of several parts, and many; of a short row with narrow borders a loop
    over these would go through most of the lines of memory again, which costs less than functions and other operands.
    """
    inner = all(size_of(d, values) == 1 for d in x.dims[axis + 1 :])
    if not inner or prod(size_of(d, values) for d in x.dims) < WORTH:
        return False
    row, lengths = size_of(x.dims[axis], values), [size_of(arg.dims[axis], values) for arg in x.args]
    widest = x.args[lengths.index(max(lengths))]
    if row > SHORT or row - max(lengths) > row // NARROW:
        return True
    behind, read = ordered(x.args), {y for y in ordered([widest]) if y.op == "input"}
    return any((y.op == "map" and y.params[0] in SLOW) or (y.op == "input" and y not in read) for y in behind)


def _are_alike(parts: Sequence[Tensor], axis: int, values: Sizes) -> bool:
    """Whether parts are computed, and as long along an axis: a set of sizes would ask for all of them."""
    sizes = [size_of(part.dims[axis], values) for part in parts]
    return all(part.op == "map" for part in parts) and all(size == sizes[0] for size in sizes)


def _root(
    x: Tensor,
    target: Source,
    values: Sizes,
    splits: Mapping[tuple[Source, int], Sequence[Number]],
    whole: _Part | None = None,
) -> _Root:
    axes: list[Axis] = []
    index: list[Number] = []
    places: dict[str, tuple[int, int]] = {}
    for k, d in enumerate(x.dims):
        total = number(0)
        for part, size in enumerate(splits.get(_named(target, whole, k), (d,))):
            total = total * size
            if size_of(size, values) != 1:
                axes.append(Axis(f"i{len(axes)}", size))
                total = total + axes[-1].leaf
                places[axes[-1].name] = k, part
        index.append(total)
    sizes = {axis.name: size_of(axis.size, values) for axis in axes}
    return _Root(x, target, tuple(axes), tuple(index), sizes, places, part=whole)


def _named(target: Source, part: _Part | None, dim: int) -> tuple[Source, int]:
    """The name of a dim of what is stored."""
    return ((*target, part.number) if part is not None else target), dim


def _costly(
    roots: list[_Root],
    kept: list[Tensor],
    stored: Mapping[Tensor, Source],
    values: Sizes,
    splits: dict[tuple[Source, int], tuple[Number, ...]],
) -> set[Tensor]:
    """Find the items of each root; return what is not computed within them."""
    found: set[Tensor] = set()
    candidates = {x for x in kept if x not in stored}
    for root in roots:
        asked: dict[Tensor, set[frozenset[str]]] = {}
        quotients: dict[Tensor, list[Number]] = {}
        others: list[Number] = []
        e = elements({x: source for x, source in stored.items() if x is not root.x or root.target[0] == "out"}, values)
        for axis in root.axes:
            e.extended(axis)

        def note(
            x: Tensor,
            index: Index,
            needs: frozenset[str],
            asked: dict[Tensor, set[frozenset[str]]] = asked,
            quotients: dict[Tensor, list[Number]] = quotients,
            others: list[Number] = others,
            reads: set[Tensor] = root.reads,
        ) -> None:
            if x in candidates:
                asked.setdefault(x, set()).add(needs)
                quotients.setdefault(x, []).extend(q for i in index for q in quotients_in(i))
            else:
                others.extend(q for i in index for q in quotients_in(i))
            if x in stored or x.op in ("input", "random"):
                reads.add(x)

        e.asked, root.items = note, root.axes
        if in_order(root.x, values) and root.x not in e.stored:
            chain = chain_of(root.x, e.stored, values)
            for x in [arg for one in chain for arg in one.args if arg not in set(chain)]:
                e.at(x, tuple(e.extended(Axis(f"i{k}", d)).leaf for k, d in enumerate(x.dims)))
            found |= set(asked)
            continue
        e.at(root.x, root.index)
        asked.pop(root.x, None)
        if any(_split_at(root, n, values, splits) for n in others):
            continue
        whole = frozenset(root.sizes)
        levels: dict[Tensor, frozenset[str]] = {}
        for x, needs in asked.items():
            one = next(iter(needs))
            size = prod(root.sizes.get(name, 0) for name in one)
            if len(needs) > 1 or not one <= whole or size != prod(size_of(d, values) for d in x.dims):
                if not any(_split_at(root, n, values, splits) for n in quotients[x]):
                    found.add(x)
            else:
                levels[x] = one
        inner = {x: level for x, level in levels.items() if level != whole}
        items = whole.intersection(*inner.values()) if inner else whole
        order = sorted(root.sizes, key=lambda name: name not in items)
        again = {x for x, level in inner.items() if level != set(order[: len(level)])}
        if again:  # loops around it would compute it again
            found |= again
            continue
        work = max(prod(size_of(d, values) for d in x.dims) for x in ordered([root.x]))
        count = prod(root.sizes[name] for name in items)
        last = root.axes[-1].name if root.axes else ""
        if last in items:
            count //= min(TILE, max(root.sizes[last], 1))
        if inner and count < FEW and work > MUCH:
            found |= set(inner)
        root.inlined = set(levels)
        root.items = tuple(axis for axis in root.axes if axis.name in items)
    return found


def _split_at(root: _Root, n: Number, values: Sizes, splits: dict[tuple[Source, int], tuple[Number, ...]]) -> bool:
    """Take an axis of which an index is a quotient as two, if it can be."""
    found = axis_to_split(n.args[0], n.args[1], values, root.sizes)
    if found is None or found[0] not in root.places:
        return False
    name, inner = found
    dim, part = root.places[name]
    name_ = _named(root.target, root.part, dim)
    sizes = splits.get(name_, (root.x.dims[dim],))
    splits[name_] = (*sizes[:part], sizes[part] // inner, inner, *sizes[part + 1 :])
    return True


def _groups(roots: list[_Root], stored: Mapping[Tensor, Source], values: Sizes) -> list[list[_Root]]:
    """The roots that one nest computes each, those that others read first."""
    levels: dict[Tensor, int] = {}
    groups: list[tuple[int, list[_Root]]] = []
    for root in roots:  # stored ones come first, in the order in which they are made
        behind = {x for x in ordered([root.x]) if x in stored}
        if root.target[0] == "made":
            behind.discard(root.x)
        level = max((levels[x] + 1 for x in behind), default=0)
        if root.target[0] == "made":
            levels[root.x] = level
        near = [group for mine, group in groups if mine == level and len(group) < MEMBERS][-NEAR:]
        for group in near:
            members = next((each for each in _ways([*group, root], values) if _fits(each, stored, values)), None)
            if members is not None:
                group[:] = members
                break
        else:
            groups.append((level, [root]))
    for _, group in groups:
        group.sort(key=_extent, reverse=True)
    return [group for _, group in sorted(groups, key=lambda pair: pair[0])]


def _extent(root: _Root) -> tuple[int, int]:
    """The root with the most axes, and the fewest items, says what the items of a nest are."""
    return len(root.axes), -len(root.items)


def _ways(members: list[_Root], values: Sizes) -> Iterator[list[_Root]]:
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
    for positions in combinations(range(len(wide[0].axes)), len(thin[0].axes)):
        if _as_long([wide[0].axes[k] for k in positions], thin[0].axes, values):
            yield [replace(x, items=tuple(x.axes[k] for k in positions)) if x in wide else x for x in members]


def _fits(members: list[_Root], stored: Mapping[Tensor, Source], values: Sizes) -> bool:
    """Whether roots are computed in the items of one of them, and none reads another; the last one is new."""
    root = members[-1]
    if any(in_order(each.x, values) and (each.target[0] == "made" or each.x not in stored) for each in members):
        return False
    main = max(members, key=_extent)
    kept = [axis in main.items for axis in main.axes]
    if any(each.items != each.axes and [axis in each.items for axis in each.axes] != kept for each in members):
        return False
    if not all(any(_as_long(each.axes, axes, values) for axes in (main.axes, main.items)) for each in members):
        return False
    if not any(root.reads & r.reads for r in members if r is not root):
        return False
    # the same elements are loaded or drawn by both
    nest = _together(sorted(members, key=_extent, reverse=True), stored, values)
    loads = [
        {
            x
            for x in elements_behind(store.value, nest.elements)
            if x.op == "random" or (x.op == "load" and x.params[1].op != "const")
        }
        for store in nest.stores
    ]
    mine = next(k for k, store in enumerate(nest.stores) if store.target == root.target)
    shared = set().union(*(loads[mine] & each for k, each in enumerate(loads) if k != mine))
    if any(each.items != each.axes and not each.inlined for each in members):  # it is the loops that are shared
        loops = {axis.name for store in nest.stores for axis in store.loops}
        return any(loops <= nest.elements.needs(x) for x in shared)
    return bool(shared)


def _nests(group: list[_Root], stored: Mapping[Tensor, Source], values: Sizes, side_by_side: bool) -> list[Nest]:
    """The nests that compute a group."""
    main = group[0]
    first = main.x
    mine = {x: source for x, source in stored.items() if x is not first or main.target[0] != "made"}
    if in_order(first, values) and first not in mine:
        if first.op == "scan":
            return [running(first, main.target, mine, values)]
        return [scattered(first, main.target, mine, values, side_by_side)]
    return [_together(group, stored, values)]


def _together(group: list[_Root], stored: Mapping[Tensor, Source], values: Sizes) -> Nest:
    """The nest of roots that one says the items of: the first."""
    main = group[0]
    written = {root.x for root in group if root.target[0] == "made"}
    e = elements({x: source for x, source in stored.items() if x not in written}, values)
    apart = _written_out(main, values)
    items = [axis for axis in main.items if axis.name not in apart]
    loops = [axis for axis in main.axes if axis not in main.items and axis.name not in apart]
    axes = {axis.name: e.extended(Axis(f"i{n}", e.sized(axis.size))) for n, axis in enumerate(items)}
    around = [axis.leaf for axis in axes.values()]
    axes |= {axis.name: e.axis(axis.size, around, (), depth) for depth, axis in enumerate(loops)}
    stores = []
    for root in group:
        whole = len(root.axes) == len(main.axes)
        theirs = main.axes if whole else main.items
        within = tuple(axes[axis.name] for axis in loops) if whole else ()
        mine = [axis.name for axis in theirs if axis.name in apart]
        for at in product(*(range(apart[name]) for name in mine)):
            leaves = {name: axis.leaf for name, axis in axes.items()}
            leaves |= {name: number(k) for name, k in zip(mine, at, strict=True)}
            here = {axis.name: leaves[other.name] for axis, other in zip(root.axes, theirs, strict=True)}
            index = tuple(with_axes(i, here) for i in root.index)
            value = e.at(root.x, index)
            there, whole_ = root.place(index)
            stores.append(Store(root.target, whole_.dims, value, e.linear(there, whole_), (), "", root.x.dtype, within))
    return Nest(tuple(axes[axis.name] for axis in items), tuple(stores), e)


def _written_out(root: _Root, values: Sizes) -> dict[str, int]:
    """The axes of which an item computes all, one after the other without a loop: so few that neighbours go side by
    side.
    """
    lengths = {axis.name: size_of(axis.size, values) for axis in root.axes}
    inner = [axis.name for axis in root.axes if axis not in root.items]
    if inner and 0 < prod(lengths[name] for name in inner) <= FEW:
        return {name: int(lengths[name]) for name in inner}
    return {}


def _kept(results: list[Tensor], rounded: Container[int], values: Sizes) -> list[Tensor]:
    """The tensors that are better stored than computed for each element that reads them, those that others are made of
    first.

    ``rounded`` are the ids of results that are not stored as they are computed.
    """
    order = ordered(results)
    readers: dict[Tensor, list[Tensor]] = {x: [] for x in order}
    for x in order:
        for arg in dict.fromkeys(x.args):
            readers[arg].append(x)
    written = Counter(map(id, results))
    own = {x for x in order if in_order(x, values)}
    own -= {base_of(x) for x in own if _continues(x, base_of(x), own, readers) and not written[id(base_of(x))]}
    costly = {x for x in order if x in own or (x.op in REDUCING and x.op != "scan" and readers[x])}
    kept: set[Tensor] = set()
    repeated: dict[Tensor, bool] = {}
    summed: dict[Tensor, bool] = {}
    for x in reversed(order):
        reads = readers[x]
        summed[x] = any(r.op == "reduce" or (summed[r] and r not in kept) for r in reads)
        often = any(r.op in REPEATING or repeated[r] for r in reads)  # it is read for other elements than its own
        count = len(reads) + written[id(x)]
        root = x in own and (reads or id(x) in rounded or written[id(x)] > 1)
        if (count > 1 or often or root or (summed[x] and _of_columns(x, values))) and x in costly:
            kept.add(_narrow(x, readers, written))
        repeated[x] = often and x not in kept
    return [x for x in order if x in kept]


def _of_columns(x: Tensor, values: Sizes) -> bool:
    """Whether what is reduced lies apart, and neighbours side by side: in loops of its own, lanes go through them."""
    if x.op != "reduce":
        return False
    (source,), (_, gone) = x.args, x.params
    lengths = [size_of(d, values) for d in source.dims]
    last = max((k for k, length in enumerate(lengths) if length != 1), default=-1)
    return last not in gone and prod(lengths) > MUCH


def _narrow(x: Tensor, readers: Mapping[Tensor, list[Tensor]], written: Mapping[int, int]) -> Tensor:
    """What is stored of a tensor: integers of which all that is read is fewer bits are these."""
    if len(readers[x]) != 1 or written[id(x)] or x.dtype not in INTS:
        return x
    (cast,) = readers[x]
    return cast if cast.op == "cast" and cast.dtype in INTS and ITEMSIZE[cast.dtype] < ITEMSIZE[x.dtype] else x


def _tables(results: list[Tensor], values: Sizes) -> set[Tensor]:
    """What costs many steps for each element, is no reduction, and is read for many others; the numbers of indices, of
    which nothing has to be read, cost more than to read what was made of them sooner. One function is enough if it
    differs for neighbours: others are computed before the loop over these.
    """
    steps: dict[Tensor, tuple[int, set[str], bool]] = {}  # and which functions, and whether operands are read
    found: set[Tensor] = set()
    for x in ordered(results):
        if x.op in ("iota", "number", "input") or (x.args and x.op in TABULAR and all(arg in steps for arg in x.args)):
            mine = [steps[arg] for arg in dict.fromkeys(x.args)]
            steps[x] = (
                (x.op in ("map", "cast")) + sum(count for count, _, _ in mine),
                ({x.params[0]} & SLOW if x.op == "map" else set()).union(*(used for _, used, _ in mine)),
                x.op == "input" or any(reads for _, _, reads in mine),
            )
        if x.op not in REPEATING and x.op not in SCATTERING:
            continue
        most = max(prod(size_of(d, values) for d in dims) for dims in (x.dims, *(arg.dims for arg in x.args)))
        for arg in x.args:
            count, used, reads = steps.get(arg, (0, set[str](), False))
            least, often = (MANY_STEPS, READ // 2) if reads else (STEPS, READ)
            often = often if used.isdisjoint(POLYNOMIALS) else POLYNOMIALS_READ
            enough = count >= least or (bool(used) and bool(arg.dims) and size_of(arg.dims[-1], values) != 1)
            if enough and most >= max(often * prod(size_of(d, values) for d in arg.dims), WORTH):
                found.add(arg)
    return found


def _indices(results: list[Tensor], values: Sizes) -> set[Tensor]:
    """Indices that are computed or checked, and that each of several owners of a scatter's target reads."""
    found: set[Tensor] = set()
    for x in ordered(results):
        if x.op not in SCATTERING or x.op == "put":  # of which each owner has indices of its own
            continue
        index = x.args[2] if x.op == "set_at" else x.args[1]
        many = prod(size_of(d, values) for d in index.dims) >= WORTH
        behind = ordered([index])
        made = any(each.op in ("map", "checked") for each in behind)
        if made and many and not any(each.op in REDUCING or in_order(each, values) for each in behind):
            found.add(index)
    return found


def _continues(x: Tensor, base: Tensor | None, own: Container[Tensor], readers: Mapping[Tensor, list[Tensor]]) -> bool:
    """Whether a scatter writes over another one that nobody else reads, along the same axis."""
    if base is None or base not in own or x.op not in SCATTERING or base.op not in SCATTERING:
        return False
    if len(readers[base]) != 1 or sum(arg is base for arg in x.args) != 1 or base.dtype != x.dtype:
        return False
    return (base.params[:1] or (0,)) == (x.params[:1] or (0,))
