"""Emits Python source of Array-API calls only: they return new arrays, which are copied to the outputs last."""

from __future__ import annotations

from fluidlite.base.dtypes import HALVES
from fluidlite.codegen.array import Emitted, Emitter, number_source
from fluidlite.codegen.typed import Instr

_OPERATORS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "equal": "==",
    "not_equal": "!=",
}


class PureEmitter(Emitter):
    """Emits Array-API functions, which return new arrays."""

    def emit(self) -> Emitted:
        self.inputs(reshape=not self.layout.natural)
        for k, (slot, _, _) in enumerate(self.code.outputs):
            self.fetch += [
                f"o{k} = t[{self.layout.positions[slot]}]",
                f"if o{k}.allocation is None: o{k}.allocate(context)",
                f"o{k} = o{k}.native()",
            ]
        for i, instr in enumerate(self.code.instrs):
            if instr.op in ("const", "scalar"):
                self.names[i] = self.bind(f"c{i}", number_source(instr))
            elif instr.op == "input":
                if self.code.inputs[instr.value] in HALVES:
                    self.lines.append(f"v{i} = {self.xp('astype')}a{i}, {self.dtype('float32')})")
                    self.names[i] = f"v{i}"
            else:
                self.lines.append(f"v{i} = {self._value(instr)}")
        for k, (slot, dtype, value) in enumerate(self.code.outputs):
            self.lines += self._result(k, slot, dtype, value)
        for k, (slot, _, _) in enumerate(self.code.outputs):
            value_text = f"r{k}"
            if self.layout.predicated and slot in self.layout.alias:
                value_text = f"{self.xp('where')}context.status_array()[0] == 0, r{k}, o{k})"
            self.lines.append(f"o{k}[...] = {value_text}")
        return Emitted(self.text(self.closure()), ())

    def _value(self, instr: Instr) -> str:
        if instr.op in ("uniform", "gaussian"):
            call = f"{self.xp('@' + instr.op)}0, {self.bind('size', 'env.size')}, io.random, {instr.value}, o0.device)"
            return f"{self.xp('reshape')}{call}, {self.bind('dims', 'env.dims')})"
        if instr.op == "cast":
            arg = self._array(instr.args[0])
            if instr.value in HALVES:
                arg = f"{self.xp('astype')}{arg}, {self.dtype(instr.value)})"
                return f"{self.xp('astype')}{arg}, {self.dtype('float32')})"
            return f"{self.xp('@cast')}{arg}, {instr.dtype!r})"
        function = self.function(instr)
        are_numbers = [self.code.instrs[arg].op in ("const", "scalar") for arg in instr.args]
        if instr.op in _OPERATORS and not function.startswith("@") and not all(are_numbers):
            a, b = (self.names[arg] for arg in instr.args)
            return f"{a} {_OPERATORS[instr.op]} {b}"
        return f"{self.xp(function)}{', '.join(self._array(arg) for arg in instr.args)})"

    def on_device(self) -> str:
        return ", device=o0.device"

    def _array(self, value: int) -> str:
        instr = self.code.instrs[value]
        if instr.op not in ("const", "scalar"):
            return self.names[value]
        return f"{self.xp('@as_number')}{self.names[value]}, o0, {instr.dtype!r})"

    def _result(self, k: int, slot: str, dtype: str, value: int) -> list[str]:
        name, instr = self._array(value), self.code.instrs[value]
        if slot in self.layout.sums:
            name, axes = self.summed(slot, value)
            name = f"{self.xp('@pairwise_sum')}{name}, {axes}, {self.dtype(instr.dtype)})"
        if instr.op == "input" and len(self.code.outputs) > 1:
            name = f"{self.xp('asarray')}{name}, copy=True)"  # another output may alias this input
        if dtype != instr.dtype:
            name = f"{self.xp('astype')}{name}, {self.dtype(dtype)})"
        if not self.layout.natural:
            shape = self.bind(f"shape_o{k}", f"env.shapes[{slot!r}]")
            name = f"{self.xp('broadcast_to')}{name}, {shape})"
            name = f"{self.xp('reshape')}{name}, {self.bind(f'final_o{k}', f'env.finals[{slot!r}]')})"
        return [f"r{k} = {name}"]
