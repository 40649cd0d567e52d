"""Optimisers: ``minimize`` appends backward, clipping, weight decay and the updates of the parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from fluidlite import unique_name
from fluidlite.base.dtypes import compute_dtype
from fluidlite.base.errors import ProgramError
from fluidlite.clip import BaseGradientClipAttr, append_error_clip_ops, append_gradient_clip_ops
from fluidlite.framework.backward import append_backward
from fluidlite.framework.operator import Operator
from fluidlite.framework.program import Block, Program, default_main_program, default_startup_program, program_guard
from fluidlite.framework.variable import Parameter, Variable
from fluidlite.initializer import Constant
from fluidlite.layer_helper import LayerHelper
from fluidlite.layers import tensor
from fluidlite.regularizer import WeightDecayRegularizer, append_regularization_ops

__all__ = ["SGD", "Adam", "AdamOptimizer", "Momentum", "MomentumOptimizer", "Optimizer", "SGDOptimizer"]

ParamsGrads = list[tuple[Parameter, Variable | None]]


class Optimizer:
    """Base of the optimisers.

    Parameters
    ----------
    learning_rate : float or Variable
        A Variable is a schedule's (``layers.piecewise_decay``, ...), float [1].
    regularization : WeightDecayRegularizer, optional
        For parameters that have none of their own.
    name : str, optional
        Prefix of the state's names.
    parameter_list : list, optional
        What ``minimize`` trains unless it is told itself; default: every trainable parameter.
    grad_clip : BaseGradientClipAttr, optional
        For parameters that have none of their own.
    """

    def __init__(
        self,
        learning_rate: float | Variable,
        regularization: WeightDecayRegularizer | None = None,
        name: str | None = None,
        *,
        parameter_list: Sequence[Variable | str] | None = None,
        grad_clip: BaseGradientClipAttr | None = None,
    ) -> None:
        if isinstance(learning_rate, (bool, str)) or not (
            isinstance(learning_rate, Variable) or hasattr(learning_rate, "__float__")
        ):
            self._refuse("learning_rate", learning_rate, "a number, or a Variable that a schedule made")
        if regularization is not None and not isinstance(regularization, WeightDecayRegularizer):
            self._refuse("regularization", regularization, "one of fluid.regularizer's, such as L2Decay(1e-4)")
        if grad_clip is not None and not isinstance(grad_clip, BaseGradientClipAttr):
            self._refuse("grad_clip", grad_clip, "one of fluid.clip's, such as GradientClipByGlobalNorm(1.0)")
        self._learning_rate = learning_rate
        self.regularization = regularization
        self._name = name
        self._parameter_list = parameter_list
        self._grad_clip = grad_clip
        self._learning_rates: dict[int, Variable] = {}
        self._accumulators: dict[tuple[int, str, str], Variable] = {}

    def _refuse(self, argument: str, value: Any, expected: str) -> NoReturn:
        shown = f"{type(value).__name__} {value!r}"
        raise ProgramError(f"optimizer.{type(self).__name__}: argument {argument!r} is {shown}; expected {expected}.")

    # Learning rate

    def _global_learning_rate(self, program: Program | None = None) -> Variable | None:
        """The learning rate of a program; None before ``minimize``."""
        return self._learning_rates.get((program or default_main_program()).serial)

    def _create_global_learning_rate(self) -> Variable:
        program = default_main_program()
        rate = self._learning_rates.get(program.serial)
        if rate is None:
            if isinstance(self._learning_rate, Variable):
                rate = self._learning_rate
                if rate.block.program is not program:
                    self._refuse("learning_rate", rate, "a Variable of the program that has the loss")
            else:
                rate = tensor.create_global_var(
                    [1], float(self._learning_rate), "float32", persistable=True,
                    name=unique_name.generate("learning_rate"),
                )  # fmt: skip
            self._learning_rates[program.serial] = rate
        return rate

    def _create_param_lr(self, param: Parameter, made: dict[Any, Variable]) -> Variable:
        """The learning rate of a parameter, with its own factor, in the dtype that the parameter computes in.

        ``made`` shares equal ones.
        """
        dtype = compute_dtype(param.dtype)
        own = param.optimize_attr["learning_rate"]
        rate = own if isinstance(own, Variable) else self._create_global_learning_rate()
        factor = 1.0 if isinstance(own, Variable) else float(own)
        key = (rate.name, factor, dtype)
        if key not in made:
            with rate.block.program.roles("lr_sched"):
                if factor != 1.0:
                    rate = rate._scaled(factor, 0.0)
                if rate.dtype != dtype:
                    rate = tensor.cast(rate, dtype)
            made[key] = rate
        return made[key]

    # State

    def _add_accumulator(
        self,
        name: str,
        param: Parameter,
        fill_value: float = 0.0,
        shape: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> Variable:
        """State for a parameter, of its dtype: a persistable variable ``<param>_<name>_0``, filled at startup."""
        program = param.block.program
        key = (program.serial, name, param.name)
        if key in self._accumulators:
            raise ProgramError(
                f"this {type(self).__name__} trains parameter {param.name!r} already\n"
                "  Do: call minimize once on the sum of the losses, or make one optimizer for each"
            )
        prefix = f"{self._name}_" if self._name is not None else ""
        helper = LayerHelper(type(self).__name__)
        var = helper.create_global_variable(
            True, name=unique_name.generate(f"{param.name}_{prefix}{name}"), stop_gradient=True,
            shape=list(param.shape) if shape is None else list(shape), dtype=dtype or param.dtype,
        )  # fmt: skip
        helper.set_variable_initializer(var, Constant(fill_value))
        self._accumulators[key] = var
        return var

    def _get_accumulator(self, name: str, param: Parameter) -> Variable:
        """The state that ``_add_accumulator`` made."""
        return self._accumulators[(param.block.program.serial, name, param.name)]

    # What an optimiser says

    def _create_accumulators(self, block: Block, parameters: Sequence[Parameter]) -> None:
        """Make the state of the parameters."""

    def _append_optimize_op(self, block: Block, param: Parameter, grad: Variable, rate: Variable) -> Operator:
        """Append the update of one parameter."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it updates")

    def _finish_update(self, block: Block, parameters: Sequence[Parameter]) -> None:
        """Append what follows all updates."""

    # Steps

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Iterable[Variable | str] | None = None,
        callbacks: Any = None,
    ) -> ParamsGrads:
        """Append the gradients of the loss; return (parameter, gradient) pairs."""
        if not isinstance(loss, Variable):
            self._refuse("loss", loss, "a Variable, such as layers.mean(cost)")
        wanted = parameter_list if parameter_list is not None else self._parameter_list
        pairs = append_backward(loss, wanted, no_grad_set, callbacks)
        append_error_clip_ops(loss.block)
        return list(pairs)

    def apply_gradients(
        self, params_grads: ParamsGrads, grad_clip: BaseGradientClipAttr | None = None
    ) -> list[Operator]:
        """Append clipping, weight decay and updates; return the updating operators."""
        pairs = [(param, grad) for param, grad in params_grads if grad is not None and param.trainable]
        if not pairs:
            raise ProgramError(
                f"optimizer.{type(self).__name__}: no trainable parameter has a gradient\n"
                "  Do: check that the loss depends on parameters, stop_gradient, and no_grad_set"
            )
        pairs.sort(key=lambda pair: pair[0].name)
        program = pairs[0][0].block.program
        clipped = append_gradient_clip_ops(pairs, grad_clip or self._grad_clip)
        decayed = append_regularization_ops(clipped, self.regularization)
        block = program.global_block()
        with program_guard(program), program.roles("optimize"):
            parameters = [param for param, _ in decayed]
            self._create_accumulators(block, parameters)
            rates: dict[Any, Variable] = {}
            start = len(block.ops)
            for param, grad in decayed:
                if grad is not None:
                    self._append_optimize_op(block, param, grad, self._create_param_lr(param, rates))
            self._finish_update(block, parameters)
        return block.ops[start:]

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Iterable[Variable | str] | None = None,
        grad_clip: BaseGradientClipAttr | None = None,
    ) -> tuple[list[Operator], ParamsGrads]:
        """Append all that trains the parameters to lower the loss.

        Parameters
        ----------
        loss : Variable
            One float.
        startup_program : Program, optional
            Where the learning rate and the optimiser's state are initialised.
        parameter_list : list of parameters or names, optional
            Default: every trainable one.
        no_grad_set : set of variables or names, optional
            No gradient flows through them.
        grad_clip : BaseGradientClipAttr, optional
            For parameters that have none of their own.

        Returns
        -------
        list of Operator, list of (Parameter, gradient)
        """
        if grad_clip is not None and not isinstance(grad_clip, BaseGradientClipAttr):
            self._refuse("grad_clip", grad_clip, "one of fluid.clip's, such as GradientClipByGlobalNorm(1.0)")
        if not isinstance(loss, Variable):
            self._refuse("loss", loss, "a Variable, such as layers.mean(cost)")
        with program_guard(loss.block.program, startup_program or default_startup_program()):
            pairs = self.backward(loss, startup_program, parameter_list, no_grad_set)
            return self.apply_gradients(pairs, grad_clip), pairs


