"""Derives the gradient operators of operators that are functions of tensors, to any order."""

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
from fluidlite.expr.scalars import Function, function_of_scalar_rule
from fluidlite.expr.step_derivatives import concat_parts, inverse_arrangement
from fluidlite.expr.tensor import Tensor, broadcast_to, substituted, symbol, tensor, wide
from fluidlite.expr.tracing import current, declared_results, inlined_calls
from fluidlite.expr.views import reshape
from fluidlite.program import derived
from fluidlite.program.derived import Derived
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD, Infer, OpDef, Slot
from fluidlite.program.rules import ExpressionRule, GradRule
from fluidlite.tensor.tensor_spec import Spec, all_dims_compatible, specs_of


def function_of(op: OpDef) -> Function | None:
    """The function of tensors of an operator, by slots; None if it has no expression."""
    return op.expression.function if op.expression is not None else function_of_scalar_rule(op)


def gradient_of(
    op: OpDef, forward: Function, writes: Sequence[str], suffix: str = GRAD, by_dims: Collection[str] = ()
) -> Function:
    """The derived function of an operator's gradient operator; it reads saved outputs instead of recomputing them.

    ``op``: the forward operator.
    ``forward``: its function.
    ``writes``: the input slots that get gradients.
    ``suffix``: the suffix of gradient slots.
    ``by_dims``: output slots that the gradient operator gets as metadata only, for a function that reads their dims.
    The dims of other outputs are those of their gradients.
    """

    def function(operands: Mapping[str, Sequence[Tensor]], attrs: Mapping[str, Any]) -> Mapping[str, Any]:
        inputs = {slot: group for slot, group in operands.items() if op.input(slot) is not None}
        distinct = _distinct(inputs)
        dims_slots = {slot.name: slot.name + ("" if slot.name in by_dims else suffix) for slot in op.outputs}
        specs = {slot: [(x.dims, x.dtype) for x in operands[by]] for slot, by in dims_slots.items() if by in operands}
        with inlined_calls(), declared_results(specs):
            tensors = forward(distinct, attrs)
        outputs = {slot: (x,) if isinstance(x, Tensor) else tuple(x) for slot, x in tensors.items()}
        results, seeds, saved = [], [], {}
        for slot, group in outputs.items():
            weights = operands.get(slot + suffix, (None,) * len(group))
            for x, weight in zip(group, weights, strict=True):
                results.append(x)
                seeds.append(None if weight is None else broadcast_to(wide(weight), x.dims))
                if weight is not None:
                    need_dims(weight, x.dims, slot + suffix, slot)
                    need_dtype(weight, [x], slot + suffix)
            for x, saved_x in zip(group, operands.get(slot, ()) if slot not in by_dims else (), strict=False):
                need_dims(saved_x, x.dims, slot, f"what {op.type} makes")
                saved[x] = _like(wide(saved_x), x)
                while x.op in ("reshape", "arrange"):  # the saved output also replaces the source of a view
                    part, whole = x.args[0], saved[x]
                    saved[part] = reshape(whole, part.dims) if x.op == "reshape" else inverse_arrangement(x, whole)
                    x = part
                saved |= concat_parts(x, saved[x])
        sources = [x for slot in writes for x in distinct.get(slot, ()) if x.dtype in ALL_FLOATS]
        actual = {x: y for slot, row in distinct.items() for x, y in zip(row, inputs[slot], strict=True) if x is not y}
        by = {**actual, **{x: substituted(saved_x, actual) for x, saved_x in saved.items()}}
        with_saved = [substituted(x, by) if x is not None else None for x in derivatives(results, seeds, sources)]
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


def _distinct(operands: Mapping[str, Sequence[Tensor]]) -> dict[str, Sequence[Tensor]]:
    """The operands with a new symbol for each that repeats or depends on another: a derivative would pass both.

    In an expression of several operators, a call may get the same tensor twice, or a tensor and one computed from it.
    """
    visited: set[Tensor] = set()
    distinct: dict[str, Sequence[Tensor]] = {}
    for slot, row in operands.items():
        symbols = []
        for x in row:
            if isinstance(x, Tensor):  # the numbers of inputs read as values need no symbols
                if x.dtype in ALL_FLOATS and (x in visited or x.args):
                    x = symbol(slot, len(current().tensors), x.dims, x.dtype)
                visited.add(x)
            symbols.append(x)
        distinct[slot] = symbols
    return distinct


def _like(x: Tensor, other: Tensor) -> Tensor:
    """A saved output cast to the dtype of the tensor that it replaces; its dims are equal under other symbols."""
    return x if x.dtype == other.dtype else tensor("cast", (x,), (), x.dims, other.dtype)


def infer_gradient(suffix: str) -> Infer:
    """Return the inference of a gradient operator: gradients have the specs of inputs; the trace checks operands."""

    def inferred(call: Any) -> Any:
        outputs = infer(call)
        bases = {slot: slot.removesuffix(suffix) for slot in outputs}
        return {
            slot: [spec.with_(value=None) for spec in call.specs(bases[slot])] if call.has(bases[slot]) else spec
            for slot, spec in outputs.items()
        }

    return inferred


def infer_by_forward(forward: Infer) -> Infer:
    """Return the inference of a gradient operator; ``forward``, that of its operator, checks gradients of outputs."""

    def inferred(call: Call) -> Mapping[str, Sequence[Spec]]:
        bases = [slot.name.removesuffix(GRAD) for slot in call.op.outputs]
        dtype = call.dtype(bases[0])
        for slot, outputs in forward(call).items():
            name = slot + GRAD
            for spec, grad in zip(specs_of(outputs), call.specs(name) if call.has(name) else (), strict=False):
                if not all_dims_compatible(grad.dims, spec.dims):
                    call.fail(name, f"{list(spec.dims)}, the dims of {slot}")
                if is_float(grad.dtype) and grad.dtype != dtype:
                    call.fail_dtype(name, f"{dtype}, the dtype of {bases[0]}", do="use layers.cast on one of the two")
        return {base + GRAD: [spec.with_(value=None) for spec in call.specs(base)] for base in bases if call.has(base)}

    return inferred


def derive(op: OpDef, type: str) -> Derived | None:
    """Derive the gradient operator, which reads the gradients of all outputs, and the rule that appends it.

    It reads the inputs. Of an input that is updated in place and has no gradient it reads the dims, and the outputs
    that the operator saves for backward. Of outputs that the operator infers by other means it reads the dims.
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
    gradient_op = OpDef(
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
    return rule, gradient_op


def _order(slot: str) -> int:
    """The order of a gradient slot: 1 for ``X@GRAD``, 2 for ``X@GRAD2``, 0 for ``X``."""
    _, mark, order = slot.rpartition(GRAD)
    return int(order or 1) if mark else 0


derived.derive = derive
