"""Declaration of elementwise operators from scalar functions, which give slots, inference and the gradient operator.

    unary("relu", lambda x: maximum(x, 0), grad=lambda out, dout: where(out > 0, dout, 0))

declares ``relu`` and ``relu_grad``, which reads Out and Out@GRAD and nothing else. Kernels are generated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Union

from fluidlite.codegen.expr import parameters, slots_of, snake
from fluidlite.expr.declare import camel
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD, Attr, Infer, OpDef, Slot, tensor_dtypes, tensor_slots
from fluidlite.program.operator_options import (
    Aliasing,
    Differentiation,
    Execution,
    Inference,
    Lowering,
    Option,
    Options,
    Registration,
)
from fluidlite.program.registry import declared_at, register_op
from fluidlite.program.rules import ElementwiseOperands, GradRule, ScalarRule
from fluidlite.tensor.tensor_spec import Spec

Function = Callable[..., Any]
Dtypes = Union[Mapping[str, tuple[str, ...]], tuple[str, ...], None]

AXIS = Attr("axis", "int", -1, minimum=-1, doc="dim of X at which the dims of Y start; -1: they end with X's last dim")

SUM_MEMORY = "where an input was broadcast and arrays compute, its gradient before the sum: up to three times Out"


@dataclass(frozen=True, kw_only=True)
class Elementwise:
    """Options of an elementwise operator.

    ``outputs``: output slots.
    ``out_dtype``: dtype of the outputs; default: the first input's.
    ``slots``: definitions of slots with options; further inputs that the function does not read.
    ``grad_attrs``: attributes of the gradient operator; default: the operator's.
    ``differentiable``: input slots with gradients; default: the first.
    ``broadcasts``: inputs may differ in dims, so that the gradient needs the dims of each.
    ``placed``: dims of operands for broadcasting, where they differ from Fluid's rule; see ``ScalarRule``.
    """

    outputs: tuple[str, ...] = ("Out",)
    out_dtype: str = ""
    slots: Iterable[Slot] = ()
    grad_attrs: Iterable[Attr] | None = None
    differentiable: tuple[str, ...] | None = None
    broadcasts: bool = False
    placed: Callable[[ElementwiseOperands], Mapping[str, tuple[Any, ...]]] | None = None


def scalar_op(
    type: str,
    function: Function,
    *options: Option | Elementwise,
    attrs: Iterable[Attr] = (),
    grad: Function | GradRule | None = None,
    dtypes: Dtypes = None,
    doc: str = "",
    source: str = "",
) -> OpDef:
    """Declare an elementwise operator, and its gradient operator ``<type>_grad``.

    Parameters
    ----------
    type : str
    function : callable
        Positional parameters are input slots in snake case, keyword-only ones attributes; it returns a symbol, or
        one for each output slot.
    *options : Elementwise, and those of ``register_op``
        Without an ``Inference`` outputs have the first input's dims and LoD, and all inputs one dtype and equal dims.
        Without an ``Aliasing`` the first output may share the first input's memory, if their dtypes are equal.
        ``Differentiation`` takes ``only_for`` (``grad`` gets None for a slot if the gradient of the other slot is not
        requested) and the ``memory`` of the gradient operator.
    attrs : attributes
    grad : callable, GradRule or None
        A scalar function whose parameters may also name outputs (``out``) and gradients (``dout``). It returns one
        symbol for each differentiable input in order, or a dict of them by slot. A function of one parameter ``maker``
        appends gradient operators itself.
    dtypes : mapping of slot to dtypes, or the dtypes of every input
    doc, source : str

    Raises
    ------
    RegistryError
        If an option is not one for elementwise operators.
    """
    parsed = Options(f"operator {type!r}", options, Elementwise)
    parsed.refuse(Differentiation, ("rule", "reads", "dispensable", "doc"), "give grad=")
    scalar, inference, differentiation = parsed.get(Elementwise), parsed.get(Inference), parsed.get(Differentiation)
    aliasing = parsed.find(Aliasing)
    names, _ = parameters(function)
    declared_slots, outputs = {slot.name: slot for slot in scalar.slots}, scalar.outputs
    inputs = tuple(declared_slots.get(camel(name), Slot(camel(name))) for name in names)
    extra = tuple(slot for name, slot in declared_slots.items() if name not in outputs and slot not in inputs)
    attrs = tuple(attrs)
    inputs += (*extra, *tensor_slots(attrs).values())
    if aliasing is None:
        plain = inference.infer is None and not scalar.out_dtype and bool(names)
        aliasing = Aliasing(may={outputs[0]: inputs[0].name} if plain else {})
    slots_out = tuple(declared_slots.get(name, Slot(name)) for name in outputs)
    differentiable = scalar.differentiable
    if differentiable is None:
        differentiable = (inputs[0].name,) if inputs else ()
    rule: Any = grad
    if callable(grad) and not isinstance(grad, GradRule) and parameters(grad)[0] != ("maker",):
        rule = _grad_rule(type, grad, inputs, slots_out, differentiable, scalar.broadcasts, differentiation.only_for)
    input_dtypes = dtypes if isinstance(dtypes, Mapping) else {slot.name: dtypes for slot in inputs} if dtypes else {}
    op = register_op(
        type,
        replace(inference, infer=inference.infer or _infer_same(inputs, outputs, scalar.out_dtype)),
        aliasing,
        replace(differentiation, rule=rule, only_for={}, memory=""),
        replace(parsed.get(Lowering), scalar=ScalarRule(function, outputs, placed=scalar.placed)),
        parsed.get(Execution),
        parsed.get(Registration),
        inputs=inputs,
        outputs=slots_out,
        attrs=attrs,
        dtypes={**input_dtypes, **tensor_dtypes(attrs)},
        doc=doc,
        source=source,
    )
    op.origin = _declaration_origin()
    if isinstance(rule, GradRule) and callable(grad):
        declared = attrs if scalar.grad_attrs is None else tuple(scalar.grad_attrs)
        _register_grad(op, rule, grad, declared, scalar.placed, differentiation.memory)
    return op


unary = scalar_op
"""``scalar_op`` under the name for operators from X to Out of the same dims."""


def binary(
    type: str,
    function: Function,
    *options: Option | Elementwise,
    attrs: Iterable[Attr] = (),
    grad: Function | GradRule | None = None,
    dtypes: Dtypes = None,
    doc: str = "",
    source: str = "",
) -> OpDef:
    """Declare an operator of X and Y, with Fluid's broadcasting of Y by ``axis``; gradients ``(dX, dY)``.

    A gradient is written as if no dim were broadcast; the framework sums over broadcast dims.
    """
    parsed = Options(f"operator {type!r}", options, Elementwise)
    scalar, inference, aliasing = parsed.get(Elementwise), parsed.get(Inference), parsed.find(Aliasing)
    if aliasing is None:
        aliasing = Aliasing(may={"Out": "X"} if not scalar.out_dtype and inference.infer is None else {})
    remaining = [option for option in options if not isinstance(option, (Elementwise, Inference, Aliasing))]
    return scalar_op(
        type,
        function,
        *remaining,
        replace(scalar, differentiable=scalar.differentiable or ("X", "Y"), broadcasts=True),
        replace(inference, infer=inference.infer or _infer_broadcast(scalar.out_dtype)),
        aliasing,
        attrs=(*attrs, AXIS),
        grad=grad,
        dtypes=dtypes,
        doc=doc,
        source=source,
    )


def _declaration_origin() -> str:
    """The source location of the declaration: the first frame outside this file."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    return declared_at(frame)


