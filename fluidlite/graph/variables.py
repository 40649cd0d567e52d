"""Values that hold something: constants, placeholders, variables, persistent tensors and temporaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Union

import numpy as np

from fluidlite.base.dtypes import is_float
from fluidlite.base.errors import DtypeError, ProgramError
from fluidlite.compiler.arguments import fitted, holds
from fluidlite.compiler.ir.order import needed
from fluidlite.graph.value import Value, as_array, create, stored, value_like
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
        Dims that a number is repeated to; default: those of ``const``.
    dtype : str, optional
        Default: float32 for numbers and lists, an array's own for arrays.

    Raises
    ------
    ValueError
        If it holds no numbers, numbers that the dtype cannot hold, or other dims than ``shape``.
    """
    if isinstance(const, Variable):
        raise ProgramError(f"{const.name!r} is a value of the graph; a constant is a number or an array")
    wanted = dtype_of(dtype) if dtype is not None else None
    array = as_array(const)
    own = isinstance(const, (np.ndarray, np.generic)) and array.ndim
    kind = wanted or (dtype_of(array.dtype) if own else "float32")
    if array.dtype.kind in "biuf" and not holds(kind, array):
        raise DtypeError(f"the constant {const!r:.60} holds numbers that are no {kind}")
    if array.ndim == 0 and not shape:
        return value_like(const, kind)
    dims = declared_dims("constant", shape) if shape is not None else array.shape
    made = stored(np.zeros(dims, "uint8"))
    made.declare(Spec.of(dims, kind))
    made.initial = fitted(made, np.broadcast_to(array, dims) if array.ndim == 0 else array, "constant").copy()
    return made


def placeholder(shape: Sequence[int] = (), dtype: Any = "float32", name: str | None = None) -> Value:
    """Return a value that each call of a computation is given.

    Parameters
    ----------
    shape : sequence of int
        -1: known when it runs.
    dtype : str
    name : str, optional
        Starts its name, which is made unique.
    """
    prefix = name or "placeholder"
    made = create(Value, prefix, spec=Spec.of(declared_dims(prefix, shape), dtype_of(dtype)))
    made.is_data = made.is_input = True
    return made


def _persistent(shape: Sequence[int], initial: Initial, dtype: Any, prefix: str) -> Value:
    dims = declared_dims(prefix, shape)
    if any(d < 0 for d in dims):
        raise ProgramError(f"{prefix!r} has shape {list(dims)}; every dim of what is kept must be known")
    spec = Spec.of(dims, dtype_of(dtype))
    if isinstance(initial, Variable) and initial.spec != spec:
        raise ProgramError(f"the initial value of {prefix!r} is {initial.spec!r}; it is {spec!r}")
    if isinstance(initial, Variable):
        given = [name for name in needed(initial) if initial.block.var(name).is_data]
        if given:
            raise ProgramError(
                f"the initial value of {prefix!r} needs placeholder {given[0]!r}, which has no value before a call"
                "\n  Do: assign it in a computation, or give an array"
            )
    made = create(Value, prefix, spec=spec)
    made.persistable = made.is_input = True
    if initial is not None and not callable(initial) and not isinstance(initial, Variable):
        array = as_array(initial)
        initial = fitted(made, np.broadcast_to(array, dims) if array.ndim == 0 else array, "initial value").copy()
    made.initial = initial
    return made


def variable(
    shape: Sequence[int] = (), initial_value: Initial = None, dtype: Any = "float32", name: str | None = None
) -> Value:
    """Return state that training changes: it keeps its value from call to call, in each transformer.

    Parameters
    ----------
    shape : sequence of int
    initial_value : number, array_like, callable or Value, optional
        A number fills it; a callable is given the dims and returns an array; a value is computed, once.
    dtype : str
    name : str, optional
        Starts its name, which is made unique.

    Returns
    -------
    Value
        Also a parameter of computations, if it is listed: the argument overwrites the stored value for good.

    Raises
    ------
    ValueError
        If a dim is unknown, or the initial value does not fit.
    """
    return _persistent(shape, initial_value, dtype, name or "variable")


def persistent_tensor(
    shape: Sequence[int] = (), initial_value: Initial = None, dtype: Any = "float32", name: str | None = None
) -> Value:
    """Return state that is no weight: as :func:`variable`, but derivatives with respect to it are not prepared."""
    made = _persistent(shape, initial_value, dtype, name or "persistent")
    made.stop_gradient = True
    return made


def temporary(shape: Sequence[int] = (), dtype: Any = "float32", name: str | None = None) -> Value:
    """Return storage for one call: assigned and read within it, and gone after it.

    It has no initial value and is no argument; a computation that reads it before it assigns it is refused.
    """
    prefix = name or "temporary"
    made = create(Value, prefix, spec=Spec.of(declared_dims(prefix, shape), dtype_of(dtype)))
    made.stop_gradient = True
    made.is_cell = True
    return made


def trainable(item: Variable) -> bool:
    """Whether a value is a variable whose derivative may be asked for."""
    spec = item.spec
    return item.persistable and not item.stop_gradient and spec is not None and is_float(spec.dtype)
