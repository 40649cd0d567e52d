"""Optimizer: base class of all optimisers. A subclass defines its state and its update."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fluidlite import unique_name
from fluidlite.base.arguments import check_list
from fluidlite.base.dtypes import compute_dtype
from fluidlite.base.errors import ProgramError
from fluidlite.clip import BaseGradientClipAttr, append_error_clip_ops, append_gradient_clip_ops
from fluidlite.initializer import Constant
from fluidlite.layer_helper import LayerHelper, check_float, refuse
from fluidlite.layers import tensor
from fluidlite.layers.selected_rows import merge_rows, to_dense
from fluidlite.optimizer.argument_order import either_order
from fluidlite.program.backward import append_backward
from fluidlite.program.block import Block
from fluidlite.program.operator import Operator
from fluidlite.program.program import Program, default_main_program, default_startup_program, program_guard
from fluidlite.program.variable import Parameter, Variable
from fluidlite.regularizer import WeightDecayRegularizer, append_regularization_ops

Rate = float | Variable
Parameters = Sequence["Variable | str"] | None
Decay = WeightDecayRegularizer | None
Clip = BaseGradientClipAttr | None
ParamAndGrad = tuple[Parameter, Variable]
ParamsGrads = list[tuple[Parameter, "Variable | None"]]


class Optimizer:
    """Base of the optimisers.

    A subclass overrides ``_append_optimize_op`` and, if it has state, ``_create_accumulators``; or it is an
    :class:`Updater`, which declares both by tables.

    Parameters
    ----------
    learning_rate : float or Variable
        A Variable is the result of a schedule (``layers.piecewise_decay``, ...), float [1].
    parameter_list : list, optional
        Default of the argument of ``minimize``; default: every trainable parameter.
    regularization : WeightDecayRegularizer, optional
        For parameters without a regularizer.
    grad_clip : BaseGradientClipAttr, optional
        Replaces the clips of parameters and of ``set_gradient_clip``, as in Fluid 1.8.
    name : str, optional
        Prefix of the state's names.
    """

    type = ""

    @either_order
    def __init__(
        self,
        learning_rate: float | Variable,
        parameter_list: Sequence[Variable | str] | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: BaseGradientClipAttr | None = None,
        name: str | None = None,
    ) -> None:
        if isinstance(learning_rate, (bool, str)) or not (
            isinstance(learning_rate, Variable) or hasattr(learning_rate, "__float__")
        ):
            refuse("learning_rate", learning_rate, "a number, or a Variable that a schedule made")
        if regularization is not None and not isinstance(regularization, WeightDecayRegularizer):
            refuse("regularization", regularization, "one of fluid.regularizer's, such as L2Decay(1e-4)")
        if grad_clip is not None and not isinstance(grad_clip, BaseGradientClipAttr):
            refuse("grad_clip", grad_clip, "one of fluid.clip's, such as GradientClipByGlobalNorm(1.0)")
        self._learning_rate = learning_rate
        self.regularization = regularization
        if name is not None and not isinstance(name, str):
            refuse("name", name, "a text, or None")
        self._name = name
        if parameter_list is not None:
            parameter_list = check_list("parameter_list", parameter_list, "parameters or their names")
        self._parameter_list = parameter_list
        self._grad_clip = grad_clip
        self._learning_rates: dict[int, Variable] = {}
        self._rate_dtype = "float32"
        self._scaled_rates: dict[Any, Variable] = {}
        self._accumulators: dict[tuple[int, str, str], Variable] = {}
        self.helper = LayerHelper(type(self).__name__, name="optimizer")

    def _number(self, argument: str, value: Any) -> float:
        return check_float(argument, value)

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
                    refuse("learning_rate", rate, "a Variable of the program that has the loss")
            else:
                rate = tensor.create_global_var(
                    [1],
                    float(self._learning_rate),
                    self._rate_dtype,
                    persistable=True,
                    name=unique_name.generate("learning_rate"),
                )
            self._learning_rates[program.serial] = rate
        return rate

    def _create_param_lr(self, param_and_grad: ParamAndGrad) -> Variable:
        """The learning rate of a parameter, with its own factor, in the dtype in which the parameter computes."""
        param = param_and_grad[0]
        dtype = compute_dtype(param.dtype)
        param_rate = param.optimize_attr["learning_rate"]
        rate = param_rate if isinstance(param_rate, Variable) else self._create_global_learning_rate()
        factor = 1.0 if isinstance(param_rate, Variable) else float(param_rate)
        key = (rate.block.program.serial, rate.name, factor, dtype)
        if key not in self._scaled_rates:  # shared by equal factors
            with rate.block.program.roles("lr_sched"):
                rate = rate._of_dtype(dtype)  # first: the factor is then of the parameter's precision
                if factor != 1.0:
                    rate = rate._scaled(factor, 0.0)
            self._scaled_rates[key] = rate
        return self._scaled_rates[key]

    # State

    def _add_accumulator(
        self,
        name: str,
        param: Parameter,
        dtype: str | None = None,
        fill_value: float = 0.0,
        shape: Sequence[int] | None = None,
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
            True,
            name=unique_name.generate(f"{param.name}_{prefix}{name}"),
            stop_gradient=True,
            shape=list(param.shape) if shape is None else list(shape),
            dtype=dtype or param.dtype,
        )
        helper.set_variable_initializer(var, Constant(fill_value))
        self._accumulators[key] = var
        return var

    def _get_accumulator(self, name: str, param: Parameter) -> Variable:
        """The state created by ``_add_accumulator``."""
        return self._accumulators[(param.block.program.serial, name, param.name)]

    def get_opti_var_name_list(self) -> list[str]:
        """Names of the state's variables."""
        return [var.name for var in self._accumulators.values()]

    # Defined by subclasses

    def _create_accumulators(self, block: Block, parameters: Sequence[Parameter]) -> None:
        """Create the state of the parameters."""

    def _append_optimize_op(self, block: Block, param_and_grad: ParamAndGrad) -> Operator:
        """Append the update of one parameter."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it updates")

    def _updates_rows(self, param: Parameter) -> bool:
        """Whether a sparse gradient updates only its rows."""
        return False

    def _append_rows_update(self, block: Block, param: Parameter, grad: Variable) -> None:
        """Append the update of the rows of a sparse gradient."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it updates rows")

    def _finish_update(self, block: Block, parameters_and_grads: ParamsGrads) -> None:
        """Append operators after all updates."""

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
            refuse("loss", loss, "a Variable, such as layers.mean(cost)")
        parameters = parameter_list if parameter_list is not None else self._parameter_list
        pairs = append_backward(loss, parameters, no_grad_set, callbacks, by_rows=True)
        append_error_clip_ops(loss.block)
        return list(pairs)

    def apply_gradients(
        self, params_grads: ParamsGrads, grad_clip: BaseGradientClipAttr | None = None
    ) -> list[Operator]:
        """Append clipping, weight decay and updates; return the updating operators."""
        expected = "a list of (parameter, gradient)"
        params_grads = check_list("params_grads", params_grads, expected)
        for pair in params_grads:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[0], Parameter):
                refuse("params_grads", params_grads, expected)
        pairs = [(param, grad) for param, grad in params_grads if grad is not None and param.trainable]
        if not pairs:
            raise ProgramError(
                f"optimizer.{type(self).__name__}: no trainable parameter has a gradient\n"
                "  Do: check that the loss depends on parameters, stop_gradient, and no_grad_set"
            )
        pairs.sort(key=lambda pair: pair[0].name)
        program = pairs[0][0].block.program
        pairs = [(param, merge_rows(grad)) for param, grad in pairs]
        clipped = append_gradient_clip_ops(pairs, grad_clip or self._grad_clip)
        decayed = append_regularization_ops(clipped, self.regularization)
        block = program.current_block()
        with program_guard(program), program.roles("optimize"):
            self._create_accumulators(block, [param for param, _ in decayed])
            self._scaled_rates = {}
            self._rate_dtype = "float64" if any(param.dtype == "float64" for param, _ in decayed) else "float32"
            start = len(block.ops)
            for param, grad in decayed:
                if grad is not None and grad.selected is not None and self._updates_rows(param):
                    self._append_rows_update(block, param, grad)
                elif grad is not None:
                    self._append_optimize_op(block, (param, to_dense(grad)))
            self._finish_update(block, decayed)
        return block.ops[start:]

    def apply_optimize(
        self, loss: Variable, startup_program: Program | None, params_grads: ParamsGrads
    ) -> list[Operator]:
        """Append clipping, weight decay and updates to the loss's program; return the updating operators."""
        with program_guard(loss.block.program, startup_program or default_startup_program()):
            return self.apply_gradients(params_grads)

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Iterable[Variable | str] | None = None,
        grad_clip: BaseGradientClipAttr | None = None,
    ) -> tuple[list[Operator], ParamsGrads]:
        """Append backward, clipping, weight decay and updates that minimize the loss.

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
            Replaces the clips of parameters and of ``set_gradient_clip``.

        Returns
        -------
        list of Operator, list of (Parameter, gradient)
        """
        if grad_clip is not None and not isinstance(grad_clip, BaseGradientClipAttr):
            refuse("grad_clip", grad_clip, "one of fluid.clip's, such as GradientClipByGlobalNorm(1.0)")
        if not isinstance(loss, Variable):
            refuse("loss", loss, "a Variable, such as layers.mean(cost)")
        with program_guard(loss.block.program, startup_program or default_startup_program()):
            pairs = self.backward(loss, startup_program, parameter_list, no_grad_set)
            return self.apply_gradients(pairs, grad_clip), pairs
