"""Code generation: stores. Where the elements of a tile come from several operands, each of them has its own loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from fluidlite.base.dtypes import HALVES
from fluidlite.codegen.language_primitives import primitive
from fluidlite.expr.number import Condition, number
from fluidlite.render.loops.element_text import LONG_TILE, ElementWriter, LoopScope
from fluidlite.render.loops.elements import Element
from fluidlite.render.loops.indices import Conditions
from fluidlite.render.loops.nest import Store

MAX_TILE_LOOPS = 8
"""Loops over a tile for the alternatives of a stored value: more of them are one loop with selections. That has masked
loads, which are slow where the masked addresses are unmapped, or gathers from either address."""

_NEGATED = {"less": "greater_equal", "less_equal": "greater", "greater": "less_equal", "greater_equal": "less",
              "equal": "not_equal", "not_equal": "equal"}  # fmt: skip


class Choice(NamedTuple):
    """An alternative of a tile's values.

    ``condition``: what holds for all of the tile; ``""``: nothing.
    ``begins``, ``ends``: bounds of the interval of the tile that it covers; the maximum and the minimum count.
    """

    condition: str
    begins: tuple[str, ...]
    ends: tuple[str, ...]
    value: Element


def _loop_count(choices: Sequence[Choice]) -> int:
    """The number of loops that store alternatives."""
    count = 0
    for choice in reversed(choices):
        count = 1 + count * (bool(choice.condition) + bool(choice.begins) + bool(choice.ends))
    return count


class StoreWriter(ElementWriter):
    """Writes the text of stores."""

    def _compute_values(self, stores: Sequence[Store]) -> None:
        """Compute all values before any is stored: an output may alias an operand of another one."""
        if any(store.target in self.aliased for store in stores):
            for store in stores:
                self.value(store.value, len(self.scopes) - 1)

    def _store(self, store: Store) -> None:
        level = len(self.scopes) - 1
        dtype, axes = self.dtypes[store.target], self.elements.number_axes([store.offset])
        tile = self._is_tiled(axes | self.elements.condition_axes(store.conditions))
        uniform = (
            bool(store.conditions)
            and store.ordered
            and tile
            and not self._is_tiled(self.elements.condition_axes(store.conditions))
        )
        if uniform:  # the same for all of a tile
            self._flush()
            self._emit(f"if ({self._holds(store.conditions, level)}) {{", level, False)
        is_single = tile and not store.ordered and len(self.nest.stores) == 1
        if is_single and len(alternatives := self._alternatives_of(store.value)) > 1:
            choices = [self._choice(conditions, x, level) for conditions, x in alternatives]
            if _loop_count(choices) <= MAX_TILE_LOOPS:
                self._store_one_of(store, choices, level)
                return
        value, offset = self.value(store.value, level), self._offset(store.offset, level, store.conditions)
        target = f"{self._buffer(store.target, dtype, True)}[{offset}]"
        if store.combine == "add":
            value = primitive("add", [target, value], store.dtype, self.types, self.math)
        if dtype in HALVES and store.value.dtype not in HALVES:
            value = f"fl_store_{dtype}({value})"
        if self.schedule.nontemporal:
            self.count += 1
            self.nontemporal_stores.append((store, f"past{self.count}"))
            self._emit(f"{self._stored_type(dtype)} past{self.count}[{self.schedule.lanes}];", level, False)
            target = f"past{self.count}[v]"
        text = f"{target} = {value};"
        if self.schedule.members > 1 and not level:
            text = f"if (member == 0) {text}"
        if uniform:
            self._emit(text, level, tile)
            self._flush()
            self._emit("}", level, False)
        else:
            self._emit(f"if ({self._holds(store.conditions, level)}) {text}" if store.conditions else text, level, tile)

    def _alternatives_of(self, x: Element) -> list[tuple[Conditions, Element]]:
        """The alternatives of an element that are worth loops of their own.

        In intervals of a tile these are alternative loads, which a single loop would gather; zeros are masked.
        """
        if self.schedule.square or self.schedule.nontemporal:
            return []
        alternatives = self._alternatives(x, False)
        if len(alternatives) < 2 and self.schedule.lanes >= LONG_TILE:
            alternatives = self._alternatives(x, True)
            if sum(y.op == "load" for _, y in alternatives) < 2:
                return []
        return alternatives

    def _alternatives(self, x: Element, intervals: bool) -> list[tuple[Conditions, Element]]:
        """The alternatives of an element: conditions, and its value under them; the first match counts.

        Conditions are uniform over the tile, or with ``intervals`` hold in an interval of it. The last alternative has
        none. Empty unless all values are contiguous loads or numbers.
        """
        if x.op == "select" and self._holds_in_interval(x.params[0], intervals):
            first, second = self._alternatives(x.args[0], intervals), self._alternatives(x.args[1], intervals)
            if not first or not second:
                return []
            first = [(tuple({c.key: c for c in (*x.params[0], *cs)}.values()), y) for cs, y in first] + second
            first = _reachable(first)
            return [choice for choice, after in pairwise(first) if choice[1] is not after[1]] + first[-1:]
        if x.op == "load" and x.params[2] and self._holds_in_interval(x.params[2], intervals):
            loaded = self.elements.intern("load", (), (*x.params[:2], ()), x.dtype)
            zero = self.elements.number(number(0), x.dtype)
            return [(x.params[2], loaded), ((), zero)] if self._is_contiguous_load(loaded) else []
        return [((), x)] if x.op == "number" or self._is_contiguous_load(x) else []

    def _holds_in_interval(self, conditions: Conditions, intervals: bool) -> bool:
        """Whether conditions hold in all of the tile or nowhere, or with ``intervals`` in one interval of it."""
        return all(
            intervals and self._comparison(c)[1] is not None and c.op not in ("equal", "not_equal")
            for c in conditions
            if self._is_tiled(self.elements.condition_axes((c,)))
        )

    def _choice(self, conditions: Conditions, x: Element, level: int) -> Choice:
        """The text of an alternative's conditions."""
        uniform, begins, ends = list[Condition](), list[str](), list[str]()
        for c in conditions:
            op, limit = self._comparison(c)
            if limit is None:
                uniform.append(c)
            else:
                bounds = ends if op.startswith("less") else begins
                bounds.append(self._neighbour(limit + 1 if op in ("less_equal", "greater") else limit))
        return Choice(self._holds(uniform, level), tuple(begins), tuple(ends), x)

    def _store_one_of(self, store: Store, choices: Sequence[Choice], level: int) -> None:
        """Store each alternative of a tile in a loop of its own, which has no conditions."""
        self._flush()
        scope = self.scopes[level]
        for choice in choices:  # define loop-invariant values before all alternatives
            self.value(choice.value, level)
            self._offset(store.offset, level, store.conditions)
            scope.tile, scope.tile_names = [], {}
        self._store_choices(store, choices, level, *scope.interval)

    def _store_choices(self, store: Store, choices: Sequence[Choice], level: int, begin: str, end: str) -> None:
        """Store the alternatives in an interval of the tile."""
        scope, (choice, *later), whole = self.scopes[level], choices, (begin, end)
        if choice.condition:
            self._emit(f"if ({choice.condition}) {{", level, False)
        for limit in choice.begins:
            begin = self._split(limit, begin, end, level)
        if choice.begins:
            self._store_choices(store, later, level, whole[0], begin)
        for limit in choice.ends:
            end = self._split(limit, begin, end, level)
        if choice.ends:
            self._store_choices(store, later, level, end, whole[1])
        scope.interval = begin, end
        self._store(replace(store, value=choice.value))
        self._flush()
        scope.interval = LoopScope.interval
        if choice.condition:
            self._emit("} else {", level, False)
            self._store_choices(store, later, level, *whole)
            self._emit("}", level, False)

    def _split(self, limit: str, begin: str, end: str, level: int) -> str:
        """Declare an index within an interval of the tile."""
        self.count += 1
        text = f"{limit} < {begin} ? {begin} : {limit} > {end} ? {end} : {limit}"
        self._emit(f"const int s{self.count} = {text};", level, False)
        return f"s{self.count}"


def _reachable(choices: Sequence[tuple[Conditions, Element]]) -> list[tuple[Conditions, Element]]:
    """The alternatives without hidden ones, and without conditions that follow from those of earlier alternatives."""
    reachable, hiding, failed = list[tuple[Conditions, Element]](), list[set[str]](), set[str]()
    for conditions, x in choices:
        keys = {_key(c) for c in conditions}
        if any(earlier <= keys for earlier in hiding):
            continue
        conditions = tuple(c for c in conditions if _key(c, _NEGATED[c.op]) not in failed)
        reachable.append((conditions, x))
        hiding.append(keys)
        failed |= keys if len(keys) == 1 else set()
        if not conditions:
            break
    return reachable


def _key(c: Condition, op: str = "") -> str:
    """Equal for conditions with the same operation and difference of operands."""
    return f"{op or c.op}({(c.a - c.b).key})"
