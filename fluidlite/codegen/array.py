"""Emits Python source of array calls for a typed expression.

Two styles. ``out``: functions of the namespace write into outputs and temporaries, as NumPy's and CuPy's do;
large problems of several steps are split into blocks that stay in cache. ``pure``: Array-API functions only.
Outputs may alias inputs: an output is not written before the last read of an input.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fluidlite.base.dtypes import ALL_INTS, HALVES, ITEMSIZE
from fluidlite.codegen.broadcast import Flags, value_flags
from fluidlite.codegen.primitives import PRIMITIVES
from fluidlite.codegen.typed import Instr, Typed

BLOCK = 262144
"""Elements of one block: a few blocks fit into a core's L2 cache."""


SPREAD_OPS = ("maximum", "minimum")
"""Functions that NumPy computes slowly with a number as operand; it is then spread to an array."""


@dataclass(frozen=True)
class ArrayLayout:
    """The facts on which the source depends, besides the typed expression.

    ``positions``: the indices of slots in ``io.tensors``.
    ``flags``: by slot, the collapsed dims that the operand has.
    ``sums``: by output slot, for outputs that are sums, the collapsed dims that are reduced.
    ``natural``: operands are used with their own dims; else they are reshaped to collapsed dims.
    ``blocked``: loop over blocks of the first collapsed dim.
    ``alias``: by output slot, the input that the output must alias; other outputs may share memory with any input.
    ``spread``: number operands of ``maximum`` and ``minimum`` become arrays: NumPy's loops over two arrays take a third
    of the time of those over an array and a number.
    ``predicated``: write only while the context's error flag is clear (the pure style).
    ``distinct``: a result does not reuse the memory of an operand at its last use: on one element, NumPy's functions
    take three times as long in place.
    """

    positions: Mapping[str, int]
    flags: Mapping[str, Flags]
    sums: Mapping[str, Flags]
    natural: bool
    blocked: bool
    alias: Mapping[str, str]
    spread: bool = False
    predicated: bool = False
    distinct: bool = False


@dataclass(frozen=True)
class Emitted:
    """The result of an emitter.

    ``source``: the text of ``make(env)``, which returns ``(run, bind)``.
    ``scratch``: dtypes of the buffers of the blocked form.
    ``bound``: names, and their expressions over ``env``.
    ``lines``: the statements, on arrays ``a0``, ... (inputs, by value) and ``o0``, ... (outputs, in order).
    ``alias_flags``: variables in these lines that are true if an output is the tensor of the input whose value it has,
    each with (input slot, output slot).
    """

    source: str
    scratch: tuple[str, ...]
    bound: tuple[tuple[str, str], ...] = ()
    lines: tuple[str, ...] = ()
    alias_flags: tuple[tuple[str, tuple[str, str]], ...] = ()


