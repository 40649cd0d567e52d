"""Contractions as matrix products (matmul): the axes that are rows and columns, and copies of operands, in parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from fluidlite.base.lru_cache import LRUCache
from fluidlite.render.memory import merges, strided, writable

MAX_COPIED_BYTES = 4 << 20
"""Bytes of an operand that are copied to matrices at a time; windows contain each element several times."""
MIN_MATMUL_PRODUCTS = 1 << 15
"""Multiplications of a matrix product from which a batch is computed one by one with larger matrices."""
MIN_RUN = 16
"""Contiguous elements from which einsum's inner loop is efficient."""
MAX_SEQUENTIAL_TERMS = 1 << 10
"""Terms that are summed sequentially, without a library's blocking: more lose accuracy."""


def contract(xp: Any, a: Any, b: Any, a_letters: str, b_letters: str, out: str, into: Any = None) -> Any:
    """Contract two operands; a letter names each axis of the operands and of the result, as in einsum.

    ``into``: an array to which the result may be written. The axes of the result before its rows and columns are a
    batch. If the matrices of a batch are too small, all free axes of an operand become its rows, or columns.
    """
    a, b = _summed(xp, a, a_letters, b_letters + out), _summed(xp, b, b_letters, a_letters + out)
    return _contract(xp, a, b, a_letters, b_letters, out, into if writable(into, a) else None)


def _summed(xp: Any, x: Any, names: str, other_letters: str) -> Any:
    """An operand, summed over the axes that neither the other one nor the result has."""
    summed_axes = tuple(k for k in _exclusive_axes(names, other_letters) if x.shape[k] != 1)
    return xp.sum(x, axis=summed_axes, dtype=x.dtype, keepdims=True) if summed_axes else x


@lru_cache(1024)
def _exclusive_axes(names: str, other_letters: str) -> tuple[int, ...]:
    return tuple(k for k, name in enumerate(names) if name not in other_letters)


def _contract(xp: Any, a: Any, b: Any, a_letters: str, b_letters: str, out: str, into: Any) -> Any:
    """Contract operands whose axes are all shared, in the result, or of length 1."""
    layouts = _layout(a_letters, a), _layout(b_letters, b), None if into is None else _layout(out, into)
    key = (*layouts, out, MAX_COPIED_BYTES, MIN_MATMUL_PRODUCTS)
    plan = _plans.get(key, lambda: _make_plan(*key))
    if plan.cut is not None:
        return _contract_in_parts(xp, a, b, a_letters, b_letters, out, into, plan.cut)
    if plan.in_place:
        # a new array of einsum would have the operands' axis order
        result = into if into is not None else xp.empty(plan.shape, dtype=a.dtype)
        return np.einsum(f"{a_letters},{b_letters}->{out}", a, b, out=result)
    left, right = (b, a) if plan.swapped else (a, b)
    matrices = plan.left.of(xp, left), plan.right.of(xp, right)
    if plan.into:
        xp.matmul(*matrices, xp.reshape(into, plan.into, copy=False))
        return into
    result = xp.reshape(xp.matmul(*matrices), plan.shape)
    if plan.order is not None:
        result = xp.permute_dims(result, plan.order)
    return result if plan.dims is None else xp.reshape(result, plan.dims)


class _Operand(NamedTuple):
    """The memory layout of an operand, with a letter for each axis; ``strides`` is None if they are unknown."""

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

    def squeezed_layout(self) -> _Operand:
        """The layout without axes of length 1."""
        axes = [k for k, size in enumerate(self.shape) if size != 1]
        strides = None if self.strides is None else tuple(self.strides[k] for k in axes)
        return _Operand("".join(self.names[k] for k in axes), tuple(self.shape[k] for k in axes), strides, self.item)

    def is_view(self, *groups: Sequence[str]) -> bool:
        """Whether a reshape to matrices needs no copy, and BLAS accepts these: one axis is contiguous."""
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
        """The axis with the smallest stride, the longest of equal ones: copies iterate along it."""
        axes = [n for n in self.names if self.size(n) > 1 and self.stride(n)]
        return min(axes, key=lambda n: (abs(self.stride(n)), -self.size(n)), default="")


def _layout(names: str, x: Any) -> _Operand:
    if strided(x):
        return _Operand(names, x.shape, x.strides, x.itemsize)
    return _Operand(names, tuple(x.shape), None, 0)


