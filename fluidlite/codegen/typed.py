"""Types of a traced expression: a flat list of instructions in which equal expressions are one.

Half types are loaded as float32 and rounded where they are stored. Sub-expressions of numbers and float
attributes alone are scalars: the host computes them, in float64, once a prepared kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np

from fluidlite.base.dtypes import ALL_INTS, FLOATS, HALVES, NUMPY, compute_dtype
from fluidlite.codegen.expr import Expr, Traced
from fluidlite.codegen.primitives import PRIMITIVES

EVERYWHERE = "*"
"""Stands for all dims: of a random number, which every element has its own of."""


class Instr(NamedTuple):
    """One value: ``op`` of earlier values ``args``, in compute dtype ``dtype``.

    Beside the primitives there are ``input`` (value: slot), ``const`` (value: number), ``scalar`` (value: its
    number among the scalars), ``uniform`` and ``gaussian`` (value: sub-stream), ``cast`` (value: target dtype).
    """

    op: str
    dtype: str
    args: tuple[int, ...] = ()
    value: Any = None


@dataclass(frozen=True)
class Typed:
    """A typed expression.

    ``instrs``: every value in order of computation.
    ``inputs``: storage dtypes by slot, only of those that are read.
    ``outputs``: slots, storage dtypes, and which value each is.
    ``scalars``: what the host computes of attributes, each with its dtype.
    ``spans``: by output slot, the inputs whose dims its value has, read or not; EVERYWHERE is one of them where the
    value has all dims there are. Empty for a fused operator, which says its domain itself.
    """

    instrs: tuple[Instr, ...]
    inputs: Mapping[str, str]
    outputs: tuple[tuple[str, str, int], ...]
    scalars: tuple[tuple[Expr, str], ...]
    spans: Mapping[str, tuple[str, ...]]

    @property
    def key(self) -> tuple[Any, ...]:
        """What code of it depends on; 0, 0.0, -0.0 and False are not one constant."""
        values = tuple(map(repr, map(attrgetter("value"), self.instrs)))
        return self.instrs, values, tuple(self.inputs.items()), self.outputs

    def values(self, attrs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The scalars as Python numbers, for these attributes."""
        return tuple([number(evaluate(expr, attrs), dtype) for expr, dtype in self.scalars])


def promote(a: str, b: str) -> str:
    """The compute dtype in which two typed operands meet."""
    if a == b:
        return a
    if a in FLOATS or b in FLOATS:
        if a in FLOATS and b in FLOATS:
            return "float64"
        return a if a in FLOATS else b
    return str(np.promote_types(a, b))


def number(value: Any, dtype: str) -> Any:
    """A Python number as it is after conversion to a compute dtype: integers truncate and saturate."""
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
        return float(NUMPY[dtype].type(args[0])) if dtype in (*FLOATS, *HALVES) else number(args[0], dtype)
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
    """Instructions that are noted one after the other, of equal ones one, and the scalars that they read."""

    instrs: list[Instr] = field(default_factory=list)
    known: dict[Instr, int] = field(default_factory=dict)
    scalars: list[tuple[Expr, str]] = field(default_factory=list)
    scalar_keys: dict[tuple[str, str], int] = field(default_factory=dict)

    def emit(self, op: str, dtype: str, args: tuple[int, ...] = (), value: Any = None) -> int:
        """The number of an instruction."""
        instr = Instr(op, dtype, args, value)
        key = instr._replace(value=(type(value).__name__, repr(value)))  # 0, 0.0, -0.0 and False are not one constant
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = len(self.instrs)
            self.instrs.append(instr)
        return found

    def scalar(self, expr: Expr, dtype: str) -> int:
        """The number of the instruction that reads what the host computes of attributes."""
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
        """The expression of (output slot, storage dtype, value) each; what none of them needs is left out."""
        instrs, index = live(self.instrs, list(map(itemgetter(2), results)))
        read = {instr.value: inputs[instr.value] for instr in instrs if instr.op == "input"}
        stored = tuple([(slot, dtype, index[value]) for slot, dtype, value in results])
        return Typed(instrs, read, stored, tuple(self.scalars), spans)


