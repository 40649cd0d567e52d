"""C source, in a dialect's words, for a typed expression.

A text depends on the expression, the dtypes and the pattern of broadcasting; every size is an argument. Buffers
are pairs of a handle and a byte offset. One work item computes one element, or sixteen consecutive ones where
an operand is broadcast, so that the division of the index is paid once for them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluidlite.base.dtypes import ALL_INTS, HALVES
from fluidlite.codegen.dialect_math import library, literal, math_call
from fluidlite.codegen.pattern import Flags
from fluidlite.codegen.primitives import PRIMITIVES
from fluidlite.codegen.typed import Instr, Typed

LANES = 16
"""Consecutive elements of one item: a vector register, or two."""
COLUMNS = 64
"""Columns that one item sums: whole cache lines of each row."""


_RANDOM = ("uniform", "gaussian")


@dataclass(frozen=True)
class Source:
    """Text of one kernel and what it is launched with.

    Attributes
    ----------
    text, entry : str
    parameters : tuple of str
        As ``context.compile`` takes them.
    arguments : tuple of (kind, what)
        What each parameter, or pair of them, is: ``("in", slot)``, ``("out", slot)``, ``("partial", "")``,
        ``("status", "")``, ``("size", dim)``, ``("stride", (slot, dim))``, ``("scalar", number)``,
        ``("random", word)``, ``("parts", "")``, ``("elements", "")``, ``("items", "")``.
    """

    text: str
    entry: str
    parameters: tuple[str, ...]
    arguments: tuple[tuple[str, Any], ...]


class Writer:
    """Writes kernels for one typed expression in one dialect."""

    def __init__(self, code: Typed, dialect: Any, flags: Mapping[str, Flags], guarded: bool) -> None:
        self.code = code
        self.words, self.types, self.math = dialect.words, dialect.types, dialect.math
        self.run = getattr(dialect, "run", LANES)
        self.lanes = getattr(dialect, "lanes", 1) if any(map(_calls, code.instrs)) else 1
        self.flags = flags
        self.guarded = guarded
        self.value_flags: list[Flags] = []
        rank = len(next(iter(flags.values())))
        for instr in code.instrs:
            mine: Flags = (instr.op in _RANDOM,) * rank
            if instr.op == "input":
                mine = flags[instr.value]
            for arg in instr.args:
                mine = tuple(a or b for a, b in zip(mine, self.value_flags[arg], strict=True))
            self.value_flags.append(mine)

    # Text of values

    def ctype(self, dtype: str) -> str:
        """Type in which a compute dtype's values are held."""
        return str(self.types["int32" if dtype == "bool" else dtype])

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
                lines.append(f"const {self.ctype(instr.dtype)} v{i} = {self._text(i, instr, index, element)};")
        return lines

    def _name(self, i: int) -> str:
        instr = self.code.instrs[i]
        if instr.op == "const":
            return literal(instr.value, instr.dtype)
        return f"s{instr.value}" if instr.op == "scalar" else f"v{i}"

    def _text(self, i: int, instr: Instr, index: Mapping[str, str], element: str) -> str:
        if instr.op == "input":
            slot = instr.value
            loaded = f"p_{_word(slot)}[{index[slot]}]"
            dtype = self.code.inputs[slot]
            if dtype in HALVES:
                return f"fl_load_{dtype}({loaded})"
            return f"({loaded} != 0)" if dtype == "bool" else loaded
        if instr.op in _RANDOM:
            word = f"w{instr.value}[({element}) & 3]"
            return f"fl_gaussian_float32({word})" if instr.op == "gaussian" else (
                f"(float)({word} >> 8) * {literal(2.0**-24, 'float32')}")  # fmt: skip
        operand = self.code.instrs[instr.args[0]].dtype
        names = [self._name(arg) for arg in instr.args]
        if instr.op == "cast":
            return self._cast(instr, operand, names[0])
        if instr.op == "where":
            operand = instr.dtype
        primitive = PRIMITIVES[instr.op]
        integers = operand in ALL_INTS
        template = (primitive.c_int if integers else "") or primitive.c
        kind = self.ctype(operand)
        unsigned = self.types["uint64" if operand == "int64" else "uint32"]
        text = template.format(**dict(zip("abc", names, strict=False)), T=kind, U=unsigned)
        return re.sub(r"@(\w+)", lambda match: f"({kind})" + math_call(match[1], operand, self.math), text)

    def _cast(self, instr: Instr, given: str, name: str) -> str:
        if instr.value in HALVES:
            return f"fl_load_{instr.value}(fl_store_{instr.value}({name}))"
        if instr.dtype == "bool":
            return f"({name} != 0)"
        if instr.dtype in ALL_INTS and given.startswith("float"):
            return f"fl_to_{instr.dtype}_{given}({name})"
        return f"({self.ctype(instr.dtype)}){name}"

    def store(self, slot: str, index: str, name: str, dtype: str) -> str:
        """The statement that rounds a value and stores it."""
        value = f"fl_store_{dtype}({name})" if dtype in HALVES else f"({self.stored(dtype)}){name}"
        return f"p_{_word(slot)}[{index}] = {value};"

    # Whole kernels

    def build(
        self, entry: str, body: Sequence[str], arguments: Sequence[tuple[str, Any]], before: Sequence[str] = ()
    ) -> Source:
        """Put parameters, pointers and ``before`` before ``body``, which runs for each ``gid``; our functions first."""
        space, byte, long = self.words["buffer"], self.types["uint8"], self.types["int64"]
        declared, pointers, parameters = [], [], []
        for kind, what in arguments:
            if kind in ("in", "out", "partial", "status"):
                name, const, dtype = self._pointer(kind, what)
                declared += [f"{space} {const}{byte}* b_{name}", f"const {long} o_{name}"]
                kind_of = f"{space} {const}{dtype}*"
                pointers.append(f"{kind_of} const p_{name} = ({kind_of})(b_{name} + o_{name});")
                parameters += ["buffer", "int64"]
                continue
            dtype = "uint32" if kind == "random" else self.code.scalars[what][1] if kind == "scalar" else "int64"
            name = {"size": f"n{what}", "random": f"r{what}", "scalar": f"s{what}"}.get(kind, kind)
            if kind == "stride":
                name = f"d_{_word(what[0])}_{what[1]}"
            declared.append(f"const {self.types[dtype]} {name}")
            parameters.append(dtype)
        if self.guarded:
            body = ["if (p_status[0] == 0) {", *body, "}"]
        lines = [
            f"{self.words['kernel']} {entry}({', '.join(declared)}) {{", *pointers, *before,
            f"{self.words['each']} {{", *body, "}", "}", "",
        ]  # fmt: skip
        text = "\n".join(lines)
        helpers = library(text, self.words, self.types, self.math)
        return Source(self.words["prologue"] + helpers + text, entry, tuple(parameters), tuple(arguments))

    def _pointer(self, kind: str, what: Any) -> tuple[str, str, str]:
        if kind == "status":
            return "status", "const ", str(self.types["int64"])
        if kind == "partial":
            return "partial", "", self.ctype(what)
        dtype = self.code.inputs[what] if kind == "in" else next(d for s, d, _ in self.code.outputs if s == what)
        return _word(what), "const " if kind == "in" else "", self.stored(dtype)

    def head(self, values: Sequence[int], outs: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Arguments that the values need: inputs, outputs, scalars, random words, the status word."""
        live = [self.code.instrs[i] for i in self.live(values)]
        arguments: list[tuple[str, Any]] = [("in", i.value) for i in live if i.op == "input"]
        arguments += outs
        arguments += [("scalar", k) for k in sorted({i.value for i in live if i.op == "scalar"})]
        if any(i.op in _RANDOM for i in live):
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
        arguments = self.head(values, [("out", slot) for slot, _, _ in outputs])
        slots = [what for kind, what in arguments if kind == "in"]
        mixed = [s for s in slots if any(self.flags[s][k] for k in dims) and not all(self.flags[s][k] for k in dims)]
        long = self.types["int64"]
        streams = sorted({i.value for i in map(self.code.instrs.__getitem__, self.live(values)) if i.op in _RANDOM})
        # what is the same for all elements stands before them: outputs that may lie on inputs would keep it there
        shared = [i for i in self.live(values) if dims and not streams and not any(self.value_flags[i])]
        before = self.statements(shared, dict.fromkeys(slots, "0"), "0")
        independent = "" if streams else self.words.get("independent", "")
        if not mixed:
            at = "i" if streams or self.lanes > 1 else "gid"
            index = {slot: at if any(self.flags[slot][k] for k in dims) else "0" for slot in slots}
            body = self.statements(values, index, "q", shared)
            body += [self.store(slot, at, self._name(value), dtype) for slot, dtype, value in outputs]
            if streams:  # one item takes the four words of a block
                loop = ["for (int q = 0; q < 4; ++q) {", f"const {long} i = gid * 4 + q;", "if (i < elements) {"]
                body = [*self.words_of(streams, "gid"), *loop, *body, "}", "}"]
                arguments.append(("elements", ""))
            elif self.lanes > 1:
                body = [f"const {long} begin = gid * {self.lanes};",
                        f"const {long} end = begin + {self.lanes} < elements ? begin + {self.lanes} : elements;",
                        f"{independent} for ({long} i = begin; i < end; ++i) {{", *body, "}"]  # fmt: skip
                arguments.append(("elements", ""))
            return self.build(entry, body, [*arguments, ("items", "")], before)
        last = dims[-1]
        arguments += [("size", k) for k in dims] + self.strides(mixed, dims)
        body = [
            f"const {long} chunks = (n{last} + {self.run - 1}) / {self.run}, row = gid / chunks;",
            f"const {long} begin = (gid - row * chunks) * {self.run};",
            f"const {long} end = begin + {self.run} < n{last} ? begin + {self.run} : n{last}, first = row * n{last};",
            *self.decode("row", dims[:-1], mixed),
            f"{independent} for ({long} j = begin; j < end; ++j) {{",
        ]
        index = {}
        for slot in slots:
            if slot in mixed:
                index[slot] = f"x_{_word(slot)}" + (" + j" if self.flags[slot][last] else "")
            else:
                index[slot] = "first + j" if any(self.flags[slot][k] for k in dims) else "0"
        body += self.words_of(streams, "(first + j) >> 2")
        body += self.statements(values, index, "first + j", shared)
        body += [self.store(slot, "first + j", self._name(value), dtype) for slot, dtype, value in outputs]
        return self.build(entry, [*body, "}"], [*arguments, ("items", "")], before)

    def words_of(self, streams: Sequence[int], block: str) -> list[str]:
        """Statements that draw the four random words of a block for each sub-stream."""
        kind = self.types["uint32"]
        return [
            line for k in streams
            for line in (f"{kind} w{k}[4];", f"fl_philox_any({block}, r0, r1, r2, r3 + {k}u, w{k});")
        ]  # fmt: skip

    def decode(self, linear: str, dims: Sequence[int], slots: Sequence[str], prefix: str = "x_") -> list[str]:
        """Split a linear index over ``dims``; sum each operand's offset of them into ``x_<operand>``."""
        long = self.types["int64"]
        lines = [f"{long} left_{prefix} = {linear};"] if dims else []
        for position, k in reversed(list(enumerate(dims))):
            if position:
                lines.append(f"const {long} i{k} = left_{prefix} % n{k}; left_{prefix} /= n{k};")
            else:
                lines.append(f"const {long} i{k} = left_{prefix};")
        for slot in slots:
            terms = [f"i{k} * d_{_word(slot)}_{k}" for k in dims if self.flags[slot][k]]
            lines.append(f"const {long} {prefix}{_word(slot)} = {' + '.join(terms) or '0'};")
        return lines

    def reduction(self, entry: str, output: tuple[str, str, int], split: bool) -> Source:
        """A kernel that writes the sum over the dims that the output lacks; split: partial sums by parts."""
        slot, dtype, value = output
        compute = self.code.instrs[value].dtype
        held = "int64" if compute in ALL_INTS or compute == "bool" else compute
        kept = tuple(k for k, flag in enumerate(self.flags[slot]) if flag)
        summed = tuple(k for k, f in enumerate(self.value_flags[value]) if f and not self.flags[slot][k])
        target = ("partial", held) if split else ("out", slot)
        arguments = self.head([value], [target])
        slots = [what for kind, what in arguments if kind == "in"]
        dims = tuple(sorted((*kept, *summed)))
        last = dims[-1]
        arguments += [("size", k) for k in dims] + self.strides(slots, dims)
        if split:
            arguments.append(("parts", ""))
        arguments.append(("items", ""))
        by_column = last in kept
        lanes = COLUMNS if by_column else LANES
        outer = kept[:-1] if by_column else kept
        long, kind = self.types["int64"], self.ctype(held)
        body = [f"{long} item = gid;"]
        if by_column:
            body += [f"const {long} chunks = (n{last} + {COLUMNS - 1}) / {COLUMNS};",
                     f"const {long} begin = (item % chunks) * {COLUMNS}; item /= chunks;",
                     f"const {long} width = n{last} - begin < {COLUMNS} ? n{last} - begin : {COLUMNS};"]  # fmt: skip
        outers = " * ".join(f"n{k}" for k in outer) or "1"
        if split:
            long_dim = f"n{summed[0]} / parts"
            body += [f"const {long} rows = {outers}, part = item / rows; item -= part * rows;",
                     f"const {long} low = part * {long_dim}, high = (part + 1) * {long_dim};"]  # fmt: skip
        body.append(f"const {long} row = item;")
        body += self.decode("row", outer, slots)
        low, high = ("low", "high") if split else ("0", f"n{summed[0]}")
        body.append(f"{kind} acc[{lanes}]; for (int q = 0; q < {lanes}; ++q) acc[q] = 0;")
        place = "(part * rows + row)" if split else "row"

        def result(index: str, name: str) -> str:
            if split:
                return f"p_partial[{index}] = {name};"
            text = f"({self.ctype(compute)}){name}" if held != compute else name
            return self.store(slot, index, text, dtype)

        if by_column:
            loop = self._columns(value, summed, slots, last, low, high)
            body += [f"if (width == {COLUMNS}) {{", *loop(str(COLUMNS)), "} else {", *loop("width"), "}"]
            stored = result(f"{place} * n{last} + begin + q", "acc[q]")
            body.append(f"for ({long} q = 0; q < width; ++q) {{ {stored} }}")
        else:
            body += self._rows(value, summed, slots, last, low, high)
            body.append(f"for (int step = {LANES // 2}; step > 0; step /= 2) "
                        "for (int q = 0; q < step; ++q) acc[q] += acc[q + step];")  # fmt: skip
            body.append(result(place, "acc[0]"))
        return self.build(entry, body, arguments)

    def _loops(
        self, dims: Sequence[int], slots: Sequence[str], low: str, high: str
    ) -> tuple[list[str], Mapping[str, str]]:
        """Heads of nested loops over summed dims, and each operand's offset in them; the innermost dim steps by 1."""
        long = self.types["int64"]
        heads = []
        for position, k in enumerate(dims):
            begin, end = (low, high) if position == 0 else ("0", f"n{k}")
            heads.append(f"for ({long} i{k} = {begin}; i{k} < {end}; ++i{k}) {{")
        offsets = {}
        for slot in slots:
            terms = [f"i{k} * d_{_word(slot)}_{k}" for k in dims if self.flags[slot][k]]
            offsets[slot] = " + ".join([f"x_{_word(slot)}", *terms])
        return heads, offsets

    def _columns(self, value: int, summed: Sequence[int], slots: Sequence[str], last: int, low: str, high: str) -> Any:
        heads, offsets = self._loops(summed, slots, low, high)

        def loop(width: str) -> list[str]:
            index = {s: f"{offsets[s]}" + (" + begin + q" if self.flags[s][last] else "") for s in slots}
            return [*heads, f"for (int q = 0; q < {width}; ++q) {{", *self.statements([value], index, "0"),
                    f"acc[q] += {self._name(value)};", "}" * (len(heads) + 1)]  # fmt: skip

        return loop

    def _rows(
        self, value: int, summed: Sequence[int], slots: Sequence[str], last: int, low: str, high: str
    ) -> list[str]:
        long = self.types["int64"]
        heads, offsets = self._loops(summed[:-1], slots, low, high)
        begin, end = (low, high) if len(summed) == 1 else ("0", f"n{last}")

        def step(position: str, lane: str) -> list[str]:
            index = {s: offsets[s] + (f" + {position}" if self.flags[s][last] else "") for s in slots}
            return [*self.statements([value], index, "0"), f"acc[{lane}] += {self._name(value)};"]

        return [
            *heads, f"{long} j = {begin};",
            f"for (; j + {LANES} <= {end}; j += {LANES})",
            f"for (int q = 0; q < {LANES}; ++q) {{", *step("j + q", "q"), "}",
            f"for (; j < {end}; ++j) {{", *step("j", "0"), "}", "}" * len(heads),
        ]  # fmt: skip

    def finish(self, entry: str, output: tuple[str, str, int]) -> Source:
        """A kernel that adds the partial sums of a split reduction."""
        slot, dtype, value = output
        compute = self.code.instrs[value].dtype
        held = "int64" if compute in ALL_INTS or compute == "bool" else compute
        arguments: list[tuple[str, Any]] = [("partial", held), ("out", slot)]
        if self.guarded:
            arguments.append(("status", ""))
        arguments += [("parts", ""), ("items", "")]
        long, kind = self.types["int64"], self.ctype(held)
        text = f"({self.ctype(compute)})sum" if held != compute else "sum"
        body = [f"{kind} sum = 0; for ({long} part = 0; part < parts; ++part) sum += p_partial[part * items + gid];",
                self.store(slot, "gid", text, dtype)]  # fmt: skip
        return self.build(entry, body, arguments)


def _calls(instr: Instr) -> bool:
    """Whether a value is made by a function, which takes longer than loads and stores do."""
    return instr.op in PRIMITIVES and "@" in PRIMITIVES[instr.op].c


def _word(slot: str) -> str:
    return re.sub(r"\W", "_", slot)
