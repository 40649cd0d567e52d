"""Code generation: the kernel-language text of elements and numbers."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fluidlite.base.dtypes import FLOATS, HALVES, compute_dtype
from fluidlite.codegen.language_functions import EXP_LIMIT
from fluidlite.codegen.language_math import math_call
from fluidlite.codegen.language_primitives import conversion_text, primitive, value_type
from fluidlite.codegen.language_text import literal
from fluidlite.codegen.typed import converted_number as typed_number
from fluidlite.expr.number import COMPARISONS, Condition, Number, number
from fluidlite.render.loops.affine import MIRRORED, is_contiguous, stride_of, with_axes
from fluidlite.render.loops.elements import BufferKey, Element
from fluidlite.render.loops.functions import is_expensive
from fluidlite.render.loops.indices import Conditions, leaves_of
from fluidlite.render.loops.merging import elements_of
from fluidlite.render.loops.nest import TILE, Nest, Store
from fluidlite.render.loops.schedule import MAX_VECTOR_STRIDE, Schedule
from fluidlite.render.loops.sizes import size_of

STATUS: BufferKey = ("status",)
LONG_TILE = 4 * TILE
"""Elements of a tile from which the remainder after the last full vector is negligible."""


@dataclass
class LoopScope:
    """The text of a loop body with the variables that it defines.

    ``axes``: the axes of the enclosing loops.
    ``names``: the defined variables by element or number.
    ``tile``: the pending statements for each element of a tile; :meth:`ElementWriter._flush` wraps them in one loop.
    ``tile_names``: the variables that these define.
    ``checks``: the indices that they check: the variable with the worst one, and the bound.
    """

    axes: frozenset[str]
    lines: list[str] = field(default_factory=list)
    names: dict[Any, str] = field(default_factory=dict)
    tile: list[str] = field(default_factory=list)
    tile_names: dict[Any, str] = field(default_factory=dict)
    neighbours: str = ""
    """The axis of a reduction along which the loop takes TILE elements at a time, for partial results."""
    head: list[str] = field(default_factory=list)
    """Statements before each of these inner loops."""
    strided: bool = False
    """Whether the tile has strided loads."""
    checks: list[tuple[str, str]] = field(default_factory=list)
    interval: tuple[str, str] = ("0", "@W@")
    """Where in the tile the loop begins and ends."""


class ElementWriter:
    """Writes the text of elements. Each is hoisted to the outermost loop in which its operands are available.

    ``dtypes``: the dtypes of buffers in memory.
    ``aliased``: outputs that alias, or may alias, operands; they are written last.
    ``updated``: aliasing outputs that are state, which must stay unchanged after an error.
    """

    def __init__(
        self,
        nest: Nest,
        schedule: Schedule,
        language: Any,
        dtypes: Mapping[BufferKey, str],
        aliased: Mapping[BufferKey, BufferKey],
        updated: Container[BufferKey],
    ) -> None:
        self.nest, self.schedule, self.dtypes, self.elements = nest, schedule, dtypes, nest.elements
        self.aliased, self.updated = aliased, updated
        self.types, self.math = language.types, language.math
        keywords = [str(language.keywords.get(name, "")) for name in ("independent", "apart", "stream", "unroll")]
        self.independent, self.strided_pragma, self.stream, self.unroll = keywords
        self.ranks = _reduction_ranks(nest)
        if not self.strided_pragma or any(map(is_expensive, self.ranks)):  # vectorized functions gain more
            self.strided_pragma = self.independent
        self.crossing: set[Any] = set()
        self._begin()

    def _begin(self) -> None:
        self.buffers: dict[BufferKey, tuple[str, str, bool]] = {}
        self.numbers: dict[tuple[str, str], tuple[str, str, Number]] = {}
        items = frozenset(axis.name for axis in self.nest.items)
        self.scopes = [LoopScope(items - {self.schedule.lane})]
        self.pending_stores = sorted(self.nest.stores, key=lambda store: store.target in self.aliased)
        self.saved: dict[Element, Store] = {}
        self.staged: dict[Element, str] = {}
        self.nontemporal_stores: list[tuple[Store, str]] = []
        self.staging = False
        self.rows: list[tuple[str, str]] = []
        self.draws = False
        self.flushes = 0
        self.count = 0
        self.local: list[str] = []

    # Scopes

    def _level(self, axes: frozenset[str]) -> int:
        """The outermost scope in which all of these axes are available."""
        free = frozenset() if self.staging else {self.schedule.lane}
        return next(k for k, scope in enumerate(self.scopes) if axes <= scope.axes | free)

    def _emit(self, line: str, level: int, tile: bool) -> None:
        scope = self.scopes[level]
        (scope.tile if tile else scope.lines).append(line)

    def _flush(self, level: int = -1) -> None:
        """End the loop over a tile."""
        scope = self.scopes[level]
        self.flushes += bool(scope.tile)
        if scope.tile:
            lane = self.schedule.lane
            pragma = self.strided_pragma if scope.strided else self.independent
            first, end = scope.interval
            begin = f"{pragma} for (int v = {first}; v < {end}; ++v) {{ const index_t {lane} = first + v;"
            unsigned = self.types["uint64"]
            scope.lines += [f"{unsigned} {worst} = 0;" for worst, _ in scope.checks]
            scope.lines += [begin, *scope.tile, "}"]
            scope.lines += [
                self._report(f"{worst} >= ({unsigned}){bound}", worst, bound) for worst, bound in scope.checks
            ]
        scope.tile, scope.tile_names, scope.checks, scope.strided = [], {}, [], False

    def _is_tiled(self, axes: frozenset[str]) -> bool:
        return bool(self.schedule.lane) and self.schedule.lane in axes and not self.staging

    def _defined_name(self, key: Any, level: int, into: int) -> str | None:
        """The variable that is defined already, as it is read in the scope ``into``; or None."""
        for scope in self.scopes[: level + 1]:
            if key in scope.names:
                return scope.names[key]
            if key in scope.tile_names:
                if scope is self.scopes[into]:
                    return scope.tile_names[key]
                self.crossing.add(key)
                return scope.tile_names[key]
        return None

    def _hoisted_name(self, key: Any, level: int) -> str | None:
        """The variable that is defined outside of tiles in a scope up to ``level``; or None."""
        return next((scope.names[key] for scope in self.scopes[: level + 1] if key in scope.names), None)

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
        """The text of a number of indices and sizes, as it is read in the scope ``into``."""
        if not leaves_of(n):
            return self._parameter(n, "int64")
        if n.op == "axis":
            return str(n.value)
        if n.op == "element":
            return self.value(self.elements.computed[n.value], into)
        axes = self.elements.number_axes([n])
        tile = self._is_tiled(axes)
        level = into if tile else self._level(axes)
        defined = self.scopes[into].tile_names.get(n.key) if tile else self._hoisted_name(n.key, level)
        if defined is not None:
            return defined
        names = [self._number(arg, level) for arg in n.args]
        return self._define(n.key, level, "index_t", _index_operation(n.op, names), "x", tile)

    def _offset(self, n: Number, into: int, guard: Conditions = ()) -> str:
        """The text of an offset. A strided offset in a long tile is the offset of the tile's first element plus a
        multiple of the stride: compilers recognize the stride then, and emit vector loads instead of gathers.

        It does not pay off in short tiles, whose scalar remainder is large, nor for loads with conditions that differ
        within the tile, which are gathers anyway.
        """
        lane, axes = self.schedule.lane, self.elements.number_axes
        step, rest = (stride_of(n, lane), with_axes(n, {lane: number(0)})) if self._is_tiled(axes([n])) else (None, n)
        if step is None or step.key in ("1", "-1") or lane in axes([step, rest]) | self.elements.condition_axes(guard):
            return self._number(n, into)
        if self.schedule.lanes < LONG_TILE:
            return self._number(n, into)
        key = "by steps", n.key
        if (defined := self.scopes[into].tile_names.get(key)) is not None:
            return defined
        level = self._level(axes([step, rest]))
        begin = self._hoisted_name(key, level)
        by = self._number(step, level)
        if begin is None:
            begin = self._define(key, level, "index_t", f"{self._number(rest, level)} + {by} * first", "x", False)
        return self._define(key, into, "index_t", f"{begin} + {by} * v", "x", True)

    def _holds(self, conditions: Sequence[Condition], into: int) -> str:
        return " && ".join(self._condition(c, into) for c in conditions)

    def _condition(self, c: Condition, into: int) -> str:
        sign, limit = self._comparison(c)
        if limit is not None:  # compare the 32-bit index in the tile
            return f"v {COMPARISONS[sign]} {self._neighbour(limit)}"
        return f"{self._number(c.a, into)} {COMPARISONS[c.op]} {self._number(c.b, into)}"

    def _comparison(self, c: Condition) -> tuple[str, Number | None]:
        """A condition as a comparison of the index along the tiled axis with a number; None for other conditions."""
        lane = self.schedule.lane
        if self._is_tiled(self.elements.condition_axes((c,))):
            difference = c.a - c.b
            step = stride_of(difference, lane)
            if step is not None and step.key in ("1", "-1"):
                rest = with_axes(difference, {lane: number(0)})
                if lane not in self.elements.number_axes([rest]):
                    return (c.op, -rest) if step.key == "1" else (MIRRORED.get(c.op, c.op), rest)
        return c.op, None

    def _neighbour(self, n: Number) -> str:
        """An index along the tiled axis as an index in the tile, clamped to one before or after it."""
        level, key = self._level(self.elements.number_axes([n])), ("neighbour", n.key)
        if (defined := self._hoisted_name(key, level)) is not None:
            return defined
        at, width = self._number(n, level), self.schedule.lanes
        text = f"{at} < first ? -1 : {at} - first > {width} ? {width + 1} : (int)({at} - first)"
        return self._define(key, level, "int", text, "t", False)

    # Elements

    def value(self, x: Element, into: int) -> str:
        """The text of an element's value, as it is read in the scope ``into``; it is hoisted as far as possible."""
        if x.op == "number":
            return self._constant(x)
        axes = self.elements.free_axes(x)
        level, tile = self._level(axes), self._is_tiled(axes)
        if tile and (_is_index(x) or self._is_contiguous_load(x)):  # cheaper to recompute than to keep in an array
            level = into
        defined = self._defined_name(x, level, into)
        if defined is not None:
            return defined
        if x.op in ("reduce", "arg"):
            inner, self.scopes = self.scopes, self.scopes[: level + 1]
            self._write_reduction(x, level)
            self.scopes = inner
            return self.scopes[level].names[x]
        if x in self.staged:
            return self._define(x, level, self._type(x.dtype), self.staged[x], "v", tile)
        if x in self.saved:
            text = f"{self.buffers[self.saved[x].target][0]}[{self._number(self.saved[x].offset, level)}]"
            return self._define(x, level, self._type(x.dtype), text, "v", tile)
        if x.op == "checked":
            self._check(x, level, tile)
        if x.op == "running":
            return self._running(x, level, tile)
        name = self._define(x, level, self._type(x.dtype), self._expression(x, level), "v", tile)
        if tile and level != into and x not in self.crossing:
            self.crossing.add(x)
        return name

    def _is_contiguous_load(self, x: Element) -> bool:
        """Whether an element is an unpredicated load of an unaliased operand, contiguous along the tile."""
        if x.op != "load" or x in self.staged or x in self.saved:
            return False
        source, offset, guard = x.params
        if guard or source[0] != "in" or source in self.aliased.values() or self.dtypes[source] == "bool":
            return False
        return is_contiguous(offset, self.schedule.lane)

    def _is_strided(self, offset: Number) -> bool:
        """Whether the stride of a load along the tile is constant and too large for vector loads."""
        step = stride_of(offset, self.schedule.lane) if self._is_tiled(self.elements.number_axes([offset])) else None
        return step is not None and (step.op != "const" or abs(int(step.value)) > MAX_VECTOR_STRIDE)

    def _check(self, x: Element, level: int, tile: bool) -> None:
        """Record an index that is out of range."""
        (size, guard), at = x.params, self.value(x.args[0], level)
        bound = self._number(size, level)
        predicate = f" && {self._holds(guard, level)}" if guard else ""
        if not tile:
            self._emit(self._report(f"({at} < 0 || {at} >= {bound}){predicate}", at, bound), level, False)
            return
        # a tile keeps its worst index, as unsigned so that negative ones are worst; it is tested after the loop
        self.count += 1
        worst, unsigned = f"w{self.count}", self.types["uint64"]
        self.scopes[level].checks.append((worst, bound))
        self._emit(f"{worst} = ({unsigned}){at} > {worst}{predicate} ? ({unsigned}){at} : {worst};", level, True)

    def _report(self, condition: str, at: str, bound: str) -> str:
        return f"if ({condition}) bad_index({self._buffer(STATUS, 'int64', True)}, op_id, {at}, {bound});"

    def _stored_type(self, dtype: str) -> str:
        return str(self.types["int16" if dtype in HALVES else dtype])

    def _type(self, dtype: str) -> str:
        return str(self.types["int16"]) if dtype in HALVES else value_type(dtype, self.types)

    def _constant(self, x: Element) -> str:
        (n,), wide = x.params, compute_dtype(x.dtype)
        if n.op == "const":
            text = literal(typed_number(n.value, wide), wide)
        else:
            text = self._parameter(n, "int32" if wide == "bool" else wide)
        return f"fl_store_{x.dtype}({text})" if x.dtype in HALVES else text

    def _expression(self, x: Element, level: int) -> str:
        if x.op == "load":
            source, offset, guard = x.params
            dtype = "int64" if source[0] == "offsets" else self.dtypes[source]
            self.scopes[level].strided |= self._is_strided(offset)
            text = f"{self._buffer(source, dtype, False)}[{self._offset(offset, level, guard)}]"
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
            if _is_redundant(x):
                return a
            return f"({self._holds(x.params[0], level)}) ? {a} : {b}"
        names = self._operands(x, level)
        dtype_in = x.args[0].dtype
        if x.op == "cast":
            if x.args[0].op == "index" and self._int32_index(x.args[0].params[0], level):
                return f"({self._type(x.dtype)})({self._int32_index(x.args[0].params[0], level)})"
            if dtype_in in HALVES:
                wide = f"fl_load_{dtype_in}({names[0]})"
                return wide if x.dtype == "float32" else conversion_text(wide, "float32", x.dtype, self.types)
            if x.dtype in HALVES:
                name = names[0] if dtype_in == "float32" else conversion_text(names[0], dtype_in, "float32", self.types)
                return f"fl_store_{x.dtype}({name})"
            return conversion_text(names[0], dtype_in, x.dtype, self.types)
        (op,) = x.params
        if op in ("maximum", "minimum") and dtype_in in FLOATS and _is_number(x.args[1]):  # one comparison keeps a NaN
            return f"{names[0]} {'<' if op == 'maximum' else '>'} {names[1]} ? {names[1]} : {names[0]}"
        if op == "exp" and _is_moderate_exponent(x.args[0]):
            return f"({self._type(x.dtype)}){math_call('expnear', x.dtype, self.math)}({names[0]})"
        return primitive(op, names, x.dtype if op == "where" else dtype_in, self.types, self.math)

    def _operands(self, x: Element, level: int) -> list[str]:
        """The texts of operands. An operand that is a reduction flushes the tile loop, which invalidates the names of
        earlier operands, so all are looked up anew.
        """
        before = self.flushes
        names = [self.value(arg, level) for arg in x.args]
        return names if self.flushes == before else [self.value(arg, level) for arg in x.args]

    def _random(self, x: Element, level: int) -> str:
        """A random number, determined by the linear index of its element, so that it is the same in any loop."""
        kind, stream, index = x.params
        self.draws = True
        word = self._random_word(index, stream, level)
        if kind == "gaussian":
            return f"fl_gaussian_float32({word})"
        return f"({self._type('float32')})({word} >> 8) * {literal(2.0**-24, 'float32')}"

    def _random_word(self, index: Number, stream: int, level: int) -> str:
        """A random word. Philox draws four at once, so those of a tile are drawn before its loop."""
        scope, tile = self.scopes[level], self._is_tiled(self.elements.number_axes([index]))
        axis = self.schedule.lane if tile else scope.neighbours
        kind, uint64, key = self.types["uint32"], self.types["uint64"], f"r0, r1, r2, r3 + {stream}u"
        self.count += 1
        name = f"w{self.count}"
        if not axis or not is_contiguous(index, axis):
            at = self._number(index, level)
            self._emit(f"{kind} {name}[4]; fl_philox_any(({uint64})({at}) >> 2, {key}, {name});", level, tile)
            return f"{name}[({at}) & 3]"
        rest = self._number(with_axes(index, {axis: number(0)}), level)
        begin, count = ("first", self.schedule.lanes) if tile else (f"{axis}_at", TILE)
        max_blocks = blocks_of(count)
        lines, blocks = (scope.lines, str(max_blocks)) if tile else (scope.head, "@B@")
        lines += [
            f"const index_t {name}_at = {rest} + {begin};",
            f"{kind} {name}[{4 * max_blocks}]; fl_words_any({name}_at, {blocks}, {key}, {name});",
        ]
        return f"{name}[(int)({name}_at & 3) + {'v' if tile else '@'}]"

    def _int32_index(self, n: Number, level: int) -> str:
        """An index along a tile as a 32-bit sum; "" if it is not affine, or may overflow."""
        lane, values = self.schedule.lane, self.elements.values
        step = stride_of(n, lane) if lane else None
        if step is None or step.op != "const" or not int(step.value):
            return ""
        rest = with_axes(n, {lane: number(0)})
        axes = {axis.name: axis for axis in self.nest.items}
        if lane in self.elements.number_axes([rest]) or leaves_of(rest):
            return ""
        extent = size_of(axes[lane].size, values) * int(step.value)
        if max(abs(size_of(rest, values)), abs(size_of(rest, values) + extent)) >= 2**31:
            return ""
        return f"(int)({self._number(rest, level)} + first * {int(step.value)}) + v * {int(step.value)}"

    # Memory

    def _buffer(self, source: BufferKey, dtype: str, written: bool) -> str:
        if source not in self.buffers:
            self.buffers[source] = re.sub(r"\W", "_", "_".join(map(str, source))), dtype, written
        elif written:
            self.buffers[source] = (*self.buffers[source][:2], True)
        return self.buffers[source][0]

    # Reductions and scans, which NestWriter defines

    def _write_reduction(self, x: Element, level: int) -> None:
        raise NotImplementedError

    def _running(self, x: Element, level: int, tile: bool) -> str:
        raise NotImplementedError