class Emitter:
    """The base of both styles: names of values, bound names, and lines."""

    def __init__(self, code: Typed, layout: ArrayLayout) -> None:
        self.code = code
        self.layout = layout
        rank = len(next(iter(layout.flags.values())))
        self.all_dims: Flags = (True,) * rank
        self.flags = value_flags(code.instrs, layout.flags)
        self.names = list(map("v{}".format, range(len(code.instrs))))
        self.bound: dict[str, str] = {}  # name -> expression over env
        self.fetch: list[str] = []
        self.lines: list[str] = []

    def bind(self, name: str, expression: str) -> str:
        self.bound[name] = expression
        return name

    def xp(self, name: str) -> str:
        if name.startswith("@"):
            self.bind("xp", "env.xp")
            return f"{self.bind('f_' + name[1:], 'env.helper(' + repr(name[1:]) + ')')}(xp, "
        return f"{self.bind('f_' + name, 'env.function(' + repr(name) + ')')}("

    def dtype(self, dtype: str) -> str:
        return self.bind(f"t_{dtype}", f"env.dtype({dtype!r})")

    def function(self, instr: Instr) -> str:
        primitive = PRIMITIVES[instr.op]
        operands = self.code.instrs[instr.args[0]].dtype
        return (primitive.xp_int if operands in ALL_INTS else "") or primitive.xp

    def inputs(self, reshape: bool) -> None:
        for i, instr in enumerate(self.code.instrs):
            if instr.op != "input":
                continue
            position = self.layout.positions[instr.value]
            if reshape:
                shape = self.bind(f"shape_{i}", f"env.shapes[{instr.value!r}]")
                self.bind("reshape", "env.reshape")
                self.fetch.append(f"a{i} = reshape(t[{position}].native(), {shape})")
            else:
                self.fetch.append(f"a{i} = t[{position}].native()")
            self.names[i] = f"a{i}"

    def text(self, factory: list[str]) -> str:
        lines = ["def make(env):", *(f"    {name} = {value}" for name, value in self.bound.items())]
        lines += ["    def run(context, io):", "        t = io.tensors"]
        lines += ["        " + line for line in self.fetch] + ["        " + line for line in self.lines]
        lines += ["    def bind(context, io):", "        t = io.tensors"]
        lines += ["        " + line for line in self.fetch]
        lines += ["    " + line for line in factory]
        lines += ["    return run, bind"]
        return "\n".join(lines) + "\n"

    def closure(self) -> list[str]:
        if len(self.lines) == 1 and self.lines[0].startswith("f_") and self.lines[0].count("(") == 1:
            name, _, rest = self.lines[0].partition("(")
            self.bind("partial", "env.partial")
            return [f"    return partial({name}, {rest}"]
        return ["    def bound():", *("        " + line for line in self.lines or ["pass"]), "    return bound"]

    def summed(self, slot: str, value: int) -> tuple[str, tuple[int, ...]]:
        """The text of the operand of a sum, broadcast to all summed dims, and the axes of the sum."""
        sums, flags = self.layout.sums[slot], self.layout.flags[slot]
        value_flags_ = tuple(adds or keeps for adds, keeps in zip(sums, flags, strict=True))
        name = self.names[value]
        if self.flags[value] != value_flags_:
            shape = self.bind(f"whole_{slot.partition('@')[0]}", f"env.summed[{slot!r}]")
            instr = self.code.instrs[value]
            if instr.op in ("const", "scalar"):
                name = f"{self.xp('full')}{shape}, {name}, dtype={self.dtype(instr.dtype)}{self.on_device()})"
            else:
                name = f"{self.xp('broadcast_to')}{name}, {shape})"
        return name, tuple(k for k, adds in enumerate(sums) if adds)

    def on_device(self) -> str:
        """The argument that makes a function create its array on the device."""
        return ""

    def random(self, instr: Instr, start: str, count: str, shape: str) -> str:
        call = f"{self.xp('@' + instr.op)}{start}, {count}, io.random, {instr.value})"
        return f"{self.bind('reshape', 'env.reshape')}({call}, {shape})"


def number_source(instr: Instr) -> str:
    """The source of a constant or scalar."""
    if instr.op == "scalar":
        return f"env.scalars[{instr.value}]"
    source = repr(instr.value)
    return f"float({source!r})" if source in ("inf", "-inf", "nan") else source


