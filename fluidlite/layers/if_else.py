"""IfElse: each row of a batch goes through one of two branches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from fluidlite.base.errors import ProgramError
from fluidlite.layer_helper import check_variable, refuse
from fluidlite.layers import ops
from fluidlite.layers.index import argsort, gather, where
from fluidlite.layers.shape import reshape
from fluidlite.layers.tensor import concat
from fluidlite.program.variable import Variable

__all__ = ["IfElse"]


class IfElse:
    """Two branches: one computes the rows of a batch for which a condition holds, the other one the others.

    Parameters
    ----------
    cond : Variable
        bool [rows, 1]: which branch each row takes.
    name : str, optional

    Raises
    ------
    ProgramError
        If ``cond`` is no column of bools, a method is called outside of a branch, or the branches have no outputs, not
        as many, or of different dtypes or ranks.

    Examples
    --------
    >>> branches = layers.IfElse(cond)
    >>> with branches.true_block():
    ...     branches.output(layers.fc(branches.input(x), 10))
    >>> with branches.false_block():
    ...     branches.output(branches.input(x) * 0.1)
    >>> (out,) = branches()
    """

    def __init__(self, cond: Variable, name: str | None = None) -> None:
        spec = check_variable("cond", cond).spec
        if spec is None or spec.dtype != "bool" or spec.rank != 2 or spec.dims[1] not in (1, -1):
            refuse("cond", cond, "bool [rows, 1]")
        self._outputs: dict[bool, list[Variable]] = {}
        self._open_branch: bool | None = None
        flat = reshape(cond, [-1])
        self._rows = {True: reshape(where(flat), [-1]), False: reshape(where(ops.logical_not(flat)), [-1])}
        for rows in self._rows.values():
            rows.stop_gradient = True

    def true_block(self) -> AbstractContextManager[None]:
        """Layers inside compute the rows for which the condition holds."""
        return self._branch(True)

    def false_block(self) -> AbstractContextManager[None]:
        """Layers inside compute the other rows."""
        return self._branch(False)

    @contextmanager
    def _branch(self, side: bool) -> Iterator[None]:
        if self._open_branch is not None:
            raise ProgramError("a branch of IfElse is opened in another")
        self._open_branch = side
        try:
            yield
        finally:
            self._open_branch = None
        if side not in self._outputs:
            raise ProgramError("a branch of IfElse has no output\n  Do: branches.output(...)")

    def input(self, x: Variable) -> Variable:
        """The rows of ``x`` that the branch computes."""
        return gather(check_variable("x", x), self._rows[self._side("input")])

    def output(self, *outs: Variable) -> None:
        """Set the results of the branch for its rows."""
        side = self._side("output")
        if not outs or side in self._outputs:
            raise ProgramError("IfElse.output is called once in each branch, with one Variable or more")
        self._outputs[side] = [check_variable("outs", each) for each in outs]

    def _side(self, method: str) -> bool:
        if self._open_branch is None:
            raise ProgramError(f"IfElse.{method} is called inside of a branch\n  Do: with branches.true_block(): ...")
        return self._open_branch

    def __call__(self) -> list[Variable]:
        """The results of both branches, with rows in their original order."""
        first, second = self._outputs.get(True, []), self._outputs.get(False, [])
        if self._open_branch is not None or not first or len(first) != len(second):
            raise ProgramError(
                f"the true_block of IfElse has {len(first)} outputs, its false_block {len(second)}; expected as many, "
                "after both blocks"
            )
        positions = argsort(concat([self._rows[True], self._rows[False]]))[1]
        positions.stop_gradient = True
        merged = []
        for x, y in zip(first, second, strict=True):
            if x.dtype != y.dtype or x._spec().rank != y._spec().rank:
                raise ProgramError(f"the branches of IfElse make {x._spec()!r} and {y._spec()!r} of their rows")
            merged.append(gather(concat([x, y]), positions))
        return merged
