"""Typed expressions: a flat list of instructions with dtypes, after common-subexpression elimination.

Half types are loaded as float32 and rounded where they are stored. Subexpressions of numbers and float
attributes only are scalars: the host computes them, in float64, once for each prepared kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np

from fluidlite.base.dtypes import ALL_INTS, FLOATS, HALVES, NUMPY, compute_dtype
from fluidlite.codegen.expr import Expr, ScalarTrace
from fluidlite.codegen.primitives import PRIMITIVES

EVERYWHERE = "*"
"""In a span: all dims of the domain, as random numbers have, which differ for each element."""


class Instr(NamedTuple):
    """One value: ``op`` of earlier values ``args``, in compute dtype ``dtype``.

    ``op`` is a primitive, ``input`` (value: slot), ``const`` (value: number), ``scalar`` (value: its index in the
    scalars), ``uniform`` or ``gaussian`` (value: sub-stream), or ``cast`` (value: target dtype).
    """

    op: str
    dtype: str
    args: tuple[int, ...] = ()
    value: Any = None


@dataclass(frozen=True)
class Typed:
    """A typed expression.

    ``instrs``: all values in order of computation.
    ``inputs``: storage dtypes by slot, only of inputs that are read.
    ``outputs``: the slot, the storage dtype and the value of each output.
    ``scalars``: expressions that the host computes from attributes, each with its dtype.
    ``spans``: by output slot, the inputs whose dims the value has, read or not; EVERYWHERE means that the value has
    all dims of the domain. Empty for a fused operator, which has its own domain.
    """

    instrs: tuple[Instr, ...]
    inputs: Mapping[str, str]
    outputs: tuple[tuple[str, str, int], ...]
    scalars: tuple[tuple[Expr, str], ...]
    spans: Mapping[str, tuple[str, ...]]

    @property
    def key(self) -> tuple[Any, ...]:
        """The cache key of its code; ``repr`` distinguishes the constants 0, 0.0, -0.0 and False."""
        values = tuple(map(repr, map(attrgetter("value"), self.instrs)))
        return self.instrs, values, tuple(self.inputs.items()), self.outputs

    def values(self, attrs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of the scalars for these attributes, as Python numbers."""
        return tuple([converted_number(evaluate(expr, attrs), dtype) for expr, dtype in self.scalars])


def promote(a: str, b: str) -> str:
    """The common compute dtype of two typed operands (type promotion)."""
    if a == b:
        return a
    if a in FLOATS or b in FLOATS:
        if a in FLOATS and b in FLOATS:
            return "float64"
        return a if a in FLOATS else b
    return str(np.promote_types(a, b))


def converted_number(value: Any, dtype: str) -> Any:
    """Convert a Python number to a compute dtype: to integers it truncates and saturates."""
    if dtype == "bool":
        return bool(value)
    if dtype in ALL_INTS:
        if isinstance(value, float):
            if value != value:
                return 0
            limits = np.iinfo(dtype)
            return limits.max if value >= limits.max else limits.min if value <= limits.min else int(value)
        return int(np.array(int(value) & (2**64 - 1), np.uint64).astype(dtype))
    return float(value)


def evaluate(expr: Expr, attrs: Mapping[str, Any]) -> Any:
    """Compute an expression of numbers and attributes on the host, in float64 or exact integers."""
    if expr.op == "const":
        return expr.value
    if expr.op == "param":
        return attrs[expr.value]
    if expr.op == "like":
        return evaluate(expr.args[0], attrs)
    args = [evaluate(arg, attrs) for arg in expr.args]
    if expr.op == "cast":
        dtype = expr.value
        return float(NUMPY[dtype].type(args[0])) if dtype in (*FLOATS, *HALVES) else converted_number(args[0], dtype)
    primitive = PRIMITIVES[expr.op]
    if primitive.kind in ("float", "test") or expr.op == "div" or any(isinstance(arg, float) for arg in args):
        plain = primitive.kind != "arithmetic"
        wide = [np.asarray(arg if plain and isinstance(arg, bool) else float(arg)) for arg in args]
    else:
        wide = [np.asarray(arg if primitive.kind in ("logical", "where") else int(arg)) for arg in args]
    with np.errstate(all="ignore"):
        return np.asarray(primitive.reference(*wide)).item()


