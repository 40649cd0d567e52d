"""Writes elementwise kernels in a kernel language's C from a typed expression.

A text depends on the expression, the dtypes and the broadcast pattern; all sizes are arguments. Buffers are pairs of
a handle and a byte offset. A work-item computes one element, or sixteen consecutive ones where an operand is
broadcast, so that the index is divided once for them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluidlite.base.dtypes import HALVES
from fluidlite.codegen.broadcast import Pattern, value_flags
from fluidlite.codegen.language_functions import CODY_WAITE_LIMIT
from fluidlite.codegen.language_math import SMALL_ARGUMENT_VARIANTS, library, math_call
from fluidlite.codegen.language_primitives import conversion_text, primitive, value_type
from fluidlite.codegen.language_text import literal
from fluidlite.codegen.primitives import PRIMITIVES
from fluidlite.codegen.typed import Instr, Typed, needed

LANES = 16
"""Consecutive elements of one work-item: one or two vector registers."""


_RANDOM = frozenset({"uniform", "gaussian"})


@dataclass(frozen=True)
class KernelText:
    """The text of a kernel and its arguments.

    ``parameters``: their types, for ``context.compile``.
    ``arguments``: the meaning of each parameter, or pair of parameters: ``("in", slot)``, ``("out", slot)``,
    ``("status", "")``, ``("size", dim)``, ``("stride", (slot, dim))``, ``("scalar", number)``, ``("random", word)``,
    ``("elements", "")``, ``("items", "")``.
    ``elements_per_item``: elements that a work-item computes, if no operand is broadcast.
    """

    text: str
    entry: str
    parameters: tuple[str, ...]
    arguments: tuple[tuple[str, Any], ...]
    elements_per_item: int = 1


class ElementwiseWriter:
    """Writes kernels for one typed expression in one kernel language."""

    def __init__(self, code: Typed, language: Any, pattern: Pattern, predicated: bool) -> None:
        self.code = code
        self.keywords, self.types, self.math = language.keywords, language.types, language.math
        self.run = getattr(language, "run", LANES)
        self.lanes = getattr(language, "lanes", 1) if any(map(_is_call, code.instrs)) else 1
        self.small_arguments = False
        """Whether functions that branch by the size of the argument are written in their variant for small ones."""
        self.branching = [i for i, instr in enumerate(code.instrs) if self._branches(instr)]
        if self.branching:
            self.lanes = max(self.lanes, self.run)
        self.flags = pattern.flags
        self.predicated = predicated
        self.value_flags = value_flags(code.instrs, pattern.flags)

    # Text of values

    def ctype(self, dtype: str) -> str:
        """The C type of values in a compute dtype."""
        return value_type(dtype, self.types)

    def stored(self, dtype: str) -> str:
        """The C type of stored elements: half types are 16-bit words."""
        return "unsigned short" if dtype in HALVES else str(self.types[dtype])

    def statements(
        self, values: Sequence[int], index: Mapping[str, str], element: str, declared: Collection[int] = ()
    ) -> list[str]:
        """Declarations ``const T v<i> = ...;`` of all instructions that ``values`` need, except ``declared``."""
        lines = []
        for i in needed(self.code.instrs, values):
            if i in declared:
                continue
            instr = self.code.instrs[i]
            if instr.op not in ("const", "scalar"):
                lines.append(f"const {self.ctype(instr.dtype)} v{i} = {self._text(instr, index, element)};")
        return lines

    def name(self, i: int) -> str:
        """The text of a computed value: a literal, or the name of a variable."""
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
            return conversion_text(names[0], operand, instr.dtype, self.types, instr.value)
        if instr.op == "where":
            operand = instr.dtype
        return primitive(instr.op, names, operand, self.types, self.math, self.small_arguments)

    def _branches(self, instr: Instr) -> bool:
        return instr.dtype == "float64" and math_call(instr.op, "float64", self.math) in SMALL_ARGUMENT_VARIANTS

    def by_size(
        self,
        values: Sequence[int],
        loop: str,
        index: Mapping[str, str],
        element: str,
        declared: Collection[int],
        end: Sequence[str],
    ) -> list[str]:
        """A loop over elements, whose body ends with ``end``; functions that branch do so once for all elements.

        A first loop tests whether any argument is large (for nested functions the outer test may then be wrong).
        Compilers vectorize this loop and the loop for small arguments, but not the loop with branches.
        """
        body = [*self.statements(values, index, element, declared), *end]
        inner = [i for i in needed(self.code.instrs, values) if i in self.branching and i not in declared]
        if not inner:
            return [loop, *body, "}"]
        self.small_arguments = True
        fast_body = [*self.statements(values, index, element, declared), *end]
        args = sorted({self.code.instrs[i].args[0] for i in inner})
        test = self.statements(args, index, element, declared)
        self.small_arguments = False
        limit = literal(CODY_WAITE_LIMIT, "float64")
        size = math_call("abs", "float64", self.math)
        test += [f"large |= !({size}({self.name(arg)}) < {limit});" for arg in args]
        return ["int large = 0;", loop, *test, "}", "if (large) {", loop, *body, "} } else {", loop, *fast_body, "} }"]

    def store(self, slot: str, index: str, name: str, dtype: str) -> str:
        """The statement that rounds and stores a value."""
        rounded = f"fl_store_{dtype}({name})" if dtype in HALVES else f"({self.stored(dtype)}){name}"
        return f"p_{slot_word(slot)}[{index}] = {rounded};"

    # Whole kernels

    def build(
        self,
        entry: str,
        body: Sequence[str],
        arguments: Sequence[tuple[str, Any]],
        before: Sequence[str] = (),
        width: int = 1,
    ) -> KernelText:
        """Write a kernel: helper functions, parameters, pointers, ``before``, and ``body``, which runs per ``gid``."""
        space, byte, long = self.keywords["buffer"], self.types["uint8"], self.types["int64"]
        declared, pointers, parameters = [], [], []
        for kind, value in arguments:
            if kind in ("in", "out", "status"):
                name, const, dtype = self._pointer(kind, value)
                declared += [f"{space} {const}{byte}* b_{name}", f"const {long} o_{name}"]
                kind_of = f"{space} {const}{dtype}*"
                pointers.append(f"{kind_of} const p_{name} = ({kind_of})(b_{name} + o_{name});")
                parameters += ["buffer", "int64"]
                continue
            dtype = "uint32" if kind == "random" else self.code.scalars[value][1] if kind == "scalar" else "int64"
            name = {"size": f"n{value}", "random": f"r{value}", "scalar": f"s{value}"}.get(kind, kind)
            if kind == "stride":
                name = f"d_{slot_word(value[0])}_{value[1]}"
            declared.append(f"const {self.types[dtype]} {name}")
            parameters.append(dtype)
        items = [f"{self.keywords['each']} {{", *body, "}"]
        if self.predicated:  # once for all items: a test in the loop would prevent vectorization
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
        return KernelText(self.keywords["prologue"] + helpers + text, entry, tuple(parameters), tuple(arguments), width)

    def _pointer(self, kind: str, what: Any) -> tuple[str, str, str]:
        if kind == "status":
            return "status", "const ", str(self.types["int64"])
        dtype = self.code.inputs[what] if kind == "in" else next(d for s, d, _ in self.code.outputs if s == what)
        return slot_word(what), "const " if kind == "in" else "", self.stored(dtype)

    def head(self, values: Sequence[int], outputs: Sequence[tuple[str, str, int]]) -> list[tuple[str, Any]]:
        """The arguments of a kernel with these outputs: inputs, outputs, scalars, random words, the status word."""
        live = [self.code.instrs[i] for i in needed(self.code.instrs, values)]
        arguments: list[tuple[str, Any]] = [("in", i.value) for i in live if i.op == "input"]
        arguments += [("out", slot) for slot, _, _ in outputs]
        arguments += [("scalar", k) for k in sorted({i.value for i in live if i.op == "scalar"})]
        if not _RANDOM.isdisjoint([i.op for i in live]):
            arguments += [("random", k) for k in range(4)]
        if self.predicated:
            arguments.append(("status", ""))
        return arguments

    def strides(self, slots: Sequence[str], dims: Sequence[int]) -> list[tuple[str, Any]]:
        """The stride arguments of operands for all dims but the innermost."""
        return [("stride", (slot, k)) for slot in slots for k in dims[:-1] if self.flags[slot][k]]

    def elementwise(self, entry: str, outputs: Sequence[tuple[str, str, int]], dims: tuple[int, ...]) -> KernelText:
        """A kernel for outputs that have exactly the collapsed dims ``dims``."""
        values = [value for _, _, value in outputs]
        arguments = self.head(values, outputs)
        slots = [value_ for kind, value_ in arguments if kind == "in"]
        mixed = [s for s in slots if any(self.flags[s][k] for k in dims) and not all(self.flags[s][k] for k in dims)]
        long = self.types["int64"]
        streams = self.streams(values)
        # hoist loop-invariant values: the compiler cannot, since outputs may alias inputs
        shared = [i for i in needed(self.code.instrs, values) if dims and not streams and not any(self.value_flags[i])]
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
            if streams:  # one work-item uses the four words of a Philox block
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
        """The sub-streams of the random numbers in values."""
        live = map(self.code.instrs.__getitem__, needed(self.code.instrs, values))
        return sorted({i.value for i in live if i.op in _RANDOM})

    def words_of(self, streams: Sequence[int], block: str) -> list[str]:
        """Statements that generate the four random words of a block for each sub-stream."""
        kind = self.types["uint32"]
        return [
            line
            for k in streams
            for line in (f"{kind} w{k}[4];", f"fl_philox_any({block}, r0, r1, r2, r3 + {k}u, w{k});")
        ]

    def decode(self, linear: str, dims: Sequence[int], slots: Sequence[str]) -> list[str]:
        """Unravel a linear index over ``dims``, and compute each operand's offset ``x_<operand>``."""
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


def _is_call(instr: Instr) -> bool:
    """Whether an instruction is a function call, which costs more than loads and stores."""
    return instr.op in PRIMITIVES and "@" in PRIMITIVES[instr.op].c


def slot_word(slot: str) -> str:
    """A slot as part of a C identifier."""
    return re.sub(r"\W", "_", slot)
