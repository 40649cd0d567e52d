"""``@operator`` and ``@gradient``: functions of tensors declare operators: shapes, computation, gradient."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fluidlite.base.dtypes import is_float
from fluidlite.base.errors import RegistryError
from fluidlite.codegen.expr import slots_of, snake
from fluidlite.expr.attributes import need_dims, need_dtype
from fluidlite.expr.calls import infer
from fluidlite.expr.decompose import decompose
from fluidlite.expr.gradients import gradient_of, infer_gradient
from fluidlite.framework.opdef import GRAD, Attr, ExpressionRule, GradRule, Infer, OpDef, Slot
from fluidlite.framework.registry import declared_at, register_op

_INFER, _INFER_GRADIENT = infer, infer_gradient(GRAD)


def operator(
    type: str,
    *,
    inputs: Iterable[Slot | str] | None = None,
    outputs: Iterable[Slot | str] = ("Out",),
    attrs: Iterable[Attr] = (),
    reads: Sequence[str] | None = None,
    stored: Mapping[str, str] | None = None,
    grad: Callable[[Any], None] | None = None,
    infer: Infer = _INFER,
    library: bool = False,
    grad_library: bool | None = None,
    grad_doc: str = "",
    grad_memory: str = "",
    doc: str = "",
    **more: Any,
) -> Callable[[Callable[..., Any]], OpDef]:
    """Declare an operator by its function.

    Parameters
    ----------
    type : str
        Its name, as in Fluid.
    inputs : slots
        In order; None: the function's positional parameters, ``x`` for X and ``learning_rate`` for LearningRate.
    outputs : slots
    attrs : attributes
        The function's keyword-only parameters; it need not take all, and ``**attrs`` takes all.
    reads : sequence of slots
        What the gradient operator, ``type`` + "_grad", reads beside the outputs' gradients: inputs and outputs. It gets
        all inputs, those that are not named as metadata only. None: the operator has no such gradient operator.
    grad : callable, optional
        Appends the operators of the gradient, where those are operators of other names.
    infer : callable
        What says the outputs, where it must add something to what the function says, or stands before it.
    stored : mapping of output slot to dtype
        Outputs that are not stored as computed, and those that are, of half types too (``AS_COMPUTED``).
    library : bool
        A library computes most of it; see :class:`~fluidlite.framework.opdef.ExpressionRule`.
    grad_library : bool, optional
        Whether that is so of its gradient; default: as of itself.
    doc, grad_doc, grad_memory : str
    **more
        As of :func:`~fluidlite.framework.registry.register_op`: dtypes, samples, reference, source, ...

    Returns
    -------
    decorator
        It returns the definition.

    Raises
    ------
    RegistryError
        If parameters and slots or attributes do not fit.
    """
    origin, attrs = declared_at(sys._getframe(1)), tuple(attrs)

    def declare(function: Callable[..., Any]) -> OpDef:
        names, keywords = _parameters(function, attrs)
        slots = tuple(inputs) if inputs is not None else tuple(_camel(name) for name in names)
        given = tuple(slot if isinstance(slot, Slot) else Slot(slot) for slot in slots)
        made = tuple(slot if isinstance(slot, Slot) else Slot(slot) for slot in outputs)
        known = {attr.name for attr in attrs}
        if [snake(slot.name) for slot in given] != [name.rstrip("_") for name in names] or not set(keywords) <= known:
            raise RegistryError(
                f"operator {type!r}: its function takes ({', '.join(names)}; {', '.join(keywords)}); expected slots "
                f"{', '.join(slot.name for slot in given)} and attributes among {', '.join(sorted(known)) or 'none'}"
            )

        def call(symbols: Mapping[str, Sequence[Any]], numbers: Mapping[str, Any]) -> Mapping[str, Any]:
            values = [_value(slot, symbols) for slot in given]
            result = function(*values, **{name: numbers[name] for name in keywords})
            if isinstance(result, Mapping):
                return result
            several = result if isinstance(result, tuple) else (result,)
            return dict(zip((slot.name for slot in made), several, strict=True))

        writes = tuple(slot.name for slot in given if not slot.unread and _has_gradient(slot, more))
        rule: GradRule | None = None
        if reads is not None:
            seen = tuple(slot.name for slot in given)
            kept = tuple(slot.name for slot in made if slot.name in reads)
            values = {slot.name: more["dtypes"][slot.name] for slot in given
                      if slot.value and slot.name in (more.get("dtypes") or {})}  # fmt: skip
            rule = GradRule(f"{type}_grad", (*seen, *kept, *(slot.name + GRAD for slot in made)), writes)
        op = register_op(
            type, inputs=given, outputs=made, attrs=attrs, infer=infer, grad=grad if rule is None else rule, doc=doc,
            decompose=decompose,
            expression=ExpressionRule(call, dict(stored or {}), infer is not _INFER, library), **more,
        )  # fmt: skip
        op.origin = origin
        if rule is not None:
            made_grad = register_op(
                rule.type,
                inputs=[_read_slot(op, name, op.input(name) is not None and name not in (reads or ()))
                        for name in rule.reads],
                outputs=[_gradient_slot(op, name) for name in writes],
                attrs=attrs, infer=infer_gradient(GRAD), kernel_dtype=made[0].name + GRAD, doc=grad_doc,
                memory=grad_memory, decompose=decompose, dtypes=values,
                expression=ExpressionRule(gradient_of(op, call, writes),
                                          library=library if grad_library is None else grad_library),
            )  # fmt: skip
            made_grad.origin = origin
        return op

    return declare


def gradient(
    op: OpDef,
    *,
    writes: Sequence[str] = ("X",),
    metadata: Sequence[str] = (),
    dispensable: Sequence[str] = (),
    decomposed: Sequence[str] = (),
    only_for: Mapping[str, str] | None = None,
    type: str = "",
    stored: Mapping[str, str] | None = None,
    infer: Infer = _INFER_GRADIENT,
    doc: str = "",
    **more: Any,
) -> Callable[[Callable[..., Any]], OpDef]:
    """Declare a gradient operator by its function, where that is better than the derived one.

    The function's positional parameters are what it reads: inputs, outputs and gradients of outputs of the operator,
    ``dout`` for Out@GRAD; keyword-only ones are attributes. It returns the gradients of ``writes``, in order.

    Parameters
    ----------
    op : OpDef
        Declared without ``reads``.
    writes : sequence of slots
        Inputs that have gradients.
    metadata : sequence of slots
        Those read whose dims alone are needed.
    dispensable : sequence of slots
        Those read that may be left out, beside those that the operator may lack.
    decomposed : sequence of slots
        Those read or written which registered kernels do not know: the expression computes calls that have them.
    only_for : mapping of slot read to slot of ``writes``
        What is read for one gradient alone; see :class:`~fluidlite.framework.opdef.GradRule`.
    type : str
        Its name; ``op.type`` + "_grad" if empty.
    stored : mapping of output slot to dtype
        As of :func:`operator`.
    infer : callable
        What says the outputs, where the function and the inputs do not.
    doc : str
    **more
        As of :func:`~fluidlite.framework.registry.register_op`: view, memory, in_layout, ...

    Returns
    -------
    decorator
        It returns the gradient operator's definition.

    Raises
    ------
    RegistryError
        If a parameter names no slot.
    """
    origin = declared_at(sys._getframe(1))

    def declare(function: Callable[..., Any]) -> OpDef:
        names, keywords = _parameters(function, op.attrs)
        known = [slot.name for slot in (*op.inputs, *op.outputs)] + [slot.name + GRAD for slot in op.outputs]
        slots = slots_of(names, known, f"the gradient of {op.type!r}")

        def call(symbols: Mapping[str, Sequence[Any]], numbers: Mapping[str, Any]) -> Mapping[str, Any]:
            values = [_value(_slot_of(op, name), symbols) for name in slots]
            derived_of = [x for name in writes for x in symbols.get(name, ())]
            for name in (name for name in slots if name.endswith(GRAD)):
                for x in symbols.get(name, ()):
                    need_dtype(x, derived_of, name)
            result = function(*values, **{name: numbers[name] for name in keywords})
            several = result if isinstance(result, tuple) else (result,)
            for name in (name for name in slots if name.endswith(GRAD)):
                for x, of in zip(symbols.get(name, ()), symbols.get(name.removesuffix(GRAD), ()), strict=False):
                    need_dims(x, of.dims, name, name.removesuffix(GRAD))
            blamed = next((name for name in slots if name.endswith(GRAD)), slots[0])
            for name, made in zip(writes, several, strict=True):
                row = made if isinstance(made, (tuple, list)) else (made,)
                for x, of in zip(row, symbols.get(name, ()), strict=False):
                    if x is not None:
                        need_dims(x, of.dims, blamed, f"{name}, for {name}{GRAD}")
                        need_dtype(x, [of], blamed)
            return dict(zip((name + GRAD for name in writes), several, strict=True))

        absent = {*dispensable, *(only_for or {})}
        rule = GradRule(type or f"{op.type}_grad", slots, tuple(writes), only_for=only_for or {})
        if op.grad is None:  # else the operator says itself what is appended
            op.grad = rule
        read = [_read_slot(op, name, name in metadata, name in absent) for name in slots]
        given = [slot.name for slot in read if not slot.dispensable] or slots
        made = register_op(
            rule.type,
            inputs=[replace(slot, decomposed=slot.name in decomposed) for slot in read],
            outputs=[replace(_gradient_slot(op, name), decomposed=name + GRAD in decomposed) for name in writes],
            attrs=op.attrs, infer=infer, kernel_dtype=next((name for name in given if GRAD in name), given[0]),
            doc=doc, decompose=decompose,
            expression=ExpressionRule(call, dict(stored or {}), inferred=infer is not _INFER_GRADIENT), **more,
        )  # fmt: skip
        made.origin = origin
        return made

    return declare


def _gradient_slot(op: OpDef, name: str) -> Slot:
    """What holds the gradient of an input."""
    return Slot(name + GRAD, dispensable=True, duplicable=_slot_of(op, name).duplicable)


def _read_slot(op: OpDef, name: str, unread: bool, dispensable: bool = False) -> Slot:
    """What a gradient operator reads under a name."""
    slot = _slot_of(op, name)
    if slot.value:
        return slot
    absent = dispensable or (slot.dispensable and op.output(name) is None)  # an output is named where it is read
    return replace(slot, metadata_only=unread, dispensable=absent)


def _has_gradient(slot: Slot, more: Mapping[str, Any]) -> bool:
    """Whether an input has a gradient: it may hold floats, and no derivative is declared to stop there."""
    allowed = (more.get("dtypes") or {}).get(slot.name, ())
    return slot.name not in (more.get("stop_gradient") or {}) and (not allowed or any(map(is_float, allowed)))


def _slot_of(op: OpDef, name: str) -> Slot:
    """The declaration of what a gradient operator reads under a name."""
    base = name.removesuffix(GRAD)
    found = op.input(base) or op.output(base)
    assert found is not None
    return replace(found, name=name, intermediate=False, content="")


def _parameters(function: Callable[..., Any], attrs: Iterable[Attr]) -> tuple[list[str], list[str]]:
    """The slots and the attributes that a function takes; ``**attrs`` takes all that are not named."""
    given = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in given):
        keywords = [attr.name for attr in attrs]
    else:
        keywords = [p.name for p in given if p.kind is p.KEYWORD_ONLY]
    return [p.name for p in given if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)], keywords


def _camel(name: str) -> str:
    return re.sub(r"(?:^|_)([a-z0-9])", lambda found: found[1].upper(), name.rstrip("_"))


def _value(slot: Slot, symbols: Mapping[str, Sequence[Any]]) -> Any:
    found = symbols.get(slot.name)
    if slot.duplicable:
        return tuple(found or ())
    return found[0] if found else None
