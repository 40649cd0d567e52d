"""The nests of an expression: which tensors are stored between loops, and the loops that compute each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass

from fluidlite.expr.number import Number, number
from fluidlite.expr.tensor import Tensor, ordered
from fluidlite.expr.traced import Traced
from fluidlite.render.loops.elements import Axis, Element, Elements, Source
from fluidlite.render.loops.indices import Conditions, Index, linear

SCATTERING = frozenset({"add_at", "add_rows", "put", "set_at"})
"""Primitives that say of each of their operands' elements where it goes."""
REDUCING = frozenset({"reduce", "arg", "contract", "unwindow", "scan", "segment", "segment_of"})
"""Primitives of which an element costs a loop."""
REPEATING = frozenset({"broadcast", "window", "take", "pick", "unwindow", "contract", "scan", "segment"})
"""Primitives that read an element more than once, or for elements of which it is none."""


@dataclass(frozen=True)
class Nest:
    """Loops that compute elements of a tensor, and store each.

    Attributes
    ----------
    target : Source
        What they are stored in: ``("out", slot, number)`` or ``("made", number)``.
    dims : tuple of Number
        Those of the target.
    axes, ordered : tuple of Axis
        Those of ``ordered`` are gone through in order, within all others, which may be gone through in any.
    value : Element
        What is computed for each of their numbers.
    place : Number
        Where it is stored.
    there : tuple of Condition
        Under which conditions it is stored.
    combine : str
        ``""``: every place is written once. ``"add"``: what is there already is added to. ``"set"``: the last in order
        stays.
    dtype : str
    computed : mapping of str to Element
        What is behind the leaves of computed indices.
    """

    target: Source
    dims: tuple[Number, ...]
    axes: tuple[Axis, ...]
    ordered: tuple[Axis, ...]
    value: Element
    place: Number
    there: Conditions
    combine: str
    dtype: str
    computed: Mapping[str, Element]


def nests_of(traced: Traced, dtypes: Mapping[tuple[str, int], str]) -> tuple[Nest, ...]:
    """The nests of an expression, those that others read first.

    A tensor of which an element costs a loop is stored where it is read for other elements than its own, or twice;
    what is scattered is always stored, in the dtype in which it is added up.

    Parameters
    ----------
    traced : Traced
    dtypes : mapping of (slot, number) to dtype
        The outputs that are wanted, and as what they are stored.
    """
    results = [(slot, i, traced.outputs[slot][i]) for slot, i in dtypes]
    rounded = {id(x) for slot, i, x in results if x.dtype != dtypes[slot, i]}
    stored: dict[Tensor, Source] = {}
    nests: list[Nest] = []
    for x in _kept([x for _, _, x in results], rounded):
        source = ("made", len(stored))
        nests += _nests_for(x, source, stored)
        stored[x] = source
    for slot, i, x in results:
        nests += _nests_for(x, ("out", slot, i), stored)
    return tuple(nests)


def _nests_for(x: Tensor, target: Source, stored: Mapping[Tensor, Source]) -> list[Nest]:
    if x.op not in SCATTERING or x in stored:
        return [_plain(x, x, target, stored)]
    base = x.args[0] if x.op == "set_at" else x.args[2] if len(x.args) == 3 else None
    return [_plain(x, base, target, stored), _scattered(x, target, stored)]


def _plain(x: Tensor, made: Tensor | None, target: Source, stored: Mapping[Tensor, Source]) -> Nest:
    """All elements of ``made``, or of zeros, as those of ``x``."""
    e = Elements(stored)
    axes, index = _axes(x)
    value = e.number(0, x.dtype) if made is None else e.at(made, index)
    return _nest(e, x, target, axes, e.cast(value, x.dtype), index)


def _scattered(x: Tensor, target: Source, stored: Mapping[Tensor, Source]) -> Nest:
    """Each element of the updates at the place that is computed for it."""
    e = Elements(stored)
    updates, indices = (x.args[1], x.args[2]) if x.op == "set_at" else x.args[:2]
    axes, index = _axes(updates)
    axis = x.params[0] if x.params else 0
    behind = axis + (1 if x.op == "put" else indices.rank)
    given = e.at(indices, index if x.op == "put" else index[axis:behind])
    at = e.index_of(given)
    there = (at >= 0, at < x.dims[axis])
    if x.op == "set_at":
        at = e.index_of(e.checked(given, x.dims[axis], ()))
    value = e.at(updates, index)
    combine = "set" if x.op == "set_at" else "add"
    place = (*index[:axis], at, *index[behind:])
    return _nest(e, x, target, axes, value, place, there, combine, axes[axis:behind])


def _axes(x: Tensor) -> tuple[tuple[Axis, ...], Index]:
    """The axes of loops over a tensor, and the index of one of its elements."""
    axes = tuple(Axis(f"i{k}", d) for k, d in enumerate(x.dims))
    return axes, tuple(number(0) if axis.size.key == "1" else axis.leaf for axis in axes)


def _nest(
    e: Elements, x: Tensor, target: Source, axes: tuple[Axis, ...], value: Element, index: Index,
    there: Conditions = (), combine: str = "", ordered: tuple[Axis, ...] = (),
) -> Nest:  # fmt: skip
    place = linear(index, x.dims)
    return Nest(target, x.dims, axes, ordered, value, place, there, combine, x.dtype, e.computed)


def _kept(results: list[Tensor], rounded: Container[int]) -> list[Tensor]:
    """The tensors that are stored between nests, those that others are made of first.

    ``rounded`` are the ids of results that are not stored as they are computed.
    """
    order = ordered(results)
    readers: dict[Tensor, list[Tensor]] = {x: [] for x in order}
    for x in order:
        for arg in dict.fromkeys(x.args):
            readers[arg].append(x)
    written = Counter(map(id, results))
    costly = {x for x in order if x.op in SCATTERING or (x.op in REDUCING and readers[x])}
    kept: set[Tensor] = set()
    repeated: dict[Tensor, bool] = {}
    for x in reversed(order):
        reads = readers[x]
        often = any(r.op in REPEATING or repeated[r] for r in reads)  # it is read for other elements than its own
        count = len(reads) + written[id(x)]
        if count > 1 or often or (x.op in SCATTERING and (reads or id(x) in rounded)):
            kept |= {x} & costly
        repeated[x] = often and x not in kept
    return [x for x in order if x in kept]
