"""What an element of a tensor is computed of: one rule for each primitive of tensors, as loops compute it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import product as iproduct
from math import prod

from fluidlite.expr.number import Condition, Number, highest, lowest, number
from fluidlite.expr.tensor import Tensor
from fluidlite.render.loops.affine import axis_to_split, divided, quotients_in
from fluidlite.render.loops.elements import Axis, Element, Elements, Rule, Source, elements_behind, numbers_in
from fluidlite.render.loops.indices import Conditions, Index, linear
from fluidlite.render.loops.sizes import Sizes, size_of

COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
SMALL = 1 << 40
"""Sums of some numbers below it, and of indices, are right."""
STEPS = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "all": "logical_and", "any": "logical_or"}
UNROLLED = 9
"""Reductions of no more elements are no loop, where every call has so many."""
MOST = 4
"""In so many windows an element may lie for which no loop is written."""


def elements(stored: Mapping[Tensor, Source], values: Sizes) -> Elements:
    """Elements of tensors by these rules, beside what is stored."""
    return Elements(stored, values, ELEMENTS)


# Leaves and elementwise


def _input(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    return e.load(("in", *x.params), e.linear(index, x), guard, x.dtype)


def _number(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    return e.number(x.params[0], x.dtype)


def _iota(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    return e.cast(e.made("index", (), (index[x.params[0]],), "int64"), x.dtype)


def _offsets(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    return e.load(("offsets", x.params[2].value), index[0], guard, x.dtype)


def _random(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    return e.made("random", (), (*x.params, e.linear(index, x)), x.dtype)


def _map(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    args = [e.at(arg, index if arg.dims else (), guard) for arg in x.args]
    there = _conditions(e, args[0]) if x.params == ("where",) else None
    if there is not None:
        return e.select(there, args[1], args[2])
    return e.made("map", args, x.params, x.dtype)


def _conditions(e: Elements, x: Element) -> Conditions | None:
    """What is asked of indices, where a truth value says nothing else: loops are then bounded by it."""
    if x.op != "map":
        return None
    if x.params == ("logical_and",):
        both = [_conditions(e, arg) for arg in x.args]
        return None if both[0] is None or both[1] is None else (*both[0], *both[1])
    if x.params[0] not in COMPARISONS:
        return None
    a, b = (_as_number(e, arg) for arg in x.args)
    return None if a is None or b is None else (Condition(x.params[0], a, b),)


def _as_number(e: Elements, x: Element) -> Number | None:
    """An element that is computed of nothing but indices and small numbers."""
    if x.dtype != "int64":
        return None
    known: Number = x.params[0] if x.op in ("index", "number") else number(0)
    if x.op == "index":
        return known
    if x.op == "number":
        return known if abs(size_of(known, e.values)) < SMALL else None
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
    (source,), (grown,) = x.args, x.params
    if not source.dims:
        return e.at(source, (), guard)
    return e.at(source, tuple(number(0) if axis in grown else i for axis, i in enumerate(index)), guard)


def _slice(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    starts, steps = x.params
    return e.at(x.args[0], tuple(a + i * s for a, i, s in zip(starts, index, steps, strict=True)), guard)


def _pad(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (source, filler), (lows, _, between) = x.args, x.params
    inner: list[Number] = []
    inside: list[Condition] = []
    for i, d, size, low, n in zip(index, source.dims, x.dims, map(e.sized, lows), between, strict=True):
        at = i - low
        if low.key == "0" and (d.key == size.key or e.same(d, size)):
            inner.append(at)
            continue
        place, rest = at, number(0)
        if number(n).key != "0":
            place, rest = divided(at, number(n) + 1, e.values, e.extents, e.sized)
        inner.append(place)
        inside += e.within(at, d) if place.key == at.key else (at >= 0, place < d)
        if rest.key != "0":
            inside.append(rest == 0)
    there = tuple(inside)
    found = e.at(source, tuple(inner), (*guard, *there))
    return e.select(there, found, e.cast(e.at(filler, (), guard), x.dtype))


def _concat(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (axis,), begins = x.params, [number(0)]
    for part in x.args[:-1]:
        begins.append(begins[-1] + part.dims[axis])
    found: Element | None = None
    for begin, part in reversed(list(zip(begins, x.args, strict=True))):
        at = index[axis] - begin
        there = e.within(at, part.dims[axis])
        one = e.at(part, (*index[:axis], at, *index[axis + 1 :]), (*guard, *there))
        found = one if found is None else e.select(there, one, found)
    assert found is not None
    return found


# Windows


def _window(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    axis, stride, dilation = x.params
    at = index[axis] * stride + index[axis + 1] * dilation
    return e.at(x.args[0], (*index[:axis], at, *index[axis + 2 :]), guard)


def _unwindow(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (parts,), (axis, stride, dilation) = x.args, x.params
    size, step = parts.dims[axis + 1], number(stride)
    if number(dilation).key == "1" and size.op == "const" == step.op and int(size) <= MOST * int(step):
        return _unwindowed(e, x, index, guard, -(-int(size) // int(step)))
    if number(dilation).key == "1":  # the windows in which an element lies are neighbours
        window = e.axis(parts.dims[axis], index, guard)
        first, end = highest((index[axis] - size + stride) // stride, 0), index[axis] // stride + 1
        among = Axis(window.name, window.size, first, lowest(end, window.size))
        at = index[axis] - window.leaf * stride
        return e.reduce("sum", [among], e.at(parts, (*index[:axis], window.leaf, at, *index[axis + 1 :]), guard))
    tap = e.axis(parts.dims[axis + 1], index, guard)
    begin = index[axis] - tap.leaf * dilation
    which = begin // stride
    there = (begin >= 0, which < parts.dims[axis], begin == which * stride)
    one = e.at(parts, (*index[:axis], which, tap.leaf, *index[axis + 1 :]), (*guard, *there))
    return e.reduce("sum", [tap], e.select(there, one, e.number(0, one.dtype)))


def _unwindowed(e: Elements, x: Tensor, index: Index, guard: Conditions, count: int) -> Element:
    """The sum over the few windows in which an element may lie, without a loop."""
    (parts,), (axis, stride, _) = x.args, x.params
    last, rest = divided(index[axis], number(stride), e.values, e.extents, e.sized)
    total = None
    for k in range(count):
        window, at = last - k, rest + number(stride) * k
        there = (window < parts.dims[axis], *((window >= 0,) if k else ()), at < parts.dims[axis + 1])
        one = e.at(parts, (*index[:axis], window, at, *index[axis + 1 :]), (*guard, *there))
        one = e.select(there, one, e.number(0, one.dtype))
        total = one if total is None else e.made("map", (total, one), ("add",), one.dtype)
    assert total is not None
    return total


# Reductions


def _reduce(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (source,), (kind, gone) = x.args, x.params
    dims = [source.dims[axis] for axis in gone]
    if prod(map(_short, dims)) <= UNROLLED:

        def one(at: Sequence[Number]) -> Element:
            here = dict(zip(gone, at, strict=True))
            return e.at(source, tuple(here.get(k, i) for k, i in enumerate(index)), guard)

        return _folded(e, kind, dims, one)
    long = [axis for axis in gone if not e.one(source.dims[axis])]
    axes: dict[int, tuple[Axis, ...]] = {
        axis: (e.axis(source.dims[axis], index, guard, k),) for k, axis in enumerate(long)
    }
    return e.reduce(kind, *_along(e, source, axes, gone, index, guard))


def _short(d: Number) -> int:
    """A dim that every call has, and else what is too long to be written out."""
    return int(d.value) if d.op == "const" and d.whole and int(d.value) else UNROLLED + 1


def _folded(e: Elements, kind: str, dims: Sequence[Number], one: Callable[[Sequence[Number]], Element]) -> Element:
    """A reduction of some elements, of which each is written: what is known of its index needs no test."""
    first, *rest = (one(tuple(map(number, at))) for at in iproduct(*(range(int(d.value)) for d in dims)))
    return reduce(lambda a, b: e.made("map", (a, b), (STEPS[kind],), a.dtype), rest, first)


def _arg(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (source,), (kind, at) = x.args, x.params
    if _short(source.dims[at]) <= UNROLLED:
        return _picked(e, x, index, guard)
    axes, body = _along(e, source, {at: (e.axis(source.dims[at], index, guard),)}, (at,), index, guard)
    return e.made("arg", (body,), (kind, tuple(axes)), "int64")


def _picked(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    """Which of some elements is the greatest, or the least: the first of equal ones, and the first NaN."""
    (source,), (kind, at) = x.args, x.params
    every = [e.at(source, (*index[:at], number(k), *index[at + 1 :]), guard) for k in range(int(source.dims[at].value))]
    best, found = every[0], e.number(0, "int32")

    def asked(op: str, *args: Element) -> Element:
        return e.made("map", args, (op,), "bool")

    for k, one in enumerate(every[1:], 1):
        worse = asked("less_equal" if kind == "max" else "greater_equal", one, best)
        take = asked("logical_and", asked("equal", best, best), asked("logical_not", worse))
        best = e.made("map", (take, one, best), ("where",), one.dtype)
        found = e.made("map", (take, e.number(k, "int32"), found), ("where",), "int32")
    return e.cast(found, "int64")


def _along(
    e: Elements,
    source: Tensor,
    axes: dict[int, tuple[Axis, ...]],
    gone: Sequence[int],
    index: Index,
    guard: Conditions,
) -> tuple[list[Axis], Element]:
    """The axes of a reduction, and the element within: one of which an index is a quotient is taken as two."""
    while True:
        leaves = {k: linear([a.leaf for a in mine], [a.size for a in mine]) for k, mine in axes.items()}
        inner = tuple(leaves.get(k, number(0)) if k in gone else i for k, i in enumerate(index))
        body = e.at(source, inner, guard)
        sizes = {axis.name: e.extents[axis.name] for mine in axes.values() for axis in mine}
        quotients = (q for x in elements_behind(body, e) for n in numbers_in(x) for q in quotients_in(n))
        found = next(
            (f for q in quotients for f in [axis_to_split(q.args[0], q.args[1], e.values, sizes)] if f is not None),
            None,
        )
        if found is None:
            return [axis for mine in axes.values() for axis in mine], body
        name, size = found
        for k, mine in axes.items():
            axes[k] = tuple(part for axis in mine for part in (e.split(axis, size) if axis.name == name else (axis,)))


def _contract(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (a, b), (mine, theirs, out) = x.args, x.params
    sizes = {n: d for names, t in ((mine, a), (theirs, b)) for n, d in zip(names, t.dims, strict=True)}
    gone = [n for n in sizes if n not in out]

    def product(inner: Mapping[str, Number]) -> Element:
        at = {**inner, **dict(zip(out, index, strict=True))}
        first, second = (e.at(t, tuple(at[n] for n in names), guard) for names, t in ((mine, a), (theirs, b)))
        return e.made("map", (first, second), ("mul",), x.dtype)

    if prod(_short(sizes[n]) for n in gone) <= UNROLLED:
        return _folded(e, "sum", [sizes[n] for n in gone], lambda at: product(dict(zip(gone, at, strict=True))))
    axes = {n: e.axis(sizes[n], index, guard, k) for k, n in enumerate(gone)}
    return e.reduce("sum", list(axes.values()), product({n: axis.leaf for n, axis in axes.items()}))


# Segments


def _segment(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (source, offsets), (kind,) = x.args, x.params
    begin, end = (e.index_of(e.at(offsets, (at,), guard)) for at in (index[0], index[0] + 1))
    axis = e.axis(source.dims[0], (begin, end, *index), guard)
    rows = Axis(axis.name, axis.size, highest(begin, 0), lowest(end, axis.size))
    total = e.reduce(kind, [rows], e.at(source, (axis.leaf, *index[1:]), guard))
    some = (begin < end,)
    return total if kind == "sum" else e.select(some, total, e.number(0, total.dtype))


def _segment_of(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (offsets,) = x.args
    axis = e.axis(offsets.dims[0] - 1, index, guard)
    begin = e.index_of(e.at(offsets, (axis.leaf + 1,), guard))
    one, none = e.number(1, "int64"), e.number(0, "int64")
    return e.reduce("sum", [axis], e.select((begin <= index[0],), one, none))


# Gathers


def _read(
    e: Elements, x: Tensor, at: Element, axis: int, mode: str, index: Callable[[Number], Index], guard: Conditions
) -> Element:
    """An element of which the index along an axis was computed."""
    size = x.dims[axis]
    known = _as_number(e, at)
    if mode == "zero":
        place = e.index_of(at) if known is None else known
        there: Conditions = (place >= 0, place < size)
        return e.select(there, e.at(x, index(place), (*guard, *there)), e.number(0, x.dtype))
    if mode == "check":
        place = e.index_of(e.checked(at, size, guard))
    else:
        place = lowest(highest(e.index_of(at) if known is None else known, 0), size - 1)
    some = (size > 0,)
    return e.select(some, e.at(x, index(place), (*guard, *some)), e.number(0, x.dtype))


def _take(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (source, indices), (axis, mode) = x.args, x.params
    behind = axis + indices.rank
    at = e.at(indices, index[axis:behind], guard)
    return _read(e, source, at, axis, mode, lambda place: (*index[:axis], place, *index[behind:]), guard)


def _pick(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (source, indices), (axis, mode) = x.args, x.params
    at = e.at(indices, index, guard)
    return _read(e, source, at, axis, mode, lambda place: (*index[:axis], place, *index[axis + 1 :]), guard)


def _checked(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    return e.cast(e.checked(e.at(x.args[0], index, guard), x.params[0], guard), x.dtype)


def _put(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    """Where there is one index for all of an axis, each element asks whether it is the one."""
    updates, indices, *base = x.args
    (axis, *_) = x.params
    source = (*index[:axis], number(0), *index[axis + 1 :])
    there = (e.index_of(e.at(indices, source, guard)) == index[axis],)
    one = e.cast(e.at(updates, source, guard), x.dtype)  # the same wherever along the axis: computed once
    if not base:
        return e.select(there, one, e.number(0, x.dtype))
    before = e.at(base[0], index, guard)
    return e.select(there, e.made("map", (before, one), ("add",), x.dtype), before)


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
"""By primitive, the element of a tensor that it makes."""
