"""A nest as text of a kernel language: the axes of the tensor are work-items, those of reductions are loops."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fluidlite.base.dtypes import FLOATS, HALVES, compute_dtype
from fluidlite.codegen.dialect_primitives import converted, held, primitive
from fluidlite.codegen.dialect_text import literal
from fluidlite.codegen.typed import number as typed_number
from fluidlite.expr.number import Condition, Number, product
from fluidlite.expr.reductions import of_nothing
from fluidlite.render.loops.elements import Axis, Element, Source
from fluidlite.render.loops.indices import leaves_of
from fluidlite.render.loops.nests import Nest

_SIGNS = {"equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">="}
_STEPS = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}
STATUS: Source = ("status",)
BLOCK = 128
"""So many numbers are added up one after the other, and then to what was added up before: rounding stays small."""


@dataclass(frozen=True)
class NestText:
    """The kernel of a nest.

    Attributes
    ----------
    body : str
        What a work-item does.
    buffers : mapping of Source to (name, dtype, whether it is written)
        In the order of parameters.
    numbers : tuple of (name, dtype, Number)
        Parameters behind them, and of what each is computed.
    items : Number
        How many work-items there are.
    """

    body: str
    buffers: Mapping[Source, tuple[str, str, bool]]
    numbers: tuple[tuple[str, str, Number], ...]
    items: Number


@dataclass
class _Scope:
    """The text within a loop: what it defines stands for all numbers of the axes around it."""

    axes: frozenset[str]
    lines: list[str] = field(default_factory=list)
    head: str = ""
    names: dict[Any, str] = field(default_factory=dict)


class NestWriter:
    """Writes the text of one nest in one kernel language.

    Parameters
    ----------
    nest : Nest
    dialect : Dialect
    dtypes : mapping of Source to dtype
        As what is loaded and stored lies in memory.
    """

    def __init__(self, nest: Nest, dialect: Any, dtypes: Mapping[Source, str]) -> None:
        self.nest, self.dtypes = nest, dtypes
        self.types, self.math = dialect.types, dialect.math
        self.buffers: dict[Source, tuple[str, str, bool]] = {}
        self.numbers: dict[tuple[str, str], tuple[str, str, Number]] = {}
        self.scopes = [_Scope(frozenset())]
        self.count = 0
        self._needs: dict[Element, frozenset[str]] = {}

    def text(self) -> NestText:
        """Write all of it."""
        nest = self.nest
        spread = [axis for axis in nest.axes if axis not in nest.ordered and axis.size.key != "1"]
        self._decode(spread)
        self.scopes = [_Scope(frozenset(axis.name for axis in spread), self.scopes[0].lines)]
        for axis in nest.ordered:
            self._open(axis)
        self._store()
        for _ in nest.ordered:
            self._close()
        numbers = tuple(self.numbers.values())
        return NestText("\n".join(self.scopes[0].lines), self.buffers, numbers, product(axis.size for axis in spread))

    # Scopes

    def needs(self, x: Element) -> frozenset[str]:
        """The axes that an element is computed of."""
        if x not in self._needs:
            found = frozenset().union(*(self.needs(arg) for arg in x.args))
            if x.op == "load":
                found |= self._needs_of(x.params[1]) | self._needs_of_all(x.params[2])
            elif x.op == "index":
                found |= self._needs_of(x.params[0])
            elif x.op in ("select", "checked"):
                found |= self._needs_of_all(x.params[-1])
            elif x.op in ("reduce", "arg"):
                found -= {axis.name for axis in (x.params[1] if x.op == "reduce" else x.params[1:])}
            self._needs[x] = found
        return self._needs[x]

    def _needs_of(self, n: Number) -> frozenset[str]:
        found: frozenset[str] = frozenset()
        for leaf in leaves_of(n):
            found |= {leaf.value} if leaf.op == "axis" else self.needs(self.nest.computed[leaf.value])
        return found

    def _needs_of_all(self, conditions: Sequence[Condition]) -> frozenset[str]:
        return frozenset().union(*(self._needs_of(each) for c in conditions for each in (c.a, c.b)))

    def _level(self, needs: frozenset[str]) -> int:
        """The outermost scope in which something can be defined."""
        return next(k for k, scope in enumerate(self.scopes) if needs <= scope.axes)

    def _open(self, axis: Axis) -> None:
        name = axis.name
        head = f"for (index_t {name} = 0; {name} < {self._number(axis.size)}; ++{name}) {{"
        self.scopes.append(_Scope(self.scopes[-1].axes | {name}, head=head))

    def _close(self) -> None:
        done = self.scopes.pop()
        self.scopes[-1].lines += [done.head, *done.lines, "}"]

    def _define(self, key: Any, level: int, kind: str, text: str, stem: str = "v") -> str:
        scope = self.scopes[level]
        self.count += 1
        name = scope.names[key] = f"{stem}{self.count}"
        scope.lines.append(f"const {kind} {name} = {text};")
        return name

    # Numbers

    def _parameter(self, n: Number, dtype: str) -> str:
        if n.op == "const" and n.whole and dtype == "int64":
            return literal(n.value, "int64")
        key = n.key, dtype
        if key not in self.numbers:
            self.numbers[key] = f"n{len(self.numbers)}", dtype, n
        return self.numbers[key][0]

    def _number(self, n: Number) -> str:
        """An index, a size, or what is computed of both."""
        if not leaves_of(n):
            return self._parameter(n, "int64")
        if n.op == "axis":
            return str(n.value)
        if n.op == "element":
            return self.value(self.nest.computed[n.value])
        level = self._level(self._needs_of(n))
        for scope in self.scopes[: level + 1]:
            if n.key in scope.names:
                return scope.names[n.key]
        names = [self._number(arg) for arg in n.args]
        return self._define(n.key, level, "index_t", _arithmetic(n.op, names), "x")

    def _holds(self, conditions: Sequence[Condition]) -> str:
        return " && ".join(f"{self._number(c.a)} {_SIGNS[c.op]} {self._number(c.b)}" for c in conditions)

    # Elements

    def value(self, x: Element) -> str:
        """The name of an element's value, which is defined in the outermost scope that it can."""
        level = self._level(self.needs(x))
        for scope in self.scopes[: level + 1]:
            if x in scope.names:
                return scope.names[x]
        if x.op == "number":
            found = self.scopes[0].names[x] = self._constant(x)
            return found
        if x.op in ("reduce", "arg"):
            inner, self.scopes = self.scopes, self.scopes[: level + 1]
            found = self._reduced(x)
            self.scopes = inner
            self.scopes[level].names[x] = found
            return found
        if x.op == "checked":
            self._check(x, level)
        return self._define(x, level, self._kind(x.dtype), self._text(x))

    def _check(self, x: Element, level: int) -> None:
        """Record an index that is out of range."""
        (size, guard), at = x.params, self.value(x.args[0])
        wrong = f"({at} < 0 || {at} >= {self._number(size)})" + (f" && {self._holds(guard)}" if guard else "")
        status = self._buffer(STATUS, "int64", True)
        self.scopes[level].lines.append(f"if ({wrong}) bad_index({status}, op_id, {at}, {self._number(size)});")

    def _kind(self, dtype: str) -> str:
        return str(self.types["int16"]) if dtype in HALVES else held(dtype, self.types)

    def _constant(self, x: Element) -> str:
        (n,), wide = x.params, compute_dtype(x.dtype)
        if n.op == "const":
            text = literal(typed_number(n.value, wide), wide)
        else:
            text = self._parameter(n, "int32" if wide == "bool" else wide)
        return f"fl_store_{x.dtype}({text})" if x.dtype in HALVES else text

    def _text(self, x: Element) -> str:
        if x.op == "load":
            source, place, guard = x.params
            dtype = "int64" if source[0] == "offsets" else self.dtypes[source]
            text = f"{self._buffer(source, dtype, False)}[{self._number(place)}]"
            text = f"({text} != 0)" if dtype == "bool" else text
            return f"({self._holds(guard)}) ? {text} : 0" if guard else text
        if x.op == "index":
            return self._number(x.params[0])
        if x.op == "checked":
            at, size = self.value(x.args[0]), self._number(x.params[0])
            return f"{at} < 0 || {size} == 0 ? 0 : {at} < {size} ? {at} : {size} - 1"
        if x.op == "select":
            a, b = (self.value(arg) for arg in x.args)
            return f"({self._holds(x.params[0])}) ? {a} : {b}"
        names = [self.value(arg) for arg in x.args]
        given = x.args[0].dtype
        if x.op == "cast":
            if given in HALVES:
                wide = f"fl_load_{given}({names[0]})"
                return wide if x.dtype == "float32" else converted(wide, "float32", x.dtype, self.types)
            if x.dtype in HALVES:
                name = names[0] if given == "float32" else converted(names[0], given, "float32", self.types)
                return f"fl_store_{x.dtype}({name})"
            return converted(names[0], given, x.dtype, self.types)
        (op,) = x.params
        return primitive(op, names, x.dtype if op == "where" else given, self.types, self.math)

    def _reduced(self, x: Element) -> str:
        (body,), kind = x.args, self._kind(x.dtype)
        self.count += 1
        name = f"a{self.count}"
        if x.op == "arg":
            which, axis = x.params
            best, sign = f"{name}_best", "<=" if which == "max" else ">="
            self.scopes[-1].lines += [f"index_t {name} = 0;", f"{self._kind(body.dtype)} {best} = 0;"]
            self._open(axis)
            one = self.value(body)
            self.scopes[-1].lines.append(
                f"if ({axis.name} == 0 || ({best} == {best} && !({one} {sign} {best}))) "
                f"{{ {best} = {one}; {name} = {axis.name}; }}"
            )
            self._close()
            return name
        which, axes = x.params
        begin = literal(0 if which == "sum" else of_nothing(which, x.dtype), x.dtype)
        self.scopes[-1].lines.append(f"{kind} {name} = {begin};")
        for axis in axes:
            self._open(axis)
        one = self.value(body)
        if which == "sum" and x.dtype in FLOATS:
            outer, part = self.scopes[-1 - len(axes)], f"{name}_part"
            outer.lines += [f"{kind} {part} = {begin};", f"int {name}_count = 0;"]
            full = f"if (++{name}_count == {BLOCK}) {{ {name} += {part}; {part} = {begin}; {name}_count = 0; }}"
            self.scopes[-1].lines += [f"{part} += {one};", full]
            for _ in axes:
                self._close()
            outer.lines.append(f"{name} += {part};")
            return name
        if which in _STEPS:
            step = primitive(_STEPS[which], [name, one], x.dtype, self.types, self.math)
        else:
            step = f"{name} {'&' if which == 'all' else '|'} {one}"
        self.scopes[-1].lines.append(f"{name} = {step};")
        for _ in axes:
            self._close()
        return name

    # Memory

    def _buffer(self, source: Source, dtype: str, written: bool) -> str:
        if source not in self.buffers:
            self.buffers[source] = re.sub(r"\W", "_", "_".join(map(str, source))), dtype, written
        elif written:
            self.buffers[source] = (*self.buffers[source][:2], True)
        return self.buffers[source][0]

    def _decode(self, axes: Sequence[Axis]) -> None:
        """Split the number of a work-item into those of axes."""
        lines, left = self.scopes[0].lines, "gid"
        for k, axis in reversed(list(enumerate(axes))):
            if not k:
                lines.append(f"const index_t {axis.name} = {left};")
                continue
            size, rest = self._number(axis.size), f"left{k}"
            lines.append(f"const index_t {rest} = {left} / {size};")
            lines.append(f"const index_t {axis.name} = {left} - {rest} * {size};")
            left = rest

    def _store(self) -> None:
        nest, dtype = self.nest, self.dtypes[self.nest.target]
        value, place = self.value(nest.value), self._number(nest.place)
        target = f"{self._buffer(nest.target, dtype, True)}[{place}]"
        if nest.combine == "add":
            value = primitive("add", [target, value], nest.dtype, self.types, self.math)
        if dtype in HALVES and nest.value.dtype not in HALVES:
            value = f"fl_store_{dtype}({value})"
        text = f"{target} = {value};"
        self.scopes[-1].lines.append(f"if ({self._holds(nest.there)}) {text}" if nest.there else text)


def _arithmetic(op: str, names: Sequence[str]) -> str:
    """An operation on indices, none of which is negative where it is divided."""
    if op in ("minimum", "maximum"):
        a, b = names
        return f"{a} {'<' if op == 'minimum' else '>'} {b} ? {a} : {b}"
    if op == "neg":
        return f"-{names[0]}"
    signs = {"add": "+", "sub": "-", "mul": "*", "floordiv": "/", "mod": "%"}
    return f"{names[0]} {signs[op]} {names[1]}"
