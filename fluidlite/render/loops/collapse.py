"""Collapses neighbouring axes of a trace, before it is lowered, if all primitives treat them as one axis.

Indices get simpler, and the text of a kernel does not depend on the length of a short axis that is part of a longer
one. Axes that are contiguous only at some sizes are merged later: see ``merging``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import NamedTuple
from weakref import WeakKeyDictionary

from fluidlite.expr.generic_sizes import generic_value
from fluidlite.expr.number import number, product
from fluidlite.expr.tensor import Params, Tensor, tensor
from fluidlite.expr.traced import Traced
from fluidlite.expr.tracing import tracing


class CutPosition(NamedTuple):
    """A position between the dims of reshapes: the product of all dims, and of the inner ones, at generic sizes."""

    total: int
    inner: int


Pair = tuple[int, int] | CutPosition
"""Two neighbouring axes: the id of a tensor, and the first of its two axes."""
End = tuple[int, int]
"""Two neighbouring axes of one primitive: the number of an operand (the result has the last), and the first axis."""
Match = tuple[End, End | CutPosition]
Matches = Callable[[Tensor, dict[str, int]], Iterator[Match]]
"""The pairs of axes of operands and result that are the same two axes, given generic sizes. A pair without a match must
not be collapsed.
"""

_cache: WeakKeyDictionary[Traced, Traced | None] = WeakKeyDictionary()
"""Collapsed traces; None for an unchanged one, so that an entry does not keep its own key alive."""


def collapsed(traced: Traced) -> Traced:
    """Collapse as many axes of a trace as possible for all of its calls; results keep the order of their elements."""
    if traced not in _cache:
        _cache[traced] = _Collapse(traced).collapsed()
    return _cache[traced] or traced


class _Collapse:
    """Union-find over pairs of axes: pairs that match are collapsed together, or not at all."""

    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self._parent: dict[Pair, Pair] = {}  # parent in the union-find forest
        self._uncollapsible: set[Pair] = set()
        for x in traced.every:
            self._relate(x, traced.generic_sizes)
        first_outputs: dict[tuple[int | str, ...], Tensor] = {}
        for x in (x for tensors in traced.outputs.values() for x in tensors):  # one nest may store all outputs
            sizes_key = tuple([generic_value(d, traced.generic_sizes) or d.key for d in x.dims])
            for k in range(x.rank - 1):
                self._join((id(x), k), (id(first_outputs.setdefault(sizes_key, x)), k))

    def collapsed(self) -> Traced | None:
        """The collapsed trace; None if no axes collapse."""
        if not any(self._is_collapsed(x, k) for x in self.traced.every for k in range(x.rank - 1)):
            return None
        rebuilt: dict[Tensor, Tensor] = {}
        with tracing({}):
            for x in self.traced.every:
                rebuilt[x] = self._rebuild(x, [rebuilt[arg] for arg in x.args])
        outputs, inputs = (
            {slot: tuple([rebuilt.get(x, x) for x in tensors]) for slot, tensors in side.items()}
            for side in (self.traced.outputs, self.traced.inputs)
        )
        return replace(self.traced, outputs=outputs, inputs=inputs)

    def _relate(self, x: Tensor, sizes: dict[str, int]) -> None:
        tensors = (*x.args, x)
        unmatched = {(i, k) for i, each in enumerate(tensors) for k in range(each.rank - 1)}
        for (i, k), other in MATCHES[x.op](x, sizes) if x.op in MATCHES else ():
            unmatched -= {(i, k), other}
            pair = other if isinstance(other, CutPosition) else (id(tensors[other[0]]), other[1])
            self._join((id(tensors[i]), k), pair)
        self._uncollapsible |= {self._representative((id(tensors[i]), k)) for i, k in unmatched}

    def _join(self, a: Pair, b: Pair) -> None:
        a, b = self._representative(a), self._representative(b)
        if a != b:
            self._parent[a] = b
            self._uncollapsible |= {b} if a in self._uncollapsible else set()

    def _representative(self, pair: Pair) -> Pair:
        while pair in self._parent:
            pair = self._parent[pair]
        return pair

    def _is_collapsed(self, x: Tensor, k: int) -> bool:
        return self._representative((id(x), k)) not in self._uncollapsible

    def axes(self, x: Tensor) -> list[int]:
        """By axis of a tensor, the collapsed axis that it is part of."""
        axes = list(range(min(x.rank, 1)))
        for k in range(x.rank - 1):
            axes.append(axes[-1] + (not self._is_collapsed(x, k)))
        return axes

    def firsts(self, x: Tensor) -> list[int]:
        """The first axis of each collapsed axis of a tensor."""
        axes = self.axes(x)
        return [k for k, axis in enumerate(axes) if k == 0 or axes[k - 1] != axis]

    def _rebuild(self, x: Tensor, args: list[Tensor]) -> Tensor:
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
    """The matches of operand ``i``, whose axes correspond to these of the result; None: an axis without counterpart."""
    for k, (a, b) in enumerate(pairwise(axes)):
        if a is not None and b == a + 1:
            yield (i, k), (result, a)


def _matches_except(touched: Callable[[Tensor], Iterable[int]]) -> Matches:
    """Operands and result have the same axes; the ``touched`` ones must not be collapsed."""

    def matches(x: Tensor, sizes: dict[str, int]) -> Iterator[Match]:
        excluded = set(touched(x))
        for i, each in enumerate((*x.args, x)):
            yield from _by_axes(i, [None if k in excluded else k for k in range(each.rank)], len(x.args))

    return matches


def _where_equal(x: Tensor, sizes: dict[str, int]) -> Iterator[Match]:
    """Neighbouring broadcast or reduced axes match each other, and so do neighbouring other axes."""
    changed = set(x.params[-1])
    for k in range(x.rank - 1):
        if (k in changed) == (k + 1 in changed):
            yield (0, k), (1, k)


def _sliced(x: Tensor) -> Iterator[int]:
    firsts, steps = x.params
    for k, (first, step) in enumerate(zip(firsts, steps, strict=True)):
        if first.key != "0" or number(step).key != "1" or x.dims[k].key != x.args[0].dims[k].key:
            yield k


def _padded(x: Tensor) -> Iterator[int]:
    for k, counts in enumerate(zip(*x.params, strict=True)):
        if any(number(n).key != "0" for n in counts):
            yield k


def _reshaped(x: Tensor, sizes: dict[str, int]) -> Iterator[Match]:
    """Positions with equal inner products are one position, which is shared by all reshapes of one element count."""
    dims_lists = [[generic_value(d, sizes) or 0 for d in each.dims] for each in (*x.args, x)]
    total = prod(dims_lists[0])
    if not total or total != prod(dims_lists[1]):
        return
    for i, dims in enumerate(dims_lists):
        for k in range(len(dims) - 1):
            inner = prod(dims[k + 1 :])
            free = inner in (1, total) or dims[k] == dims[k + 1] == 1
            yield (i, k), (i, k) if free else CutPosition(total, inner)


def _transposed(x: Tensor, sizes: dict[str, int]) -> Iterator[Match]:
    (order,) = x.params
    yield from _by_axes(0, [order.index(k) for k in range(x.rank)], 1)


def _windowed(x: Tensor, sizes: dict[str, int]) -> Iterator[Match]:
    axis = x.params[0]
    yield from _by_axes(0, [None if k == axis else k + (k > axis) for k in range(x.rank - 1)], 1)


def _unwindowed(x: Tensor, sizes: dict[str, int]) -> Iterator[Match]:
    axis = x.params[0]
    yield from _by_axes(0, [None if k - axis in (0, 1) else k - (k > axis) for k in range(x.rank + 1)], 1)


def _take(x: Tensor, sizes: dict[str, int]) -> Iterator[Match]:
    (source, indices), axis = x.args, x.params[0]
    yield from _by_axes(0, [None if k == axis else k + (indices.rank - 1) * (k > axis) for k in range(source.rank)], 2)
    yield from _by_axes(1, range(axis, axis + indices.rank), 2)


def _contracted(x: Tensor, sizes: dict[str, int]) -> Iterator[Match]:
    for i, names in enumerate(x.params):
        for k, (a, b) in enumerate(pairwise(names)):
            if all(a + b in letters or not {a, b} & set(letters) for letters in x.params):
                yield from (((i, k), (j, letters.index(a))) for j, letters in enumerate(x.params) if a in letters)


_SAME = _matches_except(lambda x: ())
MATCHES: dict[str, Matches] = {
    "input": _SAME,
    "number": _SAME,
    "random": _SAME,
    "iota": _matches_except(lambda x: x.params),
    "map": _SAME,
    "cast": _SAME,
    "stop": _SAME,
    "checked": _SAME,
    "broadcast": _where_equal,
    "reduce": _where_equal,
    "arg": _matches_except(lambda x: x.params[1:]),
    "scan": _matches_except(lambda x: x.params[1:2]),
    "reshape": _reshaped,
    "transpose": _transposed,
    "slice": _matches_except(_sliced),
    "pad": _matches_except(_padded),
    "concat": _matches_except(lambda x: x.params),
    "window": _windowed,
    "unwindow": _unwindowed,
    "take": _take,
    "contract": _contracted,
}
"""The matches of each primitive; axes of all others are not collapsed."""


# Params


def _axis(x: Tensor, to: _Collapse) -> Params:
    """The params of primitives whose first param is an axis of the operand."""
    return (to.axes(x.args[0] if x.args else x)[x.params[0]], *x.params[1:])


def _second(x: Tensor, to: _Collapse) -> Params:
    kind, axis, *rest = x.params
    return (kind, to.axes(x)[axis], *rest)


def _axes(x: Tensor, to: _Collapse) -> Params:
    return (*x.params[:-1], tuple(sorted({to.axes(x)[axis] for axis in x.params[-1]})))


def _counts(x: Tensor, to: _Collapse) -> Params:
    return tuple(tuple(counts[k] for k in to.firsts(x)) for counts in x.params)


def _order(x: Tensor, to: _Collapse) -> Params:
    (order,) = x.params
    return (tuple(to.axes(x.args[0])[order[k]] for k in to.firsts(x)),)


def _names(x: Tensor, to: _Collapse) -> Params:
    tensors = zip((*x.args, x), x.params, strict=True)
    return tuple("".join(names[k] for k in to.firsts(each)) for each, names in tensors)


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
"""By primitive, the params after collapsing; those of all others are unchanged."""
