"""Sums of products as products of matrices: which axes are rows and columns, and what is copied for that, in parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from fluidlite.base.lru_cache import LRUCache
from fluidlite.render.memory import merges, strided, writable

COPIED = 4 << 20
"""Bytes of an operand that are copied at a time, so as to be matrices: windows have each element several times."""
ENOUGH = 1 << 15
"""Products of elements from which on a product of matrices is worth a call of its own."""
LINE = 16
"""Elements side by side from which on a loop over them is worth beginning."""
IN_ORDER = 1 << 10
"""Numbers that are added one after the other, at most, where no library adds them."""


def contract(xp: Any, a: Any, b: Any, mine: str, theirs: str, out: str, into: Any = None) -> Any:
    """Sums of products: a letter names each axis of the operands and of the result.

    ``into`` is where the result may be written. What is in front of the rows and columns of the result is a batch of
    products; where these are too small, all that one operand has is its rows, or columns.
    """
    a, b = _summed(xp, a, mine, theirs + out), _summed(xp, b, theirs, mine + out)
    return _contracted(xp, a, b, mine, theirs, out, into if writable(into, a) else None)


def _summed(xp: Any, x: Any, names: str, others: str) -> Any:
    """An operand of a product, summed over the axes that it alone has."""
    alone = tuple(k for k in _alone(names, others) if x.shape[k] != 1)
    return xp.sum(x, axis=alone, dtype=x.dtype, keepdims=True) if alone else x


@lru_cache(1024)
def _alone(names: str, others: str) -> tuple[int, ...]:
    return tuple(k for k, name in enumerate(names) if name not in others)


def _contracted(xp: Any, a: Any, b: Any, mine: str, theirs: str, out: str, into: Any) -> Any:
    """The same of operands of which each axis is the other's, or the result's, or is of 1."""
    layouts = _layout(mine, a), _layout(theirs, b), None if into is None else _layout(out, into)
    key = (*layouts, out, COPIED, ENOUGH)
    plan = _plans.get(key, lambda: _planned(*key))
    if plan.cut is not None:
        return _in_parts(xp, a, b, mine, theirs, out, into, plan.cut)
    if plan.in_place:
        made = into if into is not None else xp.empty(plan.shape, dtype=a.dtype)  # einsum's own has operands' order
        return np.einsum(f"{mine},{theirs}->{out}", a, b, out=made)
    left, right = (b, a) if plan.swapped else (a, b)
    matrices = plan.left.of(xp, left), plan.right.of(xp, right)
    if plan.into:
        xp.matmul(*matrices, xp.reshape(into, plan.into, copy=False))
        return into
    made = xp.reshape(xp.matmul(*matrices), plan.shape)
    if plan.order is not None:
        made = xp.permute_dims(made, plan.order)
    return made if plan.dims is None else xp.reshape(made, plan.dims)


class _Layout(NamedTuple):
    """How an array lies in memory; each axis has a letter. Strides are None where nobody knows."""

    names: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    item: int

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of its axes."""
        return dict(zip(self.names, self.shape, strict=True))

    def size(self, name: str) -> int:
        return self.shape[self.names.index(name)] if name in self.names else 1

    def stride(self, name: str) -> int:
        return self.strides[self.names.index(name)] if self.strides is not None and name in self.names else 0

    def needed(self) -> _Layout:
        """Without axes of 1."""
        kept = [k for k, size in enumerate(self.shape) if size != 1]
        strides = None if self.strides is None else tuple(self.strides[k] for k in kept)
        return _Layout("".join(self.names[k] for k in kept), tuple(self.shape[k] for k in kept), strides, self.item)

    def is_view(self, *groups: Sequence[str]) -> bool:
        """Whether it is matrices as it lies, of which a library takes one axis to be dense."""
        axes = [[(self.size(n), self.stride(n)) for n in group] for group in groups]
        if not all(map(merges, axes)):
            return False
        (rows, down), (columns, across) = (
            (prod(size for size, _ in group), next((step for size, step in reversed(group) if size != 1), self.item))
            for group in axes
        )
        return (across == self.item and (rows == 1 or down >= columns * self.item)) or (
            down == self.item and (columns == 1 or across >= rows * self.item)
        )

    def dense(self) -> str:
        """The axis whose elements lie closest, of several the longest: copies go along it."""
        some = [n for n in self.names if self.size(n) > 1 and self.stride(n)]
        return min(some, key=lambda n: (abs(self.stride(n)), -self.size(n)), default="")


