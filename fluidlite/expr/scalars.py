"""Converts elementwise operators, which are functions of scalars, to functions of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.base.errors import ProgramError
from fluidlite.codegen.domain import aligned_dims
from fluidlite.codegen.expr import Expr, trace as trace_scalars
from fluidlite.expr.number import Number, apply, number
from fluidlite.expr.reductions import sum_to
from fluidlite.expr.tensor import Tensor, broadcast_to, cast, constant, function, joint_dims, tensor, wide
from fluidlite.expr.views import reshape
from fluidlite.program.opdef import GRAD, OpDef
from fluidlite.program.rules import ScalarRule

Function = Callable[[Mapping[str, Sequence[Tensor]], Mapping[str, Any]], Mapping[str, Any]]


def function_of_scalar_rule(op: OpDef, draws: bool = False) -> Function | None:
    """The function of tensors of an operator with a scalar rule; None if the rule is only for some calls, or if the
    operator draws random numbers and ``draws`` is false: a second trace of it would draw the same numbers.
    """
    rule = op.scalar
    if rule is None or rule.code is not None or rule.supports is not None:
        return None
    return None if op.random and not draws else of_scalars(op, rule)


def of_scalars(op: OpDef, rule: ScalarRule) -> Function:
    """The function of tensors of a scalar rule."""

    def compute(inputs: Mapping[str, Sequence[Tensor]], attrs: Mapping[str, Any]) -> Mapping[str, Any]:
        return _compute(op, rule, {slot: row[0] for slot, row in inputs.items() if row}, attrs)

    return compute


def _compute(op: OpDef, rule: ScalarRule, inputs: Mapping[str, Tensor], attrs: Mapping[str, Any]) -> dict[str, Tensor]:
    traced = trace_scalars(rule, op, attrs, inputs)
    axis = attrs.get("axis", -1)
    dims_of = rule.placed(_TraceOperands(inputs, attrs)) if rule.placed is not None else {}
    rank = max(map(len, dims_of.values()) if dims_of else (x.rank for x in inputs.values()))
    aligned = {
        slot: reshape(x, dims_of[slot]) if slot in dims_of else _aligned(x, rank, axis if isinstance(axis, int) else -1)
        for slot, x in inputs.items()
    }
    evaluator = _Evaluator(aligned, attrs)
    outputs = {}
    for slot, expression in zip(traced.outputs, traced.expressions, strict=True):
        like = slot.removesuffix(GRAD)
        value = evaluator.tensor(expression)
        if slot.endswith(GRAD) and like in inputs:  # gradients are summed along broadcast axes
            outputs[slot] = reshape(sum_to(value, aligned[like].dims), inputs[like].dims)
        else:
            outputs[slot] = value
    return outputs


class _TraceOperands:
    """The operands of a trace, for an operator with its own rule of axes."""

    def __init__(self, inputs: Mapping[str, Tensor], attrs: Mapping[str, Any]) -> None:
        self._inputs, self._attrs = inputs, attrs

    def dims(self, slot: str) -> tuple[Any, ...]:
        """The dims of a slot's operand."""
        return self._inputs[slot].dims

    def attr(self, name: str) -> Any:
        """An attribute."""
        return self._attrs[name]


def _aligned(x: Tensor, rank: int, axis: int) -> Tensor:
    """Reshape an operand to ``rank`` dims by Fluid's ``axis`` rule, with 1 where it broadcasts."""
    dims = aligned_dims(x.dims, rank, axis)  # type: ignore[arg-type]
    if dims is None:
        raise ProgramError(f"an operand of dims {list(x.dims)} has no place among {rank} dims from axis {axis}")
    return x if len(dims) == x.rank else reshape(x, dims)


class _Evaluator:
    """Evaluates scalar expressions on tensors of equal rank."""

    def __init__(self, inputs: Mapping[str, Tensor], attrs: Mapping[str, Any]) -> None:
        self.inputs, self.attrs = inputs, attrs
        self.values: dict[Expr, Any] = {}
        self.like = next(iter(inputs.values()))
        self.domain = joint_dims([x.dims for x in inputs.values()])

    def tensor(self, x: Expr) -> Tensor:
        """The value of an expression, as a tensor."""
        value = self.value(x)
        return value if isinstance(value, Tensor) else _fill(value, self.like)

    def value(self, x: Expr) -> Any:
        """The value of an expression: a tensor, or a number."""
        if x not in self.values:
            self.values[x] = self._value(x)
        return self.values[x]

    def _value(self, x: Expr) -> Any:
        if x.op == "input":
            return wide(self.inputs[x.value])
        if x.op == "param":
            return self.attrs[x.value]
        if x.op == "const":
            return x.value
        if x.op in ("uniform", "gaussian"):
            return tensor("random", (), (x.op, x.value), self.domain, "float32")
        args = [self.value(arg) for arg in x.args]
        if x.op == "like":
            value, shape = args
            return broadcast_to(value, shape.dims) if isinstance(value, Tensor) else _fill(value, shape)
        if x.op == "cast":
            return cast(args[0], x.value) if isinstance(args[0], Tensor) else args[0]
        has_tensor = any(isinstance(arg, Tensor) for arg in args[1:])
        if x.op == "where" and not isinstance(args[0], Tensor):  # attributes decide
            if not has_tensor:
                return apply("where", *args)
            args[0] = constant(args[0], "bool")
        elif x.op == "where" and not has_tensor and self.like.dtype in ALL_FLOATS:
            args[1] = tensor("number", (), (number(args[1]),), (), wide(self.like).dtype)  # both branches are numbers
        return function(x.op, *args)


def _fill(value: float | Number, like: Tensor) -> Tensor:
    """A number broadcast to the dims of ``like``."""
    return broadcast_to(tensor("number", (), (number(value),), (), like.dtype), like.dims)
