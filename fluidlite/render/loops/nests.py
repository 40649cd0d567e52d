"""The nests of an expression: what is stored between loops, and which loops compute it together.

A reduction that is read for many elements is computed once: in the item that computes these elements, where its index
says that they are all of one item, and else in a nest before, in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from math import prod

from fluidlite.base.dtypes import INTS, ITEMSIZE
from fluidlite.expr.number import Number, number
from fluidlite.expr.tensor import Tensor, ordered
from fluidlite.expr.traced import Traced
from fluidlite.render.loops.affine import axis_to_split, quotients_in
from fluidlite.render.loops.collapse import collapsed
from fluidlite.render.loops.elements import Axis, Source
from fluidlite.render.loops.functions import POLYNOMIALS, SLOW
from fluidlite.render.loops.grouping import MEMBERS, MUCH, Group, Part, Root, groups_of, name_of, nest_of
from fluidlite.render.loops.in_order import SCATTERING, base_of, chain_of, in_order, running, scattered
from fluidlite.render.loops.indices import Index
from fluidlite.render.loops.nest import FEW, TILE, Nest
from fluidlite.render.loops.rules import elements
from fluidlite.render.loops.sizes import Sizes, size_of

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
SHORT, NARROW = 256, 8
"""The elements of a row that lies in few lines of memory, and which part of it narrow borders are."""


def nests_of(
    traced: Traced, dtypes: Mapping[tuple[str, int], str], values: Sizes, side_by_side: bool = False
) -> tuple[Nest, ...]:
    """The nests of an expression, those that others read first.

    ``dtypes``: by slot and number within it, the outputs that are wanted, and as what they are stored.
    ``values``: the sizes at hand.
    ``side_by_side``: whether the device runs work-items side by side.
    """
    outputs = collapsed(traced).outputs
    results = [(slot, i, _as_it_lies(outputs[slot][i], values)) for slot, i in dtypes]
    rounded = {id(x) for slot, i, x in results if x.dtype != dtypes[slot, i]}
    every = [x for _, _, x in results]
    tables = _tables(every, values) | _indices(every, values)
    keep = tables.union(_kept(every, rounded, values, side_by_side))
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
        groups = groups_of(roots, stored, values) if not more else []
        homes = Counter(x for group in groups for x in set().union(*(root.inlined for root in group.members)))
        more |= {x for x, count in homes.items() if count > 1}
        if not more:
            found: list[Nest] = []
            for group in groups:
                found += _nests(group, values, side_by_side, free_workspace(found, len(kept)))
            return tuple(found)
        stored = {x: ("made", k) for k, x in enumerate(kept) if x in stored or x in more}


def _as_it_lies(x: Tensor, values: Sizes) -> Tensor:
    """What an output is under other dims, if loops of its own compute that: its elements lie the same way."""
    base = x
    while base.op == "reshape":
        (base,) = base.args
    return base if in_order(base, values) else x


def _parts_of(x: Tensor, values: Sizes) -> list[tuple[Tensor, Part | None]]:
    """A result, or the parts of a concatenation, each a loop without conditions: those of rows, whose elements would be
    chosen one by one, unless they are short and have narrow borders; and parts that are computed, and alike in dims.
    Many parts have to be large: each has a text.
    """
    if x.op != "concat" or any(in_order(arg, values) for arg in x.args):
        return [(x, None)]
    if len(x.args) > MEMBERS and prod(size_of(d, values) for d in x.dims) < WORTH * len(x.args):
        return [(x, None)]
    (axis,), at = x.params, number(0)
    if not (_goes_by_parts(x, axis, values) or _are_alike(x.args, axis, values)):
        return [(x, None)]
    found: list[tuple[Tensor, Part | None]] = []
    for k, arg in enumerate(x.args):
        found.append((arg, Part(x, axis, at, k)))
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
    whole: Part | None = None,
) -> Root:
    name = name_of(target, whole)
    axes: list[Axis] = []
    index: list[Number] = []
    places: dict[str, tuple[int, int]] = {}
    for k, d in enumerate(x.dims):
        total = number(0)
        for part, size in enumerate(splits.get((name, k), (d,))):
            total = total * size
            if size_of(size, values) != 1:
                axes.append(Axis(f"i{len(axes)}", size))
                total = total + axes[-1].leaf
                places[axes[-1].name] = k, part
        index.append(total)
    sizes = {axis.name: size_of(axis.size, values) for axis in axes}
    return Root(x, target, tuple(axes), tuple(index), sizes, places, part=whole)


class _Asked:
    """What is asked for to compute the elements of a root.

    ``needs``: of each candidate, of which axes its indices are computed.
    ``within``: the quotients in its indices.
    ``quotients``: those in indices of all that is no candidate, by key.
    """

    def __init__(
        self, root: Root, stored: Mapping[Tensor, Source], candidates: Container[Tensor], values: Sizes
    ) -> None:
        mine = {x: source for x, source in stored.items() if x is not root.x or root.target[0] == "out"}
        self.elements, self.candidates, self.reads = elements(mine, values), candidates, root.reads
        self.needs: dict[Tensor, set[frozenset[str]]] = {}
        self.within: dict[Tensor, list[Number]] = {}
        self.quotients: dict[str, Number] = {}
        self._seen: set[str] = set()
        for axis in root.axes:
            self.elements.extended(axis)
        self.elements.asked = self._note

    def _note(self, x: Tensor, index: Index) -> None:
        if x in self.candidates:
            self.needs.setdefault(x, set()).add(self.elements.needs_of(index))
            self.within.setdefault(x, []).extend(q for i in index for q in quotients_in(i))
        else:
            for i in index:
                if i.key not in self._seen:
                    self._seen.add(i.key)
                    self.quotients.update((q.key, q) for q in quotients_in(i))
        if x in self.elements.stored or x.op in ("input", "random"):
            self.reads.add(x)

    def behind_chain(self, x: Tensor) -> None:
        """Ask for all that scatters one over the other read."""
        e = self.elements
        chain = chain_of(x, e.stored, e.values)
        for each in [arg for one in chain for arg in one.args if arg not in set(chain)]:
            e.at(each, tuple(e.extended(Axis(f"i{k}", d)).leaf for k, d in enumerate(each.dims)))


def _costly(
    roots: list[Root],
    kept: list[Tensor],
    stored: Mapping[Tensor, Source],
    values: Sizes,
    splits: dict[tuple[Source, int], tuple[Number, ...]],
) -> set[Tensor]:
    """Find the items of each root; return what is not computed within them."""
    found: set[Tensor] = set()
    candidates = {x for x in kept if x not in stored}
    for root in roots:
        asked = _Asked(root, stored, candidates, values)
        root.items = root.axes
        if in_order(root.x, values) and root.x not in asked.elements.stored:
            asked.behind_chain(root.x)
            found |= set(asked.needs)
            continue
        asked.elements.at(root.x, root.index)
        asked.needs.pop(root.x, None)
        if any(_split_at(root, n, values, splits) for n in asked.quotients.values()):
            continue
        whole = frozenset(root.sizes)
        levels: dict[Tensor, frozenset[str]] = {}
        for x, needs in asked.needs.items():
            one = next(iter(needs))
            size = prod(root.sizes.get(name, 0) for name in one)
            if len(needs) > 1 or not one <= whole or size != prod(size_of(d, values) for d in x.dims):
                if not any(_split_at(root, n, values, splits) for n in asked.within[x]):
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


def _split_at(root: Root, n: Number, values: Sizes, splits: dict[tuple[Source, int], tuple[Number, ...]]) -> bool:
    """Take an axis of which an index is a quotient as two, if it can be."""
    found = axis_to_split(n.args[0], n.args[1], values, root.sizes)
    if found is None or found[0] not in root.places:
        return False
    name, inner = found
    dim, part = root.places[name]
    sizes = splits.get((root.name, dim), (root.x.dims[dim],))
    splits[root.name, dim] = (*sizes[:part], sizes[part] // inner, inner, *sizes[part + 1 :])
    return True


def free_workspace(nests: Iterable[Nest], least: int = 0) -> int:
    """The number of the first workspace that no nest writes."""
    numbers: list[int] = [s.target[1] for nest in nests for s in nest.stores if s.target[0] == "made"]
    return max([least, *(1 + each for each in numbers)])


def _nests(group: Group, values: Sizes, side_by_side: bool, free: int) -> list[Nest]:
    """The nests that compute a group; workspaces from the number ``free`` on are no other's."""
    main = group.members[0]
    if in_order(main.x, values) and main.x not in group.stored:
        if main.x.op == "scan":
            return [running(main.x, main.target, group.stored, values)]
        return scattered(main.x, main.target, group.stored, values, free if side_by_side else None)
    return [nest_of(group, values)]


