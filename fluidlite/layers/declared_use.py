"""One call of a declared layer: check and bind its arguments, create parameters and results, append the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fluidlite.base.arguments import exact_int_text
from fluidlite.layer_helper import LayerHelper, check_variable, check_variables
from fluidlite.layers.attribute_checks import check_attribute
from fluidlite.layers.declared import AddedBias, Bias, Further, VariableList, Weight
from fluidlite.program.registry import ops
from fluidlite.program.variable import Variable

if TYPE_CHECKING:
    from fluidlite.layers.declare import Declaration, LayerArgument

HELPED = ("name", "act", "param_attr", "bias_attr")
"""Arguments that LayerHelper reads."""


class LayerCall:
    """A declared layer and its ``arguments`` by name, which are replaced by their checked values."""

    def __init__(self, declaration: Declaration, arguments: dict[str, Any]) -> None:
        self._declaration, self._arguments = declaration, arguments
        helped = {name: arguments[name] for name in HELPED if name in arguments}
        self._helper = LayerHelper(declaration.called, **helped)
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}
        self._attrs = dict(declaration.attrs)
        self._returns = list(declaration.returns)

    def append(self) -> Any:
        declaration = self._declaration
        for argument in declaration.arguments:
            self._bind(argument)
        further = declaration.body(**self._arguments) if declaration.body is not None else None
        type, values = further or Further("", {})
        for key, value in values.items():
            of_slot = self._inputs if key in declaration.inputs else self._outputs
            into = of_slot if key in declaration.inputs | declaration.outputs else self._attrs
            into[key] = value
            if value is None:
                del into[key]
        self._make_parameters()
        return self._append(type or declaration.definition.type)

    def _bind(self, argument: LayerArgument) -> None:
        name, value, attr = argument.name, self._arguments[argument.name], argument.attr
        if not argument.used or (value is None and argument.optional and not self._needs(argument)):
            return
        if argument.returned:
            self._returns += [argument.output] if value else []
        elif argument.output:
            self._outputs[argument.output] = check_variable(name, value)
        elif attr is None:
            check = check_variables if argument.several else check_variable
            self._inputs[argument.slot] = self._arguments[name] = check(name, value)
        elif argument.each:
            from fluidlite.layers.int_or_variable import numbers  # which uses layers itself

            self._arguments[name] = number_argument = numbers(name, value, argument.slot, argument.each)
            self._attrs[attr.name] = number_argument.attr
            self._inputs.update(number_argument.inputs)
        elif argument.slot and isinstance(value, Variable):
            self._inputs[argument.slot] = value
        else:
            self._arguments[name] = check_attribute(name, value, attr)
            if self._declaration.definition.attr(attr.name) is attr:
                # the operator checks whether an integer would be rounded
                self._attrs[attr.name] = value if exact_int_text(value) else self._arguments[name]

    def _needs(self, argument: LayerArgument) -> bool:
        """Whether the operator needs the slot of an argument that may be None."""
        slot = None if argument.attr is not None else self._declaration.definition.input(argument.slot)
        return slot is not None and not slot.dispensable

    def _make_parameters(self) -> None:
        helper, inputs = self._helper, self._inputs
        dtype = next((value.dtype for value in inputs.values() if isinstance(value, Variable)), "float32")
        for slot, value in list(inputs.items()):
            if isinstance(value, Weight):
                attr: Any = value.attr if value.attr is not None else helper.param_attr
                parameter = helper.create_parameter(
                    attr, value.dims, value.dtype or dtype, default_initializer=value.initializer
                )
                parameter.stop_gradient = value.stop_gradient or parameter.stop_gradient
                inputs[slot] = parameter
            elif isinstance(value, Bias):
                attr = helper.bias_attr
                if attr is False and not value.needed:
                    del inputs[slot]
                else:
                    inputs[slot] = helper.create_parameter(attr, value.dims, value.dtype or dtype, is_bias=True)

    def _append(self, type: str) -> Any:
        helper, declaration, outputs, results = self._helper, self._declaration, self._outputs, dict[str, Any]()
        biases = {slot: outputs.pop(slot) for slot in list(outputs) if isinstance(outputs[slot], AddedBias)}
        definition = declaration.definition if type == declaration.definition.type else ops.get(type)
        for slot in dict.fromkeys((*self._returns, *declaration.extra, *outputs)):
            value = outputs.get(slot)
            if definition.output(slot) is None:
                continue
            if isinstance(value, str):
                value = self._inputs[value]
            elif isinstance(value, VariableList):
                value = helper.create_variables(value.argument, value.number)
            elif value is None:
                value = helper.create_variable_for_type_inference(stop_gradient=slot in declaration.no_gradient)
            results[slot] = value
        helper.append_op(type, self._inputs, results, self._attrs)
        for slot, bias in biases.items():
            results[slot] = helper.append_bias_op(results[slot], bias.start, bias.end)
        first, *more = (results[slot] for slot in self._returns)
        first = helper.append_activation(first) if "act" in helper.kwargs else first
        return (first, *more) if more else first
