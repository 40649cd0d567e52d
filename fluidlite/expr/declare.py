"""``@operator`` and ``@gradient``: declare operators by functions of tensors: inference, computation and gradient."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fluidlite.base.dtypes import is_float
from fluidlite.base.errors import RegistryError
from fluidlite.codegen.expr import parameters, slots_of, snake
from fluidlite.expr.attributes import fail, need_dims, need_dtype
from fluidlite.expr.calls import infer
from fluidlite.expr.decompose import decompose
from fluidlite.expr.gradients import gradient_of, infer_by_forward, infer_gradient
from fluidlite.expr.number import Numbers
from fluidlite.program.opdef import GRAD, Attr, OpDef, Slot, tensor_dtypes, tensor_slots
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
from fluidlite.program.registry import declared_at, ops, register_op
from fluidlite.program.rules import ExpressionRule, GradRule


def operator(
    type: str,
    *options: Option,
    inputs: Iterable[Slot | str] | Mapping[str, str] | None = None,
    outputs: Iterable[Slot | str] = ("Out",),
    attrs: Iterable[Attr] = (),
    dtypes: Mapping[str, tuple[str, ...]] | None = None,
    doc: str = "",
    source: str = "",
) -> Callable[[Callable[..., Any]], OpDef]:
    """Declare an operator by its function.

    Parameters
    ----------
    type : str
        Its name, as in Fluid.
    *options : Differentiation, Inference, Aliasing, Execution, Lowering, Registration
        Further properties, in any order, each option at most once; see
        :mod:`fluidlite.program.operator_options`. ``Differentiation(reads=...)`` derives the gradient operator.
    inputs : slots
        In order; None: the function's positional parameters, ``x`` for X and ``learning_rate`` for LearningRate. A
        mapping of slots to their documentation has the same effect.
    outputs : slots
    attrs : attributes
        The function's keyword-only parameters; it may omit some, and ``**attrs`` takes all. An attribute that is passed
        as a tensor has its elements as value; the slots of such tensors are neither parameters nor in ``inputs``.
    dtypes : mapping of slot to tuple of str
        The allowed dtypes of a slot; another one is a DtypeError at build time.
    doc, source : str
        A description, and the source of the formula.

    Returns
    -------
    decorator
        It returns the definition.

    Raises
    ------
    RegistryError
        If parameters do not match slots or attributes, or an option does not apply to operators.
    """
    origin, attrs = declared_at(sys._getframe(1)), tuple(attrs)
    dtypes = {**(dtypes or {}), **tensor_dtypes(attrs)}
    chosen = Options(f"operator {type!r}", options)
    chosen.refuse(Lowering, ("expression", "decompose", "decomposed"), "the function says it; leave them out")
    chosen.refuse(Differentiation, ("only_for",), "write the gradient with @gradient")
    inference, execution = chosen.get(Inference), chosen.get(Execution)
    differentiation, lowering = chosen.get(Differentiation), chosen.get(Lowering)
    reads = differentiation.reads
    if reads is None:
        chosen.refuse(Differentiation, ("dispensable", "doc", "memory"), "give reads= too, for a derived gradient")
        chosen.refuse(Lowering, ("gradient_library",), "give Differentiation(reads=...) too, for a derived gradient")

    def declare(function: Callable[..., Any]) -> OpDef:
        names, keywords = parameters(function, [attr.name for attr in attrs])
        docs = inputs if isinstance(inputs, Mapping) else {}
        slots = tuple(map(camel, names)) if inputs is None or inputs is docs else tuple(inputs)
        ins = tuple(slot if isinstance(slot, Slot) else Slot(slot) for slot in slots)
        ins = tuple(replace(slot, doc=docs.get(slot.name, slot.doc)) for slot in ins)
        if not docs.keys() <= {slot.name for slot in ins}:
            raise RegistryError(f"operator {type!r}: inputs tells of {', '.join(docs)}; expected input slots")
        outs = tuple(slot if isinstance(slot, Slot) else Slot(slot) for slot in outputs)
        table, attr_slots = {attr.name: attr for attr in attrs}, tensor_slots(attrs)
        params, ins = ins, (*ins, *attr_slots.values())
        if [snake(slot.name) for slot in params] != [name.rstrip("_") for name in names] or not {*keywords} <= {*table}:
            raise RegistryError(
                f"operator {type!r}: its function takes ({', '.join(names)}; {', '.join(keywords)}); expected slots "
                f"{', '.join(slot.name for slot in params)} and attributes among {', '.join(sorted(table)) or 'none'}"
            )

        def call(symbols: Mapping[str, Sequence[Any]], numbers: Mapping[str, Any]) -> Mapping[str, Any]:
            values = [_value(slot, symbols) for slot in params]
            attr_values = {name: _attribute(table[name], symbols, numbers) for name in keywords}
            result = function(*values, **attr_values)
            if isinstance(result, Mapping):
                return result
            results = result if isinstance(result, tuple) else (result,)
            return dict(zip((slot.name for slot in outs), results, strict=True))

        writes = tuple(
            slot.name for slot in ins if not slot.unread and _has_gradient(slot, dtypes or {}, differentiation)
        )
        rule: GradRule | None = None
        if reads is not None:
            in_names = tuple(slot.name for slot in ins)
            readable = [*in_names, *(slot.name for slot in outs)]
            if isinstance(reads, str) or not set(reads) <= set(readable):
                raise RegistryError(
                    f"operator {type!r}: Differentiation(reads={reads!r}); expected some of {', '.join(readable)}"
                )
            saved = tuple(slot.name for slot in outs if slot.name in reads)
            values = {slot.name: dtypes[slot.name] for slot in ins if slot.value and dtypes and slot.name in dtypes}
            rule = GradRule(f"{type}_grad", (*in_names, *saved, *(slot.name + GRAD for slot in outs)), writes)
        op = register_op(
            type,
            replace(inference, infer=inference.infer or infer),
            replace(differentiation, rule=rule or differentiation.rule, reads=None, dispensable=(), doc="", memory=""),
            _lowering_of(lowering, call, inferred=inference.infer is not None),
            execution,
            chosen.get(Aliasing),
            chosen.get(Registration),
            inputs=ins,
            outputs=outs,
            attrs=attrs,
            dtypes=dtypes,
            doc=doc,
            source=source,
        )
        op.origin = origin
        if rule is not None:
            absent, written = differentiation.dispensable, lowering.gradient_library
            derived_infer = infer_gradient(GRAD)  # by a trace, which checks saved outputs
            if inference.infer is not None and not reads:
                derived_infer = infer_by_forward(inference.infer)
            grad_op = register_op(
                rule.type,
                Inference(derived_infer, kernel_dtype=outs[0].name + GRAD),
                Execution(memory=differentiation.memory),
                Lowering(
                    expression=ExpressionRule(
                        gradient_of(op, call, writes), library=lowering.library if written is None else written
                    ),
                    decompose=decompose,
                ),
                inputs=[
                    _read_slot(op, name, op.input(name) is not None and name not in (reads or ()), name in absent)
                    for name in rule.reads
                ],
                outputs=[_gradient_slot(op, name) for name in writes],
                attrs=attrs,
                dtypes=values,
                doc=differentiation.doc,
            )
            grad_op.origin = origin
        return op

    return declare


def gradient(
    op: OpDef,
    *options: Option,
    writes: Sequence[str] = ("X",),
    metadata: Sequence[str] = (),
    type: str = "",
    dtypes: Mapping[str, tuple[str, ...]] | None = None,
    doc: str = "",
    source: str = "",
) -> Callable[[Callable[..., Any]], OpDef]:
    """Declare a gradient operator by its function, where that is better than the derived one.

    The function's positional parameters are inputs, outputs and gradients of outputs of the operator, ``dout`` for
    Out@GRAD; keyword-only ones are attributes. It returns the gradients of ``writes``, in order.

    Parameters
    ----------
    op : OpDef
        Declared without ``Differentiation(reads=...)``.
    *options : Inference, Aliasing, Differentiation, Execution, Lowering, Registration
        Further properties, as for :func:`operator`. ``Differentiation`` declares which operands may be left out
        (``dispensable``, in addition to those of the operator, and ``only_for``), and the ``rule`` of its own
        gradient.
    writes : sequence of slots
        Inputs that have gradients.
    metadata : sequence of slots
        Operands of which only the dims are read.
    type : str
        Its name; ``op.type`` + "_grad" if empty.
    dtypes : mapping of slot to tuple of str
    doc, source : str

    Returns
    -------
    decorator
        It returns the gradient operator's definition.

    Raises
    ------
    RegistryError
        If a parameter names no slot, or an option does not apply to gradient operators.
    """
    chosen = Options(f"the gradient of {op.type!r}", options)
    chosen.refuse(Lowering, ("expression", "decompose", "gradient_library"), "the function says it; leave them out")
    chosen.refuse(Differentiation, ("reads", "doc", "memory"), "give doc=, and Execution(memory=...)")
    inference, differentiation, lowering = chosen.get(Inference), chosen.get(Differentiation), chosen.get(Lowering)
    origin = declared_at(sys._getframe(1))

    def declare(function: Callable[..., Any]) -> OpDef:
        names, keywords = parameters(function, [attr.name for attr in op.attrs])
        readable = [slot.name for slot in (*op.inputs, *op.outputs)] + [slot.name + GRAD for slot in op.outputs]
        read_slots = slots_of(names, readable, f"the gradient of {op.type!r}")
        read_attrs = [attr for attr in op.attrs if attr.name in keywords]
        slots = (*read_slots, *tensor_slots(read_attrs))

        def call(symbols: Mapping[str, Sequence[Any]], numbers: Mapping[str, Any]) -> Mapping[str, Any]:
            values = [_value(_slot_of(op, name), symbols) for name in read_slots]
            derived_of = [x for name in writes for x in symbols.get(name, ())]
            for name in (name for name in slots if name.endswith(GRAD)):
                for x in symbols.get(name, ()):
                    need_dtype(x, derived_of, name)
            attr_values = {attr.name: _attribute(attr, symbols, numbers) for attr in read_attrs}
            result = function(*values, **attr_values)
            results = result if isinstance(result, tuple) else (result,)
            for name in (name for name in slots if name.endswith(GRAD)):
                for x, like in zip(symbols.get(name, ()), symbols.get(name.removesuffix(GRAD), ()), strict=False):
                    need_dims(x, like.dims, name, name.removesuffix(GRAD))
            subject = next((name for name in slots if name.endswith(GRAD)), slots[0])
            for name, part in zip(writes, results, strict=True):
                row = part if isinstance(part, (tuple, list)) else (part,)
                for x, like in zip(row, symbols.get(name, ()), strict=False):
                    if x is not None:
                        need_dims(x, like.dims, subject, f"{name}, for {name}{GRAD}")
                        need_dtype(x, [like], subject)
            return dict(zip((name + GRAD for name in writes), results, strict=True))

        absent = {*differentiation.dispensable, *differentiation.only_for}
        other = ops.find(type or f"{op.type}_grad")
        if other is not None and not chosen.get(Registration).override:
            raise RegistryError(
                f"the gradient of {op.type!r} at {origin}: {other.type!r} is declared already, at {other.origin}"
                "\n  Do: leave Differentiation(reads=...) of the operator out, or say Registration(override=True)"
            )
        rule = GradRule(type or f"{op.type}_grad", slots, tuple(writes), only_for=differentiation.only_for)
        if op.grad is None:  # else the operator has its own rule
            op.grad = rule
        read = [_read_slot(op, name, name in metadata, name in absent) for name in slots]
        required = [slot.name for slot in read if not slot.dispensable] or slots
        first = next((name for name in required if GRAD in name), required[0])
        grad_op = register_op(
            rule.type,
            replace(
                inference,
                infer=inference.infer or infer_gradient(GRAD),
                kernel_dtype=inference.kernel_dtype or first,
            ),
            replace(differentiation, dispensable=(), only_for={}),
            _lowering_of(lowering, call, inferred=inference.infer is not None),
            chosen.get(Execution),
            chosen.get(Aliasing),
            chosen.get(Registration),
            inputs=[replace(slot, decomposed=slot.name in lowering.decomposed) for slot in read],
            outputs=[
                replace(_gradient_slot(op, name), decomposed=name + GRAD in lowering.decomposed) for name in writes
            ],
            attrs=op.attrs,
            dtypes=dtypes,
            doc=doc,
            source=source,
        )
        grad_op.origin = origin
        return grad_op

    return declare


def _lowering_of(lowering: Lowering, function: Callable[..., Any], inferred: bool) -> Lowering:
    """The lowering of an operator that is a function of tensors."""
    expression = ExpressionRule(function, dict(lowering.stored), inferred, lowering.library)
    return Lowering(scalar=lowering.scalar, expression=expression, decompose=decompose, in_layout=lowering.in_layout)


def _gradient_slot(op: OpDef, name: str) -> Slot:
    """The slot of the gradient of an input."""
    return Slot(name + GRAD, dispensable=True, duplicable=_slot_of(op, name).duplicable)


def _read_slot(op: OpDef, name: str, unread: bool, dispensable: bool) -> Slot:
    """The slot that a gradient operator reads under a name."""
    slot = _slot_of(op, name)
    if slot.value:
        return slot
    absent = dispensable or (slot.dispensable and op.output(name) is None)  # outputs are read only by name
    return replace(slot, metadata_only=unread, dispensable=absent)


def _has_gradient(slot: Slot, dtypes: Mapping[str, tuple[str, ...]], differentiation: Differentiation) -> bool:
    """Whether an input has a gradient: it may hold floats, and is not declared in ``stop_gradient``."""
    allowed = dtypes.get(slot.name, ())
    return slot.name not in differentiation.stop_gradient and (not allowed or any(map(is_float, allowed)))


def _slot_of(op: OpDef, name: str) -> Slot:
    """The forward operator's slot that a gradient operator reads under a name."""
    base = name.removesuffix(GRAD)
    slot = op.input(base) or op.output(base)
    assert slot is not None
    return replace(slot, name=name, intermediate=False, content="")


def camel(name: str) -> str:
    """The slot of a parameter: ``LearningRate`` for ``learning_rate``."""
    return re.sub(r"(?:^|_)([a-z0-9])", lambda match: match[1].upper(), name.rstrip("_"))


def _attribute(attr: Attr, symbols: Mapping[str, Sequence[Numbers]], numbers: Mapping[str, Any]) -> Any:
    """The value of an attribute for a function: the elements of its first tensor that is present, or the value."""
    slot = next((slot for slot in attr.tensors if slot.name in symbols), None)
    if slot is None:
        return numbers[attr.name]
    tensors = symbols[slot.name]
    if slot.duplicable and any(len(tensor) != 1 for tensor in tensors):
        fail(slot.name, "tensors of one number")
    if not slot.duplicable and len(tensors[0].dims) > 1:
        fail(slot.name, "one row of numbers, [n]")
    elements = [number for tensor in tensors for number in tensor]
    if attr.type.endswith("s"):
        return elements
    if len(elements) != 1:
        fail(slot.name, "one number")
    return elements[0]


def _value(slot: Slot, symbols: Mapping[str, Sequence[Any]]) -> Any:
    row = symbols.get(slot.name)
    if slot.duplicable:
        return tuple(row or ())
    return row[0] if row else None
