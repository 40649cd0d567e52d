"""Derivative rules: for each primitive, from the derivative of the result to those of the operands.

The rules are reverse-mode (Griewank and Walther, Evaluating Derivatives, 2008, chapter 3). They are expressions of the
same primitives, so they have derivatives themselves, to any order. The adjoint of a primitive that moves elements is
a slice, a padding or a sum, and never a scatter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fluidlite.base.dtypes import ALL_FLOATS, compute_dtype
from fluidlite.base.errors import GradientError
from fluidlite.expr.functions import (
    cos,
    cosh,
    exp,
    floor,
    log,
    logical_and,
    normcdf,
    normpdf,
    pow_,
    sign,
    sin,
    sinh,
    sqrt,
    where,
)
from fluidlite.expr.indexing import add_at, checked, clamped, pick, put, set_at, stays, take
from fluidlite.expr.number import Number, number
from fluidlite.expr.reductions import contract, recur, reduce_sum, scan
from fluidlite.expr.segments import segment_of
from fluidlite.expr.tensor import Tensor, broadcast_to, cast, wide
from fluidlite.expr.views import flip, full, pad, reshape, shift, slice_axis, slices, spread_size, transpose
from fluidlite.expr.windows import unwindow, window

Adjoints = tuple["Tensor | None", ...]

Rule = Callable[[Tensor, Tensor], Adjoints]
"""From a tensor and its derivative to the derivatives of its operands; None: no derivative flows there."""


def zeros_like(x: Tensor) -> Tensor:
    """Zeros with the dims of ``x``, in its compute dtype."""
    return full(x.dims, 0, wide(x).dtype)


def no_derivative(x: Tensor) -> Adjoints:
    raise GradientError(f"{x.op} has no derivative; write the gradient of the operator that uses it")


# Scalar primitives: operands and result have the same dims


def power_slope(a: Any, b: Any) -> Any:
    """The derivative of ``a ** b`` by ``a``; finite at ``a == 0`` where it exists, as for integer ``b >= 0``."""
    return b * pow_(a, where(b == 0, 0, b - 1))


def exponent_slope(a: Any, b: Any, out: Any) -> Any:
    """The derivative of ``out = a ** b`` by ``b``; 0 for finite powers of 0."""
    return log(where(logical_and(a == 0, b >= 0), 1, a)) * out


_TWO_OVER_ROOT_PI = 2 / math.sqrt(math.pi)


SCALAR_RULES: dict[str, Callable[..., Adjoints]] = {
    "add": lambda a, b, out, d: (d, d),
    "sub": lambda a, b, out, d: (d, -d),
    "mul": lambda a, b, out, d: (d * b, d * a),
    "div": lambda a, b, out, d: (d / b, -d * out / b),
    **dict.fromkeys(("mod", "rem"), lambda a, b, out, d: (d, -d * floor(a / b))),
    "pow": lambda a, b, out, d: (d * power_slope(a, b), d * exponent_slope(a, b, out)),
    "neg": lambda a, out, d: (-d,),
    "abs": lambda a, out, d: (d * sign(a),),
    "maximum": lambda a, b, out, d: (where(a > b, d, 0), where(a > b, 0, d)),
    "minimum": lambda a, b, out, d: (where(a < b, d, 0), where(a < b, 0, d)),
    "exp": lambda a, out, d: (d * out,),
    "expm1": lambda a, out, d: (d * (out + 1),),
    "log": lambda a, out, d: (d / a,),
    "log1p": lambda a, out, d: (d / (1 + a),),
    "sqrt": lambda a, out, d: (d * 0.5 / out,),
    "tanh": lambda a, out, d: (d * (1 - out * out),),
    "sin": lambda a, out, d: (d * cos(a),),
    "cos": lambda a, out, d: (-d * sin(a),),
    "asin": lambda a, out, d: (d / sqrt(1 - a * a),),
    "acos": lambda a, out, d: (-d / sqrt(1 - a * a),),
    "atan": lambda a, out, d: (d / (1 + a * a),),
    "sinh": lambda a, out, d: (d * cosh(a),),
    "cosh": lambda a, out, d: (d * sinh(a),),
    "erf": lambda a, out, d: (d * (_TWO_OVER_ROOT_PI * exp(-a * a)),),
    "normcdf": lambda a, out, d: (d * normpdf(a),),
    "normpdf": lambda a, out, d: (-d * a * out,),
    "gelu": lambda a, out, d: (d * (normcdf(a) + a * normpdf(a)),),
    "where": lambda c, a, b, out, d: (None, where(c, d, 0), where(c, 0, d)),
    **dict.fromkeys(("floor", "ceil", "round", "sign"), lambda a, out, d: (None,)),
    "floordiv": lambda a, b, out, d: (None, None),
}
"""The derivative of a maximum of equal operands flows to the second, as in Fluid; step functions have none."""


def _map(x: Tensor, d: Tensor) -> Adjoints:
    rule = SCALAR_RULES.get(x.params[0])
    return rule(*x.args, x, d) if rule is not None else no_derivative(x)


def _cast(x: Tensor, d: Tensor) -> Adjoints:
    (arg,) = x.args
    return (cast(d, compute_dtype(arg.dtype)) if arg.dtype in ALL_FLOATS else None,)


# Primitives that move elements


def _broadcast(x: Tensor, d: Tensor) -> Adjoints:
    return (reduce_sum(d, x.params[0], keep=True),)


def _slice(x: Tensor, d: Tensor) -> Adjoints:
    (arg,), (starts, steps) = x.args, x.params
    reversed_axes = [axis for axis, step in enumerate(steps) if step < 0]
    forward = flip(d, reversed_axes) if reversed_axes else d
    low: list[Number] = []
    high: list[Number] = []
    for axis, (start, step) in enumerate(zip(starts, steps, strict=True)):
        size, total = x.dims[axis], arg.dims[axis]
        first = start + (size - 1) * step if step < 0 else start
        inner = size if abs(step) == 1 else spread_size(size, abs(step) - 1)
        low.append(first)
        high.append(total - first - inner)
    return (pad(forward, low, high, 0, [abs(step) - 1 for step in steps]),)


def _pad(x: Tensor, d: Tensor) -> Adjoints:
    arg, (low, high, between) = x.args[0], x.params
    inside = not any(between) and all(n.op == "const" and n.value >= 0 for n in (*low, *high))
    if inside:  # the operand is a slice of the result
        part = slices(d, low, arg.dims)
        return part, reduce_sum(d) - reduce_sum(part)
    inner = pad(d, [-n for n in low], [-n for n in high])
    part = slices(inner, [0] * arg.rank, arg.dims, [n + 1 for n in between])
    return part, reduce_sum(d) - reduce_sum(part)


def _concat(x: Tensor, d: Tensor) -> Adjoints:
    (axis,), at = x.params, number(0)
    parts = []
    for arg in x.args:
        parts.append(slice_axis(d, axis, at, arg.dims[axis]))
        at = at + arg.dims[axis]
    return tuple(parts)


# Reductions


def _reduce(x: Tensor, d: Tensor) -> Adjoints:
    (arg,), (kind, axes) = x.args, x.params
    spread = broadcast_to(d, arg.dims)
    if kind == "sum":
        return (spread,)
    if kind in ("max", "min"):  # it flows to all equal elements, as in Fluid
        return (where(arg == broadcast_to(x, arg.dims), spread, 0),)
    if kind == "prod":
        return (spread * _product_of_others(arg, axes),)
    return (None,)


def _product_of_others(x: Tensor, axes: Sequence[int]) -> Tensor:
    """For each element, the product of all other elements along axes: without a division, so zeros are exact."""
    rest = [axis for axis in range(x.rank) if axis not in axes]
    first = min(axes) if max(axes) - min(axes) < len(axes) else len(rest)  # adjacent axes stay, others move last
    order = (*rest[:first], *sorted(axes), *rest[first:])
    transposed = transpose(x, order)
    rows = reshape(transposed, [*transposed.dims[:first], -1, *transposed.dims[first + len(axes) :]])
    front = scan("prod", rows, first, exclusive=True)
    behind = scan("prod", rows, first, reverse=True, exclusive=True)
    products = reshape(front * behind, transposed.dims)
    return transpose(products, [order.index(axis) for axis in range(x.rank)])


def _scan(x: Tensor, d: Tensor) -> Adjoints:
    (arg,), (kind, axis, reverse, exclusive) = x.args, x.params
    if kind == "sum":
        return (scan("sum", d, axis, not reverse, exclusive),)
    if kind != "prod":
        return no_derivative(x)
    # the product before an element, times the sum of the derivatives after it, each times the product between
    ahead = 1 if reverse else -1
    front = scan("prod", arg, axis, reverse, exclusive=True)
    behind = recur(shift(arg, axis, ahead), shift(d, axis, ahead) if exclusive else d, axis, not reverse)
    return (front * behind,)


def _recur(x: Tensor, d: Tensor) -> Adjoints:
    (a, _), (axis, reverse) = x.args, x.params
    ahead = 1 if reverse else -1
    total = recur(shift(a, axis, ahead), d, axis, not reverse)
    return total * shift(x, axis, -ahead), total


def _segment(x: Tensor, d: Tensor) -> Adjoints:
    (arg, offsets), (kind,) = x.args, x.params
    of = segment_of(offsets, arg.dims[0])
    spread = take(d, of, 0, "clamp")
    if kind == "sum":
        return spread, None
    return where(arg == take(x, of, 0, "clamp"), spread, 0), None


def _indices(x: Tensor) -> tuple[Tensor, int, Number]:
    """The indices of a take or pick, their axis, and its size."""
    (source, index), (axis, mode) = x.args, x.params
    bound = source.dims[axis]
    if mode == "clamp":
        index = clamped(index, bound)
    return checked(index, bound) if mode == "check" else index, axis, bound


def _add_at(x: Tensor, d: Tensor) -> Adjoints:
    return (take(d, x.args[1], x.params[0], "zero"), None, *((d,) if len(x.args) > 2 else ()))


def _set_at(x: Tensor, d: Tensor) -> Adjoints:
    """0 for overwritten elements: those of the operand, and updates that a later one for the same part replaces."""
    (_, updates, index), (axis,) = x.args, x.params
    last = reshape(stays(index, x.dims[axis]), [*index.dims, *(1,) * (x.rank - 1 - axis)])
    return set_at(d, zeros_like(updates), index, axis), where(last, take(d, index, axis), 0), None


def _contract(x: Tensor, d: Tensor) -> Adjoints:
    (a, b), (a_axes, b_axes, out) = x.args, x.params
    return _factor(d, out, b, b_axes, a, a_axes), _factor(d, out, a, a_axes, b, b_axes)


def _factor(d: Tensor, out: str, other: Tensor, other_axes: str, of: Tensor, own: str) -> Tensor:
    """The derivative of one factor; it is broadcast along letters that only this factor has: they were summed."""
    shared = "".join(name for name in own if name in out or name in other_axes)
    total = contract(d, other, f"{out},{other_axes}->{shared}")
    if shared != own:
        total = reshape(total, [size if name in shared else number(1) for name, size in zip(own, of.dims, strict=True)])
    return broadcast_to(total, of.dims)


RESULT_PRIMITIVES = frozenset({"step_result"})
"""Primitives that select one of the results of their operand."""

MULTI_RESULT_RULES: dict[str, Callable[[Tensor, Mapping[int, Tensor]], Adjoints]] = {}
"""Rules of primitives with several results, from the derivatives of the results by number."""

RULES: dict[str, Rule] = {
    "map": _map,
    "cast": _cast,
    "stop": lambda x, d: (None,),
    "reshape": lambda x, d: (reshape(d, x.args[0].dims),),
    "transpose": lambda x, d: (transpose(d, [x.params[0].index(axis) for axis in range(x.rank)]),),
    "broadcast": _broadcast,
    "slice": _slice,
    "pad": _pad,
    "concat": _concat,
    "reduce": _reduce,
    "arg": lambda x, d: (None,),
    "scan": _scan,
    "recur": _recur,
    "segment": _segment,
    "segment_of": lambda x, d: (None,),
    "take": lambda x, d: (add_at(d, *_indices(x)), None),
    "pick": lambda x, d: (put(d, *_indices(x)), None),
    "checked": lambda x, d: (None,),
    "add_at": _add_at,
    "set_at": _set_at,
    "put": lambda x, d: (pick(d, x.args[1], x.params[0], "zero"), None, *((d,) if len(x.args) > 2 else ())),
    "contract": _contract,
    "window": lambda x, d: (unwindow(d, x.params[0], x.args[0].dims[x.params[0]], *x.params[1:]),),
    "unwindow": lambda x, d: (window(d, x.params[0], x.args[0].dims[x.params[0] + 1], *x.params[1:]),),
}
