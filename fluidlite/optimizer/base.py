"""Optimizer: what all optimisers share. A subclass says its state and its update."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from fluidlite import unique_name
from fluidlite.base.dtypes import compute_dtype
from fluidlite.base.errors import ProgramError
from fluidlite.clip import BaseGradientClipAttr, append_error_clip_ops, append_gradient_clip_ops
from fluidlite.initializer import Constant
from fluidlite.layer_helper import LayerHelper, refuse
from fluidlite.layers import tensor
from fluidlite.layers.selected_rows import dense, merge_rows, put_rows, take_rows
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
    :class:`Updater`, which says both by a table.

    Parameters
    ----------
    learning_rate : float or Variable
        A Variable is a schedule's (``layers.piecewise_decay``, ...), float [1].
    parameter_list : list, optional
        What ``minimize`` trains unless it is told itself; default: every trainable parameter.
    regularization : WeightDecayRegularizer, optional
        For parameters that have none of their own.
    grad_clip : BaseGradientClipAttr, optional
        For parameters that have none of their own.
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
        self._name = name
        self._parameter_list = list(parameter_list) if parameter_list is not None else None
        self._grad_clip = grad_clip
        self._learning_rates: dict[int, Variable] = {}
        self._scaled_rates: dict[Any, Variable] = {}
        self._accumulators: dict[tuple[int, str, str], Variable] = {}
        self._opti_name_list: list[str] = []
        self.helper = LayerHelper(type(self).__name__, name="optimizer")

    def _number(self, argument: str, value: Any) -> float:
        if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
            refuse(argument, value, "a number")
        return float(value)

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
                    "float32",
                    persistable=True,
                    name=unique_name.generate("learning_rate"),
                )
            self._learning_rates[program.serial] = rate
        return rate

    def _create_param_lr(self, param_and_grad: ParamAndGrad) -> Variable:
        """The learning rate of a parameter, with its own factor, in the dtype that the parameter computes in."""
        param = param_and_grad[0]
        dtype = compute_dtype(param.dtype)
        own = param.optimize_attr["learning_rate"]
        rate = own if isinstance(own, Variable) else self._create_global_learning_rate()
        factor = 1.0 if isinstance(own, Variable) else float(own)
        key = (rate.block.program.serial, rate.name, factor, dtype)
        if key not in self._scaled_rates:  # equal ones are made once
            with rate.block.program.roles("lr_sched"):
                if factor != 1.0:
                    rate = rate._scaled(factor, 0.0)
                if rate.dtype != dtype:
                    rate = tensor.cast(rate, dtype)
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
        self._opti_name_list.append(var.name)
        return var

    def _get_accumulator(self, name: str, param: Parameter) -> Variable:
        """The state that ``_add_accumulator`` made."""
        return self._accumulators[(param.block.program.serial, name, param.name)]

    def get_opti_var_name_list(self) -> list[str]:
        """Names of the state's variables."""
        return list(self._opti_name_list)

    # What an optimiser says

    def _create_accumulators(self, block: Block, parameters: Sequence[Parameter]) -> None:
        """Make the state of the parameters."""

    def _append_optimize_op(self, block: Block, param_and_grad: ParamAndGrad) -> Operator:
        """Append the update of one parameter."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it updates")

    def _updates_rows(self, param: Parameter) -> bool:
        """Whether rows that have no gradient stay as they are, so that a gradient of rows updates those alone."""
        return False

    def _append_rows_update(self, block: Block, param: Parameter, grad: Variable) -> None:
        """Append the update of the rows that a gradient has."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it updates rows")

    def _finish_update(self, block: Block, parameters_and_grads: ParamsGrads) -> None:
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
            refuse("loss", loss, "a Variable, such as layers.mean(cost)")
        wanted = parameter_list if parameter_list is not None else self._parameter_list
        pairs = append_backward(loss, wanted, no_grad_set, callbacks, by_rows=True)
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
        pairs = [(param, merge_rows(grad)) for param, grad in pairs]
        clipped = append_gradient_clip_ops(pairs, grad_clip or self._grad_clip)
        decayed = append_regularization_ops(clipped, self.regularization)
        block = program.global_block()
        with program_guard(program), program.roles("optimize"):
            self._create_accumulators(block, [param for param, _ in decayed])
            self._scaled_rates = {}
            start = len(block.ops)
            for param, grad in decayed:
                if grad is not None and grad.selected is not None and self._updates_rows(param):
                    self._append_rows_update(block, param, grad)
                elif grad is not None:
                    self._append_optimize_op(block, (param, dense(grad)))
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
            refuse("grad_clip", grad_clip, "one of fluid.clip's, such as GradientClipByGlobalNorm(1.0)")
        if not isinstance(loss, Variable):
            refuse("loss", loss, "a Variable, such as layers.mean(cost)")
        with program_guard(loss.block.program, startup_program or default_startup_program()):
            pairs = self.backward(loss, startup_program, parameter_list, no_grad_set)
            return self.apply_gradients(pairs, grad_clip), pairs


