"""Calls of other operators inside an expression: an operator call in a decomposition, inlined everywhere else."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from fluidlite.base.dtypes import HALVES
from fluidlite.base.errors import DtypeError, ProgramError, ShapeError
from fluidlite.expr.attributes import RefusedCall
from fluidlite.expr.lowering import dims_of
from fluidlite.expr.number import Number
from fluidlite.expr.scalars import function_of_scalar_rule
from fluidlite.expr.tensor import Tensor, cast, refuse, slot_of, tensor
from fluidlite.expr.tracing import Tracing, current
from fluidlite.program.opdef import OpDef
from fluidlite.program.registry import ops
from fluidlite.tensor.tensor_spec import Spec

Outputs = Mapping[str, Tensor]
_NAMED = re.compile(r"\{([A-Za-z]\w*)\}")
"""A placeholder of an operand in the text of an error."""


def call(
    type: str,
    inputs: Mapping[str, Tensor],
    attrs: Mapping[str, Any] | None = None,
    function: Callable[[], Outputs] | None = None,
) -> Outputs:
    """The outputs of an operator for these operands and attributes, by slot.

    Where the expression is decomposed, the outputs are those of a call of the operator, which may have a kernel.
    Otherwise ``function`` is inlined: for array calls, in a derivative, if the operator refuses these operands, and
    while this call of the operator itself is decomposed.

    Parameters
    ----------
    type : str
    inputs : mapping of slot to Tensor
        The operands, in their dtypes.
    attrs : mapping of name to value
        Other attributes have their defaults.
    function : callable, optional
        Returns the outputs of the operator, by slot; None: the expression of the operator. An operator whose expression
        calls the operator itself has to pass it.

    Raises
    ------
    ProgramError
        If the operator has no such slot or attribute, or refuses the value; if ``function`` is None and the operator
        has no expression, reads outputs that it infers by other means, or is recursive; if the outputs of the operator
        and of ``function`` differ in dims or dtype.
    """
    op, state = ops.get(type), current()
    settings = _check_attrs(op, inputs, attrs or {})
    inlined = (
        function()
        if function is not None
        else inlined_outputs(op, {slot: (x,) for slot, x in inputs.items()}, settings)
    )
    if state.build is None:
        state.has_inlined_calls = state.has_inlined_calls or not state.inlines_calls
        return inlined
    attr_values = {name: n.evaluate(state.values) if isinstance(n, Number) else n for name, n in settings.items()}
    specs = _specs(op, inputs, inlined, attr_values, state)
    if specs is None:
        return inlined
    args, params = list(inputs.values()), (type, tuple(inputs), tuple(attr_values.items()))
    return {slot: tensor("call", args, (slot, *params), x.dims, specs[slot].dtype) for slot, x in inlined.items()}


def _check_attrs(op: OpDef, inputs: Mapping[str, Tensor], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes in canonical form; symbolic numbers are checked later, when their values are known."""
    for slot, x in inputs.items():
        if op.input(slot) is None:
            refuse(f"{op.type} has no input slot {slot!r}")
        if not isinstance(x, Tensor):
            refuse(f"a call of {op.type} takes one tensor as {slot}, got {x!r}")
    for declared in op.inputs:
        if declared.name not in inputs and not declared.dispensable:
            refuse(f"a call of {op.type} leaves out {declared.name}")
    declared_attrs, settings = {attr.name: attr for attr in op.attrs}, {}
    for name, value in attrs.items():
        if name not in declared_attrs:
            refuse(f"{op.type} has no attribute {name!r}")
        elements = value if isinstance(value, (list, tuple)) else (value,)
        is_open = any(isinstance(n, Number) for n in elements)
        if is_open:
            settings[name] = tuple(value) if isinstance(value, list) else value
        else:
            settings[name] = declared_attrs[name].check(value)
    return settings


def inlined_outputs(
    op: OpDef, operands: Mapping[str, Sequence[Tensor]], attrs: Mapping[str, Any], draws: bool = False
) -> Outputs:
    """Inline the expression of an operator; returns its outputs of one tensor each, by slot.

    ``attrs``: other attributes have their defaults.
    ``draws``: whether it may draw random numbers.
    Raises ProgramError if it has no expression, reads outputs that it infers by other means, or is recursive.
    """
    state = current()
    function = op.expression.function if op.expression is not None else function_of_scalar_rule(op, draws)
    if function is None:
        refuse(f"{op.type} has no expression; expected a function that says what a call of it makes")
    if op.type in state.inlining:
        refuse(f"{op.type} is said with a call of itself; expected a function that says what this call makes")
    inputs = {slot: row[0] for slot, row in operands.items() if row}
    state.inlining.append(op.type)
    before, results = len(state.requirements), state.results
    state.results = _UnknownOutputs(op.type)
    try:
        all_attrs = {**{a.name: a.default for a in op.attrs}, **attrs}
        outputs = function(operands, all_attrs)
    except RefusedCall as refused:
        raise RefusedCall("slot", *_blame(op, inputs, refused.name, refused.expected)) from refused
    finally:
        state.inlining.pop()
        state.results = results
    for k, each in enumerate(state.requirements[before:], before):
        name, expected = _blame(op, inputs, each.name, each.expected)
        state.requirements[k] = replace(each, name=name, expected=expected, attr=False)
    rows = {slot: x if isinstance(x, (tuple, list)) else (x,) for slot, x in outputs.items()}
    stored = op.expression.stored if op.expression is not None else {}
    return {slot: cast(x, stored.get(slot) or x.dtype) for slot, (x, *more) in rows.items() if not more}


class _UnknownOutputs(dict[str, Any]):
    """The unknown outputs of an operator that infers them by other means than its expression: reading one raises."""

    def __init__(self, type: str) -> None:
        super().__init__()
        self.type = type

    def __missing__(self, slot: str) -> NoReturn:
        refuse(f"{self.type} infers {slot} by other means; expected a function that says what this call makes")


def _blame(op: OpDef, inputs: Mapping[str, Tensor], name: str, expected: str) -> tuple[str, str]:
    """The operand and the text of an error of an inlined operator, whose slots and attributes the caller lacks."""
    operand = inputs[name] if name in inputs else next(iter(inputs.values()))
    text = _NAMED.sub(r"\1", expected)
    return slot_of(operand), f"what {op.type} takes, {name}: {text}"


def _specs(
    op: OpDef, inputs: Mapping[str, Tensor], outputs: Outputs, attrs: Mapping[str, Any], state: Tracing
) -> Mapping[str, Spec] | None:
    """The outputs of a call; None if the operator refuses the operands or this call is being decomposed."""
    ins = {slot: (_spec(x, state),) for slot, x in inputs.items()}
    try:
        call = state.build.callee(op, ins, dict.fromkeys(outputs, 1), attrs)
    except (DtypeError, ShapeError):
        return None
    if call is None:
        return None
    for slot, x in outputs.items():
        spec = call.outs[slot][0]
        rounded = x.dtype == "float32" and spec.dtype in HALVES
        if spec.dims != dims_of(x) or not (spec.dtype == x.dtype or rounded):
            computed = f"{x.dtype}{list(dims_of(x))}"
            raise ProgramError(f"a call of {op.type} makes {spec!r} as {slot}, where its function says {computed}")
    return {slot: call.outs[slot][0] for slot in outputs}


def _spec(x: Tensor, state: Tracing) -> Spec:
    """The spec of an operand."""
    if x.op == "input":
        spec: Spec = state.build.call.spec(*x.params)
        return spec
    return Spec.of(dims_of(x), x.dtype)