def blocks_of(count: int) -> int:
    """The maximum number of aligned blocks of four random words that ``count`` consecutive words overlap."""
    return (3 + count + 3) // 4


def _reduction_ranks(nest: Nest) -> dict[Element, int]:
    """By element, the nesting depth of its reductions: elements of equal rank do not depend on each other's."""
    ranks: dict[Element, int] = {}
    for x in elements_of(nest):
        rank = max([ranks[operand] for operand in nest.elements.operands(x)], default=0)
        ranks[x] = rank + (x.op in ("reduce", "arg"))
    return ranks


def _is_redundant(x: Element) -> bool:
    """Whether a selection is redundant: a load predicated by the same conditions is 0 where they do not hold."""
    (value, alternative), (conditions,) = x.args, x.params
    if value.op != "load" or alternative.op != "number" or alternative.params[0].key not in ("0", "0.0"):
        return False
    return {c.key for c in conditions} <= {c.key for c in value.params[2]}


def _is_index(x: Element) -> bool:
    """Whether an element is an index, perhaps converted."""
    return x.op == "index" or (x.op == "cast" and _is_index(x.args[0]))


def _is_number(x: Element) -> bool:
    """Whether an element is a constant other than NaN and zero, whose sign is ambiguous."""
    return x.op == "number" and x.params[0].op == "const" and bool(x.params[0].value == x.params[0].value != 0)


