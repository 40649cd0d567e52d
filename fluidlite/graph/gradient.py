"""Derivatives: appends gradient operators by the framework's backward pass."""

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

UNUSED_MODES = ("raise", "zero")


@overload
def deriv(dependent: Value, independent: Variable, error: Like | None = None, unused: str = "raise") -> Value: ...
@overload
def deriv(
    dependent: Value, independent: Sequence[Variable], error: Like | None = None, unused: str = "raise"
) -> list[Value]: ...
def deriv(
    dependent: Value, independent: Union[Variable, Sequence[Variable]], error: Like | None = None, unused: str = "raise"
) -> Any:
    """Return the derivative of a value with respect to another; appends operators and runs nothing.

    The operators are inserted directly after those of ``dependent``: they read the same state as ``dependent``, before
    later assignments. No derivative flows through assignments.

    Parameters
    ----------
    dependent : Value
        A float scalar; with ``error``, a float value of any dims.
    independent : Value, or a list of them
    error : Value, number or array_like, optional
        The derivative of the final quantity with respect to ``dependent``, of the same dims; default: 1.
    unused : {"raise", "zero"}
        The result if ``dependent`` does not depend on ``independent``, or only through :func:`stop_gradient`,
        assignments and functions whose derivative is 0 almost everywhere: an error, or zeros.

    Returns
    -------
    Value, or a list of them
        Has the dims of ``independent``.

    Raises
    ------
    ValueError
        If ``dependent`` is no scalar and ``error`` is missing, if ``error`` has other dims, or if ``independent`` is
        unused; and, for any ``unused``, if ``dependent`` depends on ``independent`` through an operator without a
        derivative there, such as most gradient operators; the error names it.
    """
    if unused not in UNUSED_MODES:
        raise GradientError(f"unused is {unused!r}; expected 'raise' or 'zero'")
    target = as_value(dependent)
    is_list = isinstance(independent, (list, tuple))
    independents: Any = independent
    variables: list[Variable] = list(independents) if is_list else [independents]
    for variable in variables:
        if not isinstance(variable, Variable):
            raise GradientError(f"deriv with respect to {variable!r}; expected a value of the graph")
    if error is None and target._spec().size != 1:
        raise GradientError(
            f"{target.name!r} has dims {list(target.shape)}; the derivative of a non-scalar needs an error tensor"
            "\n  Do: ng.deriv(dependent, independent, error), or reduce it first"
        )
    seed = value_like(error, target.dtype, target) if error is not None else None
    one_program([target, *variables, *([seed] if seed is not None else [])], "deriv")
    if seed is not None and seed.shape != target.shape:
        raise GradientError(
            f"the error tensor {seed.name!r} has dims {list(seed.shape)}; {target.name!r} has {list(target.shape)}"
        )
    derivatives = [_derivative(target, variable, seed, unused) for variable in variables]
    return derivatives if is_list else derivatives[0]


def _derivative(target: Value, variable: Variable, error: Value | None, unused: str) -> Value:
    derivatives = target.__dict__.setdefault("derivatives", {})
    key = (variable.name, error.name if error is not None else None)
    if key not in derivatives:
        _differentiate(target, variable, error, derivatives)
    gradient_name: str | None = derivatives[key]
    if gradient_name is not None:
        return as_value(target.block.var(gradient_name))
    if unused == "raise":
        raise GradientError(
            f"{target.name!r} does not depend on {variable.name!r} where derivatives pass"
            "\n  Do: ng.deriv(..., unused='zero') for zeros"
        )
    return emit("fill_zeros_like", {"X": variable}, fixed=True)


def _differentiate(target: Value, variable: Variable, error: Value | None, derivatives: dict[Any, str | None]) -> None:
    """Append one backward pass for all trainable variables, and move it after the operators that it differentiates."""
    block = target.block
    trainable_variables = [v for v in list(block.vars.values()) if trainable(v) and v.name != variable.name]
    variables = [variable, *trainable_variables] if trainable(variable) else [variable]
    start = len(block.ops)
    while True:
        try:
            results = gradients(target, variables, error)
            break
        except NoDerivativeError as exc:
            if exc.origin == variable.name:
                raise
            variables = [item for item in variables if item.name != exc.origin]  # it was not requested
    _mark_derivatives(block, start)
    name = error.name if error is not None else None
    for item, gradient in zip(variables, results, strict=True):
        derivatives[item.name, name] = gradient.name if gradient is not None else None
    _move_after_writers(block, start, {target.name} | ({name} if name is not None else set()))


def _mark_derivatives(block: Block, start: int) -> None:
    """Mark new operators with the operator that they differentiate, whose state they read (see ``lower``)."""
    forward_ops = {id(op.line): op for op in reversed(block.ops[:start]) if op.line is not NOWHERE}
    for op in block.ops[start:]:
        forward = forward_ops.get(id(op.line))  # backward copies the line of the forward operator
        if forward is not None:
            op._hints = Attributes({**op.hints, DERIVES: forward.id})


def _move_after_writers(block: Block, start: int, names: set[str]) -> None:
    """Move the operators from ``start`` on to after the last earlier operator that writes one of the names."""
    writers = [i for i, op in enumerate(block.ops[:start]) if not names.isdisjoint(op.output_arg_names)]
    if not writers:
        return
    at = writers[-1] + 1
    block.ops[at:] = block.ops[start:] + block.ops[at:start]
