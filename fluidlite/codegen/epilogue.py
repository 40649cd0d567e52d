"""Operators that are a product with an epilogue, made on the fly; and epilogues that a product's own sum can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Union
from weakref import WeakValueDictionary

from fluidlite.base.dtypes import FLOATS
from fluidlite.base.errors import ProgramError
from fluidlite.base.fork import new_lock
from fluidlite.codegen.domain import domain_of
from fluidlite.codegen.lower import typed_of
from fluidlite.codegen.typed import Typed
from fluidlite.program.epilogue import THEN, Epilogue, then_call
from fluidlite.program.op_call import Call, once
from fluidlite.program.opdef import Attr, OpDef, Slot
from fluidlite.program.rules import ScalarRule
from fluidlite.tensor.tensor_spec import Spec

Pairs = tuple[tuple[str, str], ...]

_made: WeakValueDictionary[tuple[Any, ...], OpDef] = WeakValueDictionary()
_lock = new_lock()


def product_with(
    product: OpDef,
    out: str,
    then: OpDef,
    given: str,
    reads: Sequence[str],
    stores: Sequence[str],
    must_alias: Pairs = (),
    may_alias: Pairs = (),
) -> OpDef:
    """Return the operator that is a product with an epilogue; while it is in use, the same parts give the same one.

    Its inputs are the product's and ``With0``, ``With1``, ..., its outputs ``Out0``, ``Out1``, ...

    ``out``, ``given``: the slot of the product's result, and that in which ``then`` reads it.
    ``reads``, ``stores``: slots of ``then``: its other inputs, and its outputs.
    ``must_alias``, ``may_alias``: pairs of an output and an input, slots of the whole.
    """
    key = (id(product), out, id(then), given, tuple(reads), tuple(stores), must_alias, may_alias)
    with _lock:
        found = _made.get(key)
        if found is None:
            inputs = {slot: f"With{k}" for k, slot in enumerate(reads)}
            outputs = {slot: f"Out{k}" for k, slot in enumerate(stores)}
            rule = Epilogue(product, out, then, given, inputs, outputs)
            found = _made[key] = _definition(rule, dict(must_alias), dict(may_alias))
    return found


def _definition(rule: Epilogue, must_alias: dict[str, str], may_alias: dict[str, str]) -> OpDef:
    product, then = rule.product, rule.then

    def infer(call: Call) -> dict[str, Spec]:
        inner = then_call(call)
        assert then.infer is not None
        found = then.infer(inner)
        specs = {}
        for slot, whole in rule.outputs.items():
            if call.has(whole):
                made = found[slot]
                specs[whole] = made if isinstance(made, Spec) else made[0]
        return specs

    def decompose(call: Call, build: Any) -> None:
        ins = {slot: [build.input(slot, k) for k in range(call.count(slot))] for slot in call.ins}
        attrs = {attr.name: call.attrs[attr.name] for attr in product.attrs}
        given = {slot: values for slot, values in ins.items() if product.input(slot) is not None}
        made = build(product, given, {rule.out: None}, attrs)
        rest = {rule.given: made, **{s: ins[whole] for s, whole in rule.inputs.items() if whole in ins}}
        outs = {slot: build.output(whole) for slot, whole in rule.outputs.items() if call.has(whole)}
        build(then, rest, outs, rule.then_attrs(call.attrs))

    slots = [replace(slot, name=rule.inputs[slot.name]) for slot in then.inputs if slot.name in rule.inputs]
    name = then.type.removeprefix("fused.").removeprefix("elementwise_")
    return OpDef(
        f"fused.{product.type}_{name}",
        (*product.inputs, *slots),
        tuple(map(Slot, rule.outputs.values())),
        (*product.attrs, *[replace(attr, name=THEN + attr.name) for attr in then.attrs]),
        infer=infer,
        decompose=decompose,
        kernel_dtype=product.kernel_dtype,
        epilogue=rule,
        must_alias=must_alias,
        may_alias=may_alias,
        doc=f"{product.doc or product.type}; {then.doc or then.type}",
        origin="made by fusion",
    )


def _infer_accumulate(call: Call) -> dict[str, Spec]:
    return {"Out": call.spec("X")}


ACCUMULATE = OpDef(
    "accumulate",
    (Slot("X"), Slot("Given")),
    (Slot("Out"),),
    (Attr("scale", "float", 1.0),),
    infer=_infer_accumulate,
    scalar=ScalarRule(lambda x, given, *, scale: scale * x + given, ("Out",)),
    doc="Out = scale X + Given",
    origin="made by fusion",
)
"""What a product does that adds to what is there."""


def unfit(call: Call) -> str | None:
    """Why a call's epilogue does not make one element of each output of each element of the product, or None."""
    rule = call.op.epilogue
    assert rule is not None
    then = then_call(call)
    if not then.known:
        return None
    scalar = then.op.scalar
    reason = scalar.refuse(then) if scalar is not None else None
    if reason is None:
        dims = then.dims(rule.given)
        try:
            if {*map(then.dims, then.outs)} != {dims} or domain_of(then).dims != dims:
                reason = "it works on other elements than those of the product"
        except ProgramError as exc:
            reason = str(exc)
    return f"of its epilogue: {reason}" if reason is not None else None


