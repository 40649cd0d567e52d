"""Code generation: the kernel-language text of a nest under a schedule."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from fluidlite.base.dtypes import FLOATS
from fluidlite.codegen.language_text import literal
from fluidlite.expr.generic_sizes import subexpressions
from fluidlite.expr.number import Number, number, product
from fluidlite.expr.reductions import reduction_identity
from fluidlite.render.loops.accumulators import SUM_BLOCK, Accumulators, stepped
from fluidlite.render.loops.affine import is_contiguous, with_axes
from fluidlite.render.loops.element_text import STATUS, LoopScope, blocks_of
from fluidlite.render.loops.elements import Axis, BufferKey, Element, dependencies
from fluidlite.render.loops.functions import costs_functions, is_expensive
from fluidlite.render.loops.indices import linear
from fluidlite.render.loops.nest import MAX_UNROLLED, TILE, Store, is_cheaper_later
from fluidlite.render.loops.nontemporal import nontemporal_tile_store
from fluidlite.render.loops.schedule import MAX_WIDE_ELEMENTS, is_transposed_load
from fluidlite.render.loops.sizes import size_of
from fluidlite.render.loops.store_text import StoreWriter

_BUFFER = re.compile(r"\b(?:in|out|made|offsets)_\w+")


@dataclass(frozen=True)
class NestText:
    """The kernel of a nest.

    ``body``: the code of a work-item.
    ``buffers``: by buffer, in the order of parameters, (name, dtype, whether it is written).
    ``numbers``: the parameters after the buffers, (name, dtype, formula).
    ``items``: the number of work-items.
    ``draws``: whether the key of the operator's random numbers is a parameter.
    ``members``: the work-items of a work-group that cooperate on the loops of one nest item.
    ``local``: the declarations of their local memory.
    """

    body: str
    buffers: Mapping[BufferKey, tuple[str, str, bool]]
    numbers: tuple[tuple[str, str, Number], ...]
    items: Number
    draws: bool
    members: int = 1
    local: str = ""

    @cached_property
    def form(self) -> bytes:
        """A digest of the text with buffers renamed to their positions: texts of equal forms share a kernel."""
        names = {name: f"@{k}" for k, (name, _, _) in enumerate(self.buffers.values())}
        body = _BUFFER.sub(lambda match: names.get(match[0], match[0]), self.body)
        return sha256(f"{self.local}\0{body}".encode()).digest()


ROWS = 8
"""Rows of a square tile that are unrolled together: compilers vectorize interleaved loads of no more."""

WIDE_TILE = 4 * TILE
"""Partial results of maxima: comparisons for NaN take several instructions, each of which waits for the one before."""

_AXES = re.compile(r"\b(?:r\d+_\d+(?:_[ab](?=r\d|_|\b))*)+")
"""Names of axes, also of merged and split ones."""


def _renumbered(text: str) -> str:
    """Rename axes by order of occurrence: kernels of equal structure have equal texts, which are compiled once.

    The original name of an axis tells which other axes have its length, which depends on sizes.
    """
    names: dict[str, str] = {}
    return _AXES.sub(lambda match: names.setdefault(match[0], f"axis{len(names)}"), text)


class NestWriter(StoreWriter):
    """Writes the text of one nest in one kernel language."""

    def text(self) -> NestText:
        """Write the text; a second time, if values must cross from one loop over a tile to another in arrays."""
        self._write()
        if self.crossing:
            self._begin()
            self._write()
        (scope,) = self.scopes
        lane, body = self.schedule.lane, "\n".join(scope.lines)
        items = [axis.size for axis in self.nest.items if axis.name != lane]
        head: list[str] = []
        names = [(axis.name, self._number(axis.size, 0)) for axis in self.nest.items if axis.name != lane]
        if lane and self.schedule.whole:
            body = "const index_t first = 0;\n" + body.replace("@W@", str(self.schedule.lanes))
        elif lane:
            size, width = next(axis.size for axis in self.nest.items if axis.name == lane), self.schedule.lanes
            tiles = (size + (width - 1)) // width
            items.append(tiles)
            names.append(("tile", self._number(tiles, 0)))
            full = self._number(size, 0)
            tile_lines = [
                f"const index_t first = tile * {width};",
                f"const int width = {full} - first < {width} ? (int)({full} - first) : {width};",
            ]
            fits = size_of(size % width, self.elements.values) == 0
            if self.schedule.square:
                (axis,) = self.nest.stores[0].loops
                fits = fits and size_of(axis.size % width, self.elements.values) == 0
                begin, rows = f"{axis.name}_block * {width}", self._number(axis.size, 0)
                tile_lines.append(f"const int height = {rows} - {begin} < {width} ? (int)({rows} - {begin}) : {width};")
                full, rest = body, body
                for k, (written, counted) in enumerate(self.rows):
                    full, rest = full.replace(f"@{k}@", written), rest.replace(f"@{k}@", counted)
                full = full.replace("@W@", str(width)).replace("@H@", str(width)).replace("@U@", f"u + {ROWS}")
                rest = rest.replace("@H@", "height").replace("@U@", f"(height - u < {ROWS} ? height : u + {ROWS})")
                either = f"if (width == {width} && height == {width}) {{\n{full}\n}} else {{\n{rest}\n}}"
                body = full if fits else either
            elif self._has_hot_tiles():
                full = body.replace("@W@", str(width))
                body = full if fits else f"if (width == {width}) {{\n{full}\n}} else {{\n{body}\n}}"
            body = "\n".join([*tile_lines, body.replace("@W@", "width")])
        if any(store.target in self.updated for store in self.nest.stores):  # state is not updated after an error
            body = f"if ({self._buffer(STATUS, 'int64', False)}[0] == 0) {{\n{body}\n}}"
        members = self.schedule.members
        if members > 1:
            items.append(number(members))
            head += ["const int member = $member;", f"const index_t item = gid / {members};"]
        _decode(names, head, "item" if members > 1 else "gid")
        return NestText(
            _renumbered("\n".join([*head, body])),
            self.buffers,
            tuple(self.numbers.values()),
            product(items),
            self.draws,
            members,
            "\n".join(self.local),
        )

    def _has_hot_tiles(self) -> bool:
        """Whether loops over tiles are hot: then the text has a copy with the constant length of a full tile."""
        has_inner_loops = any(x.op in ("reduce", "arg", "running") for x in self.ranks) or self.crossing
        return bool(has_inner_loops) or self.schedule.nontemporal or any(store.ordered for store in self.nest.stores)

    def _write(self) -> None:
        needed = [x for x in self.ranks if x.op in ("reduce", "arg") and self._is_available(self.elements.free_axes(x))]
        for x in sorted(needed, key=self.ranks.__getitem__):
            self.value(x, 0)
        if self.schedule.square:
            self._stage_transposed()
        while self.pending_stores:
            store = self.pending_stores[0]
            if store.loops:
                parallel = [each for each in self.pending_stores if each.loops == store.loops and not each.ordered]
                self._write_pass(store.loops, [], [store] if store.ordered else parallel, 0)
            else:
                unlooped = [each for each in self.pending_stores if not each.loops]
                self.pending_stores = [each for each in self.pending_stores if each.loops]
                self._compute_values(unlooped)
                if self.schedule.members > 1:  # one member stores elements that others read
                    self._emit("$barrier", 0, False)
                for each in unlooped:
                    self._store(each)
        self._flush()
        for store, name in self.nontemporal_stores:
            offset = self._number(with_axes(store.offset, {self.schedule.lane: number(0)}), 0)
            target = self._buffer(store.target, self.dtypes[store.target], True), self.dtypes[store.target]
            operand = self.buffers.get(self.aliased[store.target], ("",))[0] if store.target in self.aliased else ""
            address_type = self.types["uint64"]
            self.scopes[0].lines += nontemporal_tile_store(name, target, offset, operand, (self.stream, address_type))

    # Loops

    def _stage_transposed(self) -> None:
        """Stage the transposed loads of a square tile in a private array, in the order in which they are contiguous."""
        (axis,), lane = self.nest.stores[0].loops, self.schedule.lane
        for x in self.ranks:
            if not is_transposed_load(x, axis.name, lane):
                continue
            self._flush()
            self.count += 1
            name, size = f"s{self.count}", self.schedule.lanes
            begin = self._number(axis.bounds[0], 0)
            at = f"{name}[u * {size} + v * {ROWS} + r - u]"
            self._emit(f"{self._type(x.dtype)} {name}[{size * size}];", 0, False)
            self.staging = True
            self.scopes.append(LoopScope(self.scopes[0].axes | {lane}))
            self.scopes.append(LoopScope(self.scopes[0].axes | {lane, axis.name}))
            text = f"{at} = {self._expression(x, 2)};"
            lines = [*self.scopes.pop().lines, text]
            outer = self.scopes.pop().lines
            self.staging = False
            self.scopes[0].lines += [
                f"for (int v = 0; v < @W@; ++v) {{ const index_t {lane} = first + v;",
                *outer,
                f"for (int u = 0; u < @H@; u += {ROWS})",
                f"for (int r = u; r < @U@; ++r) {{ const index_t {axis.name} = {begin} + r;",
                *lines,
                "}",
                "}",
            ]
            self.staged[x] = at

    def _write_reduction(self, x: Element, level: int) -> None:
        """Compute a reduction in one pass with all others over the same axes that are available at this point."""
        tile, reductions = self._is_tiled(self.elements.free_axes(x)), [x]
        for y in self.ranks:
            y_axes = self.elements.free_axes(y)
            if (
                y is not x
                and y.op in ("reduce", "arg")
                and y.params[1] == x.params[1]
                and self.ranks[y] == self.ranks[x]
                and self._is_tiled(y_axes) == tile
                and self._is_available(y_axes)
                and self._level(y_axes) == level
                and self._defined_name(y, level, level) is None
            ):
                reductions.append(y)
        stores = []
        if level == 0:
            stores = [
                store
                for store in self.pending_stores
                if store.loops == x.params[1]
                and not store.ordered
                and self.ranks[store.value] < self.ranks[x]
                and store.target not in self.aliased
                and (tile or self._is_tiled(self.elements.free_axes(store.value)) == tile)
                and not is_cheaper_later(store, self.pending_stores, [y.args[0] for y in reductions], self.elements)
            ]
        self._write_pass(x.params[1], reductions, stores, level)

    def _is_available(self, axes: frozenset[str]) -> bool:
        return axes <= self.scopes[-1].axes | {self.schedule.lane}

    def _write_pass(self, axes: tuple[Axis, ...], reduces: list[Element], stores: list[Store], level: int) -> None:
        """Write one pass over axes: a loop nest for reductions and stores."""
        for store in stores:
            self.pending_stores.remove(store)
        tile = bool(reduces) and self._is_tiled(self.elements.free_axes(reduces[0]))
        partial = 0
        if not tile and axes[-1].name in self.schedule.partial and (reduces or self._draws_random(stores)):
            partial = self._partial_results(axes[-1], reduces)
        cooperative = level == 0 and self.schedule.members > 1
        language = self.types, self.math, self.elements.values
        accumulators = [
            Accumulators(x, tile, partial, self.count + k, self.schedule, *language) for k, x in enumerate(reduces, 1)
        ]
        self.count += len(accumulators)
        for each in accumulators:
            for line, tiled in each.declarations:
                self._emit(line, level, tiled)
        self._flush(level)
        blocked = [each for each in accumulators if each.blocked]
        for axis in axes[:-1]:
            self._open(axis)
        last, bounds = axes[-1], self._bounds(axes[-1])
        self.scopes.append(LoopScope(self.scopes[-1].axes | {last.name}, neighbours=last.name if partial else ""))
        inner, flushes_before = len(self.scopes) - 1, self.flushes
        for each in accumulators:
            value = self.value(each.x.args[0], inner)
            position = (
                linear([axis.leaf for axis in axes], [axis.size for axis in axes]) if each.x.op == "arg" else last.leaf
            )
            for line in each.step(value, self._number(position, inner)):
                self._emit(line, inner, tile)
        self._compute_values(stores)
        for index, store in enumerate(stores):
            self._reload(store, stores[index:])
            self._store(store)
            if not cooperative and self._is_worth_reloading(store):  # a later pass reads it
                self.saved[store.value] = store
        if reduces and level == 0 and not cooperative:
            self._save_for_later(axes, inner, tile)
        square = self.schedule.square
        blocks = [] if square else self._blocked_scan(last.name, bounds, stores)
        rows = self._rows(last.name, bounds[0]) if square and self.flushes == flushes_before else ""
        self._flush()
        scope = self.scopes.pop()
        self._flush()
        if square:
            self.scopes[-1].lines.append(self._square(last.name, bounds[0], scope, rows))
        else:
            is_independent = not reduces and self._iterates_independently(last.name, stores)
            self.scopes[-1].lines += blocks or self._loop(
                last, bounds, scope, partial, blocked, cooperative, is_independent
            )
        for axis in reversed(axes[:-1]):
            self._close(axis)
        self._flush(level)
        for each in accumulators:
            for line, tiled in each.final_steps:
                self._emit(line, level, tiled)
            self._flush(level)
            if cooperative:
                self.local += each.local_declarations(self.schedule.members)
                self.scopes[level].lines += each.combined(self.schedule.members)
            self.scopes[level].names[each.x] = each.result
        if cooperative:  # a later pass may overwrite elements that this one reads
            self._emit("$barrier", level, False)

    def _save_for_later(self, axes: tuple[Axis, ...], level: int, tile: bool) -> None:
        """Save an expensive value for a later pass in the output that is computed of it there."""
        scope = self.scopes[level]
        for store in self.pending_stores:
            if store.loops != axes or store.ordered or store.conditions or store.target in self.aliased:
                continue
            if store in self.saved.values():  # the output holds another value
                continue
            for x in reversed(dependencies(store.value, self.elements)):
                is_defined = x in scope.names or x in scope.tile_names
                fits = x.dtype == self.dtypes[store.target] and x.dtype in FLOATS and x not in self.saved
                is_last_use = all(
                    x not in self._pending(other.value)
                    for other in self.pending_stores
                    if other.loops != axes or other.ordered
                )
                if is_defined and fits and is_last_use and is_expensive(x):
                    offset, value = self._number(store.offset, level), self.value(x, level)
                    self._emit(f"{self._buffer(store.target, x.dtype, True)}[{offset}] = {value};", level, tile)
                    self.saved[x] = store
                    break

    def _reload(self, store: Store, stores: Sequence[Store]) -> None:
        """Reload a saved value before its output is overwritten, if stores of this pass depend on it."""
        for x in [x for x, holder in self.saved.items() if holder is store]:
            if any(x in dependencies(other.value, self.elements) for other in stores):
                self.value(x, len(self.scopes) - 1)
            del self.saved[x]  # later passes recompute it

    def _draws_random(self, stores: Sequence[Store]) -> bool:
        """Whether stores without a tile depend on random numbers."""
        drawn = any(x.op == "random" for store in stores for x in dependencies(store.value, self.elements))
        return drawn and not any(self._is_tiled(self.elements.number_axes([store.offset])) for store in stores)

    def _is_worth_reloading(self, store: Store) -> bool:
        """Whether a later pass had better reload a stored value than recompute it."""
        if store.ordered or store.conditions or store.combine or store.target in self.aliased:
            return False
        return store.value.dtype == self.dtypes[store.target] and costs_functions(store.value, self.elements)

    def _pending(self, x: Element) -> set[Element]:
        """The dependencies of an element, except for reductions that are computed before all stores."""
        visited: set[Element] = set()
        pending = [x]
        while pending:
            current = pending.pop()
            if current not in visited:
                visited.add(current)
                reduces = current.op in ("reduce", "arg")
                if not (reduces and self.elements.free_axes(current) <= self.scopes[0].axes | {self.schedule.lane}):
                    pending += self.elements.operands(current)
        return visited

    def _partial_results(self, axis: Axis, reduces: Sequence[Element]) -> int:
        """How many partial results of a reduction to keep: more of maxima, whose instructions wait for each other."""
        is_extreme = all(x.params[0] in ("max", "min") and x.args[0].dtype in FLOATS for x in reduces)
        is_wide = bool(reduces) and is_extreme and not any(x.op == "random" for x in self.ranks)
        return WIDE_TILE if is_wide and size_of(axis.size, self.elements.values) >= 2 * WIDE_TILE else TILE

    def _rows(self, name: str, begin: str) -> str:
        """The loop over a full square tile with ROWS rows unrolled; ``""`` if that is impossible.

        The compiler then loads the staged array by vectors, and deinterleaves these in registers.
        """
        scope = self.scopes[-1]
        if not scope.tile or scope.checks or len(self.ranks) > MAX_WIDE_ELEMENTS:
            return ""
        lane = self.schedule.lane
        lines = [f"{self.independent} for (int v = 0; v < @W@; ++v) {{ const index_t {lane} = first + v;"]
        for k in range(ROWS):
            at = f"{{ const int r = u + {k}; const index_t {name} = {begin} + r;"
            lines += [at, *scope.lines, *scope.tile, "}"]
        return "\n".join([*lines, "}"])

    def _square(self, name: str, begin: str, scope: LoopScope, rows: str) -> str:
        """A placeholder for the loops over a square tile, whose text differs for full and partial tiles."""
        head = f"for (int u = 0; u < @H@; u += {ROWS})"
        row = f"for (int r = u; r < @U@; ++r) {{ const index_t {name} = {begin} + r;"
        counted = "\n".join([head, row, *scope.lines, "}"])
        self.rows.append((f"{head} {{\n{rows}\n}}" if rows else counted, counted))
        return f"@{len(self.rows) - 1}@"

    def _loop(
        self,
        axis: Axis,
        bounds: Sequence[str],
        scope: LoopScope,
        partial: int,
        blocked: list[Accumulators],
        cooperative: bool,
        is_independent: bool,
    ) -> list[str]:
        """The innermost loop of a pass; with ``cooperative`` the members of a work-group share its iterations."""
        (begin, end), lines, name = bounds, scope.lines, axis.name
        branches = any(line.startswith(("for ", "if ", "{")) for line in lines)
        if not partial:
            block_steps = [line for each in blocked for line in each.block_steps()]
            counted = [f"if (++{blocked[0].name}_count == {SUM_BLOCK}) {{", *block_steps, "}"] if blocked else []
            step = f"++{name}"
            if cooperative:
                begin, step = f"{begin} + member", f"{name} += {self.schedule.members}"
            innermost = not any("for (" in line for line in lines)
            may_unroll = self.unroll and innermost and axis.end is None
            is_short = may_unroll and size_of(axis.size, self.elements.values) <= MAX_UNROLLED
            pragma = f"{self.unroll} " if is_short else ""
            if is_independent and not branches and not is_short:
                pragma = f"{self.independent} "
            return [f"{pragma}for (index_t {name} = {begin}; {name} < {end}; {step}) {{", *lines, *counted, "}"]
        start = f"{name}_at"
        main = [line.replace("@]", "v]") for line in lines]
        rest = [line.replace("@]", "0]") for line in lines]
        lockstep = "" if branches else f"{self.independent} "
        head, single = ([line.replace("@B@", count) for line in scope.head] for count in (str(blocks_of(TILE)), "1"))

        def tiled_loop(begin: str, end: str) -> list[str]:
            tiles = list[str]()
            for width in dict.fromkeys((partial, TILE)):
                tiles += [
                    f"for (; {start} + {width} <= {end}; {start} += {width}) {{",
                    *head,
                    f"{lockstep}for (int v = 0; v < {width}; ++v) {{ const index_t {name} = {start} + v;",
                    *main,
                    "}",
                    "}",
                ]
            return [
                f"index_t {start} = {begin};",
                *tiles,
                f"for (; {start} < {end}; ++{start}) {{",
                *single,
                f"const index_t {name} = {start};",
                *rest,
                "}",
            ]

        if not blocked:
            return ["{", *tiled_loop(begin, end), "}"]
        block_steps = [line for each in blocked for line in each.block_steps()]
        stop, block = f"{name}_stop", f"{name}_block"
        return [
            f"for (index_t {block} = {begin}; {block} < {end}; {block} += {SUM_BLOCK * TILE}) {{",
            f"const index_t {stop} = {end} - {block} < {SUM_BLOCK * TILE} ? {end} : {block} + {SUM_BLOCK * TILE};",
            *tiled_loop(block, stop),
            *block_steps,
            "}",
        ]

    def _iterates_independently(self, axis: str, stores: Sequence[Store]) -> bool:
        """Whether a loop of stores has independent iterations, also if outputs alias operands, and fills vectors."""
        return all(
            not store.ordered
            and is_contiguous(store.offset, axis)
            and not any(x.op == "running" for x in dependencies(store.value, self.elements))
            for store in stores
        )

    def _blocked_scan(self, name: str, bounds: tuple[str, str], stores: Sequence[Store]) -> list[str]:
        """The blocked loop of scans over strided rows: a block of each row at a time, so that cache lines are reused.
        Empty for other loops.
        """
        scope, lane = self.scopes[-1], self.schedule.lane
        is_scan = any(x.op == "running" for store in stores for x in dependencies(store.value, self.elements))
        is_strided = not any(is_contiguous(store.offset, lane) for store in stores)
        has_inner_loops = any(line.endswith("{") for line in scope.lines)
        if not (lane and is_scan and is_strided and scope.tile) or scope.checks or has_inner_loops:
            return []
        (begin, end), body = bounds, [*scope.lines, *scope.tile]
        scope.tile = []
        return [
            f"for (index_t {name}_at = {begin}; {name}_at < {end}; {name}_at += {TILE}) {{",
            f"const index_t {name}_stop = {end} - {name}_at < {TILE} ? {end} : {name}_at + {TILE};",
            f"for (int v = 0; v < @W@; ++v) {{ const index_t {lane} = first + v;",
            f"for (index_t {name} = {name}_at; {name} < {name}_stop; ++{name}) {{",
            *body,
            "}",
            "}",
            "}",
        ]

    def _bounds(self, axis: Axis) -> tuple[str, str]:
        """The bounds of a loop; a short length is a constant of the text, so that the compiler unrolls the loop.

        It is no constant around vectorized loops, unless the axis is a part of a dim, since a batch size differs from
        call to call; nor if there is a single work-item.
        """
        begin, end = (self._number(n, len(self.scopes) - 1) for n in axis.bounds)
        is_vectorized = bool(self.schedule.lane or self.schedule.partial) and axis.name not in self.schedule.partial
        varies = is_vectorized and not any(each.op == "floordiv" for each in subexpressions(axis.size))
        if axis.end is not None or varies or not self.nest.items:
            return begin, end
        size = size_of(axis.size, self.elements.values)
        return begin, literal(int(size), "int64") if size <= TILE else end

    def _open(self, axis: Axis) -> None:
        begin, end = self._bounds(axis)
        scope = LoopScope(self.scopes[-1].axes | {axis.name})
        self.scopes[-1].names[axis] = f"for (index_t {axis.name} = {begin}; {axis.name} < {end}; ++{axis.name}) {{"
        self.scopes.append(scope)

    def _close(self, axis: Axis) -> None:
        self._flush()
        scope = self.scopes.pop()
        self._flush()
        self.scopes[-1].lines += [self.scopes[-1].names.pop(axis), *scope.lines, "}"]

    def _running(self, x: Element, level: int, tile: bool) -> str:
        """The running reduction of a scan along its axis."""
        kind, axis, exclusive = x.params
        self.count += 1
        name, text = f"a{self.count}", self._type(x.dtype)
        outer = next(k for k, scope in enumerate(self.scopes) if axis.name in scope.axes) - 1
        at, begin = (f"{name}[v]" if tile else name), literal(reduction_identity(kind, x.dtype), x.dtype)
        if tile:
            self.scopes[outer].lines += [
                f"{text} {name}[{self.schedule.lanes}];",
                f"for (int v = 0; v < @W@; ++v) {name}[v] = {begin};",
            ]
        else:
            self.scopes[outer].lines.append(f"{text} {name} = {begin};")
        value = self.value(x.args[0], level)
        step = f"{at} = {stepped(kind, at, value, x.dtype, self.types, self.math)};"
        if not exclusive:
            self._emit(step, level, tile)
        name_before = self._define(x, level, text, at, "v", tile)
        if exclusive:
            self._emit(step, level, tile)
        return name_before


def _decode(axes: Sequence[tuple[str, str]], lines: list[str], index: str) -> None:
    """Split the linear index of a work-item into indices of axes."""
    for k, (name, size) in reversed(list(enumerate(axes))):
        if not k:
            lines.append(f"const index_t {name} = {index};")
            continue
        quotient = f"left{k}"
        lines.append(f"const index_t {quotient} = {index} / {size};")
        lines.append(f"const index_t {name} = {index} - {quotient} * {size};")
        index = quotient