class _Matrices(NamedTuple):
    """The steps that make an operand matrices [lead..., rows, columns]; missing axes of lead have length 1.

    ``squeezed``: first reshape, without axes of length 1; None if there are none.
    ``order``: then permute; ``dims``: then reshape.
    ``copied``: True if that reshape copies; None if the namespace decides.
    ``transposed``: finally permute a copy of the form [lead..., columns, rows]; None if it has the right form.
    """

    squeezed: tuple[int, ...] | None
    order: tuple[int, ...] | None
    dims: tuple[int, ...]
    copied: bool | None
    transposed: tuple[int, ...] | None

    def of(self, xp: Any, x: Any) -> Any:
        if self.squeezed is not None:
            x = xp.reshape(x, self.squeezed)
        if self.order is not None:
            x = xp.permute_dims(x, self.order)
        x = xp.reshape(x, self.dims, copy=self.copied)
        return x if self.transposed is None else xp.permute_dims(x, self.transposed)


def _matrices(layout: _Operand, lead: Sequence[str], rows: Sequence[str], columns: Sequence[str]) -> _Matrices:
    x = layout.squeezed_layout()
    copied = x.strides is not None and not x.is_view(rows, columns)
    transposed = copied and x.dense() in rows
    groups = (columns, rows) if transposed else (rows, columns)
    order = tuple(x.names.index(n) for group in (lead, *groups) for n in group if n in x.names)
    return _Matrices(
        None if x.shape == layout.shape else x.shape,
        _unless_same(order),
        (*map(x.size, lead), *(prod(map(x.size, group)) for group in groups)),
        True if copied else None,
        (*range(len(lead)), len(lead) + 1, len(lead)) if transposed else None,
    )


