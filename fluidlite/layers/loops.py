"""Loops: While, and while_loop on functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fluidlite.base.errors import ProgramError, ShapeError
from fluidlite.control_flow.sub_program import outer_writes
from fluidlite.layer_helper import LayerHelper, check_function, check_int, check_variable, refuse
from fluidlite.layers.sub_blocks import control_flow, sub_block
from fluidlite.layers.tensor import assign
from fluidlite.layers.utils import flatten, pack_sequence_as
from fluidlite.program.block import Block
from fluidlite.program.variable import Variable

__all__ = ["While", "while_loop"]


def check_condition(argument: str, value: Any) -> Variable:
    variable = check_variable(argument, value)
    if variable.spec is not None and (
        variable.dtype != "bool" or (variable.spec.is_static and variable.spec.size != 1)
    ):
        do = "compare two variables of shape [1], such as layers.less_than(i, n)"
        refuse(argument, variable, "a bool of one element", do)
    return variable


class While:
    """A loop: its block runs while a condition holds.

    Parameters
    ----------
    cond : Variable
        bool [1]. The block has to write it, as ``layers.less_than(i, n, cond=cond)`` does.
    is_test : bool
        No gradient is taken through the loop, so nothing is saved of the iterations.
    name : str, optional
    max_iterations : int, optional
        More iterations raise an error; default: no limit.

    Raises
    ------
    ProgramError
        If ``cond`` is no bool of one element, or at the end of the block, if the block does not write ``cond``.

    Notes
    -----
    Outer variables that the block writes have, after the loop, their values of the last iteration, or their old ones
    if there is none. Gradients flow through them unless their ``stop_gradient`` is set, as ``layers.fill_constant``
    does in its result. An iteration computes on the place; only the condition is read by the host.

    Examples
    --------
    >>> i = layers.fill_constant([1], "int64", 0)
    >>> n = layers.fill_constant([1], "int64", 10)
    >>> more = layers.less_than(i, n)
    >>> loop = layers.While(more)
    >>> with loop.block():
    ...     layers.increment(i)
    ...     layers.less_than(i, n, cond=more)
    """

    def __init__(
        self, cond: Variable, is_test: bool = False, name: str | None = None, max_iterations: int | None = None
    ) -> None:
        self.helper = LayerHelper("while", name=name)
        self.cond_var = check_condition("cond", cond)
        self.is_test = bool(is_test)
        self.max_iterations = 0 if max_iterations is None else check_int("max_iterations", max_iterations, 1)

    def block(self) -> AbstractContextManager[Block]:
        """Layers inside define one iteration."""
        return sub_block(self.helper.main_program, self._done)

    def _done(self, outer: Block, body: Block) -> None:
        name = self.cond_var.name
        if name not in outer_writes(body):
            raise ProgramError(
                f"the block of While never writes its condition {name!r}: it would run for ever, or not at all"
                f"\n  Do: compare again at its end, such as layers.less_than(i, n, cond={name})"
            )
        attrs = {"condition": name, "is_test": self.is_test, "max_iterations": self.max_iterations}
        control_flow(outer, "while", [body], "X", {"Condition": self.cond_var}, attrs)


def while_loop(
    cond: Callable[..., Variable],
    body: Callable[..., Any],
    loop_vars: Sequence[Any],
    is_test: bool = False,
    name: str | None = None,
    max_iterations: int | None = None,
) -> list[Any]:
    """Apply ``body`` to the loop's variables while ``cond`` holds; return their last values.

    cond: ``cond(*loop_vars)`` returns bool [1]
    body: ``body(*loop_vars)`` returns as many values, of the same structure, dtypes and ranks
    loop_vars: Variables, or lists, tuples and dicts of them
    is_test: No gradient is taken through the loop
    max_iterations: More iterations raise an error
    Returns: The values after the last iteration, in the structure of ``loop_vars``; these are not changed
    Raises: ProgramError: If an argument is of another kind, or ``body`` returns another structure
    """
    check_function("cond", cond)
    check_function("body", body)
    if not isinstance(loop_vars, (list, tuple)) or not loop_vars:
        refuse("loop_vars", loop_vars, "a list of one Variable or more")
    initial = [check_variable("loop_vars", each) for each in flatten(list(loop_vars))]
    loop_variables = [_loop_variable(variable) for variable in initial]
    arguments = pack_sequence_as(list(loop_vars), loop_variables)
    initial_condition = check_condition("cond", cond(*arguments))
    condition = assign(initial_condition)
    loop = While(condition, is_test, name, max_iterations)
    with loop.block():
        returned = body(*arguments)
        results = list(returned) if isinstance(returned, (list, tuple)) else [returned]
        values = flatten(results)
        if len(results) != len(loop_vars) or len(values) != len(loop_variables):
            raise ProgramError(
                f"body of while_loop returned {len(results)} value(s), {len(values)} variables; "
                f"expected {len(loop_vars)}, {len(loop_variables)} variables, as loop_vars has"
            )
        for old, new in zip(loop_variables, values, strict=True):
            check_variable("what body returned", new)
            before, after = old.spec, new.spec
            if before is not None and after is not None and (before.dtype != after.dtype or before.rank != after.rank):
                raise ShapeError(f"body of while_loop makes {after!r} of {before!r}; expected the same dtype and rank")
        write(loop_variables, values)
        assign(check_condition("cond", cond(*arguments)), output=condition)
    return list(arguments)


def write(targets: Sequence[Variable], new: Sequence[Variable]) -> None:
    """Assign new values to a loop's variables, as if all at the same time."""
    ids = {id(variable) for variable in targets}
    values = [
        assign(value) if id(value) in ids and value is not old else value
        for old, value in zip(targets, new, strict=True)
    ]
    for old, value in zip(targets, values, strict=True):
        if old is not value:
            assign(value, output=old)


def _loop_variable(variable: Variable) -> Variable:
    copy = assign(variable)
    copy.stop_gradient = False
    return copy
