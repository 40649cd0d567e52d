"""Loops: While, and while_loop on functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fluidlite.base.errors import ProgramError, ShapeError
from fluidlite.control_flow.sub_program import writes_of
from fluidlite.layer_helper import LayerHelper, check_function, check_int, check_variable, refuse
from fluidlite.layers.structure import flat, packed
from fluidlite.layers.sub_blocks import SubBlock, control_flow
from fluidlite.layers.tensor import assign
from fluidlite.program.block import Block
from fluidlite.program.variable import Variable

__all__ = ["While", "while_loop"]


def check_condition(argument: str, value: Any) -> Variable:
    variable = check_variable(argument, value)
    if variable.spec is not None and (variable.dtype != "bool" or (variable.spec.known and variable.spec.size != 1)):
        do = "compare two variables of shape [1], such as layers.less_than(i, n)"
        refuse(argument, variable, "a bool of one element", do)
    return variable


class While:
    """A loop: its block runs as long as a condition holds.

    Parameters
    ----------
    cond : Variable
        bool [1]. The block has to write it, as ``layers.less_than(i, n, cond=cond)`` does.
    is_test : bool
        No gradient is taken through the loop: nothing is kept of the iterations.
    name : str, optional
    max_iterations : int, optional
        More iterations are an error; default: there may be any number.

    Raises
    ------
    ProgramError
        If ``cond`` is no bool of one element; and at the end of the block, if that does not write ``cond``.

    Notes
    -----
    Outer variables that the block writes have, after the loop, what the last iteration left in them, or what they had
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

    def block(self) -> SubBlock:
        """Layers inside are what one iteration does."""
        return SubBlock(self.helper.main_program, self._done)

    def _done(self, outer: Block, body: Block) -> None:
        name = self.cond_var.name
        if name not in writes_of(body):
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
    """Return what ``body``, applied again and again while ``cond`` holds, makes of the loop's variables.

    cond: ``cond(*loop_vars)`` returns bool [1]
    body: ``body(*loop_vars)`` returns as many values, of the same structure, dtypes and ranks
    loop_vars: Variables, or lists, tuples and dicts of them
    is_test: No gradient is taken through the loop
    max_iterations: More iterations are an error
    Returns: The values after the last iteration, in the structure of ``loop_vars``; these themselves are as they were
    Raises: ProgramError: If an argument is of another kind, or ``body`` returns another structure
    """
    check_function("cond", cond)
    check_function("body", body)
    if not isinstance(loop_vars, (list, tuple)) or not loop_vars:
        refuse("loop_vars", loop_vars, "a list of one Variable or more")
    given = [check_variable("loop_vars", each) for each in flat(list(loop_vars))]
    held = [_copy(variable) for variable in given]
    arguments = packed(list(loop_vars), held)
    pre = check_condition("cond", cond(*arguments))
    more = assign(pre)
    loop = While(more, is_test, name, max_iterations)
    with loop.block():
        returned = body(*arguments)
        results = list(returned) if isinstance(returned, (list, tuple)) else [returned]
        values = flat(results)
        if len(results) != len(loop_vars) or len(values) != len(held):
            raise ProgramError(
                f"body of while_loop returned {len(results)} value(s), {len(values)} variables; "
                f"expected {len(loop_vars)}, {len(held)} variables, as loop_vars has"
            )
        for old, new in zip(held, values, strict=True):
            check_variable("what body returned", new)
            one, other = old.spec, new.spec
            if one is not None and other is not None and (one.dtype != other.dtype or one.rank != other.rank):
                raise ShapeError(f"body of while_loop makes {other!r} of {one!r}; expected the same dtype and rank")
        write(held, values)
        assign(check_condition("cond", cond(*arguments)), output=more)
    return list(arguments)


def write(held: Sequence[Variable], new: Sequence[Variable]) -> None:
    """Write a loop's variables, all as of one moment."""
    ours = {id(variable) for variable in held}
    values = [
        assign(each) if id(each) in ours and each is not old else each for old, each in zip(held, new, strict=True)
    ]
    for old, each in zip(held, values, strict=True):
        if old is not each:
            assign(each, output=old)


def _copy(variable: Variable) -> Variable:
    made = assign(variable)
    made.stop_gradient = False
    return made
