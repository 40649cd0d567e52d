"""SimplePrune: algebraic identities that ignore the sign of zero."""

from __future__ import annotations

from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.passes.base import Add, Divide, Multiply, PeepholeGraphPass, Power, Subtract, visit


class SimplePrune(PeepholeGraphPass):
    """x + 0, x - 0, x 1, x / 1 and x ** 1 are x. NaN and infinities stay; x 0 is not replaced, as it may be NaN.

    The sign of a zero may change (-0.0 + 0.0 is 0.0), so it is in no list by default.
    """

    @visit.on_type(Add)
    @visit.on_type(Subtract)
    def _zero(self, op: GraphOp) -> None:
        self._neutral(op, 0)

    @visit.on_type(Multiply)
    @visit.on_type(Divide)
    @visit.on_type(Power)
    def _one(self, op: GraphOp) -> None:
        self._neutral(op, 1)

    @visit.on_type("scale")
    def _scale(self, op: GraphOp) -> None:
        if op.attrs["scale"] == 1 and op.attrs["bias"] == 0:
            self._replace_by(op, op.args[0])

    def _neutral(self, op: GraphOp, number: int) -> None:
        x, y = op.args
        for value, other in ((x, y), (y, x)) if op.type in (Add.type, Multiply.type) else ((x, y),):
            if other.is_scalar and other.is_constant and other.const == number:
                self._replace_by(op, value)
                return

    def _replace_by(self, op: GraphOp, value: GraphValue) -> None:
        if op.value.spec == value.spec:
            self.replace_op(op, value)