class SGDOptimizer(Optimizer):
    """Param = Param - learning_rate Grad."""

    def _append_optimize_op(self, block: Block, param: Parameter, grad: Variable, rate: Variable) -> Operator:
        inputs = {"Param": param, "Grad": grad, "LearningRate": rate}
        return block.append_op("sgd", inputs, {"ParamOut": param})


class MomentumOptimizer(Optimizer):
    """Velocity = momentum Velocity + Grad; Param = Param - learning_rate Velocity.

    Parameters
    ----------
    learning_rate : float or Variable
    momentum : float
    use_nesterov : bool
        Param = Param - learning_rate (Grad + momentum Velocity).
    regularization, name, **options
        As in :class:`Optimizer`.
    """

    def __init__(
        self,
        learning_rate: float | Variable,
        momentum: float,
        use_nesterov: bool = False,
        regularization: WeightDecayRegularizer | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, regularization, name, **options)
        if isinstance(momentum, (bool, str)) or not hasattr(momentum, "__float__"):
            self._refuse("momentum", momentum, "a number")
        self._momentum = float(momentum)
        self._use_nesterov = bool(use_nesterov)

    def _create_accumulators(self, block: Block, parameters: Sequence[Parameter]) -> None:
        for param in parameters:
            self._add_accumulator("velocity", param)

    def _append_optimize_op(self, block: Block, param: Parameter, grad: Variable, rate: Variable) -> Operator:
        velocity = self._get_accumulator("velocity", param)
        return block.append_op(
            "momentum",
            {"Param": param, "Grad": grad, "Velocity": velocity, "LearningRate": rate},
            {"ParamOut": param, "VelocityOut": velocity},
            {"mu": self._momentum, "use_nesterov": self._use_nesterov},
        )


