"""Optimisers with a learning rate for each element: Adam, Adamax, Adagrad, ..., Ftrl, Lamb."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluidlite.layer_helper import refuse
from fluidlite.optimizer.argument_order import hyperparameters
from fluidlite.optimizer.base import Clip, Decay, Parameters, Rate
from fluidlite.optimizer.updater import StateVar, Updater
from fluidlite.program.variable import Parameter, Variable


class _Moments(Updater):
    """An optimiser with beta1 and beta2, which may be Variables if ``beta_variables``."""

    beta_variables = False

    def _number(self, argument: str, value: Any) -> Any:
        if argument not in ("beta1", "beta2"):
            return super()._number(argument, value)
        if self.beta_variables and isinstance(value, Variable):
            return value
        if isinstance(value, (bool, str, Variable)) or not hasattr(value, "__float__") or not 0.0 <= value < 1.0:
            refuse(argument, value, "a number in [0, 1)")
        return float(value)


class AdamOptimizer(_Moments):
    """Adam (Kingma and Ba, 2015), as Fluid computes it.

    Parameters
    ----------
    learning_rate : float or Variable
    beta1, beta2 : float or Variable
        Decay rates of the two moments; a Variable is float32 [1].
    epsilon : float
    parameter_list, regularization, grad_clip, name
        As in :class:`Optimizer`.
    lazy_mode : bool
        With a sparse gradient (``is_sparse``), only its rows of the parameter and the moments are updated; else the
        others get a gradient of 0. It has no effect on dense gradients.
    """

    type = "adam"
    beta_variables = True
    states = (
        StateVar("moment1", "Moment1"),
        StateVar("moment2", "Moment2"),
        StateVar("beta1_pow_acc", "Beta1Pow", fill="beta1", number=True),
        StateVar("beta2_pow_acc", "Beta2Pow", fill="beta2", number=True),
    )

    @hyperparameters
    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta1: Rate = 0.9,
        beta2: Rate = 0.999,
        epsilon: float = 1e-8,
        parameter_list: Parameters = None,
        regularization: Decay = None,
        grad_clip: Clip = None,
        name: str | None = None,
        lazy_mode: bool = False,
    ) -> None: ...

    def _updates_rows(self, param: Parameter) -> bool:
        return bool(self._values["lazy_mode"])

    def _inputs(self) -> dict[str, Variable]:
        betas = {"Beta1Tensor": self._values["beta1"], "Beta2Tensor": self._values["beta2"]}
        return {slot: beta for slot, beta in betas.items() if isinstance(beta, Variable)}


class AdamaxOptimizer(_Moments):
    """Adamax (Kingma and Ba, 2015): Adam with the maximum gradient in place of the second moment.

    Parameters
    ----------
    learning_rate : float or Variable
    beta1, beta2 : float
        Decay rates of the moment and of the maximum gradient.
    epsilon : float
    parameter_list, regularization, grad_clip, name
        As in :class:`Optimizer`.
    """

    type = "adamax"
    states = (
        StateVar("moment", "Moment"),
        StateVar("inf_norm", "InfNorm"),
        StateVar("beta1_pow_acc", "Beta1Pow", "", "beta1", number=True),
    )

    @hyperparameters
    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameter_list: Parameters = None,
        regularization: Decay = None,
        grad_clip: Clip = None,
        name: str | None = None,
    ) -> None: ...


class AdagradOptimizer(Updater):
    """Adagrad (Duchi and others, 2011): each element's rate falls with the sum of its squared gradients.

    Parameters
    ----------
    learning_rate : float or Variable
    epsilon : float
    parameter_list, regularization, grad_clip, name
        As in :class:`Optimizer`.
    initial_accumulator_value : float
        First value of the sums.
    """

    type = "adagrad"
    updates_rows_only = True
    states = (StateVar("moment", "Moment", fill="initial_accumulator_value"),)
    renamed = (("initial_accumulator_value", ""),)

    @hyperparameters
    def __init__(
        self,
        learning_rate: Rate,
        epsilon: float = 1e-6,
        parameter_list: Parameters = None,
        regularization: Decay = None,
        grad_clip: Clip = None,
        name: str | None = None,
        initial_accumulator_value: float = 0.0,
    ) -> None: ...

    @property
    def initial_accumulator_value(self) -> float:
        """First value of the sums."""
        return float(self._values["initial_accumulator_value"])


class DecayedAdagradOptimizer(Updater):
    """Adagrad with a moving average of the squared gradients.

    Parameters
    ----------
    learning_rate : float or Variable
    decay : float
        Decay rate of the average.
    epsilon : float
    parameter_list, regularization, grad_clip, name
        As in :class:`Optimizer`.
    """

    type = "decayed_adagrad"
    states = (StateVar("moment", "Moment"),)

    @hyperparameters
    def __init__(
        self,
        learning_rate: Rate,
        decay: float = 0.95,
        epsilon: float = 1e-6,
        parameter_list: Parameters = None,
        regularization: Decay = None,
        grad_clip: Clip = None,
        name: str | None = None,
    ) -> None: ...


class AdadeltaOptimizer(Updater):
    """Adadelta (Zeiler, 2012), which ignores the learning rate, as in Fluid.

    Parameters
    ----------
    learning_rate : float or Variable
    epsilon : float
    rho : float
        Decay rate of the averages.
    parameter_list, regularization, grad_clip, name
        As in :class:`Optimizer`.
    """

    type = "adadelta"
    rate_slot = None
    states = (StateVar("_avg_squared_grad", "AvgSquaredGrad"), StateVar("_avg_squared_update", "AvgSquaredUpdate"))

    @hyperparameters
    def __init__(
        self,
        learning_rate: Rate,
        epsilon: float = 1e-6,
        rho: float = 0.95,
        parameter_list: Parameters = None,
        regularization: Decay = None,
        grad_clip: Clip = None,
        name: str | None = None,
    ) -> None: ...


class RMSPropOptimizer(Updater):
    """RMSProp: the gradient over the root of its average square, with momentum.

    Parameters
    ----------
    learning_rate : float or Variable
    rho : float
        Decay rate of the averages.
    epsilon : float
    momentum : float
    centered : bool
        The square of the average gradient is subtracted from the average square.
    parameter_list, regularization, grad_clip, name
        As in :class:`Optimizer`.
    """

    type = "rmsprop"
    states = (StateVar("momentum", "Moment"), StateVar("mean_square", "MeanSquare"), StateVar("mean_grad", "MeanGrad"))
    renamed = (("rho", "decay"),)

    @hyperparameters
    def __init__(
        self,
        learning_rate: Rate,
        rho: float = 0.95,
        epsilon: float = 1e-6,
        momentum: float = 0.0,
        centered: bool = False,
        parameter_list: Parameters = None,
        regularization: Decay = None,
        grad_clip: Clip = None,
        name: str | None = None,
    ) -> None: ...


class FtrlOptimizer(Updater):
    """Follow the regularised leader (McMahan and others, 2013).

    Parameters
    ----------
    learning_rate : float or Variable
    l1, l2 : float
        Weights of the penalties.
    lr_power : float
    parameter_list, regularization, grad_clip, name
        As in :class:`Optimizer`.
    """

    type = "ftrl"
    updates_rows_only = True
    states = (
        StateVar("squared", "SquaredAccumulator", "SquaredAccumOut"),
        StateVar("linear", "LinearAccumulator", "LinearAccumOut"),
    )

    @hyperparameters
    def __init__(
        self,
        learning_rate: Rate,
        l1: float = 0.0,
        l2: float = 0.0,
        lr_power: float = -0.5,
        parameter_list: Parameters = None,
        regularization: Decay = None,
        grad_clip: Clip = None,
        name: str | None = None,
    ) -> None: ...


class LambOptimizer(_Moments):
    """Lamb (You and others, 2020): Adam whose step has the norm of the parameter.

    Parameters
    ----------
    learning_rate : float or Variable
    lamb_weight_decay : float
        Weight of the parameter in the update direction.
    beta1, beta2 : float
        Decay rates of the two moments.
    epsilon : float
    parameter_list, regularization, grad_clip
        As in :class:`Optimizer`.
    exclude_from_weight_decay_fn : callable, optional
        Parameters for which it returns True do not decay.
    name : str, optional
    """

    type = "lamb"
    states = (
        StateVar("moment1", "Moment1"),
        StateVar("moment2", "Moment2"),
        StateVar("beta1_pow_acc", "Beta1Pow", "", "beta1", number=True),
        StateVar("beta2_pow_acc", "Beta2Pow", "", "beta2", number=True),
    )
    renamed = (("lamb_weight_decay", "weight_decay"),)
    _exclude_from_weight_decay_fn: Callable[[Parameter], bool] | None

    @hyperparameters
    def __init__(
        self,
        learning_rate: Rate = 0.001,
        lamb_weight_decay: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        parameter_list: Parameters = None,
        regularization: Decay = None,
        grad_clip: Clip = None,
        exclude_from_weight_decay_fn: Callable[[Parameter], bool] | None = None,
        name: str | None = None,
    ) -> None: ...

    def _attrs(self, param: Parameter) -> dict[str, Any]:
        excluded = self._exclude_from_weight_decay_fn is not None and self._exclude_from_weight_decay_fn(param)
        return {**super()._attrs(param), "weight_decay": 0.0} if excluded else super()._attrs(param)
