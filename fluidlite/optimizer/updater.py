"""Updater: an optimiser that says its state and its update by a table."""

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

    ``type``: the operator.
    ``renamed``: numbers and flags are attributes of the operator, by their own names unless it is said here; empty: by
    none.
    ``rows_alone``: a gradient of rows updates those alone, as in Fluid; else rows that it does not have get a gradient
    of 0.
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
                value = check_bool(name, value) if isinstance(default, bool) else self._number(name, value)
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
        states = [self._get_accumulator(state.name, param) for state in self.states if not state.number]
        whole = {var.name for var in (param, *states)}
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
