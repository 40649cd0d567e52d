"""Updater: base class of optimisers whose state and update are declared by tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from fluidlite.base.dtypes import compute_dtype
from fluidlite.layer_helper import check_bool
from fluidlite.layers.selected_rows import put_rows, take_rows
from fluidlite.optimizer.base import Optimizer, ParamAndGrad, ParamsGrads
from fluidlite.program.block import Block
from fluidlite.program.operator import Operator
from fluidlite.program.variable import Parameter, Variable


class StateVar(NamedTuple):
    """State of a parameter: its name, the operator's input and output slot, its first value and kind.

    ``out``: None: the name of the input slot with Out appended; empty: the operator does not write it.
    ``fill``: the first value, or the name of a hyperparameter.
    ``number``: whether it has one element.
    ``wide``: whether it has the dtype in which the parameter computes (a half type would lose small additions).
    """

    name: str
    slot: str
    out: str | None = None
    fill: float | str = 0.0
    number: bool = False
    wide: bool = True


_COMMON_ARGUMENTS = ("learning_rate", "parameter_list", "regularization", "grad_clip", "name")  # of Optimizer


class Updater(Optimizer):
    """An optimiser whose update is one operator, declared by the signature of its ``__init__`` and by these tables.

    ``type``: the operator.
    ``renamed``: the attributes of numbers and flags whose names differ from the arguments'; empty: no attribute.
    ``updates_rows_only``: whether a sparse gradient updates only its rows, as in Fluid; else other rows get a gradient
    of 0.
    """

    states: tuple[StateVar, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    rate_slot: str | None = "LearningRate"
    updates_rows_only = False
    _values: Mapping[str, Any] = MappingProxyType({})

    def _set_hyperparameters(self, values: dict[str, Any], defaults: Mapping[str, Any]) -> None:
        """Check and store the arguments. The default tells the kind: a flag, a number, or None for other objects."""
        Optimizer.__init__(self, **{name: values.pop(name) for name in _COMMON_ARGUMENTS if name in values})
        self._defaults = defaults
        numbers: dict[str, Any] = {}
        for name, value in values.items():
            default = defaults[name]
            if default is not None:
                value = check_bool(name, value) if isinstance(default, bool) else self._number(name, value)
                numbers[name] = value
            setattr(self, f"_{name}", value)
        self._values = numbers

    def _attrs(self, param: Parameter) -> dict[str, Any]:
        attrs = dict(self.renamed)
        attributes = {attrs.get(name, name): value for name, value in self._values.items()}
        return {name: value for name, value in attributes.items() if name and not isinstance(value, Variable)}

    def _updates_rows(self, param: Parameter) -> bool:
        return self.updates_rows_only

    def _inputs(self) -> dict[str, Variable]:
        return {}

    def _fill(self, state: StateVar) -> float:
        """The first value of an accumulator; for a hyperparameter that is a Variable its default, as in Fluid."""
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
        """Append the dense operator on copies of the rows of parameter and state, and write these back."""
        row_copies: dict[str, Variable] = {}

        def rows_of(var: Variable) -> Variable:
            if var.name not in row_copies:
                row_copies[var.name] = take_rows(var, grad)
            return row_copies[var.name]

        updated = self._update_operands(param, grad)
        states = [self._get_accumulator(state.name, param) for state in self.states if not state.number]
        by_rows = {var.name for var in (param, *states)}
        inputs, outputs = (
            {slot: rows_of(var) if var.name in by_rows else var for slot, var in operands.items()}
            for operands in updated
        )
        block.append_op(self.type, inputs, outputs, self._attrs(param))
        for var in {var.name: var for var in updated[1].values()}.values():
            if var.name in by_rows:
                put_rows(var, row_copies[var.name], grad)

    def _append_optimize_op(self, block: Block, param_and_grad: ParamAndGrad) -> Operator:
        param, grad = param_and_grad
        inputs, outputs = self._update_operands(param, grad)
        return block.append_op(self.type, inputs, outputs, self._attrs(param))

    def _update_operands(self, param: Parameter, grad: Variable) -> tuple[dict[str, Variable], dict[str, Variable]]:
        """Inputs and outputs of the operator by slot."""
        dtype = compute_dtype(param.dtype)
        numbers = {slot: var._of_dtype(dtype) for slot, var in self._inputs().items()}
        inputs = {"Param": param, "Grad": grad, **numbers}
        if self.rate_slot is not None:
            inputs[self.rate_slot] = self._create_param_lr((param, grad))
        outputs: dict[str, Variable] = {"ParamOut": param}
        for state in self.states:
            inputs[state.slot] = self._get_accumulator(state.name, param)
            if state.out != "":
                outputs[state.out or f"{state.slot}Out"] = inputs[state.slot]
        return inputs, outputs

    def _finish_update(self, block: Block, parameters_and_grads: ParamsGrads) -> None:
        """Append the updates of powers of hyperparameters that the operator does not write."""
        for param, _ in parameters_and_grads:
            for state in self.states:
                if state.number and state.out == "":
                    power = self._get_accumulator(state.name, param)
                    block.append_op("scale", {"X": power}, {"Out": power}, {"scale": self._fill(state)})
