"""Creation, copies and conversion of tensors; variables of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite import unique_name
from fluidlite.framework.variable import Parameter, Variable
from fluidlite.framework.vartype import dtype_of
from fluidlite.initializer import Constant, Initializer, value_attrs
from fluidlite.layer_helper import (
    LayerHelper,
    check_float,
    check_int,
    check_ints,
    check_variable,
    check_variables,
    refuse,
)
from fluidlite.layers.common import append
from fluidlite.param_attr import ParamAttr

__all__ = [
    "assign", "autoincreased_step_counter", "cast", "concat", "create_global_var", "create_parameter",
    "create_tensor", "fill_constant", "fill_constant_batch_size_like", "increment", "ones", "ones_like", "sum",
    "sums", "zeros", "zeros_like",
]  # fmt: skip

# Variables ---------------------------------------------------------------------------------------------------------


def create_tensor(dtype: Any, name: str | None = None, persistable: bool = False) -> Variable:
    """Declare a variable whose dims the operator that writes it will say.

    Parameters
    ----------
    dtype : str
    name : str, optional
    persistable : bool
        Kept in the scope after a run, and saved.

    Returns
    -------
    Variable
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

    Parameters
    ----------
    shape : sequence of int
    dtype : str
    name : str, optional
        Default: the one in ``attr``, else ``create_parameter_0.w_0``.
    attr : ParamAttr, optional
    is_bias : bool
        Changes the default initializer from Xavier to 0.
    default_initializer : Initializer, optional
        Used unless ``attr`` names one.

    Returns
    -------
    Parameter
    """
    given = ParamAttr.to_attr(attr)
    if not isinstance(given, ParamAttr):
        refuse("attr", attr, "a ParamAttr")
    given = given.copy()
    if name is not None:
        given.name = name
    helper = LayerHelper("create_parameter")
    return helper.create_parameter(given, check_ints("shape", shape), dtype, is_bias, default_initializer)


def create_global_var(
    shape: Sequence[int],
    value: float,
    dtype: Any,
    persistable: bool = False,
    force_cpu: bool = False,
    name: str | None = None,
) -> Variable:
    """Declare a variable of the global block, filled with ``value`` at startup.

    Parameters
    ----------
    shape : sequence of int
    value : number
    dtype : str
    persistable : bool
        Kept in the scope after a run, and saved.
    force_cpu : bool
        Taken for Fluid's sake.
    name : str, optional

    Returns
    -------
    Variable
    """
    helper = LayerHelper("global_var")
    name = name if name is not None else unique_name.generate(helper.name + ".tmp")
    # It outlives the startup program only if it is persistable there; in the main program the user decides.
    var = helper.create_global_variable(
        persistable, name=name, shape=check_ints("shape", shape), dtype=dtype_of(dtype), stop_gradient=True
    )
    helper.set_variable_initializer(var, Constant(check_float("value", value)))
    return var


def autoincreased_step_counter(counter_name: str | None = None, begin: int = 1, step: int = 1) -> Variable:
    """Return an int64 [1] that is ``begin`` in the first run and ``step`` more in each later one.

    Parameters
    ----------
    counter_name : str, optional
        Counters of one name are one counter. Default: ``@STEP_COUNTER@``.
    begin, step : int

    Returns
    -------
    Variable
    """
    name = "@STEP_COUNTER@" if counter_name is None else counter_name
    helper = LayerHelper("global_step_counter")
    block = helper.main_program.global_block()
    found = block.vars.get(name)
    if found is not None:
        return found
    counter = helper.create_global_variable(True, name=name, shape=[1], dtype="int64", stop_gradient=True)
    helper.set_variable_initializer(counter, Constant(check_int("begin", begin) - check_int("step", step)))
    block.prepend_op("increment", {"X": counter}, {"Out": counter}, {"step": float(step)})
    return counter


# Constants and random numbers --------------------------------------------------------------------------------------


def fill_constant(
    shape: Any,
    dtype: Any,
    value: float | Variable,
    force_cpu: bool = False,
    out: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Return a tensor filled with a value.

    Parameters
    ----------
    shape : sequence of int or Variable, or Variable
        Dims; a Variable holds one of them, or all.
    dtype : str
    value : number or Variable
        A Variable holds one number.
    force_cpu : bool
        Taken for Fluid's sake.
    out : Variable, optional
        Where it is written.
    name : str, optional

    Returns
    -------
    Variable
    """
    from fluidlite.layers.numbers import numbers  # that module makes constants by this function

    given = numbers("shape", shape, "ShapeTensor", "ShapeTensorList")
    inputs: dict[str, Any] = dict(given.inputs)
    attrs: dict[str, Any] = {"shape": given.attr, "dtype": dtype_of(dtype)}
    if isinstance(value, Variable):
        inputs["ValueTensor"] = value
    else:
        attrs["value"] = check_float("value", value)
        if isinstance(value, int) and attrs["value"] != value:
            attrs["str_value"] = str(value)  # more digits than a float has
    filled = append("fill_constant", "fill_constant", inputs, attrs, out=out, name=name, stop_gradient=True)
    filled.stop_gradient = True
    return filled


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

    Parameters
    ----------
    input : Variable
        Only its dims are read.
    shape : sequence of int
    dtype : str
    value : number
    input_dim_idx, output_dim_idx : int
    force_cpu : bool
        Taken for Fluid's sake.

    Returns
    -------
    Variable
    """
    attrs = {
        "shape": check_ints("shape", shape), "dtype": dtype_of(dtype), "value": check_float("value", value),
        "input_dim_idx": check_int("input_dim_idx", input_dim_idx),
        "output_dim_idx": check_int("output_dim_idx", output_dim_idx),
    }  # fmt: skip
    type = "fill_constant_batch_size_like"
    return append(type, type, {"Input": check_variable("input", input)}, attrs, stop_gradient=True)


def zeros(shape: Any, dtype: Any, force_cpu: bool = False, name: str | None = None) -> Variable:
    """Return a tensor of zeros.

    Parameters
    ----------
    shape : sequence of int
    dtype : str
    force_cpu : bool
        Taken for Fluid's sake.
    name : str, optional

    Returns
    -------
    Variable
    """
    return fill_constant(shape, dtype, 0.0, name=name)


def ones(shape: Any, dtype: Any, force_cpu: bool = False) -> Variable:
    """Return a tensor of ones.

    Parameters
    ----------
    shape : sequence of int
    dtype : str
    force_cpu : bool
        Taken for Fluid's sake.

    Returns
    -------
    Variable
    """
    return fill_constant(shape, dtype, 1.0)


def zeros_like(x: Variable, out: Variable | None = None) -> Variable:
    """Return zeros in the dims and dtype of ``x``.

    Parameters
    ----------
    x : Variable
    out : Variable, optional
        Where they are written.

    Returns
    -------
    Variable
    """
    inputs = {"X": check_variable("x", x)}
    return append("zeros_like", "fill_zeros_like", inputs, out=out, stop_gradient=True)


def ones_like(x: Variable, out: Variable | None = None) -> Variable:
    """Return ones in the dims and dtype of ``x``.

    Parameters
    ----------
    x : Variable
    out : Variable, optional
        Where they are written.

    Returns
    -------
    Variable
    """
    inputs = {"X": check_variable("x", x)}
    return append("ones_like", "fill_any_like", inputs, {"value": 1.0}, out=out, stop_gradient=True)


# Copies and conversions --------------------------------------------------------------------------------------------


def cast(x: Variable, dtype: Any) -> Variable:
    """Return ``x`` in another dtype.

    Parameters
    ----------
    x : Variable
    dtype : str

    Returns
    -------
    Variable
    """
    x = check_variable("x", x)
    return append("cast", "cast", {"X": x}, {"in_dtype": x.dtype, "out_dtype": dtype_of(dtype)})


def concat(input: Sequence[Variable], axis: Any = 0, name: str | None = None) -> Variable:
    """Return the inputs one behind the other along ``axis``, an int or a Variable that holds it.

    Parameters
    ----------
    input : list of Variable
        Of one dtype, and of equal dims but for ``axis``.
    axis : int or Variable
    name : str, optional

    Returns
    -------
    Variable
    """
    inputs: dict[str, Any] = {"X": check_variables("input", input)}
    if isinstance(axis, Variable):
        return append("concat", "concat", {**inputs, "AxisTensor": axis}, name=name)
    return append("concat", "concat", inputs, {"axis": check_int("axis", axis)}, name=name)


def sums(input: Sequence[Variable], out: Variable | None = None) -> Variable:
    """Return the elementwise sum of the inputs, in order (written into ``out``, if given).

    Parameters
    ----------
    input : Variable or list of Variable
    out : Variable, optional

    Returns
    -------
    Variable
    """
    return append("sum", "sum", {"X": check_variables("input", input)}, out=out)


def sum(x: Variable | Sequence[Variable]) -> Variable:
    """Return the elementwise sum of ``x``, one or several; the sum of a tensor's elements is ``reduce_sum``.

    Parameters
    ----------
    x : Variable or list of Variable

    Returns
    -------
    Variable
    """
    return append("sum", "sum", {"X": check_variables("x", x)})


def assign(input: Variable | np.ndarray[Any, Any], output: Variable | None = None) -> Variable:
    """Return a copy of ``input`` (written into ``output``, if given).

    The values of an array are kept in the program; they are what it holds now.

    Parameters
    ----------
    input : Variable or array
    output : Variable, optional

    Returns
    -------
    Variable
    """
    if isinstance(input, np.ndarray):
        attrs = value_attrs(input, dtype_of(input.dtype))
        return append("assign", "assign_value", {}, attrs, out=output, stop_gradient=output is None)
    return append("assign", "assign", {"X": check_variable("input", input)}, out=output)


def increment(x: Variable, value: float = 1.0, in_place: bool = True) -> Variable:
    """Add ``value`` to ``x``, in ``x`` itself unless ``in_place`` is False.

    Parameters
    ----------
    x : Variable
        Of one element.
    value : float
    in_place : bool

    Returns
    -------
    Variable
    """
    x = check_variable("x", x)
    attrs = {"step": check_float("value", value)}
    return append("increment", "increment", {"X": x}, attrs, out=x if in_place else None)


def __getattr__(name: str) -> Any:
    """Layers that stand elsewhere here, under Fluid's path."""
    from fluidlite import layers

    if name in layers.__all__:
        return getattr(layers, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
