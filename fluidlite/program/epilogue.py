"""A product and what is computed of each element of it, as one operator: its kernels are the product's that take it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fluidlite.program.op_call import Call
from fluidlite.program.opdef import OpDef
from fluidlite.tensor.tensor_spec import Spec, specs_of

THEN = "then."
"""What the names of the second operator's attributes begin with."""


@dataclass(frozen=True, eq=False)
class Epilogue:
    """What an operator with an epilogue is made of.

    Attributes
    ----------
    product : OpDef
        Its inputs and attributes keep their names.
    out : str
        The slot of its result, which is stored nowhere.
    then : OpDef
        Elementwise, of the result and others; it has an expression.
    given : str
        The slot in which it reads the result.
    inputs, outputs : mapping of slot of ``then`` to slot of the whole
        All but ``given``.
    """

    product: OpDef
    out: str
    then: OpDef
    given: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    def product_call(self, call: Call) -> Call:
        """The product alone, of a call of the whole."""
        return call.once("product", self._product_call)

    def _product_call(self, call: Call) -> Call:
        ins = {slot: specs for slot, specs in call.ins.items() if self.product.input(slot) is not None}
        attrs = {attr.name: call.attrs[attr.name] for attr in self.product.attrs}
        asked = Call(self.product, ins, {self.out: (Spec.of((), "float32"),)}, attrs, call.place, call.training)
        assert self.product.infer is not None
        found = self.product.infer(asked)[self.out]
        return asked.with_outs({self.out: specs_of(found)})

    def then_call(self, call: Call) -> Call:
        """What is computed of the product, of a call of the whole."""
        return call.once("then", self._then_call)

    def _then_call(self, call: Call) -> Call:
        product = self.product_call(call)
        ins = {
            slot.name: product.outs[self.out] if slot.name == self.given else call.ins[self.inputs[slot.name]]
            for slot in self.then.inputs
            if slot.name == self.given or (slot.name in self.inputs and call.has(self.inputs[slot.name]))
        }
        outs = {slot: call.outs[whole] for slot, whole in self.outputs.items() if call.has(whole)}
        return Call(self.then, ins, outs, self.then_attrs(call.attrs), call.place, call.training)

    def then_attrs(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes of the second operator."""
        return {attr.name: attrs[THEN + attr.name] for attr in self.then.attrs}