def _kept(results: list[Tensor], rounded: Container[int], values: Sizes, side_by_side: bool) -> list[Tensor]:
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
    if not side_by_side:
        own -= {base_of(x) for x in own if _continues(x, base_of(x), own, readers) and not written[id(base_of(x))]}
    costly = {x for x in order if x in own or (x.op in REDUCING and x.op != "scan" and readers[x] and _sums(x, values))}
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


def _sums(x: Tensor, values: Sizes) -> bool:
    """Whether an element is more than one product of two others."""
    if x.op != "contract":
        return True
    return any(size_of(d, values) != 1 for axis, d in contracted_axes(x).items() if axis not in x.params[-1])


def contracted_axes(x: Tensor) -> dict[str, Number]:
    """The axes of a contraction's operands, and how long they are."""
    *every, _ = x.params
    return {axis: d for axes, arg in zip(every, x.args, strict=True) for axis, d in zip(axes, arg.dims, strict=True)}


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
    differs for neighbours: others are computed before the loop over these. So is one transpose of neighbours.
    """
    steps: dict[Tensor, tuple[int, set[str], bool]] = {}  # and which functions, and whether operands are read
    found: set[Tensor] = set()
    for x in ordered(results):
        if x.op in ("iota", "number", "input") or (x.args and x.op in TABULAR and all(arg in steps for arg in x.args)):
            mine = [steps[arg] for arg in dict.fromkeys(x.args)]
            steps[x] = (
                MANY_STEPS * _apart(x) + (x.op in ("map", "cast")) + sum(count for count, _, _ in mine),
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


def _apart(x: Tensor) -> bool:
    """Whether elements that lie side by side in a tensor lie apart in its operand."""
    return x.op == "transpose" and x.params[0][-1] != x.rank - 1


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
