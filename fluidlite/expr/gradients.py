"""Gradient operators of operators that are functions of tensors: derived, of any order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fluidlite.base.dtypes import ALL_FLOATS, is_float
from fluidlite.expr.attributes import need_dims, need_dtype
from fluidlite.expr.calls import infer
from fluidlite.expr.decompose import decompose
from fluidlite.expr.derivative_rules import zeros_like
from fluidlite.expr.derivatives import derivatives
from fluidlite.expr.scalars import Function, tensor_function
from fluidlite.expr.step_derivatives import arranged_back, parts_of
from fluidlite.expr.tensor import Tensor, broadcast_to, replaced, symbol, tensor, wide
from fluidlite.expr.tracing import current, known_results, spelled_out
from fluidlite.expr.views import reshape
from fluidlite.program import derived
from fluidlite.program.derived import Derived
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD, Infer, OpDef, Slot
from fluidlite.program.rules import ExpressionRule, GradRule
from fluidlite.tensor.tensor_spec import Spec, all_agree, specs_of


def function_of(op: OpDef) -> Function | None:
    """The function of tensors that an operator is, by slots; None if it is said otherwise."""
    return op.expression.function if op.expression is not None else tensor_function(op)


def gradient_of(
    op: OpDef, computed: Function, writes: Sequence[str], suffix: str = GRAD, by_dims: Collection[str] = ()
) -> Function:
    """The function of an operator's gradient operator: derived, with saved outputs in place of what is computed again.

    ``op``: the forward operator.
    ``computed``: what it computes.
    ``writes``: input slots, those whose gradients are made.
    ``suffix``: what names the slots of gradients.
    ``by_dims``: output slots of which the gradient operator is given the dims alone, for a function that reads these.
    Those of others it reads off their gradients.
    """

    def function(operands: Mapping[str, Sequence[Tensor]], attrs: Mapping[str, Any]) -> Mapping[str, Any]:
        inputs = {slot: found for slot, found in operands.items() if op.input(slot) is not None}
        apart = _apart(inputs)
        told = {slot.name: slot.name + ("" if slot.name in by_dims else suffix) for slot in op.outputs}
        known = {slot: [(x.dims, x.dtype) for x in operands[by]] for slot, by in told.items() if by in operands}
        with spelled_out(), known_results(known):
            made = computed(apart, attrs)
        outputs = {slot: (x,) if isinstance(x, Tensor) else tuple(x) for slot, x in made.items()}
        results, seeds, saved = [], [], {}
        for slot, found in outputs.items():
            weights = operands.get(slot + suffix, (None,) * len(found))
            for x, weight in zip(found, weights, strict=True):
                results.append(x)
                seeds.append(None if weight is None else broadcast_to(wide(weight), x.dims))
                if weight is not None:
                    need_dims(weight, x.dims, slot + suffix, slot)
                    need_dtype(weight, [x], slot + suffix)
            for x, kept in zip(found, operands.get(slot, ()) if slot not in by_dims else (), strict=False):
                need_dims(kept, x.dims, slot, f"what {op.type} makes")
                saved[x] = _like(wide(kept), x)
                while x.op in ("reshape", "arrange"):  # what it is a view of, or has in another order, is there, too
                    part, whole = x.args[0], saved[x]
                    saved[part] = reshape(whole, part.dims) if x.op == "reshape" else arranged_back(x, whole)
                    x = part
                saved |= parts_of(x, saved[x])
        sources = [x for slot in writes for x in apart.get(slot, ()) if x.dtype in ALL_FLOATS]
        there = {x: y for slot, row in apart.items() for x, y in zip(row, inputs[slot], strict=True) if x is not y}
        by = {**there, **{x: replaced(kept, there) for x, kept in saved.items()}}
        with_saved = [replaced(x, by) if x is not None else None for x in derivatives(results, seeds, sources)]
        parts = iter(with_saved)
        written: dict[str, tuple[Tensor, ...]] = {}
        for slot in writes:
            row = []
            for x in inputs.get(slot, ()):
                part = next(parts) if x.dtype in ALL_FLOATS else None
                row.append(zeros_like(x) if part is None else part)
            if row:
                written[slot + suffix] = tuple(row)
        return written

    return function


def _apart(operands: Mapping[str, Sequence[Tensor]]) -> dict[str, Sequence[Tensor]]:
    """Operands none of which is made of another one, or is another one: a derivative would go through both.

    In an expression of several operators, one may be given the same tensor twice, or a tensor and what was made of it.
    """
    known: set[Tensor] = set()
    found: dict[str, Sequence[Tensor]] = {}
    for slot, row in operands.items():
        others = []
        for x in row:
            if isinstance(x, Tensor):  # numbers that are read as values are apart anyway
                if x.dtype in ALL_FLOATS and (x in known or x.args):
                    x = symbol(slot, len(current().tensors), x.dims, x.dtype)
                known.add(x)
            others.append(x)
        found[slot] = others
    return found


def _like(x: Tensor, other: Tensor) -> Tensor:
    """A saved output in the place of what computes it: its dims are equal, under names of its own."""
    return x if x.dtype == other.dtype else tensor("cast", (x,), (), x.dims, other.dtype)


def infer_gradient(suffix: str) -> Infer:
    """Return the inference of a gradient operator: each gradient is as its input; the expression is traced too."""

    def inferred(call: Any) -> Any:
        found = infer(call)
        base = {slot: slot.removesuffix(suffix) for slot in found}
        return {
            slot: [spec.with_(value=None) for spec in call.specs(base[slot])] if call.has(base[slot]) else spec
            for slot, spec in found.items()
        }

    return inferred


def infer_by_forward(forward: Infer) -> Infer:
    """Return the inference of a gradient operator of one that infers itself: its results' gradients have their dims."""

    def inferred(call: Call) -> Mapping[str, Sequence[Spec]]:
        bases = [slot.name.removesuffix(GRAD) for slot in call.op.outputs]
        dtype = call.dtype(bases[0])
        for slot, made in forward(call).items():
            given = slot + GRAD
            for spec, found in zip(specs_of(made), call.specs(given) if call.has(given) else (), strict=False):
                if not all_agree(found.dims, spec.dims):
                    call.fail(given, f"{list(spec.dims)}, the dims of {slot}")
                if is_float(found.dtype) and found.dtype != dtype:
                    call.fail_dtype(given, f"{dtype}, the dtype of {bases[0]}", do="use layers.cast on one of the two")
        return {base + GRAD: [spec.with_(value=None) for spec in call.specs(base)] for base in bases if call.has(base)}

    return inferred


