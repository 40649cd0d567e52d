"""Elements: the scalar expressions that loops compute, interned so that equal ones are computed once.

An element of a tensor is requested at an index, an expression of the axes of the enclosing loops. So views only rewrite
indices. Reductions add axes of their own. Where an index may be out of bounds, the element has guards: conditions under
which it is in bounds. Loads below a guard are predicated by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from fluidlite.expr.number import Condition, Number, highest, lowest, number, product
from fluidlite.expr.reductions import reduction_identity
from fluidlite.expr.tensor import Tensor
from fluidlite.render.loops.affine import bound_of, divided, is_contiguous, normal, span_of
from fluidlite.render.loops.element import Axis as Axis, Element as Element
from fluidlite.render.loops.indices import Conditions, Index, computed_indices, element_leaf, leaves_of, linear
from fluidlite.render.loops.sizes import GuardedSizes, Sizes, holds, is_equal_size, size_of

MAX_CONSTANT_DIM = 8
"""A last dim of no more elements is a constant of the text, so that vectors span several rows."""
BufferKey = tuple[Any, ...]
"""A buffer: ``("in", slot, number)``, ``("out", slot, number)``, ``("made", number)`` (a workspace) or
``("offsets", leaf)``."""


Rule = Callable[["Elements", Tensor, Index, Conditions], Element]
"""Lowers the element of a tensor at an index, which is in bounds where all conditions hold."""


@dataclass
class Elements:
    """Lowers tensors to elements, and interns these.

    ``stored``: the materialized tensors, which are loaded.
    ``values``: the sizes of the call, which decide which axes exist.
    ``rules``: the lowering rule of each primitive.
    ``computed``: the elements of computed indices, by the name of their leaf.
    ``cache``: interned elements by structure, and lowered ones by tensor, index and guard.
    ``names``: the names of the leaves of computed indices.
    ``axes_cache``: the free axes of each element.
    ``sizes``: canonical sizes: of sizes that are equal in all calls, one number.
    ``canonical_sizes``: the canonical number of each size, by key.
    ``lengths``: the distinct lengths of axes; an axis is named by its number here, so that texts do not depend on the
    lengths, but on which of them are equal.
    ``extents``: the lengths of the axes in this call.
    ``groups``: by the dims of two tensors, the groups of dims with equal products.
    ``facts``: cached properties of elements, by (property, element).
    ``satisfiable``: the keys of conditions that hold for some index of their axes; a load whose offset does not depend
    on these axes is then in bounds whether they hold or not.
    ``on_request``: is called with each requested tensor and index.
    """

    stored: Mapping[Tensor, BufferKey]
    values: Sizes
    rules: Mapping[str, Rule]
    computed: dict[str, Element] = field(default_factory=dict)
    cache: dict[Any, Element] = field(default_factory=dict)
    names: dict[Element, str] = field(default_factory=dict)
    axes_cache: dict[Element, frozenset[str]] = field(default_factory=dict)
    sizes: list[Number] = field(default_factory=list)
    canonical_sizes: dict[str, Number] = field(default_factory=dict)
    lengths: list[Number] = field(default_factory=list)
    extents: dict[str, int] = field(default_factory=dict)
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[tuple[slice, slice]]] = field(default_factory=dict)
    facts: dict[tuple[str, Element], bool] = field(default_factory=dict)
    satisfiable: set[str] = field(default_factory=set)
    on_request: Callable[[Tensor, Index], None] | None = None

    def axis(self, size: Number, index: Sequence[Number], guard: Conditions = (), depth: int = 0) -> Axis:
        """A new axis within the loops of an index. Equal loops get equal axes, so that their elements are shared.

        ``index``, ``guard``: the numbers whose free axes enclose the new one.
        ``depth``: the number of further axes between these and the new one.
        """
        outer_names = self.number_axes(index) | self.condition_axes(guard)
        deepest = max((int(name[1:].partition("_")[0]) for name in outer_names if name.startswith("r")), default=-1)
        if not any(self.is_equal(size, other) for other in self.lengths):
            self.lengths.append(size)
        length_number = next(k for k, other in enumerate(self.lengths) if self.is_equal(size, other))
        return self.add_axis(Axis(f"r{deepest + 1 + depth}_{length_number}", self.canonical(size)))

    def split(self, axis: Axis, size: Number) -> tuple[Axis, Axis]:
        """Split an axis into two; the size of the inner one divides that of the axis."""
        outer, inner = self.canonical(axis.size // size), self.canonical(size)
        return self.add_axis(Axis(f"{axis.name}_a", outer)), self.add_axis(Axis(f"{axis.name}_b", inner))

    def add_axis(self, axis: Axis) -> Axis:
        """Record the length of an axis, and return the axis."""
        self.extents[axis.name] = size_of(axis.size, self.values)
        return axis

    def canonical(self, d: Number) -> Number:
        """The one number that represents all sizes equal to ``d``."""
        representative = self.canonical_sizes.get(d.key)
        if representative is None:
            representative = self.canonical_sizes[d.key] = self._canonical_size(d)
        return representative

    def _canonical_size(self, d: Number) -> Number:
        length = size_of(d, self.values)
        if d.op == "const" or 0 <= length <= 1:
            return number(int(length))
        if isinstance(self.values, GuardedSizes) and any(self.is_equal(d, size) for size in self.values.constant_dims):
            return number(int(length))
        for size in self.sizes:
            if self.is_equal(d, size):
                return size
        self.sizes.append(d)
        return d

    def linear(self, index: Sequence[Number], x: Tensor) -> Number:
        """The linear index of an element in its tensor; a short last dim is a constant."""
        dims = [self.canonical(d) for d in x.dims]
        if len(dims) > 1 and size_of(dims[-1], self.values) <= MAX_CONSTANT_DIM:
            dims[-1] = number(int(size_of(dims[-1], self.values)))
        return normal(linear(index, dims), self.canonical)

    def through_reshape(self, index: Index, x: Tensor, source: Tensor) -> Index:
        """Map an index of the reshape ``x`` to one of its operand.

        Only groups of dims with equal products are linearized, so that unchanged dims need no divisions.
        """
        dims, source_dims = (tuple(map(self.canonical, each.dims)) for each in (x, source))
        groups = self._equal_products(dims, source_dims)
        return tuple(i for own, other in groups for i in self._unravel(index[own], dims[own], source_dims[other]))

    def _equal_products(self, dims: Sequence[Number], other_dims: Sequence[Number]) -> list[tuple[slice, slice]]:
        """Group dims by equal products; by products that are equal in all calls, if the generic sizes show them."""
        key = tuple([d.key for d in dims]), tuple([d.key for d in other_dims])
        if key not in self.groups:
            self.groups[key] = self._group_dims(dims, other_dims)
        return self.groups[key]

    def _group_dims(self, dims: Sequence[Number], other_dims: Sequence[Number]) -> list[tuple[slice, slice]]:
        if isinstance(self.values, GuardedSizes):
            generic, other = (list(filter(None, map(self.values.generic_value, each))) for each in (dims, other_dims))
            if len(generic) == len(dims) and len(other) == len(other_dims) and prod(generic) == prod(other):
                groups = equal_products(generic, other)
                if all(self.is_equal(product(dims[a]), product(other_dims[b])) for a, b in groups):
                    return groups
        return equal_products(*([size_of(d, self.values) for d in each] for each in (dims, other_dims)))

    def _unravel(self, index: Index, dims: Sequence[Number], other_dims: Sequence[Number]) -> list[Number]:
        """Convert an index into ``dims`` to one into ``other_dims``, which have the same product."""
        axes = [k for k, d in enumerate(dims) if not self.is_one(d)]
        other_axes = [k for k, d in enumerate(other_dims) if not self.is_one(d)]
        other_index = [number(0)] * len(other_dims)
        rest = linear([index[k] for k in axes], [dims[k] for k in axes])
        for k in reversed(other_axes[1:]):
            rest, other_index[k] = divided(rest, other_dims[k], self.values, self.extents, self.canonical)
        if other_axes:
            other_index[other_axes[0]] = rest
        return other_index

    def is_equal(self, a: Number, b: Number) -> bool:
        """Whether two sizes are equal in all calls that the guards admit."""
        return is_equal_size(a, b, self.values)

    def is_one(self, d: Number) -> bool:
        """Whether a dim is 1."""
        return size_of(d, self.values) == 1

    def free_axes(self, x: Element) -> frozenset[str]:
        """The names of the axes that an element depends on and does not reduce."""
        names = self.axes_cache.get(x)
        if names is None:
            names = frozenset().union(*map(self.free_axes, x.args))
            if x.op == "load":
                names |= self.number_axes(x.params[1:2]) | self.condition_axes(x.params[2])
            elif x.op == "index":
                names |= self.number_axes(x.params)
            elif x.op == "random":
                names |= self.number_axes(x.params[2:])
            elif x.op in ("select", "checked"):
                names |= self.condition_axes(x.params[-1])
            elif x.op in ("reduce", "arg"):
                axes = x.params[1]
                names |= self.number_axes([each for axis in axes for each in axis.bounds])
                names -= {axis.name for axis in axes}  # bounds of inner axes depend on outer ones
            elif x.op == "running":
                names |= {x.params[1].name}
            self.axes_cache[x] = names
        return names

    def number_axes(self, numbers: Iterable[Number]) -> frozenset[str]:
        """The names of the axes that numbers depend on."""
        names: frozenset[str] = frozenset()
        for leaf in (leaf for n in numbers for leaf in leaves_of(n)):
            names |= {leaf.value} if leaf.op == "axis" else self.free_axes(self.computed[leaf.value])
        return names

    def condition_axes(self, conditions: Conditions) -> frozenset[str]:
        """The names of the axes that conditions depend on."""
        return self.number_axes(each for c in conditions for each in (c.a, c.b))

    def operands(self, x: Element) -> list[Element]:
        """The operands of an element, and the elements whose values its numbers depend on."""
        return [*x.args, *[self.computed[name] for name in x.indices]]

    def has_reduction(self, x: Element) -> bool:
        """Whether an element depends on a reduction."""
        if ("reduced", x) not in self.facts:
            self.facts["reduced", x] = x.op in ("reduce", "arg") or any(self.has_reduction(arg) for arg in x.args)
        return self.facts["reduced", x]

    def intern(self, op: str, args: Sequence[Element], params: tuple[Any, ...], dtype: str) -> Element:
        """The one element of this structure."""
        key = (op, tuple(map(id, args)), _key(params), dtype)
        element = self.cache.get(key)
        if element is None:
            element = self.cache[key] = Element(op, tuple(args), params, dtype)
        return element

    def at(self, x: Tensor, index: Index, guard: Conditions = ()) -> Element:
        """Lower the element of a tensor at an index, which is in bounds where all of ``guard`` holds."""
        key = (x, tuple(i.key for i in index), tuple(c.key for c in guard))
        if self.on_request is not None:
            self.on_request(x, index)
        element = self.cache.get(key)
        if element is None:
            source = self.stored.get(x)
            if source is not None:
                element = self.load(source, self.linear(index, x), guard, x.dtype)
            else:
                element = self.rules[x.op](self, x, index, guard)
            self.cache[key] = element
        return element

    def load(self, source: BufferKey, offset: Number, guard: Conditions, dtype: str) -> Element:
        """Load from a buffer, predicated by the conditions of the guard that are not known to hold."""
        free = self.number_axes((offset,))
        predicates = tuple(
            c
            for c in guard
            if not self.always_holds(c)
            and not (c.key in self.satisfiable and self.condition_axes((c,)).isdisjoint(free))
        )
        return self.intern("load", (), (source, offset, predicates), dtype)

    def range_conditions(self, at: Number, size: Number) -> Conditions:
        """The conditions that an index is in the range of an axis; unless that is empty, they hold for some index."""
        conditions = (at >= 0, at < size)
        if size_of(size, self.values) > 0:
            self.satisfiable |= {c.key for c in conditions}
        return conditions

    def always_holds(self, c: Condition) -> bool:
        """Whether a condition holds in this call for every value of the axes."""
        if not leaves_of(c.a) and not leaves_of(c.b):
            return holds(c, self.values)
        span = span_of(c.a - c.b, self.values, self.extents) if c.op in ("less", "greater_equal") else None
        return span is not None and (span[1] < 0 if c.op == "less" else span[0] >= 0)

    def number(self, value: Any, dtype: str) -> Element:
        """A constant, or a number computed of sizes and attributes."""
        return self.intern("number", (), (number(value),), dtype)

    def cast(self, x: Element, dtype: str) -> Element:
        """Convert an element to a dtype."""
        if x.op == "cast" and x.dtype == "int64" and x.args[0].dtype == dtype == "int32":  # a round trip
            return x.args[0]
        return x if x.dtype == dtype else self.intern("cast", (x,), (), dtype)

    def select(self, conditions: Conditions, a: Element, b: Element) -> Element:
        """``a`` where all conditions hold, else ``b``."""
        unknown = tuple(c for c in conditions if not self.always_holds(c))
        if any(c.a.op == "const" == c.b.op for c in unknown):  # it never holds
            return b
        return self.intern("select", (a, b), (unknown,), a.dtype) if unknown else a

    def index_of(self, x: Element) -> Number:
        """Use an integer element in index arithmetic: a leaf that stands for it."""
        as_int64 = self.cast(x, "int64")
        name = self.names.setdefault(as_int64, f"e{len(self.names)}")
        self.computed[name] = as_int64
        return element_leaf(name)

    def checked_index(self, x: Element, size: Number, guard: Conditions) -> Element:
        """An index that is reported and clamped if it is not in [0, size) where the guard holds."""
        if x.op == "checked" and self.is_equal(x.params[0], size):
            return x
        if self.is_in_range(x, size):
            return self.cast(x, "int64")
        unknown = tuple(c for c in guard if not self.always_holds(c))
        return self.intern("checked", (self.cast(x, "int64"),), (self.canonical(size), unknown), "int64")

    def is_in_range(self, x: Element, size: Number) -> bool:
        """Whether an element is in [0, size) since it is computed of checked indices only."""
        bounds = self._span(x)
        return bounds is not None and bounds[0] >= 0 and bounds[1] < size_of(size, self.values)

    def _span(self, x: Element) -> tuple[int, int] | None:
        """The range (minimum, maximum) of an integer computed of checked indices and constants; else None."""
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
        """Reduce an element over axes; conditions that select the identity otherwise become bounds of the loops."""
        if not axes:
            return body
        if body.op == "reduce" and body.params[0] == kind:  # nested reductions of one kind are a single one
            return self.reduce(kind, (*axes, *body.params[1]), body.args[0])
        bounded = self._contiguous_last(axes, body)
        if body.op == "select" and _is_identity(kind, body.args[1]):
            for k, axis in enumerate(tuple(bounded)):
                inner_names = {each.name for each in bounded[k + 1 :]}
                bound_keys = set()
                for c in body.params[0]:
                    bound = bound_of(c, axis.name)
                    if bound is None or (inner_names | {axis.name}) & self.number_axes(bound[:1]):
                        continue
                    value, upper = bound
                    begin, end = bounded[k].bounds
                    if upper:
                        bounded[k] = Axis(axis.name, axis.size, begin, lowest(end, value))
                    else:
                        bounded[k] = Axis(axis.name, axis.size, highest(begin, value), end)
                    bound_keys.add(c.key)
                if bound_keys:
                    body = self.assuming(body, axis.name, frozenset(bound_keys))
                if body.op != "select":
                    break
        return self.intern("reduce", (body,), (kind, tuple(bounded)), body.dtype)

    def _contiguous_last(self, axes: Sequence[Axis], body: Element) -> list[Axis]:
        """The axes with a contiguous one last."""
        if len(axes) < 2 or any(axis.begin is not None or axis.end is not None for axis in axes):
            return list(axes)
        loads = (x for x in dependencies(body, self) if x.op == "load")
        last = next((axis for x in loads for axis in axes if is_contiguous(x.params[1], axis.name)), axes[-1])
        return [*(axis for axis in axes if axis is not last), last]

    def assuming(self, x: Element, axis: str, keys: frozenset[str]) -> Element:
        """Simplify an element, assuming that the conditions of an axis with these keys hold."""
        key = ("assuming", x, axis, keys)
        if key in self.cache:
            return self.cache[key]
        if axis not in self.free_axes(x):  # the name may be bound anew within
            return x
        args = [self.assuming(arg, axis, keys) for arg in x.args]
        params = x.params
        if x.op in ("select", "load", "checked"):
            params = (*params[:-1], tuple(c for c in params[-1] if c.key not in keys))
        element = args[0] if x.op == "select" and not params[0] else self.intern(x.op, args, params, x.dtype)
        self.cache[key] = element
        return element


def equal_products(dims: Sequence[int], other_dims: Sequence[int]) -> list[tuple[slice, slice]]:
    """Group the dims of two lists so that the products of corresponding groups are equal; groups are minimal."""
    groups, k, m = list[tuple[slice, slice]](), 0, 0
    while m < len(other_dims) or k < len(dims):
        a, b = k, m
        k, m = min(k + 1, len(dims)), min(m + 1, len(other_dims))
        while (k < len(dims) or m < len(other_dims)) and prod(dims[a:k]) != prod(other_dims[b:m]):
            if m == len(other_dims) or (k < len(dims) and prod(dims[a:k]) < prod(other_dims[b:m])):
                k += 1
            else:
                m += 1
        groups.append((slice(a, k), slice(b, m)))
    return groups


def _key(params: Any) -> Any:
    if isinstance(params, tuple):
        return tuple(map(_key, params))
    return params.key if isinstance(params, (Number, Condition)) else params


def dependencies(x: Element, e: Elements, numbers: Iterable[Number] = ()) -> list[Element]:
    """All elements that one element and further numbers depend on, itself included, in topological order."""
    visited: dict[Element, None] = {}

    def visit(x: Element) -> None:
        if x in visited:
            return
        for operand in e.operands(x):
            visit(operand)
        visited[x] = None

    visit(x)
    for name in computed_indices(numbers):
        visit(e.computed[name])
    return list(visited)


def _is_identity(kind: str, x: Element) -> bool:
    """Whether an element is the identity of a reduction."""
    if x.op != "number" or x.params[0].op != "const":
        return False
    value, identity = float(x.params[0].value), float(reduction_identity(kind, x.dtype))
    return value == identity
