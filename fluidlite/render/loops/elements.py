"""Elements: the numbers that loops compute, of which those that are computed alike are one.

An element is asked for at an index, which is computed of the axes of the loops around it; views are then nothing but
other indices. Reductions bring axes of their own. Where an index may lie outside, conditions say when it does not, and
whatever is read below them is read only there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from fluidlite.expr.number import Condition, Number, highest, lowest, number, product
from fluidlite.expr.reductions import of_nothing
from fluidlite.expr.tensor import Tensor
from fluidlite.render.loops.affine import bound_of, divided, normal, span_of, step_is_one
from fluidlite.render.loops.element import Axis, Element, numbers_in
from fluidlite.render.loops.indices import Conditions, Index, element_leaf, leaves_of, linear
from fluidlite.render.loops.sizes import Noted, Sizes, alike, holds, size_of

__all__ = ["Axis", "Element", "Elements", "Rule", "Source", "elements_behind", "numbers_in"]

KNOWN = 8
"""Elements of so short a last dim lie in vectors with those of their neighbours."""
Source = tuple[Any, ...]
"""What is loaded from: ``("in", slot, number)``, ``("made", number)`` or ``("offsets", leaf)``."""


Rule = Callable[["Elements", Tensor, Index, Conditions], Element]
"""The element of a tensor at an index, which is there where all conditions hold."""


@dataclass
class Elements:
    """Asks for elements; equal ones are one.

    ``stored``: tensors that lie in memory when the loops run, beside operands.
    ``values``: the sizes of the call at hand: which axes there are depends on them.
    ``rules``: by primitive, what an element of a tensor is computed of.
    ``computed``: the elements behind the leaves of computed indices.
    ``known``: elements by what they are made of.
    ``names``: the leaves of computed indices.
    ``needed``: the axes that each is computed of.
    ``sizes``: sizes that are equal, and not by chance, are one number.
    ``stands``: by key, the number that stands for one that was asked for.
    ``lengths``: which of the lengths of axes one is, for their names: text depends on what is equal, not on sizes.
    ``extents``: how long axes are in the call at hand.
    ``groups``: by the dims of two tensors, which of them have equal products.
    ``facts``: what was found out of elements: whether they cost functions, whether they are computed of reductions.
    ``met``: the keys of conditions that hold somewhere along the axes that they ask: what lies at a place that is the
    same for all of these is there, whether they hold or not.
    ``asked``: is told of each tensor for which an element is asked, and at which index.
    """

    stored: Mapping[Tensor, Source]
    values: Sizes
    rules: Mapping[str, Rule]
    computed: dict[str, Element] = field(default_factory=dict)
    known: dict[Any, Element] = field(default_factory=dict)
    names: dict[Element, str] = field(default_factory=dict)
    needed: dict[Element, frozenset[str]] = field(default_factory=dict)
    sizes: list[Number] = field(default_factory=list)
    stands: dict[str, Number] = field(default_factory=dict)
    lengths: list[Number] = field(default_factory=list)
    extents: dict[str, int] = field(default_factory=dict)
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[tuple[slice, slice]]] = field(default_factory=dict)
    facts: dict[tuple[str, Element], bool] = field(default_factory=dict)
    met: set[str] = field(default_factory=set)
    asked: Callable[[Tensor, Index], None] | None = None

    def axis(self, size: Number, index: Sequence[Number], guard: Conditions = (), depth: int = 0) -> Axis:
        """An axis that loops around do not have; of equal loops the same, so that what they compute is one.

        ``index``, ``guard``: what is computed within it: its name is none of theirs.
        ``depth``: how many further axes lie between.
        """
        around = self.needs_of(index) | self.needs_of_all(guard)
        deepest = max((int(name[1:].partition("_")[0]) for name in around if name.startswith("r")), default=-1)
        if not any(self.same(size, other) for other in self.lengths):
            self.lengths.append(size)
        which = next(k for k, other in enumerate(self.lengths) if self.same(size, other))
        return self.extended(Axis(f"r{deepest + 1 + depth}_{which}", self.sized(size)))

    def split(self, axis: Axis, size: Number) -> tuple[Axis, Axis]:
        """An axis as two, the inner one of a size that divides it."""
        outer, inner = self.sized(axis.size // size), self.sized(size)
        return self.extended(Axis(f"{axis.name}_a", outer)), self.extended(Axis(f"{axis.name}_b", inner))

    def extended(self, axis: Axis) -> Axis:
        """The axis, of which one knows now how long it is."""
        self.extents[axis.name] = size_of(axis.size, self.values)
        return axis

    def sized(self, d: Number) -> Number:
        """The number that stands for all sizes that are equal to one."""
        found = self.stands.get(d.key)
        if found is None:
            found = self.stands[d.key] = self._stand(d)
        return found

    def _stand(self, d: Number) -> Number:
        length = size_of(d, self.values)
        if d.op == "const" or 0 <= length <= 1:
            return number(int(length))
        if isinstance(self.values, Noted) and any(self.same(d, other) for other in self.values.short):
            return number(int(length))
        for other in self.sizes:
            if self.same(d, other):
                return other
        self.sizes.append(d)
        return d

    def linear(self, index: Sequence[Number], x: Tensor) -> Number:
        """Where an element lies among all of a tensor; the text knows how long a short last dim is."""
        dims = [self.sized(d) for d in x.dims]
        if len(dims) > 1 and size_of(dims[-1], self.values) <= KNOWN:
            dims[-1] = number(int(size_of(dims[-1], self.values)))
        return normal(linear(index, dims), self.sized)

    def through_reshape(self, index: Index, x: Tensor, source: Tensor) -> Index:
        """The index in a tensor of what is at ``index`` in its reshape ``x``.

        Axes are taken together no further than their products are equal, so that those which stay cost nothing.
        """
        dims, theirs = (tuple(map(self.sized, each.dims)) for each in (x, source))
        groups = self._equal_products(dims, theirs)
        return tuple(i for mine, other in groups for i in self._split(index[mine], dims[mine], theirs[other]))

    def _equal_products(self, dims: Sequence[Number], theirs: Sequence[Number]) -> list[tuple[slice, slice]]:
        """Dims in groups of equal products: of those that are equal in all calls, if that can be seen of them all."""
        key = tuple([d.key for d in dims]), tuple([d.key for d in theirs])
        if key not in self.groups:
            self.groups[key] = self._grouped(dims, theirs)
        return self.groups[key]

    def _grouped(self, dims: Sequence[Number], theirs: Sequence[Number]) -> list[tuple[slice, slice]]:
        if isinstance(self.values, Noted):
            mine, other = (list(filter(None, map(self.values.at_generic, each))) for each in (dims, theirs))
            if len(mine) == len(dims) and len(other) == len(theirs) and prod(mine) == prod(other):
                groups = equal_products(mine, other)
                if all(self.same(product(dims[a]), product(theirs[b])) for a, b in groups):
                    return groups
        return equal_products(*([size_of(d, self.values) for d in each] for each in (dims, theirs)))

    def _split(self, index: Index, dims: Sequence[Number], wanted: Sequence[Number]) -> list[Number]:
        """A linear index as one for each of the dims that are wanted."""
        long = [k for k, d in enumerate(dims) if not self.one(d)]
        wide = [k for k, d in enumerate(wanted) if not self.one(d)]
        found = [number(0)] * len(wanted)
        left = linear([index[k] for k in long], [dims[k] for k in long])
        for k in reversed(wide[1:]):
            left, found[k] = divided(left, wanted[k], self.values, self.extents, self.sized)
        if wide:
            found[wide[0]] = left
        return found

    def same(self, a: Number, b: Number) -> bool:
        """Whether two sizes are equal, and not by chance."""
        return alike(a, b, self.values)

    def one(self, d: Number) -> bool:
        """Whether a dim is 1."""
        return size_of(d, self.values) == 1

    def needs(self, x: Element) -> frozenset[str]:
        """The names of the axes that an element is computed of."""
        found = self.needed.get(x)
        if found is None:
            found = frozenset().union(*map(self.needs, x.args))
            if x.op == "load":
                found |= self.needs_of(x.params[1:2]) | self.needs_of_all(x.params[2])
            elif x.op == "index":
                found |= self.needs_of(x.params)
            elif x.op == "random":
                found |= self.needs_of(x.params[2:])
            elif x.op in ("select", "checked"):
                found |= self.needs_of_all(x.params[-1])
            elif x.op in ("reduce", "arg"):
                axes = x.params[1]
                found |= self.needs_of([each for axis in axes for each in axis.bounds])
                found -= {axis.name for axis in axes}  # of which bounds of those within are computed, too
            elif x.op == "running":
                found |= {x.params[1].name}
            self.needed[x] = found
        return found

    def needs_of(self, numbers: Iterable[Number]) -> frozenset[str]:
        """The names of the axes that numbers are computed of."""
        found: frozenset[str] = frozenset()
        for leaf in (leaf for n in numbers for leaf in leaves_of(n)):
            found |= {leaf.value} if leaf.op == "axis" else self.needs(self.computed[leaf.value])
        return found

    def needs_of_all(self, conditions: Conditions) -> frozenset[str]:
        """The names of the axes of which it depends whether conditions hold."""
        return self.needs_of(each for c in conditions for each in (c.a, c.b))

    def reduced(self, x: Element) -> bool:
        """Whether an element is computed of a reduction."""
        if ("reduced", x) not in self.facts:
            self.facts["reduced", x] = x.op in ("reduce", "arg") or any(self.reduced(arg) for arg in x.args)
        return self.facts["reduced", x]

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
        if self.asked is not None:
            self.asked(x, index)
        found = self.known.get(key)
        if found is None:
            source = self.stored.get(x)
            if source is not None:
                found = self.load(source, self.linear(index, x), guard, x.dtype)
            else:
                found = self.rules[x.op](self, x, index, guard)
            self.known[key] = found
        return found

    def load(self, source: Source, place: Number, guard: Conditions, dtype: str) -> Element:
        """What lies in memory."""
        axes = self.needs_of((place,))
        needed = tuple(
            c
            for c in guard
            if not self.known_to_hold(c) and not (c.key in self.met and self.needs_of_all((c,)).isdisjoint(axes))
        )
        return self.made("load", (), (source, place, needed), dtype)

    def within(self, at: Number, size: Number) -> Conditions:
        """That an index is one of an axis; where that has an element, the index is one somewhere."""
        there = (at >= 0, at < size)
        if size_of(size, self.values) > 0:
            self.met |= {c.key for c in there}
        return there

    def known_to_hold(self, c: Condition) -> bool:
        """Whether a condition holds in the call at hand, whatever the axes are."""
        if not leaves_of(c.a) and not leaves_of(c.b):
            return holds(c, self.values)
        span = span_of(c.a - c.b, self.values, self.extents) if c.op in ("less", "greater_equal") else None
        return span is not None and (span[1] < 0 if c.op == "less" else span[0] >= 0)

    def number(self, value: Any, dtype: str) -> Element:
        """A number of the call."""
        return self.made("number", (), (number(value),), dtype)

    def cast(self, x: Element, dtype: str) -> Element:
        """An element in another dtype."""
        if x.op == "cast" and x.dtype == "int64" and x.args[0].dtype == dtype == "int32":  # there and back
            return x.args[0]
        return x if x.dtype == dtype else self.made("cast", (x,), (), dtype)

    def select(self, conditions: Conditions, a: Element, b: Element) -> Element:
        """``a`` where all conditions hold, else ``b``."""
        unknown = tuple(c for c in conditions if not self.known_to_hold(c))
        if any(c.a.op == "const" == c.b.op for c in unknown):  # which is known not to hold
            return b
        return self.made("select", (a, b), (unknown,), a.dtype) if unknown else a

    def index_of(self, x: Element) -> Number:
        """An element as a number that indices are computed of."""
        whole = self.cast(x, "int64")
        name = self.names.setdefault(whole, f"e{len(self.names)}")
        self.computed[name] = whole
        return element_leaf(name)

    def checked(self, x: Element, size: Number, guard: Conditions) -> Element:
        """An index that must be at least 0 and less than a size where the guard holds; another is moved there."""
        if x.op == "checked" and self.same(x.params[0], size):
            return x
        if self.is_checked(x, size):
            return self.cast(x, "int64")
        unknown = tuple(c for c in guard if not self.known_to_hold(c))
        return self.made("checked", (self.cast(x, "int64"),), (self.sized(size), unknown), "int64")

    def is_checked(self, x: Element, size: Number) -> bool:
        """Whether an element is made of indices that were checked, so that it is at least 0 and less than a size."""
        span = self._span(x)
        return span is not None and span[0] >= 0 and span[1] < size_of(size, self.values)

    def _span(self, x: Element) -> tuple[int, int] | None:
        """The minimum and the maximum that an integer can be in the call at hand, if it is made of what was checked."""
        if x.op == "checked":
            return 0, size_of(x.params[0], self.values) - 1
        if x.op == "number" and x.dtype == "int64":
            value = size_of(x.params[0], self.values)
            return value, value
        if x.dtype != "int64" or x.op != "map" or x.params[0] not in ("add", "mul"):
            return None
        a, b = map(self._span, x.args)
        if a is None or b is None or a[0] < 0 or b[0] < 0:
            return None
        return (a[0] + b[0], a[1] + b[1]) if x.params[0] == "add" else (a[0] * b[0], a[1] * b[1])

    def reduce(self, kind: str, axes: Sequence[Axis], body: Element) -> Element:
        """A reduction of what loops compute; conditions under which there is nothing to add become bounds of loops."""
        if not axes:
            return body
        if body.op == "reduce" and body.params[0] == kind:  # one of the other is one of both
            return self.reduce(kind, (*axes, *body.params[1]), body.args[0])
        bounded = self._ordered(axes, body)
        if body.op == "select" and _is_nothing(kind, body.args[1]):
            for k, axis in enumerate(tuple(bounded)):
                others = {each.name for each in bounded[k + 1 :]}
                known = set()
                for c in body.params[0]:
                    limit = bound_of(c, axis.name)
                    if limit is None or (others | {axis.name}) & self.needs_of(limit[:1]):
                        continue
                    value, upper = limit
                    begin, end = bounded[k].bounds
                    if upper:
                        bounded[k] = Axis(axis.name, axis.size, begin, lowest(end, value))
                    else:
                        bounded[k] = Axis(axis.name, axis.size, highest(begin, value), end)
                    known.add(c.key)
                if known:
                    body = self.assuming(body, axis.name, frozenset(known))
                if body.op != "select":
                    break
        return self.made("reduce", (body,), (kind, tuple(bounded)), body.dtype)

    def _ordered(self, axes: Sequence[Axis], body: Element) -> list[Axis]:
        """The axes, with that one last along which elements lie side by side."""
        if len(axes) < 2 or any(axis.begin is not None or axis.end is not None for axis in axes):
            return list(axes)
        loads = (x for x in elements_behind(body, self) if x.op == "load")
        last = next((axis for x in loads for axis in axes if step_is_one(x.params[1], axis.name)), axes[-1])
        return [*(axis for axis in axes if axis is not last), last]

    def assuming(self, x: Element, axis: str, known: frozenset[str]) -> Element:
        """The element where conditions of an axis, which have those keys, hold."""
        key = ("assuming", x, axis, known)
        if key in self.known:
            return self.known[key]
        if axis not in self.needs(x):  # within, it may be the name of another
            return x
        args = [self.assuming(arg, axis, known) for arg in x.args]
        params = x.params
        if x.op in ("select", "load", "checked"):
            params = (*params[:-1], tuple(c for c in params[-1] if c.key not in known))
        found = args[0] if x.op == "select" and not params[0] else self.made(x.op, args, params, x.dtype)
        self.known[key] = found
        return found


def equal_products(mine: Sequence[int], other: Sequence[int]) -> list[tuple[slice, slice]]:
    """The groups of dims, of two whose products are equal, that have equal products: as few in each as can be."""
    found, here, there = list[tuple[slice, slice]](), 0, 0
    while there < len(other) or here < len(mine):
        a, b = here, there
        here, there = min(here + 1, len(mine)), min(there + 1, len(other))
        while (here < len(mine) or there < len(other)) and prod(mine[a:here]) != prod(other[b:there]):
            if there == len(other) or (here < len(mine) and prod(mine[a:here]) < prod(other[b:there])):
                here += 1
            else:
                there += 1
        found.append((slice(a, here), slice(b, there)))
    return found


def _key(params: Any) -> Any:
    if isinstance(params, tuple):
        return tuple(map(_key, params))
    return params.key if isinstance(params, (Number, Condition)) else params


def elements_behind(x: Element, e: Elements, numbers: Iterable[Number] = ()) -> list[Element]:
    """All elements of which one, and further numbers, are computed: those that others are made of first."""
    found: dict[Element, None] = {}

    def visit(x: Element) -> None:
        if x in found:
            return
        for arg in x.args:
            visit(arg)
        visit_behind(numbers_in(x))
        found[x] = None

    def visit_behind(numbers: Iterable[Number]) -> None:
        for leaf in (leaf for n in numbers for leaf in leaves_of(n) if leaf.op == "element"):
            visit(e.computed[leaf.value])

    visit(x)
    visit_behind(numbers)
    return list(found)


def _is_nothing(kind: str, x: Element) -> bool:
    """Whether an element is what a reduction of nothing is."""
    if x.op != "number" or x.params[0].op != "const":
        return False
    value, nothing = float(x.params[0].value), float(of_nothing(kind, x.dtype))
    return value == nothing
