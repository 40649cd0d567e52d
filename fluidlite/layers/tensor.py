"""Create, copy and convert tensors; declare variables and parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.base.arguments import exact_int_text
from fluidlite.initializer import Constant, Initializer, value_attrs
from fluidlite.layer_helper import (
    LayerHelper,
    check_bool,
    check_float,
    check_int,
    check_ints,
    check_variable,
    refuse,
)
from fluidlite.layers.common import layers_getattr
from fluidlite.layers.declare import Unused, also, layer
from fluidlite.param_attr import ParamAttr
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.program.variable import Parameter, Variable
from fluidlite.program.variable_metadata import copy_operator
from fluidlite.tensor.var_type import dtype_of

# Variables -----------------------------------------------------------------------------------------------------------


def create_tensor(dtype: Any, name: str | None = None, persistable: bool = False) -> Variable:
    """Declare a variable whose dims are set by the operator that writes it.

    persistable: Stays in the scope after a run, and is saved
    """
    dtype_of(dtype)
    helper = LayerHelper("create_tensor", name=name)
    return helper.create_variable(name=helper.name, dtype=dtype, persistable=persistable)


def create_parameter(
    shape: Sequence[int],
    dtype: Any,
    name: str | None = None,
    attr: Any = None,
    is_bias: bool = False,
    default_initializer: Initializer | None = None,
) -> Parameter:
    """Declare a parameter and initialise it at startup.

    name: Default: the one in ``attr``, else ``create_parameter_0.w_0``
    attr: A ParamAttr
    is_bias: Changes the default initializer from Xavier to 0
    default_initializer: Used unless ``attr`` names one
    """
    param_attr = ParamAttr.to_attr(attr)
    if not isinstance(param_attr, ParamAttr):
        refuse("attr", attr, "a ParamAttr")
    param_attr = param_attr.copy()
    if name is not None:
        param_attr.name = name
    helper = LayerHelper("create_parameter")
    return helper.create_parameter(
        param_attr, check_ints("shape", shape), dtype, check_bool("is_bias", is_bias), default_initializer
    )


def create_global_var(
    shape: Sequence[int],
    value: float,
    dtype: Any,
    persistable: bool = False,
    force_cpu: bool = False,
    name: str | None = None,
) -> Variable:
    """Declare a variable of the global block, filled with ``value`` at startup.

    persistable: Stays in the scope after a run, and is saved
    force_cpu: Taken for Fluid's sake
    """
    check_bool("force_cpu", force_cpu)
    helper = LayerHelper("global_var")
    name = name if name is not None else helper.main_program.global_block().new_name(helper.name + ".tmp")
    # It outlives the startup program only if it is persistable there; in the main program the user decides.
    var = helper.create_global_variable(
        persistable, name=name, shape=check_ints("shape", shape), dtype=dtype_of(dtype), stop_gradient=True
    )
    check_float("value", value)
    helper.set_variable_initializer(var, Constant(value))
    return var


def autoincreased_step_counter(counter_name: str | None = None, begin: int = 1, step: int = 1) -> Variable:
    """Return an int64 [1] that is ``begin`` in the first run and ``step`` more in each later one.

    counter_name: Counters of one name are one counter. Default: ``@STEP_COUNTER@``.
    """
    name = "@STEP_COUNTER@" if counter_name is None else counter_name
    helper = LayerHelper("global_step_counter")
    block = helper.main_program.global_block()
    existing = block.vars.get(name)
    if existing is not None:
        return existing
    counter = helper.create_global_variable(True, name=name, shape=[1], dtype="int64", stop_gradient=True)
    helper.set_variable_initializer(counter, Constant(check_int("begin", begin) - check_int("step", step)))
    block.prepend_op("increment", {"X": counter}, {"Out": counter}, {"step": float(step)})
    return counter


# Constants and random numbers ----------------------------------------------------------------------------------------


@layer(
    "fill_constant",
    {"value": "", "force_cpu": Unused("kernels are chosen by the place")},
    stop_gradient=True,
)
def fill_constant(
    shape: Any,
    dtype: Any,
    value: float | Variable,
    force_cpu: bool = False,
    out: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Return a tensor filled with a value.

    shape: Dims; a Variable holds one of them, or all
    value: A Variable holds one number

    >>> fill_constant([2, 4], "float32", 0.5).shape
    (2, 4)
    """
    if out is not None:
        out.stop_gradient = True
    if isinstance(value, Variable):
        return also(ValueTensor=value)
    number = check_float("value", int(value) if isinstance(value, bool) and dtype == "bool" else value)
    return also(value=number, str_value=exact_int_text(value) or None)