class State(NamedTuple):
    """One accumulator: its name, the operator's input slot and output slot, its first value and kind.

    ``out``: None is the slot's name and Out; empty: the operator does not write it. ``fill`` may name a hyperparameter.
    ``wide``: of the dtype that the parameter computes in (a half type would lose small additions).
    """

    name: str
    slot: str
    out: str | None = None
    fill: float | str = 0.0
    number: bool = False
    wide: bool = True


_COMMON = ("learning_rate", "parameter_list", "regularization", "grad_clip", "name")


class Updater(Optimizer):
    """An optimiser whose update is one operator, said by the signature of its ``__init__`` and by these tables.

    Attributes
    ----------
    type : str
        The operator.
    states : tuple of State
    renamed : pairs of argument and attribute
        Numbers and flags are attributes of the operator, by their own names unless it is said here; empty: by none.
    rate_slot : str or None
    rows_alone : bool
        A gradient of rows updates those alone, as in Fluid; else rows that it does not have get a gradient of 0.
    """

    states: tuple[State, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    rate_slot: str | None = "LearningRate"
    rows_alone = False
    _values: Mapping[str, Any] = MappingProxyType({})

    def _set_hyperparameters(self, values: dict[str, Any], defaults: Mapping[str, Any]) -> None:
        """Check the arguments: one whose default is a flag is a flag, one whose default is None is none of ours."""
        Optimizer.__init__(self, **{name: values.pop(name) for name in _COMMON if name in values})
        self._defaults = defaults
        numbers: dict[str, Any] = {}
        for name, value in values.items():
            default = defaults[name]
            if default is not None:
                value = bool(value) if isinstance(default, bool) else self._number(name, value)
                numbers[name] = value
            setattr(self, f"_{name}", value)
        self._values = numbers

    def _attrs(self, param: Parameter) -> dict[str, Any]:
        attrs = dict(self.renamed)
        named = {attrs.get(name, name): value for name, value in self._values.items()}
        return {name: value for name, value in named.items() if name and not isinstance(value, Variable)}

    def _updates_rows(self, param: Parameter) -> bool:
        return self.rows_alone

    def _inputs(self) -> dict[str, Variable]:
        """Further inputs."""
        return {}

    def _fill(self, state: State) -> float:
        """The first value of an accumulator; where a Variable says it, the default, as Fluid starts."""
        if not isinstance(state.fill, str):
            return state.fill
        value = self._values[state.fill]
        return float(self._defaults[state.fill] if isinstance(value, Variable) else value)

    def _create_accumulators(self, block: Block, parameters: Sequence[Parameter]) -> None:
        for param in parameters:
            for state in self.states:
                dtype = compute_dtype(param.dtype) if state.wide else param.dtype
                self._add_accumulator(state.name, param, dtype, self._fill(state), [1] if state.number else None)

    def _append_rows_update(self, block: Block, param: Parameter, grad: Variable) -> None:
        """The dense operator on copies of the rows of parameter and state, which are then put back."""
        held: dict[str, Variable] = {}

        def rows_of(var: Variable) -> Variable:
            if var.name not in held:
                held[var.name] = take_rows(var, grad)
            return held[var.name]

        updated = self._update_operands(param, grad)
        whole: dict[str, Variable] = {param.name: param}
        whole.update(
            {
                var.name: var
                for state in self.states
                if not state.number
                for var in [self._get_accumulator(state.name, param)]
            }
        )
        inputs, outputs = (
            {slot: rows_of(var) if var.name in whole else var for slot, var in operands.items()} for operands in updated
        )
        block.append_op(self.type, inputs, outputs, self._attrs(param))
        for var in {var.name: var for var in updated[1].values()}.values():
            if var.name in whole:
                put_rows(var, held[var.name], grad)

    def _append_optimize_op(self, block: Block, param_and_grad: ParamAndGrad) -> Operator:
        param, grad = param_and_grad
        inputs, outputs = self._update_operands(param, grad)
        return block.append_op(self.type, inputs, outputs, self._attrs(param))

    def _update_operands(self, param: Parameter, grad: Variable) -> tuple[dict[str, Variable], dict[str, Variable]]:
        """Inputs and outputs of the operator by slot."""
        inputs = {"Param": param, "Grad": grad, **self._inputs()}
        if self.rate_slot is not None:
            inputs[self.rate_slot] = self._create_param_lr((param, grad))
        outputs: dict[str, Variable] = {"ParamOut": param}
        for state in self.states:
            inputs[state.slot] = self._get_accumulator(state.name, param)
            if state.out != "":
                outputs[state.out or f"{state.slot}Out"] = inputs[state.slot]
        return inputs, outputs

    def _finish_update(self, block: Block, parameters_and_grads: ParamsGrads) -> None:
        """Multiply powers of a number by it, where the operator does not."""
        for param, _ in parameters_and_grads:
            for state in self.states:
                if state.number and state.out == "":
                    power = self._get_accumulator(state.name, param)
                    block.append_op("scale", {"X": power}, {"Out": power}, {"scale": self._fill(state)})
