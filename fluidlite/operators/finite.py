"""isfinite, isinf, isnan: one result for the whole tensor, as in Fluid 1.x."""

from __future__ import annotations

from collections.abc import Callable

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.expr.declare import operator


def _answer(
    type: str, test: Callable[[e.Tensor], e.Tensor], join: Callable[[e.Tensor], e.Tensor], of_integers: bool, doc: str
) -> None:
    @operator(type, dtypes={"X": (*ALL_FLOATS, *INTS)}, doc=doc, source="Fluid isfinite_op.cc")
    def answer(x: e.Tensor) -> e.Tensor:
        """Integers are always finite, so that they are not read."""
        return e.reshape(join(test(x)), (1,)) if "float" in x.dtype else e.full((1,), of_integers, "bool")


_answer("isfinite", e.isfinite, e.reduce_all, True, "Out = whether no element of X is infinite or NaN, as [1]")
_answer("isinf", e.isinf, e.reduce_any, False, "Out = whether an element of X is infinite, as [1]")
_answer("isnan", e.isnan, e.reduce_any, False, "Out = whether an element of X is NaN, as [1]")
