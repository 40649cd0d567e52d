"""Helpers of layers: names, parameters and their initialisation, bias, activation, checks of arguments."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from fluidlite import unique_name
from fluidlite.base.arguments import as_int, as_number, as_truth
from fluidlite.base.dtypes import is_float
from fluidlite.base.errors import AttributeValueError, DtypeError, FluidError, OperatorNotFoundError, ProgramError
from fluidlite.initializer import Initializer
from fluidlite.param_attr import ParamAttr, WeightNormParamAttr
from fluidlite.program.block import Block
from fluidlite.program.operator import Operator
from fluidlite.program.program import Program, default_main_program, default_startup_program
from fluidlite.program.registry import ops
from fluidlite.program.source_location import source_location
from fluidlite.program.variable import Parameter, Variable
from fluidlite.tensor.var_type import dtype_of

# Arguments ---------------------------------------------------------------------------------------------------------


def refuse(argument: str, value: Any, expected: str, do: str = "", error: type[FluidError] = ProgramError) -> NoReturn:
    """Raise ``error`` for a layer's invalid argument, with the layer and the user's source line."""
    line = source_location()
    text = str(value) if isinstance(value, Variable) else f"{type(value).__name__} {value!r}"
    raise error(
        f"{line.api or 'fluidlite'} ({os.path.basename(line.file)}:{line.number}): argument {argument!r} is {text}; "
        f"expected {expected}." + (f"\n  Do: {do}" if do else "")
    )


def check_variable(argument: str, value: Any) -> Variable:
    """Return ``value`` if it is a Variable, or raise."""
    if not isinstance(value, Variable):
        do = "feed arrays through layers.data, make constants by layers.fill_constant"
        refuse(argument, value, "a Variable", do)
    return value


def check_variables(argument: str, value: Any) -> list[Variable]:
    """Return one Variable or several as a list that is not empty, or raise."""
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    if not items:
        refuse(argument, value, "a Variable, or a list of one or more")
    return [check_variable(argument, item) for item in items]


def check_int(argument: str, value: Any, minimum: int | None = None) -> int:
    """Return an int, or raise."""
    expected = "an int" if minimum is None else f"an int of {minimum} or more"
    number = as_int(value)
    if number is None:
        refuse(argument, value, expected)
    if minimum is not None and number < minimum:
        refuse(argument, value, expected, error=AttributeValueError)
    return number


def check_ints(argument: str, value: Any) -> list[int]:
    """Return a list of ints (one int: a list of it), or raise."""
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Variable)):
        return [check_int(argument, item) for item in value]
    return [check_int(argument, value)]


def check_float(argument: str, value: Any) -> float:
    """Return a float, or raise."""
    number = as_number(value)
    if number is None:
        refuse(argument, value, "a number")
    return number


def check_bool(argument: str, value: Any) -> bool:
    """Return a bool, or raise."""
    result = as_truth(value)
    if result is None:
        refuse(argument, value, "True or False")
    return result


def check_function(
    argument: str, value: Any, expected: str = "a function", error: type[FluidError] = ProgramError
) -> Any:
    """Return a function, or None if ``expected`` ends with "or None"; else raise."""
    if not callable(value) and not (value is None and expected.endswith("or None")):
        refuse(argument, value, expected, error=error)
    return value


# The helper --------------------------------------------------------------------------------------------------------


_MAX_RESULTS = 65_536
"""Maximum number of an operator's output variables: a larger one is a mistake, and would exhaust the memory."""


