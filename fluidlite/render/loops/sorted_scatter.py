"""Scatters where items run side by side: no item reads all indices.

Updates are put in order of the rows that they go to, as counting sort does, and each part of the rows reads its own.
Where there are few rows, each chunk of the updates is added up alone, and the sums of all chunks after that. There are
no atomics: the same call gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from fluidlite.expr.number import Condition, Number, lowest, number, product
from fluidlite.expr.tensor import Tensor
from fluidlite.render.loops.affine import divided
from fluidlite.render.loops.elements import Axis, Element, Elements, Source
from fluidlite.render.loops.indices import Conditions, Index, linear
from fluidlite.render.loops.nest import Nest, Store
from fluidlite.render.loops.sizes import size_of

FEWEST = 2048
"""So many updates are worth it."""
CHUNK, CHUNKS = 64, 2048
"""Updates of a chunk, at least, and the most chunks."""
PARTS = 2048
"""The most parts of the rows."""
SUMS = 1 << 22
"""So many sums of chunks are kept, at most."""
MOST = 1 << 31
"""So many updates int32 does not count."""


@dataclass(frozen=True)
class Updates:
    """What a scatter adds to its target, or puts there.

    ``x``: the scatter.
    ``axis``: of the target, along which indices count.
    ``combine``: as a :class:`Store` does.
    """

    x: Tensor
    values: Tensor
    indices: Tensor
    axis: int
    combine: str

    @property
    def count(self) -> Number:
        """How many there are."""
        return product(self.indices.dims)

    def entry(self, n: Number, e: Elements) -> Index:
        """The index, among the indices, of the ``n``-th update."""
        found: list[Number] = []
        for d in reversed(self.indices.dims[1:]):
            n, last = divided(n, d, e.values, e.extents, e.sized)
            found.insert(0, last)
        return n, *found


def pays(updates: Updates, e: Elements) -> bool:
    """Whether updates are so many that they are sorted first, or added up by chunks."""
    return updates.indices.rank > 0 and FEWEST <= size_of(updates.count, e.values) < MOST


class _Scatter:
    """The nests of one scatter; ``first`` is the number of the first workspace that is free."""

    def __init__(self, updates: Updates, target: Source, base: Tensor | None, e: Elements, first: int) -> None:
        self.updates, self.target, self.base, self.e, self.first = updates, target, base, e, first
        self.x, self.axis = updates.x, updates.axis
        self.rows, self.count = e.sized(self.x.dims[self.axis]), e.sized(updates.count)
        others = [(k, d) for k, d in enumerate(self.x.dims) if k != self.axis and not e.one(d)]
        self.inner = [e.extended(Axis(f"i{k}", d)) for k, d in others]
        self.chunks = number(_power(size_of(self.count, e.values) // CHUNK, CHUNKS))
        self.chunk = e.extended(Axis("chunk", self.chunks))
        self.length = e.sized((self.count + (self.chunks - 1)) // self.chunks)

    def nests(self) -> list[Nest]:
        """Those that compute the scatter."""
        width = prod(self.e.extents[axis.name] for axis in self.inner)
        rows = size_of(self.rows, self.e.values)
        few = size_of(self.chunks, self.e.values) * rows * width <= SUMS
        return self._by_chunks() if few and self.updates.combine == "add" else self._sorted()

    # What both do

    def _made(self, k: int, place: Number, dtype: str) -> Element:
        return self.e.load(("made", self.first + k), place, (), dtype)

    def _index(self, n: Number) -> tuple[Number, Conditions]:
        """Where the ``n``-th update goes, and the conditions under which that is a row."""
        given = self.e.at(self.updates.indices, self.updates.entry(n, self.e))
        if self.updates.combine == "set":
            given = self.e.checked(given, self.rows, ())
        at = self.e.index_of(given)
        anywhere = size_of(self.rows, self.e.values) > 0 and self.e.is_checked(given, self.rows)
        return at, () if anywhere else (at >= 0, at < self.rows)

    def _along(self, row: Number) -> Index:
        """The index in the target of an item's element of a row."""
        at = {axis.name: axis.leaf for axis in self.inner}
        return tuple(row if k == self.axis else at.get(f"i{k}", number(0)) for k in range(self.x.rank))

    def _value(self, n: Number) -> Element:
        """The ``n``-th update's element of an item."""
        here = self._along(number(0))
        entry = self.updates.entry(n, self.e)
        return self.e.at(self.updates.values, (*here[: self.axis], *entry, *here[self.axis + 1 :]))

    def _before(self, row: Number) -> Element:
        """What is in a row of the target before."""
        if self.base is None:
            return self.e.cast(self.e.number(0, self.x.dtype), self.x.dtype)
        return self.e.cast(self.e.at(self.base, self._along(row)), self.x.dtype)

    def _of_chunk(self) -> Axis:
        """The loop over the updates of a chunk."""
        begin = self.chunk.leaf * self.length
        ends = lowest(begin, self.count), lowest(begin + self.length, self.count)
        return self.e.extended(Axis("update", self.count, *ends))

    # Few rows

    def _by_chunks(self) -> list[Nest]:
        e, sums = self.e, ("made", self.first)
        row, of_row = (e.extended(Axis(name, self.rows)) for name in ("row", f"i{self.axis}"))
        dims = (self.chunks, self.rows, *(axis.size for axis in self.inner))

        def place(chunk: Number, row: Number) -> Number:
            return linear((chunk, row, *(axis.leaf for axis in self.inner)), dims)

        each = self._of_chunk()
        at, there = self._index(each.leaf)
        dtype, zero = self.x.dtype, e.cast(e.number(0, self.x.dtype), self.x.dtype)
        added = Store(sums, dims, zero, place(self.chunk.leaf, row.leaf), (), "", dtype, (row,))
        adds = Store(sums, dims, self._value(each.leaf), place(self.chunk.leaf, at), there, "add", dtype, (each,), True)
        among = e.extended(Axis("other", self.chunks))
        total = e.reduce("sum", [among], self._made(0, place(among.leaf, of_row.leaf), dtype))
        value = total if self.base is None else e.made("map", (self._before(of_row.leaf), total), ("add",), dtype)
        items = tuple(sorted((of_row, *self.inner), key=lambda axis: int(axis.name[1:])))
        last = Store(self.target, self.x.dims, value, e.linear(self._along(of_row.leaf), self.x), (), "", dtype, ())
        return [Nest((self.chunk, *self.inner), (added, adds), e), Nest(items, (last,), e)]

    # Many rows

    def _sorted(self) -> list[Nest]:
        e, counts, before, totals, begins, order = self.e, *(("made", self.first + k) for k in range(5))
        parts = number(_power(size_of(self.rows, e.values), PARTS))
        step = e.sized((self.rows + (parts - 1)) // parts)
        part, each, chunk = e.extended(Axis("part", parts)), self._of_chunk(), self.chunk
        table, here = (self.chunks, parts), chunk.leaf * parts + part.leaf
        at, there = self._index(each.leaf)
        none, one = e.number(0, "int32"), e.number(1, "int32")

        def store(target: Source, dims: Sequence[Number], value: Element, place: Number, *loops: Axis) -> Store:
            return Store(target, tuple(dims), value, place, (), "", "int32", loops)

        counted = Store(counts, table, one, chunk.leaf * parts + at // step, there, "add", "int32", (each,), True)
        found = [Nest((chunk,), (store(counts, table, none, here, part), counted), e)]
        running = e.made("running", (self._made(0, here, "int32"),), ("sum", chunk, True), "int32")
        found.append(Nest((part,), (Store(before, table, running, here, (), "", "int32", (chunk,), True),), e))
        total = e.reduce("sum", [chunk], self._made(0, here, "int32"))
        found.append(Nest((part,), (store(totals, (parts,), total, part.leaf),), e))
        first = e.extended(Axis("until", parts + 1))
        less = e.extended(Axis("before", parts, None, first.leaf))
        begin = e.reduce("sum", [less], self._made(2, less.leaf, "int32"))
        found.append(Nest((first,), (store(begins, (parts + 1,), begin, first.leaf),), e))
        found.append(self._placed(order, step, parts))
        found.append(self._owned(part, step))
        return found

    def _placed(self, order: Source, step: Number, parts: Number) -> Nest:
        """Each update's number is stored behind those of its part that come before it."""
        e, mine = self.e, self.e.extended(Axis("update", self.count))
        chunk = mine.leaf // self.length
        at, there = self._index(mine.leaf)
        mate = e.extended(Axis("mate", self.count, chunk * self.length, mine.leaf))
        other, known = self._index(mate.leaf)
        same = (*known, Condition("equal", other // step, at // step))
        rank = e.reduce("sum", [mate], e.select(same, e.number(1, "int32"), e.number(0, "int32")))
        begin = self._made(3, at // step, "int32"), self._made(1, chunk * parts + at // step, "int32")
        place = sum((e.index_of(x) for x in (*begin, rank)), number(0))
        value = e.cast(e.made("index", (), (mine.leaf,), "int64"), "int32")
        return Nest((mine,), (Store(order, (self.count,), value, place, there, "", "int32", ()),), e)

    def _owned(self, part: Axis, step: Number) -> Nest:
        """Each part of the rows goes through its updates in order."""
        e, x = self.e, self.x
        begin = lowest(part.leaf * step, self.rows)
        row = e.extended(Axis("row", self.rows, begin, lowest(begin + step, self.rows)))
        ends = (e.index_of(self._made(3, at, "int32")) for at in (part.leaf, part.leaf + 1))
        each = e.extended(Axis("at", self.count, *ends))
        n = e.index_of(self._made(4, each.leaf, "int32"))
        at, _ = self._index(n)
        fill = Store(
            self.target, x.dims, self._before(row.leaf), e.linear(self._along(row.leaf), x), (), "", x.dtype, (row,)
        )
        place, combine = e.linear(self._along(at), x), self.updates.combine
        adds = Store(self.target, x.dims, self._value(n), place, (), combine, x.dtype, (each,), True)
        return Nest((part, *self.inner), (fill, adds), e)


def scattered_side_by_side(
    updates: Updates, target: Source, base: Tensor | None, e: Elements, first: int
) -> list[Nest]:
    """The nests of a scatter; ``first`` is the number of the first workspace that is free."""
    return _Scatter(updates, target, base, e, first).nests()


def _power(size: int, most: int) -> int:
    """The largest power of two that is no more than either: few numbers, so that other sizes have the same text."""
    found = 1
    while found * 2 <= min(size, most):
        found *= 2
    return found