@dataclass
class Instructions:
    """Builds a list of instructions without duplicates, and the scalars that they read."""

    instrs: list[Instr] = field(default_factory=list)
    numbering: dict[Instr, int] = field(default_factory=dict)
    scalars: list[tuple[Expr, str]] = field(default_factory=list)
    scalar_keys: dict[tuple[str, str], int] = field(default_factory=dict)

    def emit(self, op: str, dtype: str, args: tuple[int, ...] = (), value: Any = None) -> int:
        """Return the index of an instruction; a new one is appended."""
        instr = Instr(op, dtype, args, value)
        key = instr._replace(value=(type(value).__name__, repr(value)))  # distinguishes 0, 0.0, -0.0 and False
        index = self.numbering.get(key)
        if index is None:
            index = self.numbering[key] = len(self.instrs)
            self.instrs.append(instr)
        return index

    def scalar(self, expr: Expr, dtype: str) -> int:
        """Return the index of the instruction that reads a scalar."""
        key = (repr(expr), dtype)
        index = self.scalar_keys.get(key)
        if index is None:
            index = self.scalar_keys[key] = len(self.scalars)
            self.scalars.append((expr, dtype))
        return self.emit("scalar", dtype, (), index)

    def finish(
        self,
        inputs: Mapping[str, str],
        results: Sequence[tuple[str, str, int]],
        spans: Mapping[str, tuple[str, ...]],
    ) -> Typed:
        """The typed expression of results (output slot, storage dtype, value), after dead-code elimination."""
        instrs, index = live(self.instrs, list(map(itemgetter(2), results)))
        read = {instr.value: inputs[instr.value] for instr in instrs if instr.op == "input"}
        stored = tuple([(slot, dtype, index[value]) for slot, dtype, value in results])
        return Typed(instrs, read, stored, tuple(self.scalars), spans)


class _Typer(Instructions):
    """Assigns dtypes to a traced expression; a value of numbers and attributes only is weakly typed."""

    def __init__(self, inputs: Mapping[str, str], default: str) -> None:
        super().__init__()
        self.inputs = inputs
        self.default = default
        self.done: dict[int, int | None] = {}  # id of an expression (kept alive by its trace) -> value, None: weak

    def weak(self, expr: Expr, dtype: str) -> int:
        """Emit a weakly typed expression in a dtype."""
        if expr.op == "const":
            return self.emit("const", dtype, (), converted_number(expr.value, dtype))
        if _is_constant(expr):
            return self.emit("const", dtype, (), converted_number(evaluate(expr, {}), dtype))
        return self.scalar(expr, dtype)

    def convert(self, value: int, dtype: str) -> int:
        source = self.instrs[value]
        if source.dtype == dtype:
            return value
        if source.op == "const":
            return self.emit("const", dtype, (), converted_number(source.value, dtype))
        return self.emit("cast", dtype, (value,), dtype)

    def strong(self, expr: Expr, dtype: str) -> int:
        value = self.visit(expr)
        return self.weak(expr, dtype) if value is None else value

    def visit(self, expr: Expr) -> int | None:
        """The typed value of an expression; None if it is weakly typed."""
        if expr.op in ("const", "param"):
            return None
        if id(expr) not in self.done:
            self.done[id(expr)] = self._visit(expr)
        return self.done[id(expr)]

    def _visit(self, expr: Expr) -> int | None:
        op = expr.op
        if op == "input":
            return self.emit("input", compute_dtype(self.inputs[expr.value]), (), expr.value)
        if op == "like":
            return self.visit(expr.args[0])
        if op in ("uniform", "gaussian"):
            return self.convert(self.emit(op, "float32", (), expr.value), self.default)
        args = [self.visit(arg) for arg in expr.args]
        if args.count(None) == len(args):
            return None
        if op == "cast":
            (arg,) = args
            assert arg is not None
            if expr.value in HALVES:  # rounded to the half type, but computed in float32
                return self.emit("cast", "float32", (self.convert(arg, "float32"),), expr.value)
            return self.convert(arg, expr.value)
        return self._apply(op, expr, args)

    def _apply(self, op: str, expr: Expr, args: list[int | None]) -> int:
        kind = PRIMITIVES[op].kind
        if kind == "where":
            condition = self.convert(self.strong(expr.args[0], "bool"), "bool")
            pair = self._meet(expr.args[1:], args[1:], keep_bool=True)
            return self.emit(op, self.instrs[pair[0]].dtype, (condition, *pair))
        if kind == "logical":
            return self.emit(op, "bool", tuple(self.convert(self.strong(arg, "bool"), "bool") for arg in expr.args))
        values = self._meet(expr.args, args, keep_bool=op in ("equal", "not_equal"))
        dtype = self.instrs[values[0]].dtype
        if kind in ("float", "test") and dtype not in FLOATS:
            values = tuple(self.convert(value, "float32") for value in values)
            dtype = "float32"
        if kind == "whole" and dtype not in FLOATS:
            return values[0]
        return self.emit(op, "bool" if kind in ("compare", "test") else dtype, values)

    def _meet(self, exprs: tuple[Expr, ...], args: list[int | None], keep_bool: bool) -> tuple[int, ...]:
        """Convert operands to a common dtype; unless ``keep_bool``, bool becomes int32."""
        dtypes = [self.instrs[arg].dtype for arg in args if arg is not None]
        dtype = dtypes[0] if dtypes else self.default
        for other in dtypes[1:]:
            dtype = promote(dtype, other)
        if dtype == "bool" and not keep_bool:
            dtype = "int32"
        if dtype == "bool":
            numbers = [expr.value for expr, arg in zip(exprs, args, strict=True) if arg is None]
            if not all(isinstance(value, bool) for value in numbers):
                dtype = self.default  # where(flag, 1.0, 0.0) returns numbers
        return tuple(
            [
                self.weak(expr, dtype) if arg is None else self.convert(arg, dtype)
                for expr, arg in zip(exprs, args, strict=True)
            ]
        )


