"""What an element of a tensor is computed of: one rule for each primitive of tensors, as loops compute it.

An element is asked for at an index, which is computed of the axes of the loops around it; views are then nothing but
other indices. Reductions bring axes of their own. Where an index may lie outside, conditions say when it does not, and
whatever is read below them is read only there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fluidlite.expr.number import Condition, Number, highest, lowest, number
from fluidlite.expr.tensor import Tensor
from fluidlite.render.loops.indices import (
    Conditions,
    Index,
    axis_leaf,
    element_leaf,
    linear,
    through_reshape,
)


@dataclass(frozen=True)
class Axis:
    """An axis of a loop, which counts from 0 to its size."""

    name: str
    size: Number = field(compare=False)

    @property
    def leaf(self) -> Number:
        """Its number."""
        return axis_leaf(self.name)


@dataclass(frozen=True, eq=False)
class Element:
    """One number that a loop computes.

    Attributes
    ----------
    op : str
        ``load`` (params: source, place among its elements, conditions under which that is there), ``number`` (params: a
        Number of the call), ``index`` (params: a Number of axes), ``map`` (params: a scalar primitive), ``cast``,
        ``select`` (params: conditions; the first operand where all hold, else the second), ``checked`` (params: size,
        conditions), ``reduce`` (params: kind, axes) or ``arg`` (params: kind, axis).
    args : tuple of Element
    dtype : str
        float16 and bfloat16 only of what is moved.
    """

    op: str
    args: tuple[Element, ...]
    params: tuple[Any, ...]
    dtype: str


Source = tuple[Any, ...]
"""What is loaded from: ``("in", slot, number)``, ``("made", number)`` or ``("offsets", leaf)``."""


@dataclass
class Elements:
    """Asks for elements; equal ones are one.

    Attributes
    ----------
    stored : mapping of Tensor to Source
        Tensors that lie in memory when the loops run, beside operands.
    computed : dict of str to Element
        The elements behind the leaves of computed indices.
    """

    stored: Mapping[Tensor, Source]
    computed: dict[str, Element] = field(default_factory=dict)
    known: dict[Any, Element] = field(default_factory=dict)
    names: dict[Element, str] = field(default_factory=dict)
    axes: int = 0

    def axis(self, size: Number) -> Axis:
        """A new axis."""
        self.axes += 1
        return Axis(f"r{self.axes}", size)

    def made(self, op: str, args: Sequence[Element], params: tuple[Any, ...], dtype: str) -> Element:
        """The element of these facts."""
        key = (op, tuple(map(id, args)), _key(params), dtype)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = Element(op, tuple(args), params, dtype)
        return found

    def at(self, x: Tensor, index: Index, guard: Conditions = ()) -> Element:
        """The element of a tensor at an index, which is there where all of ``guard`` holds."""
        key = (x, tuple(i.key for i in index), tuple(c.key for c in guard))
        found = self.known.get(key)
        if found is None:
            source = self.stored.get(x)
            if source is not None:
                found = self.load(source, linear(index, x.dims), guard, x.dtype)
            else:
                found = ELEMENTS[x.op](self, x, index, guard)
            self.known[key] = found
        return found

    def load(self, source: Source, place: Number, guard: Conditions, dtype: str) -> Element:
        """What lies in memory."""
        return self.made("load", (), (source, place, guard), dtype)

    def number(self, value: Any, dtype: str) -> Element:
        """A number of the call."""
        return self.made("number", (), (number(value),), dtype)

    def cast(self, x: Element, dtype: str) -> Element:
        """An element in another dtype."""
        return x if x.dtype == dtype else self.made("cast", (x,), (), dtype)

    def select(self, conditions: Conditions, a: Element, b: Element) -> Element:
        """``a`` where all conditions hold, else ``b``."""
        return self.made("select", (a, b), (conditions,), a.dtype) if conditions else a

    def index_of(self, x: Element) -> Number:
        """An element as a number that indices are computed of."""
        whole = self.cast(x, "int64")
        name = self.names.setdefault(whole, f"e{len(self.names)}")
        self.computed[name] = whole
        return element_leaf(name)

    def checked(self, x: Element, size: Number, guard: Conditions) -> Element:
        """An index that must be at least 0 and less than a size where the guard holds; another is moved there."""
        return self.made("checked", (self.cast(x, "int64"),), (size, guard), "int64")

    def reduce(self, kind: str, axes: Sequence[Axis], body: Element) -> Element:
        """A reduction of what loops compute."""
        return self.made("reduce", (body,), (kind, tuple(axes)), body.dtype)


def _key(params: Any) -> Any:
    if isinstance(params, tuple):
        return tuple(map(_key, params))
    return params.key if isinstance(params, (Number, Condition)) else params


Rule = Callable[[Elements, Tensor, Index, Conditions], Element]


# Leaves and elementwise


def _input(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    return e.load(("in", *x.params), linear(index, x.dims), guard, x.dtype)


def _number(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    return e.number(x.params[0], x.dtype)


def _iota(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    return e.cast(e.made("index", (), (index[x.params[0]],), "int64"), x.dtype)


def _offsets(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    return e.load(("offsets", x.params[2].value), index[0], guard, x.dtype)


def _map(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    args = [e.at(arg, index if arg.dims else (), guard) for arg in x.args]
    return e.made("map", args, x.params, x.dtype)


def _cast(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    return e.cast(e.at(x.args[0], index, guard), x.dtype)


def _stop(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    return e.at(x.args[0], index, guard)


# Views


def _reshape(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (source,) = x.args
    return e.at(source, through_reshape(index, x.dims, source.dims), guard)


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
    for i, d, size, low, n in zip(index, source.dims, x.dims, lows, between, strict=True):
        at = i - low
        if low.key == "0" and d.key == size.key:
            inner.append(at)
            continue
        spread = number(n) + 1
        inner.append(at // spread)
        inside += [at >= 0, inner[-1] < d]
        if spread.key != "1":
            inside.append(at % spread == 0)
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
        there = (at >= 0, at < part.dims[axis])
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
    tap = e.axis(parts.dims[axis + 1])
    begin = index[axis] - tap.leaf * dilation
    which = begin // stride
    there = (begin >= 0, which < parts.dims[axis], begin == which * stride)
    one = e.at(parts, (*index[:axis], which, tap.leaf, *index[axis + 1 :]), (*guard, *there))
    return e.reduce("sum", [tap], e.select(there, one, e.number(0, one.dtype)))


# Reductions


def _reduce(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (source,), (kind, gone) = x.args, x.params
    axes = {axis: e.axis(source.dims[axis]) for axis in gone}
    inner = tuple(axes[k].leaf if k in axes else i for k, i in enumerate(index))
    return e.reduce(kind, list(axes.values()), e.at(source, inner, guard))


def _arg(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (source,), (kind, at) = x.args, x.params
    axis = e.axis(source.dims[at])
    body = e.at(source, (*index[:at], axis.leaf, *index[at + 1 :]), guard)
    return e.made("arg", (body,), (kind, axis), "int64")


def _contract(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (a, b), (mine, theirs, out) = x.args, x.params
    sizes = {n: d for names, t in ((mine, a), (theirs, b)) for n, d in zip(names, t.dims, strict=True)}
    axes = {n: e.axis(d) for n, d in sizes.items() if n not in out}
    at = {**{n: axis.leaf for n, axis in axes.items()}, **dict(zip(out, index, strict=True))}
    first, second = (e.at(t, tuple(at[n] for n in names), guard) for names, t in ((mine, a), (theirs, b)))
    product = e.made("map", (first, second), ("mul",), x.dtype)
    return e.reduce("sum", list(axes.values()), product) if axes else product


def _scan(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (source,), (kind, at, reverse, exclusive) = x.args, x.params
    axis = e.axis(source.dims[at])
    first, last = (index[at], axis.leaf) if reverse else (axis.leaf, index[at])
    there = (first < last,) if exclusive else (first <= last,)
    one = e.at(source, (*index[:at], axis.leaf, *index[at + 1 :]), (*guard, *there))
    return e.reduce(kind, [axis], e.select(there, one, e.number(_neutral(kind, one.dtype), one.dtype)))


def _neutral(kind: str, dtype: str) -> Any:
    from fluidlite.expr.reductions import of_nothing

    return of_nothing(kind, dtype) if kind != "sum" else 0


# Segments


def _segment(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (source, offsets), (kind,) = x.args, x.params
    begin, end = (e.index_of(e.at(offsets, (at,), guard)) for at in (index[0], index[0] + 1))
    axis = e.axis(source.dims[0])
    there = (axis.leaf >= begin, axis.leaf < end)
    one = e.at(source, (axis.leaf, *index[1:]), (*guard, *there))
    total = e.reduce(kind, [axis], e.select(there, one, e.number(_neutral(kind, one.dtype), one.dtype)))
    some = (begin < end,)
    return total if kind == "sum" else e.select(some, total, e.number(0, total.dtype))


def _segment_of(e: Elements, x: Tensor, index: Index, guard: Conditions) -> Element:
    (offsets,) = x.args
    axis = e.axis(offsets.dims[0] - 1)
    begin = e.index_of(e.at(offsets, (axis.leaf + 1,), guard))
    one, none = e.number(1, "int64"), e.number(0, "int64")
    return e.reduce("sum", [axis], e.select((begin <= index[0],), one, none))


# Gathers


def _read(
    e: Elements, x: Tensor, at: Element, axis: int, mode: str, index: Callable[[Number], Index], guard: Conditions
) -> Element:
    """An element of which the index along an axis was computed."""
    size = x.dims[axis]
    if mode == "zero":
        place = e.index_of(at)
        there: Conditions = (place >= 0, place < size)
        return e.select(there, e.at(x, index(place), (*guard, *there)), e.number(0, x.dtype))
    if mode == "check":
        place = e.index_of(e.checked(at, size, guard))
    else:
        place = lowest(highest(e.index_of(at), 0), size - 1)
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


ELEMENTS: dict[str, Rule] = {
    "input": _input, "number": _number, "iota": _iota, "offsets": _offsets, "map": _map, "cast": _cast, "stop": _stop,
    "reshape": _reshape, "transpose": _transpose, "broadcast": _broadcast, "slice": _slice, "pad": _pad,
    "concat": _concat, "window": _window, "unwindow": _unwindow, "reduce": _reduce, "arg": _arg,
    "contract": _contract, "scan": _scan, "segment": _segment, "segment_of": _segment_of, "take": _take,
    "pick": _pick, "checked": _checked,
}  # fmt: skip
"""By primitive, the element of a tensor that it makes."""
