"""What a loop keeps of a reduction: one result, one for each neighbour of a tile, or partial ones side by side."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from fluidlite.base.dtypes import FLOATS
from fluidlite.codegen.language_primitives import held, primitive
from fluidlite.codegen.language_text import literal
from fluidlite.expr.reductions import of_nothing
from fluidlite.render.loops.elements import Element
from fluidlite.render.loops.nest import TILE
from fluidlite.render.loops.rules import STEPS
from fluidlite.render.loops.schedule import Schedule
from fluidlite.render.loops.sizes import Sizes, size_of

SUM_BLOCK = 128
"""So many numbers are added up one after the other, and then to what was added up before: rounding stays small."""


class Accumulators:
    """What a pass keeps for one reduction: text that declares, changes and finishes it.

    In text of steps ``[@]`` stands for the partial result that is changed.
    """

    def __init__(
        self,
        x: Element,
        tile: bool,
        partial: bool,
        number: int,
        schedule: Schedule,
        types: Mapping[str, str],
        math: Mapping[str, str],
        values: Sizes,
    ) -> None:
        self.x, self.name, self.types, self.math = x, f"a{number}", types, math
        self.which = x.params[0]
        loaded = x.dtype == "bool" and x.args[0].op == "load"
        self.kind = types["uint8"] if loaded else held(x.dtype, types)  # as many beside each other as load
        self.size = schedule.lanes if tile else TILE if partial else 0
        self.tile, self.partial = tile, partial
        self.at = f"{self.name}[v]" if tile else f"{self.name}[@]" if partial else self.name
        long = x.params[1][-1].name in schedule.long
        size = prod(size_of(axis.size, values) for axis in x.params[1])
        self.index = "int" if size < 2**31 else "index_t"  # short ones stand in vectors as wide as those of float32
        self.summed = self.which == "sum" and x.op == "reduce" and x.dtype in FLOATS and long

    def _each(self, text: str, begin: str) -> list[tuple[str, bool]]:
        """Declare a variable for each partial result."""
        if not self.size:
            return [(f"{text} = {begin};", False)]
        count = "@W@" if self.tile else str(self.size)
        name = text.rpartition(" ")[2]
        return [(f"{text}[{self.size}];", False), (f"for (int v = 0; v < {count}; ++v) {name}[v] = {begin};", False)]

    @property
    def declared(self) -> list[tuple[str, bool]]:
        if self.x.op == "arg":
            dtype = self.x.args[0].dtype
            best, worst = held(dtype, self.types), literal(of_nothing(self.which, dtype), dtype)
            return [*self._each(f"{self.index} {self.name}", "0"), *self._each(f"{best} {self.name}_best", worst)]
        begin = literal(of_nothing(self.which, self.x.dtype), self.x.dtype)
        found = self._each(f"{self.kind} {self.name}", begin)
        if self.summed:
            found += self._each(f"{self.kind} {self.name}_part", begin)
            found += [] if self.partial else [(f"int {self.name}_count = 0;", False)]
        return found

    def step(self, one: str, axis: str) -> list[str]:
        """Take one more element."""
        at = self.at
        if self.x.op == "arg":
            best = at.replace(self.name, f"{self.name}_best")
            sign, take = "<=" if self.which == "max" else ">=", f"{self.name}_take"
            return [  # without branches, so that neighbours are compared side by side
                f"const int {take} = ({best} == {best}) & !({one} {sign} {best});",
                f"{best} = {take} ? {one} : {best};",
                f"{at} = {take} ? ({self.index}){axis} : {at};",
            ]
        if self.summed:
            at = at.replace(self.name, f"{self.name}_part")
            return [f"{at} += {one};"]
        text = stepped(self.which, at, one, self.x.dtype, self.types, self.math)
        return [f"{at} = {text};"]

    def kept(self) -> list[str]:
        """Add the sums of a block to those before."""
        name = self.name
        if not self.size:
            return [f"{name} += {name}_part; {name}_part = 0; {name}_count = 0;"]
        count = "@W@" if self.tile else str(self.size)
        text = f"for (int v = 0; v < {count}; ++v) {{ {name}[v] += {name}_part[v]; {name}_part[v] = 0; }}"
        return [text] if self.partial else [text, f"{name}_count = 0;"]

    @property
    def finished(self) -> list[tuple[str, bool]]:
        """What is left to do behind the loops."""
        lines = list[str]()
        if self.summed and not self.partial:
            lines += self.kept()
        if self.partial:
            for half in (8, 4, 2, 1):
                lines.append(f"for (int v = 0; v < {half}; ++v) {{ {self._join('', 'v', f'v + {half}')} }}")
        return [(line, False) for line in lines]

    def shared(self, members: int) -> list[str]:
        """Declare the local memory in which the members of a group join their results."""
        if self.x.op != "arg":
            return [f"$local {self.kind} {self.name}_all[{members}];"]
        best = held(self.x.args[0].dtype, self.types)
        return [f"$local {self.index} {self.name}_all[{members}];", f"$local {best} {self.name}_best_all[{members}];"]

    def together(self, members: int) -> list[str]:
        """Join the results of the members of a group, in an order that is always the same; all of them have it then."""
        names = [self.name, *([f"{self.name}_best"] if self.x.op == "arg" else [])]
        return [
            *(f"{name}_all[member] = {name};" for name in names),
            "$barrier",
            f"for (int other = {members // 2}; other > 0; other /= 2) {{",
            f"if (member < other) {{ {self._join('_all', 'member', 'member + other')} }}",
            "$barrier",
            "}",
            f"{self.name} = {self.name}_all[0];",
        ]

    def _join(self, array: str, a: str, b: str) -> str:
        """Join two partial results in the first."""
        name = self.name
        mine, other = f"{name}{array}[{a}]", f"{name}{array}[{b}]"
        if self.x.op == "reduce":
            return f"{mine} = {stepped(self.which, mine, other, self.x.dtype, self.types, self.math)};"
        best, one = f"{name}_best{array}[{a}]", f"{name}_best{array}[{b}]"
        sign = ">" if self.which == "max" else "<"
        better = f"({best} == {best} && ({one} != {one} || {one} {sign} {best}))"
        equal = f"({one} == {best} || ({one} != {one} && {best} != {best}))"
        wins = f"{better} || ({equal} && {other} < {mine})"
        return f"if ({wins}) {{ {best} = {one}; {mine} = {other}; }}"

    @property
    def result(self) -> str:
        """What reads it."""
        return f"{self.name}[v]" if self.tile else f"{self.name}[0]" if self.partial else self.name


def stepped(kind: str, a: str, b: str, dtype: str, types: Mapping[str, str], math: Mapping[str, str]) -> str:
    """One step of a reduction."""
    if kind in ("all", "any"):
        return f"{b} ? {a} : 0" if kind == "all" else f"{a} | {b}"
    return primitive(STEPS[kind], [a, b], dtype, types, math)
