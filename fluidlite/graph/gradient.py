"""Derivatives: operators that compute gradients, made by the framework's backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union, overload

from fluidlite.base.errors import GradientError
from fluidlite.compiler.ir.node import DERIVES
from fluidlite.graph.value import Like, Value, as_value, emit, one_program, value_like
from fluidlite.graph.variables import trainable
from fluidlite.program.backward import gradients
from fluidlite.program.block import Block
from fluidlite.program.contents import Attributes
from fluidlite.program.gradient_paths import NoDerivativeError
from fluidlite.program.source_location import NOWHERE
from fluidlite.program.variable import Variable

UNUSED = ("raise", "zero")


@overload
def deriv(dependent: Value, independent: Variable, error: Like | None = None, unused: str = "raise") -> Value: ...
@overload
def deriv(
    dependent: Value, independent: Sequence[Variable], error: Like | None = None, unused: str = "raise"
) -> list[Value]: ...
def deriv(
    dependent: Value, independent: Union[Variable, Sequence[Variable]], error: Like | None = None, unused: str = "raise"
) -> Any:
    """Return the derivative of a value with respect to another; it adds to the graph and runs nothing.

    Its operators stand right behind those of ``dependent``: they read state as ``dependent`` does, whatever is
    assigned later. Derivatives do not pass through assignments.

    Parameters
    ----------
    dependent : Value
        One float; of other dims only with ``error``.
    independent : Value, or a list of them
    error : Value, number or array_like, optional
        The derivative of the final quantity with respect to ``dependent``, with its dims; default: 1.
    unused : {"raise", "zero"}
        Where ``dependent`` does not depend on ``independent``, or only through :func:`stop_gradient`, assignments and
        functions whose derivative is 0 almost everywhere: an error, or zeros of its dims.

    Returns
    -------
    Value, or a list of them
        Of the dims of ``independent``.

    Raises
    ------
    ValueError
        If ``dependent`` is no scalar and there is no ``error``, if the dims of ``error`` are others, or
        ``independent`` is unused; and, whatever ``unused`` says, if ``dependent`` depends on ``independent`` through an
        operator that has no derivative there, such as most derivatives: it is named.
    """
    if unused not in UNUSED:
        raise GradientError(f"unused is {unused!r}; expected 'raise' or 'zero'")
    target = as_value(dependent)
    several = isinstance(independent, (list, tuple))
    given_to: Any = independent
    wanted: list[Variable] = list(given_to) if several else [given_to]
    for variable in wanted:
        if not isinstance(variable, Variable):
            raise GradientError(f"deriv with respect to {variable!r}; expected a value of the graph")
    if error is None and target._spec().size != 1:
        raise GradientError(
            f"{target.name!r} has dims {list(target.shape)}; the derivative of what is no scalar needs an error tensor"
            "\n  Do: ng.deriv(dependent, independent, error), or reduce it first"
        )
    given = value_like(error, target.dtype, target) if error is not None else None
    one_program([target, *wanted, *([given] if given is not None else [])], "deriv")
    if given is not None and given.shape != target.shape:
        raise GradientError(
            f"the error tensor {given.name!r} has dims {list(given.shape)}; {target.name!r} has {list(target.shape)}"
        )
    found = [_derivative(target, variable, given, unused) for variable in wanted]
    return found if several else found[0]


def _derivative(target: Value, variable: Variable, error: Value | None, unused: str) -> Value:
    known = target.__dict__.setdefault("derivatives", {})
    key = (variable.name, error.name if error is not None else None)
    if key not in known:
        _differentiate(target, variable, error, known)
    found: str | None = known[key]
    if found is not None:
        return as_value(target.block.var(found))
    if unused == "raise":
        raise GradientError(
            f"{target.name!r} does not depend on {variable.name!r} where derivatives pass"
            "\n  Do: ng.deriv(..., unused='zero') for zeros"
        )
    return emit("fill_zeros_like", {"X": variable}, fixed=True)


def _differentiate(target: Value, variable: Variable, error: Value | None, known: dict[Any, str | None]) -> None:
    """Append one backward that all variables share, and put it behind what it is the derivative of."""
    block = target.block
    others = [v for v in list(block.vars.values()) if trainable(v) and v.name != variable.name]
    asked = [variable, *others] if trainable(variable) else [variable]
    start = len(block.ops)
    while True:
        try:
            made = gradients(target, asked, error)
            break
        except NoDerivativeError as exc:
            if exc.origin == variable.name:
                raise
            asked = [item for item in asked if item.name != exc.origin]  # nobody has asked for it
    _mark(block, start)
    name = error.name if error is not None else None
    for item, gradient in zip(asked, made, strict=True):
        known[item.name, name] = gradient.name if gradient is not None else None
    _move_behind(block, start, {target.name} | ({name} if name is not None else set()))


def _mark(block: Block, start: int) -> None:
    """Note of each new operator whose derivative it computes: it reads state as that one did (see ``lower``)."""
    made = {id(op.line): op for op in reversed(block.ops[:start]) if op.line is not NOWHERE}
    for op in block.ops[start:]:
        forward = made.get(id(op.line))  # backward gives an operator the line of the one that it derives
        if forward is not None:
            op._hints = Attributes({**op.hints, DERIVES: forward.id})


def _move_behind(block: Block, start: int, names: set[str]) -> None:
    """Move the operators from ``start`` on behind the last earlier one that makes one of the names."""
    writers = [i for i, op in enumerate(block.ops[:start]) if not names.isdisjoint(op.output_arg_names)]
    if not writers:
        return
    at = writers[-1] + 1
    block.ops[at:] = block.ops[start:] + block.ops[at:start]
