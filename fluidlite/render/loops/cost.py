"""Cost model of nests: estimates the time of a call from moved bytes and computed functions.

Fusion compares the estimate of one kernel with the sum of several. The figures are of one core.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from math import prod
from typing import Any

from fluidlite.base.dtypes import ITEMSIZE
from fluidlite.expr.calls import leaves
from fluidlite.program.codegen_registry import generators
from fluidlite.program.op_call import Call
from fluidlite.render.loops.elements import Axis, BufferKey, Element
from fluidlite.render.loops.functions import costs_functions, is_expensive
from fluidlite.render.loops.guarded_cache import GuardedCache
from fluidlite.render.loops.kernels import at_sizes, tiled_nests
from fluidlite.render.loops.merging import elements_of
from fluidlite.render.loops.nest import Nest, is_cheaper_later
from fluidlite.render.loops.schedule import Schedule, schedule_of
from fluidlite.render.loops.sizes import Sizes, size_of

LAUNCH_NS = 1_500.0
"""Nanoseconds to launch a kernel and to distribute it over threads."""
BYTE_NS = 0.1
"""Nanoseconds to move a byte between memory and a core."""
CACHED_BYTE_NS = 0.02
"""Nanoseconds to read a byte from a cache."""
SIMPLE_NS, FUNCTION_NS, RANDOM_NS = 0.04, 0.5, 1.5
"""Nanoseconds to compute an element by an instruction, by a polynomial, by the rounds of Philox."""

Order = tuple[str, tuple[int, ...], bool, bool, bool]
"""The summation order of a reduction: kind, lengths of axes, whether it has partial results, blocks, a tile."""
Estimate = tuple[float, frozenset[Order]]
"""Nanoseconds, and the summation orders of the reductions."""


def estimate(call: Call, unit: Any) -> Estimate | None:
    """Estimate the nanoseconds of a call, and return the summation orders of its reductions with it.

    Equal orders round equally. None: the device's loops cannot compute the call.
    """

    def compute() -> Estimate | None:
        if generators["language"].refuse(call, unit) is not None:
            return None
        nests, values = tiled_nests(call), leaves(call)
        return sum(LAUNCH_NS + _nest_ns(nest, values) for nest in nests), frozenset(_orders(nests, values))

    specs = [(slot, [(spec.dims, spec.dtype) for spec in specs]) for slot, specs in call.outs.items()]
    aliases = call.op.must_alias, call.op.may_alias
    types = sorted(unit.language.types) if unit.language is not None else ()
    return at_sizes(_ESTIMATES, call, repr((specs, aliases, types, sorted(unit.info.dtypes))), compute)


def _encoded(result: Estimate | None, _: object) -> list[Any] | None:
    return None if result is None else [result[0], sorted(result[1])]


def _decoded(value: Any, _: object) -> Estimate | None:
    if value is None:
        return None
    total, orders = value
    return float(total), frozenset((kind, tuple(sizes), *flags) for kind, sizes, *flags in orders)


_ESTIMATES = GuardedCache("estimates", _encoded, _decoded)


def _orders(nests: Iterable[Nest], values: Sizes) -> set[Order]:
    orders: set[Order] = set()
    for nest in nests:
        schedule = schedule_of(nest, _dtypes(nest), values)
        for x in elements_of(nest):
            if x.op == "reduce" and x.params[0] in ("sum", "prod"):
                orders.add(_order(x, nest, schedule, tuple(size_of(axis.size, values) for axis in x.params[1])))
    return orders


def _order(x: Element, nest: Nest, schedule: Schedule, sizes: tuple[int, ...]) -> Order:
    last = x.params[1][-1].name
    tile = schedule.lane in nest.elements.free_axes(x)
    return x.params[0], sizes, not tile and last in schedule.partial, last in schedule.blocked, tile


def _dtypes(nest: Nest) -> dict[BufferKey, str]:
    loads = {x.params[0]: x.dtype for x in elements_of(nest) if x.op == "load"}
    return {**loads, **{store.target: store.dtype for store in nest.stores}}


def _nest_ns(nest: Nest, values: Sizes) -> float:
    e = nest.elements
    sizes = {axis.name: size_of(axis.size, values) for axis in nest.items}
    every = elements_of(nest)
    for axes in (*(x.params[1] for x in every if x.op in ("reduce", "arg")), *(store.loops for store in nest.stores)):
        sizes |= {axis.name: size_of(axis.size, values) for axis in axes}

    def count_of(names: Iterable[str]) -> int:
        return prod(sizes.get(name, 1) for name in names)

    nanoseconds, read_bytes = 0.0, dict[BufferKey, float]()
    for x in every:
        if x.op == "load":
            nbytes = float(count_of(e.number_axes(x.params[1:2])) * ITEMSIZE[x.dtype])
            read_bytes[x.params[0]] = max(read_bytes.get(x.params[0], 0.0), nbytes)
    nanoseconds += BYTE_NS * sum(read_bytes.values())
    items = [axis.name for axis in nest.items]
    for store in nest.stores:  # at most the target: blocks of an axis times a block may exceed it
        count_stored = count_of({*items, *(axis.name for axis in store.loops)})
        nanoseconds += BYTE_NS * min(count_stored, prod(size_of(d, values) for d in store.dims)) * ITEMSIZE[store.dtype]
    cached: set[Element] = set()
    for roots, stored in _passes(nest):
        for x in _pass_elements(roots, cached, nest):
            computed = count_of(e.free_axes(x))
            if x in cached:
                nanoseconds += CACHED_BYTE_NS * computed * ITEMSIZE[x.dtype]
            elif x.op == "random":
                nanoseconds += RANDOM_NS * computed
            elif x.op != "load":
                nanoseconds += (FUNCTION_NS if is_expensive(x) else SIMPLE_NS) * computed
        cached |= {x for x in every if x.op == "load"}
        cached |= {x for x in stored if costs_functions(x, e)}
    return nanoseconds


def _passes(nest: Nest) -> list[tuple[list[Element], list[Element]]]:
    """By pass over the same axes, the elements that it computes, and those that later passes can reload."""
    passes: dict[tuple[tuple[Axis, ...], int], tuple[list[Element], list[Element]]] = {}
    ranks: dict[Element, int] = {}
    for x in elements_of(nest):
        ranks[x] = max((ranks[arg] for arg in x.args), default=0) + (x.op in ("reduce", "arg"))
        if x.op in ("reduce", "arg"):
            passes.setdefault((x.params[1], ranks[x]), ([], []))[0].append(x.args[0])
    for store in nest.stores:
        later = [
            rank
            for (axes, rank), (current, _) in passes.items()
            if axes == store.loops
            and rank > ranks[store.value]
            and not is_cheaper_later(store, nest.stores, current, nest.elements)
        ]
        roots, stored = passes.setdefault((store.loops, min(later, default=1 + ranks[store.value])), ([], []))
        roots.append(store.value)
        stored.append(store.value)
    for (axes, _), (roots, stored) in passes.items():  # an output holds an expensive value for a later pass
        is_held = any(store.loops == axes and store.value not in stored for store in nest.stores)
        stored += [x for x in _pass_elements(roots, (), nest) if is_held and is_expensive(x)]
    return [passes[key] for key in sorted(passes, key=lambda key: key[1])]


def _pass_elements(roots: Iterable[Element], available: Container[Element], nest: Nest) -> list[Element]:
    """All elements of a pass: reductions of other passes and ``available`` elements end the search."""
    visited: dict[Element, None] = {}
    pending = list(roots)
    while pending:
        x = pending.pop()
        if x not in visited and x.op not in ("reduce", "arg", "number"):
            visited[x] = None
            if x in available:
                continue
            pending.extend(nest.elements.operands(x))
    return list(visited)