# Gradients ---------------------------------------------------------------------------------------------------------


def _grad_rule(
    type: str,
    function: Function,
    inputs: tuple[Slot, ...],
    outputs: tuple[Slot, ...],
    writes: tuple[str, ...],
    broadcasts: bool,
    only_for: Mapping[str, str],
) -> GradRule:
    readable = [slot.name for slot in (*inputs, *outputs)] + [slot.name + GRAD for slot in outputs]
    reads = slots_of(parameters(function)[0], readable, f"the gradient of {type!r}")
    dims = tuple(slot for slot in writes if slot not in reads) if broadcasts else ()
    order = (*(slot.name for slot in inputs), *(slot.name for slot in outputs))
    forward = sorted((slot for slot in (*reads, *dims) if not slot.endswith(GRAD)), key=order.index)
    read = (*forward, *(slot for slot in reads if slot.endswith(GRAD)))
    return GradRule(type + "_grad", read, writes, only_for=only_for)


def _register_grad(
    op: OpDef,
    rule: GradRule,
    function: Function,
    attrs: tuple[Attr, ...],
    placed: Callable[[ElementwiseOperands], Mapping[str, tuple[Any, ...]]] | None,
    memory: str,
) -> None:
    names = {name.rstrip("_") for name in parameters(function)[0]}
    read = {name for name in rule.reads if snake(name) in names}
    first = next(name for name in (*(n for n in rule.reads if n.endswith(GRAD)), *rule.reads))
    absent = {slot.name for slot in op.inputs if slot.dispensable} | set(rule.only_for)
    inputs = tuple(Slot(name, dispensable=name in absent, metadata_only=name not in read) for name in rule.reads)
    grads = tuple(slot + GRAD for slot in rule.writes)
    read_slots = set(rule.reads)

    def infer(call: Call) -> dict[str, Spec]:
        specs = {}
        for slot, target in rule.only_for.items():
            if call.outs.get(target + GRAD) and not call.has(slot):
                call.fail(slot, f"a value, which {target + GRAD} needs")
        for slot, grad in zip(rule.writes, grads, strict=True):
            is_read = slot in read_slots and call.has(slot)
            spec = call.spec(slot if is_read else first)
            specs[grad] = Spec.of(spec.dims, spec.dtype, lod=spec.lod, lod_level=spec.lod_level)
        return specs

    grad_op = register_op(
        rule.type,
        Inference(infer, kernel_dtype=first),
        Aliasing(may={grads[0]: first}),
        Lowering(scalar=ScalarRule(function, grads, placed=placed)),
        Execution(memory=memory),
        inputs=inputs,
        outputs=tuple(Slot(name, dispensable=True) for name in grads),
        attrs=attrs,
        doc=f"the gradient of {op.type}" + (f": {op.doc}" if op.doc else ""),
        source=op.source,
    )
    grad_op.origin = op.origin


