"""Optimisers with a rate of its own for each element: Adam, Adamax, Adagrad, ..., Ftrl, Lamb."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fluidlite.clip import BaseGradientClipAttr
from fluidlite.framework.program import Block
from fluidlite.framework.variable import Parameter, Variable
from fluidlite.optimizer.base import ParamsGrads, State, Updater
from fluidlite.optimizer.order import either_order
from fluidlite.regularizer import WeightDecayRegularizer

Parameters = Sequence["Variable | str"]


class _Moments(Updater):
    """An optimiser with beta1, beta2 and epsilon."""

    def _set_betas(self, beta1: Any, beta2: Any, epsilon: Any, variables: bool = False) -> None:
        for argument, beta in (("beta1", beta1), ("beta2", beta2)):
            if variables and isinstance(beta, Variable):
                continue
            if isinstance(beta, (bool, str, Variable)) or not 0.0 <= beta < 1.0:
                self._refuse(argument, beta, "a number in [0, 1)")
        self._beta1, self._beta2, self._epsilon = beta1, beta2, self._number("epsilon", epsilon)

    def _attrs(self, param: Parameter) -> dict[str, Any]:
        return {"beta1": float(self._beta1), "beta2": float(self._beta2), "epsilon": self._epsilon}

    def _raise_powers(self, block: Block, pairs: ParamsGrads, *names: str) -> None:
        """Multiply powers of beta by beta, where the operator does not."""
        for param, _ in pairs:
            for name, beta in zip(names, (self._beta1, self._beta2), strict=False):
                power = self._get_accumulator(name, param)
                block.append_op("scale", {"X": power}, {"Out": power}, {"scale": float(beta)})


class AdamOptimizer(_Moments):
    """Adam (Kingma and Ba, 2015), as Fluid computes it.

    Parameters
    ----------
    learning_rate : float or Variable
    beta1, beta2 : float or Variable
        What is kept of the two moments; a Variable is float32 [1].
    epsilon : float
    parameter_list, regularization, grad_clip, name
        As in :class:`Optimizer`.
    lazy_mode : bool
        Of no effect on dense gradients.
    """

    type = "adam"

    @either_order
    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        beta1: float | Variable = 0.9,
        beta2: float | Variable = 0.999,
        epsilon: float = 1e-8,
        parameter_list: Parameters | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: BaseGradientClipAttr | None = None,
        name: str | None = None,
        lazy_mode: bool = False,
    ) -> None:
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._set_betas(beta1, beta2, epsilon, variables=True)
        self._lazy_mode = bool(lazy_mode)

    def _states(self) -> tuple[State, ...]:
        first, second = (
            default if isinstance(beta, Variable) else float(beta)  # as Fluid starts
            for beta, default in ((self._beta1, 0.9), (self._beta2, 0.999))
        )
        return (
            State("moment1", "Moment1", "Moment1Out"),
            State("moment2", "Moment2", "Moment2Out"),
            State("beta1_pow_acc", "Beta1Pow", "Beta1PowOut", first, number=True),
            State("beta2_pow_acc", "Beta2Pow", "Beta2PowOut", second, number=True),
        )

    def _inputs(self) -> dict[str, Variable]:
        betas = {"Beta1Tensor": self._beta1, "Beta2Tensor": self._beta2}
        return {slot: beta for slot, beta in betas.items() if isinstance(beta, Variable)}

    def _attrs(self, param: Parameter) -> dict[str, Any]:
        betas = {"beta1": self._beta1, "beta2": self._beta2}
        numbers = {name: float(beta) for name, beta in betas.items() if not isinstance(beta, Variable)}
        return {**numbers, "epsilon": self._epsilon, "lazy_mode": self._lazy_mode}


class AdamaxOptimizer(_Moments):
    """Adamax (Kingma and Ba, 2015): Adam with the greatest gradient in place of the second moment.

    Parameters
    ----------
    learning_rate : float or Variable
    beta1, beta2 : float
        What is kept of the moment and of the greatest gradient.
    epsilon : float
    parameter_list, regularization, grad_clip, name
        As in :class:`Optimizer`.
    """

    type = "adamax"

    @either_order
    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameter_list: Parameters | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: BaseGradientClipAttr | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._set_betas(beta1, beta2, epsilon)

    def _states(self) -> tuple[State, ...]:
        return (
            State("moment", "Moment", "MomentOut"),
            State("inf_norm", "InfNorm", "InfNormOut"),
            State("beta1_pow_acc", "Beta1Pow", "", float(self._beta1), number=True),
        )

    def _finish_update(self, block: Block, parameters_and_grads: ParamsGrads) -> None:
        self._raise_powers(block, parameters_and_grads, "beta1_pow_acc")


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

    @either_order
    def __init__(
        self,
        learning_rate: float | Variable,
        epsilon: float = 1e-6,
        parameter_list: Parameters | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: BaseGradientClipAttr | None = None,
        name: str | None = None,
        initial_accumulator_value: float = 0.0,
    ) -> None:
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._epsilon = self._number("epsilon", epsilon)
        self.initial_accumulator_value = self._number("initial_accumulator_value", initial_accumulator_value)

    def _states(self) -> tuple[State, ...]:
        return (State("moment", "Moment", "MomentOut", self.initial_accumulator_value),)

    def _attrs(self, param: Parameter) -> dict[str, Any]:
        return {"epsilon": self._epsilon}


class DecayedAdagradOptimizer(Updater):
    """Adagrad with a moving average of the squared gradients.

    Parameters
    ----------
    learning_rate : float or Variable
    decay : float
        What is kept of the average.
    epsilon : float
    parameter_list, regularization, grad_clip, name
        As in :class:`Optimizer`.
    """

    type = "decayed_adagrad"

    @either_order
    def __init__(
        self,
        learning_rate: float | Variable,
        decay: float = 0.95,
        epsilon: float = 1e-6,
        parameter_list: Parameters | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: BaseGradientClipAttr | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._decay, self._epsilon = self._number("decay", decay), self._number("epsilon", epsilon)

    def _states(self) -> tuple[State, ...]:
        return (State("moment", "Moment", "MomentOut"),)

    def _attrs(self, param: Parameter) -> dict[str, Any]:
        return {"decay": self._decay, "epsilon": self._epsilon}


class AdadeltaOptimizer(Updater):
    """Adadelta (Zeiler, 2012), in which the learning rate has no part, as in Fluid.

    Parameters
    ----------
    learning_rate : float or Variable
    epsilon : float
    rho : float
        What is kept of the averages.
    parameter_list, regularization, grad_clip, name
        As in :class:`Optimizer`.
    """

    type = "adadelta"
    rate_slot = None

    @either_order
    def __init__(
        self,
        learning_rate: float | Variable,
        epsilon: float = 1e-6,
        rho: float = 0.95,
        parameter_list: Parameters | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: BaseGradientClipAttr | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._epsilon, self._rho = self._number("epsilon", epsilon), self._number("rho", rho)

    def _states(self) -> tuple[State, ...]:
        return (
            State("_avg_squared_grad", "AvgSquaredGrad", "AvgSquaredGradOut"),
            State("_avg_squared_update", "AvgSquaredUpdate", "AvgSquaredUpdateOut"),
        )

    def _attrs(self, param: Parameter) -> dict[str, Any]:
        return {"epsilon": self._epsilon, "rho": self._rho}


class RMSPropOptimizer(Updater):
    """RMSProp: the gradient over the root of its average square, with momentum.

    Parameters
    ----------
    learning_rate : float or Variable
    rho : float
        What is kept of the averages.
    epsilon : float
    momentum : float
    centered : bool
        The square of the average gradient is subtracted from the average square.
    parameter_list, regularization, grad_clip, name
        As in :class:`Optimizer`.
    """

    type = "rmsprop"

    @either_order
    def __init__(
        self,
        learning_rate: float | Variable,
        rho: float = 0.95,
        epsilon: float = 1e-6,
        momentum: float = 0.0,
        centered: bool = False,
        parameter_list: Parameters | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: BaseGradientClipAttr | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._rho, self._epsilon = self._number("rho", rho), self._number("epsilon", epsilon)
        self._momentum, self._centered = self._number("momentum", momentum), bool(centered)

    def _states(self) -> tuple[State, ...]:
        return (
            State("momentum", "Moment", "MomentOut"),
            State("mean_square", "MeanSquare", "MeanSquareOut"),
            State("mean_grad", "MeanGrad", "MeanGradOut"),
        )

    def _attrs(self, param: Parameter) -> dict[str, Any]:
        return {
            "epsilon": self._epsilon, "decay": self._rho, "momentum": self._momentum, "centered": self._centered,
        }  # fmt: skip


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

    @either_order
    def __init__(
        self,
        learning_rate: float | Variable,
        l1: float = 0.0,
        l2: float = 0.0,
        lr_power: float = -0.5,
        parameter_list: Parameters | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: BaseGradientClipAttr | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._l1, self._l2 = self._number("l1", l1), self._number("l2", l2)
        self._lr_power = self._number("lr_power", lr_power)

    def _states(self) -> tuple[State, ...]:
        return (
            State("squared", "SquaredAccumulator", "SquaredAccumOut"),
            State("linear", "LinearAccumulator", "LinearAccumOut"),
        )

    def _attrs(self, param: Parameter) -> dict[str, Any]:
        return {"l1": self._l1, "l2": self._l2, "lr_power": self._lr_power}


class LambOptimizer(_Moments):
    """Lamb (You and others, 2020): Adam whose step has the norm of the parameter.

    Parameters
    ----------
    learning_rate : float or Variable
    lamb_weight_decay : float
        How much of the parameter joins the direction.
    beta1, beta2 : float
        What is kept of the two moments.
    epsilon : float
    parameter_list, regularization, grad_clip
        As in :class:`Optimizer`.
    exclude_from_weight_decay_fn : callable, optional
        Parameters for which it returns True do not decay.
    name : str, optional
    """

    type = "lamb"

    @either_order
    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        lamb_weight_decay: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        parameter_list: Parameters | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: BaseGradientClipAttr | None = None,
        exclude_from_weight_decay_fn: Callable[[Parameter], bool] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._set_betas(beta1, beta2, epsilon)
        self._weight_decay = self._number("lamb_weight_decay", lamb_weight_decay)
        self._exclude_from_weight_decay_fn = exclude_from_weight_decay_fn

    def _states(self) -> tuple[State, ...]:
        return (
            State("moment1", "Moment1", "Moment1Out"),
            State("moment2", "Moment2", "Moment2Out"),
            State("beta1_pow_acc", "Beta1Pow", "", float(self._beta1), number=True),
            State("beta2_pow_acc", "Beta2Pow", "", float(self._beta2), number=True),
        )

    def _attrs(self, param: Parameter) -> dict[str, Any]:
        excluded = self._exclude_from_weight_decay_fn is not None and self._exclude_from_weight_decay_fn(param)
        return {**super()._attrs(param), "weight_decay": 0.0 if excluded else self._weight_decay}

    def _finish_update(self, block: Block, parameters_and_grads: ParamsGrads) -> None:
        self._raise_powers(block, parameters_and_grads, "beta1_pow_acc", "beta2_pow_acc")
