"""SGD, Momentum, LarsMomentum and Dpsgd: optimisers with one rate for all elements of a parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite.clip import BaseGradientClipAttr
from fluidlite.framework.variable import Parameter, Variable
from fluidlite.optimizer.base import State, Updater
from fluidlite.optimizer.order import either_order
from fluidlite.regularizer import WeightDecayRegularizer

_VELOCITY = State("velocity", "Velocity", "VelocityOut", wide=False)


class SGDOptimizer(Updater):
    """Param = Param - learning_rate Grad. Parameters as in :class:`Optimizer`."""

    type = "sgd"


class MomentumOptimizer(Updater):
    """Velocity = momentum Velocity + Grad; Param = Param - learning_rate Velocity.

    Parameters
    ----------
    learning_rate : float or Variable
    momentum : float
    use_nesterov : bool
        Param = Param - learning_rate (Grad + momentum Velocity).
    parameter_list, regularization, grad_clip, name
        As in :class:`Optimizer`.
    """

    type = "momentum"

    @either_order
    def __init__(
        self,
        learning_rate: float | Variable,
        momentum: float,
        parameter_list: Sequence[Variable | str] | None = None,
        use_nesterov: bool = False,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: BaseGradientClipAttr | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._momentum = self._number("momentum", momentum)
        self._use_nesterov = bool(use_nesterov)

    def _states(self) -> tuple[State, ...]:
        return (_VELOCITY,)

    def _attrs(self, param: Parameter) -> dict[str, Any]:
        return {"mu": self._momentum, "use_nesterov": self._use_nesterov}


class LarsMomentumOptimizer(Updater):
    """Momentum with a rate by layer: learning_rate lars_coeff |Param| / (|Grad| + lars_weight_decay |Param|).

    Parameters
    ----------
    learning_rate : float or Variable
    momentum : float
    lars_coeff : float
        Trust in the ratio of the norms.
    lars_weight_decay : float
    parameter_list, regularization, grad_clip, name
        As in :class:`Optimizer`.
    exclude_from_weight_decay : list of str, optional
        Parameters whose name has one of these in it do not decay.
    epsilon : float
        Is added to the divisor.
    """

    type = "lars_momentum"

    @either_order
    def __init__(
        self,
        learning_rate: float | Variable,
        momentum: float,
        lars_coeff: float = 0.001,
        lars_weight_decay: float = 0.0005,
        parameter_list: Sequence[Variable | str] | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: BaseGradientClipAttr | None = None,
        name: str | None = None,
        exclude_from_weight_decay: Sequence[str] | None = None,
        epsilon: float = 0,
    ) -> None:
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._momentum = self._number("momentum", momentum)
        self._lars_coeff = self._number("lars_coeff", lars_coeff)
        self._lars_weight_decay = self._number("lars_weight_decay", lars_weight_decay)
        self._exclude_from_weight_decay = list(exclude_from_weight_decay or ())
        self._epsilon = self._number("epsilon", epsilon)

    def _states(self) -> tuple[State, ...]:
        return (_VELOCITY,)

    def _attrs(self, param: Parameter) -> dict[str, Any]:
        excluded = any(part in param.name for part in self._exclude_from_weight_decay)
        return {
            "mu": self._momentum, "lars_coeff": self._lars_coeff, "epsilon": self._epsilon,
            "lars_weight_decay": 0.0 if excluded else self._lars_weight_decay,
        }  # fmt: skip


class DpsgdOptimizer(Updater):
    """Differentially private SGD: gradients are clipped to a norm, and get noise (Abadi and others, 2016).

    Parameters
    ----------
    learning_rate : float or Variable
    clip : float
        Greatest norm of a gradient.
    batch_size : float
        The noise is divided by it.
    sigma : float
        Standard deviation of the noise.
    parameter_list : list, optional
        As in :class:`Optimizer`.
    """

    type = "dpsgd"

    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        clip: float = 0.9,
        batch_size: float = 0.999,
        sigma: float = 1e-8,
        parameter_list: Sequence[Variable | str] | None = None,
    ) -> None:
        super().__init__(learning_rate, parameter_list)
        self._clip = self._number("clip", clip)
        self._batch_size = self._number("batch_size", batch_size)
        self._sigma = self._number("sigma", sigma)

    def _attrs(self, param: Parameter) -> dict[str, Any]:
        return {"clip": self._clip, "batch_size": self._batch_size, "sigma": self._sigma}
