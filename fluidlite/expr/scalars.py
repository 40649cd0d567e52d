"""Elementwise operators, which say what they compute by functions of scalars, as functions of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.base.errors import ProgramError
from fluidlite.codegen.domain import place
from fluidlite.codegen.expr import Expr, trace as trace_scalars
from fluidlite.expr.number import Number, apply, number
from fluidlite.expr.reductions import sum_to
from fluidlite.expr.tensor import Tensor, broadcast_to, cast, constant, function, joint_dims, tensor, wide
from fluidlite.expr.views import reshape
from fluidlite.program.opdef import GRAD, OpDef
from fluidlite.program.rules import ScalarRule

Function = Callable[[Mapping[str, Sequence[Tensor]], Mapping[str, Any]], Mapping[str, Any]]


def tensor_function(op: OpDef, draws: bool = False) -> Function | None:
    """The function of tensors of an operator of scalars; None if it is one for some calls alone, or if it draws random
    numbers and this is not wanted: a second trace of the same operator would draw the same numbers again.
    """
    rule = op.scalar
    if rule is None or rule.code is not None or rule.supports is not None:
        return None
    return None if op.random and not draws else of_scalars(op, rule)


def of_scalars(op: OpDef, rule: ScalarRule) -> Function:
    """The function of tensors of calls that are functions of scalars."""

    def compute(inputs: Mapping[str, Sequence[Tensor]], attrs: Mapping[str, Any]) -> Mapping[str, Any]:
        return _compute(op, rule, {slot: found[0] for slot, found in inputs.items() if found}, attrs)

    return compute


def _compute(op: OpDef, rule: ScalarRule, inputs: Mapping[str, Tensor], attrs: Mapping[str, Any]) -> dict[str, Tensor]:
    traced = trace_scalars(rule, op, attrs, inputs)
    axis = attrs.get("axis", -1)
    said = rule.placed(_Operands(inputs, attrs)) if rule.placed is not None else {}
    rank = max(map(len, said.values()) if said else (x.rank for x in inputs.values()))
    placed = {
        slot: reshape(x, said[slot]) if slot in said else _placed(x, rank, axis if isinstance(axis, int) else -1)
        for slot, x in inputs.items()
    }
    evaluator = _Evaluator(placed, attrs)
    found = {}
    for slot, expression in zip(traced.outputs, traced.expressions, strict=True):
        like = slot.removesuffix(GRAD)
        value = evaluator.tensor(expression)
        if slot.endswith(GRAD) and like in inputs:  # what was broadcast is summed
            found[slot] = reshape(sum_to(value, placed[like].dims), inputs[like].dims)
        else:
            found[slot] = value
    return found


class _Operands:
    """The operands of a trace, for an operator that says where they lie."""

    def __init__(self, inputs: Mapping[str, Tensor], attrs: Mapping[str, Any]) -> None:
        self._inputs, self._attrs = inputs, attrs

    def dims(self, slot: str) -> tuple[Any, ...]:
        """The dims of a slot's operand."""
        return self._inputs[slot].dims

    def attr(self, name: str) -> Any:
        """An attribute."""
        return self._attrs[name]


def _placed(x: Tensor, rank: int, axis: int) -> Tensor:
    """An operand among ``rank`` dims by Fluid's rule, 1 where it is broadcast."""
    dims = place(x.dims, rank, axis)  # type: ignore[arg-type]
    if dims is None:
        raise ProgramError(f"an operand of dims {list(x.dims)} has no place among {rank} dims from axis {axis}")
    return x if len(dims) == x.rank else reshape(x, dims)


class _Evaluator:
    """Scalar expressions over tensors of one rank."""

    def __init__(self, inputs: Mapping[str, Tensor], attrs: Mapping[str, Any]) -> None:
        self.inputs, self.attrs = inputs, attrs
        self.known: dict[Expr, Any] = {}
        self.full = next(iter(inputs.values()))
        self.domain = joint_dims([x.dims for x in inputs.values()])

    def tensor(self, x: Expr) -> Tensor:
        """The value of an expression, as a tensor."""
        found = self.value(x)
        return found if isinstance(found, Tensor) else _filled(found, self.full)

    def value(self, x: Expr) -> Any:
        """The value of an expression: a tensor, or a number."""
        if x not in self.known:
            self.known[x] = self._value(x)
        return self.known[x]

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
            return broadcast_to(value, shape.dims) if isinstance(value, Tensor) else _filled(value, shape)
        if x.op == "cast":
            return cast(args[0], x.value) if isinstance(args[0], Tensor) else args[0]
        chosen = any(isinstance(arg, Tensor) for arg in args[1:])
        if x.op == "where" and not isinstance(args[0], Tensor):  # attributes decide
            if not chosen:
                return apply("where", *args)
            args[0] = constant(args[0], "bool")
        elif x.op == "where" and not chosen and self.full.dtype in ALL_FLOATS:
            args[1] = tensor("number", (), (number(args[1]),), (), wide(self.full).dtype)  # a choice of its numbers
        return function(x.op, *args)


def _filled(value: float | Number, like: Tensor) -> Tensor:
    """A number everywhere."""
    return broadcast_to(tensor("number", (), (number(value),), (), like.dtype), like.dims)