def _is_moderate_exponent(x: Element) -> bool:
    """Whether an argument of exp is NaN or in [-EXP_LIMIT, 0]: a difference to a maximum, clipped from below."""
    if x.op != "map" or x.params != ("maximum",) or x.args[1].op != "number":
        return False
    minimum, difference = x.args[1].params[0], x.args[0]
    if minimum.op != "const" or minimum.value < -EXP_LIMIT or difference.op != "map" or difference.params != ("sub",):
        return False
    value, maximum = difference.args
    return maximum.op == "reduce" and maximum.params[0] == "max" and maximum.args[0] is value


def _index_operation(op: str, names: Sequence[str]) -> str:
    """An operation on indices; dividends are not negative."""
    if op in ("minimum", "maximum"):
        a, b = names
        return f"{a} {'<' if op == 'minimum' else '>'} {b} ? {a} : {b}"
    if op == "neg":
        return f"-{names[0]}"
    signs = {"add": "+", "sub": "-", "mul": "*", "floordiv": "/", "mod": "%"}
    if op in ("floordiv", "mod") and not names[1][0].isdigit():  # division by 0 gives 0, as for numbers
        return f"{names[1]} == 0 ? 0 : {names[0]} {signs[op]} {names[1]}"
    return f"{names[0]} {signs[op]} {names[1]}"
