"""One use of a declared layer: its arguments checked and put in their places, parameters and results made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fluidlite.base.arguments import whole_text
from fluidlite.layer_helper import LayerHelper, check_variable, check_variables
from fluidlite.layers.attribute_checks import check_attribute
from fluidlite.layers.declared import AddedBias, Bias, Further, Several, Weight
from fluidlite.program.registry import ops
from fluidlite.program.variable import Variable

if TYPE_CHECKING:
    from fluidlite.layers.declare import Argument, Declaration

HELPED = ("name", "act", "param_attr", "bias_attr")
"""Arguments that LayerHelper reads."""


class Use:
    """A declared layer and its ``arguments`` by name; where one is checked, they hold what it is then."""

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
            self._take(argument)
        further = declaration.body(**self._arguments) if declaration.body is not None else None
        type, given = further or Further("", {})
        for key, value in given.items():
            of_slot = self._inputs if key in declaration.inputs else self._outputs
            into = of_slot if key in declaration.inputs | declaration.outputs else self._attrs
            into[key] = value
            if value is None:
                del into[key]
        self._make_parameters()
        return self._append(type or declaration.definition.type)

    def _take(self, argument: Argument) -> None:
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
            from fluidlite.layers.int_or_variable import numbers  # that module makes constants by a layer

            self._arguments[name] = numbered = numbers(name, value, argument.slot, argument.each)
            self._attrs[attr.name] = numbered.attr
            self._inputs.update(numbered.inputs)
        elif argument.slot and isinstance(value, Variable):
            self._inputs[argument.slot] = value
        else:
            self._arguments[name] = check_attribute(name, value, attr)
            if self._declaration.definition.attr(attr.name) is attr:
                # of a whole number the operator says whether it must not be rounded
                self._attrs[attr.name] = value if whole_text(value) else self._arguments[name]

    def _needs(self, argument: Argument) -> bool:
        """Whether the operator needs the slot of an argument that may be None."""
        slot = None if argument.attr is not None else self._declaration.definition.input(argument.slot)
        return slot is not None and not slot.dispensable

    def _make_parameters(self) -> None:
        helper, inputs = self._helper, self._inputs
        dtype = next((value.dtype for value in inputs.values() if isinstance(value, Variable)), "float32")
        for slot, value in list(inputs.items()):
            if isinstance(value, Weight):
                attr: Any = value.attr if value.attr is not None else helper.param_attr
                made = helper.create_parameter(
                    attr, value.dims, value.dtype or dtype, default_initializer=value.initializer
                )
                made.stop_gradient = value.stop_gradient or made.stop_gradient
                inputs[slot] = made
            elif isinstance(value, Bias):
                attr = helper.bias_attr
                if attr is False and not value.needed:
                    del inputs[slot]
                else:
                    inputs[slot] = helper.create_parameter(attr, value.dims, value.dtype or dtype, is_bias=True)

    def _append(self, type: str) -> Any:
        helper, declaration, outputs, results = self._helper, self._declaration, self._outputs, dict[str, Any]()
        biases = {slot: outputs.pop(slot) for slot in list(outputs) if isinstance(outputs[slot], AddedBias)}
        made = declaration.definition if type == declaration.definition.type else ops.get(type)
        for slot in dict.fromkeys((*self._returns, *declaration.extra, *outputs)):
            value = outputs.get(slot)
            if made.output(slot) is None:
                continue
            if isinstance(value, str):
                value = self._inputs[value]
            elif isinstance(value, Several):
                value = helper.create_variables(value.argument, value.number)
            elif value is None:
                value = helper.create_variable_for_type_inference(stop_gradient=slot in declaration.still)
            results[slot] = value
        helper.append_op(type, self._inputs, results, self._attrs)
        for slot, bias in biases.items():
            results[slot] = helper.append_bias_op(results[slot], bias.start, bias.end)
        first, *others = (results[slot] for slot in self._returns)
        first = helper.append_activation(first) if "act" in helper.kwargs else first
        return (first, *others) if others else first