class _Typer(Instructions):
    def __init__(self, inputs: Mapping[str, str], default: str) -> None:
        super().__init__()
        self.inputs = inputs
        self.default = default
        self.done: dict[int, int | None] = {}  # id of an expression (kept alive by its trace) -> value, None: weak

    def weak(self, expr: Expr, dtype: str) -> int:
        """A value of numbers and attributes, in the dtype that it takes."""
        if expr.op == "const":
            return self.emit("const", dtype, (), number(expr.value, dtype))
        if _constant(expr):
            return self.emit("const", dtype, (), number(evaluate(expr, {}), dtype))
        return self.scalar(expr, dtype)

    def convert(self, value: int, dtype: str) -> int:
        given = self.instrs[value]
        if given.dtype == dtype:
            return value
        if given.op == "const":
            return self.emit("const", dtype, (), number(given.value, dtype))
        return self.emit("cast", dtype, (value,), dtype)

    def strong(self, expr: Expr, dtype: str) -> int:
        value = self.visit(expr)
        return self.weak(expr, dtype) if value is None else value

    def visit(self, expr: Expr) -> int | None:
        """The typed value of an expression; None if it has only numbers and attributes."""
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
            if expr.value in HALVES:  # rounded to the half type, carried on as float32
                return self.emit("cast", "float32", (self.convert(arg, "float32"),), expr.value)
            return self.convert(arg, expr.value)
        return self._apply(op, expr, args)

    def _apply(self, op: str, expr: Expr, args: list[int | None]) -> int:
        kind = PRIMITIVES[op].kind
        if kind == "where":
            condition = self.convert(self.strong(expr.args[0], "bool"), "bool")
            pair = self._meet(expr.args[1:], args[1:], plain=True)
            return self.emit(op, self.instrs[pair[0]].dtype, (condition, *pair))
        if kind == "logical":
            return self.emit(op, "bool", tuple(self.convert(self.strong(arg, "bool"), "bool") for arg in expr.args))
        values = self._meet(expr.args, args, plain=op in ("equal", "not_equal"))
        dtype = self.instrs[values[0]].dtype
        if kind in ("float", "test") and dtype not in FLOATS:
            values = tuple(self.convert(value, "float32") for value in values)
            dtype = "float32"
        if kind == "whole" and dtype not in FLOATS:
            return values[0]
        return self.emit(op, "bool" if kind in ("compare", "test") else dtype, values)

    def _meet(self, exprs: tuple[Expr, ...], args: list[int | None], plain: bool) -> tuple[int, ...]:
        """Operands in one dtype; unless ``plain``, bool counts as int32."""
        dtypes = [self.instrs[arg].dtype for arg in args if arg is not None]
        dtype = dtypes[0] if dtypes else self.default
        for other in dtypes[1:]:
            dtype = promote(dtype, other)
        if dtype == "bool" and not plain:
            dtype = "int32"
        if dtype == "bool":
            numbers = [expr.value for expr, arg in zip(exprs, args, strict=True) if arg is None]
            if not all(isinstance(value, bool) for value in numbers):
                dtype = self.default  # where(flag, 1.0, 0.0) and the like mean numbers
        return tuple(
            [
                self.weak(expr, dtype) if arg is None else self.convert(arg, dtype)
                for expr, arg in zip(exprs, args, strict=True)
            ]
        )


def _constant(expr: Expr) -> bool:
    """Whether an expression that reads no input is one number."""
    if expr.op == "like":
        return _constant(expr.args[0])
    return expr.op == "const" or (expr.op != "param" and all(_constant(arg) for arg in expr.args))


def typed(traced: Traced, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> Typed:
    """Type a traced rule for storage dtypes of its inputs and of the outputs that are wanted."""
    computed = map(compute_dtype, (*map(inputs.__getitem__, traced.inputs), *outputs.values()))
    typer = _Typer(inputs, next(filter(FLOATS.__contains__, computed), "float32"))
    results: list[tuple[str, str, int]] = []
    spans: dict[str, tuple[str, ...]] = {}
    found: dict[int, frozenset[str]] = {}
    for slot, expr in zip(traced.outputs, traced.expressions, strict=True):
        if slot in outputs:
            spans[slot] = tuple(sorted(_span(expr, found)))
            compute = compute_dtype(outputs[slot])
            value = typer.convert(typer.strong(expr, compute), compute)
            last = typer.instrs[value]
            if last.op == "cast" and last.value == outputs[slot] and last.value in HALVES:
                (value,) = last.args  # storing rounds it
            results.append((slot, outputs[slot], value))
    return typer.finish(inputs, results, spans)


def _span(expr: Expr, found: dict[int, frozenset[str]]) -> frozenset[str]:
    """The inputs whose dims a value has; ``found`` keeps those of shared expressions, by their id."""
    span = found.get(id(expr))
    if span is None:
        own = {"input": (expr.value,), "uniform": (EVERYWHERE,), "gaussian": (EVERYWHERE,)}.get(expr.op, ())
        span = frozenset(own)
        for arg in expr.args:
            span |= _span(arg, found)
        found[id(expr)] = span
    return span


def live(instrs: list[Instr], roots: list[int]) -> tuple[tuple[Instr, ...], dict[int, int]]:
    """Only what the roots need, renumbered."""
    needed = set(roots)
    for i in range(len(instrs) - 1, -1, -1):
        if i in needed:
            needed.update(instrs[i].args)
    index = dict(zip(sorted(needed), range(len(needed)), strict=True))
    kept = [instrs[old]._replace(args=tuple(map(index.__getitem__, instrs[old].args))) for old in index]
    return tuple(kept), index