@layer("fill_constant_batch_size_like", {"force_cpu": Unused("kernels are chosen by the place")}, stop_gradient=True)
def fill_constant_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    dtype: Any,
    value: float,
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    force_cpu: bool = False,
) -> Variable:
    """Return a tensor filled with ``value``, whose dim ``output_dim_idx`` is dim ``input_dim_idx`` of ``input``.

    >>> fill_constant_batch_size_like(data("input", [2, 4, 8, 8]), [2, 2], "float32", 0.5).shape
    (2, 2)
    """


def zeros(shape: Any, dtype: Any, force_cpu: bool = False, name: str | None = None) -> Variable:
    """Return a tensor of zeros.

    shape: Dims
    force_cpu: Taken for Fluid's sake
    """
    return fill_constant(shape, dtype, 0.0, name=name)


def ones(shape: Any, dtype: Any, force_cpu: bool = False) -> Variable:
    """Return a tensor of ones.

    shape: Dims
    force_cpu: Taken for Fluid's sake
    """
    return fill_constant(shape, dtype, 1.0)


@layer("fill_zeros_like", stop_gradient=True)
def zeros_like(x: Variable, out: Variable | None = None) -> Variable:
    """Return zeros in the dims and dtype of ``x``.

    >>> zeros_like(data("x", [2, 4, 8, 8])).shape
    (2, 4, 8, 8)
    """


@layer("fill_any_like", attrs={"value": 1.0}, stop_gradient=True)
def ones_like(x: Variable, out: Variable | None = None) -> Variable:
    """Return ones in the dims and dtype of ``x``.

    >>> ones_like(data("x", [2, 1], "int64")).shape
    (2, 1)
    """


# Copies and conversions ----------------------------------------------------------------------------------------------


@layer("cast", {"dtype": "out_dtype"})
def cast(x: Variable, dtype: Any) -> Variable:
    """Return ``x`` in another dtype.

    >>> cast(data("x", [2, 4]), "float32").shape
    (2, 4)
    """
    return also(in_dtype=x.dtype)


@layer("concat")
def concat(input: Sequence[Variable], axis: Any = 0, name: str | None = None) -> Variable:
    """Return the inputs concatenated along ``axis``, an int or a Variable.

    >>> concat(data("input", [1])).shape
    (1,)
    """


@layer("sum", called="sum")
def sums(input: Sequence[Variable], out: Variable | None = None) -> Variable:
    """Return the elementwise sum of the inputs, in order (written into ``out``, if given).

    >>> sums(data("input", [2, 4], "int64")).shape
    (2, 4)
    """


@layer("sum")
def sum(x: Variable | Sequence[Variable]) -> Variable:
    """Return the elementwise sum of ``x``, one or several; the sum of a tensor's elements is ``reduce_sum``.

    >>> sum(data("x", [2, 4])).shape
    (2, 4)
    """


def assign(input: Variable | np.ndarray[Any, Any], output: Variable | None = None) -> Variable:
    """Return a copy of ``input``, a tensor or a tensor array (written into ``output``, if given).

    The values of an array are copied into the program now.
    """
    helper = LayerHelper("assign")
    if output is None:
        output = helper.create_variable_for_type_inference(stop_gradient=isinstance(input, np.ndarray))
    out = {"Out": check_variable("output", output)}
    if isinstance(input, np.ndarray):
        helper.append_op("assign_value", {}, out, value_attrs(input, dtype_of(input.dtype)))
    else:
        helper.append_op(copy_operator(check_variable("input", input)), {"X": input}, out)
    return output


@layer("increment", {"value": "step", "in_place": ""})
def increment(x: Variable, value: float = 1.0, in_place: bool = True) -> Variable:
    """Add ``value`` to ``x``, in ``x`` itself unless ``in_place`` is False.

    x: Of one element

    >>> increment(data("x", [2, 3, 4])).shape
    (2, 3, 4)
    """
    return also(Out=x if in_place else None)


# Places --------------------------------------------------------------------------------------------------------------


@layer("device_view", {"place": ""})
def device_view(x: Variable, place: PlaceLike, name: str | None = None) -> Variable:
    """A view of a value that is already on ``place``: nothing is copied; value and gradient are shared.

    Returns: The same dims and dtype
    Raises: At a run, if ``x`` is on another place; :func:`device_transfer` copies it

    >>> device_view(data("x", [2, 4]), "cpu").shape
    (2, 4)
    """
    return also(op_device=str(Place.parse(place)))


@layer("device_transfer", {"place": ""})
def device_transfer(x: Variable, place: PlaceLike, name: str | None = None) -> Variable:
    """Copy a value to a place, and its gradient back.

    Operators run on the executor's place, or on that of ``fluid.device_guard``; append those that shall run on
    ``place`` inside ``fluid.device_guard(place)``.

    Returns: The same dims and dtype

    >>> device_transfer(data("x", [2, 4]), "cpu").shape
    (2, 4)
    """
    return also(op_device=str(Place.parse(place)))


__getattr__ = layers_getattr(__name__)  # Fluid's path of layers that other modules declare