class LayerHelper:
    """Builds one call of a layer.

    Parameters
    ----------
    layer_type : str
        ``"fc"``; without ``name`` the use is called ``fc_0``, ``fc_1``, ...
    name : str, optional
    **kwargs
        The layer's arguments; ``param_attr``, ``bias_attr``, ``act`` and ``input`` are read.
    """

    def __init__(self, layer_type: str, *, name: str | None = None, **kwargs: Any) -> None:
        if name is not None and not isinstance(name, str):
            refuse("name", name, "a text, or None")
        self.layer_type = layer_type
        _check_activation(kwargs.get("act"))
        self.name = name if name is not None else unique_name.generate(layer_type)
        self.kwargs = kwargs

    @property
    def main_program(self) -> Program:
        """The program that layers append to."""
        return default_main_program()

    @property
    def startup_program(self) -> Program:
        """The startup program."""
        return default_startup_program()

    @property
    def block(self) -> Block:
        """The block that layers append to."""
        return self.main_program.current_block()

    def append_op(
        self,
        type: str,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
        stop_gradient: bool = False,
    ) -> Operator:
        """Append an operator to the current block."""
        return self.block.append_op(type, inputs, outputs, attrs, stop_gradient)

    # Inputs

    def multiple_input(self, argument: str = "input") -> list[Variable]:
        """The layer's input, as a list."""
        return check_variables(argument, self.kwargs.get(argument))

    def input(self, argument: str = "input") -> Variable:
        """The layer's only input."""
        variables = self.multiple_input(argument)
        if len(variables) != 1:
            refuse(argument, self.kwargs.get(argument), "one Variable")
        return variables[0]

    def input_dtype(self, argument: str = "input") -> str:
        """The dtype that all inputs share."""
        variables = self.multiple_input(argument)
        dtype = variables[0].dtype
        for other in variables[1:]:
            if other.dtype != dtype:
                refuse(argument, other, f"{dtype}, the dtype of {variables[0].name!r}", "use layers.cast", DtypeError)
        return dtype

    def iter_inputs_and_params(self, argument: str = "input") -> Iterator[tuple[Variable, ParamAttr | bool]]:
        """Each input with the attributes of its parameter."""
        variables = self.multiple_input(argument)
        attr = ParamAttr.to_attr(self.kwargs.get("param_attr"))
        if isinstance(attr, list):
            if len(attr) != len(variables):
                refuse("param_attr", self.kwargs["param_attr"], f"one for each of the {len(variables)} inputs")
            yield from zip(variables, attr, strict=True)
            return
        if isinstance(attr, ParamAttr) and attr.name is not None and len(variables) > 1:
            refuse("param_attr", attr, f"a list of {len(variables)}: one name is for one parameter")
        for variable in variables:
            yield variable, attr

    @property
    def param_attr(self) -> ParamAttr | bool | list[ParamAttr | bool]:
        """The user's attributes of the weights."""
        return ParamAttr.to_attr(self.kwargs.get("param_attr"))

    @property
    def bias_attr(self) -> ParamAttr | bool | list[ParamAttr | bool]:
        """The user's attributes of the bias."""
        return ParamAttr.to_attr(self.kwargs.get("bias_attr"))

    # Variables

    def create_variable_for_type_inference(self, dtype: Any = None, stop_gradient: bool = False) -> Variable:
        """A variable for a result, ``fc_0.tmp_0``; the operator that writes it determines dims and dtype."""
        return self.block.create_temporary(prefix=self.name + ".tmp", stop_gradient=stop_gradient)

    create_tmp_variable = create_variable_for_type_inference

    def create_variables(self, argument: str, count: int) -> list[Variable]:
        """Variables for ``count`` results, a number that the user gave as ``argument``."""
        if count > _MAX_RESULTS:
            refuse(argument, count, f"at most {_MAX_RESULTS:,} results", error=AttributeValueError)
        return [self.create_variable_for_type_inference() for _ in range(count)]

    def create_variable(self, **options: Any) -> Variable:
        """A variable of the current block."""
        return self.block.create_var(**options)

    def create_global_variable(self, persistable: bool = False, **options: Any) -> Variable:
        """A variable of the global block; unless named, ``<layer>.tmp_0``."""
        if options.get("name") is None:
            options["name"] = self.block.new_name(self.name + ".tmp")
        return self.main_program.global_block().create_var(persistable=persistable, **options)

    def set_variable_initializer(self, var: Variable, initializer: Initializer) -> Variable:
        """Initialise a persistable variable in the startup program, once."""
        block = self.startup_program.global_block()
        duplicate = block.create_var(var.name, shape=var.shape, dtype=var.dtype, persistable=True)
        if not any(var.name in op.output_arg_names for op in block.ops):
            initializer(duplicate, block)
        return duplicate

    def create_parameter(
        self,
        attr: ParamAttr | bool | None,
        shape: Sequence[int],
        dtype: Any = None,
        is_bias: bool = False,
        default_initializer: Initializer | None = None,
    ) -> Parameter:
        """Declare a parameter, ``fc_0.w_0`` or ``fc_0.b_0`` unless named, and initialise it at startup.

        One that is declared already, by name and with equal dims and dtype, is shared.
        """
        attr = ParamAttr() if attr is None or attr is True else attr
        argument = "bias_attr" if is_bias else "param_attr"
        if attr is False:
            refuse(argument, False, "a ParamAttr: this layer needs the parameter")
        if isinstance(attr, list):
            refuse(argument, self.kwargs.get(argument, attr), "one ParamAttr: the layer has one of them")
        attr = attr.copy()
        dtype = dtype_of(dtype if dtype is not None else "float32")
        if default_initializer is not None and not isinstance(default_initializer, Initializer):
            refuse("default_initializer", default_initializer, "one of fluid.initializer's objects")
        if default_initializer is not None:
            attr.set_default_initializer(default_initializer)
        elif attr.initializer is None and not is_float(dtype):
            refuse("dtype", dtype, "a floating-point type, unless an initializer is named", error=DtypeError)
        elif is_bias:
            attr.set_default_bias_initializer()
        else:
            attr.set_default_param_initializer()
        if attr.name is None:
            attr.name = unique_name.generate(self.name + (".b" if is_bias else ".w"))
        if isinstance(attr, WeightNormParamAttr):
            weight: Parameter = self._normalised_weight(attr, shape, dtype)
            return weight
        start = self.startup_program.global_block()
        parameter = self.main_program.global_block().create_parameter(attr.name, shape, dtype, **attr.to_kwargs())
        duplicate = start.create_parameter(attr.name, shape, dtype, **attr.to_kwargs())
        if attr.initializer is not None and not any(attr.name in op.output_arg_names for op in start.ops):
            attr.initializer(duplicate, start)
        return parameter

    def _normalised_weight(self, attr: WeightNormParamAttr, shape: Sequence[int], dtype: str) -> Any:
        """Declare the direction v and the length g of a weight; return the weight that operators compute from them."""
        dim, rank = attr.dim, len(shape)
        if dim is not None and not -rank <= dim < rank:
            refuse("dim", dim, f"a dim of the weight, which is {list(shape)}")
        axis = None if dim is None else dim % rank
        lengths = [size if i == axis else 1 for i, size in enumerate(shape)]

        def part(suffix: str, dims: Sequence[int], initializer: Initializer | None) -> Parameter:
            plain = ParamAttr()
            plain.__dict__.update(attr.__dict__, name=f"{attr.name}{suffix}", initializer=initializer)
            return self.create_parameter(plain, dims, dtype)

        v = part("_v", shape, attr.initializer)
        g = part("_g", lengths, _Norms(v.name, axis))
        block = self.block
        norm, scale, weight = (self.create_variable_for_type_inference(dtype) for _ in range(3))
        _norms(block, v, axis, norm)
        block.append_op("elementwise_div", {"X": g, "Y": norm}, {"Out": scale})
        block.append_op("elementwise_mul", {"X": v, "Y": scale}, {"Out": weight})
        WeightNormParamAttr.params_with_weight_norm.add(weight)
        return weight

    def get_parameter(self, name: str) -> Parameter:
        """The parameter of that name.

        Raises
        ------
        ProgramError
            If there is none.
        """
        parameter = self.main_program.global_block().find_var(name)
        if not isinstance(parameter, Parameter):
            refuse("param_attr", name, "the name of a parameter that an earlier layer made")
        return parameter

    # Bias and activation

    def append_bias_op(self, input_var: Variable, dim_start: int = 1, dim_end: int | None = None) -> Variable:
        """Add a bias of dims ``input_var.shape[dim_start:dim_end]``, unless ``bias_attr`` is False."""
        attr: Any = self.bias_attr
        if attr is False:
            return input_var
        bias = self.create_parameter(attr, input_var.shape[dim_start:dim_end], input_var.dtype, is_bias=True)
        out = self.create_variable_for_type_inference(input_var.dtype)
        self.append_op("elementwise_add", {"X": input_var, "Y": bias}, {"Out": out}, {"axis": dim_start})
        return out

    def append_activation(self, input_var: Variable) -> Variable:
        """Append the operator that ``act`` names: ``"relu"``, or ``{"type": "leaky_relu", "alpha": 0.1}``."""
        act = self.kwargs.get("act")
        if act is None:
            return input_var
        attrs = dict(act) if isinstance(act, Mapping) else {"type": act}
        type = attrs.pop("type")
        out = self.create_variable_for_type_inference(input_var.dtype)
        self.append_op(type, {"X": input_var}, {"Out": out}, attrs)
        return out