# Epilogues that are sums


@dataclass(frozen=True)
class Accumulation:
    """An epilogue that is ``scale * X + factor * product``, X as large as the product.

    Attributes
    ----------
    slot, out : str
        The slots of X and of the result.
    scale, factor : float
    """

    slot: str
    out: str
    scale: float
    factor: float


@once
def accumulation(call: Call) -> Union[Accumulation, str]:
    """A call with an epilogue as a sum with what is there, or the reason why it is none."""
    rule = call.op.epilogue
    assert rule is not None
    reason = unfit(call)
    if reason is not None:
        return reason
    then = then_call(call)
    code = typed_of(then)
    if len(code.outputs) != 1:
        return "it stores several values"
    ((slot, dtype, value),) = code.outputs
    terms = _terms(code, value, then)
    if terms is None or len(terms) != 2 or rule.given not in terms:
        return "its epilogue is no sum with one tensor"
    (other,) = terms.keys() - {rule.given}
    given = then.spec(rule.given)
    if any([then.dtype(each) != dtype or then.dims(each) != given.dims for each in (slot, other)]):
        return "its epilogue adds a tensor of other dims or another dtype"
    if not (terms[other] and terms[rule.given]):
        return "its epilogue multiplies by zero"  # which a sum would leave out, and with it NaN
    return Accumulation(rule.inputs[other], rule.outputs[slot], terms[other], terms[rule.given])


def _terms(code: Typed, value: int, call: Call) -> dict[str, float] | None:
    """A value as a sum of tensors, each times a number; None if it is none, or a rounding would be left out."""
    instr = code.instrs[value]
    if instr.dtype not in FLOATS:
        return None
    if instr.op == "input":
        return {instr.value: 1.0}
    if instr.op not in ("add", "mul"):
        return None
    if instr.op == "mul":
        for number, tensor in (instr.args, instr.args[::-1]):
            known, inner = _number(code, number, call), code.instrs[tensor]
            if known is not None and inner.op == "input":
                return {inner.value: known}
        return None
    first, second = (_terms(code, arg, call) for arg in instr.args)
    if first is None or second is None or len(first) > 1 or len(second) > 1 or first.keys() & second.keys():
        return None
    return {**first, **second}


def _number(code: Typed, value: int, call: Call) -> float | None:
    instr = code.instrs[value]
    if instr.op == "const":
        return float(instr.value)
    if instr.op == "scalar":
        return float(code.values(call.attrs)[instr.value])
    return None


__all__ = ["ACCUMULATE", "Accumulation", "accumulation", "product_with", "unfit"]
