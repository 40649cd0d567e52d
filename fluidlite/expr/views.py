"""Primitives that move elements: reshape, transpose, slice, pad, concat, and sources such as iota."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.base.dtypes import compute_dtype
from fluidlite.expr.number import Number, Numeric, highest, lowest, number, product
from fluidlite.expr.tensor import (
    Dims,
    Operand,
    Tensor,
    broadcast_to,
    cast,
    constant,
    meet,
    need,
    refuse,
    same_dims,
    slot_of,
    tensor,
)
from fluidlite.expr.tracing import current


def normal_axis(axis: int, rank: int) -> int:
    """The axis counted from 0; raises ProgramError if it is out of range."""
    if not -rank <= axis < rank:
        refuse(f"axis {axis} is none of {rank} dims")
    return axis % rank


def normal_axes(axes: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Distinct axes counted from 0, sorted; None: all."""
    if axes is None:
        return tuple(range(rank))
    axes_list = [axes] if isinstance(axes, int) else list(axes)
    normal = sorted(normal_axis(axis, rank) for axis in axes_list)
    if len(set(normal)) != len(axes_list):
        refuse(f"axes {axes_list} name one twice")
    return tuple(normal)


def reshape(x: Tensor, dims: Sequence[Numeric]) -> Tensor:
    """Change the dims, with the elements in the same order; one dim may be -1: it is inferred."""
    target = [number(d) for d in dims]
    open_ = [i for i, d in enumerate(target) if d.key == "-1"]
    if len(open_) > 1:
        refuse(f"reshape to {target} has two open dims")
    if open_:
        left = product(d for i, d in enumerate(target) if i not in open_)
        target[open_[0]] = _quotient(x.dims, [d for i, d in enumerate(target) if i not in open_])
        fits = product(x.dims) == product(target)
        need(fits, slot_of(x), f"a multiple of {left} elements, to be reshaped to {target}")
    if tuple([d.key for d in target]) == x.sizes:
        return x
    if not open_ and not current().assume(product(x.dims) == product(target)):
        refuse(f"reshape of {list(x.dims)} to {target} changes the number of elements")
    if x.op == "reshape":
        return reshape(x.args[0], target)
    return tensor("reshape", (x,), (), target, x.dtype)


def _quotient(above: Sequence[Number], below: Sequence[Number]) -> Number:
    """The quotient of two products; common factors cancel."""
    rest, factors = list(below), []
    for factor in above:
        same = next((i for i, d in enumerate(rest) if d.key == factor.key), None)
        if same is None:
            factors.append(factor)
        else:
            del rest[same]
    return product(factors) // product(rest)


def squeeze(x: Tensor, axes: int | Sequence[int]) -> Tensor:
    """Remove axes of size 1."""
    removed = normal_axes(axes, x.rank)
    if not all(x.dims[axis].key == "1" or current().assume(x.dims[axis] == 1) for axis in removed):
        refuse(f"squeeze of {list(x.dims)} along {removed}: not all are 1")
    return reshape(x, [d for axis, d in enumerate(x.dims) if axis not in removed])


def unsqueeze(x: Tensor, axes: int | Sequence[int]) -> Tensor:
    """Insert axes of size 1; ``axes`` are axes of the result."""
    count = 1 if isinstance(axes, int) else len(axes)
    new, rest = normal_axes(axes, x.rank + count), iter(x.dims)
    return reshape(x, [number(1) if axis in new else next(rest) for axis in range(x.rank + count)])


