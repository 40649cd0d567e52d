"""A part of an expression that is what another operator makes: where a call is decomposed, a call of that operator."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from fluidlite.base.dtypes import HALVES
from fluidlite.base.errors import DtypeError, ProgramError, ShapeError
from fluidlite.expr.attributes import Refused
from fluidlite.expr.number import Number
from fluidlite.expr.scalars import tensor_function
from fluidlite.expr.tensor import Tensor, cast, refuse, slot_of, tensor
from fluidlite.expr.tracing import Tracing, current
from fluidlite.program.opdef import OpDef
from fluidlite.program.registry import ops
from fluidlite.tensor.tensor_spec import Spec

Outputs = Mapping[str, Tensor]
_NAMED = re.compile(r"\{([A-Za-z]\w*)\}")
"""An operand in the text of an error."""


def call(
    type: str,
    inputs: Mapping[str, Tensor],
    attrs: Mapping[str, Any] | None = None,
    function: Callable[[], Outputs] | None = None,
) -> Outputs:
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
        If the operator has no such slot or attribute, or the attribute cannot be that; if it has no expression, infers
        its outputs by other means, or is said with itself, and no ``function`` is given; if it makes something else
        than ``function`` says.
    """
    op, state = ops.get(type), current()
    told = _checked(op, inputs, attrs or {})
    found = function() if function is not None else meaning(op, {slot: (x,) for slot, x in inputs.items()}, told)
    if state.build is None:
        state.called = state.called or not state.spelled
        return found
    known = {name: n.evaluate(state.values) if isinstance(n, Number) else n for name, n in told.items()}
    specs = _specs(op, inputs, found, known, state)
    if specs is None:
        return found
    args, params = list(inputs.values()), (type, tuple(inputs), tuple(known.items()))
    return {slot: tensor("call", args, (slot, *params), x.dims, specs[slot].dtype) for slot, x in found.items()}


def _checked(op: OpDef, inputs: Mapping[str, Tensor], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes in canonical form; numbers of the call are looked at once they are known."""
    for slot, x in inputs.items():
        if op.input(slot) is None:
            refuse(f"{op.type} has no input slot {slot!r}")
        if not isinstance(x, Tensor):
            refuse(f"a call of {op.type} takes one tensor as {slot}, got {x!r}")
    for declared in op.inputs:
        if declared.name not in inputs and not declared.dispensable:
            refuse(f"a call of {op.type} leaves out {declared.name}")
    known, told = {attr.name: attr for attr in op.attrs}, {}
    for name, value in attrs.items():
        if name not in known:
            refuse(f"{op.type} has no attribute {name!r}")
        several = value if isinstance(value, (list, tuple)) else (value,)
        open_ = any(isinstance(n, Number) for n in several)
        if open_:
            told[name] = tuple(value) if isinstance(value, list) else value
        else:
            told[name] = known[name].check(value)
    return told


def meaning(
    op: OpDef, operands: Mapping[str, Sequence[Tensor]], attrs: Mapping[str, Any], draws: bool = False
) -> Outputs:
    """What an operator's expression makes of operands, by slot: outputs of one tensor each.

    ``attrs``: others are at their defaults.
    ``draws``: whether it may draw random numbers.
    Raises ProgramError if it has no expression, infers its outputs by other means and reads these, or is said with
    itself.
    """
    state = current()
    function = op.expression.function if op.expression is not None else tensor_function(op, draws)
    if function is None:
        refuse(f"{op.type} has no expression; expected a function that says what a call of it makes")
    if op.type in state.said:
        refuse(f"{op.type} is said with a call of itself; expected a function that says what this call makes")
    inputs = {slot: found[0] for slot, found in operands.items() if found}
    state.said.append(op.type)
    before, results = len(state.requirements), state.results
    state.results = _Inferred(op.type)
    try:
        every = {**{a.name: a.default for a in op.attrs}, **attrs}
        made = function(operands, every)
    except Refused as refused:
        raise Refused("slot", *_blamed(op, inputs, refused.name, refused.expected)) from refused
    finally:
        state.said.pop()
        state.results = results
    for k, each in enumerate(state.requirements[before:], before):
        name, expected = _blamed(op, inputs, each.name, each.expected)
        state.requirements[k] = replace(each, name=name, expected=expected, attr=False)
    several = {slot: x if isinstance(x, (tuple, list)) else (x,) for slot, x in made.items()}
    stored = op.expression.stored if op.expression is not None else {}
    return {slot: cast(x, stored.get(slot) or x.dtype) for slot, (x, *more) in several.items() if not more}


class _Inferred(dict[str, Any]):
    """The outputs of an operator that infers them by other means than its expression, which are not known here."""

    def __init__(self, type: str) -> None:
        super().__init__()
        self.type = type

    def __missing__(self, slot: str) -> NoReturn:
        refuse(f"{self.type} infers {slot} by other means; expected a function that says what this call makes")


def _blamed(op: OpDef, inputs: Mapping[str, Tensor], name: str, expected: str) -> tuple[str, str]:
    """The operand that an error names, and what it says: the operator's slots and attributes are none of the caller."""
    blamed = inputs[name] if name in inputs else next(iter(inputs.values()))
    said = _NAMED.sub(r"\1", expected)
    return slot_of(blamed), f"what {op.type} takes, {name}: {said}"


def _specs(
    op: OpDef, inputs: Mapping[str, Tensor], outputs: Outputs, attrs: Mapping[str, Any], state: Tracing
) -> Mapping[str, Spec] | None:
    """The outputs of a call of the operator; None if it does not take these operands, or is being decomposed itself."""
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
        if spec.dims != _dims(x, state) or not (spec.dtype == x.dtype or rounded):
            said = f"{x.dtype}{list(_dims(x, state))}"
            raise ProgramError(f"a call of {op.type} makes {spec!r} as {slot}, where its function says {said}")
    return {slot: call.outs[slot][0] for slot in outputs}


def _spec(x: Tensor, state: Tracing) -> Spec:
    """The metadata of an operand."""
    if x.op == "input":
        found: Spec = state.build.call.spec(*x.params)
        return found
    return Spec.of(_dims(x, state), x.dtype)


def _dims(x: Tensor, state: Tracing) -> tuple[int, ...]:
    return tuple(int(d.evaluate(state.values)) for d in x.dims)
