"""Regularizers: weight decay, added to a parameter's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fluidlite.base.arguments import finite
from fluidlite.program.saved_options import saved

if TYPE_CHECKING:
    from fluidlite.program.block import Block
    from fluidlite.program.variable import Parameter, Variable


class WeightDecayRegularizer:
    """Base of the regularizers."""

    def __init__(self, regularization_coeff: float = 0.0) -> None:
        what = f"regularizer.{type(self).__name__}: regularization_coeff"
        self._regularization_coeff = finite(what, regularization_coeff)

    def __call__(self, param: Parameter, grad: Variable, block: Block) -> Variable:
        """Append the computation of the term that is added to ``grad``; return it."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it adds")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._regularization_coeff})"

    def _scaled(self, var: Variable, block: Block) -> Variable:
        out = block.create_temporary(var.dtype, "regularizer.tmp", stop_gradient=True)
        block.append_op("scale", {"X": var}, {"Out": out}, {"scale": self._regularization_coeff})
        return out


@saved("regularizer", "_regularization_coeff")
class L2DecayRegularizer(WeightDecayRegularizer):
    """Adds coeff * parameter: the gradient of coeff / 2 times the sum of squares."""

    def __call__(self, param: Parameter, grad: Variable, block: Block) -> Variable:
        return self._scaled(param, block)


@saved("regularizer", "_regularization_coeff")
class L1DecayRegularizer(WeightDecayRegularizer):
    """Adds coeff * sign(parameter): the gradient of coeff times the sum of absolute values."""

    def __call__(self, param: Parameter, grad: Variable, block: Block) -> Variable:
        sign = block.create_temporary(param.dtype, "regularizer.tmp", stop_gradient=True)
        block.append_op("sign", {"X": param}, {"Out": sign})
        return self._scaled(sign, block)


def append_regularization_ops(
    parameters_and_grads: Sequence[tuple[Parameter, Variable | None]],
    regularization: WeightDecayRegularizer | None = None,
) -> list[tuple[Parameter, Variable | None]]:
    """Add each parameter's weight decay to its gradient; all rows decay, so that sparse rows become a dense gradient.

    Parameters
    ----------
    parameters_and_grads : list of (parameter, gradient or None)
    regularization : WeightDecayRegularizer, optional
        For parameters without their own.

    Returns
    -------
    list of (parameter, gradient or None)
    """
    from fluidlite.layers.selected_rows import to_dense

    decayed: list[tuple[Parameter, Variable | None]] = []
    for param, grad in parameters_and_grads:
        regularizer = param.regularizer or regularization
        if grad is not None and regularizer is not None:
            block = grad.block.program.current_block()
            with block.program.roles("optimize"):
                term, grad = regularizer(param, grad, block), to_dense(grad)
                block.append_op("elementwise_add", {"X": grad, "Y": term}, {"Out": grad})
        decayed.append((param, grad))
    return decayed


L1Decay = L1DecayRegularizer
L2Decay = L2DecayRegularizer