def _unless_same(order: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if order == tuple(range(len(order))) else order


class _Split(NamedTuple):
    """An axis along which a contraction is computed in parts of ``step`` elements."""

    name: str
    step: int


class _MatmulPlan(NamedTuple):
    """How a contraction of arrays with some layouts is computed.

    ``cut``: the axis to split, if it is computed in parts; all other fields are unused then.
    ``in_place``: whether einsum reads the operands without copies; only ``shape`` is used then.
    ``swapped``: whether the second operand has the rows.
    ``left``, ``right``: how the operands become matrices.
    ``into``: the dims under which matmul can write to the output array; None if it cannot.
    ``shape``, ``order``, ``dims``: else the dims of the products, then a permutation, then a reshape (None: unchanged).
    """

    cut: _Split | None
    in_place: bool
    swapped: bool
    left: _Matrices
    right: _Matrices
    into: tuple[int, ...] | None
    shape: tuple[int, ...]
    order: tuple[int, ...] | None
    dims: tuple[int, ...] | None


_plans: LRUCache[_MatmulPlan] = LRUCache(4096, "plans of contractions", 8 << 20)


def _make_plan(
    a: _Operand, b: _Operand, into: _Operand | None, letters: str, max_bytes: int, minimum: int
) -> _MatmulPlan:
    sizes = a.sizes | b.sizes
    dims = tuple(sizes[n] for n in letters)
    out = "".join(n for n in letters if sizes[n] != 1)
    free = [n for n in out if (a.size(n) != 1) != (b.size(n) != 1)]
    swapped = bool(free) and a.size(free[-1]) != 1  # the second operand has the columns
    operands = (b, a) if swapped else (a, b)
    left, right = (x.squeezed_layout() for x in operands)
    lead, rows, columns, inner = _groups(left, right, out, minimum)
    order = [*lead, *rows, *columns]
    target = None
    if into is not None and order == list(out) and into.squeezed_layout().is_view(rows, columns):
        target = (*(sizes[n] for n in lead), prod(sizes[n] for n in rows), prod(sizes[n] for n in columns))
    shape, permutation = tuple(sizes[n] for n in order), _unless_same(tuple(order.index(n) for n in out))
    copied = _largest_copy(left, right, (rows, inner), (inner, columns))
    in_place = copied is not None and _reads_once(left, right, rows, columns, out)
    if in_place:
        cut, shape = _cut_sum(sizes, inner), dims
    else:
        cut = _cut_of_copy(left, right, copied, out, max_bytes)
    return _MatmulPlan(
        cut,
        in_place,
        swapped,
        _matrices(operands[0], lead, rows, inner),
        _matrices(operands[1], lead, inner, columns),
        target,
        shape,
        permutation,
        None if len(out) == len(letters) else dims,
    )


def _groups(
    left: _Operand, right: _Operand, out: str, minimum: int
) -> tuple[list[str], list[str], list[str], list[str]]:
    """The axes of the batch, of rows, of columns, and the summed axes."""
    sizes = left.sizes | right.sizes
    batch = [n for n in out if n in left.names and n in right.names]
    inner = [n for n in left.names if n in right.names and n not in out]
    larger = max(left, right, key=lambda x: prod(x.shape))
    if larger.strides is not None:  # by descending strides
        inner.sort(key=lambda n: -abs(larger.stride(n)))
    columns = _free_run(out, len(out), right.names, batch)
    rows = _free_run(out, len(out) - len(columns), left.names, batch)
    lead = [n for n in out if n not in rows and n not in columns]
    if set(lead) != set(batch) and prod(sizes[n] for n in (*rows, *columns, *inner)) < minimum:
        lead, rows = batch, [n for n in out if n in left.names and n not in batch]
        columns = [n for n in out if n in right.names and n not in batch]
    return lead, rows, columns, inner


def _free_run(out: str, end: int, names: str, batch: Sequence[str]) -> list[str]:
    """The longest run of result axes before ``end`` that only one operand has."""
    begin = end
    while begin and out[begin - 1] in names and out[begin - 1] not in batch:
        begin -= 1
    return list(out[begin:end])


def _largest_copy(
    left: _Operand, right: _Operand, left_groups: Sequence[Sequence[str]], right_groups: Sequence[Sequence[str]]
) -> _Operand | None:
    """The largest operand that must be copied to become matrices; None if there is none, or strides are unknown."""
    if left.strides is None or right.strides is None:
        return None
    copied = [x for x, groups in ((left, left_groups), (right, right_groups)) if not x.is_view(*groups)]
    return max(copied, key=lambda x: prod(x.shape), default=None)


def _reads_once(left: _Operand, right: _Operand, rows: Sequence[str], columns: Sequence[str], out: str) -> bool:
    """Whether each element is multiplied only once, along contiguous lines, so that copies do not pay off.

    Example: a matrix-vector product for each channel, with contiguous channels in both operands.
    """
    if not out or 1 not in (prod(map(left.size, rows)), prod(map(right.size, columns))):
        return False
    return left.size(out[-1]) >= MIN_RUN and left.stride(out[-1]) == left.item and right.stride(out[-1]) == right.item


def _cut_sum(sizes: Mapping[str, int], inner: Sequence[str]) -> _Split | None:
    """Split the longest summed axis if too many terms would be summed sequentially."""
    summed = prod(sizes[n] for n in inner)
    if summed <= MAX_SEQUENTIAL_TERMS:
        return None
    name = max(inner, key=sizes.__getitem__)
    return _Split(name, max(1, sizes[name] * MAX_SEQUENTIAL_TERMS // summed))


def _cut_of_copy(left: _Operand, right: _Operand, copied: _Operand | None, out: str, max_bytes: int) -> _Split | None:
    """Split the outermost axis of a large copied operand; a summed axis only if adding the parts is cheap."""
    if copied is None:
        return None
    sizes = left.sizes | right.sizes
    nbytes, result = prod(copied.shape) * copied.item, prod(sizes[n] for n in out) * left.item
    if nbytes <= max_bytes:
        return None
    can_cut_sum = nbytes // max_bytes * result <= nbytes  # adding the parts is cheap
    name = max((n for n in copied.names if can_cut_sum or n in out), key=lambda n: abs(copied.stride(n)), default="")
    return _Split(name, max(1, sizes[name] * max_bytes // nbytes)) if name else None


def _contract_in_parts(xp: Any, a: Any, b: Any, a_axes: str, b_axes: str, out: str, into: Any, cut: _Split) -> Any:
    sizes = _layout(a_axes, a).sizes | _layout(b_axes, b).sizes
    if into is None and cut.name in out:
        into = xp.empty(tuple(sizes[n] for n in out), dtype=a.dtype)
    total = None
    for begin in range(0, sizes[cut.name], cut.step):
        part = slice(begin, begin + cut.step)
        x, y = _part(a, a_axes, cut.name, part), _part(b, b_axes, cut.name, part)
        target = _part(into, out, cut.name, part) if cut.name in out else None
        value = _contract(xp, x, y, a_axes, b_axes, out, target)
        if target is None:
            total = value if total is None else xp.add(total, value, out=total)
        elif value is not target:
            target[...] = value
    if into is None or cut.name in out:
        return total if into is None else into
    into[...] = total
    return into


def _part(x: Any, names: str, name: str, part: slice) -> Any:
    """A slice of an array along an axis, if it has that axis."""
    return x[(*(slice(None),) * names.index(name), part, ...)] if name in names else x
