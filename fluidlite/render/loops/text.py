"""A nest as text of a kernel language: what a work-item does, by a schedule."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import pairwise

from fluidlite.base.dtypes import FLOATS, HALVES
from fluidlite.codegen.language_primitives import primitive
from fluidlite.codegen.language_text import literal
from fluidlite.expr.generic_sizes import parts_of
from fluidlite.expr.number import Number, number, product
from fluidlite.expr.reductions import of_nothing
from fluidlite.render.loops.accumulators import SUM_BLOCK, Accumulators, stepped
from fluidlite.render.loops.affine import step_is_one, with_axes
from fluidlite.render.loops.element_text import STATUS, ElementWriter, Scope, blocks_of
from fluidlite.render.loops.elements import Axis, Element, Source, elements_behind, numbers_in
from fluidlite.render.loops.functions import costly, costs_functions
from fluidlite.render.loops.indices import Conditions, leaves_of, linear
from fluidlite.render.loops.nest import FEW, TILE, Store, later_at_less
from fluidlite.render.loops.past_caches import tile_past_caches
from fluidlite.render.loops.schedule import MAX_WIDE_ELEMENTS, lies_across
from fluidlite.render.loops.sizes import size_of

_BUFFER = re.compile(r"\b(?:in|out|made|offsets)_\w+")


@dataclass(frozen=True)
class NestText:
    """The kernel of a nest.

    ``body``: what a work-item does.
    ``buffers``: in the order of parameters, (name, dtype, whether it is written).
    ``numbers``: parameters behind them, (name, dtype, of what it is computed).
    ``items``: how many work-items there are.
    ``draws``: whether the key of the operator's random numbers is among the parameters.
    ``members``: how many work-items of a group go through the loops of one item together.
    ``local``: what declares the memory that they share.
    """

    body: str
    buffers: Mapping[Source, tuple[str, str, bool]]
    numbers: tuple[tuple[str, str, Number], ...]
    items: Number
    draws: bool
    members: int = 1
    local: str = ""

    @cached_property
    def form(self) -> bytes:
        """A digest of the text, with buffers by their places among the parameters: of equal forms one kernel is
        compiled.
        """
        names = {name: f"@{k}" for k, (name, _, _) in enumerate(self.buffers.values())}
        body = _BUFFER.sub(lambda found: names.get(found[0], found[0]), self.body)
        return sha256(f"{self.local}\0{body}".encode()).digest()


ROWS = 8
"""So many rows of a square are written out side by side: compilers make vectors of no more that lie interleaved."""

MOST_WAYS = 8
"""So many choices that are the same for all of a tile are made before its loop: a processor may take long over a load
that is left out of a vector, if no memory is where it would read."""

_AXES = re.compile(r"\b(?:r\d+_\d+(?:_[ab](?=r\d|_|\b))*)+")
"""Names of axes, of those that were joined or split too."""


def _renumbered(text: str) -> str:
    """The text with axes named in order: kernels of equal structure are equal texts, which are compiled once.

    An axis' own name says which others are as long: that depends on sizes.
    """
    names: dict[str, str] = {}
    return _AXES.sub(lambda found: names.setdefault(found[0], f"axis{len(names)}"), text)


class NestWriter(ElementWriter):
    """Writes the text of one nest in one kernel language."""

    def text(self) -> NestText:
        """Write all of it; a second time, if values of a tile are to be kept from one of its loops to another."""
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
            whole = self._number(size, 0)
            after = [
                f"const index_t first = tile * {width};",
                f"const int width = {whole} - first < {width} ? (int)({whole} - first) : {width};",
            ]
            fits = size_of(size % width, self.elements.values) == 0
            if self.schedule.square:
                (axis,) = self.nest.stores[0].loops
                fits = fits and size_of(axis.size % width, self.elements.values) == 0
                begin, rows = f"{axis.name}_block * {width}", self._number(axis.size, 0)
                after.append(f"const int height = {rows} - {begin} < {width} ? (int)({rows} - {begin}) : {width};")
                whole, rest = body, body
                for k, (written, counted) in enumerate(self.rows):
                    whole, rest = whole.replace(f"@{k}@", written), rest.replace(f"@{k}@", counted)
                whole = whole.replace("@W@", str(width)).replace("@H@", str(width)).replace("@U@", f"u + {ROWS}")
                rest = rest.replace("@H@", "height").replace("@U@", f"(height - u < {ROWS} ? height : u + {ROWS})")
                both = f"if (width == {width} && height == {width}) {{\n{whole}\n}} else {{\n{rest}\n}}"
                body = whole if fits else both
            elif self._often():
                whole = body.replace("@W@", str(width))
                body = whole if fits else f"if (width == {width}) {{\n{whole}\n}} else {{\n{body}\n}}"
            body = "\n".join([*after, body.replace("@W@", "width")])
        if any(store.target in self.updated for store in self.nest.stores):  # nothing is, behind an error
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

    def _often(self) -> bool:
        """Whether tiles are gone through often: then the text of a whole one knows its length."""
        within = any(x.op in ("reduce", "arg", "running") for x in self.ranks) or self.crossing
        return bool(within) or self.schedule.past or any(store.ordered for store in self.nest.stores)

    def _write(self) -> None:
        needed = [x for x in self.ranks if x.op in ("reduce", "arg") and self._inside(self.elements.needs(x))]
        for x in sorted(needed, key=self.ranks.__getitem__):
            self.value(x, 0)
        if self.schedule.square:
            self._stage()
        while self.waiting:
            store = self.waiting[0]
            if store.loops:
                along = [each for each in self.waiting if each.loops == store.loops and not each.ordered]
                self._pass(store.loops, [], [store] if store.ordered else along, 0)
            else:
                here = [each for each in self.waiting if not each.loops]
                self.waiting = [each for each in self.waiting if each.loops]
                self._read(here)
                if self.schedule.members > 1:  # one member stores what others read
                    self._emit("$barrier", 0, False)
                for each in here:
                    self._store(each)
        self._flush()
        for store, name in self.past:
            place = self._number(with_axes(store.place, {self.schedule.lane: number(0)}), 0)
            target = self._buffer(store.target, self.dtypes[store.target], True), self.dtypes[store.target]
            given = self.buffers.get(self.late[store.target], ("",))[0] if store.target in self.late else ""
            word = self.types["uint64"]
            self.scopes[0].lines += tile_past_caches(name, target, place, given, (self.stream, word))

    # Loops

    def _stage(self) -> None:
        """Read what lies across a square in the order in which it lies, into an array of the item's own."""
        (axis,), lane = self.nest.stores[0].loops, self.schedule.lane
        for x in self.ranks:
            if not lies_across(x, axis.name, lane):
                continue
            self._flush()
            self.count += 1
            name, size = f"s{self.count}", self.schedule.lanes
            begin = self._number(axis.bounds[0], 0)
            at = f"{name}[u * {size} + v * {ROWS} + r - u]"
            self._emit(f"{self._kind(x.dtype)} {name}[{size * size}];", 0, False)
            self.staging = True
            self.scopes.append(Scope(self.scopes[0].axes | {lane}))
            self.scopes.append(Scope(self.scopes[0].axes | {lane, axis.name}))
            text = f"{at} = {self._text(x, 2)};"
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

    def _reduced(self, x: Element, level: int) -> None:
        """Compute a reduction, with all that go through the same axes and need no others that are still to come."""
        tile, mine = self._tiled(self.elements.needs(x)), [x]
        for y in self.ranks:
            needs = self.elements.needs(y)
            if (
                y is not x
                and y.op in ("reduce", "arg")
                and y.params[1] == x.params[1]
                and self.ranks[y] == self.ranks[x]
                and self._tiled(needs) == tile
                and self._inside(needs)
                and self._level(needs) == level
                and self._named(y, level, level) is None
            ):
                mine.append(y)
        stores = []
        if level == 0:
            stores = [
                store
                for store in self.waiting
                if store.loops == x.params[1]
                and not store.ordered
                and self.ranks[store.value] < self.ranks[x]
                and store.target not in self.late
                and (tile or self._tiled(self.elements.needs(store.value)) == tile)
                and not later_at_less(store, self.waiting, [y.args[0] for y in mine], self.elements)
            ]
        self._pass(x.params[1], mine, stores, level)

    def _inside(self, needs: frozenset[str]) -> bool:
        return needs <= self.scopes[-1].axes | {self.schedule.lane}

    def _pass(self, axes: tuple[Axis, ...], reduces: list[Element], stores: list[Store], level: int) -> None:
        """Go through axes once, for reductions and for what is stored."""
        for store in stores:
            self.waiting.remove(store)
        tile = bool(reduces) and self._tiled(self.elements.needs(reduces[0]))
        partial = not tile and axes[-1].name in self.schedule.partial and (bool(reduces) or self._drawn(stores))
        together = level == 0 and self.schedule.members > 1
        found = [self._accumulators(x, tile, partial, self.count + k + 1) for k, x in enumerate(reduces)]
        self.count += len(found)
        for each in found:
            for line, tiled in each.declared:
                self._emit(line, level, tiled)
        self._flush(level)
        summed = [each for each in found if each.summed]
        for axis in axes[:-1]:
            self._open(axis)
        last, bounds = axes[-1], self._bounds(axes[-1])
        self.scopes.append(Scope(self.scopes[-1].axes | {last.name}, neighbours=last.name if partial else ""))
        inner, flushed = len(self.scopes) - 1, self.flushes
        for each in found:
            one = self.value(each.x.args[0], inner)
            place = (
                linear([axis.leaf for axis in axes], [axis.size for axis in axes]) if each.x.op == "arg" else last.leaf
            )
            for line in each.step(one, self._number(place, inner)):
                self._emit(line, inner, tile)
        self._read(stores)
        for index, store in enumerate(stores):
            self._take_back(store, stores[index:])
            self._store(store)
            if not together and self._worth_keeping(store):  # a later pass reads it
                self.saved[store.value] = store
        if reduces and level == 0 and not together:
            self._save(axes, inner, tile)
        square = self.schedule.square
        blocks = [] if square else self._blocks(last.name, bounds, stores)
        rows = self._rows(last.name, bounds[0]) if square and self.flushes == flushed else ""
        self._flush()
        scope = self.scopes.pop()
        self._flush()
        if square:
            self.scopes[-1].lines.append(self._square(last.name, bounds[0], scope, rows))
        else:
            self.scopes[-1].lines += blocks or self._loop(last, bounds, scope, partial, summed, together)
        for axis in reversed(axes[:-1]):
            self._close(axis)
        self._flush(level)
        for each in found:
            for line, tiled in each.finished:
                self._emit(line, level, tiled)
            self._flush(level)
            if together:
                self.local += each.shared(self.schedule.members)
                self.scopes[level].lines += each.together(self.schedule.members)
            self.scopes[level].names[each.x] = each.result
        if together:  # what is read here may be written over in a later pass
            self._emit("$barrier", level, False)

    def _save(self, axes: tuple[Axis, ...], level: int, tile: bool) -> None:
        """Let a costly value wait for a later pass in the output that is computed of it there."""
        scope = self.scopes[level]
        for store in self.waiting:
            if store.loops != axes or store.ordered or store.there or store.target in self.late:
                continue
            if store in self.saved.values():  # something else waits there
                continue
            for x in reversed(elements_behind(store.value, self.elements)):
                here = x in scope.names or x in scope.tile_names
                fits = x.dtype == self.dtypes[store.target] and x.dtype in FLOATS and x not in self.saved
                alone = all(
                    x not in self._left(other.value) for other in self.waiting if other.loops != axes or other.ordered
                )
                if here and fits and alone and costly(x):
                    place, value = self._number(store.place, level), self.value(x, level)
                    self._emit(f"{self._buffer(store.target, x.dtype, True)}[{place}] = {value};", level, tile)
                    self.saved[x] = store
                    break

    def _take_back(self, store: Store, stores: Sequence[Store]) -> None:
        """Read what waits in an output before it is written over: stores of this pass are computed of it."""
        for x in [x for x, holder in self.saved.items() if holder is store]:
            if any(x in elements_behind(other.value, self.elements) for other in stores):
                self.value(x, len(self.scopes) - 1)
            del self.saved[x]  # a later pass computes it again

    def _drawn(self, stores: Sequence[Store]) -> bool:
        """Whether random numbers are drawn for what is stored, and nothing of it is a tile."""
        drawn = any(x.op == "random" for store in stores for x in elements_behind(store.value, self.elements))
        return drawn and not any(self._tiled(self.elements.needs_of([store.place])) for store in stores)

    def _worth_keeping(self, store: Store) -> bool:
        """Whether it costs less to read what was stored than to compute it again."""
        if store.ordered or store.there or store.combine or store.target in self.late:
            return False
        return store.value.dtype == self.dtypes[store.target] and costs_functions(store.value, self.elements)

    def _left(self, x: Element) -> set[Element]:
        """What is behind an element, but for reductions that are computed before anything is stored."""
        found: set[Element] = set()
        pending = [x]
        while pending:
            one = pending.pop()
            if one not in found:
                found.add(one)
                done = one.op in ("reduce", "arg") and self.elements.needs(one) <= self.scopes[0].axes | {
                    self.schedule.lane
                }
                pending += (
                    ()
                    if done
                    else (
                        *one.args,
                        *(
                            self.elements.computed[leaf.value]
                            for n in numbers_in(one)
                            for leaf in leaves_of(n)
                            if leaf.op == "element"
                        ),
                    )
                )
        return found

    def _accumulators(self, x: Element, tile: bool, partial: bool, number: int) -> Accumulators:
        values = self.elements.values
        return Accumulators(x, tile, partial, number, self.schedule, self.types, self.math, values)

    def _rows(self, name: str, begin: str) -> str:
        """The loop over a tile of a whole square with some rows written out in it; ``""`` if there is none.

        What lies side by side in the item's array is read together then, and parted in registers.
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

    def _square(self, name: str, begin: str, scope: Scope, rows: str) -> str:
        """The loops over a square: what stands for its text, which differs where the square is whole."""
        head = f"for (int u = 0; u < @H@; u += {ROWS})"
        row = f"for (int r = u; r < @U@; ++r) {{ const index_t {name} = {begin} + r;"
        counted = "\n".join([head, row, *scope.lines, "}"])
        self.rows.append((f"{head} {{\n{rows}\n}}" if rows else counted, counted))
        return f"@{len(self.rows) - 1}@"

    def _loop(
        self,
        axis: Axis,
        bounds: Sequence[str],
        scope: Scope,
        partial: bool,
        summed: list[Accumulators],
        together: bool,
    ) -> list[str]:
        """The innermost loop of a pass; ``together`` the members of a group go through it."""
        (begin, end), lines, name = bounds, scope.lines, axis.name
        if not partial:
            kept = [line for each in summed for line in each.kept()]
            counted = [f"if (++{summed[0].name}_count == {SUM_BLOCK}) {{", *kept, "}"] if summed else []
            step = f"++{name}"
            if together:
                begin, step = f"{begin} + member", f"{name} += {self.schedule.members}"
            innermost = not any("for (" in line for line in lines)
            may_unroll = self.unroll and innermost and axis.end is None
            few = may_unroll and size_of(axis.size, self.elements.values) <= FEW
            unroll = f"{self.unroll} " if few else ""
            return [f"{unroll}for (index_t {name} = {begin}; {name} < {end}; {step}) {{", *lines, *counted, "}"]
        start = f"{name}_at"
        main = [line.replace("@]", "v]") for line in lines]
        rest = [line.replace("@]", "0]") for line in lines]
        branches = any(line.startswith(("for ", "if ", "{")) for line in lines)
        side_by_side = "" if branches else f"{self.independent} "
        before, alone = ([line.replace("@B@", count) for line in scope.head] for count in (str(blocks_of(TILE)), "1"))

        def both(begin: str, end: str) -> list[str]:
            return [
                f"index_t {start} = {begin};",
                f"for (; {start} + {TILE} <= {end}; {start} += {TILE}) {{",
                *before,
                f"{side_by_side}for (int v = 0; v < {TILE}; ++v) {{ const index_t {name} = {start} + v;",
                *main,
                "}",
                "}",
                f"for (; {start} < {end}; ++{start}) {{",
                *alone,
                f"const index_t {name} = {start};",
                *rest,
                "}",
            ]

        if not summed:
            return ["{", *both(begin, end), "}"]
        kept = [line for each in summed for line in each.kept()]
        stop, block = f"{name}_stop", f"{name}_block"
        return [
            f"for (index_t {block} = {begin}; {block} < {end}; {block} += {SUM_BLOCK * TILE}) {{",
            f"const index_t {stop} = {end} - {block} < {SUM_BLOCK * TILE} ? {end} : {block} + {SUM_BLOCK * TILE};",
            *both(block, stop),
            *kept,
            "}",
        ]

    def _blocks(self, name: str, bounds: tuple[str, str], stores: Sequence[Store]) -> list[str]:
        """The loop of scans along lines that lie apart, a block of each at a time: what is near is read and written at
        once, however many lines there are. No lines for another loop.
        """
        scope, lane = self.scopes[-1], self.schedule.lane
        scans = any(x.op == "running" for store in stores for x in elements_behind(store.value, self.elements))
        apart = not any(step_is_one(store.place, lane) for store in stores)
        loops = any(line.endswith("{") for line in scope.lines)
        if not (lane and scans and apart and scope.tile) or scope.checks or loops:
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
        """Where a loop begins and ends; the text knows the length of a short one, so that a compiler unrolls it.

        Not of dims such as a batch's, which differ from call to call, around loops over neighbours; nor where there is
        one item.
        """
        begin, end = (self._number(n, len(self.scopes) - 1) for n in axis.bounds)
        around = bool(self.schedule.lane or self.schedule.partial) and axis.name not in self.schedule.partial
        varies = around and not any(each.op == "floordiv" for each in parts_of(axis.size))
        if axis.end is not None or varies or not self.nest.items:
            return begin, end
        size = size_of(axis.size, self.elements.values)
        return begin, literal(int(size), "int64") if size <= TILE else end

    def _open(self, axis: Axis) -> None:
        begin, end = self._bounds(axis)
        scope = Scope(self.scopes[-1].axes | {axis.name})
        self.scopes[-1].names[axis] = f"for (index_t {axis.name} = {begin}; {axis.name} < {end}; ++{axis.name}) {{"
        self.scopes.append(scope)

    def _close(self, axis: Axis) -> None:
        self._flush()
        done = self.scopes.pop()
        self._flush()
        self.scopes[-1].lines += [self.scopes[-1].names.pop(axis), *done.lines, "}"]

    def _run(self, x: Element, level: int, tile: bool) -> str:
        """What was reduced so far, in the order of an axis."""
        kind, axis, exclusive = x.params
        self.count += 1
        name, text = f"a{self.count}", self._kind(x.dtype)
        around = next(k for k, scope in enumerate(self.scopes) if axis.name in scope.axes) - 1
        at, begin = (f"{name}[v]" if tile else name), literal(of_nothing(kind, x.dtype), x.dtype)
        if tile:
            self.scopes[around].lines += [
                f"{text} {name}[{self.schedule.lanes}];",
                f"for (int v = 0; v < @W@; ++v) {name}[v] = {begin};",
            ]
        else:
            self.scopes[around].lines.append(f"{text} {name} = {begin};")
        one = self.value(x.args[0], level)
        step = f"{at} = {stepped(kind, at, one, x.dtype, self.types, self.math)};"
        if not exclusive:
            self._emit(step, level, tile)
        found = self._define(x, level, text, at, "v", tile)
        if exclusive:
            self._emit(step, level, tile)
        return found

    def _read(self, stores: Sequence[Store]) -> None:
        """Compute what is stored before any of it is: an output may lie on what another one is computed of."""
        if any(store.target in self.late for store in stores):
            for store in stores:
                self.value(store.value, len(self.scopes) - 1)

    def _store(self, store: Store) -> None:
        level = len(self.scopes) - 1
        dtype, needs = self.dtypes[store.target], self.elements.needs_of([store.place])
        tile = self._tiled(needs | self.elements.needs_of_all(store.there))
        uniform = (
            bool(store.there) and store.ordered and tile and not self._tiled(self.elements.needs_of_all(store.there))
        )
        if uniform:  # the same for all of a tile
            self._flush()
            self._emit(f"if ({self._holds(store.there, level)}) {{", level, False)
        alone = tile and not store.ordered and len(self.nest.stores) == 1
        if alone and 1 < len(ways := self._ways(store.value)) <= MOST_WAYS:
            self._store_one_of(store, ways, level)
            return
        value, place = self.value(store.value, level), self._place(store.place, level, store.there)
        target = f"{self._buffer(store.target, dtype, True)}[{place}]"
        if store.combine == "add":
            value = primitive("add", [target, value], store.dtype, self.types, self.math)
        if dtype in HALVES and store.value.dtype not in HALVES:
            value = f"fl_store_{dtype}({value})"
        if self.schedule.past:
            self.count += 1
            self.past.append((store, f"past{self.count}"))
            self._emit(f"{self._stored(dtype)} past{self.count}[{self.schedule.lanes}];", level, False)
            target = f"past{self.count}[v]"
        text = f"{target} = {value};"
        if self.schedule.members > 1 and not level:
            text = f"if (member == 0) {text}"
        if uniform:
            self._emit(text, level, tile)
            self._flush()
            self._emit("}", level, False)
        else:
            self._emit(f"if ({self._holds(store.there, level)}) {text}" if store.there else text, level, tile)

    def _ways(self, x: Element) -> list[tuple[Conditions, Element]]:
        """What an element is where conditions hold that are the same for all of a tile: the first of which they do.

        No conditions are left at the last. Nothing is found unless all are loaded side by side, or numbers.
        """
        if self.schedule.square or self.schedule.past:
            return []
        if x.op == "select" and not self._tiled(self.elements.needs_of_all(x.params[0])):
            found, others = self._ways(x.args[0]), self._ways(x.args[1])
            if not found or not others:
                return []
            found = [(tuple({c.key: c for c in (*x.params[0], *there)}.values()), y) for there, y in found] + others
            return [way for way, after in pairwise(found) if way[1] is not after[1]] + found[-1:]
        if x.op == "load" and x.params[2] and not self._tiled(self.elements.needs_of_all(x.params[2])):
            loaded = self.elements.made("load", (), (*x.params[:2], ()), x.dtype)
            nothing = self.elements.number(number(0), x.dtype)
            return [(x.params[2], loaded), ((), nothing)] if self._lies_along(loaded) else []
        return [((), x)] if x.op == "number" or self._lies_along(x) else []

    def _store_one_of(self, store: Store, ways: Sequence[tuple[Conditions, Element]], level: int) -> None:
        """Store what holds for a tile in a loop of its own, which has no conditions."""
        self._flush()
        scope = self.scopes[level]
        for _, x in ways:  # what they need beside the loop is defined before all of them
            self.value(x, level)
            self._place(store.place, level, store.there)
            scope.tile, scope.tile_names = [], {}
        heads = [f"if ({self._holds(there, level)}) {{" if there else "{" for there, _ in ways]
        for k, ((_, x), head) in enumerate(zip(ways, heads, strict=True)):
            self._emit(f"}} else {head}" if k else head, level, False)
            self._store(replace(store, value=x))
            self._flush()
        self._emit("}", level, False)


def _decode(axes: Sequence[tuple[str, str]], lines: list[str], left: str) -> None:
    """Split the number of an item into those of axes."""
    for k, (name, size) in reversed(list(enumerate(axes))):
        if not k:
            lines.append(f"const index_t {name} = {left};")
            continue
        rest = f"left{k}"
        lines.append(f"const index_t {rest} = {left} / {size};")
        lines.append(f"const index_t {name} = {left} - {rest} * {size};")
        left = rest
