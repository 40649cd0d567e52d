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
    "assign", "autoincreased_step_counter", "cast", "concat", "create_global_var", "create_parameter", "create_tensor",
    "fill_constant", "fill_constant_batch_size_like", "gaussian_random", "increment", "ones", "ones_like", "sum",
    "sums", "uniform_random", "zeros", "zeros_like",
]  # fmt: skip

# Variables ---------------------------------------------------------------------------------------------------------


def create_tensor(dtype: Any, name: str | None = None, persistable: bool = False) -> Variable:
    """Declare a variable whose dims the operator that writes it will say."""
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
    """Declare a variable of the global block, filled with ``value`` at startup."""
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
    shape: Sequence[int], dtype: Any, value: float, force_cpu: bool = False, out: Variable | None = None
) -> Variable:
    """Return a tensor filled with ``value`` (written into ``out``, if given)."""
    attrs = {"shape": check_ints("shape", shape), "dtype": dtype_of(dtype), "value": check_float("value", value)}
    filled = append("fill_constant", "fill_constant", {}, attrs, out=out, stop_gradient=True)
    filled.stop_gradient = True
    return filled


def fill_constant_batch_size_like(
    input: Variable, shape: Sequence[int], dtype: Any, value: float, input_dim_idx: int = 0, output_dim_idx: int = 0
) -> Variable:
    """Return a tensor filled with ``value``, whose dim ``output_dim_idx`` is dim ``input_dim_idx`` of ``input``."""
    attrs = {
        "shape": check_ints("shape", shape), "dtype": dtype_of(dtype), "value": check_float("value", value),
        "input_dim_idx": check_int("input_dim_idx", input_dim_idx),
        "output_dim_idx": check_int("output_dim_idx", output_dim_idx),
    }  # fmt: skip
    type = "fill_constant_batch_size_like"
    return append(type, type, {"Input": check_variable("input", input)}, attrs, stop_gradient=True)


def zeros(shape: Sequence[int], dtype: Any, force_cpu: bool = False) -> Variable:
    """Return a tensor of zeros."""
    return fill_constant(shape, dtype, 0.0)


def ones(shape: Sequence[int], dtype: Any, force_cpu: bool = False) -> Variable:
    """Return a tensor of ones."""
    return fill_constant(shape, dtype, 1.0)


def zeros_like(x: Variable, out: Variable | None = None) -> Variable:
    """Return zeros in the dims and dtype of ``x``."""
    inputs = {"X": check_variable("x", x)}
    return append("zeros_like", "fill_zeros_like", inputs, out=out, stop_gradient=True)


def ones_like(x: Variable, out: Variable | None = None) -> Variable:
    """Return ones in the dims and dtype of ``x``."""
    return append("ones_like", "scale", {"X": zeros_like(x)}, {"bias": 1.0}, out=out, stop_gradient=True)


def uniform_random(
    shape: Sequence[int], dtype: Any = "float32", min: float = -1.0, max: float = 1.0, seed: int = 0
) -> Variable:
    """Return random numbers, uniform in [min, max); ``seed`` 0 means the program's."""
    attrs = {
        "shape": check_ints("shape", shape), "dtype": dtype_of(dtype), "min": check_float("min", min),
        "max": check_float("max", max), "seed": check_int("seed", seed),
    }  # fmt: skip
    return append("uniform_random", "uniform_random", {}, attrs, stop_gradient=True)


def gaussian_random(
    shape: Sequence[int], mean: float = 0.0, std: float = 1.0, seed: int = 0, dtype: Any = "float32"
) -> Variable:
    """Return normal random numbers; ``seed`` 0 means the program's."""
    attrs = {
        "shape": check_ints("shape", shape), "dtype": dtype_of(dtype), "mean": check_float("mean", mean),
        "std": check_float("std", std), "seed": check_int("seed", seed),
    }  # fmt: skip
    return append("gaussian_random", "gaussian_random", {}, attrs, stop_gradient=True)


# Copies and conversions --------------------------------------------------------------------------------------------


def cast(x: Variable, dtype: Any) -> Variable:
    """Return ``x`` in another dtype."""
    x = check_variable("x", x)
    return append("cast", "cast", {"X": x}, {"in_dtype": x.dtype, "out_dtype": dtype_of(dtype)})


def concat(input: Sequence[Variable], axis: int = 0, name: str | None = None) -> Variable:
    """Return the inputs one behind the other along ``axis``."""
    inputs = {"X": check_variables("input", input)}
    return append("concat", "concat", inputs, {"axis": check_int("axis", axis)}, name=name)


def sums(input: Sequence[Variable], out: Variable | None = None) -> Variable:
    """Return the elementwise sum of the inputs, in order (written into ``out``, if given)."""
    return append("sum", "sum", {"X": check_variables("input", input)}, out=out)


def sum(x: Variable | Sequence[Variable]) -> Variable:
    """Return the elementwise sum of ``x``, one or several; the sum of a tensor's elements is ``reduce_sum``."""
    return append("sum", "sum", {"X": check_variables("x", x)})


def assign(input: Variable | np.ndarray[Any, Any], output: Variable | None = None) -> Variable:
    """Return a copy of ``input`` (written into ``output``, if given).

    The values of an array are kept in the program; they are what it holds now.
    """
    if isinstance(input, np.ndarray):
        attrs = value_attrs(input, dtype_of(input.dtype))
        return append("assign", "assign_value", {}, attrs, out=output, stop_gradient=output is None)
    return append("assign", "assign", {"X": check_variable("input", input)}, out=output)


def increment(x: Variable, value: float = 1.0, in_place: bool = True) -> Variable:
    """Add ``value`` to ``x``, in ``x`` itself unless ``in_place`` is False."""
    x = check_variable("x", x)
    attrs = {"step": check_float("value", value)}
    return append("increment", "increment", {"X": x}, attrs, out=x if in_place else None)