class OutEmitter(Emitter):
    """Emits functions that write into an ``out`` array."""

    def emit(self) -> Emitted:
        code, layout = self.code, self.layout
        self.inputs(reshape=not layout.natural)
        self.scratch: list[str] = []
        self.free_buffers: dict[str, list[str]] = {}
        self.lent_outputs: set[str] = set()
        self.temporary: dict[int, str] = {}  # value -> the temporary buffer that holds it
        self.last_uses = self._last_uses()
        outputs = self._outputs()
        inner: list[int] = []
        for i, instr in enumerate(code.instrs):
            if instr.op in ("const", "scalar"):
                self.names[i] = self._number(i, instr)
            elif instr.op == "input":
                if self.code.inputs[instr.value] in HALVES:
                    inner.append(i) if self.flags[i] == self.all_dims else self._load(i)
            elif self.flags[i] == self.all_dims:
                inner.append(i)
            else:
                self.lines.append(f"v{i} = {self._value(instr)}")  # lacks a dim: computed once, before the blocks
        before = self.lines
        self.lines = []
        for i in inner:
            self._step(i, code.instrs[i], outputs)
        self._finish(outputs)
        if layout.blocked:
            self._loop(before)
        else:
            self.lines = before + self.lines
        self.lines += self.final_lines
        lines, bound = tuple(self.lines), tuple(self.bound.items())
        text = self.text(self.closure())
        return Emitted(text, tuple(self.scratch), bound, lines, tuple(self.alias_flags.items()))

    def _number(self, i: int, instr: Instr) -> str:
        source = number_source(instr)
        return self.bind(f"c{i}", f"{self.dtype(instr.dtype)}({source})")

    def _last_uses(self) -> dict[int, int]:
        end = len(self.code.instrs)
        last: dict[int, int] = {}
        for i, instr in enumerate(self.code.instrs):
            for arg in instr.args:
                last[arg] = i
            if instr.op == "input" and self.code.inputs[instr.value] in HALVES:
                last[i] = max(last.get(i, 0), i)
        for _, _, value in self.code.outputs:
            last[value] = end
        self.half_casts = {i for i in range(end) if self._rounds(i)}
        for i in self.half_casts:
            last[self.code.instrs[i].args[0]] = end
        return last

    def _rounds(self, i: int) -> bool:
        """Whether a value is a cast to a half type that is only stored in it: the store of its argument rounds."""
        instr, layout = self.code.instrs[i], self.layout
        if instr.op != "cast" or instr.value not in HALVES or self.flags[i] != self.all_dims or layout.alias:
            return False
        stored = [(slot, dtype) for slot, dtype, value in self.code.outputs if value == i]
        if any(dtype != instr.value or layout.flags[slot] != self.all_dims for slot, dtype in stored):
            return False
        return bool(stored) and not any(i in each.args for each in self.code.instrs)

    def _outputs(self) -> dict[str, str]:
        names = {}
        for k, (slot, _, _) in enumerate(self.code.outputs):
            name = names[slot] = f"o{k}"
            self.fetch += [
                f"{name} = t[{self.layout.positions[slot]}]",
                f"if {name}.allocation is None: {name}.allocate(context)",
            ]
            if self.layout.natural:
                self.fetch.append(f"{name} = {name}.native()")
            else:
                shape = self.bind(f"shape_{name}", f"env.shapes[{slot!r}]")
                self.fetch.append(f"{name} = {self.bind('reshape', 'env.reshape')}({name}.native(), {shape})")
        return names

    def _load(self, i: int) -> None:
        self.lines.append(f"v{i} = {self.names[i]}.astype({self.dtype('float32')})")
        self.names[i] = f"v{i}"

    def _value(self, instr: Instr) -> str:
        args = ", ".join(self.names[arg] for arg in instr.args)
        if instr.op == "cast":
            return self._cast(instr, args)
        return f"{self.xp(self.function(instr))}{args})"

    def _cast(self, instr: Instr, arg: str) -> str:
        source = self.code.instrs[instr.args[0]].dtype
        if instr.value in HALVES:
            return f"{arg}.astype({self.dtype(instr.value)}).astype({self.dtype('float32')})"
        if instr.dtype in ALL_INTS and source.startswith("float"):
            return f"{self.xp('@cast')}{arg}, {instr.dtype!r})"
        return f"{arg}.astype({self.dtype(instr.dtype)})"

    def _target(self, i: int, outputs: Mapping[str, str]) -> str | None:
        """The output into which this value can be written directly, or None."""
        for slot, dtype, value in self.code.outputs:
            if value != i or dtype != self.code.instrs[i].dtype or self.layout.flags[slot] != self.all_dims:
                continue
            if not self._read_after(i, slot):
                return outputs[slot]
        return None

    def _read_after(self, i: int, slot: str) -> bool:
        """Whether an input that an output may alias is still read after a value."""
        alias = self.layout.alias.get(slot)
        for j, source in enumerate(self.code.instrs):
            if source.op != "input" or (alias is not None and source.value != alias):
                continue
            if self.code.inputs[source.value] not in HALVES and self.last_uses.get(j, -1) > i:
                return True
        return False

    def _step(self, i: int, instr: Instr, outputs: Mapping[str, str]) -> None:
        name = f"v{i}"
        if instr.op in ("uniform", "gaussian"):
            if self.layout.blocked:
                self.bind("inner", "env.inner")
                value = self.random(instr, "b * inner", "m * inner", f"(m, *{self.bind('rest', 'env.rest')})")
            else:
                value = self.random(instr, "0", self.bind("size", "env.size"), self.bind("dims", "env.dims"))
            self.lines.append(f"{name} = {value}")
            self.temporary[i] = name
            return
        if i in self.half_casts:
            self.names[i] = self.names[instr.args[0]]
            return
        is_load = instr.op == "input"
        plain_cast = is_load or (
            instr.op == "cast"
            and instr.value not in HALVES
            and not (instr.dtype in ALL_INTS and self.code.instrs[instr.args[0]].dtype.startswith("float"))
        )
        function = "" if is_load or instr.op == "cast" else self.function(instr)
        has_out = plain_cast or (function and not function.startswith("@"))
        if not has_out:
            self.lines.append(f"{name} = {self._value(instr)}")
            self._release(i, instr)
            self.temporary[i] = name
            return
        target = self._target(i, outputs)
        if not self.layout.distinct:
            self._release(i, instr)
        is_temporary = target is None
        is_new = False
        if target is None:
            pool = self.free_buffers.get(instr.dtype)
            lent = None if pool else self._lend(i, instr, outputs)
            if pool:
                target = pool.pop()
            elif lent is not None:
                target = lent
            elif self.layout.blocked:
                target = f"s{len(self.scratch)}"
                self.scratch.append(instr.dtype)
            else:
                target, is_new = name, True
        source = self.names[i] if is_load else ", ".join(self._operand(arg, function) for arg in instr.args)
        if plain_cast:
            if is_new:
                self.lines.append(f"{target} = {source}.astype({self.dtype(instr.dtype)})")
            else:
                self.lines.append(f"{self.xp('copyto')}{target}, {source}, 'unsafe')")
        elif is_new:
            self.lines.append(f"{target} = {self.xp(function)}{source})")
        else:
            keyword = "out=" if function in ("maximum", "minimum") else ""  # NumPy deprecates their positional form
            self.lines.append(f"{self.xp(function)}{source}, {keyword}{target})")
        self.names[i] = target
        if self.layout.distinct:
            self._release(i, instr)
        if is_temporary:
            self.temporary[i] = target

    def _operand(self, arg: int, function: str) -> str:
        if not self.layout.spread or function not in SPREAD_OPS or self.code.instrs[arg].op not in ("const", "scalar"):
            return self.names[arg]
        return self.bind(f"k{arg}", f"env.spread({self.names[arg]})") + ("[:m]" if self.layout.blocked else "")

    def _release(self, i: int, instr: Instr) -> None:
        for arg in set(instr.args):
            if self.last_uses.get(arg) == i and arg in self.temporary:
                name = self.temporary.pop(arg)
                if name in self.lent_outputs:
                    self.lent_outputs.remove(name)
                else:
                    self.free_buffers.setdefault(self.code.instrs[arg].dtype, []).append(name)

    def _lend(self, i: int, instr: Instr, outputs: Mapping[str, str]) -> str | None:
        """An output that can hold this value until its own value is computed, or None."""
        for slot, dtype, value in self.code.outputs:
            name = outputs[slot]
            if dtype != instr.dtype or self.layout.flags[slot] != self.all_dims or name in self.lent_outputs:
                continue
            if value <= i or self.last_uses.get(i, 0) > value or self.code.instrs[value].op == "input":
                continue
            if self._read_after(i, slot):
                continue
            self.lent_outputs.add(name)
            return name
        return None

    def _finish(self, outputs: Mapping[str, str]) -> None:
        """Store sums first, then outputs that are inputs, then temporaries; outputs that lack dims after the loop."""
        copies: list[tuple[bool, str]] = []
        self.final_lines: list[str] = []
        self.initial_lines: list[str] = []
        self.alias_flags: dict[str, tuple[str, str]] = {}
        for slot, dtype, value in self.code.outputs:
            name, out, flags = self.names[value], outputs[slot], self.layout.flags[slot]
            if name == out:
                continue
            instr = self.code.instrs[value]
            if slot in self.layout.sums:
                name, axes = self.summed(slot, value)
                dtype_name = self.dtype(instr.dtype)
                if self.layout.blocked:  # a full sum: of each block, then of the blocks
                    add = self.bind("f_add_reduce", "env.function('add').reduce")
                    self.initial_lines.append(f"r_{out} = []")
                    self.lines.append(f"r_{out}.append({add}({name}, {axes}, {dtype_name}, None, True))")
                    self.final_lines.append(f"{self.xp('copyto')}{out}, {add}(r_{out}, 0), 'unsafe')")
                    continue
                if dtype == instr.dtype:
                    self.lines.append(f"{self.xp('@pairwise_sum')}{name}, {axes}, {dtype_name}, {out})")
                    continue
                self.lines.append(f"r_{out} = {self.xp('@pairwise_sum')}{name}, {axes}, {dtype_name})")
                name = f"r_{out}"
            elif instr.op == "input":
                alias = self.layout.alias.get(slot)
                if alias is not None and alias == instr.value:  # usually it already has that memory
                    positions = self.layout.positions
                    self.fetch.append(f"{out}_there = t[{positions[alias]}] is t[{positions[slot]}]")
                    self.alias_flags[f"{out}_there"] = alias, slot
                    self.lines.append(f"if not {out}_there: {self.xp('copyto')}{out}, {name}, 'unsafe')")
                    continue
                if any(source == instr.value for other, source in self.layout.alias.items() if other != slot):
                    self.lines.append(f"r_{out} = {name}.copy()")
                    name = f"r_{out}"
            line = f"{self.xp('copyto')}{out}, {name}, 'unsafe')"
            if flags != self.all_dims and slot not in self.layout.sums:  # it may alias an input that all blocks read
                self.final_lines.append(line)
            else:
                copies.append((instr.op != "input", line))
        self.lines += [line for _, line in sorted(copies, key=lambda pair: pair[0])]

    def _loop(self, before: list[str]) -> None:
        body = self.lines
        used = {name for line in body for name in _NAME.findall(line)}
        slices = []
        for i, instr in enumerate(self.code.instrs):
            if not self.flags[i][0]:
                continue
            if instr.op == "input" and f"a{i}" in used:
                slices.append(f"x{i} = a{i}[b:e]")
            elif self.flags[i] != self.all_dims and f"v{i}" in used:  # computed before the loop, for all blocks
                slices.append(f"x{i} = v{i}[b:e]")
        renamed = [_rename(line, {s.split(" ")[2].split("[")[0]: s.split(" ")[0] for s in slices}) for line in body]
        outs = {f"o{k}": f"y{k}" for k, (slot, _, _) in enumerate(self.code.outputs) if self.layout.flags[slot][0]}
        renamed = [_rename(line, outs) for line in renamed]
        slices += [f"{new} = {old}[b:e]" for old, new in outs.items()]
        setup = []
        if self.scratch:
            offsets, shape = self.bind("offsets", "env.offsets"), self.bind("block", "env.block")
            setup.append("w = io.workspace.native()")
            for k, dtype in enumerate(self.scratch):
                setup.append(
                    f"w{k} = w[{offsets}[{k}]:{offsets}[{k + 1}]].view({self.dtype(dtype)})"
                    f"[:{self.bind('volume', 'env.volume')}].reshape({shape})"
                )
                slices.append(f"s{k} = w{k}[:m]")
        rows, step = self.bind("rows", "env.rows"), self.bind("step", "env.step")
        head = [f"for b in range(0, {rows}, {step}):", f"    e = min(b + {step}, {rows})", "    m = e - b"]
        self.lines = before + setup + self.initial_lines + head + ["    " + line for line in slices + renamed]


def _rename(line: str, names: Mapping[str, str]) -> str:
    return _NAME.sub(lambda match: names.get(match.group(0), match.group(0)), line)


_NAME = re.compile(r"\b[a-z]\d+\b")


def scratch_bytes(scratch: tuple[str, ...], volume: int) -> list[int]:
    """The offsets of the scratch buffers of a blocked run in its workspace, and the total size."""
    offsets = [0]
    for dtype in scratch:
        offsets.append(offsets[-1] + -(-volume * ITEMSIZE[dtype] // 64) * 64)
    return offsets
