"""Scatters on devices that run work-items in lockstep: no work-item reads all indices.

A counting sort orders the updates by the part of the rows that they write. Each part has one owning work-item, which
reads its own updates. With few rows, each chunk of the updates is summed separately, and then the sums of all chunks.
There are no atomics: the same call gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from fluidlite.expr.number import Condition, Number, lowest, number, product
from fluidlite.expr.tensor import Tensor
from fluidlite.render.loops.affine import divided
from fluidlite.render.loops.elements import Axis, BufferKey, Element, Elements
from fluidlite.render.loops.indices import Conditions, Index, linear
from fluidlite.render.loops.nest import Nest, Store
from fluidlite.render.loops.sizes import size_of

MIN_SORTED_UPDATES = 2048
"""Updates from which a scatter is sorted or summed by chunks."""
MIN_CHUNK_UPDATES, MAX_CHUNKS = 64, 2048
"""Updates of a chunk, and chunks of a scatter."""
MAX_PARTS = 2048
"""Parts of the rows."""
MAX_CHUNK_SUMS = 1 << 22
"""Elements of the sums of all chunks, which are materialized."""
INT32_UPDATES = 1 << 31
"""Updates that int32 cannot count."""


@dataclass(frozen=True)
class Updates:
    """The updates of a scatter.

    ``x``: the scatter.
    ``axis``: the axis of the target that is indexed.
    ``combine``: as in :class:`Store`.
    """

    x: Tensor
    values: Tensor
    indices: Tensor
    axis: int
    combine: str

    @property
    def count(self) -> Number:
        """The number of updates."""
        return product(self.indices.dims)

    def entry(self, n: Number, e: Elements) -> Index:
        """The index of the ``n``-th update in the tensor of indices."""
        index: list[Number] = []
        for d in reversed(self.indices.dims[1:]):
            n, last = divided(n, d, e.values, e.extents, e.canonical)
            index.insert(0, last)
        return n, *index


def is_worth_sorting(updates: Updates, e: Elements) -> bool:
    """Whether a scatter has enough updates for sorting or chunks to pay off."""
    return updates.indices.rank > 0 and MIN_SORTED_UPDATES <= size_of(updates.count, e.values) < INT32_UPDATES


class SortedScatter:
    """Builds the nests of one scatter; ``first`` is the first free workspace number."""

    def __init__(self, updates: Updates, target: BufferKey, base: Tensor | None, e: Elements, first: int) -> None:
        self.updates, self.target, self.base, self.e, self.first = updates, target, base, e, first
        self.x, self.axis = updates.x, updates.axis
        self.rows, self.count = e.canonical(self.x.dims[self.axis]), e.canonical(updates.count)
        other_dims = [(k, d) for k, d in enumerate(self.x.dims) if k != self.axis and not e.is_one(d)]
        self.inner = [e.add_axis(Axis(f"i{k}", d)) for k, d in other_dims]
        self.chunks = number(_power_of_two(size_of(self.count, e.values) // MIN_CHUNK_UPDATES, MAX_CHUNKS))
        self.chunk = e.add_axis(Axis("chunk", self.chunks))
        self.length = e.canonical((self.count + (self.chunks - 1)) // self.chunks)

    def nests(self) -> list[Nest]:
        """The nests that compute the scatter."""
        width = prod(self.e.extents[axis.name] for axis in self.inner)
        rows = size_of(self.rows, self.e.values)
        fits_in_chunks = size_of(self.chunks, self.e.values) * rows * width <= MAX_CHUNK_SUMS
        return self._by_chunks() if fits_in_chunks and self.updates.combine == "add" else self._sorted()

    # Shared by both

    def _load(self, number: int, offset: Number, dtype: str) -> Element:
        return self.e.load(("made", self.first + number), offset, (), dtype)

    def _index(self, n: Number) -> tuple[Number, Conditions]:
        """The row that the ``n``-th update writes, and the conditions under which it is in range."""
        raw = self.e.at(self.updates.indices, self.updates.entry(n, self.e))
        if self.updates.combine == "set":
            raw = self.e.checked_index(raw, self.rows, ())
        row = self.e.index_of(raw)
        is_always_in_range = size_of(self.rows, self.e.values) > 0 and self.e.is_in_range(raw, self.rows)
        return row, () if is_always_in_range else (row >= 0, row < self.rows)

    def _index_of(self, row: Number) -> Index:
        """The index in the target of a work-item's element in a row."""
        leaf_of = {axis.name: axis.leaf for axis in self.inner}
        return tuple(row if k == self.axis else leaf_of.get(f"i{k}", number(0)) for k in range(self.x.rank))

    def _value(self, n: Number) -> Element:
        """A work-item's element of the ``n``-th update."""
        index = self._index_of(number(0))
        entry = self.updates.entry(n, self.e)
        return self.e.at(self.updates.values, (*index[: self.axis], *entry, *index[self.axis + 1 :]))

    def _base(self, row: Number) -> Element:
        """The element of a row before the updates."""
        if self.base is None:
            return self.e.cast(self.e.number(0, self.x.dtype), self.x.dtype)
        return self.e.cast(self.e.at(self.base, self._index_of(row)), self.x.dtype)

    def _chunk_loop(self) -> Axis:
        """The loop over the updates of a chunk."""
        begin = self.chunk.leaf * self.length
        ends = lowest(begin, self.count), lowest(begin + self.length, self.count)
        return self.e.add_axis(Axis("update", self.count, *ends))

    # Few rows

    def _by_chunks(self) -> list[Nest]:
        e, sums = self.e, ("made", self.first)
        row, of_row = (e.add_axis(Axis(name, self.rows)) for name in ("row", f"i{self.axis}"))
        dims = (self.chunks, self.rows, *(axis.size for axis in self.inner))

        def offset(chunk: Number, row: Number) -> Number:
            return linear((chunk, row, *(axis.leaf for axis in self.inner)), dims)

        each = self._chunk_loop()
        to, in_range = self._index(each.leaf)
        dtype, zero = self.x.dtype, e.cast(e.number(0, self.x.dtype), self.x.dtype)
        added = Store(sums, dims, zero, offset(self.chunk.leaf, row.leaf), (), "", dtype, (row,))
        adds = Store(
            sums, dims, self._value(each.leaf), offset(self.chunk.leaf, to), in_range, "add", dtype, (each,), True
        )
        among = e.add_axis(Axis("other", self.chunks))
        total = e.reduce("sum", [among], self._load(0, offset(among.leaf, of_row.leaf), dtype))
        value = total if self.base is None else e.intern("map", (self._base(of_row.leaf), total), ("add",), dtype)
        items = tuple(sorted((of_row, *self.inner), key=lambda axis: int(axis.name[1:])))
        last = Store(self.target, self.x.dims, value, e.linear(self._index_of(of_row.leaf), self.x), (), "", dtype, ())
        return [Nest((self.chunk, *self.inner), (added, adds), e), Nest(items, (last,), e)]

    # Many rows

    def _sorted(self) -> list[Nest]:
        e, counts, chunk_ranks, totals, begins, order = self.e, *(("made", self.first + k) for k in range(5))
        parts = number(_power_of_two(size_of(self.rows, e.values), MAX_PARTS))
        step = e.canonical((self.rows + (parts - 1)) // parts)
        part, each, chunk = e.add_axis(Axis("part", parts)), self._chunk_loop(), self.chunk
        table, entry = (self.chunks, parts), chunk.leaf * parts + part.leaf
        to, in_range = self._index(each.leaf)
        none, one = e.number(0, "int32"), e.number(1, "int32")

        def store(target: BufferKey, dims: Sequence[Number], value: Element, place: Number, *loops: Axis) -> Store:
            return Store(target, tuple(dims), value, place, (), "", "int32", loops)

        counted = Store(counts, table, one, chunk.leaf * parts + to // step, in_range, "add", "int32", (each,), True)
        nests = [Nest((chunk,), (store(counts, table, none, entry, part), counted), e)]
        running = e.intern("running", (self._load(0, entry, "int32"),), ("sum", chunk, True), "int32")
        nests.append(Nest((part,), (Store(chunk_ranks, table, running, entry, (), "", "int32", (chunk,), True),), e))
        total = e.reduce("sum", [chunk], self._load(0, entry, "int32"))
        nests.append(Nest((part,), (store(totals, (parts,), total, part.leaf),), e))
        first = e.add_axis(Axis("until", parts + 1))
        lower = e.add_axis(Axis("before", parts, None, first.leaf))
        begin = e.reduce("sum", [lower], self._load(2, lower.leaf, "int32"))
        nests.append(Nest((first,), (store(begins, (parts + 1,), begin, first.leaf),), e))
        nests.append(self._order_nest(order, step, parts))
        nests.append(self._part_nest(part, step))
        return nests

    def _order_nest(self, order: BufferKey, step: Number, parts: Number) -> Nest:
        """Store the number of each update in sorted order: by part, and within a part by number."""
        e, update = self.e, self.e.add_axis(Axis("update", self.count))
        chunk = update.leaf // self.length
        target_row, in_range = self._index(update.leaf)
        mate = e.add_axis(Axis("mate", self.count, chunk * self.length, update.leaf))
        mate_row, mate_conditions = self._index(mate.leaf)
        mate_is_before = (*mate_conditions, Condition("equal", mate_row // step, target_row // step))
        rank = e.reduce("sum", [mate], e.select(mate_is_before, e.number(1, "int32"), e.number(0, "int32")))
        begin = (self._load(3, target_row // step, "int32"), self._load(1, chunk * parts + target_row // step, "int32"))
        place = sum((e.index_of(x) for x in (*begin, rank)), number(0))
        value = e.cast(e.intern("index", (), (update.leaf,), "int64"), "int32")
        return Nest((update,), (Store(order, (self.count,), value, place, in_range, "", "int32", ()),), e)

    def _part_nest(self, part: Axis, step: Number) -> Nest:
        """The owning work-item of each part applies its updates in order."""
        e, x = self.e, self.x
        begin = lowest(part.leaf * step, self.rows)
        row = e.add_axis(Axis("row", self.rows, begin, lowest(begin + step, self.rows)))
        ends = (e.index_of(self._load(3, target_row, "int32")) for target_row in (part.leaf, part.leaf + 1))
        each = e.add_axis(Axis("at", self.count, *ends))
        n = e.index_of(self._load(4, each.leaf, "int32"))
        target_row, _ = self._index(n)
        fill = Store(
            self.target, x.dims, self._base(row.leaf), e.linear(self._index_of(row.leaf), x), (), "", x.dtype, (row,)
        )
        place, combine = e.linear(self._index_of(target_row), x), self.updates.combine
        adds = Store(self.target, x.dims, self._value(n), place, (), combine, x.dtype, (each,), True)
        return Nest((part, *self.inner), (fill, adds), e)


def _power_of_two(size: int, limit: int) -> int:
    """The largest power of two that exceeds neither: powers of two, so that other sizes share the text."""
    power = 1
    while power * 2 <= min(size, limit):
        power *= 2
    return power
