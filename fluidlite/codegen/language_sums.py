"""Kernels that sum the elements over which an output was broadcast, in parts where few sums are long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fluidlite.base.dtypes import ALL_INTS
from fluidlite.codegen.language_writer import LANES, Source, Writer, slot_word
from fluidlite.codegen.pairwise import Pairwise

COLUMNS = 64
"""Columns that one item sums: whole cache lines of each row."""


class SumWriter(Writer):
    """Writes kernels that sum, too."""

    def reduction(self, entry: str, output: tuple[str, str, int], split: bool) -> Source:
        """A kernel that writes the sum over the dims that the pattern says; split: partial sums by parts."""
        slot, dtype, value = output
        compute = self.code.instrs[value].dtype
        held = _held(compute)
        kept = tuple(k for k, flag in enumerate(self.flags[slot]) if flag)
        summed = tuple(k for k, adds in enumerate(self.sums[slot]) if adds)
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
            body += [
                f"const {long} chunks = (n{last} + {COLUMNS - 1}) / {COLUMNS};",
                f"const {long} begin = (item % chunks) * {COLUMNS}; item /= chunks;",
                f"const {long} width = n{last} - begin < {COLUMNS} ? n{last} - begin : {COLUMNS};",
            ]
        outers = " * ".join(f"n{k}" for k in outer) or "1"
        if split:
            long_dim = f"n{summed[0]} / parts"
            body += [
                f"const {long} rows = {outers}, part = item / rows; item -= part * rows;",
                f"const {long} low = part * {long_dim}, high = (part + 1) * {long_dim};",
            ]
        body.append(f"const {long} row = item;")
        body += self.decode("row", outer, slots)
        low, high = ("low", "high") if split else ("0", f"n{summed[0]}")
        pairs = None if compute in ALL_INTS or compute == "bool" else Pairwise(kind, lanes)
        body.append(pairs.declare if pairs else f"{kind} acc[{lanes}]; for (int q = 0; q < {lanes}; ++q) acc[q] = 0;")
        place = "(part * rows + row)" if split else "row"

        def result(index: str, name: str) -> str:
            if split:
                return f"p_partial[{index}] = {name};"
            text = f"({self.ctype(compute)}){name}" if held != compute else name
            return self.store(slot, index, text, dtype)

        if by_column:
            body += self._columns(value, dims, summed, slots, low, high, pairs)
            body.append(pairs.finish if pairs else "")
            stored = result(f"{place} * n{last} + begin + q", "acc[q]")
            body.append(f"for ({long} q = 0; q < width; ++q) {{ {stored} }}")
        else:
            body += self._rows(value, dims, summed, slots, low, high, pairs)
            body.append(pairs.finish if pairs else "")
            body.append(
                f"for (int step = {LANES // 2}; step > 0; step /= 2) "
                "for (int q = 0; q < step; ++q) acc[q] += acc[q + step];"
            )
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
            terms = [f"i{k} * d_{slot_word(slot)}_{k}" for k in dims if self.flags[slot][k]]
            offsets[slot] = " + ".join([f"x_{slot_word(slot)}", *terms])
        return heads, offsets

    def _value(self, value: int, dims: Sequence[int], index: Mapping[str, str], position: str) -> list[str]:
        """Statements that compute a value, ``position`` being the index in the innermost of ``dims``."""
        streams = self.streams([value])
        if not streams:
            return self.statements([value], index, "0")
        element = "0"  # random numbers have all dims: this is the number of the element in the domain
        for k in dims[:-1]:
            element = f"({element} + i{k}) * n{k + 1}"
        element += f" + {position}"
        return [*self.words_of(streams, f"({element}) >> 2"), *self.statements([value], index, element)]

    def _columns(
        self,
        value: int,
        dims: Sequence[int],
        summed: Sequence[int],
        slots: Sequence[str],
        low: str,
        high: str,
        pairs: Pairwise | None,
    ) -> list[str]:
        last, long = dims[-1], self.types["int64"]
        heads, offsets = self._loops(summed, slots, low, high)
        after = ""
        if pairs:
            inner = f"i{summed[-1]}"
            first, end = (low, high) if len(summed) == 1 else ("0", f"n{summed[-1]}")
            heads[-1:] = [
                *_blocks(long, first, end, pairs.STEPS),
                f"for ({long} {inner} = b; {inner} < stop; ++{inner}) {{",
            ]
            after = pairs.after("(int)(stop - b)")

        *outer, innermost = heads
        index = {s: f"{offsets[s]}" + (" + begin + q" if self.flags[s][last] else "") for s in slots}
        value_text = self._value(value, dims, index, "begin + q")

        def rows(width: str) -> list[str]:
            head = f"for (int q = 0; q < {width}; ++q) {{"
            return [innermost, head, *value_text, f"acc[q] += {self.name(value)};", "} }"]

        both = [f"if (width == {COLUMNS}) {{", *rows(str(COLUMNS)), "} else {", *rows("width"), "}"]
        return [*outer, *both, after, "}" * len(outer)]

    def _rows(
        self,
        value: int,
        dims: Sequence[int],
        summed: Sequence[int],
        slots: Sequence[str],
        low: str,
        high: str,
        pairs: Pairwise | None,
    ) -> list[str]:
        last, long = dims[-1], self.types["int64"]
        heads, offsets = self._loops(summed[:-1], slots, low, high)
        begin, end = (low, high) if len(summed) == 1 else ("0", f"n{last}")

        def step(position: str, lane: str) -> list[str]:
            index = {s: offsets[s] + (f" + {position}" if self.flags[s][last] else "") for s in slots}
            return [*self._value(value, dims, index, position), f"acc[{lane}] += {self.name(value)};"]

        after = ""
        heads.append(f"{{ {long} j = {begin};")
        if pairs:
            heads += _blocks(long, begin, end, pairs.STEPS * LANES)
            after, end = pairs.after(f"(int)(stop - b) / {LANES} + (int)(stop - b) % {LANES}"), "stop"
        return [
            *heads,
            f"for (; j + {LANES} <= {end}; j += {LANES})",
            f"for (int q = 0; q < {LANES}; ++q) {{",
            *step("j + q", "q"),
            "}",
            f"for (; j < {end}; ++j) {{",
            *step("j", "0"),
            "}",
            after,
            "}" * len(heads),
        ]

    def finish(self, entry: str, output: tuple[str, str, int]) -> Source:
        """A kernel that adds the partial sums of a split reduction."""
        slot, dtype, value = output
        compute = self.code.instrs[value].dtype
        held = _held(compute)
        arguments: list[tuple[str, Any]] = [("partial", held), ("out", slot)]
        if self.guarded:
            arguments.append(("status", ""))
        arguments += [("parts", ""), ("items", "")]
        long, kind = self.types["int64"], self.ctype(held)
        text = f"({self.ctype(compute)})sum" if held != compute else "sum"
        body = [
            f"{kind} sum = 0;",
            *_blocks(long, "0", "parts", Pairwise.STEPS),  # of parts, too, many added in turn round off much
            f"{kind} few = 0; for ({long} part = b; part < stop; ++part) few += p_partial[part * items + gid];",
            "sum += few; }",
            self.store(slot, "gid", text, dtype),
        ]
        return self.build(entry, body, arguments)


def _blocks(long: str, begin: str, end: str, size: int) -> list[str]:
    """The head of a loop over blocks, from ``b`` to ``stop``."""
    return [
        f"for ({long} b = {begin}; b < {end}; b += {size}) {{ "
        f"const {long} stop = {end} - b < {size} ? {end} : b + {size};"
    ]


def _held(compute: str) -> str:
    """Return the dtype in which a sum is held: integers wrap, as only unsigned ones do in C."""
    return "uint64" if compute in ALL_INTS or compute == "bool" else compute
