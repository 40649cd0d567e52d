"""Tolerances against the float64 reference: ulp bounds of primitives, propagated through an expression.

``bound == 0`` means that all renderings on all places give the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from fluidlite.base.dtypes import FLOATS, HALVES, NUMPY, dtype_name
from fluidlite.base.errors import FluidError
from fluidlite.codegen.domain import aligned_dims as placed
from fluidlite.codegen.expr import trace
from fluidlite.codegen.primitives import PRIMITIVES
from fluidlite.codegen.typed import Instr, Typed, typed
from fluidlite.program.opdef import OpDef

Array = np.ndarray[Any, Any]

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Unit roundoff by dtype: the relative error of one correct rounding."""
SMALLEST = {"float64": 2.0**-1074, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
"""The smallest positive number of each dtype."""


class Bounded(NamedTuple):
    """An array of the reference, and the maximum deviation of a result.

    ``value``: in the variable's dtype.
    ``bound``: float64; 0: the same bits; infinity: unknown.
    """

    value: Array
    bound: Array

    @property
    def exact(self) -> bool:
        """Whether every element must match to the bit."""
        return not self.bound.any()


def wide(array: Array) -> Array:
    """A float array in float64; others unchanged."""
    return array if array.dtype.kind in "biu" else array.astype(np.float64)


def rounding(value: Array, dtype: str) -> Array:
    """The error of one rounding of float64 values to a dtype."""
    error: Array = UNIT[dtype] * np.abs(value) + SMALLEST[dtype]
    return error


def distance(one: Array, other: Array) -> Array:
    """The distance of two arrays by element; 0 for equal numbers, and for NaN and NaN."""
    with np.errstate(all="ignore"):
        far = np.nan_to_num(np.abs(one - other), nan=np.inf)
    return np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0.0, far)


class Term(NamedTuple):
    """A value of an expression.

    ``value``: rounded to the compute dtype, stored in float64; integers and truth values in their own dtype.
    ``drift``: its maximum deviation from exact arithmetic.
    ``exact``: whether every rendering gives the same bits.
    """

    value: Array
    drift: Array
    exact: bool


def running_error(
    op: OpDef, attrs: Mapping[str, Any], inputs: Mapping[str, list[Bounded]], outputs: Mapping[str, str]
) -> dict[str, Term] | None:
    """Value and error bound of each output of an elementwise operator, computed from its expression.

    ``op``: with a scalar rule.
    ``attrs``: in canonical form.
    ``inputs``: values by slot.
    ``outputs``: dtypes by slot.
    Returns terms by slot; None if the operator is no function of these scalars alone.
    """
    rule = op.scalar
    if rule is None or rule.code is not None or op.random or any(len(arrays) != 1 for arrays in inputs.values()):
        return None
    dtypes = {slot: dtype_name(arrays[0].value.dtype) for slot, arrays in inputs.items()}
    dtypes_out = {slot: dtype for slot, dtype in outputs.items() if slot in rule.outputs}
    try:
        expression = typed(trace(rule, op, attrs, dtypes), dtypes, dtypes_out)
    except (FluidError, TypeError, KeyError):
        return None
    rank = max((arrays[0].value.ndim for arrays in inputs.values()), default=0)
    operands: dict[str, Term] = {}
    for slot in expression.inputs:
        value, bound = inputs[slot][0]
        dims = placed(value.shape, rank, attrs.get("axis", -1)) if "axis" in attrs else value.shape
        if dims is None:
            return None
        operands[slot] = Term(wide(value).reshape(dims), bound.reshape(dims), not bound.any())
    with np.errstate(all="ignore"):
        try:
            return _evaluate(expression, operands, expression.values(attrs))
        except ValueError:  # operands with their own broadcast rule
            return None


