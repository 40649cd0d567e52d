"""Operators of the elementwise parts of decomposed expressions."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fluidlite.codegen.expr import Expr
from fluidlite.expr.number import Number, number
from fluidlite.expr.reductions import sum_to
from fluidlite.expr.scalars import function_of_scalar_rule
from fluidlite.expr.tensor import Tensor, broadcast_to
from fluidlite.program.opdef import Attr, OpDef, Slot
from fluidlite.program.rules import ExpressionRule, ScalarRule
from fluidlite.tensor.tensor_spec import Spec


def slots(count: int) -> tuple[str, ...]:
    """The names of ``count`` output slots."""
    return tuple(f"Out{k or ''}" for k in range(count))


def definition(
    expressions: tuple[Expr, ...],
    operands: int,
    numbers: int,
    dtypes: tuple[str, ...],
    updated: Iterable[tuple[str, str]],
) -> OpDef:
    """An elementwise operator; each operand has the dims of the results, or 1 where it is broadcast.

    Results are sums along dims in which they have 1 and an operand has more. ``updated``: pairs of an output and the
    operand that it updates in place.
    """
    outs = slots(len(dtypes))

    def function(*symbols: Any, **attrs: Any) -> tuple[Expr, ...]:
        return expressions

    kinds = inspect.Parameter
    operand_names = [kinds(f"a{k}", kinds.POSITIONAL_OR_KEYWORD) for k in range(operands)]
    number_names = [kinds(f"n{k}", kinds.KEYWORD_ONLY) for k in range(numbers)]
    function.__signature__ = inspect.Signature([*operand_names, *number_names])  # type: ignore[attr-defined]

    def of_tensors(inputs: Mapping[str, Sequence[Tensor]], attrs: Mapping[str, Any]) -> Mapping[str, Tensor]:
        dims = tuple(map(number, attrs["dims"]))
        compute = function_of_scalar_rule(elementwise)
        assert compute is not None
        return {slot: _fit_dims(x, dims) for slot, x in compute(inputs, attrs).items()}

    elementwise = OpDef(
        type="elementwise_part",
        inputs=tuple(Slot(f"A{k}") for k in range(operands)),
        outputs=tuple(map(Slot, outs)),
        attrs=(Attr("dims", "ints"), *(Attr(f"n{k}", "float") for k in range(numbers))),
        infer=lambda call: {slot: Spec.of(call.attr("dims"), dtype) for slot, dtype in zip(outs, dtypes, strict=True)},
        scalar=ScalarRule(function, outs),
        must_alias=dict(updated),
        doc="an elementwise part of an expression",
        expression=ExpressionRule(of_tensors),
    )
    return elementwise


def _fit_dims(x: Tensor, dims: Sequence[Number]) -> Tensor:
    """The tensor broadcast to ``dims`` where it has 1, and summed where ``dims`` has 1 and it has more."""
    lead = len(dims) - x.rank
    pairs = zip(x.dims, dims[lead:], strict=True)
    return sum_to(broadcast_to(x, [*dims[:lead], *(n if mine.key == "1" else mine for mine, n in pairs)]), dims)
