"""Exact algebraic simplification: it preserves NaN, infinities, -0.0 and rounding. See the table in docs/passes.md."""

from __future__ import annotations

from math import frexp

import numpy as np

from fluidlite.base.dtypes import NUMPY, is_float
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.passes.base import Add, Divide, Multiply, PeepholeGraphPass, Power, Subtract, visit
from fluidlite.compiler.passes.sign_analysis import can_be_minus_zero, is_floating, is_negative, is_number

_WIDER_DTYPES = {
    "bool": ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"),
    "uint8": ("int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"),
    "int8": ("int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"),
    "int16": ("int32", "int64", "float32", "float64"),
    "int32": ("int64", "float64"),
    "float16": ("float32", "float64"),
    "bfloat16": ("float32", "float64"),
    "float32": ("float64",),
}
"""By dtype, the dtypes that represent all of its numbers."""


class SimplifyArithmetic(PeepholeGraphPass):
    """x 1, x / 1, x - 0, x + -0.0, x ** 1, a scale by 1, scales of scales, casts without effect, and similar."""

    @visit.on_type(Add)
    def _add(self, op: GraphOp) -> None:
        x, y = op.args
        for value, zero in ((x, y), (y, x)):
            if is_number(zero, -0.0) or (is_number(zero, 0.0) and not can_be_minus_zero(value)):
                self._replace_by(op, value, zero)

    @visit.on_type(Subtract)
    def _subtract(self, op: GraphOp) -> None:
        x, y = op.args
        if is_number(y, 0.0) or (is_number(y, -0.0) and not can_be_minus_zero(x)):
            self._replace_by(op, x, y)

    @visit.on_type(Multiply)
    def _multiply(self, op: GraphOp) -> None:
        x, y = op.args
        for value, one in ((x, y), (y, x)):
            if is_number(one, 1):
                self._replace_by(op, value, one)

    @visit.on_type(Divide)
    @visit.on_type(Power)
    def _by_one(self, op: GraphOp) -> None:
        x, y = op.args
        if is_number(y, 1):
            self._replace_by(op, x, y)

    @visit.on_type("elementwise_floordiv")
    def _floordiv(self, op: GraphOp) -> None:
        x, y = op.args
        if is_number(y, 1) and not is_floating(x):
            self._replace_by(op, x, y)

    @visit.on_type("elementwise_max")
    @visit.on_type("elementwise_min")
    @visit.on_type("logical_and")
    @visit.on_type("logical_or")
    def _equal_operands(self, op: GraphOp) -> None:
        x, y = op.args
        if x is y:
            self._replace_by(op, x)

    @visit.on_type("abs")
    @visit.on_type("relu")
    @visit.on_type("floor")
    @visit.on_type("ceil")
    @visit.on_type("round")
    @visit.on_type("sign")
    def _idempotent(self, op: GraphOp) -> None:
        inner = op.args[0].op
        if inner is not None and inner.type == op.type:
            self._replace_by(op, op.args[0])

    @visit.on_type("logical_not")
    def _not(self, op: GraphOp) -> None:
        inner = op.args[0].op
        if inner is not None and inner.type == op.type:
            self._replace_by(op, inner.args[0])

    @visit.on_type("sum")
    @visit.on_type("concat")
    def _single_operand(self, op: GraphOp) -> None:
        if len(op.args) == 1:
            self._replace_by(op, op.args[0])

    @visit.on_type("expand")
    def _expand(self, op: GraphOp) -> None:
        if len(op.args) == 1 and set(op.attrs["expand_times"]) <= {1}:
            self._replace_by(op, op.args[0])

    @visit.on_type("pad")
    def _pad(self, op: GraphOp) -> None:
        if not any(op.attrs["paddings"]):
            self._replace_by(op, op.args[0])

    @visit.on_type("slice")
    def _slice(self, op: GraphOp) -> None:
        """A slice with the dims of its input is the input."""
        x = op.args[0]
        if len(op.args) == 1 and x.spec is not None and x.spec.is_static:
            self._replace_by(op, x)

    @visit.on_type("dropout")
    def _dropout(self, op: GraphOp) -> None:
        out = op.output("Out")
        if op.attrs["is_test"] and op.attrs["dropout_implementation"] == "upscale_in_train" and out is not None:
            self._replace_if_equal(out, op.inputs["X"][0])

    @visit.on_type("cast")
    def _cast(self, op: GraphOp) -> None:
        x, out = op.args[0], op.value
        self._replace_by(op, x)
        inner = x.op
        if inner is None or inner.type != "cast" or x.spec is None or out.spec is None:
            return
        first = inner.args[0]
        if first.spec is None or x.spec.dtype not in _WIDER_DTYPES.get(first.spec.dtype, ()):
            return
        if first.spec == out.spec:
            self._replace_if_equal(out, first)
        elif (
            is_float(out.spec.dtype) or not is_floating(x) or is_floating(first)
        ):  # int casts wrap, float casts saturate
            attrs = {"in_dtype": first.spec.dtype, "out_dtype": out.spec.dtype}
            self._replace_if_equal(out, self.graph.insert(op, "cast", {"X": first}, attrs))

    @visit.on_type("scale")
    def _scale(self, op: GraphOp) -> None:
        x = op.args[0]
        if not _is_pure_scale(op):
            return
        factor, bias = op.attrs["scale"], op.attrs["bias"]
        if factor == 1 and (is_negative(bias) or not can_be_minus_zero(x)):
            self._replace_by(op, x)
            return
        inner = x.op
        if inner is None or inner.type != "scale" or not _is_pure_scale(inner):
            return
        signs_stay = not is_floating(x) or is_negative(inner.attrs["bias"]) or not is_negative(bias)
        both = factor * inner.attrs["scale"]
        if signs_stay and _is_exact(inner.attrs["scale"], factor, x):
            attrs = {"scale": both, "bias": bias}
            self._replace_if_equal(op.value, self.graph.insert(op, "scale", {"X": inner.args[0]}, attrs))

    def _replace_by(self, op: GraphOp, value: GraphValue, other: GraphValue | None = None) -> None:
        """Replace the output of an operator by an input, if the other input cannot broadcast it to other dims."""
        keeps_dims = other is None or (other.spec is not None and other.spec.size == 1)
        if keeps_dims or (value.spec is not None and value.spec.is_static):
            self._replace_if_equal(op.value, value)

    def _replace_if_equal(self, out: GraphValue, value: GraphValue) -> None:
        if out.spec == value.spec:
            self.replace_op(out, value)


def _is_pure_scale(op: GraphOp) -> bool:
    return len(op.args) == 1 and op.attrs["bias"] == 0 and op.attrs["bias_after_scale"]


def _is_exact(first: float, second: float, value: GraphValue) -> bool:
    """Whether (x * first) * second equals x * (first * second) bit for bit, in the dtype of a value."""
    if abs(first) == 1 or abs(second) == 1:
        return True
    powers = all(abs(frexp(factor)[0]) == 0.5 and abs(factor) > 1 for factor in (first, second))
    if not powers or not is_floating(value) or value.spec is None:
        return False
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.asarray(first * second).astype(NUMPY[value.spec.dtype]).astype("float64")))