def _layout(names: str, x: Any) -> _Layout:
    if strided(x):
        return _Layout(names, x.shape, x.strides, x.itemsize)
    return _Layout(names, tuple(x.shape), None, 0)


class _Matrices(NamedTuple):
    """How an operand becomes matrices, [lead..., rows, columns], with an axis of 1 for each of lead that it has not.

    ``kept``: the sizes of its axes without those of 1; None if there are none.
    ``order``, ``dims``: its axes then, and what these become.
    ``copied``: whether that takes memory; None if the namespace decides.
    ``turned``: the order of the axes of what is copied as [lead..., columns, rows].
    """

    kept: tuple[int, ...] | None
    order: tuple[int, ...] | None
    dims: tuple[int, ...]
    copied: bool | None
    turned: tuple[int, ...] | None

    def of(self, xp: Any, x: Any) -> Any:
        if self.kept is not None:
            x = xp.reshape(x, self.kept)
        if self.order is not None:
            x = xp.permute_dims(x, self.order)
        x = xp.reshape(x, self.dims, copy=self.copied)
        return x if self.turned is None else xp.permute_dims(x, self.turned)


def _matrices(whole: _Layout, lead: Sequence[str], rows: Sequence[str], columns: Sequence[str]) -> _Matrices:
    x = whole.needed()
    copied = x.strides is not None and not x.is_view(rows, columns)
    turned = copied and x.dense() in rows
    groups = (columns, rows) if turned else (rows, columns)
    order = tuple(x.names.index(n) for group in (lead, *groups) for n in group if n in x.names)
    return _Matrices(
        None if x.shape == whole.shape else x.shape,
        _unless_same(order),
        (*map(x.size, lead), *(prod(map(x.size, group)) for group in groups)),
        True if copied else None,
        (*range(len(lead)), len(lead) + 1, len(lead)) if turned else None,
    )


