"""C source, in a kernel language's keywords, for a typed expression.

A text depends on the expression, the dtypes and the pattern of broadcasting; every size is an argument. Buffers
are pairs of a handle and a byte offset. One work item computes one element, or sixteen consecutive ones where
an operand is broadcast, so that the division of the index is paid once for them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluidlite.base.dtypes import HALVES
from fluidlite.codegen.broadcast import Pattern, value_flags
from fluidlite.codegen.language_functions import NEAR_LIMIT
from fluidlite.codegen.language_math import NEARBY, library, math_call
from fluidlite.codegen.language_primitives import converted, held, primitive
from fluidlite.codegen.language_text import literal
from fluidlite.codegen.primitives import PRIMITIVES
from fluidlite.codegen.typed import Instr, Typed

LANES = 16
"""Consecutive elements of one item: a vector register, or two."""


_RANDOM = frozenset({"uniform", "gaussian"})


@dataclass(frozen=True)
class Source:
    """Text of one kernel and what it is launched with.

    ``parameters``: as ``context.compile`` takes them.
    ``arguments``: what each parameter, or pair of them, is: ``("in", slot)``, ``("out", slot)``, ``("status", "")``,
    ``("size", dim)``, ``("stride", (slot, dim))``, ``("scalar", number)``, ``("random", word)``, ``("elements", "")``,
    ``("items", "")``.
    ``each``: elements that an item computes, where nothing is broadcast.
    """

    text: str
    entry: str
    parameters: tuple[str, ...]
    arguments: tuple[tuple[str, Any], ...]
    each: int = 1


class Writer:
    """Writes kernels for one typed expression in one kernel language."""

    def __init__(self, code: Typed, language: Any, pattern: Pattern, guarded: bool) -> None:
        self.code = code
        self.keywords, self.types, self.math = language.keywords, language.types, language.math
        self.run = getattr(language, "run", LANES)
        self.lanes = getattr(language, "lanes", 1) if any(map(_calls, code.instrs)) else 1
        self.near = False
        """Whether functions that branch by their argument's size are written for arguments that are not large."""
        self.branching = [i for i, instr in enumerate(code.instrs) if self._branches(instr)]
        if self.branching:
            self.lanes = max(self.lanes, self.run)
        self.flags = pattern.flags
        self.guarded = guarded
        self.value_flags = value_flags(code.instrs, pattern.flags)

    # Text of values

    def ctype(self, dtype: str) -> str:
        """Type in which a compute dtype's values are held."""
        return held(dtype, self.types)

    def stored(self, dtype: str) -> str:
        """Type of stored elements: half types are 16-bit words."""
        return "unsigned short" if dtype in HALVES else str(self.types[dtype])

    def live(self, values: Sequence[int]) -> list[int]:
        """Instructions that these values need, in order."""
        needed = set(values)
        for i in range(len(self.code.instrs) - 1, -1, -1):
            if i in needed:
                needed.update(self.code.instrs[i].args)
        return sorted(needed)

    def statements(
        self, values: Sequence[int], index: Mapping[str, str], element: str, known: Collection[int] = ()
    ) -> list[str]:
        """Declarations ``const T v<i> = ...;`` of all that ``values`` need and that are not ``known``."""
        lines = []
        for i in self.live(values):
            if i in known:
                continue
            instr = self.code.instrs[i]
            if instr.op not in ("const", "scalar"):
                lines.append(f"const {self.ctype(instr.dtype)} v{i} = {self._text(instr, index, element)};")
        return lines

    def name(self, i: int) -> str:
        """The text of a value that was computed: a number, or the name of a variable."""
        instr = self.code.instrs[i]
        if instr.op == "const":
            return literal(instr.value, instr.dtype)
        return f"s{instr.value}" if instr.op == "scalar" else f"v{i}"

    def _text(self, instr: Instr, index: Mapping[str, str], element: str) -> str:
        if instr.op == "input":
            slot = instr.value
            loaded = f"p_{slot_word(slot)}[{index[slot]}]"
            dtype = self.code.inputs[slot]
            if dtype in HALVES:
                return f"fl_load_{dtype}({loaded})"
            return f"({loaded} != 0)" if dtype == "bool" else loaded
        if instr.op in _RANDOM:
            word = f"w{instr.value}[({element}) & 3]"
            return (
                f"fl_gaussian_float32({word})"
                if instr.op == "gaussian"
                else (f"(float)({word} >> 8) * {literal(2.0**-24, 'float32')}")
            )
        operand = self.code.instrs[instr.args[0]].dtype
        names = [self.name(arg) for arg in instr.args]
        if instr.op == "cast":
            return converted(names[0], operand, instr.dtype, self.types, instr.value)
        if instr.op == "where":
            operand = instr.dtype
        return primitive(instr.op, names, operand, self.types, self.math, self.near)

    def _branches(self, instr: Instr) -> bool:
        return instr.dtype == "float64" and math_call(instr.op, "float64", self.math) in NEARBY

    def by_size(
        self,
        values: Sequence[int],
        loop: str,
        index: Mapping[str, str],
        element: str,
        known: Collection[int],
        end: Sequence[str],
    ) -> list[str]:
        """A loop over elements, which end with ``end``; where functions branch, the branch is taken once for them all.

        A first loop finds whether an argument is large (of a function of a function, the outer one's may be wrong
        then). Compilers make vectors of it and of the usual one, not of the one with branches.
        """
        body = [*self.statements(values, index, element, known), *end]
        inner = [i for i in self.live(values) if i in self.branching and i not in known]
        if not inner:
            return [loop, *body, "}"]
        self.near = True
        usual = [*self.statements(values, index, element, known), *end]
        args = sorted({self.code.instrs[i].args[0] for i in inner})
        test = self.statements(args, index, element, known)
        self.near = False
        limit = literal(NEAR_LIMIT, "float64")
        size = math_call("abs", "float64", self.math)
        test += [f"large |= !({size}({self.name(arg)}) < {limit});" for arg in args]
        return ["int large = 0;", loop, *test, "}", "if (large) {", loop, *body, "} } else {", loop, *usual, "} }"]

    def store(self, slot: str, index: str, name: str, dtype: str) -> str:
        """The statement that rounds a value and stores it."""
        rounded = f"fl_store_{dtype}({name})" if dtype in HALVES else f"({self.stored(dtype)}){name}"
        return f"p_{slot_word(slot)}[{index}] = {rounded};"

    # Whole kernels

    def build(
        self,
        entry: str,
        body: Sequence[str],
        arguments: Sequence[tuple[str, Any]],
        before: Sequence[str] = (),
        each: int = 1,
    ) -> Source:
        """Put parameters, pointers and ``before`` before ``body``, which runs for each ``gid``; our functions first."""
        space, byte, long = self.keywords["buffer"], self.types["uint8"], self.types["int64"]
        declared, pointers, parameters = [], [], []
        for kind, what in arguments:
            if kind in ("in", "out", "status"):
                name, const, dtype = self._pointer(kind, what)
                declared += [f"{space} {const}{byte}* b_{name}", f"const {long} o_{name}"]
                kind_of = f"{space} {const}{dtype}*"
                pointers.append(f"{kind_of} const p_{name} = ({kind_of})(b_{name} + o_{name});")
                parameters += ["buffer", "int64"]
                continue
            dtype = "uint32" if kind == "random" else self.code.scalars[what][1] if kind == "scalar" else "int64"
            name = {"size": f"n{what}", "random": f"r{what}", "scalar": f"s{what}"}.get(kind, kind)
            if kind == "stride":
                name = f"d_{slot_word(what[0])}_{what[1]}"
            declared.append(f"const {self.types[dtype]} {name}")
            parameters.append(dtype)
        items = [f"{self.keywords['each']} {{", *body, "}"]
        if self.guarded:  # once for all items: a loop that asks at each of them is no vector loop
            items = ["if (p_status[0] == 0) {", *items, "}"]
        lines = [
            f"{self.keywords['kernel']} {entry}({', '.join(declared)}) {{",
            *pointers,
            *before,
            *items,
            "}",
            "",
        ]
        text = "\n".join(lines)
        helpers = library(text, self.keywords, self.types, self.math)
        return Source(self.keywords["prologue"] + helpers + text, entry, tuple(parameters), tuple(arguments), each)

    def _pointer(self, kind: str, what: Any) -> tuple[str, str, str]:
        if kind == "status":
            return "status", "const ", str(self.types["int64"])
        dtype = self.code.inputs[what] if kind == "in" else next(d for s, d, _ in self.code.outputs if s == what)
        return slot_word(what), "const " if kind == "in" else "", self.stored(dtype)

    def head(self, values: Sequence[int], outputs: Sequence[tuple[str, str, int]]) -> list[tuple[str, Any]]:
        """Arguments that outputs of some values need: inputs, outputs, scalars, random words, the status word."""
        live = [self.code.instrs[i] for i in self.live(values)]
        arguments: list[tuple[str, Any]] = [("in", i.value) for i in live if i.op == "input"]
        arguments += [("out", slot) for slot, _, _ in outputs]
        arguments += [("scalar", k) for k in sorted({i.value for i in live if i.op == "scalar"})]
        if not _RANDOM.isdisjoint([i.op for i in live]):
            arguments += [("random", k) for k in range(4)]
        if self.guarded:
            arguments.append(("status", ""))
        return arguments

    def strides(self, slots: Sequence[str], dims: Sequence[int]) -> list[tuple[str, Any]]:
        """Stride arguments of operands over all dims but the innermost."""
        return [("stride", (slot, k)) for slot in slots for k in dims[:-1] if self.flags[slot][k]]

    def elementwise(self, entry: str, outputs: Sequence[tuple[str, str, int]], dims: tuple[int, ...]) -> Source:
        """A kernel that writes outputs which have exactly the collapsed dims ``dims``."""
        values = [value for _, _, value in outputs]
        arguments = self.head(values, outputs)
        slots = [what for kind, what in arguments if kind == "in"]
        mixed = [s for s in slots if any(self.flags[s][k] for k in dims) and not all(self.flags[s][k] for k in dims)]
        long = self.types["int64"]
        streams = self.streams(values)
        # what is the same for all elements stands before them: outputs that may lie on inputs would keep it there
        shared = [i for i in self.live(values) if dims and not streams and not any(self.value_flags[i])]
        before = self.statements(shared, dict.fromkeys(slots, "0"), "0")
        independent = "" if streams else self.keywords.get("independent", "")
        if not mixed:
            at = "i" if streams or self.lanes > 1 else "gid"
            index = {slot: at if any(self.flags[slot][k] for k in dims) else "0" for slot in slots}
            stores = [self.store(slot, at, self.name(value), dtype) for slot, dtype, value in outputs]
            if self.lanes > 1 and not streams:
                loop = f"{independent} for ({long} i = begin; i < end; ++i) {{"
                body = [
                    f"const {long} begin = gid * {self.lanes};",
                    f"const {long} end = begin + {self.lanes} < elements ? begin + {self.lanes} : elements;",
                    *self.by_size(values, loop, index, "q", shared, stores),
                ]
                arguments.append(("elements", ""))
                return self.build(entry, body, [*arguments, ("items", "")], before, self.lanes)
            body = [*self.statements(values, index, "q", shared), *stores]
            if streams:  # one item takes the four words of a block
                four = ["for (int q = 0; q < 4; ++q) {", f"const {long} i = gid * 4 + q;", "if (i < elements) {"]
                body = [*self.words_of(streams, "gid"), *four, *body, "}", "}"]
                arguments.append(("elements", ""))
            return self.build(entry, body, [*arguments, ("items", "")], before, 4 if streams else 1)
        last = dims[-1]
        arguments += [("size", k) for k in dims] + self.strides(mixed, dims)
        body = [
            f"const {long} chunks = (n{last} + {self.run - 1}) / {self.run}, row = gid / chunks;",
            f"const {long} begin = (gid - row * chunks) * {self.run};",
            f"const {long} end = begin + {self.run} < n{last} ? begin + {self.run} : n{last}, first = row * n{last};",
            *self.decode("row", dims[:-1], mixed),
        ]
        index = {}
        for slot in slots:
            if slot in mixed:
                index[slot] = f"x_{slot_word(slot)}" + (" + j" if self.flags[slot][last] else "")
            else:
                index[slot] = "first + j" if any(self.flags[slot][k] for k in dims) else "0"
        loop = f"{independent} for ({long} j = begin; j < end; ++j) {{"
        stores = [self.store(slot, "first + j", self.name(value), dtype) for slot, dtype, value in outputs]
        if streams:
            drawn = self.words_of(streams, "(first + j) >> 2")
            body += [loop, *drawn, *self.statements(values, index, "first + j", shared), *stores, "}"]
        else:
            body += self.by_size(values, loop, index, "first + j", shared, stores)
        return self.build(entry, body, [*arguments, ("items", "")], before)

    def streams(self, values: Sequence[int]) -> list[int]:
        """The sub-streams of random numbers that values need."""
        return sorted({i.value for i in map(self.code.instrs.__getitem__, self.live(values)) if i.op in _RANDOM})

    def words_of(self, streams: Sequence[int], block: str) -> list[str]:
        """Statements that draw the four random words of a block for each sub-stream."""
        kind = self.types["uint32"]
        return [
            line
            for k in streams
            for line in (f"{kind} w{k}[4];", f"fl_philox_any({block}, r0, r1, r2, r3 + {k}u, w{k});")
        ]

    def decode(self, linear: str, dims: Sequence[int], slots: Sequence[str]) -> list[str]:
        """Split a linear index over ``dims``; sum each operand's offset of them into ``x_<operand>``."""
        long = self.types["int64"]
        lines = [f"{long} left = {linear};"] if dims else []
        for position, k in reversed(list(enumerate(dims))):
            if position:
                lines.append(f"const {long} i{k} = left % n{k}; left /= n{k};")
            else:
                lines.append(f"const {long} i{k} = left;")
        for slot in slots:
            terms = [f"i{k} * d_{slot_word(slot)}_{k}" for k in dims if self.flags[slot][k]]
            lines.append(f"const {long} x_{slot_word(slot)} = {' + '.join(terms) or '0'};")
        return lines


def _calls(instr: Instr) -> bool:
    """Whether a value is made by a function, which takes longer than loads and stores do."""
    return instr.op in PRIMITIVES and "@" in PRIMITIVES[instr.op].c


def slot_word(slot: str) -> str:
    """A slot as part of a name."""
    return re.sub(r"\W", "_", slot)
