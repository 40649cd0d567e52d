"""Merges the typed expressions of fused operators: an intermediate result is a value, not a store and a load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fluidlite.base.dtypes import FLOATS, HALVES, compute_dtype
from fluidlite.codegen.expr import Expr
from fluidlite.codegen.typed import Instructions, Typed, converted_number

OUTSIDE = -1
"""The ``part`` of a source that is an input of the fused operator."""
NUMBER = -2
"""The ``part`` of a source that is a number of the fused operator."""


class PartSource(NamedTuple):
    """The source of a part's input: output ``slot`` of an earlier part; OUTSIDE: input ``slot`` of the fused operator;
    NUMBER: the ``slot``-th number, with which the input is filled.
    """

    part: int
    slot: str


class FusedConstant(NamedTuple):
    """A constant: its storage dtype, and its value, or None for a float, which is an argument at run time."""

    dtype: str
    value: Any
    dims: tuple[int, ...]


@dataclass
class PartCode:
    """One operator of a fused operator: its typed expression, and the source of each input."""

    code: Typed
    sources: dict[str, PartSource] = field(default_factory=dict)


def merge(
    parts: Sequence[PartCode], numbers: Sequence[FusedConstant], outputs: Sequence[tuple[str, PartSource]]
) -> Typed:
    """Return the typed expression of all parts together.

    A value is rounded to the dtype in which its operator would store it, so that fused operators compute the same
    bits. Float attributes of part 3 are parameters ``3.name``, float numbers ``number.0`` and so on. ``outputs`` maps
    output slots to outputs of parts.
    """
    merger = _Merger(numbers)
    for index, part in enumerate(parts):
        merger.add(index, part)
    return merger.finish(merger.inputs, [(slot, *merger.results[source]) for slot, source in outputs], {})


class _Merger(Instructions):
    def __init__(self, numbers: Sequence[FusedConstant]) -> None:
        super().__init__()
        self.numbers = numbers
        self.inputs: dict[str, str] = {}
        self.results: dict[PartSource, tuple[str, int]] = {}

    def add(self, index: int, part: PartCode) -> None:
        """Append the instructions of a part."""
        new: list[int] = []
        for instr in part.code.instrs:
            if instr.op == "input":
                new.append(self._load(part.sources[instr.value], part.code.inputs[instr.value]))
            elif instr.op == "scalar":
                expr, dtype = part.code.scalars[instr.value]
                new.append(self.scalar(_with_part_params(expr, index), dtype))
            else:
                new.append(self.emit(instr.op, instr.dtype, tuple(map(new.__getitem__, instr.args)), instr.value))
        for slot, dtype, value in part.code.outputs:
            self.results[PartSource(index, slot)] = dtype, new[value]

    def _load(self, source: PartSource, dtype: str) -> int:
        if source.part == OUTSIDE:
            self.inputs[source.slot] = dtype
            return self.emit("input", compute_dtype(dtype), (), source.slot)
        if source.part == NUMBER:
            constant, compute = self.numbers[int(source.slot)], compute_dtype(dtype)
            if constant.value is None and compute in FLOATS:
                return self.scalar(Expr("param", (), f"number.{source.slot}"), compute)
            return self.emit("const", compute, (), converted_number(constant.value, compute))
        _, value = self.results[source]
        if dtype in HALVES:  # outputs are rounded by their store: after the reduction, if they are sums
            return self.emit("cast", "float32", (value,), dtype)
        return value


def _with_part_params(expr: Expr, index: int) -> Expr:
    """The expression with the attributes of a part as parameters."""
    if expr.op == "param":
        return Expr("param", (), f"{index}.{expr.value}")
    return Expr(expr.op, tuple(_with_part_params(arg, index) for arg in expr.args), expr.value)