def _is_constant(expr: Expr) -> bool:
    """Whether an expression without inputs is a constant."""
    if expr.op == "like":
        return _is_constant(expr.args[0])
    return expr.op == "const" or (expr.op != "param" and all(_is_constant(arg) for arg in expr.args))


def typed(traced: ScalarTrace, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> Typed:
    """Type a traced rule for the storage dtypes of its inputs and of the requested outputs."""
    computed = map(compute_dtype, (*map(inputs.__getitem__, traced.inputs), *outputs.values()))
    typer = _Typer(inputs, next(filter(FLOATS.__contains__, computed), "float32"))
    results: list[tuple[str, str, int]] = []
    spans: dict[str, tuple[str, ...]] = {}
    memo: dict[int, frozenset[str]] = {}
    for slot, expr in zip(traced.outputs, traced.expressions, strict=True):
        if slot in outputs:
            spans[slot] = tuple(sorted(_span(expr, memo)))
            compute = compute_dtype(outputs[slot])
            value = typer.convert(typer.strong(expr, compute), compute)
            last = typer.instrs[value]
            if last.op == "cast" and last.value == outputs[slot] and last.value in HALVES:
                (value,) = last.args  # the store rounds it
            results.append((slot, outputs[slot], value))
    return typer.finish(inputs, results, spans)


def _span(expr: Expr, memo: dict[int, frozenset[str]]) -> frozenset[str]:
    """The inputs whose dims a value has; ``memo`` caches those of shared expressions, by their id."""
    span = memo.get(id(expr))
    if span is None:
        own = {"input": (expr.value,), "uniform": (EVERYWHERE,), "gaussian": (EVERYWHERE,)}.get(expr.op, ())
        span = frozenset(own)
        for arg in expr.args:
            span |= _span(arg, memo)
        memo[id(expr)] = span
    return span


def needed(instrs: Sequence[Instr], roots: Sequence[int]) -> list[int]:
    """The indices of the instructions that the roots need, in order."""
    indices = set(roots)
    for i in range(len(instrs) - 1, -1, -1):
        if i in indices:
            indices.update(instrs[i].args)
    return sorted(indices)


def live(instrs: list[Instr], roots: list[int]) -> tuple[tuple[Instr, ...], dict[int, int]]:
    """Dead-code elimination: the instructions that the roots need, renumbered, and the new indices."""
    order = needed(instrs, roots)
    index = dict(zip(order, range(len(order)), strict=True))
    renumbered = [instrs[old]._replace(args=tuple(map(index.__getitem__, instrs[old].args))) for old in index]
    return tuple(renumbered), index
