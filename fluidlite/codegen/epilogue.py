"""Operators that fuse a matmul or convolution with an elementwise epilogue, and epilogues that are accumulations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Union
from weakref import WeakValueDictionary

from fluidlite.base.dtypes import FLOATS, NUMPY, compute_dtype
from fluidlite.base.errors import ProgramError
from fluidlite.base.fork import new_lock
from fluidlite.codegen.domain import domain_of
from fluidlite.codegen.lower import typed_of
from fluidlite.codegen.typed import Typed
from fluidlite.program.epilogue import ELEMENTWISE_PREFIX, Epilogue, then_call
from fluidlite.program.op_call import Call, cached_in_call
from fluidlite.program.opdef import Attr, OpDef, Slot
from fluidlite.program.rules import ScalarRule
from fluidlite.tensor.tensor_spec import Spec

Pairs = tuple[tuple[str, str], ...]

_fused_operators: WeakValueDictionary[tuple[Any, ...], OpDef] = WeakValueDictionary()
_lock = new_lock()


def product_with(
    product: OpDef,
    out: str,
    then: OpDef,
    result_slot: str,
    reads: Sequence[str],
    stores: Sequence[str],
    must_alias: Pairs = (),
    may_alias: Pairs = (),
) -> OpDef:
    """Return the operator of a product with an epilogue; the same object for the same arguments while it is in use.

    Its inputs are those of the product and ``With0``, ``With1``, ..., its outputs ``Out0``, ``Out1``, ...

    ``out``, ``result_slot``: the slot of the product's result, and the slot in which ``then`` reads it.
    ``reads``, ``stores``: slots of ``then``: its other inputs, and its outputs.
    ``must_alias``, ``may_alias``: pairs of an output and an input of the fused operator.
    """
    key = (id(product), out, id(then), result_slot, tuple(reads), tuple(stores), must_alias, may_alias)
    with _lock:
        op = _fused_operators.get(key)
        if op is None:
            inputs = {slot: f"With{k}" for k, slot in enumerate(reads)}
            outputs = {slot: f"Out{k}" for k, slot in enumerate(stores)}
            rule = Epilogue(product, out, then, result_slot, inputs, outputs)
            op = _fused_operators[key] = _definition(rule, dict(must_alias), dict(may_alias))
    return op


def _definition(rule: Epilogue, must_alias: dict[str, str], may_alias: dict[str, str]) -> OpDef:
    product, then = rule.product, rule.then

    def infer(call: Call) -> dict[str, Spec]:
        inner = then_call(call)
        assert then.infer is not None
        outputs = then.infer(inner)
        specs = {}
        for slot, whole in rule.outputs.items():
            if call.has(whole):
                row = outputs[slot]
                specs[whole] = row if isinstance(row, Spec) else row[0]
        return specs

    def decompose(call: Call, build: Any) -> None:
        ins = {slot: [build.input(slot, k) for k in range(call.count(slot))] for slot in call.ins}
        attrs = {attr.name: call.attrs[attr.name] for attr in product.attrs}
        product_ins = {slot: values for slot, values in ins.items() if product.input(slot) is not None}
        product_out = build(product, product_ins, {rule.out: None}, attrs)
        rest = {rule.product_slot: product_out, **{s: ins[whole] for s, whole in rule.inputs.items() if whole in ins}}
        outs = {slot: build.output(whole) for slot, whole in rule.outputs.items() if call.has(whole)}
        build(then, rest, outs, rule.then_attrs(call.attrs))

    slots = [replace(slot, name=rule.inputs[slot.name]) for slot in then.inputs if slot.name in rule.inputs]
    name = then.type.removeprefix("fused.").removeprefix("elementwise_")
    return OpDef(
        f"fused.{product.type}_{name}",
        (*product.inputs, *slots),
        tuple(map(Slot, rule.outputs.values())),
        (*product.attrs, *[replace(attr, name=ELEMENTWISE_PREFIX + attr.name) for attr in then.attrs]),
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
    (Slot("X"), Slot("Product")),
    (Slot("Out"),),
    (Attr("scale", "float", 1.0),),
    infer=_infer_accumulate,
    scalar=ScalarRule(lambda x, product, *, scale: scale * x + product, ("Out",)),
    doc="Out = scale X + Product",
    origin="made by fusion",
)
"""The epilogue of a product that accumulates into existing values."""


def epilogue_mismatch(call: Call) -> str | None:
    """The reason why a call's epilogue does not map each element of the product to one of each output, or None."""
    rule = call.op.epilogue
    assert rule is not None
    then = then_call(call)
    if not then.is_static:
        return None
    scalar = then.op.scalar
    reason = scalar.refuse(then) if scalar is not None else None
    if reason is None:
        dims = then.dims(rule.product_slot)
        try:
            if {*map(then.dims, then.outs)} != {dims} or domain_of(then).dims != dims:
                reason = "it works on other elements than those of the product"
        except ProgramError as exc:
            reason = str(exc)
    return f"of its epilogue: {reason}" if reason is not None else None


# Epilogues that are accumulations


@dataclass(frozen=True)
class Accumulation:
    """An epilogue ``scale * X + factor * product``; X has the dims of the product.

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


@cached_in_call
def accumulation(call: Call) -> Union[Accumulation, str]:
    """The accumulation that a call's epilogue is, or the reason why it is none."""
    rule = call.op.epilogue
    assert rule is not None
    reason = epilogue_mismatch(call)
    if reason is not None:
        return reason
    then = then_call(call)
    code = typed_of(then)
    if len(code.outputs) != 1:
        return "it stores several values"
    ((slot, dtype, value),) = code.outputs
    terms = _terms(code, value, then)
    if terms is None or len(terms) != 2 or rule.product_slot not in terms:
        return "its epilogue is no sum with one tensor"
    (other,) = terms.keys() - {rule.product_slot}
    product_spec = then.spec(rule.product_slot)
    dtypes = then.dtype(slot), then.dtype(other), product_spec.dtype  # the code has no casts of halves
    if dtypes != (dtype,) * 3 or then.dims(slot) != product_spec.dims or then.dims(other) != product_spec.dims:
        return "its epilogue adds a tensor of other dims or another dtype"
    number = NUMPY[compute_dtype(dtype)].type
    if not (number(terms[other]) and number(terms[rule.product_slot])):
        return "its epilogue multiplies by zero"  # an accumulation would omit the term, and NaN in it
    return Accumulation(rule.inputs[other], rule.outputs[slot], terms[other], terms[rule.product_slot])


def _terms(code: Typed, value: int, call: Call) -> dict[str, float] | None:
    """A value as a sum of tensors times numbers, by slot; None if it is none, or would lose a rounding."""
    instr = code.instrs[value]
    if instr.dtype not in FLOATS:
        return None
    if instr.op == "input":
        return {instr.value: 1.0}
    if instr.op not in ("add", "mul"):
        return None
    if instr.op == "mul":
        for number, tensor in (instr.args, instr.args[::-1]):
            factor, inner = _number(code, number, call), code.instrs[tensor]
            if factor is not None and inner.op == "input":
                return {inner.value: factor}
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