def _unless_same(order: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if order == tuple(range(len(order))) else order


class _Cut(NamedTuple):
    """The axis along which a contraction is computed in parts of ``step``."""

    name: str
    step: int


class _Plan(NamedTuple):
    """What a contraction of arrays of some layouts is.

    ``cut``: if it is computed in parts; nothing else counts then.
    ``in_place``: whether operands are read where they are, without matrices; but for ``shape`` nothing else counts
    then.
    ``swapped``: whether the second operand has the rows.
    ``left``, ``right``: the operands as matrices.
    ``into``: the dims under which the result is written where it is to be; None if it cannot be.
    ``shape``, ``order``, ``dims``: else the dims of the products, the order of these, and what they are then (None: as
    they are).
    """

    cut: _Cut | None
    in_place: bool
    swapped: bool
    left: _Matrices
    right: _Matrices
    into: tuple[int, ...] | None
    shape: tuple[int, ...]
    order: tuple[int, ...] | None
    dims: tuple[int, ...] | None


_plans: LRUCache[_Plan] = LRUCache(4096, "plans of contractions", 8 << 20)


def _planned(a: _Layout, b: _Layout, into: _Layout | None, letters: str, most: int, enough: int) -> _Plan:
    sizes = a.sizes | b.sizes
    whole = tuple(sizes[n] for n in letters)
    out = "".join(n for n in letters if sizes[n] != 1)
    free = [n for n in out if (a.size(n) != 1) != (b.size(n) != 1)]
    swapped = bool(free) and a.size(free[-1]) != 1  # the columns are of the second one
    both = (b, a) if swapped else (a, b)
    left, right = (x.needed() for x in both)
    lead, rows, columns, inner = _groups(left, right, out, enough)
    order = [*lead, *rows, *columns]
    target = None
    if into is not None and order == list(out) and into.needed().is_view(rows, columns):
        target = (*(sizes[n] for n in lead), prod(sizes[n] for n in rows), prod(sizes[n] for n in columns))
    made, turn = tuple(sizes[n] for n in order), _unless_same(tuple(order.index(n) for n in out))
    copied = _copied(left, right, (rows, inner), (inner, columns))
    in_place = copied is not None and _reads_once(left, right, rows, columns, out)
    if in_place:
        cut, made = _cut_sum(sizes, inner), whole
    else:
        cut = _cut(left, right, copied, out, most)
    return _Plan(
        cut,
        in_place,
        swapped,
        _matrices(both[0], lead, rows, inner),
        _matrices(both[1], lead, inner, columns),
        target,
        made,
        turn,
        None if len(out) == len(letters) else whole,
    )


def _groups(left: _Layout, right: _Layout, out: str, enough: int) -> tuple[list[str], list[str], list[str], list[str]]:
    """The axes of the products: those of the batch, rows, columns, and those that are summed."""
    sizes = left.sizes | right.sizes
    batch = [n for n in out if n in left.names and n in right.names]
    inner = [n for n in left.names if n in right.names and n not in out]
    larger = max(left, right, key=lambda x: prod(x.shape))
    if larger.strides is not None:  # in the order in which they lie
        inner.sort(key=lambda n: -abs(larger.stride(n)))
    columns = _run(out, len(out), right.names, batch)
    rows = _run(out, len(out) - len(columns), left.names, batch)
    lead = [n for n in out if n not in rows and n not in columns]
    if set(lead) != set(batch) and prod(sizes[n] for n in (*rows, *columns, *inner)) < enough:
        lead, rows = batch, [n for n in out if n in left.names and n not in batch]
        columns = [n for n in out if n in right.names and n not in batch]
    return lead, rows, columns, inner


def _run(out: str, end: int, names: str, batch: Sequence[str]) -> list[str]:
    """The axes of a result in front of ``end`` that one operand alone has."""
    begin = end
    while begin and out[begin - 1] in names and out[begin - 1] not in batch:
        begin -= 1
    return list(out[begin:end])


def _copied(
    left: _Layout, right: _Layout, mine: Sequence[Sequence[str]], theirs: Sequence[Sequence[str]]
) -> _Layout | None:
    """The larger operand of those that are copied, so as to be matrices; None if nobody knows, or none is."""
    if left.strides is None or right.strides is None:
        return None
    copied = [x for x, groups in ((left, mine), (right, theirs)) if not x.is_view(*groups)]
    return max(copied, key=lambda x: prod(x.shape), default=None)


def _reads_once(left: _Layout, right: _Layout, rows: Sequence[str], columns: Sequence[str], out: str) -> bool:
    """Whether each element is multiplied once, beside others of a line: no copy of it would be worth it.

    So it is in products of matrices and vectors, one for each channel, if channels lie side by side everywhere.
    """
    if not out or 1 not in (prod(map(left.size, rows)), prod(map(right.size, columns))):
        return False
    return left.size(out[-1]) >= LINE and left.stride(out[-1]) == left.item and right.stride(out[-1]) == right.item


def _cut_sum(sizes: Mapping[str, int], inner: Sequence[str]) -> _Cut | None:
    """The longest axis that is summed, if too many numbers would be added in order."""
    summed = prod(sizes[n] for n in inner)
    if summed <= IN_ORDER:
        return None
    name = max(inner, key=sizes.__getitem__)
    return _Cut(name, max(1, sizes[name] * IN_ORDER // summed))


def _cut(left: _Layout, right: _Layout, copied: _Layout | None, out: str, most: int) -> _Cut | None:
    """The outermost axis of the operand that is copied, if that is large, that costs nothing else to cut."""
    if copied is None:
        return None
    sizes = left.sizes | right.sizes
    nbytes, result = prod(copied.shape) * copied.item, prod(sizes[n] for n in out) * left.item
    if nbytes <= most:
        return None
    adds = nbytes // most * result <= nbytes  # sums of parts are small
    name = max((n for n in copied.names if adds or n in out), key=lambda n: abs(copied.stride(n)), default="")
    return _Cut(name, max(1, sizes[name] * most // nbytes)) if name else None


def _in_parts(xp: Any, a: Any, b: Any, mine: str, theirs: str, out: str, into: Any, cut: _Cut) -> Any:
    sizes = _layout(mine, a).sizes | _layout(theirs, b).sizes
    if into is None and cut.name in out:
        into = xp.empty(tuple(sizes[n] for n in out), dtype=a.dtype)
    total = None
    for at in range(0, sizes[cut.name], cut.step):
        part = slice(at, at + cut.step)
        x, y = _part(a, mine, cut.name, part), _part(b, theirs, cut.name, part)
        where = _part(into, out, cut.name, part) if cut.name in out else None
        made = _contracted(xp, x, y, mine, theirs, out, where)
        if where is None:
            total = made if total is None else xp.add(total, made, out=total)
        elif made is not where:
            where[...] = made
    if into is None or cut.name in out:
        return total if into is None else into
    into[...] = total
    return into


def _part(x: Any, names: str, name: str, part: slice) -> Any:
    """Some elements of an axis, if it has it."""
    return x[(*(slice(None),) * names.index(name), part, ...)] if name in names else x