def _evaluate(expression: Typed, operands: Mapping[str, Term], scalars: tuple[Any, ...]) -> dict[str, Term]:
    terms: list[Term] = []
    for instr in expression.instrs:
        if instr.op == "input":
            terms.append(operands[instr.value])
        elif instr.op in ("const", "scalar"):
            constant = scalars[instr.value] if instr.op == "scalar" else instr.value
            value = wide(np.asarray(constant, NUMPY[instr.dtype]))
            drift = np.abs(value - constant) if value.dtype.kind == "f" and np.isfinite(constant) else np.zeros(())
            terms.append(Term(value, np.asarray(drift, np.float64), True))
        else:
            terms.append(_apply(instr, [terms[i] for i in instr.args]))
    results = {}
    for slot, dtype, index in expression.outputs:
        term = terms[index]
        term = term._replace(drift=np.nan_to_num(term.drift, nan=np.inf, posinf=np.inf))
        if dtype in HALVES:
            term = _rounded(term.value, term.drift, term.exact, dtype)
        results[slot] = term
    return results


def _rounded(value: Array, drift: Array, exact: bool, dtype: str) -> Term:
    rounded = wide(value.astype(NUMPY[dtype]))
    return Term(rounded, drift + 2 * rounding(value, dtype), exact)


def _apply(instr: Instr, args: list[Term]) -> Term:
    """One primitive: its value, and its error from rounding and from the errors of its operands."""
    if instr.op == "cast":
        return _cast(instr, args[0])
    exact = all(term.exact for term in args)
    if instr.op == "where":
        condition, yes, no = args
        chosen = condition.value.astype(bool)
        drift = np.where(chosen, yes.drift, no.drift)
        if condition.drift.any():
            drift = np.where(condition.drift > 0, np.abs(yes.value - no.value) + yes.drift + no.drift, drift)
        return Term(np.where(chosen, yes.value, no.value), drift, exact)
    primitive = PRIMITIVES[instr.op]
    value = np.asarray(primitive.reference(*(term.value for term in args)))
    drift = np.zeros(value.shape)
    if any(term.drift.any() for term in args):
        for signs in product((-1.0, 1.0), repeat=len(args)):
            moved = [
                t.value + s * t.drift if t.value.dtype.kind == "f" else t.value
                for t, s in zip(args, signs, strict=True)
            ]
            other = np.asarray(primitive.reference(*moved))
            distance = (other != value).astype(float) if value.dtype.kind == "b" else np.abs(other - value)
            drift = np.maximum(drift, np.where(np.isnan(distance) & ~np.isnan(value), np.inf, distance))
    ulps = primitive.ulp[instr.dtype == "float64"]
    if value.dtype.kind != "f" or not ulps:
        return Term(value, drift, exact)
    if ulps <= 0.5:
        return _rounded(value, drift, exact, instr.dtype)
    absolute = 0.0 if instr.dtype == "float64" else primitive.absolute
    return Term(value, drift + ulps * 2 * rounding(value, instr.dtype) + absolute, False)


def _cast(instr: Instr, term: Term) -> Term:
    value = term.value
    if instr.value in FLOATS or instr.value in HALVES:
        if value.dtype.kind == "f" and instr.value == "float64":
            return term
        return _rounded(value.astype(np.float64), term.drift, term.exact, str(instr.value))
    if value.dtype.kind != "f":
        return Term(value.astype(NUMPY[instr.value]), term.drift, term.exact)

    def convert(number: Array) -> Array:
        if instr.value == "bool":
            return np.asarray(number != 0)
        limits = np.iinfo(NUMPY[instr.value])
        fits = np.clip(np.trunc(number), limits.min, limits.max)
        converted = np.where(np.isnan(number), 0.0, fits).astype(NUMPY[instr.value])
        return np.asarray(np.where(fits >= limits.max, limits.max, converted))  # which float64 may not hold

    converted = convert(value)
    unsure = (convert(value - term.drift) != converted) | (convert(value + term.drift) != converted)
    return Term(converted, np.where(unsure, np.inf, 0.0), term.exact)
