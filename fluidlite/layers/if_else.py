"""IfElse: rows of a batch go through one of two branches each."""

from __future__ import annotations

from types import TracebackType

from fluidlite.base.errors import ProgramError
from fluidlite.layer_helper import check_variable, refuse
from fluidlite.layers import ops
from fluidlite.layers.index import argsort, gather, where
from fluidlite.layers.shape import reshape
from fluidlite.layers.tensor import concat
from fluidlite.program.variable import Variable

__all__ = ["IfElse"]


class IfElse:
    """Two branches, of which each computes those rows of a batch for which a condition holds, or does not.

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
        self._now: bool | None = None
        flat = reshape(cond, [-1])
        self._rows = {True: reshape(where(flat), [-1]), False: reshape(where(ops.logical_not(flat)), [-1])}
        for rows in self._rows.values():
            rows.stop_gradient = True

    def true_block(self) -> Branch:
        """Layers inside see the rows for which the condition holds."""
        return Branch(self, True)

    def false_block(self) -> Branch:
        """Layers inside see the others."""
        return Branch(self, False)

    def input(self, x: Variable) -> Variable:
        """The rows of ``x`` that the branch sees."""
        return gather(check_variable("x", x), self._rows[self._side("input")])

    def output(self, *outs: Variable) -> None:
        """Say what the branch makes of its rows."""
        side = self._side("output")
        if not outs or side in self._outputs:
            raise ProgramError("IfElse.output is called once in each branch, with one Variable or more")
        self._outputs[side] = [check_variable("outs", each) for each in outs]

    def _side(self, method: str) -> bool:
        if self._now is None:
            raise ProgramError(f"IfElse.{method} is called inside of a branch\n  Do: with branches.true_block(): ...")
        return self._now

    def __call__(self) -> list[Variable]:
        """What both have made, row by row where the rows were."""
        one, other = self._outputs.get(True, []), self._outputs.get(False, [])
        if self._now is not None or not one or len(one) != len(other):
            raise ProgramError(
                f"the true_block of IfElse has {len(one)} outputs, its false_block {len(other)}; expected as many, "
                "after both blocks"
            )
        back = argsort(concat([self._rows[True], self._rows[False]]))[1]
        back.stop_gradient = True
        merged = []
        for x, y in zip(one, other, strict=True):
            if x.dtype != y.dtype or x._spec().rank != y._spec().rank:
                raise ProgramError(f"the branches of IfElse make {x._spec()!r} and {y._spec()!r} of their rows")
            merged.append(gather(concat([x, y]), back))
        return merged


class Branch:
    """One branch of an :class:`IfElse`, a context."""

    def __init__(self, whole: IfElse, side: bool) -> None:
        self._whole, self._side = whole, side

    def __enter__(self) -> None:
        if self._whole._now is not None:
            raise ProgramError("a branch of IfElse is opened in another")
        self._whole._now = self._side

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._whole._now = None
        if kind is None and self._side not in self._whole._outputs:
            raise ProgramError("a branch of IfElse has no output\n  Do: branches.output(...)")