def _check_activation(act: Any) -> None:
    """Check ``act`` before anything is appended."""
    if act is None:
        return
    type = act.get("type") if isinstance(act, Mapping) else act
    if not isinstance(type, str):
        refuse("act", act, "an activation's name, such as 'relu', or a dict with 'type'")
    try:
        ops.get(type)
    except OperatorNotFoundError as exc:
        refuse("act", act, f"an activation's name ({str(exc).splitlines()[0]})", error=AttributeValueError)


# Weight normalisation ----------------------------------------------------------------------------------------------


class _Norms(Initializer):
    """Initializes a parameter with the norms of another one."""

    def __init__(self, name: str, axis: int | None) -> None:
        self.name, self.axis = name, axis

    def __call__(self, var: Variable, block: Block) -> Operator:
        return _norms(block, block.var(self.name), self.axis, var)


def _norms(block: Block, x: Variable, axis: int | None, out: Variable) -> Operator:
    """Append ``out`` = the norm of x for each index of ``axis`` (None: of all); dims are kept, as 1."""
    square = block.create_temporary(x.dtype, "weight_norm.tmp")
    block.append_op("square", {"X": x}, {"Out": square})
    summed = [i for i in range(len(x.shape)) if i != axis]
    if summed:
        total = block.create_temporary(x.dtype, "weight_norm.tmp")
        block.append_op("reduce_sum", {"X": square}, {"Out": total}, {"dim": summed, "keep_dim": True})
        square = total
    return block.append_op("sqrt", {"X": square}, {"Out": out})