# Inference ---------------------------------------------------------------------------------------------------------


def _infer_same(inputs: tuple[Slot, ...], outputs: tuple[str, ...], out_dtype: str) -> Infer:
    read = tuple(slot.name for slot in inputs if not slot.dispensable)

    def infer(call: Call) -> dict[str, Spec]:
        spec = call.spec(read[0])
        dims = list(spec.dims)
        for slot in read[1:]:
            other = call.spec(slot)
            if other.dtype != spec.dtype:
                call.fail_dtype(slot, f"{spec.dtype}, as {read[0]}", do="cast one of them with layers.cast")
            agree = len(other.dims) == len(dims) and all(
                a == b or -1 in (a, b) for a, b in zip(dims, other.dims, strict=True)
            )
            call.need(agree, slot, f"the dims of {read[0]}, {list(spec.dims)}")
            dims = [b if a == -1 else a for a, b in zip(dims, other.dims, strict=True)]
        return dict.fromkeys(outputs, Spec.of(dims, out_dtype or spec.dtype, spec.lod, spec.lod_level))

    return infer


def _infer_broadcast(out_dtype: str) -> Infer:
    def infer(call: Call) -> dict[str, Spec]:
        x, y = call.spec("X"), call.spec("Y")
        if x.dtype != y.dtype:
            call.fail_dtype("Y", f"{x.dtype}, as X", do="cast one of them with layers.cast")
        dims = broadcast_dims(call)
        return {"Out": Spec.of(dims, out_dtype or x.dtype, x.lod, x.lod_level)}

    return infer


def broadcast_dims(call: Call) -> tuple[int, ...]:
    """Dims of ``X op Y`` by Fluid's rule, -1 where unknown; raise ShapeError if they do not broadcast.

    Since Fluid 1.8 X may have fewer dims than Y; then X is broadcast to Y.
    """
    large, small, axis = "X", "Y", call.attr("axis")
    if len(call.dims("Y")) > len(call.dims("X")):
        large, small = small, large
    x, y = call.dims(large), call.dims(small)
    if y.count(1) == len(y) and len(y) <= max(len(x), 1):
        return x
    start = len(x) - len(y) if axis == -1 else axis
    trimmed = y
    while len(y) < len(x) and trimmed and trimmed[-1] == 1:
        trimmed = trimmed[:-1]
    if len(y) == len(x):
        start = 0
    trailing = len(x) - start - len(trimmed)
    aligned = (1,) * start + trimmed + (1,) * trailing if trailing >= 0 else ()
    fits = len(aligned) == len(x) and all(
        a == b or 1 in (a, b) or -1 in (a, b) for a, b in zip(x, aligned, strict=True)
    )
    if not fits and len(y) <= max(len(x), 1) and all(d in (1, -1) for d in y):
        return x  # perhaps one number, which always broadcasts
    if not fits:
        where = f"end with its last dim (axis=-1: from dim {start})" if axis == -1 else f"start at dim {start} (axis)"
        do = f"set axis to the dim of {large} at which the dims of {small} start, or reshape {small}"
        call.fail(small, f"dims that broadcast to {large}, {list(x)}, when they {where}", do=do)
    return tuple(map(_broadcast_dim, x, aligned))


def _broadcast_dim(a: int, b: int) -> int:
    """The dim to which two dims broadcast that are equal, 1 or unknown (-1)."""
    if 1 in (a, b):
        return b if a == 1 else a
    return b if a == -1 else a
