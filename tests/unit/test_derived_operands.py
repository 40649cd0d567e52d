"""A derived gradient inside a larger expression: operands that are one, or made of each other, are apart in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import fluidlite as fluid
from fluidlite import expr as e
from fluidlite.expr.gradients import function_of, gradient_of
from fluidlite.expr.tensor import Tensor, substituted, symbol
from fluidlite.expr.tracing import tracing
from fluidlite.program.registry import ops

OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "the same": lambda x: x,
    "made of it": lambda x: e.exp(x),
    "a view of it": lambda x: e.reshape(e.reshape(x, (3, 4)), (4, 3)),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("type", ["elementwise_mul", "elementwise_div", "elementwise_max", "elementwise_mul_grad"])
def test_each_operand_has_its_own_derivative(type: str, name: str) -> None:
    fluid.places()
    op = ops.get(type)
    function = function_of(op)
    assert function is not None
    attrs = {attr.name: attr.default for attr in op.attrs}
    writes = ("X", "Y")
    with tracing({}):
        x, y, d, other = (symbol(slot, 0, (4, 3), "float64") for slot in ("X", "Y", "D", "Other"))
        given = {"Out@GRAD": (d,)} if type.endswith("_grad") else {}
        seeds = {slot.name + "@S": (d if k == 0 else other,) for k, slot in enumerate(op.outputs)}
        derived = gradient_of(op, function, writes, "@S")
        apart = derived({"X": (x,), "Y": (y,), **given, **seeds}, attrs)
        made = OTHERS[name](x)
        together = derived({"X": (x,), "Y": (made,), **given, **seeds}, attrs)
        for slot in writes:
            (wanted,), (found,) = apart[slot + "@S"], together[slot + "@S"]
            assert found is substituted(wanted, {y: made})
