"""An operator fused with an elementwise epilogue; its kernels are those of the product that accept an epilogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fluidlite.program.op_call import PLACEHOLDER, Call, cached_in_call
from fluidlite.program.opdef import OpDef
from fluidlite.tensor.tensor_spec import specs_of

ELEMENTWISE_PREFIX = "then."
"""Prefix of the names of the epilogue's attributes."""


@dataclass(frozen=True, eq=False)
class Epilogue:
    """The two operators of an operator with an epilogue.

    ``product``: the first operator; its inputs and attributes keep their names.
    ``out``: the slot of its result, which is not materialized.
    ``then``: the epilogue, an elementwise operator with an expression.
    ``given``: the slot in which the epilogue reads the result.
    ``inputs``, ``outputs``: the other slots of the epilogue, with their names in the fused operator.
    """

    product: OpDef
    out: str
    then: OpDef
    product_slot: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    def then_attrs(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes of the epilogue."""
        return {attr.name: attrs[ELEMENTWISE_PREFIX + attr.name] for attr in self.then.attrs}


@cached_in_call
def product_call(call: Call) -> Call:
    """Return the call of the product, without the epilogue."""
    rule = call.op.epilogue
    assert rule is not None and rule.product.infer is not None
    ins = {slot: specs for slot, specs in call.ins.items() if rule.product.input(slot) is not None}
    attrs = {attr.name: call.attrs[attr.name] for attr in rule.product.attrs}
    product = Call(rule.product, ins, {rule.out: (PLACEHOLDER,)}, attrs, call.place, call.training)
    results = rule.product.infer(product)[rule.out]
    return product.with_outs({rule.out: specs_of(results)})


@cached_in_call
def then_call(call: Call) -> Call:
    """Return the call of the epilogue."""
    rule = call.op.epilogue
    assert rule is not None
    product = product_call(call)
    ins = {
        slot.name: product.outs[rule.out] if slot.name == rule.product_slot else call.ins[rule.inputs[slot.name]]
        for slot in rule.then.inputs
        if slot.name == rule.product_slot or (slot.name in rule.inputs and call.has(rule.inputs[slot.name]))
    }
    outs = {slot: call.outs[fused_slot] for slot, fused_slot in rule.outputs.items() if call.has(fused_slot)}
    return Call(rule.then, ins, outs, rule.then_attrs(call.attrs), call.place, call.training)
