"""SGD, Momentum, LarsMomentum and Dpsgd: optimisers with one learning rate for all elements of a parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite.optimizer.argument_order import hyperparameters
from fluidlite.optimizer.base import Clip, Decay, Parameters, Rate
from fluidlite.optimizer.updater import StateVar, Updater
from fluidlite.program.variable import Parameter

_VELOCITY = StateVar("velocity", "Velocity", wide=False)


class SGDOptimizer(Updater):
    """Param = Param - learning_rate Grad. Parameters as in :class:`Optimizer`."""

    type = "sgd"
    updates_rows_only = True


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
    states = (_VELOCITY,)
    renamed = (("momentum", "mu"),)

    @hyperparameters
    def __init__(
        self,
        learning_rate: Rate,
        momentum: float,
        parameter_list: Parameters = None,
        use_nesterov: bool = False,
        regularization: Decay = None,
        grad_clip: Clip = None,
        name: str | None = None,
    ) -> None: ...


class LarsMomentumOptimizer(Updater):
    """Momentum with a rate by layer: learning_rate lars_coeff |Param| / (|Grad| + lars_weight_decay |Param|).

    Parameters
    ----------
    learning_rate : float or Variable
    momentum : float
    lars_coeff : float
        Trust coefficient, the factor of the ratio of the norms.
    lars_weight_decay : float
    parameter_list, regularization, grad_clip, name
        As in :class:`Optimizer`.
    exclude_from_weight_decay : list of str, optional
        Parameters whose name has one of these in it do not decay.
    epsilon : float
        Is added to the divisor.
    """

    type = "lars_momentum"
    states = (_VELOCITY,)
    renamed = (("momentum", "mu"),)
    _exclude_from_weight_decay: Sequence[str] | None

    @hyperparameters
    def __init__(
        self,
        learning_rate: Rate,
        momentum: float,
        lars_coeff: float = 0.001,
        lars_weight_decay: float = 0.0005,
        parameter_list: Parameters = None,
        regularization: Decay = None,
        grad_clip: Clip = None,
        name: str | None = None,
        exclude_from_weight_decay: Sequence[str] | None = None,
        epsilon: float = 0,
    ) -> None: ...

    def _attrs(self, param: Parameter) -> dict[str, Any]:
        excluded = any(part in param.name for part in self._exclude_from_weight_decay or ())
        return {**super()._attrs(param), "lars_weight_decay": 0.0} if excluded else super()._attrs(param)


class DpsgdOptimizer(Updater):
    """Differentially private SGD: gradients are clipped to a norm, and get noise (Abadi and others, 2016).

    Parameters
    ----------
    learning_rate : float or Variable
    clip : float
        Maximum norm of a gradient.
    batch_size : float
        The noise is divided by it.
    sigma : float
        Standard deviation of the noise.
    parameter_list : list, optional
        As in :class:`Optimizer`.
    """

    type = "dpsgd"

    @hyperparameters
    def __init__(
        self,
        learning_rate: Rate = 0.001,
        clip: float = 0.9,
        batch_size: float = 0.999,
        sigma: float = 1e-8,
        parameter_list: Parameters = None,
    ) -> None: ...