def derive(op: OpDef, type: str) -> Derived | None:
    """An operator's gradient operator, which takes the gradients of all its outputs, and the rule that asks for it.

    It reads the inputs; of those that are updated in place, and have no gradient, the dims alone, and what the operator
    saves for backward in their stead. Of outputs whose dims its expression does not say, it reads the dims.
    """
    computed = function_of(op)
    if computed is None:
        return None
    order = max(_order(slot.name) for slot in op.outputs) + 1
    suffix = GRAD if order == 1 else f"{GRAD}{order}"
    updated = op.no_gradient.keys() & set(op.must_alias.values())
    inputs = [replace(slot, metadata_only=slot.metadata_only or slot.name in updated) for slot in op.inputs]
    saved = [Slot(slot.name, dispensable=True) for slot in op.outputs if updated and slot.intermediate]
    inferred = op.expression is not None and op.expression.inferred
    dims = [replace(slot, metadata_only=True) for slot in op.outputs if inferred and not slot.intermediate]
    written = [slot for slot in inputs if op.stops(slot.name) is None and not slot.unread]
    writes = tuple(slot.name for slot in written)
    seeds = tuple(
        Slot(slot.name + suffix, dispensable=True, duplicable=slot.duplicable)
        for slot in op.outputs
        if op.stops(slot.name) is None
    )
    reads = (*inputs, *saved, *dims, *seeds)
    rule = GradRule(type, tuple(slot.name for slot in reads), writes, suffix=suffix)
    made = OpDef(
        type=type,
        inputs=reads,
        outputs=tuple(Slot(slot.name + suffix, dispensable=True, duplicable=slot.duplicable) for slot in written),
        attrs=op.attrs,
        infer=infer_gradient(suffix),
        kernel_dtype=op.kernel_dtype,
        expression=ExpressionRule(gradient_of(op, computed, writes, suffix, [slot.name for slot in dims])),
        decompose=decompose,
        origin=op.origin,
        doc=f"the gradient of {op.type}",
    )
    return rule, made


def _order(slot: str) -> int:
    """1 of ``X@GRAD``, 2 of ``X@GRAD2``; 0 of what is no gradient."""
    _, mark, order = slot.rpartition(GRAD)
    return int(order or 1) if mark else 0


derived.derive = derive
