"""Axes that lie behind one another in all that a nest reads and writes are one: longer loops, and fewer divisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from fluidlite.expr.number import Condition, Number, number
from fluidlite.render.loops.affine import same, step_of, with_axes
from fluidlite.render.loops.elements import Axis, Element, Elements, elements_behind, numbers_in
from fluidlite.render.loops.indices import axis_leaf
from fluidlite.render.loops.nest import Nest


def merged(nest: Nest) -> Nest:
    """The nest with as few axes as there can be."""
    while True:
        pair = next((pair for pair in _pairs(nest) if _together(nest, *pair)), None)
        if pair is None:
            return nest
        nest = _merge(nest, *pair)


def elements_of(nest: Nest) -> list[Element]:
    """All elements of a nest, those that others are made of first."""
    found: dict[Element, None] = {}
    for store in nest.stores:
        bounds = [bound for axis in store.loops for bound in axis.bounds]
        for x in elements_behind(store.value, nest.elements, (store.place, *_of_conditions(store.there), *bounds)):
            found[x] = None
    return list(found)


def _of_conditions(conditions: tuple[Condition, ...]) -> Iterator[Number]:
    return (each for c in conditions for each in (c.a, c.b))


def _pairs(nest: Nest) -> Iterator[tuple[Axis, Axis]]:
    """Axes that may be neighbours everywhere."""
    yield from pairwise(nest.items)
    for x in elements_of(nest):
        if x.op == "reduce":
            yield from pairwise(x.params[1])
    for store in nest.stores:
        yield from pairwise(store.loops)


def _together(nest: Nest, outer: Axis, inner: Axis) -> bool:
    """Whether two axes are neighbours wherever one of them is, and all indices go through both as through one."""
    if any(axis.begin is not None or axis.end is not None for axis in (outer, inner)):
        return False
    every = elements_of(nest)
    lists = [nest.items, *(store.loops for store in nest.stores)]
    lists += [x.params[1] for x in every if x.op in ("reduce", "arg")]
    for axes in lists:
        names = [axis.name for axis in axes]
        if (outer.name in names) != (inner.name in names):
            return False
        if outer.name in names:
            at = names.index(outer.name)
            if names[at + 1 : at + 2] != [inner.name] or axes[at] != outer or axes[at + 1] != inner:
                return False
    if any(x.op == "running" and x.params[1].name in (outer.name, inner.name) for x in every):
        return False
    numbers = [n for x in every for n in numbers_in(x)]
    numbers += [n for store in nest.stores for n in (store.place, *_of_conditions(store.there))]
    for n in numbers:
        step, steps = step_of(n, outer.name), step_of(n, inner.name)
        if step is None or steps is None or not same(step, steps * inner.size, nest.elements.values):
            return False
    return not any(store.ordered and inner in store.loops for store in nest.stores)


def _merge(nest: Nest, outer: Axis, inner: Axis) -> Nest:
    both = Axis(outer.name + inner.name, outer.size * inner.size)
    values = {outer.name: number(0), inner.name: axis_leaf(both.name)}

    def axes(given: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(both if axis == inner else axis for axis in given if axis != outer)

    return rewritten(nest, lambda n: with_axes(n, values), axes)


def rewritten(
    nest: Nest,
    of_number: Callable[[Number], Number],
    of_axes: Callable[[tuple[Axis, ...]], tuple[Axis, ...]],
    joined: Mapping[Element, Element] | None = None,
) -> Nest:
    """The nest with other numbers and axes, and others in place of some elements."""
    made = Elements(nest.elements.stored, nest.elements.values, nest.elements.rules)
    made.sizes = nest.elements.sizes
    known: dict[Element, Element] = {}

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

    def conditions(given: tuple[Condition, ...]) -> tuple[Condition, ...]:
        return tuple(Condition(c.op, of_number(c.a), of_number(c.b)) for c in given)

    def made_again(x: Element) -> Element:
        return made.made(x.op, [known[arg] for arg in x.args], tuple(map(param, x.params)), x.dtype)

    for x in elements_of(nest):
        if joined is not None and x in joined:
            for y in elements_behind(joined[x], nest.elements):
                known[y] = made_again(y)
            known[x] = known[joined[x]]
        else:
            known[x] = made_again(x)
    for name, x in nest.elements.computed.items():
        if x in known:
            made.computed[name] = known[x]
    stores = tuple(
        replace(
            store,
            value=known[store.value],
            place=of_number(store.place),
            there=conditions(store.there),
            loops=of_axes(store.loops),
        )
        for store in nest.stores
    )
    return Nest(of_axes(nest.items), stores, made, nest.square)
