"""Leaf values: constants, placeholders, variables, persistent tensors and temporaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Union

import numpy as np

from fluidlite.base.dtypes import is_float
from fluidlite.base.errors import DtypeError, ProgramError
from fluidlite.compiler.arguments import filled_array, holds
from fluidlite.compiler.ir.order import dependency_names
from fluidlite.graph.value import Value, as_array, constant_value, create, value_like
from fluidlite.program.declare_variable import declared_dims
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor_spec import Spec
from fluidlite.tensor.var_type import dtype_of

Initial = Union[float, int, bool, np.ndarray[Any, Any], Sequence[Any], Callable[[tuple[int, ...]], Any], Variable, None]


def constant(const: Any, shape: Sequence[int] | None = None, dtype: Any = None) -> Value:
    """Return a value that never changes.

    Parameters
    ----------
    const : number or array_like
    shape : sequence of int, optional
        Dims that are filled with a number; default: those of ``const``.
    dtype : str, optional
        Default: float32 for numbers and lists, the array's dtype for arrays.

    Raises
    ------
    ValueError
        If it contains no numbers, or numbers that the dtype cannot hold, or has other dims than ``shape``.
    """
    if isinstance(const, Variable):
        raise ProgramError(f"{const.name!r} is a value of the graph; a constant is a number or an array")
    target_dtype = dtype_of(dtype) if dtype is not None else None
    array = as_array(const)
    has_dtype = isinstance(const, (np.ndarray, np.generic)) and array.ndim
    value_dtype = target_dtype or (dtype_of(array.dtype) if has_dtype else "float32")
    if array.dtype.kind in "biuf" and not holds(value_dtype, array):
        raise DtypeError(f"the constant {const!r:.60} holds numbers that are no {value_dtype}")
    if array.ndim == 0 and not shape:
        return value_like(const, value_dtype)
    dims = declared_dims("constant", shape) if shape is not None else array.shape
    value = constant_value(np.zeros(dims, "uint8"))
    value.declare(Spec.of(dims, value_dtype))
    value.initial = filled_array(value, array, "constant")
    return value


def placeholder(shape: Sequence[int] = (), dtype: Any = "float32", name: str | None = None) -> Value:
    """Return a value that is an argument of each call of a computation.

    Parameters
    ----------
    shape : sequence of int
        -1: known at run time.
    dtype : str
    name : str, optional
        Prefix of its unique name.
    """
    prefix = name or "placeholder"
    value = create(Value, prefix, spec=Spec.of(declared_dims(prefix, shape), dtype_of(dtype)))
    value.is_data = value.is_input = True
    return value


def _persistent(shape: Sequence[int], initial: Initial, dtype: Any, prefix: str) -> Value:
    dims = declared_dims(prefix, shape)
    if any(d < 0 for d in dims):
        raise ProgramError(f"{prefix!r} has shape {list(dims)}; every dim of state must be known")
    spec = Spec.of(dims, dtype_of(dtype))
    if isinstance(initial, Variable) and initial.spec != spec:
        raise ProgramError(f"the initial value of {prefix!r} is {initial.spec!r}; it is {spec!r}")
    if isinstance(initial, Variable):
        fed = [name for name in dependency_names(initial) if initial.block.var(name).is_data]
        if fed:
            raise ProgramError(
                f"the initial value of {prefix!r} needs placeholder {fed[0]!r}, which has no value before a call"
                "\n  Do: assign it in a computation, or give an array"
            )
    value = create(Value, prefix, spec=spec)
    value.persistable = value.is_input = True
    if initial is not None and not callable(initial) and not isinstance(initial, Variable):
        initial = filled_array(value, as_array(initial), "initial value")
    value.initial = initial
    return value


def variable(
    shape: Sequence[int] = (), initial_value: Initial = None, dtype: Any = "float32", name: str | None = None
) -> Value:
    """Return trainable state, which keeps its value between the calls of each transformer.

    Parameters
    ----------
    shape : sequence of int
    initial_value : number, array_like, callable or Value, optional
        A number fills it; a callable receives the dims and returns an array; a value is computed once.
    dtype : str
    name : str, optional
        Prefix of its unique name.

    Returns
    -------
    Value
        It may also be a parameter of computations; the argument then replaces the stored value.

    Raises
    ------
    ValueError
        If a dim is unknown, or the initial value does not fit.
    """
    return _persistent(shape, initial_value, dtype, name or "variable")


def persistent_tensor(
    shape: Sequence[int] = (), initial_value: Initial = None, dtype: Any = "float32", name: str | None = None
) -> Value:
    """Return state that is no weight: as :func:`variable`, but :func:`deriv` does not precompute its derivative."""
    value = _persistent(shape, initial_value, dtype, name or "persistent")
    value.stop_gradient = True
    return value


def temporary(shape: Sequence[int] = (), dtype: Any = "float32", name: str | None = None) -> Value:
    """Return a value that is assigned and read within one call, and dropped after it.

    It has no initial value and cannot be an argument; a computation that reads it before an assignment is refused.
    """
    prefix = name or "temporary"
    value = create(Value, prefix, spec=Spec.of(declared_dims(prefix, shape), dtype_of(dtype)))
    value.stop_gradient = True
    value.is_cell = True
    return value


def trainable(item: Variable) -> bool:
    """Whether a value is a trainable variable."""
    spec = item.spec
    return item.persistable and not item.stop_gradient and spec is not None and is_float(spec.dtype)
