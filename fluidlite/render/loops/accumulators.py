"""Accumulators of reductions: one result, one for each element of a tile, or partial results."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from fluidlite.base.dtypes import FLOATS
from fluidlite.codegen.language_primitives import primitive, value_type
from fluidlite.codegen.language_text import literal
from fluidlite.expr.reductions import reduction_identity
from fluidlite.render.loops.elements import Element
from fluidlite.render.loops.rules import STEP_OPS
from fluidlite.render.loops.schedule import Schedule
from fluidlite.render.loops.sizes import Sizes, size_of

SUM_BLOCK = 128
"""Terms of a block that are summed sequentially before they are added to the total: rounding errors stay small."""


class Accumulators:
    """The accumulators of one reduction in a pass: text that declares, updates and finishes them.

    In the text of steps ``[@]`` stands for the index of the partial result.
    """

    def __init__(
        self,
        x: Element,
        tile: bool,
        partial: int,
        number: int,
        schedule: Schedule,
        types: Mapping[str, str],
        math: Mapping[str, str],
        values: Sizes,
    ) -> None:
        self.x, self.name, self.types, self.math = x, f"a{number}", types, math
        self.kind = x.params[0]
        loaded = x.dtype == "bool" and x.args[0].op == "load"
        self.c_type = types["uint8"] if loaded else value_type(x.dtype, types)  # as many per vector as loads
        self.size = schedule.lanes if tile else partial
        self.tile, self.partial = tile, partial
        self.variable = f"{self.name}[v]" if tile else f"{self.name}[@]" if partial else self.name
        is_blocked = x.params[1][-1].name in schedule.blocked
        size = prod(size_of(axis.size, values) for axis in x.params[1])
        self.index = "int" if size < 2**31 else "index_t"  # 32-bit indices fill vectors as wide as those of float32
        self.blocked = self.kind == "sum" and x.op == "reduce" and x.dtype in FLOATS and is_blocked

    def _declare(self, text: str, begin: str) -> list[tuple[str, bool]]:
        """Declare a variable for each partial result."""
        if not self.size:
            return [(f"{text} = {begin};", False)]
        count = "@W@" if self.tile else str(self.size)
        name = text.rpartition(" ")[2]
        return [(f"{text}[{self.size}];", False), (f"for (int v = 0; v < {count}; ++v) {name}[v] = {begin};", False)]

    @property
    def declarations(self) -> list[tuple[str, bool]]:
        if self.x.op == "arg":
            dtype = self.x.args[0].dtype
            best, worst = value_type(dtype, self.types), literal(reduction_identity(self.kind, dtype), dtype)
            return [*self._declare(f"{self.index} {self.name}", "0"), *self._declare(f"{best} {self.name}_best", worst)]
        begin = literal(reduction_identity(self.kind, self.x.dtype), self.x.dtype)
        declarations = self._declare(f"{self.c_type} {self.name}", begin)
        if self.blocked:
            declarations += self._declare(f"{self.c_type} {self.name}_part", begin)
            declarations += [] if self.partial else [(f"int {self.name}_count = 0;", False)]
        return declarations

    def step(self, value: str, axis: str) -> list[str]:
        """Accumulate one element."""
        at = self.variable
        if self.x.op == "arg":
            best = at.replace(self.name, f"{self.name}_best")
            sign, takes = "<=" if self.kind == "max" else ">=", f"{self.name}_take"
            return [  # without branches, so that the comparisons are vectorized
                f"const int {takes} = ({best} == {best}) & !({value} {sign} {best});",
                f"{best} = {takes} ? {value} : {best};",
                f"{at} = {takes} ? ({self.index}){axis} : {at};",
            ]
        if self.blocked:
            at = at.replace(self.name, f"{self.name}_part")
            return [f"{at} += {value};"]
        text = stepped(self.kind, at, value, self.x.dtype, self.types, self.math)
        return [f"{at} = {text};"]

    def block_steps(self) -> list[str]:
        """Add the sum of a block to the total."""
        name = self.name
        if not self.size:
            return [f"{name} += {name}_part; {name}_part = 0; {name}_count = 0;"]
        count = "@W@" if self.tile else str(self.size)
        text = f"for (int v = 0; v < {count}; ++v) {{ {name}[v] += {name}_part[v]; {name}_part[v] = 0; }}"
        return [text] if self.partial else [text, f"{name}_count = 0;"]

    @property
    def final_steps(self) -> list[tuple[str, bool]]:
        """The statements after the loops."""
        lines = list[str]()
        if self.blocked and not self.partial:
            lines += self.block_steps()
        if self.partial:
            for half in (self.size >> level for level in range(1, self.size.bit_length())):
                lines.append(f"for (int v = 0; v < {half}; ++v) {{ {self._join('', 'v', f'v + {half}')} }}")
        return [(line, False) for line in lines]

    def local_declarations(self, members: int) -> list[str]:
        """Declare the local memory in which the members of a work-group combine their results."""
        if self.x.op != "arg":
            return [f"$local {self.c_type} {self.name}_all[{members}];"]
        best = value_type(self.x.args[0].dtype, self.types)
        return [f"$local {self.index} {self.name}_all[{members}];", f"$local {best} {self.name}_best_all[{members}];"]

    def combined(self, members: int) -> list[str]:
        """Combine the results of a work-group's members in a fixed order; every member gets the result."""
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
        """Combine two partial results in the first."""
        name = self.name
        own, other = f"{name}{array}[{a}]", f"{name}{array}[{b}]"
        if self.x.op == "reduce":
            return f"{own} = {stepped(self.kind, own, other, self.x.dtype, self.types, self.math)};"
        best, other_best = f"{name}_best{array}[{a}]", f"{name}_best{array}[{b}]"
        sign = ">" if self.kind == "max" else "<"
        better = f"({best} == {best} && ({other_best} != {other_best} || {other_best} {sign} {best}))"
        equal = f"({other_best} == {best} || ({other_best} != {other_best} && {best} != {best}))"
        wins = f"{better} || ({equal} && {other} < {own})"
        return f"if ({wins}) {{ {best} = {other_best}; {own} = {other}; }}"

    @property
    def result(self) -> str:
        """The text that reads the result."""
        return f"{self.name}[v]" if self.tile else f"{self.name}[0]" if self.partial else self.name


def stepped(kind: str, a: str, b: str, dtype: str, types: Mapping[str, str], math: Mapping[str, str]) -> str:
    """The text of one reduction step."""
    if kind in ("all", "any"):
        return f"{b} ? {a} : 0" if kind == "all" else f"{a} | {b}"
    return primitive(STEP_OPS[kind], [a, b], dtype, types, math)
