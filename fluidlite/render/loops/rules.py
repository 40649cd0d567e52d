"""Lowering rules: for each tensor primitive, the element of its result at an index."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import product as iproduct
from math import prod

from fluidlite.expr.number import COMPARISONS, Condition, Number, highest, lowest, number
from fluidlite.expr.tensor import Tensor
from fluidlite.render.loops.affine import axis_to_split, divided, quotients_in
from fluidlite.render.loops.elements import Axis, BufferKey, Element, Elements, Rule, dependencies
from fluidlite.render.loops.indices import Conditions, Index, linear
from fluidlite.render.loops.sizes import Sizes, size_of

MAX_EXACT_NUMBER = 1 << 40
"""Magnitude of a number: sums of a few smaller ones and of indices do not overflow int64."""
STEP_OPS = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "all": "logical_and", "any": "logical_or"}
"""The scalar primitive that combines two elements of each reduction."""
MAX_UNROLLED_TERMS = 9
"""Elements of a reduction of constant length: one with no more is unrolled."""
MAX_UNROLLED_WINDOWS = 4
"""Windows that contain an element: the sum over no more is unrolled."""


def elements(stored: Mapping[Tensor, BufferKey], values: Sizes) -> Elements:
    """Elements by these rules; the ``stored`` tensors are loaded."""
    return Elements(stored, values, ELEMENTS)


# Leaves and elementwise


def _input(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    return e.load(("in", *x.params), e.linear(index, x), guard, x.dtype)


def _number(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    return e.number(x.params[0], x.dtype)


def _iota(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    return e.cast(e.intern("index", (), (index[x.params[0]],), "int64"), x.dtype)


def _offsets(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    return e.load(("offsets", x.params[2].value), index[0], guard, x.dtype)


def _random(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    return e.intern("random", (), (*x.params, e.linear(index, x)), x.dtype)


def _map(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    args = [e.at(arg, index if arg.dims else (), guard) for arg in x.args]
    conditions = _as_conditions(e, args[0]) if x.params == ("where",) else None
    if conditions is not None:
        return e.select(conditions, args[1], args[2])
    return e.intern("map", args, x.params, x.dtype)


def _as_conditions(e: Elements, x: Element) -> Conditions | None:
    """A truth value as conditions on indices, or None: loop bounds can then be derived from it."""
    if x.op != "map":
        return None
    if x.params == ("logical_and",):
        parts = [_as_conditions(e, arg) for arg in x.args]
        return None if parts[0] is None or parts[1] is None else (*parts[0], *parts[1])
    if x.params[0] not in COMPARISONS:
        return None
    a, b = (_as_number(e, arg) for arg in x.args)
    return None if a is None or b is None else (Condition(x.params[0], a, b),)


def _as_number(e: Elements, x: Element) -> Number | None:
    """An element as index arithmetic, if it is computed of indices and small numbers only; else None."""
    if x.dtype != "int64":
        return None
    formula: Number = x.params[0] if x.op in ("index", "number") else number(0)
    if x.op == "index":
        return formula
    if x.op == "number":
        return formula if abs(size_of(formula, e.values)) < MAX_EXACT_NUMBER else None
    if x.op == "map" and x.params[0] in ("add", "sub"):
        a, b = (_as_number(e, arg) for arg in x.args)
        return None if a is None or b is None else a + b if x.params[0] == "add" else a - b
    return None


def _cast(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    return e.cast(e.at(x.args[0], index, guard), x.dtype)


def _stop(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    return e.at(x.args[0], index, guard)


# Views


def _reshape(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (source,) = x.args
    return e.at(source, e.through_reshape(index, x, source), guard)


def _transpose(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (order,) = x.params
    return e.at(x.args[0], tuple(index[order.index(axis)] for axis in range(len(order))), guard)


def _broadcast(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (source,), (broadcast_axes,) = x.args, x.params
    if not source.dims:
        return e.at(source, (), guard)
    return e.at(source, tuple(number(0) if axis in broadcast_axes else i for axis, i in enumerate(index)), guard)


def _slice(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    starts, steps = x.params
    return e.at(x.args[0], tuple(a + i * s for a, i, s in zip(starts, index, steps, strict=True)), guard)


def _pad(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (source, filler), (lows, _, between) = x.args, x.params
    inner: list[Number] = []
    inside: list[Condition] = []
    for i, d, size, low, n in zip(index, source.dims, x.dims, map(e.canonical, lows), between, strict=True):
        at = i - low
        if low.key == "0" and (d.key == size.key or e.is_equal(d, size)):
            inner.append(at)
            continue
        source_index, rest = at, number(0)
        if number(n).key != "0":
            source_index, rest = divided(at, number(n) + 1, e.values, e.extents, e.canonical)
        inner.append(source_index)
        inside += e.range_conditions(at, d) if source_index.key == at.key else (at >= 0, source_index < d)
        if rest.key != "0":
            inside.append(rest == 0)
    conditions = tuple(inside)
    value = e.at(source, tuple(inner), (*guard, *conditions))
    return e.select(conditions, value, e.cast(e.at(filler, (), guard), x.dtype))


def _concat(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (axis,), begins = x.params, [number(0)]
    for part in x.args[:-1]:
        begins.append(begins[-1] + part.dims[axis])
    value: Element | None = None
    for begin, part in reversed(list(zip(begins, x.args, strict=True))):
        part_index = index[axis] - begin
        in_part = e.range_conditions(part_index, part.dims[axis])
        part_value = e.at(part, (*index[:axis], part_index, *index[axis + 1 :]), (*guard, *in_part))
        value = part_value if value is None else e.select(in_part, part_value, value)
    assert value is not None
    return value


# Windows


def _window(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    axis, stride, dilation = x.params
    source_index = index[axis] * stride + index[axis + 1] * dilation
    return e.at(x.args[0], (*index[:axis], source_index, *index[axis + 2 :]), guard)


def _unwindow(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (parts,), (axis, stride, dilation) = x.args, x.params
    size, step = parts.dims[axis + 1], number(stride)
    if number(dilation).key == "1" and size.op == "const" == step.op and int(size) <= MAX_UNROLLED_WINDOWS * int(step):
        return _unrolled_windows(e, x, index, guard, -(-int(size) // int(step)))
    if number(dilation).key == "1":  # the windows that contain an element are consecutive
        window = e.axis(parts.dims[axis], index, guard)
        first, end = highest((index[axis] - size + stride) // stride, 0), index[axis] // stride + 1
        windows = Axis(window.name, window.size, first, lowest(end, window.size))
        tap_at = index[axis] - window.leaf * stride
        return e.reduce("sum", [windows], e.at(parts, (*index[:axis], window.leaf, tap_at, *index[axis + 1 :]), guard))
    tap = e.axis(parts.dims[axis + 1], index, guard)
    begin = index[axis] - tap.leaf * dilation
    window_number = begin // stride
    conditions = (begin >= 0, window_number < parts.dims[axis], begin == window_number * stride)
    term = e.at(parts, (*index[:axis], window_number, tap.leaf, *index[axis + 1 :]), (*guard, *conditions))
    return e.reduce("sum", [tap], e.select(conditions, term, e.number(0, term.dtype)))


def _unrolled_windows(e: Elements, x: Tensor, index: Index, guard: Conditions, count: int) -> Element:
    """The unrolled sum over the few windows that contain an element."""
    (parts,), (axis, stride, _) = x.args, x.params
    last, rest = divided(index[axis], number(stride), e.values, e.extents, e.canonical)
    total = None
    for k in range(count):
        window, tap = last - k, rest + number(stride) * k
        conditions = (window < parts.dims[axis], *((window >= 0,) if k else ()), tap < parts.dims[axis + 1])
        term = e.at(parts, (*index[:axis], window, tap, *index[axis + 1 :]), (*guard, *conditions))
        term = e.select(conditions, term, e.number(0, term.dtype))
        total = term if total is None else e.intern("map", (total, term), ("add",), term.dtype)
    assert total is not None
    return total


# Reductions


def _reduce(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (source,), (kind, reduced) = x.args, x.params
    dims = [source.dims[axis] for axis in reduced]
    if prod(map(_static_length, dims)) <= MAX_UNROLLED_TERMS:

        def element_at(indices: Sequence[Number]) -> Element:
            index_of = dict(zip(reduced, indices, strict=True))
            return e.at(source, tuple(index_of.get(k, i) for k, i in enumerate(index)), guard)

        return _unrolled(e, kind, dims, element_at)
    axes_left = [axis for axis in reduced if not e.is_one(source.dims[axis])]
    axes: dict[int, tuple[Axis, ...]] = {
        axis: (e.axis(source.dims[axis], index, guard, k),) for k, axis in enumerate(axes_left)
    }
    return e.reduce(kind, *_reduction_loop(e, source, axes, reduced, index, guard))


def _static_length(d: Number) -> int:
    """A constant dim; for others a length that is not unrolled."""
    return int(d.value) if d.op == "const" and d.whole and int(d.value) else MAX_UNROLLED_TERMS + 1


def _unrolled(e: Elements, kind: str, dims: Sequence[Number], body: Callable[[Sequence[Number]], Element]) -> Element:
    """An unrolled reduction: constant indices need no tests."""
    first, *rest = (body(tuple(map(number, indices))) for indices in iproduct(*(range(int(d.value)) for d in dims)))
    return reduce(lambda a, b: e.intern("map", (a, b), (STEP_OPS[kind],), a.dtype), rest, first)


def _arg(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (source,), (kind, axis) = x.args, x.params
    if _static_length(source.dims[axis]) <= MAX_UNROLLED_TERMS:
        return _unrolled_arg(e, x, index, guard)
    axes, body = _reduction_loop(e, source, {axis: (e.axis(source.dims[axis], index, guard),)}, (axis,), index, guard)
    return e.intern("arg", (body,), (kind, tuple(axes)), "int64")


def _unrolled_arg(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    """An unrolled argmax or argmin: the first of equal elements, and the first NaN."""
    (source,), (kind, axis) = x.args, x.params
    values = [
        e.at(source, (*index[:axis], number(k), *index[axis + 1 :]), guard) for k in range(int(source.dims[axis].value))
    ]
    best, best_index = values[0], e.number(0, "int32")

    def test(op: str, *args: Element) -> Element:
        return e.intern("map", args, (op,), "bool")

    for k, option in enumerate(values[1:], 1):
        is_not_better = test("less_equal" if kind == "max" else "greater_equal", option, best)
        replaces = test("logical_and", test("equal", best, best), test("logical_not", is_not_better))
        best = e.intern("map", (replaces, option, best), ("where",), option.dtype)
        best_index = e.intern("map", (replaces, e.number(k, "int32"), best_index), ("where",), "int32")
    return e.cast(best_index, "int64")


def _reduction_loop(
    e: Elements,
    source: Tensor,
    axes: dict[int, tuple[Axis, ...]],
    reduced: Sequence[int],
    index: Index,
    guard: Conditions,
) -> tuple[list[Axis], Element]:
    """The axes of a reduction, and its body; an axis is split if an index is a quotient of it."""
    while True:
        leaves = {k: linear([a.leaf for a in parts], [a.size for a in parts]) for k, parts in axes.items()}
        inner = tuple(leaves.get(k, number(0)) if k in reduced else i for k, i in enumerate(index))
        body = e.at(source, inner, guard)
        sizes = {axis.name: e.extents[axis.name] for parts in axes.values() for axis in parts}
        quotients = (q for x in dependencies(body, e) for n in x.numbers for q in quotients_in(n))
        split = next(
            (f for q in quotients for f in [axis_to_split(q.args[0], q.args[1], e.values, sizes)] if f is not None),
            None,
        )
        if split is None:
            return [axis for parts in axes.values() for axis in parts], body
        name, size = split
        for k, parts in axes.items():
            axes[k] = tuple(part for axis in parts for part in (e.split(axis, size) if axis.name == name else (axis,)))


def _contract(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (a, b), (a_names, b_names, out) = x.args, x.params
    sizes = {n: d for names, t in ((a_names, a), (b_names, b)) for n, d in zip(names, t.dims, strict=True)}
    summed = [n for n in sizes if n not in out]

    def term(inner: Mapping[str, Number]) -> Element:
        at = {**inner, **dict(zip(out, index, strict=True))}
        x_a, x_b = (e.at(t, tuple(at[n] for n in names), guard) for names, t in ((a_names, a), (b_names, b)))
        return e.intern("map", (x_a, x_b), ("mul",), x.dtype)

    if prod(_static_length(sizes[n]) for n in summed) <= MAX_UNROLLED_TERMS:
        return _unrolled(e, "sum", [sizes[n] for n in summed], lambda at: term(dict(zip(summed, at, strict=True))))
    axes = {n: e.axis(sizes[n], index, guard, k) for k, n in enumerate(summed)}
    return e.reduce("sum", list(axes.values()), term({n: axis.leaf for n, axis in axes.items()}))


# Segments


def _segment(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (source, offsets), (kind,) = x.args, x.params
    begin, end = (e.index_of(e.at(offsets, (at,), guard)) for at in (index[0], index[0] + 1))
    axis = e.axis(source.dims[0], (begin, end, *index), guard)
    rows = Axis(axis.name, axis.size, highest(begin, 0), lowest(end, axis.size))
    total = e.reduce(kind, [rows], e.at(source, (axis.leaf, *index[1:]), guard))
    not_empty = (begin < end,)
    return total if kind == "sum" else e.select(not_empty, total, e.number(0, total.dtype))


def _segment_of(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (offsets,) = x.args
    axis = e.axis(offsets.dims[0] - 1, index, guard)
    begin = e.index_of(e.at(offsets, (axis.leaf + 1,), guard))
    one, none = e.number(1, "int64"), e.number(0, "int64")
    return e.reduce("sum", [axis], e.select((begin <= index[0],), one, none))


# Gathers


def _gathered(
    e: Elements, x: Tensor, at: Element, axis: int, mode: str, index: Callable[[Number], Index], guard: Conditions
) -> Element:
    """The element at a computed index along an axis."""
    size = x.dims[axis]
    formula = _as_number(e, at)
    if mode == "zero":
        position = e.index_of(at) if formula is None else formula
        conditions: Conditions = (position >= 0, position < size)
        return e.select(conditions, e.at(x, index(position), (*guard, *conditions)), e.number(0, x.dtype))
    if mode == "check":
        position = e.index_of(e.checked_index(at, size, guard))
    else:
        position = lowest(highest(e.index_of(at) if formula is None else formula, 0), size - 1)
    not_empty = (size > 0,)
    return e.select(not_empty, e.at(x, index(position), (*guard, *not_empty)), e.number(0, x.dtype))


def _take(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (source, indices), (axis, mode) = x.args, x.params
    end = axis + indices.rank
    at = e.at(indices, index[axis:end], guard)
    return _gathered(e, source, at, axis, mode, lambda p: (*index[:axis], p, *index[end:]), guard)


def _pick(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (source, indices), (axis, mode) = x.args, x.params
    at = e.at(indices, index, guard)
    return _gathered(e, source, at, axis, mode, lambda p: (*index[:axis], p, *index[axis + 1 :]), guard)


def _checked(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    return e.cast(e.checked_index(e.at(x.args[0], index, guard), x.params[0], guard), x.dtype)


def _put(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    """A put of a single index along the axis: each element compares its own index with it."""
    updates, indices, *base = x.args
    (axis, *_) = x.params
    source = (*index[:axis], number(0), *index[axis + 1 :])
    is_target = (e.index_of(e.at(indices, source, guard)) == index[axis],)
    update = e.cast(e.at(updates, source, guard), x.dtype)  # invariant along the axis: computed once
    if not base:
        return e.select(is_target, update, e.number(0, x.dtype))
    base_value = e.at(base[0], index, guard)
    return e.select(is_target, e.intern("map", (base_value, update), ("add",), x.dtype), base_value)


ELEMENTS: dict[str, Rule] = {
    "input": _input,
    "number": _number,
    "iota": _iota,
    "offsets": _offsets,
    "random": _random,
    "map": _map,
    "cast": _cast,
    "stop": _stop,
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast": _broadcast,
    "slice": _slice,
    "pad": _pad,
    "concat": _concat,
    "window": _window,
    "unwindow": _unwindow,
    "reduce": _reduce,
    "arg": _arg,
    "contract": _contract,
    "segment": _segment,
    "segment_of": _segment_of,
    "take": _take,
    "pick": _pick,
    "checked": _checked,
    "put": _put,
}
"""The lowering rule of each primitive."""
