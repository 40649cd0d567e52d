"""Merges axes that are contiguous in all loads and stores of a nest: longer loops, and fewer divisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from fluidlite.expr.number import Condition, Number, number
from fluidlite.render.loops.affine import is_equal_number, stride_of, with_axes
from fluidlite.render.loops.elements import Axis, Element, Elements, dependencies
from fluidlite.render.loops.indices import axis_leaf
from fluidlite.render.loops.nest import Nest


def merged(nest: Nest) -> Nest:
    """Merge as many axes of a nest as possible."""
    while True:
        pair = next((pair for pair in _neighbour_pairs(nest) if _can_merge(nest, *pair)), None)
        if pair is None:
            return nest
        nest = _merge(nest, *pair)


def elements_of(nest: Nest) -> list[Element]:
    """All elements of a nest in topological order."""
    elements: dict[Element, None] = {}
    for store in nest.stores:
        bounds = [bound for axis in store.loops for bound in axis.bounds]
        for x in dependencies(store.value, nest.elements, (store.offset, *_of_conditions(store.conditions), *bounds)):
            elements[x] = None
    return list(elements)


def _of_conditions(conditions: tuple[Condition, ...]) -> Iterator[Number]:
    return (each for c in conditions for each in (c.a, c.b))


def _neighbour_pairs(nest: Nest) -> Iterator[tuple[Axis, Axis]]:
    """The candidate pairs: neighbours in one list of axes."""
    yield from pairwise(nest.items)
    for x in elements_of(nest):
        if x.op == "reduce":
            yield from pairwise(x.params[1])
    for store in nest.stores:
        yield from pairwise(store.loops)


def _can_merge(nest: Nest, outer: Axis, inner: Axis) -> bool:
    """Whether two axes are neighbours in every list of axes, and all indices step through both as through one axis."""
    if any(axis.begin is not None or axis.end is not None for axis in (outer, inner)):
        return False
    elements = elements_of(nest)
    axis_lists = [nest.items, *(store.loops for store in nest.stores)]
    axis_lists += [x.params[1] for x in elements if x.op in ("reduce", "arg")]
    for axes in axis_lists:
        names = [axis.name for axis in axes]
        if (outer.name in names) != (inner.name in names):
            return False
        if outer.name in names:
            at = names.index(outer.name)
            if names[at + 1 : at + 2] != [inner.name] or axes[at] != outer or axes[at + 1] != inner:
                return False
    if any(x.op == "running" and x.params[1].name in (outer.name, inner.name) for x in elements):
        return False
    numbers = [n for x in elements for n in x.numbers]
    numbers += [n for store in nest.stores for n in (store.offset, *_of_conditions(store.conditions))]
    for n in numbers:
        step, steps = stride_of(n, outer.name), stride_of(n, inner.name)
        if step is None or steps is None or not is_equal_number(step, steps * inner.size, nest.elements.values):
            return False
    return not any(store.ordered and inner in store.loops for store in nest.stores)


def _merge(nest: Nest, outer: Axis, inner: Axis) -> Nest:
    merged_axis = Axis(outer.name + inner.name, outer.size * inner.size)
    values = {outer.name: number(0), inner.name: axis_leaf(merged_axis.name)}

    def axes(axes_before: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(merged_axis if axis == inner else axis for axis in axes_before if axis != outer)

    return rewritten(nest, {}, lambda n: with_axes(n, values), axes)


def rewritten(
    nest: Nest,
    replacements: Mapping[Element, Element],
    of_number: Callable[[Number], Number] = lambda n: n,
    of_axes: Callable[[tuple[Axis, ...]], tuple[Axis, ...]] = lambda axes: axes,
) -> Nest:
    """Rebuild a nest with mapped numbers and axes; ``replacements`` maps some elements to others."""
    rebuilt_elements = Elements(nest.elements.stored, nest.elements.values, nest.elements.rules)
    rebuilt_elements.sizes = nest.elements.sizes
    rebuilt: dict[Element, Element] = {}

    def param(p: Any) -> Any:
        if isinstance(p, Number):
            return of_number(p)
        if isinstance(p, tuple) and p and isinstance(p[0], Condition):
            return conditions(p)
        if isinstance(p, tuple) and p and isinstance(p[0], Axis):
            return tuple(
                axis
                if axis.begin is None and axis.end is None
                else replace(axis, begin=of_number(axis.bounds[0]), end=of_number(axis.bounds[1]))
                for axis in of_axes(p)
            )
        return p

    def conditions(conditions_before: tuple[Condition, ...]) -> tuple[Condition, ...]:
        return tuple(Condition(c.op, of_number(c.a), of_number(c.b)) for c in conditions_before)

    def rebuild(x: Element) -> Element:
        return rebuilt_elements.intern(x.op, [rebuilt[arg] for arg in x.args], tuple(map(param, x.params)), x.dtype)

    for x in elements_of(nest):
        if x in replacements:
            for y in dependencies(replacements[x], nest.elements):
                rebuilt[y] = rebuild(y)
            rebuilt[x] = rebuilt[replacements[x]]
        else:
            rebuilt[x] = rebuild(x)
    for name, x in nest.elements.computed.items():
        if x in rebuilt:
            rebuilt_elements.computed[name] = rebuilt[x]
    stores = tuple(
        replace(
            store,
            value=rebuilt[store.value],
            offset=of_number(store.offset),
            conditions=conditions(store.conditions),
            loops=of_axes(store.loops),
        )
        for store in nest.stores
    )
    return Nest(of_axes(nest.items), stores, rebuilt_elements, nest.square)
