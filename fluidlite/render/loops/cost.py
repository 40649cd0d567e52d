"""What nests cost, estimated of bytes that move and of functions that are computed: to compare one kernel with several.

The figures are of one core; what is compared runs on the same cores.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from math import prod
from typing import Any

from fluidlite.base.dtypes import ITEMSIZE
from fluidlite.expr.calls import leaves
from fluidlite.program.codegen_registry import generators
from fluidlite.program.op_call import Call
from fluidlite.render.loops.elements import Axis, Element, Source, numbers_in
from fluidlite.render.loops.functions import costly, costs_functions
from fluidlite.render.loops.indices import leaves_of
from fluidlite.render.loops.kept_answers import Question
from fluidlite.render.loops.kernels import at_sizes, tiled_nests
from fluidlite.render.loops.merging import elements_of
from fluidlite.render.loops.nest import Nest, later_at_less
from fluidlite.render.loops.schedule import Schedule, schedule_of
from fluidlite.render.loops.sizes import Sizes, size_of

LAUNCH_NS = 1_500.0
"""To launch a kernel, and to let threads share it."""
BYTE_NS = 0.1
"""To move a byte between memory and a core."""
CACHED_BYTE_NS = 0.02
"""To read a byte of a row again."""
SIMPLE_NS, FUNCTION_NS, RANDOM_NS = 0.04, 0.5, 1.5
"""To compute an element by an instruction, by a polynomial, by the rounds of Philox."""

Order = tuple[str, tuple[int, ...], bool, bool, bool]
"""In which order a reduction goes through its elements: kind, sizes of axes, partial results, blocks, neighbours."""
Estimate = tuple[float, frozenset[Order]]
"""Nanoseconds, and the orders of reductions."""


def estimate(call: Call, unit: Any) -> Estimate | None:
    """An estimate of the time of a call by loops, at its sizes, in nanoseconds; and the orders of its reductions.

    A reduction rounds alike wherever its order is the same. None: the device's loops cannot compute it.
    """

    def find() -> Estimate | None:
        if generators["language"].refuse(call, unit) is not None:
            return None
        nests, values = tiled_nests(call), leaves(call)
        return sum(LAUNCH_NS + _nest(nest, values) for nest in nests), frozenset(_orders(nests, values))

    specs = [(slot, [(spec.dims, spec.dtype) for spec in specs]) for slot, specs in call.outs.items()]
    aliases = call.op.must_alias, call.op.may_alias
    types = sorted(unit.language.types) if unit.language is not None else ()
    return at_sizes(_ESTIMATES, call, repr((specs, aliases, types, sorted(unit.info.dtypes))), find)


def _encoded(found: Estimate | None, _: object) -> list[Any] | None:
    return None if found is None else [found[0], sorted(found[1])]


def _decoded(value: Any, _: object) -> Estimate | None:
    if value is None:
        return None
    total, orders = value
    return float(total), frozenset((kind, tuple(sizes), *ways) for kind, sizes, *ways in orders)


_ESTIMATES = Question("estimates", _encoded, _decoded)


def _orders(nests: Iterable[Nest], values: Sizes) -> set[Order]:
    found: set[Order] = set()
    for nest in nests:
        schedule = schedule_of(nest, _dtypes(nest), values)
        for x in elements_of(nest):
            if x.op == "reduce" and x.params[0] in ("sum", "prod"):
                found.add(_order(x, nest, schedule, tuple(size_of(axis.size, values) for axis in x.params[1])))
    return found


def _order(x: Element, nest: Nest, schedule: Schedule, sizes: tuple[int, ...]) -> Order:
    last = x.params[1][-1].name
    tile = schedule.lane in nest.elements.needs(x)
    return x.params[0], sizes, not tile and last in schedule.partial, last in schedule.long, tile


def _dtypes(nest: Nest) -> dict[Source, str]:
    loads = {x.params[0]: x.dtype for x in elements_of(nest) if x.op == "load"}
    return {**loads, **{store.target: store.dtype for store in nest.stores}}


def _nest(nest: Nest, values: Sizes) -> float:
    e = nest.elements
    sizes = {axis.name: size_of(axis.size, values) for axis in nest.items}
    every = elements_of(nest)
    for axes in (*(x.params[1] for x in every if x.op in ("reduce", "arg")), *(store.loops for store in nest.stores)):
        sizes |= {axis.name: size_of(axis.size, values) for axis in axes}

    def times(names: Iterable[str]) -> int:
        return prod(sizes.get(name, 1) for name in names)

    total, read = 0.0, dict[Source, float]()
    for x in every:
        if x.op == "load":
            nbytes = float(times(e.needs_of(x.params[1:2])) * ITEMSIZE[x.dtype])
            read[x.params[0]] = max(read.get(x.params[0], 0.0), nbytes)
    total += BYTE_NS * sum(read.values())
    items = [axis.name for axis in nest.items]
    for store in nest.stores:  # a part of a tensor, perhaps, or blocks of an axis and what lies in one
        elements = times({*items, *(axis.name for axis in store.loops)})
        total += BYTE_NS * min(elements, prod(size_of(d, values) for d in store.dims)) * ITEMSIZE[store.dtype]
    seen: set[Element] = set()
    for roots, stored in _passes(nest):
        for x in _within(roots, seen, nest):
            count = times(e.needs(x))
            if x in seen:
                total += CACHED_BYTE_NS * count * ITEMSIZE[x.dtype]
            elif x.op == "random":
                total += RANDOM_NS * count
            elif x.op != "load":
                total += (FUNCTION_NS if costly(x) else SIMPLE_NS) * count
        seen |= {x for x in every if x.op == "load"}
        seen |= {x for x in stored if costs_functions(x, e)}
    return total


def _passes(nest: Nest) -> list[tuple[list[Element], list[Element]]]:
    """What is computed in each pass over the same axes, and what of it later ones can read again."""
    found: dict[tuple[tuple[Axis, ...], int], tuple[list[Element], list[Element]]] = {}
    ranks: dict[Element, int] = {}
    for x in elements_of(nest):
        ranks[x] = max((ranks[arg] for arg in x.args), default=0) + (x.op in ("reduce", "arg"))
        if x.op in ("reduce", "arg"):
            found.setdefault((x.params[1], ranks[x]), ([], []))[0].append(x.args[0])
    for store in nest.stores:
        later = [
            rank
            for (axes, rank), (now, _) in found.items()
            if axes == store.loops
            and rank > ranks[store.value]
            and not later_at_less(store, nest.stores, now, nest.elements)
        ]
        roots, stored = found.setdefault((store.loops, min(later, default=1 + ranks[store.value])), ([], []))
        roots.append(store.value)
        stored.append(store.value)
    for (axes, _), (roots, stored) in found.items():  # what is costly waits in an output of its dtype
        waits = any(store.loops == axes and store.value not in stored for store in nest.stores)
        stored += [x for x in _within(roots, (), nest) if waits and costly(x)]
    return [found[key] for key in sorted(found, key=lambda key: key[1])]


def _within(roots: Iterable[Element], known: Container[Element], nest: Nest) -> list[Element]:
    """All that a pass computes of what other passes reduced, and of what is known."""
    found: dict[Element, None] = {}
    pending = list(roots)
    while pending:
        x = pending.pop()
        if x not in found and x.op not in ("reduce", "arg", "number"):
            found[x] = None
            if x in known:
                continue
            pending.extend(x.args)
            leaves = (leaf for n in numbers_in(x) for leaf in leaves_of(n) if leaf.op == "element")
            pending.extend(nest.elements.computed[leaf.value] for leaf in leaves)
    return list(found)
