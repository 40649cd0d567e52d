"""Lowers tensor primitives to simpler ones, for places without kernels for them; all dims are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from fluidlite.base.dtypes import FLOATS
from fluidlite.expr.functions import logical_and, where
from fluidlite.expr.indexing import add_at, checked, clamped, in_range, take
from fluidlite.expr.number import Number
from fluidlite.expr.reductions import reduce_sum, reduction_identity
from fluidlite.expr.step_order import order_table_kind
from fluidlite.expr.tensor import Tensor, broadcast_to, cast, tensor, topological_order
from fluidlite.expr.tracing import current
from fluidlite.expr.views import concat, flip, full, iota, move_axis, pad, reshape, shift, slices, transpose, unsqueeze


def lowered(results: list[Tensor]) -> list[Tensor]:
    """Apply :data:`RULES` to the tensors and all their subexpressions until none applies; dtypes stay the same."""
    done: dict[Tensor, Tensor] = {}

    def lower(x: Tensor, done: Mapping[Tensor, Tensor]) -> Tensor:
        args = tuple(done[arg] for arg in x.args)
        is_same = all(a is b for a, b in zip(args, x.args, strict=True))
        candidate = x if is_same else tensor(x.op, args, x.params, x.dims, x.dtype)
        rule = RULES.get(candidate.op)
        result = rule(candidate) if rule is not None else None
        return candidate if result is None or result is candidate else expand(cast(result, candidate.dtype))

    def expand(x: Tensor) -> Tensor:
        for each in topological_order([x]):
            if each not in done:
                done[each] = each  # its replacement may contain the tensor itself
                done[each] = lower(each, done)
        return done[x]

    return [expand(x) for x in results]


def size(d: Number) -> int:
    """The value of a known dim; it may be computed from attributes and values of the current call."""
    return int(d.evaluate(current().values))


def dims_of(x: Tensor) -> tuple[int, ...]:
    """The values of known dims."""
    return tuple(map(size, x.dims))


def _is_inside(index: Tensor, limit: int) -> Tensor:
    inside: Tensor = logical_and(index >= 0, index < limit)
    return inside


def _take(x: Tensor) -> Tensor | None:
    """To takes of rows: along axis 0, with indices of one dim that are checked or in range."""
    (source, index), (axis, mode) = x.args, x.params
    limit = size(source.dims[axis])
    if not limit and mode != "check":
        return full(x.dims, 0, x.dtype)
    if axis == 0 and index.rank == 1 and mode == "check" and index.dtype == "int64":
        return None
    index = cast(index, "int64")
    safe_index = index if mode == "check" or in_range(index, limit) else clamped(index, limit)
    rows = take(move_axis(source, axis, 0), reshape(safe_index, (-1,)), 0)
    rest = [d for k, d in enumerate(source.dims) if k != axis]
    parts = reshape(rows, (*index.dims, *rest))
    order = [*range(index.rank, index.rank + axis), *range(index.rank), *range(index.rank + axis, parts.rank)]
    parts = transpose(parts, order)
    if mode != "zero":
        return parts
    inside = reshape(_is_inside(index, limit), (*(1,) * axis, *index.dims, *(1,) * (source.rank - axis - 1)))
    return where(inside, parts, 0)


def _flat(index: Tensor, axis: int, dims: tuple[int, ...]) -> Tensor:
    """Indices along an axis as indices of the flattened elements of ``dims``."""
    total = index * prod(dims[axis + 1 :])
    for k in range(len(dims)):
        if k != axis:
            total = total + iota(index.dims, k) * prod(dims[k + 1 :])
    return total


def _pick(x: Tensor) -> Tensor:
    """To a take of flattened elements."""
    (source, index), (axis, mode) = x.args, x.params
    bound, index = size(source.dims[axis]), cast(index, "int64")
    # each index is checked along its axis: the flat index of an invalid one may be in range
    safe_index = checked(index, bound) if mode == "check" else clamped(index, bound)
    flat = _flat(safe_index, axis, dims_of(source))
    elements = reshape(take(reshape(source, (-1,)), reshape(flat, (-1,)), 0), x.dims)
    return where(_is_inside(index, bound), elements, 0) if mode == "zero" else elements


def _checked(x: Tensor) -> Tensor:
    """To a take from an iota, which checks the indices."""
    (index,), (bound,) = x.args, x.params
    values = take(iota((bound,), 0), reshape(cast(index, "int64"), (-1,)), 0)
    return cast(reshape(values, index.dims), index.dtype)


def _rows(x: Tensor, axis: int, index: Tensor) -> Tensor:
    """Reshape updates to a matrix with one row for each element of ``index``, whose dims begin at ``axis``."""
    order = [*range(axis, axis + index.rank), *range(axis), *range(axis + index.rank, x.rank)]
    return reshape(transpose(x, order), (prod(dims_of(index)), -1))


def _add_at(x: Tensor) -> Tensor:
    """To ``add_rows``, whose indices are all in range; rows of invalid indices are 0."""
    (updates, index, *base), (axis,) = x.args, x.params
    bound, count = size(x.dims[axis]), prod(dims_of(index))
    begin = base[0] if base else full(x.dims, 0, x.dtype)
    if not prod(dims_of(x)) or not count:
        return begin
    flat = reshape(cast(index, "int64"), (count,))
    rows = where(unsqueeze(_is_inside(flat, bound), 1), _rows(updates, axis, index), 0)
    matrix = reshape(move_axis(begin, axis, 0), (bound, -1))
    total = tensor("add_rows", (rows, clamped(flat, bound), matrix), (), (bound, rows.dims[1]), x.dtype)
    rest = [d for k, d in enumerate(x.dims) if k != axis]
    return move_axis(reshape(total, (bound, *rest)), 0, axis)


def _set_at(x: Tensor) -> Tensor | None:
    """To a ``set_at`` of rows along axis 0."""
    (source, updates, index), (axis,) = x.args, x.params
    if not prod(dims_of(x)) or not prod(dims_of(updates)):
        return source
    if x.rank == 2 and axis == 0 and index.rank == 1:
        return None
    bound, flat = size(x.dims[axis]), reshape(index, (prod(dims_of(index)),))
    rows = reshape(move_axis(source, axis, 0), (bound, -1))
    matrix = tensor("set_at", (rows, _rows(updates, axis, index), flat), (0,), rows.dims, x.dtype)
    rest = [d for k, d in enumerate(x.dims) if k != axis]
    return move_axis(reshape(matrix, (bound, *rest)), 0, axis)


def _put(x: Tensor) -> Tensor:
    """To an ``add_at`` of flattened elements."""
    (updates, index, *base), (axis,) = x.args, x.params
    bound, index = size(x.dims[axis]), cast(index, "int64")
    if not prod(dims_of(x)) or not prod(dims_of(index)):
        return base[0] if base else full(x.dims, 0, x.dtype)
    flat = _flat(clamped(index, bound), axis, dims_of(x))
    valid = where(_is_inside(index, bound), updates, 0)
    begin = reshape(base[0], (-1, 1)) if base else None
    total = add_at(reshape(valid, (-1, 1)), reshape(flat, (-1,)), 0, prod(dims_of(x)), begin)
    return reshape(total, x.dims)


def _scan(x: Tensor) -> Tensor | None:
    """To log2(length) products with the tensor shifted by 1, 2, 4, ... (Hillis-Steele scan)."""
    (source,), (kind, axis, reverse, exclusive) = x.args, x.params
    if kind == "sum":
        return None
    length = size(x.dims[axis])
    if kind != "prod" or not length:
        return x if length else source
    products = flip(source, axis) if reverse else source
    if exclusive:
        products = shift(products, axis, 1, 1)
    step = 1
    while step < length:
        products, step = products * shift(products, axis, step, 1), 2 * step
    return flip(products, axis) if reverse else products


def _recur(x: Tensor) -> Tensor:
    """To a Hillis-Steele scan over pairs of factor and summand."""
    (a, b), (axis, reverse) = x.args, x.params
    if reverse:
        a, b = flip(a, axis), flip(b, axis)
    step = 1
    while step < size(x.dims[axis]):
        a, b, step = a * shift(a, axis, step, 1), b + a * shift(b, axis, step, 0), 2 * step
    return flip(b, axis) if reverse else b


def _pad(x: Tensor) -> Tensor | None:
    """Interior padding to padding along new axes; negative counts to a slice."""
    (source, filler), (low, high, between) = x.args, x.params
    lows, highs = [size(n) for n in low], [size(n) for n in high]
    if not prod(dims_of(x)) or not prod(dims_of(source)):
        return broadcast_to(cast(filler, x.dtype), x.dims)
    if any(between):
        wide, count = source, source.rank
        for axis, n in enumerate(between):
            if n:
                length, after = size(wide.dims[axis]), [0] * (count + 1)
                after[axis + 1] = n
                spread = pad(unsqueeze(wide, axis + 1), [0] * (count + 1), after, filler)
                dims = [length * (n + 1) if k == axis else d for k, d in enumerate(wide.dims)]
                spread = reshape(spread, dims)
                sizes_ = [length * (n + 1) - n if k == axis else d for k, d in enumerate(dims)]
                wide = slices(spread, [0] * count, sizes_)
        return pad(wide, lows, highs, filler)
    if min((*lows, *highs), default=0) < 0:
        starts = [max(-n, 0) for n in lows]
        sizes = [size(d) - max(-a, 0) - max(-b, 0) for d, a, b in zip(source.dims, lows, highs, strict=True)]
        if min(sizes) <= 0:  # no element remains
            return broadcast_to(cast(filler, x.dtype), x.dims)
        return pad(slices(source, starts, sizes), [max(n, 0) for n in lows], [max(n, 0) for n in highs], filler)
    return None


def _iota(x: Tensor) -> Tensor | None:
    """To an int64 iota of one dim, which is broadcast."""
    (axis,) = x.params
    if x.rank == 1 and x.dtype == "int64":
        return None
    counts = iota((x.dims[axis],), 0)
    reshaped = reshape(cast(counts, x.dtype), [d if k == axis else 1 for k, d in enumerate(x.dims)])
    return reshaped + full(x.dims, 0, x.dtype)


def _segment_of(x: Tensor) -> Tensor | None:
    """To the number of segments that begin at or before each row; the segments of a LoD are constants."""
    (offsets,) = x.args
    if offsets.op == "offsets":
        return None
    rows, count = x.dims[0], offsets.dims[0] - 1
    begins = slices(offsets, [1], [count])
    has_begun = cast(reshape(iota((rows,), 0), (rows, 1)) >= reshape(begins, (1, count)), "int64")
    return reduce_sum(has_begun, 1)


def _segment(x: Tensor) -> Tensor:
    """Sums to an ``add_at``; other kinds have no operator."""
    (source, offsets), (kind,) = x.args, x.params
    if kind != "sum":
        return x
    return add_at(source, tensor("segment_of", (offsets,), (), (source.dims[0],), "int64"), 0, x.dims[0])


def _window(x: Tensor) -> Tensor:
    """To a take of the elements of all windows."""
    (source,), (axis, stride, dilation) = x.args, x.params
    return take(source, _window_indices(x.dims[axis], x.dims[axis + 1], stride, dilation), axis)


def _window_indices(count: Number, taps: Number, stride: int, dilation: int) -> Tensor:
    """The index of each window element along the axis."""
    dims = (count, taps)
    return iota(dims, 0) * stride + iota(dims, 1) * dilation


def _unwindow(x: Tensor) -> Tensor:
    """To a sum over taps: each element takes its value from the window of which it is that tap, or 0."""
    (windows,), (axis, stride, dilation) = x.args, x.params
    count, taps = size(windows.dims[axis]), size(windows.dims[axis + 1])
    dims = (x.dims[axis], taps)
    tap = iota(dims, 1)
    begin = iota(dims, 0) - tap * dilation
    window = begin // stride
    is_valid = logical_and(_is_inside(window, count), begin == window * stride)
    rows = reshape(windows, (*windows.dims[:axis], count * taps, *windows.dims[axis + 2 :]))
    return reduce_sum(take(rows, where(is_valid, window * taps + tap, -1), axis, "zero"), axis + 1)


def _reduce(x: Tensor) -> Tensor | None:
    """Reductions of no elements to constants, and along no axis to the operand."""
    (source,), (kind, axes) = x.args, x.params
    if not prod(dims_of(x)):
        return full(x.dims, 0, x.dtype)
    if not axes:
        return source
    return None if prod(dims_of(source)) else full(x.dims, reduction_identity(kind, x.dtype), x.dtype)


def _contract(x: Tensor) -> Tensor | None:
    """To (batched) matmuls; axes that only one operand has are summed before."""
    (a, b), (a_axes, b_axes, out) = x.args, x.params
    if not prod(dims_of(x)) or not prod(dims_of(a)) or not prod(dims_of(b)):
        return full(x.dims, 0, x.dtype)
    a, a_axes = _sum_unshared(a, a_axes, b_axes + out)
    b, b_axes = _sum_unshared(b, b_axes, a_axes + out)
    batch = [n for n in out if n in a_axes and n in b_axes]
    if next((n for n in out if n not in batch), "") in b_axes:
        a, a_axes, b, b_axes = b, b_axes, a, a_axes
    inner = [n for n in a_axes if n in b_axes and n not in out]
    rows, columns = [n for n in out if n not in b_axes], [n for n in out if n not in a_axes]
    plain = len(batch) <= 1 and len(rows) == len(inner) == len(columns) == 1 and list(out) == [*batch, *rows, *columns]
    if plain and list(a_axes[: len(batch)]) == batch == list(b_axes[: len(batch)]):
        if x.dtype in FLOATS:
            is_same = a is x.args[0] and b is x.args[1] and x.params == (a_axes, b_axes, out)
            return None if is_same else tensor("contract", (a, b), (a_axes, b_axes, out), x.dims, x.dtype)
        at = len(batch)
        left = transpose(a, [a_axes.index(n) for n in (*batch, *rows, *inner)])
        right = transpose(b, [b_axes.index(n) for n in (*batch, *inner, *columns)])
        return reduce_sum(unsqueeze(left, at + 2) * unsqueeze(right, at), at + 1)
    length = {n: size(d) for names, t in ((a_axes, a), (b_axes, b)) for n, d in zip(names, t.dims, strict=True)}
    lead = "b" if batch else ""
    left, first = _matrices(a, a_axes, (batch, rows, inner), length, lead + "ij", lead + "ji")
    right, second = _matrices(b, b_axes, (batch, inner, columns), length, lead + "jk", lead + "kj")
    dims = [prod(length[n] for n in names) for names in (batch, rows, columns)][0 if batch else 1 :]
    product = tensor("contract", (left, right), (first, second, lead + "ik"), dims, x.dtype)
    order = [*batch, *rows, *columns]
    return transpose(reshape(product, [length[n] for n in order]), [order.index(n) for n in out])


def _matrices(
    x: Tensor, names: str, groups: tuple[list[str], ...], length: Mapping[str, int], plain: str, flipped: str
) -> tuple[Tensor, str]:
    """An operand as matrices [batch, rows, columns] of three groups of axes, or transposed if it is stored so."""
    batch, rows, columns = groups
    letters = flipped if list(names) == [*batch, *columns, *rows] else plain
    order = [*batch, *columns, *rows] if letters == flipped else [*batch, *rows, *columns]
    sizes = [prod(length[n] for n in group) for group in ((columns, rows) if letters == flipped else (rows, columns))]
    lead = [prod(length[n] for n in batch)] if batch else []
    return reshape(transpose(x, [names.index(n) for n in order]), [*lead, *sizes]), letters


def _sum_unshared(x: Tensor, names: str, shared: str) -> tuple[Tensor, str]:
    """Sum an operand over the axes that are not in ``shared``."""
    axes = tuple(k for k, name in enumerate(names) if name not in shared)
    return (reduce_sum(x, axes) if axes else x), "".join(n for n in names if n in shared)


def _concat(x: Tensor) -> Tensor | None:
    """Drop parts without elements."""
    parts = [part for part in x.args if prod(dims_of(part))]
    if not parts:
        return full(x.dims, 0, x.dtype)
    return None if len(parts) == len(x.args) else concat(parts, x.params[0])


def _reshape(x: Tensor) -> Tensor | None:
    """The reshape of a number to a broadcast."""
    (source,) = x.args
    return tensor("broadcast", (source,), ((),), x.dims, x.dtype) if source.op == "number" else None


def _arg(x: Tensor) -> Tensor | None:
    """0 if there are no elements."""
    return None if prod(dims_of(x)) else full(x.dims, 0, x.dtype)


def _arrange(x: Tensor) -> Tensor:
    """To a take of rows by a constant table."""
    (source, offsets), (kind, inverse, reverse) = x.args, x.params
    table = tensor("step_table", (offsets,), (order_table_kind(kind, inverse), reverse, x.dims[0]), x.dims[:1], "int64")
    return take(source, table, 0)


RULES: dict[str, Callable[[Tensor], Tensor | None]] = {
    "take": _take,
    "pick": _pick,
    "add_at": _add_at,
    "put": _put,
    "checked": _checked,
    "set_at": _set_at,
    "scan": _scan,
    "recur": _recur,
    "pad": _pad,
    "iota": _iota,
    "segment": _segment,
    "segment_of": _segment_of,
    "reduce": _reduce,
    "contract": _contract,
    "concat": _concat,
    "arg": _arg,
    "reshape": _reshape,
    "window": _window,
    "unwindow": _unwindow,
    "arrange": _arrange,
}
"""By primitive: the function that lowers a tensor; it returns None where an operator computes the tensor."""