def transpose(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """Permute the axes; None reverses them."""
    order = tuple(reversed(range(x.rank))) if axes is None else tuple(normal_axis(axis, x.rank) for axis in axes)
    if sorted(order) != list(range(x.rank)):
        refuse(f"transpose of {x.rank} dims by {order}")
    if order == tuple(range(x.rank)):
        return x
    if x.op == "transpose":
        return transpose(x.args[0], [x.params[0][axis] for axis in order])
    return tensor("transpose", (x,), (order,), [x.dims[axis] for axis in order], x.dtype)


def move_axis(x: Tensor, source: int, target: int) -> Tensor:
    """Move one axis to another position."""
    source, target = normal_axis(source, x.rank), normal_axis(target, x.rank)
    order = [axis for axis in range(x.rank) if axis != source]
    order.insert(target, source)
    return transpose(x, order)


def broadcast(x: Tensor, dims: Sequence[Numeric]) -> Tensor:
    """Broadcast along new leading axes and along axes of size 1."""
    return broadcast_to(x, dims)


def slices(
    x: Tensor, starts: Sequence[Numeric], sizes: Sequence[Numeric], steps: Sequence[Numeric] | None = None
) -> Tensor:
    """``sizes`` elements along each axis, from ``starts``, with strides ``steps``; all must be in range."""
    strides = tuple(map(_as_int, steps)) if steps is not None else (1,) * x.rank
    firsts, counts = tuple(number(s) for s in starts), tuple(number(s) for s in sizes)
    if not len(firsts) == len(counts) == len(strides) == x.rank or 0 in strides:
        refuse(f"slice of {x.rank} dims: {len(firsts)} starts, {len(counts)} sizes, steps {strides}")
    is_prefix = all(s == 1 for s in strides) and all(f.key == "0" for f in firsts)
    if is_prefix and all(c.key == d.key for c, d in zip(counts, x.dims, strict=True)):
        return x
    for first, count, step, d in zip(firsts, counts, strides, x.dims, strict=True):
        if first.key == "0" and step == 1 and count.key == d.key:
            continue
        last = first + (count - 1) * step
        nonempty, expected = lowest(count, 1), f"elements within its dims; a slice begins at {first}, {count} by {step}"
        need(nonempty * lowest(first, last) >= 0, slot_of(x), expected)
        need(nonempty * (highest(first, last) + 1) <= d, slot_of(x), expected)
    return tensor("slice", (x,), (firsts, strides), counts, x.dtype)


def slice_axis(x: Tensor, axis: int, start: Numeric, size: Numeric, step: int = 1) -> Tensor:
    """A slice along one axis."""
    axis = normal_axis(axis, x.rank)
    starts: list[Numeric] = [0] * x.rank
    sizes: list[Numeric] = list(x.dims)
    steps = [1] * x.rank
    starts[axis], sizes[axis], steps[axis] = start, size, step
    return slices(x, starts, sizes, steps)


def flip(x: Tensor, axes: int | Sequence[int]) -> Tensor:
    """Reverse the order of elements along axes."""
    reversed_axes = normal_axes(axes, x.rank)
    starts = [d - 1 if axis in reversed_axes else 0 for axis, d in enumerate(x.dims)]
    return slices(x, starts, x.dims, [-1 if axis in reversed_axes else 1 for axis in range(x.rank)])


def pad(
    x: Tensor,
    low: Sequence[Numeric],
    high: Sequence[Numeric],
    value: Operand = 0,
    interior: Sequence[Numeric] | None = None,
) -> Tensor:
    """Pad each axis with ``low`` elements before, ``high`` after and ``interior`` between its elements.

    Negative ``low`` and ``high`` remove elements.
    """
    between = tuple(map(_as_int, interior)) if interior is not None else (0,) * x.rank
    lows, highs = tuple(number(n) for n in low), tuple(number(n) for n in high)
    if not len(lows) == len(highs) == len(between) == x.rank or any(n < 0 for n in between):
        refuse(f"pad of {x.rank} dims: {len(lows)} in front, {len(highs)} behind, between {between}")
    if all(n.key == "0" for n in (*lows, *highs)) and not any(between):
        return x
    dims: list[Number] = []
    for d, a, b, n in zip(x.dims, lows, highs, between, strict=True):
        inner = d if not n else spread_size(d, n)
        dims.append(a + inner + b)
    filler = value if isinstance(value, Tensor) else constant(value, compute_dtype(x.dtype))
    if filler.dims:
        refuse("pad takes one number")
    return tensor("pad", (x, filler), (lows, highs, between), dims, x.dtype)


def shift(x: Tensor, axis: int, by: int, value: Operand = 0) -> Tensor:
    """Shift elements by ``by`` along an axis; ``value`` fills the gap."""
    low, high = [0] * x.rank, [0] * x.rank
    low[axis], high[axis] = by, -by
    return pad(x, low, high, value)


def _as_int(n: Numeric) -> Numeric:
    """A constant number as a Python integer; others unchanged."""
    return int(n) if number(n).op == "const" else n


def spread_size(d: Number, between: Numeric) -> Number:
    """The size of an axis with ``between`` elements inserted between its elements; 0 for size 0."""
    return d + highest(d - 1, 0) * between


def concat(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Concatenate along an axis."""
    if not parts:
        refuse("concat of no tensors")
    first = parts[0]
    axis = normal_axis(axis, first.rank)
    for each in parts[1:]:
        rest = [d for i, d in enumerate(each.dims) if i != axis]
        if each.rank != first.rank or not same_dims([d for i, d in enumerate(first.dims) if i != axis], rest):
            refuse(f"concat of {list(first.dims)} and {list(each.dims)} along axis {axis}")
    if len(parts) == 1:
        return first
    dtype = first.dtype if all(p.dtype == first.dtype for p in parts) else meet([p.dtype for p in parts])
    total = number(0)
    for each in parts:
        total = total + each.dims[axis]
    dims: Dims = tuple(total if i == axis else d for i, d in enumerate(first.dims))
    return tensor("concat", [cast(p, dtype) for p in parts], (axis,), dims, dtype)


def stack(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Concatenate along a new axis."""
    if not parts:
        refuse("stack of no tensors")
    axis = normal_axis(axis, parts[0].rank + 1)
    return concat([unsqueeze(x, axis) for x in parts], axis)


def iota(dims: Sequence[Numeric], axis: int, dtype: str = "int64") -> Tensor:
    """0, 1, 2, ... along an axis."""
    return tensor("iota", (), (normal_axis(axis, len(dims)),), dims, dtype)


def full(dims: Sequence[Numeric], value: Numeric, dtype: str) -> Tensor:
    """A tensor filled with a number; for half types it is rounded once, where it is stored."""
    return broadcast_to(cast(constant(value, compute_dtype(dtype)), dtype), dims)


def random_uniform(dims: Sequence[Numeric]) -> Tensor:
    """Random numbers in [0, 1), float32, by the operator's key; at most one such tensor in an expression."""
    return tensor("random", (), ("uniform", 0), [number(d) for d in dims], "float32")
