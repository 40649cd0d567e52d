"""A product and what is computed of each element of it, as one operator: its kernels are the product's that take it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fluidlite.program.op_call import PLACEHOLDER, Call, once
from fluidlite.program.opdef import OpDef
from fluidlite.tensor.tensor_spec import specs_of

THEN = "then."
"""What the names of the second operator's attributes begin with."""


@dataclass(frozen=True, eq=False)
class Epilogue:
    """What an operator with an epilogue is made of.

    ``product``: its inputs and attributes keep their names.
    ``out``: the slot of its result, which is stored nowhere.
    ``then``: elementwise, of the result and others; it has an expression.
    ``given``: the slot in which it reads the result.
    ``inputs``, ``outputs``: all but ``given``.
    """

    product: OpDef
    out: str
    then: OpDef
    given: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    def then_attrs(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes of the second operator."""
        return {attr.name: attrs[THEN + attr.name] for attr in self.then.attrs}


@once
def product_call(call: Call) -> Call:
    """The product alone, of a call of the whole."""
    rule = call.op.epilogue
    assert rule is not None and rule.product.infer is not None
    ins = {slot: specs for slot, specs in call.ins.items() if rule.product.input(slot) is not None}
    attrs = {attr.name: call.attrs[attr.name] for attr in rule.product.attrs}
    asked = Call(rule.product, ins, {rule.out: (PLACEHOLDER,)}, attrs, call.place, call.training)
    found = rule.product.infer(asked)[rule.out]
    return asked.with_outs({rule.out: specs_of(found)})


@once
def then_call(call: Call) -> Call:
    """What is computed of the product, of a call of the whole."""
    rule = call.op.epilogue
    assert rule is not None
    product = product_call(call)
    ins = {
        slot.name: product.outs[rule.out] if slot.name == rule.given else call.ins[rule.inputs[slot.name]]
        for slot in rule.then.inputs
        if slot.name == rule.given or (slot.name in rule.inputs and call.has(rule.inputs[slot.name]))
    }
    outs = {slot: call.outs[whole] for slot, whole in rule.outputs.items() if call.has(whole)}
    return Call(rule.then, ins, outs, rule.then_attrs(call.attrs), call.place, call.training)
