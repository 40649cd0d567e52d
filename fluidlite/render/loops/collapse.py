"""Neighbouring axes that all primitives of a trace go through as through one are one, before loops are made.

Indices have fewer numbers then, and the text of a kernel does not depend on how long a short axis is that is only part
of a longer one. Axes that lie behind one another at some sizes only are joined later: see ``merging``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import NamedTuple
from weakref import WeakKeyDictionary

from fluidlite.expr.generic_sizes import generic
from fluidlite.expr.number import number, product
from fluidlite.expr.tensor import Params, Tensor, tensor
from fluidlite.expr.traced import Traced
from fluidlite.expr.tracing import tracing


class Cut(NamedTuple):
    """Where dims are cut in two: their product, and that of the inner ones, at generic sizes."""

    total: int
    inner: int


Pair = tuple[int, int] | Cut
"""A tensor, by identity, and one of its axes: it and the next one."""
End = tuple[int, int]
"""A pair of an operand, by number, or of the result, which comes after the operands."""
Match = tuple[End, End | Cut]
Matches = Callable[[Tensor, dict[str, int]], Iterator[Match]]
"""Which pairs of operands and of the result of a primitive are the same two axes, given sizes that are equal only where
all calls have equal ones; those that match none are two axes.
"""

_known: WeakKeyDictionary[Traced, Traced | None] = WeakKeyDictionary()
"""None: the trace is as it was, and is not kept alive by its own entry."""


def collapsed(traced: Traced) -> Traced:
    """The trace with as few axes as all of its calls can have: results keep the order of their elements."""
    if traced not in _known:
        _known[traced] = _Collapse(traced).made()
    return _known[traced] or traced


class _Collapse:
    """Joins pairs that match; where one of them is to stay two axes, all do."""

    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self._first: dict[Pair, Pair] = {}  # by pair, one that it matches
        self._apart: set[Pair] = set()
        self._axes: dict[Tensor, list[int]] = {}
        for x in traced.every:
            self._relate(x, traced.generic_sizes)
        alike: dict[tuple[int | str, ...], Tensor] = {}
        for x in (x for found in traced.outputs.values() for x in found):  # one loop may store them all
            known = tuple([generic(d, traced.generic_sizes) or d.key for d in x.dims])
            for k in range(x.rank - 1):
                self._join((id(x), k), (id(alike.setdefault(known, x)), k))

    def made(self) -> Traced | None:
        """The trace with other dims; None if no axes become one."""
        if not any(self._joined(x, k) for x in self.traced.every for k in range(x.rank - 1)):
            return None
        done: dict[Tensor, Tensor] = {}
        with tracing({}):
            for x in self.traced.every:
                done[x] = self._remade(x, [done[arg] for arg in x.args])
        outputs, inputs = (
            {slot: tuple([done.get(x, x) for x in found]) for slot, found in side.items()}
            for side in (self.traced.outputs, self.traced.inputs)
        )
        return replace(self.traced, outputs=outputs, inputs=inputs)

    def _relate(self, x: Tensor, sizes: dict[str, int]) -> None:
        every = (*x.args, x)
        left = {(i, k) for i, each in enumerate(every) for k in range(each.rank - 1)}
        for (i, k), other in MATCHES[x.op](x, sizes) if x.op in MATCHES else ():
            left -= {(i, k), other}
            pair = other if isinstance(other, Cut) else (id(every[other[0]]), other[1])
            self._join((id(every[i]), k), pair)
        self._apart |= {self._representative((id(every[i]), k)) for i, k in left}

    def _join(self, a: Pair, b: Pair) -> None:
        a, b = self._representative(a), self._representative(b)
        if a != b:
            self._first[a] = b
            self._apart |= {b} if a in self._apart else set()

    def _representative(self, pair: Pair) -> Pair:
        while pair in self._first:
            pair = self._first[pair]
        return pair

    def _joined(self, x: Tensor, k: int) -> bool:
        return self._representative((id(x), k)) not in self._apart

    def axes(self, x: Tensor) -> list[int]:
        """For each axis of a tensor, which one it becomes or is part of."""
        if x not in self._axes:
            found = list(range(min(x.rank, 1)))
            for k in range(x.rank - 1):
                found.append(found[-1] + (not self._joined(x, k)))
            self._axes[x] = found
        return self._axes[x]

    def firsts(self, x: Tensor) -> list[int]:
        """The axes of a tensor with which those that it will have begin."""
        axes = self.axes(x)
        return [k for k, axis in enumerate(axes) if k == 0 or axes[k - 1] != axis]

    def _remade(self, x: Tensor, args: list[Tensor]) -> Tensor:
        bounds = pairwise([*self.firsts(x), x.rank])
        dims = [product(x.dims[a:b]) for a, b in bounds]
        if x.op == "reshape":
            while args[0].op == "reshape":
                args = list(args[0].args)
            if tuple([d.key for d in dims]) == args[0].sizes:
                return args[0]
        params = _PARAMS[x.op](x, self) if x.op in _PARAMS else x.params
        return tensor(x.op, args, params, dims, x.dtype)


# Matches


def _by_axes(i: int, axes: Sequence[int | None], result: int) -> Iterator[Match]:
    """Of operand ``i``, whose axes are these of the result; None: one that the primitive goes through otherwise."""
    for k, (a, b) in enumerate(pairwise(axes)):
        if a is not None and b == a + 1:
            yield (i, k), (result, a)


def _but(touched: Callable[[Tensor], Iterable[int]]) -> Matches:
    """All have the same axes, of which the primitive goes through some in a way of its own."""

    def matches(x: Tensor, sizes: dict[str, int]) -> Iterator[Match]:
        without = set(touched(x))
        for i, each in enumerate((*x.args, x)):
            yield from _by_axes(i, [None if k in without else k for k in range(each.rank)], len(x.args))

    return matches


def _where_equal(x: Tensor, sizes: dict[str, int]) -> Iterator[Match]:
    """Axes that are 1 in the operand or in the result are one axis among themselves."""
    some = set(x.params[-1])
    for k in range(x.rank - 1):
        if (k in some) == (k + 1 in some):
            yield (0, k), (1, k)


def _cut(x: Tensor) -> Iterator[int]:
    firsts, steps = x.params
    for k, (first, step) in enumerate(zip(firsts, steps, strict=True)):
        if first.key != "0" or number(step).key != "1" or x.dims[k].key != x.args[0].dims[k].key:
            yield k


def _padded(x: Tensor) -> Iterator[int]:
    for k, counts in enumerate(zip(*x.params, strict=True)):
        if any(number(n).key != "0" for n in counts):
            yield k


def _reshaped(x: Tensor, sizes: dict[str, int]) -> Iterator[Match]:
    """Where as much lies within, dims are cut at the same place; one that is cut elsewhere is cut in all reshapes."""
    every = [[generic(d, sizes) or 0 for d in each.dims] for each in (*x.args, x)]
    total = prod(every[0])
    if not total or total != prod(every[1]):
        return
    for i, dims in enumerate(every):
        for k in range(len(dims) - 1):
            inner = prod(dims[k + 1 :])
            free = inner in (1, total) or dims[k] == dims[k + 1] == 1
            yield (i, k), (i, k) if free else Cut(total, inner)


def _transposed(x: Tensor, sizes: dict[str, int]) -> Iterator[Match]:
    (order,) = x.params
    yield from _by_axes(0, [order.index(k) for k in range(x.rank)], 1)


def _windowed(x: Tensor, sizes: dict[str, int]) -> Iterator[Match]:
    axis = x.params[0]
    yield from _by_axes(0, [None if k == axis else k + (k > axis) for k in range(x.rank - 1)], 1)


def _unwindowed(x: Tensor, sizes: dict[str, int]) -> Iterator[Match]:
    axis = x.params[0]
    yield from _by_axes(0, [None if k - axis in (0, 1) else k - (k > axis) for k in range(x.rank + 1)], 1)


def _taken(x: Tensor, sizes: dict[str, int]) -> Iterator[Match]:
    (source, indices), axis = x.args, x.params[0]
    yield from _by_axes(0, [None if k == axis else k + (indices.rank - 1) * (k > axis) for k in range(source.rank)], 2)
    yield from _by_axes(1, range(axis, axis + indices.rank), 2)


def _contracted(x: Tensor, sizes: dict[str, int]) -> Iterator[Match]:
    for i, names in enumerate(x.params):
        for k, (a, b) in enumerate(pairwise(names)):
            if all(a + b in others or not {a, b} & set(others) for others in x.params):
                yield from (((i, k), (j, others.index(a))) for j, others in enumerate(x.params) if a in others)


_SAME = _but(lambda x: ())
MATCHES: dict[str, Matches] = {
    "input": _SAME,
    "number": _SAME,
    "random": _SAME,
    "iota": _but(lambda x: x.params),
    "map": _SAME,
    "cast": _SAME,
    "stop": _SAME,
    "checked": _SAME,
    "broadcast": _where_equal,
    "reduce": _where_equal,
    "arg": _but(lambda x: x.params[1:]),
    "scan": _but(lambda x: x.params[1:2]),
    "reshape": _reshaped,
    "transpose": _transposed,
    "slice": _but(_cut),
    "pad": _but(_padded),
    "concat": _but(lambda x: x.params),
    "window": _windowed,
    "unwindow": _unwindowed,
    "take": _taken,
    "contract": _contracted,
}
"""By primitive; the axes of all others stay as they are."""


# Params


def _axis(x: Tensor, to: _Collapse) -> Params:
    """Of primitives whose first param is an axis of the operand."""
    return (to.axes(x.args[0] if x.args else x)[x.params[0]], *x.params[1:])


def _second(x: Tensor, to: _Collapse) -> Params:
    kind, axis, *others = x.params
    return (kind, to.axes(x)[axis], *others)


def _axes(x: Tensor, to: _Collapse) -> Params:
    return (*x.params[:-1], tuple(sorted({to.axes(x)[axis] for axis in x.params[-1]})))


def _counts(x: Tensor, to: _Collapse) -> Params:
    return tuple(tuple(counts[k] for k in to.firsts(x)) for counts in x.params)


def _order(x: Tensor, to: _Collapse) -> Params:
    (order,) = x.params
    return (tuple(to.axes(x.args[0])[order[k]] for k in to.firsts(x)),)


def _names(x: Tensor, to: _Collapse) -> Params:
    every = zip((*x.args, x), x.params, strict=True)
    return tuple("".join(names[k] for k in to.firsts(each)) for each, names in every)


_PARAMS: dict[str, Callable[[Tensor, _Collapse], Params]] = {
    "iota": _axis,
    "concat": _axis,
    "window": _axis,
    "unwindow": _axis,
    "take": _axis,
    "arg": _second,
    "scan": _second,
    "broadcast": _axes,
    "reduce": _axes,
    "slice": _counts,
    "pad": _counts,
    "transpose": _order,
    "contract": _names,
}
"""By primitive, what it is made with if axes become one; of all others it is the same."""
