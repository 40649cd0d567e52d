"""The operators that elementwise parts of expressions are."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from fluidlite.codegen.expr import Expr
from fluidlite.framework.opdef import Attr, OpDef, ScalarRule, Slot
from fluidlite.framework.spec import Spec


def slots(count: int) -> tuple[str, ...]:
    """The output slots of an operator that has so many."""
    return tuple(f"Out{k or ''}" for k in range(count))


def definition(
    expressions: tuple[Expr, ...],
    operands: int,
    numbers: int,
    dtypes: tuple[str, ...],
    updated: Iterable[tuple[str, str]],
) -> OpDef:
    """An elementwise operator of tensors, each with as many elements along a dim as the results, or 1.

    Where the results have 1 and a tensor has more, they are sums. ``updated``: outputs that are an operand's variable.
    """
    made = slots(len(dtypes))

    def function(*given: Any, **attrs: Any) -> tuple[Expr, ...]:
        return expressions

    kinds = inspect.Parameter
    function.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
        *(kinds(f"a{k}", kinds.POSITIONAL_OR_KEYWORD) for k in range(operands)),
        *(kinds(f"n{k}", kinds.KEYWORD_ONLY) for k in range(numbers)),
    ])  # fmt: skip
    return OpDef(
        type="elementwise_part",
        inputs=tuple(Slot(f"A{k}") for k in range(operands)),
        outputs=tuple(map(Slot, made)),
        attrs=(Attr("dims", "ints"), *(Attr(f"n{k}", "float") for k in range(numbers))),
        infer=lambda call: {slot: Spec.of(call.attr("dims"), dtype) for slot, dtype in zip(made, dtypes, strict=True)},
        scalar=ScalarRule(function, made),
        must_alias=dict(updated),
        doc="an elementwise part of an expression",
    )
