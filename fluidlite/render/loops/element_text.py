"""Elements and numbers as text of a kernel language."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fluidlite.base.dtypes import FLOATS, HALVES, compute_dtype
from fluidlite.codegen.language_functions import EXP_LIMIT
from fluidlite.codegen.language_math import math_call
from fluidlite.codegen.language_primitives import converted, held, primitive
from fluidlite.codegen.language_text import literal
from fluidlite.codegen.typed import number as typed_number
from fluidlite.expr.number import Condition, Number, number
from fluidlite.render.loops.affine import step_is_one, step_of, with_axes
from fluidlite.render.loops.elements import Element, Source, numbers_in
from fluidlite.render.loops.functions import costly
from fluidlite.render.loops.indices import Conditions, leaves_of
from fluidlite.render.loops.merging import elements_of
from fluidlite.render.loops.nest import TILE, Nest, Store
from fluidlite.render.loops.schedule import NEAR, Schedule
from fluidlite.render.loops.sizes import size_of

_SIGNS = {"equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">="}
_TURNED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}
STATUS: Source = ("status",)
LONG_TILE = 4 * TILE
"""Neighbours of which few are left behind the last whole vector."""


@dataclass
class Scope:
    """The text within loops: what it defines stands for all numbers of the axes around it.

    ``tile`` holds statements for each element of a tile: they are one loop, until a loop over something else comes
    between. ``checks`` are the indices that it checks: the variable that keeps the worst one, and the bound.
    """

    axes: frozenset[str]
    lines: list[str] = field(default_factory=list)
    names: dict[Any, str] = field(default_factory=dict)
    tile: list[str] = field(default_factory=list)
    tile_names: dict[Any, str] = field(default_factory=dict)
    neighbours: str = ""
    """The axis of a reduction along which the loop goes through several neighbours at a time."""
    head: list[str] = field(default_factory=list)
    """What is done before each of these."""
    apart: bool = False
    """Whether neighbours of the tile read what lies apart."""
    checks: list[tuple[str, str]] = field(default_factory=list)


class ElementWriter:
    """Writes the text of elements: each is defined in the outermost loop in which all that it is computed of is known.

    ``dtypes``: as what is loaded and stored lies in memory.
    ``late``: outputs that lie on operands, or may: they are written when all else is done.
    ``updated``: those of them that are state, and stay what they were behind an error.
    """

    def __init__(
        self,
        nest: Nest,
        schedule: Schedule,
        language: Any,
        dtypes: Mapping[Source, str],
        late: Mapping[Source, Source],
        updated: Container[Source],
    ) -> None:
        self.nest, self.schedule, self.dtypes, self.elements = nest, schedule, dtypes, nest.elements
        self.late, self.updated = late, updated
        self.types, self.math = language.types, language.math
        words = [str(language.keywords.get(name, "")) for name in ("independent", "apart", "stream", "unroll")]
        self.independent, self.apart, self.stream, self.unroll = words
        self.ranks = _ranks(nest)
        if not self.apart or any(map(costly, self.ranks)):  # functions gain more by vectors
            self.apart = self.independent
        self.crossing: set[Any] = set()
        self._begin()

    def _begin(self) -> None:
        self.buffers: dict[Source, tuple[str, str, bool]] = {}
        self.numbers: dict[tuple[str, str], tuple[str, str, Number]] = {}
        items = frozenset(axis.name for axis in self.nest.items)
        self.scopes = [Scope(items - {self.schedule.lane})]
        self.waiting = sorted(self.nest.stores, key=lambda store: store.target in self.late)
        self.saved: dict[Element, Store] = {}
        self.staged: dict[Element, str] = {}
        self.past: list[tuple[Store, str]] = []
        self.staging = False
        self.rows: list[tuple[str, str]] = []
        self.draws = False
        self.flushes = 0
        self.count = 0
        self.local: list[str] = []

    # Scopes

    def _level(self, needs: frozenset[str]) -> int:
        """The outermost scope in which something can be defined."""
        free = frozenset() if self.staging else {self.schedule.lane}
        return next(k for k, scope in enumerate(self.scopes) if needs <= scope.axes | free)

    def _emit(self, line: str, level: int, tile: bool) -> None:
        scope = self.scopes[level]
        (scope.tile if tile else scope.lines).append(line)

    def _flush(self, level: int = -1) -> None:
        """End the loop over a tile."""
        scope = self.scopes[level]
        self.flushes += bool(scope.tile)
        if scope.tile:
            lane = self.schedule.lane
            word = self.apart if scope.apart else self.independent
            begin = f"{word} for (int v = 0; v < @W@; ++v) {{ const index_t {lane} = first + v;"
            unsigned = self.types["uint64"]
            scope.lines += [f"{unsigned} {worst} = 0;" for worst, _ in scope.checks]
            scope.lines += [begin, *scope.tile, "}"]
            scope.lines += [
                self._reported(f"{worst} >= ({unsigned}){bound}", worst, bound) for worst, bound in scope.checks
            ]
        scope.tile, scope.tile_names, scope.checks, scope.apart = [], {}, [], False

    def _tiled(self, needs: frozenset[str]) -> bool:
        return bool(self.schedule.lane) and self.schedule.lane in needs and not self.staging

    def _named(self, key: Any, level: int, into: int) -> str | None:
        """The name of what was defined already, as it is read in the scope ``into``."""
        for scope in self.scopes[: level + 1]:
            if key in scope.names:
                return scope.names[key]
            if key in scope.tile_names:
                if scope is self.scopes[into]:
                    return scope.tile_names[key]
                self.crossing.add(key)
                return scope.tile_names[key]
        return None

    def _define(self, key: Any, level: int, kind: str, text: str, stem: str, tile: bool) -> str:
        scope = self.scopes[level]
        self.count += 1
        name = f"{stem}{self.count}"
        if not tile:
            scope.names[key] = name
        elif key in self.crossing:
            scope.lines.append(f"{kind} {name}[{self.schedule.lanes}];")
            self._emit(f"{name}[v] = {text};", level, True)
            scope.names[key] = f"{name}[v]"
            return f"{name}[v]"
        else:
            scope.tile_names[key] = name
        self._emit(f"const {kind} {name} = {text};", level, tile)
        return name

    # Numbers

    def _parameter(self, n: Number, dtype: str) -> str:
        if n.op == "const" and n.whole and dtype == "int64":
            return literal(n.value, "int64")
        key = n.key, dtype
        if key not in self.numbers:
            self.numbers[key] = f"n{len(self.numbers)}", dtype, n
        return self.numbers[key][0]

    def _number(self, n: Number, into: int) -> str:
        """An index, a size, or what is computed of both, as it is read in the scope ``into``."""
        if not leaves_of(n):
            return self._parameter(n, "int64")
        if n.op == "axis":
            return str(n.value)
        if n.op == "element":
            return self.value(self.elements.computed[n.value], into)
        needs = self.elements.needs_of([n])
        tile = self._tiled(needs)
        level = into if tile else self._level(needs)
        if tile:
            known = self.scopes[into].tile_names.get(n.key)
        else:
            known = next((scope.names[n.key] for scope in self.scopes[: level + 1] if n.key in scope.names), None)
        if known is not None:
            return known
        names = [self._number(arg, level) for arg in n.args]
        return self._define(n.key, level, "index_t", _arithmetic(n.op, names), "x", tile)

    def _place(self, n: Number, into: int, there: Conditions = ()) -> str:
        """Where something is loaded or stored. What lies apart in a long tile is said by steps from the tile's first
        element: compilers see the step then, and read whole vectors, where else they gather.

        They compute one by one what is left behind the last whole vector: that is much of a short tile. And they gather
        what is read only where conditions hold that differ within a tile.
        """
        lane, needs = self.schedule.lane, self.elements.needs_of
        step, rest = (step_of(n, lane), with_axes(n, {lane: number(0)})) if self._tiled(needs([n])) else (None, n)
        if step is None or step.key in ("1", "-1") or lane in needs([step, rest]) | self.elements.needs_of_all(there):
            return self._number(n, into)
        if self.schedule.lanes < LONG_TILE:
            return self._number(n, into)
        key = "by steps", n.key
        if (known := self.scopes[into].tile_names.get(key)) is not None:
            return known
        level = self._level(needs([step, rest]))
        begin = next((scope.names[key] for scope in self.scopes[: level + 1] if key in scope.names), None)
        by = self._number(step, level)
        if begin is None:
            begin = self._define(key, level, "index_t", f"{self._number(rest, level)} + {by} * first", "x", False)
        return self._define(key, into, "index_t", f"{begin} + {by} * v", "x", True)

    def _holds(self, conditions: Sequence[Condition], into: int) -> str:
        return " && ".join(self._condition(c, into) for c in conditions)

    def _condition(self, c: Condition, into: int) -> str:
        lane = self.schedule.lane
        if self._tiled(self.elements.needs_of_all((c,))):
            difference = c.a - c.b
            step = step_of(difference, lane)
            if step is not None and step.key in ("1", "-1"):  # the number of a neighbour is compared, which is short
                rest = with_axes(difference, {lane: number(0)})
                if lane not in self.elements.needs_of([rest]):
                    limit = -rest if step.key == "1" else rest
                    sign = _SIGNS[c.op] if step.key == "1" else _SIGNS[_TURNED.get(c.op, c.op)]
                    return f"v {sign} {self._neighbour(limit)}"
        return f"{self._number(c.a, into)} {_SIGNS[c.op]} {self._number(c.b, into)}"

    def _neighbour(self, n: Number) -> str:
        """Which neighbour of a tile an index along its axis is; of those outside, one before, or one behind."""
        level, key = self._level(self.elements.needs_of([n])), ("neighbour", n.key)
        for scope in self.scopes[: level + 1]:
            if key in scope.names:
                return scope.names[key]
        at, width = self._number(n, level), self.schedule.lanes
        text = f"{at} < first ? -1 : {at} - first > {width} ? {width + 1} : (int)({at} - first)"
        return self._define(key, level, "int", text, "t", False)

    # Elements

    def value(self, x: Element, into: int) -> str:
        """The name of an element's value, as it is read in the scope ``into``; it is defined in the outermost that it
        can be.
        """
        if x.op == "number":
            return self._constant(x)
        needs = self.elements.needs(x)
        level, tile = self._level(needs), self._tiled(needs)
        if tile and (_plain(x) or self._lies_along(x)):  # it costs less than to be kept for each of a tile
            level = into
        known = self._named(x, level, into)
        if known is not None:
            return known
        if x.op in ("reduce", "arg"):
            inner, self.scopes = self.scopes, self.scopes[: level + 1]
            self._reduced(x, level)
            self.scopes = inner
            return self.scopes[level].names[x]
        if x in self.staged:
            return self._define(x, level, self._kind(x.dtype), self.staged[x], "v", tile)
        if x in self.saved:
            text = f"{self.buffers[self.saved[x].target][0]}[{self._number(self.saved[x].place, level)}]"
            return self._define(x, level, self._kind(x.dtype), text, "v", tile)
        if x.op == "checked":
            self._check(x, level, tile)
        if x.op == "running":
            return self._run(x, level, tile)
        name = self._define(x, level, self._kind(x.dtype), self._text(x, level), "v", tile)
        if tile and level != into and x not in self.crossing:
            self.crossing.add(x)
        return name

    def _lies_along(self, x: Element) -> bool:
        """Whether an element is loaded as it is from where nothing is written, side by side along the tile."""
        if x.op != "load" or x in self.staged or x in self.saved:
            return False
        source, place, guard = x.params
        if guard or source[0] != "in" or source in self.late.values() or self.dtypes[source] == "bool":
            return False
        return step_is_one(place, self.schedule.lane)

    def _lies_apart(self, place: Number) -> bool:
        """Whether neighbours of a tile are read by equal steps, and no two of them in a vector."""
        step = step_of(place, self.schedule.lane) if self._tiled(self.elements.needs_of([place])) else None
        return step is not None and (step.op != "const" or abs(int(step.value)) > NEAR)

    def _check(self, x: Element, level: int, tile: bool) -> None:
        """Record an index that is out of range."""
        (size, guard), at = x.params, self.value(x.args[0], level)
        bound = self._number(size, level)
        there = f" && {self._holds(guard, level)}" if guard else ""
        if not tile:
            self._emit(self._reported(f"({at} < 0 || {at} >= {bound}){there}", at, bound), level, False)
            return
        # of a tile the worst is kept, negative ones being the worst, and looked at behind the loop, which has no branch
        self.count += 1
        worst, unsigned = f"w{self.count}", self.types["uint64"]
        self.scopes[level].checks.append((worst, bound))
        self._emit(f"{worst} = ({unsigned}){at} > {worst}{there} ? ({unsigned}){at} : {worst};", level, True)

    def _reported(self, wrong: str, at: str, bound: str) -> str:
        return f"if ({wrong}) bad_index({self._buffer(STATUS, 'int64', True)}, op_id, {at}, {bound});"

    def _stored(self, dtype: str) -> str:
        return str(self.types["int16" if dtype in HALVES else dtype])

    def _kind(self, dtype: str) -> str:
        return str(self.types["int16"]) if dtype in HALVES else held(dtype, self.types)

    def _constant(self, x: Element) -> str:
        (n,), wide = x.params, compute_dtype(x.dtype)
        if n.op == "const":
            text = literal(typed_number(n.value, wide), wide)
        else:
            text = self._parameter(n, "int32" if wide == "bool" else wide)
        return f"fl_store_{x.dtype}({text})" if x.dtype in HALVES else text

    def _text(self, x: Element, level: int) -> str:
        if x.op == "load":
            source, place, guard = x.params
            dtype = "int64" if source[0] == "offsets" else self.dtypes[source]
            self.scopes[level].apart |= self._lies_apart(place)
            text = f"{self._buffer(source, dtype, False)}[{self._place(place, level, guard)}]"
            text = f"({text} != 0)" if dtype == "bool" else text
            return f"({self._holds(guard, level)}) ? {text} : 0" if guard else text
        if x.op == "index":
            return self._number(x.params[0], level)
        if x.op == "random":
            return self._random(x, level)
        if x.op == "checked":
            at, size = self.value(x.args[0], level), self._number(x.params[0], level)
            none = "" if size_of(x.params[0], self.elements.values) else f"{size} == 0 ? 0 : "
            # the maximum within the minimum: ptxas 12.9 and 13.0 compare the other order with its end wrongly on sm_90
            return f"{none}{at} < {size} ? {at} < 0 ? 0 : {at} : {size} - 1"
        if x.op == "select":
            a, b = self._operands(x, level)
            if _is_there(x):
                return a
            return f"({self._holds(x.params[0], level)}) ? {a} : {b}"
        names = self._operands(x, level)
        given = x.args[0].dtype
        if x.op == "cast":
            if x.args[0].op == "index" and self._short(x.args[0].params[0], level):
                return f"({self._kind(x.dtype)})({self._short(x.args[0].params[0], level)})"
            if given in HALVES:
                wide = f"fl_load_{given}({names[0]})"
                return wide if x.dtype == "float32" else converted(wide, "float32", x.dtype, self.types)
            if x.dtype in HALVES:
                name = names[0] if given == "float32" else converted(names[0], given, "float32", self.types)
                return f"fl_store_{x.dtype}({name})"
            return converted(names[0], given, x.dtype, self.types)
        (op,) = x.params
        if op in ("maximum", "minimum") and given in FLOATS and _is_number(x.args[1]):  # one comparison keeps a NaN
            return f"{names[0]} {'<' if op == 'maximum' else '>'} {names[1]} ? {names[1]} : {names[0]}"
        if op == "exp" and _moderate(x.args[0]):
            return f"({self._kind(x.dtype)}){math_call('expnear', x.dtype, self.math)}({names[0]})"
        return primitive(op, names, x.dtype if op == "where" else given, self.types, self.math)

    def _operands(self, x: Element, level: int) -> list[str]:
        """The names of operands; where one is a reduction, loops came between, and what was named before them is not
        known any more.
        """
        before = self.flushes
        names = [self.value(arg, level) for arg in x.args]
        return names if self.flushes == before else [self.value(arg, level) for arg in x.args]

    def _random(self, x: Element, level: int) -> str:
        """A random number of the operator: by its place among all elements, so that it is the same in any loop."""
        kind, stream, place = x.params
        self.draws = True
        word = self._word(place, stream, level)
        if kind == "gaussian":
            return f"fl_gaussian_float32({word})"
        return f"({self._kind('float32')})({word} >> 8) * {literal(2.0**-24, 'float32')}"

    def _word(self, place: Number, stream: int, level: int) -> str:
        """A random word; those of neighbours, four of which are drawn at once, are drawn before the loop over them."""
        scope, tile = self.scopes[level], self._tiled(self.elements.needs_of([place]))
        axis = self.schedule.lane if tile else scope.neighbours
        kind, long, key = self.types["uint32"], self.types["uint64"], f"r0, r1, r2, r3 + {stream}u"
        self.count += 1
        name = f"w{self.count}"
        if not axis or not step_is_one(place, axis):
            at = self._number(place, level)
            self._emit(f"{kind} {name}[4]; fl_philox_any(({long})({at}) >> 2, {key}, {name});", level, tile)
            return f"{name}[({at}) & 3]"
        rest = self._number(with_axes(place, {axis: number(0)}), level)
        begin, count = ("first", self.schedule.lanes) if tile else (f"{axis}_at", TILE)
        most = blocks_of(count)
        lines, blocks = (scope.lines, str(most)) if tile else (scope.head, "@B@")
        lines += [
            f"const index_t {name}_at = {rest} + {begin};",
            f"{kind} {name}[{4 * most}]; fl_words_any({name}_at, {blocks}, {key}, {name});",
        ]
        return f"{name}[(int)({name}_at & 3) + {'v' if tile else '@'}]"

    def _short(self, n: Number, level: int) -> str:
        """An index along a tile as a sum of 32 bits; "" if it is none, or may be larger."""
        lane, values = self.schedule.lane, self.elements.values
        step = step_of(n, lane) if lane else None
        if step is None or step.op != "const" or not int(step.value):
            return ""
        rest = with_axes(n, {lane: number(0)})
        axes = {axis.name: axis for axis in self.nest.items}
        if lane in self.elements.needs_of([rest]) or leaves_of(rest):
            return ""
        whole = size_of(axes[lane].size, values) * int(step.value)
        if max(abs(size_of(rest, values)), abs(size_of(rest, values) + whole)) >= 2**31:
            return ""
        return f"(int)({self._number(rest, level)} + first * {int(step.value)}) + v * {int(step.value)}"

    # Memory

    def _buffer(self, source: Source, dtype: str, written: bool) -> str:
        if source not in self.buffers:
            self.buffers[source] = re.sub(r"\W", "_", "_".join(map(str, source))), dtype, written
        elif written:
            self.buffers[source] = (*self.buffers[source][:2], True)
        return self.buffers[source][0]

    # What loops compute

    def _reduced(self, x: Element, level: int) -> None:
        raise NotImplementedError

    def _run(self, x: Element, level: int, tile: bool) -> str:
        raise NotImplementedError


def blocks_of(count: int) -> int:
    """How many blocks of four random words neighbours may lie in, the first of which is any of its block."""
    return (3 + count + 3) // 4


def _ranks(nest: Nest) -> dict[Element, int]:
    """Of each element, how many reductions there are one in another: of equal ones none needs the other."""
    found: dict[Element, int] = {}

    def of_numbers(numbers: Sequence[Number]) -> int:
        leaves = [leaf for n in numbers for leaf in leaves_of(n) if leaf.op == "element"]
        return max((found[nest.elements.computed[leaf.value]] for leaf in leaves), default=0)

    for x in elements_of(nest):
        rank = max((found[arg] for arg in x.args), default=0)
        found[x] = max(rank, of_numbers(list(numbers_in(x)))) + (x.op in ("reduce", "arg"))
    return found


def _is_there(x: Element) -> bool:
    """Whether what is selected is 0 by itself where the conditions do not hold."""
    (one, other), (conditions,) = x.args, x.params
    if one.op != "load" or other.op != "number" or other.params[0].key not in ("0", "0.0"):
        return False
    return {c.key for c in conditions} <= {c.key for c in one.params[2]}


def _plain(x: Element) -> bool:
    """Whether an element is the number of an index."""
    return x.op == "index" or (x.op == "cast" and _plain(x.args[0]))


def _is_number(x: Element) -> bool:
    """Whether an element is a number that is known, and neither NaN nor of two signs."""
    return x.op == "number" and x.params[0].op == "const" and bool(x.params[0].value == x.params[0].value != 0)


def _moderate(x: Element) -> bool:
    """Whether a number is NaN or not far below 0, and not above: the difference to a maximum, with a least value."""
    if x.op != "map" or x.params != ("maximum",) or x.args[1].op != "number":
        return False
    least, difference = x.args[1].params[0], x.args[0]
    if least.op != "const" or least.value < -EXP_LIMIT or difference.op != "map" or difference.params != ("sub",):
        return False
    one, most = difference.args
    return most.op == "reduce" and most.params[0] == "max" and most.args[0] is one


def _arithmetic(op: str, names: Sequence[str]) -> str:
    """An operation on indices, none of which is negative where it is divided."""
    if op in ("minimum", "maximum"):
        a, b = names
        return f"{a} {'<' if op == 'minimum' else '>'} {b} ? {a} : {b}"
    if op == "neg":
        return f"-{names[0]}"
    signs = {"add": "+", "sub": "-", "mul": "*", "floordiv": "/", "mod": "%"}
    if op in ("floordiv", "mod") and not names[1][0].isdigit():  # by 0 it is 0, as numbers are: of what is not there
        return f"{names[1]} == 0 ? 0 : {names[0]} {signs[op]} {names[1]}"
    return f"{names[0]} {signs[op]} {names[1]}"