class AdamOptimizer(Optimizer):
    """Adam (Kingma and Ba, 2015), as Fluid computes it.

    Parameters
    ----------
    learning_rate : float or Variable
    beta1, beta2 : float
        What is kept of the two moments.
    epsilon : float
    regularization, name, **options
        As in :class:`Optimizer`.
    lazy_mode : bool
        Of no effect on dense gradients.
    """

    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        regularization: WeightDecayRegularizer | None = None,
        name: str | None = None,
        lazy_mode: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, regularization, name, **options)
        for argument, beta in (("beta1", beta1), ("beta2", beta2)):
            if isinstance(beta, (bool, str)) or not 0.0 <= beta < 1.0:
                self._refuse(argument, beta, "a number in [0, 1)")
        self._beta1, self._beta2, self._epsilon = float(beta1), float(beta2), float(epsilon)
        self._lazy_mode = bool(lazy_mode)

    def _create_accumulators(self, block: Block, parameters: Sequence[Parameter]) -> None:
        for param in parameters:
            dtype = compute_dtype(param.dtype)  # in a half type beta2 rounds to 1 and small squares to 0
            self._add_accumulator("moment1", param, dtype=dtype)
            self._add_accumulator("moment2", param, dtype=dtype)
            self._add_accumulator("beta1_pow_acc", param, fill_value=self._beta1, shape=[1], dtype=dtype)
            self._add_accumulator("beta2_pow_acc", param, fill_value=self._beta2, shape=[1], dtype=dtype)

    def _append_optimize_op(self, block: Block, param: Parameter, grad: Variable, rate: Variable) -> Operator:
        moment1, moment2 = self._get_accumulator("moment1", param), self._get_accumulator("moment2", param)
        inputs = {
            "Param": param, "Grad": grad, "LearningRate": rate, "Moment1": moment1, "Moment2": moment2,
            "Beta1Pow": self._get_accumulator("beta1_pow_acc", param),
            "Beta2Pow": self._get_accumulator("beta2_pow_acc", param),
        }  # fmt: skip
        return block.append_op(
            "adam", inputs, {"ParamOut": param, "Moment1Out": moment1, "Moment2Out": moment2},
            {"beta1": self._beta1, "beta2": self._beta2, "epsilon": self._epsilon, "lazy_mode": self._lazy_mode},
        )  # fmt: skip

    def _finish_update(self, block: Block, parameters: Sequence[Parameter]) -> None:
        for param in parameters:
            for name, beta in (("beta1_pow_acc", self._beta1), ("beta2_pow_acc", self._beta2)):
                power = self._get_accumulator(name, param)
                block.append_op("scale", {"X": power}, {"Out": power}, {"scale": beta})


SGD = SGDOptimizer
Momentum = MomentumOptimizer
Adam = AdamOptimizer
