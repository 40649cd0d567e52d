"""Python functions as operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fluidlite.base.errors import ProgramError
from fluidlite.layer_helper import LayerHelper, check_int, check_variable, check_variables, refuse
from fluidlite.operators.py_func import register_function
from fluidlite.program.variable import Variable


def py_func(
    func: Callable[..., Any],
    x: Variable | Sequence[Variable] | None,
    out: Variable | Sequence[Variable] | None,
    backward_func: Callable[..., Any] | None = None,
    skip_vars_in_backward_input: Variable | Sequence[Variable] | None = None,
) -> Variable | Sequence[Variable] | None:
    """Run a Python function in the program, on the host.

    func: ``func(*x)`` takes tensors (``numpy.asarray`` gives their values) and returns an array or tensor for each
        variable of ``out``
    out: Created by the caller, with the dims (-1 where they are open) and dtype that ``func`` returns
    backward_func: ``backward_func(*x, *out, *gradients of out)`` returns the gradients of ``x``; without it there are
        none
    skip_vars_in_backward_input: Variables of ``x`` and ``out`` that ``backward_func`` does not get
    Returns: ``out``
    Raises: ProgramError: If ``func`` is not callable, ``out`` has no dims, or a skipped variable is neither in ``x``
        nor in ``out``
    """
    for name, function in (("func", func), ("backward_func", backward_func)):
        if not callable(function) and (name == "func" or function is not None):
            raise ProgramError(f"layers.py_func: {name} is {function!r}; expected a function")
    xs, outs, skipped = (
        _as_list("x", x),
        _as_list("out", out),
        _as_list("skip_vars_in_backward_input", skip_vars_in_backward_input),
    )
    for variable in outs:
        if variable.spec is None:
            raise ProgramError(
                f"layers.py_func: the dims of out {variable.name!r} are not declared"
                "\n  Do: block.create_var(name, shape, dtype), with -1 for open dims"
            )
    names = {variable.name for variable in (*xs, *outs)}
    unknown = [variable.name for variable in skipped if variable.name not in names]
    if unknown:
        raise ProgramError(f"layers.py_func: skip_vars_in_backward_input names {unknown[0]!r}, neither in x nor in out")
    attrs = {
        "forward_callable_id": register_function(func),
        "backward_callable_id": register_function(backward_func) if backward_func is not None else -1,
        "backward_skip_vars": [variable.name for variable in skipped],
    }
    helper = LayerHelper("py_func")
    helper.append_op("py_func", {"X": xs} if xs else {}, {"Out": outs} if outs else {}, attrs)
    return out


def Assert(
    cond: Variable, data: Variable | Sequence[Variable] | None = None, summarize: int = 20, name: str | None = None
) -> None:
    """Raise an error in a run if a condition does not hold.

    cond: bool, of one element
    data: Variables that the error prints
    summarize: The number of printed elements of each, -1: all
    Raises: ProgramError: If ``cond`` is not bool
    """
    variables, max_elements = _as_list("data", data), check_int("summarize", summarize, minimum=-1)
    if check_variable("cond", cond).dtype != "bool":
        refuse("cond", cond, "a bool Variable, such as layers.less_than(x, y)")

    def check(holds: Any, *values: Any) -> None:
        if not np.asarray(holds).all():
            arrays = [np.asarray(value) for value in values]
            heads = [array.ravel()[: max_elements if max_elements >= 0 else None].tolist() for array in arrays]
            texts = [f"\n  {v.name} {[*a.shape]}: {head}" for v, a, head in zip(variables, arrays, heads, strict=True)]
            raise ProgramError(f"the condition {cond.name!r} does not hold{''.join(texts)}")

    py_func(check, [cond, *variables], None)


def _as_list(name: str, value: Any) -> list[Variable]:
    return [] if value is None else check_variables(name, value if isinstance(value, (list, tuple)) else [value])
