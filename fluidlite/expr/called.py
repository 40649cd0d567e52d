"""A part of an expression that is what another operator makes: where a call is decomposed, a call of that operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fluidlite.base.dtypes import HALVES
from fluidlite.base.errors import AttributeValueError, DtypeError, ProgramError, ShapeError
from fluidlite.expr.number import Number
from fluidlite.expr.scalars import tensor_function
from fluidlite.expr.tensor import Tensor, cast, refuse, tensor
from fluidlite.expr.tracing import Tracing, current
from fluidlite.framework.opdef import OpDef
from fluidlite.framework.registry import ops
from fluidlite.framework.spec import Spec

Made = Mapping[str, Tensor]


def call(
    type: str,
    inputs: Mapping[str, Tensor],
    attrs: Mapping[str, Any] | None = None,
    function: Callable[[], Made] | None = None,
) -> Made:
    """What the operator of that type makes of these operands and attributes, by slot.

    Where a call is decomposed, each slot that is used is one call of the operator, for which there may be a kernel.
    Everywhere else it is what ``function`` says: where arrays compute, in a derivative, where the operator does not
    take these operands, and where this very call of the operator is being decomposed.

    Parameters
    ----------
    type : str
    inputs : mapping of slot to Tensor
        Operands, or what is computed of them in their dtypes.
    attrs : mapping of name to value
        The others are at their defaults.
    function : callable, optional
        Returns what the operator makes, by slot; None: what the operator's expression says. An operator that is said
        with a call of itself has to give it.

    Raises
    ------
    ProgramError
        If the operator has no expression, or is said with itself, or makes something else than ``function`` says.
    """
    op, state = ops.get(type), current()
    told = {name: tuple(value) if isinstance(value, list) else value for name, value in (attrs or {}).items()}
    found = function() if function is not None else _meaning(op, inputs, told, state)
    if state.build is None:
        return found
    known = {name: n.evaluate(state.values) if isinstance(n, Number) else n for name, n in told.items()}
    specs = _specs(op, inputs, found, known, state)
    if specs is None:
        return found
    args, params = list(inputs.values()), (type, tuple(inputs), tuple(known.items()))
    return {slot: tensor("call", args, (slot, *params), x.dims, specs[slot].dtype) for slot, x in found.items()}


def _meaning(op: OpDef, inputs: Mapping[str, Tensor], attrs: Mapping[str, Any], state: Tracing) -> Made:
    """What an operator's expression says."""
    computed = op.expression.function if op.expression is not None else tensor_function(op)
    if computed is None:
        refuse(f"{op.type} has no expression; expected a function that says what a call of it makes")
    if op.type in state.said:
        refuse(f"{op.type} is said with a call of itself; expected a function that says what this call makes")
    state.said.append(op.type)
    try:
        every = {**{a.name: a.default for a in op.attrs}, **attrs}
        made = computed({slot: (x,) for slot, x in inputs.items()}, every)
    finally:
        state.said.pop()
    several = {slot: x if isinstance(x, (tuple, list)) else (x,) for slot, x in made.items()}
    stored = op.expression.stored if op.expression is not None else {}
    return {slot: cast(x, stored.get(slot) or x.dtype) for slot, (x, *more) in several.items() if not more}


def _specs(
    op: OpDef, inputs: Mapping[str, Tensor], found: Made, attrs: Mapping[str, Any], state: Tracing
) -> Mapping[str, Spec] | None:
    """The outputs of a call of the operator; None if it does not take these operands, or is being decomposed itself."""
    given = {slot: (_spec(x, state),) for slot, x in inputs.items()}
    try:
        made = state.build.callee(op, given, dict.fromkeys(found, 1), attrs)
    except (AttributeValueError, DtypeError, ShapeError):
        return None
    if made is None:
        return None
    for slot, x in found.items():
        spec = made.outs[slot][0]
        rounded = x.dtype == "float32" and spec.dtype in HALVES
        if spec.dims != _dims(x, state) or not (spec.dtype == x.dtype or rounded):
            said = f"{x.dtype}{list(_dims(x, state))}"
            raise ProgramError(f"a call of {op.type} makes {spec!r} as {slot}, where its function says {said}")
    return {slot: made.outs[slot][0] for slot in found}


def _spec(x: Tensor, state: Tracing) -> Spec:
    """The metadata of an operand."""
    if x.op == "input":
        found: Spec = state.build.call.spec(*x.params)
        return found
    return Spec.of(_dims(x, state), x.dtype)


def _dims(x: Tensor, state: Tracing) -> tuple[int, ...]:
    return tuple(int(d.evaluate(state.values)) for d in x.dims)
